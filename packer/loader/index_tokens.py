"""Tokens of an index: columns with a value per token, read from the source for each row.

NumPy copies them instead of the kernels that pack, so that a training process needs no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges, restart_positions
from packer.algorithms.memory import array_at
from packer.arrow import numpy_dtype
from packer.column_names import NO_LOSS
from packer.errors import PackerError, SourceError
from packer.loader.open_shards import Row
from packer.shards.manifest import Manifest
from packer.shards.row_format import PADDING, RowFormat
from packer.sources.documents import LONGEST, value_message, wrong_values
from packer.sources.find_source import SourceLike
from packer.sources.open_source import open_index_source, read_index_source
from packer.sources.read_documents import Documents
from packer.sources.source import Watch
from packer.stores import AnyPath, RemotePath
from packer.token_memory import TokenColumn
from packer.token_memory.token_column import VALUE_TYPES

_OF_SEGMENTS = ("doc_ids", "seq_lengths", "seq_tokens", "doc_starts")  # columns that say what to read


@dataclass(frozen=True, kw_only=True)
class IndexTokens:
    """Columns with a value per token for the rows of an index. Can be pickled: each process maps the source itself."""

    documents: Documents  # of the source, all of them checked
    watch: Watch  # files of the source, which must stay as they are
    row_format: RowFormat  # of rows with their tokens
    kept_names: tuple[str, ...]  # kept columns with a value per token, in order

    @classmethod
    def open(cls, folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> IndexTokens:
        """Open the source of an index; see `open_index_source`."""
        if not manifest.options.index_only:
            raise PackerError(f"{folder} holds its tokens, and source is for an index: leave source out")
        opened, watch = open_index_source(folder, manifest, source)
        if any(isinstance(file.path, RemotePath) for file in opened.files):
            raise PackerError(
                f"{opened.name} is in object storage, and packer.load reads the tokens of an index row by row: copy "
                "the source to a local disk, or pack without --index-only"
            )
        documents = read_index_source(folder, manifest, opened)
        watch.check()
        options = manifest.options
        return cls(
            documents=documents,
            watch=watch,
            row_format=RowFormat.of(replace(options, index_only=False), documents.source.value_columns()),
            kept_names=options.keep_tokens,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watch.check()

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Columns with a value per token, in the order of a row, and their types."""
        kept = {name: numpy_dtype(kind) for name, kind in self.row_format.kept_tokens.items()}
        return {name: np.dtype(np.int32) for name in self.row_format.token_columns} | kept

    def fill(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with their tokens; the arrays are new, and the same as those of the copied dataset.

        Raises PackerError if a row does not fit the source, and SourceError if a file of the source was changed, or a
        token or label is out of range.
        """
        if not rows:
            return []
        self.watch.check_again()
        names = [name for name in _OF_SEGMENTS if name in rows[0]]
        stored = {name: np.concatenate([row[name] for row in rows]) for name in names}
        columns = self.columns(stored, len(rows))
        return [{name: values[at] for name, values in columns.items()} | row for at, row in enumerate(rows)]

    def columns(self, stored: Mapping[str, NDArray[Any]], rows: int) -> dict[str, NDArray[Any]]:
        """Return the columns with a value per token of some rows: new arrays of shape (rows, max_len).

        `stored` has the columns with a value per segment, those of all rows together.
        """
        segments = _Segments.of(stored)
        shape = rows, self.row_format.max_len
        copied = {name: self._copied(name, spans, segments, shape) for name, spans in self._located(segments)}
        columns = {self.row_format.input_ids: copied["input_ids"]}
        if "labels" in self.row_format.token_columns:
            if "labels" not in copied:
                copied["labels"] = copied["input_ids"].copy()
                copied["labels"].reshape(-1)[segments.gaps] = NO_LOSS
            copied["labels"].reshape(-1)[segments.places] = NO_LOSS
            columns["labels"] = copied["labels"]
        if "position_ids" in self.row_format.token_columns:
            columns["position_ids"] = restart_positions(stored["seq_lengths"]).astype(np.int32).reshape(shape)
        return columns | {name: copied[name] for name in self.kept_names}

    def _located(self, segments: _Segments) -> Iterator[tuple[str, _Spans]]:
        """Yield (name, places of the segments) of each column.

        Raises a PackerError if the source lacks a document, or a list ends before a segment.
        """
        documents, count = segments.documents, self.documents.identity.documents
        if (documents >= count).any() or documents.min() < 0:
            raise _misfit(f"document {int(documents.max())} of {count:,}")
        ends = segments.starts + segments.lengths
        for name, column in self._columns.items():
            spans, lengths = column.located(documents, segments.starts)
            if (ends > lengths).any():
                at = int((ends > lengths).argmax())
                raise _misfit(f"tokens up to {ends[at]} of {self._named(segments, at)}")
            yield name, spans

    def _copied(self, name: str, spans: _Spans, segments: _Segments, shape: tuple[int, int]) -> NDArray[Any]:
        """Copy the values of segments into new rows, and check that tokens and labels are in range."""
        dtype = self._columns[name].dtype
        out = np.empty(shape, dtype)
        spans.copy(segments, out.reshape(-1))
        flat = out.reshape(-1, *dtype.shape)
        flat[segments.gaps] = {"input_ids": self.row_format.pad_id, "labels": NO_LOSS}.get(name, 0)
        if name in self.kept_names:
            return out
        negative = flat[flat < 0]
        is_wrong = (negative != NO_LOSS).any() if name == "labels" else len(negative) > 0
        if is_wrong or self._columns[name].wraps or (out.dtype == np.int64 and flat.max() > LONGEST):
            self._check_values(name, spans, segments)
        return out.astype(np.int32, copy=False)

    def _check_values(self, name: str, spans: _Spans, segments: _Segments) -> None:
        """Raise a SourceError for the first value that is no token id or label."""
        is_label = name == "labels"
        for at, length in enumerate(segments.lengths.tolist()):
            values = spans.values(at, length)
            wrong = wrong_values(values, label=is_label)
            if wrong.any():
                place = int(wrong.argmax())
                named = self.documents.source.token_column(label=is_label)
                start = int(segments.starts[at])
                message = value_message(named, int(values[place]), start + place, label=is_label)
                raise SourceError(f"{self._named(segments, at)}: {message}, and pack it again")

    def _named(self, segments: _Segments, at: int) -> str:
        return self.documents.describe(int(segments.documents[at]))

    @cached_property
    def _columns(self) -> dict[str, _SourceColumn]:
        """Columns that are read from the source, by their names in the rows."""
        table = self.documents.table
        found = {"input_ids": _SourceColumn(table.input_ids)}
        if table.labels is not None and "labels" in self.row_format.token_columns:
            found["labels"] = _SourceColumn(table.labels)
        for name in self.kept_names:
            column = table.extra[name]
            found[name] = _SourceColumn(column.addresses, numpy_dtype(column.type.value_type))
        return found


class _Segments(NamedTuple):
    """Segments of some rows, padding tails not included; int64 arrays, of shape (segments,) but for `gaps`."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]  # first token in the rows, laid end to end
    gaps: NDArray[np.int64]  # (gaps,) places in the rows, laid end to end, that have no token

    @classmethod
    def of(cls, stored: Mapping[str, NDArray[Any]]) -> _Segments:
        """Collect the segments of rows."""
        columns = {name: stored[name].astype(np.int64) for name in _OF_SEGMENTS if name in stored}
        documents, extents = columns["doc_ids"], columns["seq_lengths"]
        places = np.cumsum(extents) - extents  # rows are max_len long, padding tails included
        is_real = documents != PADDING
        lengths = columns.get("seq_tokens", np.where(is_real, extents, 0))
        return cls(
            documents=documents[is_real],
            starts=columns["doc_starts"][is_real],
            lengths=lengths[is_real],
            places=places[is_real],
            gaps=joined_ranges(places + lengths, extents - lengths),
        )


_FIRST = 1 << 12  # address of the second page of memory; the first is never mapped


@cache
def _memory(kind: np.dtype[Any]) -> NDArray[Any]:
    """Return all memory of this process as overlapping values, one at each address from _FIRST on."""
    size = 1 << 56
    memory: NDArray[Any] = np.ndarray(size, kind, array_at(_FIRST, size + kind.itemsize, np.uint8), strides=(1,))
    return memory


class _SourceColumn:
    """A column of lists, whose chunks may have any layout and integer type, and whose offsets have been checked.

    `dtype` is the type of a token's values in rows, by default int32 if it holds all integers of the column, or int64;
    `wraps` is True if it cannot hold every value, so that values are checked in their type in the source.
    """

    def __init__(self, column: TokenColumn, dtype: np.dtype[Any] | None = None) -> None:
        of = self._addresses = column.addresses
        self._owner = column  # keeps the memory alive
        self._offsets, self._values = (each.astype(np.int64) - _FIRST for each in (of.offsets, of.values))
        self._offset_bytes = np.unique(of.offset_bytes).tolist()
        self._per_token = math.prod(dtype.shape) if dtype is not None else 1
        self._kinds = of.value_codes * 8 + self._values % (of.value_bytes // self._per_token)
        self._memory: dict[int, NDArray[Any]] = {}
        for kind in np.unique(self._kinds).tolist():
            in_source = dtype.base if dtype is not None else np.dtype(VALUE_TYPES[kind // 8])
            self._memory[kind] = _memory(in_source)[kind % 8 :: in_source.itemsize]
        fits = all(np.can_cast(memory.dtype, np.int32) for memory in self._memory.values())
        self.dtype = dtype or np.dtype(np.int32 if fits else np.int64)
        self.wraps = dtype is None and any(memory.dtype == np.uint64 for memory in self._memory.values())

    def located(self, lists: NDArray[np.int64], starts: NDArray[np.int64]) -> tuple[_Spans, NDArray[np.int64]]:
        """Return where lists, by number, have their values from `starts` on, and the lengths of the lists."""
        of = self._addresses
        chunks = of.first_rows.searchsorted(lists, side="right") - 1
        index = lists - of.first_rows[chunks]
        begins = index * of.list_sizes[chunks]
        ends = begins + of.list_sizes[chunks]
        for width in filter(None, self._offset_bytes):
            here: Any = slice(None)
            if len(self._offset_bytes) > 1:
                here = np.flatnonzero(of.offset_bytes[chunks] == width)
            offsets, at = _memory(np.dtype(f"i{width}")), self._offsets[chunks[here]] + index[here] * width
            shifts = of.offset_shifts[chunks[here]]
            begins[here], ends[here] = offsets[at] >> shifts, offsets[at + width] >> shifts
        widths = of.value_bytes[chunks]
        places = self._values[chunks] + (begins + starts) * widths
        return _Spans(places, widths, self._per_token, self._kinds[chunks], self._memory), ends - begins


class _Spans(NamedTuple):
    """Where segments are in the memory of a column; int64 arrays of shape (segments,)."""

    places: NDArray[np.int64]  # address of the first value, counted from _FIRST
    widths: NDArray[np.int64]  # bytes per token
    per_token: int  # values per token
    kinds: NDArray[np.int64]  # type and alignment of the values, a key of `memory`
    memory: Mapping[int, NDArray[Any]]  # all memory of this process as values one after the other

    def copy(self, segments: _Segments, out: NDArray[Any]) -> None:
        """Copy the values of the segments to their places in `out`, which is flat."""
        each, memory = self.per_token, self.memory
        firsts = self.places // (self.widths // each)
        columns = (one.tolist() for one in (self.kinds, firsts, each * segments.lengths, each * segments.places))
        for kind, first, length, place in zip(*columns, strict=True):
            out[place : place + length] = memory[kind][first : first + length]

    def values(self, at: int, length: int) -> NDArray[Any]:
        """Return the values of a segment, in their type in the source."""
        first = int(self.places[at] // self.widths[at])
        return self.memory[int(self.kinds[at])][first : first + length]


def _misfit(what: str) -> PackerError:
    return PackerError(
        f"the index refers to {what}, which the source does not have: `packer verify` finds what was changed; restore "
        "it, or pack again"
    )
