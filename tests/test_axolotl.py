"""Axolotl trains packed rows by its plugin: where it is installed, as in the environment of a test by night."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("axolotl")
yaml = pytest.importorskip("yaml")

from packer import PackerError  # noqa: E402  these need torch
from tests.helpers.documents import make_example, make_source  # noqa: E402
from tests.helpers.models import tiny_llama, tiny_tokenizer, train_alone  # noqa: E402

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

    def run(**changes):
        from axolotl.cli.train import do_cli

        settings = {
            "base_model": str(tmp_path / "model"), "plugins": ["packer.trainers.axolotl.Packed"],
            "packed_dataset": str(example.packed), "micro_batch_size": example.rows, "gradient_accumulation_steps": 1,
            "num_epochs": 2, "learning_rate": 0.01, "optimizer": "adamw_torch", "lr_scheduler": "constant",
            "sequence_len": 32, "max_grad_norm": 1000, "output_dir": str(tmp_path / "out"), "logging_steps": 1,
            "bf16": False, "tf32": False, "attn_implementation": "sdpa", "save_strategy": "epoch", "use_cpu": True,
        }  # fmt: skip
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings | changes))
        monkeypatch.setattr("sys.argv", ["axolotl"])
        do_cli(str(tmp_path / "config.yaml"))
        return json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_axolotl_trains_as_on_documents_alone(example, train, attention):
    first, second, *_ = train(attn_implementation=attention)
    alone = train_alone(tiny_llama(), example.pieces)
    assert first["loss"] == pytest.approx(alone.loss, abs=1e-4)
    assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert second["loss"] < first["loss"]


@pytest.mark.filterwarnings("ignore")
def test_without_its_boundaries_axolotl_s_loss_is_another(example, train, monkeypatch):
    from packer.trainers.axolotl import Collator

    collate = Collator.__call__

    def without_boundaries(self, rows):
        batch = collate(self, rows)
        return {name: batch[name] for name in ("input_ids", "labels")}

    monkeypatch.setattr(Collator, "__call__", without_boundaries)
    monkeypatch.setattr("packer.trainers.axolotl.Packed.add_callbacks_pre_trainer", lambda *_, **__: [])
    alone = train_alone(tiny_llama(), example.pieces)
    assert abs(train()[0]["loss"] - alone.loss) > 0.001


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sample_packing": True}, "sample_packing of Axolotl is True: the rows are packed already"),
        ({"xformers_attention": True, "attn_implementation": None}, "attn_implementation of Axolotl is xformers: "),
        ({"val_set_size": 0.1}, "val_set_size of Axolotl is 0.1: .*: name packed_eval_dataset instead"),
        ({"datasets": [{"path": "chats", "type": "chat_template"}]}, "datasets of Axolotl is .*; leave it out"),
        ({"curriculum_sampling": True}, "curriculum_sampling of Axolotl is True: rows must be shuffled"),
    ],
)
def test_settings_that_would_mix_documents_are_refused(train, settings, expected):
    with pytest.raises(PackerError, match=expected):
        train(**settings)
