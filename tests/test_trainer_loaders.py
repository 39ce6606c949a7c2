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
pytest.importorskip("datasets")
pytest.importorskip("transformers")

from tests.documents import MAX_LEN, SOURCES, make_example, make_source  # noqa: E402  these need torch
from tests.test_export_trainers import alone_pairs, mean_loss, tiny_titan  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu")

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module", params=SOURCES)
def example(request, tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


# ---- torchtitan after 0.3 ----


def titan_loader(example, *, rank=0, ranks=1, rows=1):
    logging.getLogger("absl").setLevel(logging.ERROR)
    recipe = pytest.importorskip("examples.torchtitan_grain")
    return recipe.packed_loader(str(example.packed)).build(
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
    """The names that the example takes from torchtitan, as they were in September 2026."""

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
    recipe = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "torchtitan_grain.py")))
    source = recipe.PackedRows(recipe.PackedRows.Config(path=str(example.packed)), dataset_iteration_policy=None)
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
