"""Arrays derived from segment boundaries: positions, labels, loss weights and document keys, for rows end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from packer.algorithms.index_arrays import restart_positions
from packer.column_names import NO_LOSS, PADDING, SOURCE, input_ids_in
from packer.errors import PackerError

LossWeights = Literal["sequence", "document"]
Rows = Sequence[Mapping[str, NDArray[Any]]]
"""Rows of a batch; each maps column names to arrays, as `PackedDataset` returns them."""


_REMEDY = "call static_shape(dataset, rows=...) with the number of rows per batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticShape:
    """Shape that every batch is padded to; `static_shape` computes the smallest one that fits a dataset."""

    tokens: int
    """Tokens per batch (T), padding included."""

    segments: int
    """Segments per batch, padding included; `cu_seqlens` has one element more."""

    max_len: int
    """Value of `max_length` in every batch, and the largest number of tokens in a segment of padding."""

    pad_id: int
    """Token id of the padding."""


def document_keys(row: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return one key per segment that identifies its document, shape (segments,); -1 for padding.

    The key is `doc_ids`, except in a row of several datasets, in each of which doc_ids begin at 0. Keys are unique
    below 2^40 documents.
    """
    doc_ids: NDArray[np.int64] = row["doc_ids"]
    if SOURCE not in row:
        return doc_ids
    return np.where(doc_ids == PADDING, PADDING, doc_ids + (row[SOURCE].astype(np.int64) << 40))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTokens:
    """Tokens of a batch: rows laid end to end, whole or without their padding tails, and then padding."""

    rows: Rows
    """Rows that the tokens are taken from."""

    counts: list[int]
    """Tokens of each row, the first so many."""

    lengths: NDArray[np.int64]
    """Shape (segments,): segment lengths, those of padding included, wherever it is."""

    doc_ids: NDArray[np.int64]
    """Shape (segments,): document of each segment; -1 for padding."""

    static: StaticShape | None = None
    """Shape that the tokens are padded to."""

    @property
    def longest(self) -> int:
        """Tokens in the longest segment, or in the longest one that the shape allows."""
        return int(self.lengths.max()) if self.static is None else self.static.max_len

    @classmethod
    def whole(cls, rows: Rows) -> RowTokens:
        """Return whole rows, padding tails included."""
        return cls(
            rows=rows,
            counts=[len(row[input_ids_in(row)]) for row in rows],
            lengths=np.concatenate([row["seq_lengths"] for row in rows], dtype=np.int64),
            doc_ids=np.concatenate([document_keys(row) for row in rows], dtype=np.int64),
        )

    @classmethod
    def real(cls, rows: Rows) -> RowTokens:
        """Return rows without their padding tails; padding alone is kept, because a model cannot run on no tokens."""
        whole = cls.whole(rows)
        is_real = whole.doc_ids != PADDING
        if is_real.all() or not is_real.any():
            return whole
        tails = [int(row["seq_lengths"][-1]) * (row["doc_ids"][-1] == PADDING) for row in rows]
        return cls(
            rows=rows,
            counts=[count - tail for count, tail in zip(whole.counts, tails, strict=True)],
            lengths=whole.lengths[is_real],
            doc_ids=whole.doc_ids[is_real],
        )

    def padded(self, static: StaticShape | None) -> RowTokens:
        """Append segments of padding, of 1 to `static.max_len` tokens each, to fill the shape, if there is one.

        No segment is empty, because flash-attn's kernels for ROCm write past a buffer then. Example: with lengths
        [3, 2], max_len 4, 12 tokens and 6 segments, [3, 2, 4, 1, 1, 1].
        """
        if static is None:
            return self
        count, segments = int(self.lengths.sum()), static.segments - len(self.lengths)
        left = static.tokens - count
        if not segments <= left <= segments * static.max_len:
            raise PackerError(
                f"a batch has {count:,} tokens in {len(self.lengths):,} segments, which cannot be padded to the static "
                f"shape of {static.tokens:,} in {static.segments:,}: {_REMEDY}"
            )
        pieces = np.ones(segments, np.int64)
        whole, rest = divmod(left - segments, max(static.max_len - 1, 1))
        pieces[:whole] = static.max_len
        pieces[whole : whole + 1] += rest
        return replace(
            self,
            static=static,
            lengths=np.concatenate([self.lengths, pieces]),
            doc_ids=np.concatenate([self.doc_ids, np.full(segments, PADDING, np.int64)]),
        )

    def column(self, name: str, dtype: npt.DTypeLike | None = None, *, padding: int = 0) -> NDArray[Any]:
        """Return a token column, shape (tokens,) or (tokens, values per token), with `padding` after the last row."""
        _check_column(name, self.rows)
        if dtype is None:
            found = self.rows[0][name].dtype
            dtype = np.int64 if found.kind in "iu" else found
        values = np.empty((int(self.lengths.sum()), *np.shape(self.rows[0][name])[1:]), dtype)
        place = 0
        for row, count in zip(self.rows, self.counts, strict=True):
            values[place : place + count] = row[name][:count]
            place += count
        values[place:] = padding
        return values

    def input_ids(self, dtype: npt.DTypeLike = np.int64) -> NDArray[Any]:
        """Return the tokens, shape (tokens,), padded with the token of the static shape."""
        padding = 0 if self.static is None else self.static.pad_id
        return self.column(input_ids_in(self.rows[0]), dtype, padding=padding)

    def labels(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return the labels, shape (tokens,), of the type of the tokens and not shifted.

        If the dataset has none, they equal the tokens, except that padding and the first token of each segment are
        -100: a first token would be predicted from the last token of the document before it.
        """
        if "labels" in self.rows[0]:
            return self.column("labels", input_ids.dtype, padding=NO_LOSS)
        labels: NDArray[np.integer[Any]] = input_ids.copy()
        labels[np.cumsum(self.lengths) - self.lengths] = NO_LOSS
        labels[np.repeat(self.doc_ids == PADDING, self.lengths)] = NO_LOSS
        return labels

    def targets(
        self, labels: NDArray[np.integer[Any]], loss_weights: LossWeights | None, mtp: int = 0
    ) -> dict[str, NDArray[Any]]:
        """Return `loss_weights` and `mtp_labels`, if wanted, of labels that are not shifted."""
        found: dict[str, NDArray[Any]] = {}
        if loss_weights is not None:
            weights = token_loss_weights(labels.reshape(-1), self.lengths, self.doc_ids, per=loss_weights)
            found["loss_weights"] = weights.reshape(labels.shape)
        if mtp:
            found["mtp_labels"] = mtp_labels(labels, self.lengths, depths=mtp)
        return found

    def segment_ids(self) -> NDArray[np.int32]:
        """Return the number of each token's segment in its row, from 1; 0 for padding. Shape (tokens,)."""
        numbers = np.concatenate([np.arange(1, len(row["doc_ids"]) + 1, dtype=np.int32) for row in self.rows])
        numbers[self.doc_ids == PADDING] = 0
        return numbers.repeat(self.lengths)

    def padding(self) -> NDArray[np.bool_]:
        """Return whether each token of whole rows is padding, also inside aligned segments. Shape (tokens,)."""
        real = np.where(self.doc_ids == PADDING, 0, self.lengths)
        if "seq_tokens" in self.rows[0]:
            stored = np.concatenate([row["seq_tokens"] for row in self.rows])
            real[: len(stored)] = stored
        return restart_positions(self.lengths) >= real.repeat(self.lengths)

    def segment_column(self, name: str) -> NDArray[Any]:
        """Return a segment column, without the values of padding."""
        _check_column(name, self.rows)
        parts = []
        for row in self.rows:
            values = row[name] if row[name].ndim else np.broadcast_to(row[name], len(row["doc_ids"]))  # of the row
            parts.append(values[: len(values) - (row["doc_ids"][-1] == PADDING)])
        is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
        values = np.ma.concatenate(parts) if is_masked else np.concatenate(parts)  # type: ignore[no-untyped-call]
        if values.dtype.kind == "f" and any(part.dtype.kind in "iu" for part in parts):  # lists of int64 and of uint64
            values = np.concatenate([part.astype(object) for part in parts])
        return values


def _check_column(name: str, rows: Rows) -> None:
    if name not in rows[0]:
        raise PackerError(
            f"the rows have no column {name}, only {', '.join(rows[0])}: pack with it, or do not ask for it"
        )


def shift_left(values: NDArray[Any], fill: float) -> NDArray[Any]:
    """Move values one place to the left along the last axis, so that each token has the label of its successor.

    For trainers that do not shift labels themselves. With `fill` -100, [-100, 5, 6] -> [5, 6, -100].
    """
    out = np.empty_like(values)
    out[..., :-1] = values[..., 1:]
    out[..., -1] = fill
    return out


def attention_mask(segment_ids: NDArray[np.int32], *, additive: bool) -> NDArray[Any]:
    """Return the mask, shape (B, 1, L, L): True where the query (row) and the key (column) share a segment.

    Padding attends to padding, because a softmax over nothing is NaN.

    Example: [1, 1, 2, 0] -> [[T, T, -, -], [T, T, -, -], [-, -, T, -], [-, -, -, T]].
    """
    # L * L comparisons are fastest on the smallest dtype
    small = segment_ids.astype(np.min_scalar_type(int(segment_ids.max(initial=0))))
    mask = small[:, None, :, None] == small[:, None, None, :]
    return np.where(mask, np.float32(0), np.finfo(np.float32).min) if additive else np.asarray(mask)


def mtp_labels(
    labels: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]], *, depths: int
) -> NDArray[np.integer[Any]]:
    """Return the targets of heads that predict further ahead, shape (B, depths, L), of labels that are not shifted.

    Depth d, from 1, has at place i the label of place i + 1 + d, or -100 if that place is not in the same segment.

    Example: labels [-100, 5, 6, 7, -100, 9, 10] of segments [4, 3] -> [6, 7, -100, -100, 10, -100, -100] at depth 1.
    """
    if not isinstance(depths, int) or depths < 1:
        raise PackerError(f"mtp is {depths!r}: pass the number of extra heads, or 0 for none")
    segments = np.arange(len(lengths)).repeat(lengths)
    found = np.full((depths, labels.size), NO_LOSS, labels.dtype)
    for ahead, targets in enumerate(found, 2):
        is_inside = segments[ahead:] == segments[:-ahead]
        targets[:-ahead][is_inside] = labels.reshape(-1)[ahead:][is_inside]
    return np.ascontiguousarray(found.reshape(depths, *labels.shape).swapaxes(0, 1))


def check_loss_weights(per: str) -> None:
    """Raise PackerError unless losses are averaged over sequences or documents."""
    if per not in ("sequence", "document"):
        raise PackerError(f"loss_weights is {per!r}: choose sequence or document, or None for the mean over tokens")


def token_loss_weights(
    labels: NDArray[Any], lengths: NDArray[np.integer[Any]], doc_ids: NDArray[np.int64], *, per: LossWeights
) -> NDArray[np.float64]:
    """Return the weight of each token in a mean over sequences or documents: 1 / trained tokens in the same one.

    A token is trained if its label is not -100; other tokens have weight 0. The weights of a sequence therefore sum
    to 1, or to 0 if none of its tokens is trained, and the sum of all weights is the number of sequences with a
    trained token. `(weights * cross_entropy).sum() / weights.sum()` is the mean over sequences of the mean over their
    tokens: the loss of the unpacked batch with each sequence averaged separately, as in Krell et al. (arXiv
    2107.02027).

    Per "sequence", each segment is averaged separately; per "document", all pieces of a split document in this batch
    together. Labels are not shifted, and `lengths` of the segments sum to the number of labels.

    Example: labels [-100, 5, 6, -100, 7] and lengths [3, 2] -> [0, 1/2, 1/2, 0, 1].
    """
    check_loss_weights(per)
    groups = np.arange(len(lengths)) if per == "sequence" else np.unique(doc_ids, return_inverse=True)[1]
    return group_weights(labels, groups.repeat(lengths))


def group_weights(labels: NDArray[Any], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 / trained tokens in the same group for each trained token, else 0, given the group of each token."""
    trained = labels != NO_LOSS
    counts = np.bincount(groups, weights=trained)
    return np.where(trained, 1 / np.maximum(counts, 1)[groups], 0.0)
