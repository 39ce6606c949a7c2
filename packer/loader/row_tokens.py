"""Rows of a batch as checked arrays, and everything derived from their segments.

Positions, labels, loss weights and fixed shapes are derived from the segments. In rows of trees, where documents share
stored beginnings, so are the tokens that may attend to each other. At the end, arrays become tensors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from packer.algorithms.index_arrays import cu_seqlens_of, restart_positions
from packer.column_names import ANSWER, LOSS_WEIGHTS, NO_LOSS, PADDING, RECORD_IDS, SOURCE, TREE, input_ids_in
from packer.errors import PackerError, extra

LossWeights = Literal["token", "document", "weight"]
"""Tokens with the same weight in the loss: every trained token, those of one document together, or as stored."""

Rows = Sequence[Mapping[str, NDArray[Any]]]
"""Rows of a batch; each maps column names to arrays, as `PackedDataset` returns them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticShape:
    """Shape that every batch is padded to. `static_shape` computes the smallest shape that fits a dataset."""

    tokens: int
    """Number of tokens per batch (T), including padding."""

    segments: int
    """Number of segments per batch, including padding; `cu_seqlens` has one element more."""

    max_len: int
    """Value of `max_length` in every batch, and maximum number of tokens in a segment of padding."""

    pad_id: int
    """Token id of the padding."""


def document_keys(row: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return one key per segment that identifies its document, shape (segments,); -1 for padding.

    The key is `doc_ids`. With several datasets, `doc_ids` begin at 0 in each, so the key also contains the dataset.
    Keys are unique if each dataset has fewer than 2^40 documents.
    """
    doc_ids: NDArray[np.int64] = row["doc_ids"]
    if SOURCE not in row:
        return doc_ids
    return np.where(doc_ids == PADDING, PADDING, doc_ids + (row[SOURCE].astype(np.int64) << 40))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTokens:
    """Tokens of a batch: concatenated rows, with or without their padding tails, followed by padding up to `static`."""

    rows: Rows
    counts: list[int]
    """Number of tokens to take from the beginning of each row."""

    lengths: NDArray[np.int64]
    """Lengths of all segments, including padding; shape (segments,)."""

    doc_ids: NDArray[np.int64]
    """Document of each segment, -1 for padding; shape (segments,)."""

    static: StaticShape | None = None

    @property
    def longest(self) -> int:
        """Number of tokens in the longest segment, or with `static` its `max_len`."""
        return int(self.lengths.max()) if self.static is None else self.static.max_len

    @classmethod
    def whole(cls, rows: Rows) -> RowTokens:
        """Return whole rows, including padding tails."""
        return cls(
            rows=rows,
            counts=[len(row[input_ids_in(row)]) for row in rows],
            lengths=np.concatenate([row["seq_lengths"] for row in rows], dtype=np.int64),
            doc_ids=np.concatenate([document_keys(row) for row in rows], dtype=np.int64),
        )

    @classmethod
    def real(cls, rows: Rows) -> RowTokens:
        """Return rows without their padding tails. A batch of only padding keeps it, because a model needs tokens."""
        whole = cls.whole(rows)
        is_real = whole.doc_ids != PADDING
        if is_real.all() or not is_real.any():
            return whole
        tails = [int(row["seq_lengths"][-1]) * (row["doc_ids"][-1] == PADDING) for row in rows]
        counts = [count - tail for count, tail in zip(whole.counts, tails, strict=True)]
        return replace(whole, counts=counts, lengths=whole.lengths[is_real], doc_ids=whole.doc_ids[is_real])

    def padded(self, static: StaticShape | None) -> RowTokens:
        """Append segments of padding, of 1 to `static.max_len` tokens each, to fill the static shape, if there is one.

        No segment is empty: flash-attn's kernels for ROCm write past a buffer after empty segments. Example: lengths
        [3, 2] with max_len 4, 12 tokens and 6 segments become [3, 2, 4, 1, 1, 1].
        """
        if static is None:
            return self
        count, segments = int(self.lengths.sum()), static.segments - len(self.lengths)
        left = static.tokens - count
        if not segments <= left <= segments * static.max_len:
            raise PackerError(
                f"a batch has {count:,} tokens in {len(self.lengths):,} segments, which cannot be padded to the static "
                f"shape of {static.tokens:,} in {static.segments:,}: call static_shape(dataset, rows=...) with the "
                "number of rows per batch"
            )
        added = np.ones(segments, np.int64)
        whole, rest = divmod(left - segments, max(static.max_len - 1, 1))
        added[:whole] = static.max_len
        added[whole : whole + 1] += rest
        return replace(
            self,
            static=static,
            lengths=np.concatenate([self.lengths, added]),
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
        """Return the tokens, shape (tokens,), padded with `pad_id` of the static shape."""
        padding = 0 if self.static is None else self.static.pad_id
        return self.column(input_ids_in(self.rows[0]), dtype, padding=padding)

    def labels(self, input_ids: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return the labels, shape (tokens,), with the dtype of the tokens and not shifted.

        If the dataset has no labels, they equal the tokens, except that padding and the first token of each segment are
        -100: a first token would be predicted from the document before it.
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
        """Return `loss_weights` and `mtp_labels`, if requested, for labels that are not shifted."""
        found: dict[str, NDArray[Any]] = {}
        if loss_weights not in (None, "token"):
            documents = np.unique(self.doc_ids, return_inverse=True)[1].repeat(self.lengths)
            found["loss_weights"] = self.loss_weights(labels, documents, loss_weights)
        if mtp:
            if loss_weights == "weight":
                raise PackerError('mtp_labels have no stored weights: leave mtp out, or pass loss_weights="token"')
            found["mtp_labels"] = mtp_labels(labels, self.lengths, depths=mtp)
        return found

    def loss_weights(
        self, labels: NDArray[np.integer[Any]], documents: NDArray[np.int64], kind: LossWeights
    ) -> NDArray[np.float64]:
        """Return the weight of each token in the loss, in the shape of the labels; 0 for tokens without loss.

        For "document", the weight is 1 / (trained tokens of its document), so that the weighted mean over tokens is the
        mean over documents of the mean over their tokens: the loss of an unpacked batch with each sequence averaged
        separately, as in Krell et al. (arXiv 2107.02027). Segments of a split document in one batch count together.
        For "weight", it is the stored weight, or 1 if the row's dataset has none.

        Example: labels [-100, 5, 6, -100, 7] of documents [0, 0, 0, 1, 1] -> [0, 1/2, 1/2, 0, 1] for "document".

        Args:
            labels: labels that are not shifted.
            documents: document of each token, from 0; shape (tokens,).
            kind: "document" or "weight".
        """
        trained = labels.reshape(-1) != NO_LOSS
        if kind == "weight":
            weights = self._stored_weights()
        else:
            weights = 1 / np.maximum(np.bincount(documents, weights=trained), 1)[documents]
        return np.where(trained, weights, 0.0).reshape(labels.shape)

    def _stored_weights(self) -> NDArray[np.float64]:
        """Return the stored weight of each token, shape (tokens,)."""
        weights = np.ones(int(self.lengths.sum()))
        place = 0
        for row, count in zip(self.rows, self.counts, strict=True):
            if LOSS_WEIGHTS in row:
                of_row = np.asarray(row[LOSS_WEIGHTS], np.float64)
                if len(of_row) == len(row["seq_lengths"]):  # a weight per segment
                    of_row = of_row.repeat(row["seq_lengths"])
                weights[place : place + count] = of_row[:count]
            place += count
        return weights

    def segment_ids(self) -> NDArray[np.int32]:
        """Return the number of each token's segment in its row, from 1; 0 for padding. Shape (tokens,)."""
        numbers = np.concatenate([np.arange(1, len(row["doc_ids"]) + 1, dtype=np.int32) for row in self.rows])
        numbers[self.doc_ids == PADDING] = 0
        return numbers.repeat(self.lengths)

    def padding(self) -> NDArray[np.bool_]:
        """Return whether each token of whole rows is padding, even in aligned segments. Shape (tokens,)."""
        real = np.where(self.doc_ids == PADDING, 0, self.lengths)
        if "seq_tokens" in self.rows[0]:
            stored = np.concatenate([row["seq_tokens"] for row in self.rows])
            real[: len(stored)] = stored
        return restart_positions(self.lengths) >= real.repeat(self.lengths)

    def segment_column(self, name: str) -> NDArray[Any]:
        """Return a segment column, without the values for padding."""
        _check_column(name, self.rows)
        parts = []
        for row in self.rows:
            values = row[name] if row[name].ndim else np.broadcast_to(row[name], len(row["doc_ids"]))  # per row
            parts.append(values[: len(values) - (row["doc_ids"][-1] == PADDING)])
        is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
        values = np.ma.concatenate(parts) if is_masked else np.concatenate(parts)  # type: ignore[no-untyped-call]
        if values.dtype.kind == "f" and any(part.dtype.kind in "iu" for part in parts):  # lists of int64 and of uint64
            values = np.concatenate([part.astype(object) for part in parts])
        return values


def _check_column(name: str, rows: Rows) -> None:
    for row in rows:
        if name not in row:
            raise PackerError(
                f"the rows have no column {name}, only {', '.join(row)}: pack with it, or do not ask for it"
            )


def shift_left(values: NDArray[Any], fill: float) -> NDArray[Any]:
    """Move values one place to the left along the last axis, so that each token has the label of the next token.

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
    """Return the targets of multi-token prediction heads, shape (B, depths, L), from labels that are not shifted.

    At depth d, from 1, position i has the label of position i + 1 + d, or -100 if that position is in another segment.

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


def check_loss_weights(kind: LossWeights | None, rows: Rows) -> None:
    """Raise a PackerError unless `kind` is a kind of weights, or None for rows without stored weights."""
    if kind is None and any(LOSS_WEIGHTS in row for row in rows):
        raise PackerError(
            'the rows have weights of the loss: pass loss_weights="weight" to use them, with a format that supports '
            'it, or "token" to train all tokens alike'
        )
    if kind not in (None, *get_args(LossWeights)):
        raise PackerError(f"loss_weights is {kind!r}: choose {' or '.join(get_args(LossWeights))}")


NODE = 3
"""Number of values per node in the column `tree`: tokens, parent in the tree (-1: none), document in the record."""


class Node(NamedTuple):
    """A node of a tree."""

    first: int
    """Index of its first token in the tree."""

    tokens: int

    parent: int
    """Index in the tree of its parent, the node that it continues; -1 for none."""

    answer: int
    """Index in the record of the document whose labels train the node."""

    position: int
    """Position of its first token in its documents."""

    depth: int
    """Number of branchings between the root and the node."""


def nodes_of(tree: Sequence[int]) -> list[Node]:
    """Return the nodes in a value of the column `tree`; an empty list for an ordinary document."""
    found: list[Node] = []
    numbers = np.reshape(np.array(tree, np.int64), (-1, NODE)).tolist()
    children, first = Counter(parent for _, parent, _ in numbers), 0
    for tokens, parent, answer in numbers:
        position = depth = 0
        if parent >= 0:
            position = found[parent].position + found[parent].tokens
            depth = found[parent].depth + (children[parent] > 1)
        found.append(Node(first, tokens, parent, answer, position, depth))
        first += tokens
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """Nodes of the trees of a batch, in the order of its tokens. An ordinary document or padding is one node.

    All arrays are int64 and have the shape (nodes,).
    """

    lengths: NDArray[np.int64]
    """Number of tokens of each node."""

    parents: NDArray[np.int64]
    """Index in the batch of each node's parent, the node that it continues; -1 for none."""

    segments: NDArray[np.int64]
    """Index in the batch of each node's segment."""

    answers: NDArray[np.int64]
    """Index in the record of the document whose labels train each node; -1 for padding."""

    firsts: NDArray[np.int64]
    """Position of each node's first token in its documents; a child begins where its parent ends."""

    @classmethod
    def of(cls, tokens: RowTokens) -> Nodes:
        """Return the nodes of a batch. Without the column `tree`, every document is one node."""
        found: list[list[int]] = []
        trees = iter(tokens.segment_column(TREE)) if TREE in tokens.rows[0] else repeat(())
        numbers = iter(tokens.segment_column(ANSWER).tolist()) if RECORD_IDS in tokens.rows[0] else repeat(0)
        for segment, (length, key) in enumerate(zip(tokens.lengths.tolist(), tokens.doc_ids.tolist(), strict=True)):
            first, left = len(found), length
            tree, number = ((), -1) if key == PADDING else (next(trees), next(numbers))
            for node in nodes_of(tree):
                parent = first + node.parent if node.parent >= 0 else -1
                found.append([node.tokens, parent, segment, node.answer, node.position])
                left -= node.tokens
            if left:  # an ordinary document, padding, or the alignment after a tree
                found.append([left, -1, segment, number if left == length else -1, 0])
        lengths, parents, segments, answers, firsts = np.array(found, np.int64).reshape(-1, 5).T
        return cls(lengths=lengths, parents=parents, segments=segments, answers=answers, firsts=firsts)

    def positions(self) -> NDArray[np.int64]:
        """Return the position of each token in its document, shape (tokens,)."""
        places: NDArray[np.int64] = np.arange(self.lengths.sum())
        return places + (self.firsts - cu_seqlens_of(self.lengths)[:-1]).repeat(self.lengths)

    def visible_until(self) -> NDArray[np.int64]:
        """Return, for each token, the index after the last token that may attend to it; shape (tokens,).

        Continuations of a node follow it without a gap, so all tokens from k up to this index attend to token k.
        """
        ends, parents = cu_seqlens_of(self.lengths)[1:].tolist(), self.parents.tolist()
        for node in reversed(range(len(ends))):
            if parents[node] >= 0:
                ends[parents[node]] = max(ends[parents[node]], ends[node])
        return np.array(ends, np.int64).repeat(self.lengths)

    def documents(self, doc_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document of each token, from 0, shape (tokens,); `doc_ids` has the key of each segment's."""
        _, documents = np.unique(np.stack([doc_ids[self.segments], self.answers]), axis=1, return_inverse=True)
        return documents.reshape(-1).repeat(self.lengths)


Tensors = Literal["torch", "numpy"]

REQUIRED = ("seq_lengths", "doc_ids")
"""Columns that every row must have, besides its tokens. Like labels, they hold integers in one dimension."""


def rows_as_arrays(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Convert the columns of rows to arrays. Rows of a PackedDataset are returned unchanged."""
    found = []
    for where, row in _items(rows, "row", "pass rows of packer.load"):
        required = (input_ids_in(row), *REQUIRED)
        if required[0] not in row and "doc_starts" in row:
            raise PackerError(
                f"{where} has no tokens, because the dataset is an index: name the dataset that was packed, as in "
                "packer.load(path, source=...)"
            )
        for name in required:
            if name not in row:
                raise PackerError(
                    f"{where} has no column {name}, only {', '.join(row)}: pass rows of packer.load; in the "
                    "Hugging Face Trainer, take its arguments from packer.trainers.hf"
                )
        names = [name for name in (*required, "labels") if name in row]
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"{where} has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"{where} has {name}")
        found.append(row)
    return found


def check_accelerate() -> None:
    """Raise PackerError under accelerate's context parallelism."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return
    parallelism = getattr(state.AcceleratorState(), "parallelism_config", None)
    if parallelism is not None and parallelism.cp_enabled:
        raise PackerError(
            f"accelerate divides rows among cp_size={parallelism.cp_size} processes, and its attention ignores the "
            "boundaries of documents there: set cp_size=1, or use context parallelism in Axolotl 0.21"
        )


def examples_as_rows(examples: Sequence[Mapping[str, Any]]) -> Rows:
    """Return raw examples as rows of one document each. Without labels, the tokens are the labels."""
    rows: list[Mapping[str, NDArray[Any]]] = []
    for where, example in _items(examples, "example", "pass mappings with input_ids"):
        if "input_ids" not in example:
            raise PackerError(
                f"{where} has no input_ids, only {', '.join(map(str, example))}: pass mappings with input_ids"
            )
        if LOSS_WEIGHTS in example:
            raise PackerError(f"{where} has {LOSS_WEIGHTS}, which would be ignored: pack the examples, or remove them")
        ids = _array(example["input_ids"], f"{where} has input_ids")
        if not ids.size:
            raise PackerError(f"{where} has 0 tokens: leave empty examples out")
        _check_integers(ids, f"{where} has input_ids")
        own = example.get("labels", ids)
        if own is None:
            raise PackerError(f"{where} has labels None: pass one per token, or leave the key out of all examples")
        own = _array(own, f"{where} has labels")
        if own.ndim == 1 and len(own) != len(ids):
            raise PackerError(f"{where} has {len(own)} labels for {len(ids)} tokens: pass one per token")
        _check_integers(own, f"{where} has labels")
        labels = own.astype(np.int64)
        labels[0] = NO_LOSS
        segments = {"seq_lengths": np.array([len(ids)]), "doc_ids": np.array([len(rows)])}
        rows.append({"input_ids": ids, "labels": labels, **segments})
    return rows


def _items(items: Sequence[Mapping[str, Any]], noun: str, remedy: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (location, item) for the rows or examples of a batch. Either all must have labels, or none."""
    if isinstance(items, Mapping):
        raise PackerError(
            f"the batch is one mapping with the keys {', '.join(map(str, items))}: pass a list of {noun}s"
        )
    if not len(items):
        raise PackerError(f"there are 0 {noun}s: a batch needs at least 1")
    for number, item in enumerate(items):
        where = f"{noun} {number} of the batch"
        if not isinstance(item, Mapping):
            raise PackerError(f"{where} is of type {type(item).__name__}: {remedy}")
        if ("labels" in item) != ("labels" in items[0]):
            this, first = ("labels", "has none") if "labels" in item else ("no labels", "has some")
            raise PackerError(f"{where} has {this}, {noun} 0 {first}: pass labels for all of them or none")
        yield where, item


def _array(values: Any, subject: str) -> NDArray[Any]:
    """Convert a list or a tensor; strings and lists of different lengths become an array of objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return _objects(values)
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or of a dtype that NumPy lacks
        raise PackerError(f"{subject} that NumPy cannot read ({error}): pass lists, arrays or CPU tensors") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(values: Collection[object]) -> NDArray[Any]:
    """Return an array with one object per value, as rows of a PackedDataset store lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], subject: str) -> None:
    if array.ndim != 1:
        remedy = "pass it in one dimension, as values[0]" if array.shape[:1] == (1,) else "pass a list of integers"
        raise PackerError(f"{subject} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{subject} of type {array.dtype}: pass a list of integers")


def as_tensors(tensors: Tensors, batch: object) -> Any:
    """Return a batch with its arrays as tensors that share their memory. With "numpy", return it unchanged."""
    if tensors == "numpy":
        return batch
    if tensors != "torch":
        raise PackerError(f"tensors is {tensors!r}: choose torch or numpy")
    try:
        import torch
    except ImportError as error:
        raise PackerError(f'torch is not installed: {extra("torch")}, or use tensors="numpy"') from error

    def convert(value: object) -> object:
        if isinstance(value, tuple | list):
            return type(value)(map(convert, value))
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":  # torch has no strings or dates
            return value
        if isinstance(value, np.ma.MaskedArray):
            if np.ma.is_masked(value) and value.dtype.kind != "f":  # missing floats are NaN under the mask
                return value
            value = value.data
        return torch.from_numpy(value)

    return convert(batch)
