"""`packer.trainers`: settings that would mix documents are refused, and trees train in the trainers that know them."""

import re
import runpy
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

import packer
from packer import PackerError
from packer.exporting.targets import STEPS, TARGETS
from tests.helpers.commands import succeeded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.helpers.documents import assert_same_gradients, make_example, make_source  # noqa: E402  these need torch
from tests.helpers.models import (  # noqa: E402
    VOCABULARY,
    recorded_gradients,
    tiny_llama,
    tiny_tokenizer,
    train_alone,
)
from tests.helpers.weighted_steps import document_weights, make_trainer, step_alone  # noqa: E402
from tests.helpers.writing import write_lines  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_gpu"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"))


BRANCHES = [
    [([1, 2, 3, 4, 5], 3), ([1, 2, 3, 9, 8, 7], 3), ([1, 2, 6], 2)],
    [([9, 8, 7, 6], 2), ([9, 8, 5, 4, 3, 2, 1], 2)],
    [([30, 31, 32, 33], 0)],
]
"""For each record, documents that begin alike, and how many tokens each has before those that are trained."""

PIECES = [(tokens, [-100] * prompt + tokens[prompt:]) for documents in BRANCHES for tokens, prompt in documents]


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    pieces = iter(PIECES)
    records = [[next(pieces) for _ in documents] for documents in BRANCHES]
    lists = [
        {"input_ids": [tokens for tokens, _ in each], "labels": [labels for _, labels in each]} for each in records
    ]
    source = write_lines(folder / "records.jsonl", lists)
    packer.pack(source, folder / "trees", max_len=16, share_prefixes=True, sync=False)
    return folder / "trees"


def options(folder, **changes):
    return {
        "output_dir": str(folder), "num_train_epochs": 1, "max_grad_norm": inf, "report_to": [], "disable_tqdm": True,
    } | changes  # fmt: skip


def hf_trainer(model, packed, folder, **changes):
    arguments = transformers.TrainingArguments(**options(folder, **changes))
    return transformers.Trainer(model, **packer.trainers.hf(packed, arguments))


def sft_trainer(model, packed, folder, **changes):
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(**options(folder, **changes), bf16=False)
    return trl.SFTTrainer(model, processing_class=tiny_tokenizer(), **packer.trainers.trl(packed, arguments))


@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.nightly)])
def test_trees_train_as_their_documents_alone(trees, tmp_path, make_trainer, attention):
    alone = train_alone(tiny_llama(), dict(enumerate(PIECES)))
    rows = len(packer.load(trees))
    trainer = make_trainer(tiny_llama(attention=attention), trees, tmp_path, per_device_train_batch_size=rows)
    with recorded_gradients(trainer.model) as recorded:
        loss = trainer.train().training_loss
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(recorded[0], alone.gradients, 1e-5)


def test_a_mean_over_the_documents_of_trees_is_that_of_documents_alone(trees, tmp_path):
    pieces = {(number, 0): piece for number, piece in enumerate(PIECES)}
    expected = step_alone(tiny_llama(dtype=torch.float64), pieces, [list(pieces)], document_weights(pieces))
    rows = len(packer.load(trees))
    trainer = make_trainer("hf", trees, tmp_path, loss="document", per_device_train_batch_size=rows)
    with recorded_gradients(trainer.model) as recorded:
        assert trainer.train().training_loss == pytest.approx(expected[0], abs=1e-5)
    assert_same_gradients(recorded[0], expected[1], 1e-6)


@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
def test_without_its_boundaries_a_trainer_s_loss_is_another(example, tmp_path, make_trainer):
    trainer = make_trainer(tiny_llama(), example.packed, tmp_path, per_device_train_batch_size=example.rows)
    collate = trainer.data_collator

    def without_boundaries(rows):
        batch = collate(rows)
        length = batch["input_ids"].shape[1]
        return {**{name: batch[name] for name in ("input_ids", "labels")}, "position_ids": torch.arange(length)[None]}

    trainer.data_collator = without_boundaries
    alone = train_alone(tiny_llama(), example.pieces)
    assert abs(trainer.train().training_loss - alone.loss) > 0.001


def test_a_model_has_its_own_attention_back_after_training(example, trees, tmp_path):
    trainer = hf_trainer(tiny_llama(), example.packed, tmp_path, max_steps=1)
    assert trainer.model.config._attn_implementation == packer.attention.IMPLEMENTATION
    trainer.train()
    assert trainer.model.config._attn_implementation == "sdpa"
    chosen = hf_trainer(tiny_llama(attention="eager"), example.packed, tmp_path)
    assert chosen.model.config._attn_implementation == "eager"
    evaluated = hf_trainer(tiny_llama(), trees, tmp_path, max_steps=1)
    evaluated.train()
    assert evaluated.model.config._attn_implementation == packer.attention.IMPLEMENTATION


@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
def test_a_model_that_lacks_ids_of_the_rows_is_refused_before_a_step(tmp_path, make_trainer):
    source = write_lines(tmp_path / "rows.jsonl", [{"input_ids": [1, 2, VOCABULARY]}, {"input_ids": [5, 6]}])
    packer.pack(source, tmp_path / "packed", max_len=8, sync=False)
    model = tiny_llama()
    with pytest.raises(
        PackerError, match=f"the rows hold the id 128, and the embedding of LlamaForCausalLM has {VOCABULARY}: "
    ):
        make_trainer(model, tmp_path / "packed", tmp_path / "trained")
    model.resize_token_embeddings(VOCABULARY + 1)
    make_trainer(model, tmp_path / "packed", tmp_path / "trained")


def test_rows_come_from_several_datasets_and_evaluation_from_another(example, tmp_path):
    trl = pytest.importorskip("trl")
    weights = {str(example.packed): 0.5, example.packed: 0.5}
    arguments = trl.SFTConfig(**options(tmp_path, per_device_eval_batch_size=example.rows), bf16=False)
    found = packer.trainers.trl(weights, arguments, eval=[example.packed])
    assert len(found["train_dataset"]) == 2 * example.rows
    assert arguments.remove_unused_columns, "the user's own arguments stay"
    trainer = trl.SFTTrainer(tiny_llama(), processing_class=tiny_tokenizer(), **found)
    alone = train_alone(tiny_llama(), example.pieces)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(alone.loss, abs=1e-5)


REFUSED = {
    "packing": (True, "packing of SFTConfig is True: the rows are packed already, and it would pack them again; "),
    "eval_packing": (True, "eval_packing of SFTConfig is True: .*; set it to False"),
    "padding_free": (True, "padding_free of SFTConfig is True: .*; set it to False"),
    "assistant_only_loss": (True, "assistant_only_loss of SFTConfig is True: labels are stored in the rows"),
    "completion_only_loss": (True, "completion_only_loss of SFTConfig is True: labels are stored in the rows"),
    "train_sampling_strategy": ("sequential", "train_sampling_strategy of TrainingArguments is sequential: .* random"),
    "accelerator_config": (
        {"dispatch_batches": True},
        "accelerator_config.dispatch_batches of TrainingArguments is True: .*; set it to False",
    ),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_would_mix_documents_are_refused_before_a_model_is_loaded(example, tmp_path, setting):
    trl = pytest.importorskip("trl")
    value, expected = REFUSED[setting]
    arguments = trl.SFTConfig(**options(tmp_path, **{setting: value}), bf16=False)
    with pytest.raises(PackerError, match=expected):
        packer.trainers.trl(example.packed, arguments)
    if not hasattr(transformers.TrainingArguments, setting):
        return
    with pytest.raises(PackerError, match=expected):
        packer.trainers.hf(example.packed, transformers.TrainingArguments(**options(tmp_path, **{setting: value})))


def test_rows_are_read_in_order_if_they_were_packed_for_that(example, tmp_path):
    lengths = write_lines(tmp_path / "tokens.jsonl", [{"input_ids": [1] * length} for length in range(1, 33)])
    packer.pack(lengths, tmp_path / "packed", max_len=32, balance_ranks=2, sync=False)
    arguments = transformers.TrainingArguments(**options(tmp_path, train_sampling_strategy="sequential"))
    found = packer.trainers.hf(tmp_path / "packed", arguments)
    assert found["args"].train_sampling_strategy == "sequential"
    with pytest.raises(PackerError, match="sequential: rows must be shuffled"):
        packer.trainers.hf([tmp_path / "packed"] * 2, arguments)


def test_arguments_of_another_trainer_and_trees_on_one_side_are_refused(example, trees, tmp_path):
    pytest.importorskip("trl")
    with pytest.raises(PackerError, match=re.escape("args is a TrainingArguments: SFTTrainer takes a trl.SFTConfig")):
        packer.trainers.trl(example.packed, transformers.TrainingArguments(**options(tmp_path)))
    with pytest.raises(PackerError, match="one of train and eval has trees, the other none"):
        packer.trainers.hf(example.packed, eval=trees)


def test_trainers_that_cannot_train_trees_refuse_them_and_rows_without_tokens(trees, tmp_path):
    from packer.trainers.automodel import dataset
    from packer.trainers.verl import PackedRows

    source = write_lines(tmp_path / "lengths.jsonl", [{"length": 3}])
    packer.pack(source, tmp_path / "index", max_len=16, lengths_column="length", sync=False)
    for open_rows in (dataset, PackedRows):
        with pytest.raises(PackerError, match=r"the rows hold trees .*: pack without these options"):
            open_rows(str(trees))
        with pytest.raises(PackerError, match="the rows have no tokens"):
            open_rows(str(tmp_path / "index"))


def test_trainers_that_divide_by_counts_refuse_rows_with_weights_and_others_want_to_know_the_loss(tmp_path):
    from packer.trainers.automodel import dataset
    from packer.trainers.verl import PackedRows

    source = write_lines(tmp_path / "tokens.jsonl", [{"input_ids": [1, 2, 3], "loss_weights": [0, 0.5, 2]}])
    packer.pack(source, tmp_path / "packed", max_len=16, sync=False)
    with pytest.raises(PackerError, match=r"weights of the loss, which this trainer ignores: .* or verl"):
        dataset(str(tmp_path / "packed"))
    with pytest.raises(PackerError, match="weights of the loss: set loss to weight, or to token to ignore them"):
        PackedRows(str(tmp_path / "packed"))


def test_rows_of_automodel_are_for_its_own_collate_alone(example):
    from packer.trainers.automodel import dataset

    row = dataset(str(example.packed))[0]
    for columns in (row, row["prepacked"]):  # to pack them again, or to collate them without boundaries
        with pytest.raises(PackerError, match="prepacked to true and dataloader"):
            columns["attention_mask"]
    assert "input_ids" not in row


@pytest.mark.parametrize("trainer", STEPS)
def test_pack_for_a_trainer_prints_what_to_write_and_its_page_exists(example, tmp_path, monkeypatch, trainer):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "tokens.jsonl", [{"input_ids": [1, 2, 3]}])
    printed = succeeded("pack", "tokens.jsonl", "--max-len", 16, "--for", trainer.upper())
    step = STEPS[trainer]
    assert printed.endswith(step.text("tokens-packed-16", 16) + "\n")
    assert (Path(packer.__file__).parent.parent / f"docs/how-to/trainers/{step.page}.md").exists()
    assert step.exported == (f"packer export tokens-packed-16 --to {trainer}" in printed)
    assert not step.exported or trainer in TARGETS

    write_lines(tmp_path / "weighted.jsonl", [{"input_ids": [1, 2, 3], "loss_multiplier": 2}])
    *_, last = succeeded("pack", "weighted.jsonl", "--max-len", 16, "--for", trainer).splitlines()
    takes = trainer in ("hf", "trl", "axolotl", "verl", "lightning", "ms-swift")
    assert last.endswith("for the weights of the loss") if takes else "refuses these rows" in last


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"context_parallel_size": 2, "packed_loss": "weight"},
            "packed_loss of Axolotl is weight: context para",
        ),
        (
            {"context_parallel": {"size": 2}, "deepspeed": "zero3.json"},
            "deepspeed of Axolotl is zero3.json: its",
        ),
    ],
)
def test_context_parallelism_of_axolotl_is_refused_with_settings_that_ignore_it(settings, expected):
    from packer.trainers.axolotl import PackedPlugin

    PackedPlugin().register(alone := {"packed_dataset": "rows", **settings, **dict.fromkeys([*settings][:1], None)})
    assert alone["datasets"] == [{"path": "rows", "type": None}]
    with pytest.raises(PackerError, match=expected):
        PackedPlugin().register({"packed_dataset": "rows", **settings})


def test_context_parallelism_of_olmo_core_is_refused(example, monkeypatch):
    """Over stand-ins for what the module takes from OLMo-core, which needs an environment of its own."""
    base = type("Base", (), {"__init__": lambda self, *_, **__: None})
    mesh = SimpleNamespace(mesh_dim_names=("dp",))
    data = SimpleNamespace(NumpyFSLDatasetBase=base, NumpyFSLDatasetConfig=base)
    parallel = SimpleNamespace(MeshDimName=SimpleNamespace(cp="cp"), get_world_mesh=lambda: mesh)
    packages = dict.fromkeys(("olmo_core", "olmo_core.data", "olmo_core.distributed"), SimpleNamespace())
    modules = {"olmo_core.data.numpy_dataset": data, "olmo_core.distributed.parallel": parallel}
    for name, module in (packages | modules).items():
        monkeypatch.setitem(sys.modules, name, module)
    plugin = runpy.run_path(str(Path(packer.__file__).parent / "trainers" / "olmo_core.py"))
    rows = plugin["PackedInstances"](str(example.packed), 32)
    rows.prepare()
    mesh.mesh_dim_names = ("dp", "cp")
    with pytest.raises(PackerError, match=r"with context parallelism \(cp_config\), .*: train without it"):
        rows.prepare()
