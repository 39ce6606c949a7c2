"""Documents to train on, the same packed, and the comparison of what a model learns from either."""

from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np

import packer
from tests.helpers.models import VOCABULARY

MAX_LEN = 32
LENGTHS = [5, 20, 1, 70, 7, 3, 32, 9, 1, 2, 17, 28, 3, 13, 10]

SOURCES = ["no labels", "first token trained", "masked prompts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A tokenized source, and the same packed."""

    pieces: dict[tuple[int, int], tuple[list[int], list[int]]]
    """(document, start): (tokens, labels) of what a row can hold of each document."""

    packed: Path
    """The folder of the rows."""

    rows: int
    """Rows in it."""


def make_source(kind: str, seed=0) -> dict[str, list[list[int]]]:
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, VOCABULARY, length).tolist() for length in LENGTHS]
    if kind == "no labels":
        return {"input_ids": tokens}
    prompts = [0 if kind == "first token trained" else length // 2 for length in LENGTHS]
    labels = [[-100] * prompt + document[prompt:] for prompt, document in zip(prompts, tokens, strict=True)]
    return {"input_ids": tokens, "labels": labels}


def make_example(folder: Path, source: dict[str, list[list[int]]], **options) -> Example:
    out = folder / "packed"
    options = {"max_len": MAX_LEN, "add_column": ["position_ids"], "sync": False, **options}
    manifest = packer.pack(datasets.Dataset.from_dict(source), out, **options)
    pieces = {}
    labels_of = source.get("labels", source["input_ids"])
    for number, (tokens, labels) in enumerate(zip(source["input_ids"], labels_of, strict=True)):
        for start in range(0, len(tokens), MAX_LEN):
            pieces[number, start] = (tokens[start : start + MAX_LEN], labels[start : start + MAX_LEN])
    return Example(pieces=pieces, packed=out, rows=manifest.rows)


def assert_same_gradients(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert gradient.abs().max() > 100 * tolerance, f"{name}: nothing to compare"
        difference = (found[name] - gradient).abs().max()
        assert difference < tolerance, f"{name}: off by {difference}"
