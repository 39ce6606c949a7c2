"""ms-swift trains packed rows by its plugin: where it is installed, as in the environment of a test by night."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("swift.pipelines")

from swift.arguments import SftArguments  # noqa: E402

from packer import PackerError  # noqa: E402  these need torch
from packer.loader.batch_formats import HFBatch  # noqa: E402
from packer.trainers import ms_swift  # noqa: E402
from tests.helpers import swift_training  # noqa: E402
from tests.helpers.documents import make_example, make_source  # noqa: E402
from tests.helpers.models import tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.weighted_steps import whole_documents  # noqa: E402

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"), add_column=[])


@pytest.fixture
def train(example, tmp_path):
    """Function that trains two steps of all rows with changed settings, and returns what was logged."""
    tiny_llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")

    return lambda **changes: swift_training.train(
        tmp_path, changes.pop("packed", example.packed), example.rows, **changes
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_ms_swift_trains_as_on_documents_alone(example, train, attention):
    first, second, *_ = train(attn_impl=attention)
    alone = train_alone(tiny_llama(), example.pieces)
    assert first["loss"] == pytest.approx(alone.loss, abs=1e-4)
    assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert second["loss"] < first["loss"]


def test_sequence_parallelism_trains_as_on_documents_alone(example, train, tmp_path):
    """Two processes, over stand-ins for the kernels of FlashAttention."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "tests.helpers.swift_training", tmp_path, example.packed, str(example.rows)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*job, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = train_alone(tiny_llama(), example.pieces)
    for rank in range(2):
        first, second = json.loads((tmp_path / f"{rank}.json").read_text())
        assert first["loss"] == pytest.approx(alone.loss, abs=1e-4)
        assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
        assert second["loss"] < first["loss"]


@pytest.mark.parametrize("loss", ["document", "weight"])
def test_a_loss_by_weights_trains_as_documents_alone(train, tmp_path, loss):
    """Steps of two micro-batches of different sizes."""
    example, expected, norm, plain_norm = whole_documents(tmp_path / "whole", loss)
    rows = {"per_device_train_batch_size": example.rows - 2, "gradient_accumulation_steps": 2}
    first, second, *_ = train(packed=example.packed, loss_scale=loss, **rows)
    assert first["loss"] == pytest.approx(expected, abs=1e-4)
    assert first["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert first["grad_norm"] != pytest.approx(plain_norm, rel=0.001)
    assert second["loss"] < first["loss"]


def test_without_its_boundaries_ms_swift_s_loss_is_another(example, train, monkeypatch):
    collate = HFBatch.__call__

    def without_boundaries(self, rows):
        batch = collate(self, rows)
        return {name: batch[name] for name in ("input_ids", "labels")}

    monkeypatch.setattr("packer.trainers.hf_and_trl.PackedAttention.on_init_end", lambda *_, **__: None)
    monkeypatch.setattr(HFBatch, "__call__", without_boundaries)
    alone = train_alone(tiny_llama(), example.pieces)
    assert abs(train()[0]["loss"] - alone.loss) > 0.001


REFUSED = {
    "packing": (True, "packing of ms-swift is True: the rows are packed already"),
    "dataset": ("chats.jsonl", "dataset of ms-swift is .*: documents would be trained beside the rows; leave it out"),
    "group_by_length": (True, "group_by_length of ms-swift is True: rows must be shuffled"),
    "train_dataloader_shuffle": (False, "train_dataloader_shuffle of ms-swift is False: rows must be shuffled"),
    "attn_impl": ("xformers", "attn_impl of ms-swift is xformers: it may ignore the boundaries"),
    "tuner_type": ("longlora", "tuner_type of ms-swift is longlora: it may ignore the boundaries"),
    "sequence_parallel_size": (2, "attn_impl of ms-swift with sequence_parallel_size is sdpa: it may ignore"),
    "padding_free": (True, "padding_free of ms-swift with sequence_parallel_size is True: it allows ring attention"),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_would_mix_documents_are_refused_before_a_model_is_loaded(train, setting, monkeypatch):
    value, expected = REFUSED[setting]
    monkeypatch.setattr("swift.arguments.SftArguments.get_model_processor", None)
    flash = {"attn_impl": "flash_attn"} if setting in ("packing", "padding_free") else {}  # others ms-swift refuses
    parallel = {"sequence_parallel_size": 2} if setting == "padding_free" else {}
    with pytest.raises(PackerError, match=expected):
        train(**flash, **parallel, **{setting: value})


def test_rows_that_are_packed_in_order_may_be_read_in_order(train, tmp_path):
    ordered = make_example(tmp_path / "ordered", make_source("masked prompts"), balance_ranks=2)
    first, second, *_ = train(packed=ordered.packed, train_dataloader_shuffle=False)
    assert second["loss"] < first["loss"]


def test_rows_come_from_several_datasets_and_only_sft_reads_them(example):
    args = object.__new__(SftArguments)
    path = str(example.packed)
    args.__dict__ |= {"cached_dataset": [path, path], "cached_val_dataset": [f'{{"{path}": 1}}']}
    assert [len(rows) for (rows,) in ms_swift.cached_rows(args)] == [2 * example.rows, example.rows]
    with pytest.raises(PackerError, match="packed rows train with swift sft and swift pt only"):
        ms_swift.cached_rows(None)
