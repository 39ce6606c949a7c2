"""NeMo Automodel trains packed rows by its recipe: where it is installed, as in the environment of a test by night.

The recipe asks for a GPU; here, its model is on the CPU, and attention is a stand-in for FlashAttention.
"""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nemo_automodel")
yaml = pytest.importorskip("yaml")

from nemo_automodel._transformers import auto_model, kernel_patches  # noqa: E402
from nemo_automodel.components.config import loader  # noqa: E402
from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction  # noqa: E402

from packer import PackerError  # noqa: E402
from packer.exporting.targets import STEPS  # noqa: E402
from packer.trainers import automodel  # noqa: E402
from tests.helpers.documents import MAX_LEN, make_example, make_source  # noqa: E402
from tests.helpers.models import FLASH, tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.naive_attention import flash_attn_installed  # noqa: E402

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"), add_column=[])


@pytest.fixture
def on_cpu(monkeypatch):
    """Let the recipe put its model on the CPU, where it asks for the current GPU and its memory."""
    cpu = torch.device("cpu")
    its_torch = vars(torch) | {"device": lambda *_: cpu, "cuda": SimpleNamespace(current_device=lambda: cpu)}
    monkeypatch.setattr(auto_model, "torch", SimpleNamespace(**its_torch))
    monkeypatch.setattr(kernel_patches, "HAS_FA", True)
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    with flash_attn_installed():
        yield


@pytest.fixture
def train(example, on_cpu, tmp_path, monkeypatch):
    """Function that trains two steps of all rows with changed settings, and returns what was logged."""
    monkeypatch.setattr(loader, "ENABLE_USER_MODULES", True)
    tiny_llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")

    def run(*, rows_per_batch=example.rows, **changes):
        where, *lines = STEPS["automodel"].text(str(example.packed), MAX_LEN).splitlines()
        assert "NEMO_ENABLE_USER_MODULES=1" in where
        settings = {
            "step_scheduler": {
                "global_batch_size": example.rows, "local_batch_size": rows_per_batch, "num_epochs": 2,
            },
            "dist_env": {"backend": "gloo"},
            "distributed": {"strategy": "ddp"},
            "model": {
                "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained", "force_hf": True,
                "pretrained_model_name_or_path": str(tmp_path / "model"), "attn_implementation": FLASH,
                "torch_dtype": "float32",
            },
            "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
            "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.01},
            "checkpoint": {"enabled": False, "checkpoint_dir": str(tmp_path / "out")},
            "clip_grad_norm": {"max_norm": 1000.0},
            **yaml.safe_load("\n".join(lines)),
        }  # fmt: skip
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings | changes))
        recipe = TrainFinetuneRecipeForNextTokenPrediction(loader.load_yaml_config(str(tmp_path / "config.yaml")))
        recipe.setup()
        recipe.run_train_validation_loop()
        return [json.loads(line) for line in (tmp_path / "out" / "training.jsonl").read_text().splitlines()]

    return run


@pytest.mark.parametrize("rows_per_batch", [1, 7])
def test_automodel_trains_as_on_documents_alone(example, train, rows_per_batch):
    assert example.rows == 7
    first, second = train(rows_per_batch=rows_per_batch)
    alone = train_alone(tiny_llama(), example.pieces)
    assert first["loss"] == pytest.approx(alone.loss, abs=1e-5)
    assert first["grad_norm"] == pytest.approx(alone.gradient_norm, rel=1e-5)
    assert second["loss"] < first["loss"]


def test_without_its_boundaries_automodel_s_loss_is_another(example, train, monkeypatch):
    collate = automodel.collate

    def without_boundaries(rows):
        batch = collate(rows)
        return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}

    monkeypatch.setattr(automodel, "collate", without_boundaries)
    alone = train_alone(tiny_llama(), example.pieces)
    assert abs(train()[0]["loss"] - alone.loss) > 0.001


def test_a_row_holds_the_tokens_and_places_of_each_document(example):
    rows = [row["prepacked"] for row in automodel.dataset(example.packed)]
    batch = automodel.collate(list(automodel.dataset(example.packed)))
    assert batch["qkv_format"] == "thd"
    for name in ("seq_lens", "seq_lens_padded"):
        assert batch[name].tolist() == [[value for row in rows for value in row[name]]]


THEIRS = "nemo_automodel.components.datasets.utils.packed_sequence_thd_collater"


@pytest.mark.parametrize(
    "changes",
    [
        {"packed_sequence": {"packed_sequence_size": MAX_LEN, "prepacked": False}},
        {"packed_sequence": {"packed_sequence_size": MAX_LEN, "packing_strategy": "neat"}},
        {"dataloader": {"collate_fn": THEIRS}},
        {"dataloader": {}},
    ],
)
def test_settings_that_would_mix_documents_are_refused(train, changes):
    with pytest.raises(PackerError, match="prepacked to true and dataloader"):
        train(**changes)
