"""Axolotl trains packed rows by its plugin: where it is installed, as in the environment of a test by night."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("axolotl")
pytest.importorskip("yaml")

from packer import PackerError  # noqa: E402  these need torch
from tests.helpers import axolotl_training  # noqa: E402
from tests.helpers.documents import make_example, make_source  # noqa: E402
from tests.helpers.models import VOCABULARY, tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.weighted_steps import whole_documents  # noqa: E402

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"), add_column=[])


@pytest.fixture
def train(example, tmp_path, monkeypatch):
    """Function that trains two steps on all rows with changed settings, and returns what was logged."""
    for name in ("AXOLOTL_DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    tiny_llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")

    return lambda **changes: axolotl_training.train(
        tmp_path, changes.pop("packed", example.packed), example.rows, **changes
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_axolotl_trains_as_on_documents_alone(example, train, attention):
    first, second, *_ = train(attn_implementation=attention)
    alone = train_alone(tiny_llama(), example.pieces)
    assert first["loss"] == pytest.approx(alone.loss, abs=1e-4)
    assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert second["loss"] < first["loss"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["document", "weight"])
def test_a_loss_by_weights_trains_as_documents_alone(train, tmp_path, loss):
    """Steps of two micro-batches of different sizes."""
    example, expected, norm, plain_norm = whole_documents(tmp_path / "whole", loss)
    rows = {"micro_batch_size": example.rows - 2, "gradient_accumulation_steps": 2}
    first, second, *_ = train(packed=example.packed, packed_loss=loss, **rows)
    assert first["loss"] == pytest.approx(expected, abs=1e-4)
    assert first["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert first["grad_norm"] != pytest.approx(plain_norm, rel=0.001)
    assert second["loss"] < first["loss"]


@pytest.mark.filterwarnings("ignore")
def test_without_its_boundaries_axolotl_s_loss_is_another(example, train, monkeypatch):
    from packer.trainers.axolotl import Collator

    collate = Collator.__call__

    def without_boundaries(self, rows):
        batch = collate(self, rows)
        return {name: batch[name] for name in ("input_ids", "labels")}

    monkeypatch.setattr(Collator, "__call__", without_boundaries)
    monkeypatch.setattr("packer.trainers.axolotl.PackedPlugin.add_callbacks_pre_trainer", lambda *_, **__: [])
    alone = train_alone(tiny_llama(), example.pieces)
    assert abs(train()[0]["loss"] - alone.loss) > 0.001


@pytest.mark.parametrize(("backend", "boundaries"), [("ulysses", "with"), ("ulysses", "without"), ("ring", "with")])
def test_context_parallelism_trains_as_on_documents_alone(tmp_path, monkeypatch, backend, boundaries):
    """Two processes, each with parts of all rows; the last document crosses from one part to the other.

    The parts have different numbers of trained tokens, and their sum is odd. Ulysses divides the heads of sdpa; the
    ring computes its blocks without FlashAttention, which needs a GPU.
    """
    documents = ((3, 12), (5, 40), (7, 11), (11, 30), (13, 27))
    tokens = [[number * place % VOCABULARY for place in range(1, length + 1)] for number, length in documents]
    labels = [list(each) for each in tokens]
    labels[1][:30], labels[4][:20] = [-100] * 30, [-100] * 20
    source = {"input_ids": tokens, "labels": labels}
    example = make_example(tmp_path / "rows", source, add_column=[], max_len=64, algorithm="sequential")
    assert example.rows == 2
    tiny_llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    for name in ("AXOLOTL_DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "tests.helpers.axolotl_training", tmp_path, example.packed, backend, boundaries]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*job, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pieces = dict(enumerate(zip(tokens, labels, strict=True)))
    alone = train_alone(tiny_llama(), pieces)
    of_rows = [train_alone(tiny_llama(), {each: pieces[each] for each in row}).loss for row in ((0, 1, 2), (3, 4))]
    for rank in range(2):
        logged = json.loads((tmp_path / f"{rank}.json").read_text())
        first, second = (each for each in logged if "loss" in each)
        evaluation = next(each["eval_loss"] for each in logged if "eval_loss" in each)  # before the first step
        if boundaries == "without":
            assert abs(first["loss"] - alone.loss) > 0.001
            continue
        assert first["loss"] == pytest.approx(alone.loss, abs=1e-4)
        assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
        assert evaluation == pytest.approx(sum(of_rows) / 2, abs=1e-4)  # as everywhere in the Trainer
        assert second["loss"] < first["loss"]


def test_rope_by_the_longest_document_is_refused_under_context_parallelism():
    from packer.trainers.axolotl import PackedPlugin

    model = tiny_llama()
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(PackerError, match="derives the frequencies of RoPE from the longest document"):
        PackedPlugin().post_trainer_create({"context_parallel_size": 2}, SimpleNamespace(model=model))


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_lacks_ids_of_the_rows_is_refused(train, tmp_path):
    padded = make_example(tmp_path / "padded", make_source("masked prompts"), add_column=[], pad_id=VOCABULARY)
    with pytest.raises(PackerError, match=f"the rows hold the id {VOCABULARY}, and the embedding of LlamaForCausalLM"):
        train(packed=padded.packed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sample_packing": True}, "sample_packing of Axolotl is True: the rows are packed already"),
        ({"xformers_attention": True, "attn_implementation": None}, "attn_implementation of Axolotl is xformers: "),
        ({"val_set_size": 0.1}, "val_set_size of Axolotl is 0.1: .*: name packed_eval_dataset instead"),
        ({"datasets": [{"path": "chats", "type": "chat_template"}]}, "datasets of Axolotl is .*; leave it out"),
        (
            {"context_parallel": {"size": 2}, "packed_loss": "document"},
            "packed_loss of Axolotl is document: context para",
        ),
        ({"sequence_parallel_degree": 2, "deepspeed": "zero3.json"}, "deepspeed of Axolotl is zero3.json: its context"),
        ({"curriculum_sampling": True}, "curriculum_sampling of Axolotl is True: rows must be shuffled"),
    ],
)
def test_settings_that_would_mix_documents_are_refused(train, settings, expected):
    with pytest.raises(PackerError, match=expected):
        train(**settings)
