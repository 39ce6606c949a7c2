"""What is derived from boundaries: positions, numbers of segments, labels and weights, one value per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import NO_LOSS
from packer.shards.columns import PADDING

LossWeights = Literal["sequence", "document"]


def boundaries_of(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Where segments begin, and the end of the last; [3, 1] gives [0, 3, 4]."""
    boundaries = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=boundaries[1:])
    return boundaries


def restart_positions(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number the tokens of every segment from 0; [3, 1, 2] gives [0, 1, 2, 0, 0, 1]."""
    boundaries = boundaries_of(lengths)
    positions = boundaries[:-1].repeat(lengths)
    return np.subtract(np.arange(len(positions)), positions, out=positions)


def copy_rows(name: str, rows: Sequence[Mapping[str, NDArray[Any]]], ends: Sequence[int], out: NDArray[Any]) -> None:
    """Copy the first `ends[r]` values of a token column of every row r end to end into `out`."""
    place = 0
    for row, end in zip(rows, ends, strict=True):
        out[place : place + end] = row[name][:end]
        place += end


def document_keys(row: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """What tells the documents of a row apart, shape (segments,), -1 for padding: doc_ids, unless it is of a mixture.

    There they count within a source, and each copy is a document of its own. Exact below 2^40 documents, 2^12 sources
    and 2^11 copies.
    """
    doc_ids: NDArray[np.int64] = row["doc_ids"]
    if "source_ids" not in row:
        return doc_ids
    keys = doc_ids + (row["source_ids"].astype(np.int64) << 40) + (row["copy"].astype(np.int64) << 52)
    return np.where(doc_ids == PADDING, PADDING, keys)


def segment_values(name: str, rows: Sequence[Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """Values of a segment column of all rows end to end, those of padding tails left out.

    Raises:
        PackerError: the rows have no such column.
    """
    check_column(name, rows)
    return np.concatenate([row[name][: len(row[name]) - (row["doc_ids"][-1] == PADDING)] for row in rows])


def check_column(name: str, rows: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """See that rows have a column.

    Raises:
        PackerError: they have not.
    """
    if name not in rows[0]:
        raise PackerError(
            f"the rows have no column {name}; they have {', '.join(rows[0])}: pack with it, or leave it out"
        )


def labels_of_tokens(input_ids: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Labels where none were written: the tokens themselves, but for the first of every segment.

    The label of a first token would train the last token of the document before it.
    """
    labels: NDArray[Any] = input_ids.copy()
    labels[starts] = NO_LOSS
    return labels


def shifted(values: NDArray[Any], nothing: float) -> NDArray[Any]:
    """Move every value one place left along the last axis: what stands at a token is about the one that follows.

    For trainers that do not shift by themselves. With `nothing` -100, [-100, 5, 6] gives [5, 6, -100].
    """
    out = np.empty_like(values)
    out[..., :-1] = values[..., 1:]
    out[..., -1] = nothing
    return out


def weights_of(
    labels: NDArray[Any], lengths: NDArray[np.integer[Any]], doc_ids: NDArray[np.int64], *, per: LossWeights
) -> NDArray[np.float64]:
    """Weight of every token in a loss that is a mean of means: 1 / trained tokens of its sequence or document.

    A token is trained where its label is not -100. The weights of a sequence sum to 1, or to 0 where none of its
    tokens is trained: there is no mean of nothing. So the sum of all weights is the number of sequences that count,
    and `(weights * cross_entropy).sum() / weights.sum()` is the mean over sequences of the mean over their tokens:
    what the unpacked batch gives when every sequence is averaged by itself, as Krell et al. compute the loss after
    unpacking (arXiv 2107.02027).

    Example: labels [-100, 5, 6, -100, 7], lengths [3, 2] -> [0, 1/2, 1/2, 0, 1].

    Args:
        labels: (T,) labels, not shifted.
        lengths: (segments,) extents that sum to T.
        doc_ids: (segments,) document of each segment; -1 for padding.
        per: "sequence" for each segment by itself; "document" for all pieces of a document in the batch together,
            where long documents were split. Pieces in other batches are not known here.
    """
    trained = labels != NO_LOSS
    starts = boundaries_of(lengths)[:-1]
    counts = np.add.reduceat(trained, starts, dtype=np.int64)
    if per == "document":
        _, documents = np.unique(doc_ids, return_inverse=True)
        counts = np.bincount(documents, weights=counts)[documents]
    weights = np.zeros(len(labels), np.float64)
    np.divide(1.0, np.repeat(counts, lengths), out=weights, where=trained)
    return weights


def real_segments(
    rows: Sequence[Mapping[str, NDArray[Any]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """(lengths, document_keys) of all rows' segments, padding left out, and the tokens of each row that they fill."""
    lengths, doc_ids, ends = [], [], []
    for row in rows:
        extents, documents, end = row["seq_lengths"], document_keys(row), len(row["input_ids"])
        if documents[-1] == PADDING:
            end -= int(extents[-1])
            extents, documents = extents[:-1], documents[:-1]
        lengths.append(extents)
        doc_ids.append(documents)
        ends.append(end)
    return np.concatenate(lengths, dtype=np.int64), np.concatenate(doc_ids, dtype=np.int64), ends
