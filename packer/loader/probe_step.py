"""A probe of any training step: change one document of a batch, and see whose losses move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.collating import Tensors, collate

LENGTHS = ((7, 12, 5, 8), (11, 9, 12))
"""Tokens of the documents in each row of the probe; all rows are equally long and full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLeaks:
    """Result of `probe`."""

    moved: Mapping[int, tuple[int, ...]]
    """Other documents whose losses moved, by the document that was changed; numbered through all rows."""

    largest: float
    """Largest change of a loss of another document, as a share of the largest loss."""

    @property
    def is_safe(self) -> bool:
        """Whether no document moved the losses of another."""
        return not any(self.moved.values())

    def __str__(self) -> str:
        """One line: the verdict, and which documents moved."""
        found = [f"{one} moves {', '.join(map(str, others))}" for one, others in self.moved.items() if others]
        if not found:
            return f"safe: no document moves the losses of another (largest change {self.largest:.1e})"
        return f"leaks by up to {self.largest:.1e} of the largest loss: document {'; '.join(found)}"


def probe(
    step: Callable[[Any], Any],
    *,
    format: str = "hf",
    lengths: Sequence[Sequence[int]] = LENGTHS,
    vocabulary: int = 128,
    tolerance: float = 1e-3,
    mtp: int = 0,
    tensors: Tensors = "torch",
) -> StepLeaks:
    """Test whether documents of a packed batch affect each other in a training step, of any trainer and kernel.

    The step runs inside your own job, with its attention, parallelism and precision. It is called with a batch, twice
    with the same one, and then with one document changed at a time. `packer.attention.probe` and `packer check` test
    Hugging Face models without a step.

        def step(batch):                                     # no dropout, no update of the weights
            logits = model(batch["input_ids"], batch["position_ids"])
            return cross_entropy(logits[0, :-1], batch["labels"][0, 1:], reduction="none")

        print(packer.probe(step))

    Args:
        step: function that takes a batch as `collate(format=format)` returns it, and returns the loss of every token:
            an array or a tensor with as many values as the batch has tokens, or one less (of the next tokens), the rows
            one after the other. Tokens without a label have loss 0.
        format: batch format of the trainer.
        lengths: tokens of the documents in each row; the sums are equal.
        vocabulary: largest token id plus one, at least 3.
        tolerance: smallest change that counts, as a share of the largest loss; rounding in bfloat16 needs about 1e-2.
        mtp: number of extra heads that the batch has `mtp_labels` for, as in `collate`.
        tensors: "torch", or "numpy" for arrays.

    Raises:
        PackerError: the rows are not equally long, the step returns another number of losses or NaN, or it gives other
            losses for the same batch.
    """
    if len({sum(row) for row in lengths}) != 1 or vocabulary < 3:
        raise PackerError(f"lengths are {lengths} and vocabulary {vocabulary}: give rows of equal sums, and at least 3")
    options = {"format": format, "mtp": mtp, "tensors": tensors}
    each = [length for row in lengths for length in row]
    documents = np.repeat(np.arange(len(each)), each)
    tokens = np.random.default_rng(0).integers(1, vocabulary, len(documents))
    first, again = (_losses(step, _rows(lengths, tokens), options) for _ in range(2))
    scale = np.abs(first).max() or 1.0
    if np.abs(first - again).max() > tolerance * scale:
        raise PackerError("the step gives other losses for the same batch: leave out dropout and updates of weights")
    owners = documents[len(documents) - len(first) :]  # of each loss
    if len(first) < len(documents) - 1:  # the first token of each row has none
        owners = np.concatenate([row[1:] for row in np.split(documents, len(lengths))])
    moved, largest = {}, 0.0
    for document in range(len(each)):
        changed = np.where(documents == document, tokens % (vocabulary - 1) + 1, tokens)
        changes = (
            np.where(owners == document, 0, np.abs(_losses(step, _rows(lengths, changed), options) - first)) / scale
        )
        moved[document] = tuple(np.unique(owners[changes > tolerance]).tolist())
        largest = max(largest, float(changes.max()))
    return StepLeaks(moved=moved, largest=largest)


def _rows(lengths: Sequence[Sequence[int]], tokens: NDArray[np.int64]) -> list[dict[str, NDArray[Any]]]:
    """Return full rows of documents of these lengths, as `PackedDataset` has them."""
    rows, first = [], 0
    for row, ids in zip(lengths, np.split(tokens, len(lengths)), strict=True):
        labels = ids.copy()
        labels[np.cumsum([0, *row[:-1]])] = NO_LOSS
        segments = {"seq_lengths": np.array(row, np.int64), "doc_ids": np.arange(first, first + len(row))}
        rows.append({"input_ids": ids, "labels": labels, **segments, "doc_starts": np.zeros(len(row), np.int64)})
        first += len(row)
    return rows


def _losses(
    step: Callable[[Any], Any], rows: Sequence[Mapping[str, NDArray[Any]]], options: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Return the losses of a step, one after the other."""
    found = step(collate(rows, **options))
    found = found.detach().cpu().double() if hasattr(found, "detach") else found
    values, tokens = np.asarray(found, np.float64).ravel(), sum(len(row["input_ids"]) for row in rows)
    if len(values) not in (tokens, tokens - 1, tokens - len(rows)):
        raise PackerError(f"the step returns {len(values):,} losses of {tokens:,} tokens: return one for each")
    if not np.isfinite(values).all():
        raise PackerError("the step returns a loss that is not a number: give tokens without a label the loss 0")
    return values
