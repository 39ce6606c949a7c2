"""Packed rows in the loaders of other trainers: in their own code where it is installed, and as it reads elsewhere."""

import logging
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import packer

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytest.importorskip("transformers")

from packer.trainers import automodel  # noqa: E402  these need torch
from packer.trainers.verl import PackedRows  # noqa: E402
from tests.helpers import naive  # noqa: E402
from tests.helpers.documents import MAX_LEN, SOURCES, assert_same_gradients, make_example, make_source  # noqa: E402
from tests.helpers.export_trainers import alone_pairs, mean_loss, tiny_titan  # noqa: E402
from tests.helpers.models import gradients, tiny_llama, train_alone  # noqa: E402
from tests.helpers.torch_jobs import run_two  # noqa: E402
from tests.helpers.weighted_steps import document_weights, step_alone  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu")

PLUGINS = Path(packer.__file__).parent / "trainers"


@pytest.fixture(scope="module", params=SOURCES)
def example(request, tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


# ---- torchtitan after 0.3 ----


def titan_loader(example, *, rank=0, ranks=1, rows=1):
    logging.getLogger("absl").setLevel(logging.ERROR)
    pytest.importorskip("torchtitan.components.data")
    from packer.trainers import torchtitan as recipe

    config = recipe.grain_loader()
    config.dataset.dataset.source.path = str(example.packed)
    return config.build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=None,
        max_context_length=MAX_LEN,
        num_tokens_per_batch=int(rows * MAX_LEN),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchtitan_reads_rows_through_grain_and_its_model_keeps_documents_apart(example):
    loader = titan_loader(example, rows=example.rows)
    model = tiny_titan("flex").requires_grad_(False)
    inputs, labels = next(iter(loader))
    loader.close()

    def run(tokens, positions=None):
        positions = torch.arange(len(tokens)) if positions is None else positions
        return model(tokens, positions, model.get_attention_masks(positions))

    alone = mean_loss(alone_pairs(run, example.pieces))
    assert mean_loss([(run(inputs["input"], inputs["positions"]), labels)]) == pytest.approx(alone, abs=1e-5)


def test_torchtitan_with_grain_shuffles_repeats_resumes_and_divides_the_rows(example):
    inputs, labels = packer.collate(list(packer.load(example.packed)), format="torchtitan")
    expected = [tensor.tolist() for tensor in torch.stack([inputs["input"], inputs["positions"], labels], dim=1)]

    def take(loader, batches):
        """Return the rows of so many batches, by number."""
        found = []
        for _, (inputs, labels) in zip(range(batches), loader, strict=False):
            values = torch.stack([inputs["input"], inputs["positions"], labels])
            found += [expected.index(row.tolist()) for row in values.split(MAX_LEN, dim=1)]
        return found

    loader = titan_loader(example, rows=2)
    two_epochs = take(loader, example.rows)
    first, second = two_epochs[: example.rows], two_epochs[example.rows :]
    assert sorted(first) == sorted(second) == list(range(example.rows))
    assert first != second, "another order"
    state = loader.state_dict()
    rest = take(loader, 5)
    resumed = titan_loader(example, rows=2)
    resumed.load_state_dict(state)
    assert take(resumed, 5) == rest
    shares = [take(titan_loader(example, rank=rank, ranks=2), example.rows // 2) for rank in range(2)]
    assert len({row for share in shares for row in share}) == example.rows // 2 * 2
    with pytest.raises(packer.PackerError, match="dp_rank is 48: set it to a multiple of 32, the tokens per row"):
        take(titan_loader(example, rows=1.5), 1)


def test_torchtitan_gets_the_mask_of_padding_if_its_sequences_have_one(example, monkeypatch):
    """The names that the module takes from torchtitan, as they were in September 2026."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class TextSequence:
        input_ids: Any
        labels: Any
        positions: Any = None
        padding_mask: Any = None

    class Configurable:
        class Config:
            pass

    names = ["ConcatThenSplitPackingConfig", "DatasetBuildContext", "DatasetIterationPolicy", "GrainDataLoader"]
    data = SimpleNamespace(**dict.fromkeys([*names, "SingleDatasetConfig"]), TextSequence=TextSequence)
    data.RandomAccessDataSource, data.SampleProcessor = object, Configurable
    monkeypatch.setitem(sys.modules, "torchtitan.components.data", data)
    monkeypatch.setitem(sys.modules, "torchtitan.config", SimpleNamespace(Configurable=Configurable))
    recipe = SimpleNamespace(**runpy.run_path(str(PLUGINS / "torchtitan.py")))
    source = recipe.RowSource(recipe.RowSource.Config(path=str(example.packed)), dataset_iteration_policy=None)
    process = recipe.RowToTextSequence(None, context=SimpleNamespace(num_tokens_per_batch=2 * MAX_LEN))
    rng = np.random.default_rng(0)
    found = [process(source[number], rng) for number in range(len(source))]
    inputs, labels = packer.collate(list(packer.load(example.packed)), format="torchtitan", tensors="numpy")
    is_padding = [row["doc_ids"].repeat(row["seq_lengths"]) == -1 for row in packer.load(example.packed)]
    assert np.array_equal([row.input_ids for row in found], inputs["input"])
    assert np.array_equal([row.positions for row in found], inputs["positions"])
    assert np.array_equal([row.labels for row in found], labels)
    assert np.array_equal([row.padding_mask for row in found], is_padding)
    assert np.any(is_padding)


# ---- verl ----


def verl_items(example):
    dataset = PackedRows(parquet_files=str(example.packed), tokenizer=None, config=None, processor=None, max_samples=-1)
    assert len(dataset) == example.rows
    return [dataset[row] for row in range(len(dataset))]


def as_verl_reads(model, items):
    """Return the loss of a micro-batch: `SFTTensorCollator`, `FSDPEngineWithLMHead` and `sft_loss` of verl 0.9.1.

    Items lie end to end; labels are the next tokens, and the mask of the loss moves left with them.
    """
    tokens, positions, mask = (torch.cat([item[name] for item in items]) for name in items[0])
    logits = model(input_ids=tokens[None], attention_mask=None, position_ids=positions[None], use_cache=False).logits[0]
    log_probs = logits.log_softmax(-1).gather(1, tokens.roll(-1)[:, None])[:, 0]
    return -(log_probs * mask.roll(-1)).sum() / mask.sum()


def with_verl(model, items):
    """Return the same loss from verl's own code."""
    pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")
    from tests.helpers.verl_step import loss_of_step

    return loss_of_step(model, items)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", [as_verl_reads, with_verl])
def test_verl_trains_the_documents_of_rows_apart(example, read):
    model, items = tiny_llama(), verl_items(example)
    loss = read(model, items)
    loss.backward()
    norm = torch.stack([weights.grad.norm() for weights in model.parameters() if weights.grad is not None]).norm()
    alone = train_alone(tiny_llama(), example.pieces)
    assert loss.item() == pytest.approx(alone.loss, abs=1e-5)
    assert norm.item() == pytest.approx(alone.gradient_norm, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", ["masked prompts"], indirect=True)
@pytest.mark.parametrize("read", [as_verl_reads, with_verl])
def test_verl_s_mean_over_documents_is_that_of_documents_alone(example, read):
    """Pieces of a split document share a weight if they are in one row."""
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.merge(VERL, {"data": {"loss": "document"}})
    rows = PackedRows(str(example.packed), config=config.data)
    model = tiny_llama(dtype=torch.float64)
    read(model, [rows[number] for number in range(len(rows))]).backward()
    keys = [
        zip(row["doc_ids"].tolist(), row["doc_starts"].tolist(), strict=False) for row in packer.load(example.packed)
    ]
    batches = [[key for key in row if key[0] >= 0] for row in keys]
    alone = step_alone(tiny_llama(dtype=torch.float64), example.pieces, batches, document_weights(example.pieces))
    assert_same_gradients(gradients(model), alone[1], 1e-5)
    assert not torch.allclose(
        alone[1]["lm_head.weight"], train_alone(model, example.pieces).gradients["lm_head.weight"]
    )


@pytest.mark.parametrize("example", ["masked prompts"], indirect=True)
def test_verl_s_ulysses_trains_the_documents_of_rows_apart(example, tmp_path):
    pytest.importorskip("verl.workers.engine.fsdp.transformer_impl")
    run_two("tests.helpers.verl_step", tmp_path, example.packed)
    alone = train_alone(tiny_llama(), example.pieces)
    for rank in range(2):
        loss, found = torch.load(tmp_path / f"{rank}.pt")
        assert loss == pytest.approx(alone.loss, abs=1e-5)
        assert_same_gradients(found, alone.gradients, 1e-5)


def test_verl_s_items_are_rows_without_padding_and_labels_must_be_tokens(example, tmp_path):
    for item, row in zip(verl_items(example), packer.load(example.packed), strict=True):
        assert {values.dtype for values in item.values()} == {torch.int64}
        real = int(row["seq_lengths"][row["doc_ids"] >= 0].sum())
        assert item["input_ids"].tolist() == row["input_ids"][:real].tolist()
        assert item["position_ids"].tolist() == row["position_ids"][:real].tolist()
    source = {"input_ids": [[1, 2, 3, 4]], "labels": [[-100, 2, 9, 4]]}
    packer.pack(datasets.Dataset.from_dict(source), tmp_path / "other", max_len=8, sync=False)
    with pytest.raises(packer.PackerError, match="verl takes labels from the tokens, so a label must be its token"):
        PackedRows(str(tmp_path / "other"))[0]
    assert len(PackedRows(str(example.packed), max_samples=2)) == 2


VERL = {
    "data": {"pad_mode": "no_padding"},
    "model": {"use_remove_padding": True, "override_config": {}},
    "engine": {"strategy": "fsdp"},
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"data": {"pad_mode": "right"}}, "data.pad_mode of verl is right: .*; set it to no_padding"),
        ({"model": {"use_remove_padding": False}}, "model.use_remove_padding of verl is False: .*; set it to True"),
        ({"engine": {"strategy": "megatron"}}, "engine.strategy of verl is megatron: documents in a row would see"),
        ({"engine": {"ulysses_sequence_parallel_size": 2}}, None),
        (
            {
                "engine": {"ulysses_sequence_parallel_size": 2},
                "model": {"override_config": {"attn_implementation": "sdpa"}},
            },
            "attn_implementation of verl with Ulysses is sdpa: each process would attend to its own part of a row",
        ),
        (
            {"model": {"override_config": {"attn_implementation": "xformers"}}},
            "attn_implementation of verl is xf",
        ),
    ],
)
def test_settings_of_verl_that_would_mix_documents_are_refused(example, change, expected):
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.merge(VERL, change, {"files": [str(example.packed)]})
    if expected is None:
        assert len(PackedRows(config.files, config=config.data)) == example.rows
        return
    with pytest.raises(packer.PackerError, match=expected):
        PackedRows(config.files, config=config.data)


# ---- NeMo Automodel ----


def test_automodel_s_items_are_those_of_an_independent_writer(example):
    rows = automodel.dataset([str(example.packed)])
    assert len(rows) == example.rows
    for item, row in zip((rows[number] for number in range(len(rows))), packer.load(example.packed), strict=True):
        names = [
            (int(one), int(other)) for one, other in zip(row["doc_ids"], row["doc_starts"], strict=True) if one >= 0
        ]
        pieces = [example.pieces[name] for name in names]
        assert item["prepacked"] == naive.exported_row("automodel", pieces, max_len=MAX_LEN, pad_id=0)
        with pytest.raises(packer.PackerError, match="set packed_sequence"):
            item["input_ids"]
