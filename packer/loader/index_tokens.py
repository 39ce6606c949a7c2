"""Tokens of an index: columns with a value per token, read from the source for each row.

NumPy copies them here, not the kernels that pack: a row has few segments, and a training process needs no compiler.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arrow import numpy_dtype
from packer.errors import PackerError, SourceError
from packer.gather import TokenColumn
from packer.gather.memory import array_at
from packer.gather.token_column import VALUE_TYPES
from packer.labels import NO_LOSS
from packer.loader.open_shards import Row
from packer.loader.row_segments import restart_positions
from packer.pipeline.make_plan import overlap_of
from packer.pipeline.packed_source import read_index_source
from packer.pipeline.read_documents import Documents, SourceLike
from packer.pipeline.watch_source import Watch
from packer.plan.segments import context_of
from packer.shards.manifest import Manifest
from packer.shards.row_format import PADDING, RowFormat
from packer.sources import TokenTable, value_message
from packer.sources.documents import LONGEST
from packer.stores import AnyPath, RemotePath


@dataclass(frozen=True, kw_only=True)
class IndexTokens:
    """Columns with a value per token of the rows of an index. Can be pickled: each process maps the source itself."""

    documents: Documents
    """Documents of the source, all of them checked."""

    watch: Watch
    """Files of the source, which must stay as they are."""

    row_format: RowFormat
    """Format of the rows, of which the index holds the segments."""

    overlap: int
    """Tokens that each piece of a split document repeats from the end of the piece before it."""

    kept_names: tuple[str, ...]
    """Kept columns with a value per token, in order."""

    @classmethod
    def open(cls, folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> IndexTokens:
        """Open the source of an index; see `read_index_source`.

        Raises:
            PackerError: it is another source, was changed, cannot be read in place, or is in object storage.
        """
        documents, watch = read_index_source(folder, manifest, source)
        for input_ in documents.source.inputs:
            if isinstance(input_.path, RemotePath):
                raise PackerError(
                    f"{input_.path} is in object storage, and an index reads tokens row by row: copy the source to a "
                    "local disk, or write the rows once with `packer materialize`"
                )
        options = manifest.options
        return cls(
            documents=documents,
            watch=watch,
            row_format=manifest.row_format,
            overlap=overlap_of(options),
            kept_names=options.keep_tokens,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("documents", "watch", "row_format", "overlap", "kept_names")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watch.check()

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Columns with a value per token, in the order of a row, and their types."""
        kept = {name: self._kept[name].dtype for name in self.kept_names}
        return {name: np.dtype(np.int32) for name in self.row_format.token_columns} | kept

    def fill(self, row: Row) -> Row:
        """Return a row with its tokens; the arrays are new, and the same as those of the copied dataset.

        Args:
            row: columns with a value per segment.

        Raises:
            PackerError: the row does not fit the source.
            SourceError: a token or label of the source is out of range.
        """
        documents = row["doc_ids"]
        count = len(documents) - int(documents[-1] == PADDING)
        lengths = row.get("seq_tokens", row["seq_lengths"])[:count]
        extents = row["seq_lengths"].astype(np.int64)
        places = np.cumsum(extents) - extents
        starts = row["doc_starts"][:count].astype(np.int64)
        spans = _Spans(
            lists=self._lists(row, count).tolist(),
            starts=starts.tolist(),
            lengths=lengths.tolist(),
            places=places[:count].tolist(),
        )
        max_len, names = self.row_format.max_len, self.row_format.token_columns
        tokens = np.full(max_len, self.row_format.pad_id, np.int32)
        self._copy("input_ids", self._tokens, spans, row, tokens)
        filled: Row = {"input_ids": tokens}
        if "labels" in names:
            labels = np.full(max_len, NO_LOSS, np.int32)
            if self._labels is not None:
                self._copy("labels", self._labels, spans, row, labels)
            else:
                for place, length in zip(spans.places, spans.lengths, strict=True):
                    labels[place : place + length] = tokens[place : place + length]
            labels[places[:count]] = NO_LOSS
            for segment in np.flatnonzero(starts) if self.overlap > 1 else ():
                labels[places[segment] : places[segment] + context_of(starts, self.overlap)[segment]] = NO_LOSS
            filled["labels"] = labels
        if "position_ids" in names:
            filled["position_ids"] = restart_positions(extents).astype(np.int32)
        for name in self.kept_names:
            filled[name] = np.zeros(max_len, self._kept[name].dtype)
            self._copy(name, self._kept[name], spans, row, filled[name])
        return filled | row

    def _lists(self, row: Row, count: int) -> NDArray[np.int64]:
        """Return the lists of the segments of a row; raises a PackerError if the source has no such document."""
        ids, origins, of_source = row["doc_ids"][:count], self.documents.origins, self._table.lists
        last: Any = self.documents.identity.documents
        if origins is not None:
            sources = row["source_ids"][:count].astype(np.int64)
            if sources.max() >= len(origins.parts):
                raise self._misfit(row, f"source {sources.max()} of {len(origins.parts)}")
            last = self._documents_of_parts[sources]
        if (ids >= last).any():
            raise self._misfit(row, f"document {ids.max()} of {np.max(last):,}")
        if origins is not None:
            return origins.lists_of(sources, ids)
        return ids if of_source is None else of_source[ids].astype(np.int64)

    def _copy(self, name: str, lists: _Lists, spans: _Spans, row: Row, out: NDArray[Any]) -> None:
        """Copy spans of a column into a row, and check that tokens and labels are in range."""
        segment = lists.copy(spans, out)
        if segment is not None:
            raise self._misfit(row, f"tokens up to {spans.starts[segment] + spans.lengths[segment]}", segment)
        if name not in ("input_ids", "labels"):
            return
        low = NO_LOSS if name == "labels" else 0
        bad = (out < 0) & (out != low) if lists.fits else None
        if bad is None or bad.any():
            self._check_values(name, lists, spans, row)

    def _check_values(self, name: str, lists: _Lists, spans: _Spans, row: Row) -> None:
        """Raise a SourceError for the first value that is no token id or label."""
        is_label = name == "labels"
        for segment, values in enumerate(lists.values_of(spans)):
            wrong = (values < 0) | (values > LONGEST)
            if is_label:
                wrong &= values != NO_LOSS
            if wrong.any():
                at = int(wrong.argmax())
                columns = self.documents.source.columns
                column = columns.labels if is_label else columns.input_ids
                message = value_message(column, int(values[at]), spans.starts[segment] + at, label=is_label)
                raise SourceError(f"{self._named(row, segment)}: {message}, and pack it again")

    def _named(self, row: Row, segment: int) -> str:
        document, origins = int(row["doc_ids"][segment]), self.documents.origins
        if origins is None:
            return self.documents.source.describe(document)
        return origins.describe(int(row["source_ids"][segment]), document)

    def _misfit(self, row: Row, what: str, segment: int | None = None) -> PackerError:
        of = "" if segment is None else f" of {self._named(row, segment)}"
        return PackerError(
            f"the index refers to {what}{of}, which the source does not have: `packer verify` finds what was changed; "
            "restore it, or pack again"
        )

    @cached_property
    def _table(self) -> TokenTable:
        return self.documents.table()

    @cached_property
    def _tokens(self) -> _Lists:
        return _Lists(self._table.input_ids)

    @cached_property
    def _labels(self) -> _Lists | None:
        return None if self._table.labels is None else _Lists(self._table.labels)

    @cached_property
    def _kept(self) -> dict[str, _Lists]:
        columns = {name: self._table.extra[name] for name in self.kept_names}
        return {
            name: _Lists(column.addresses(), numpy_dtype(column.type.value_type)) for name, column in columns.items()
        }

    @cached_property
    def _documents_of_parts(self) -> NDArray[np.int64]:
        """Documents of each source of a mixture: shape (sources,)."""
        return np.array([part.documents for part in self.documents.identity.mixture], np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spans:
    """Segments of a row; lists of integers, which are faster to go through than arrays."""

    lists: list[int]
    starts: list[int]
    lengths: list[int]
    places: list[int]


class _Lists:
    """Lists of a column as arrays that view the source, chunk by chunk.

    Args:
        column: addresses of the lists.
        dtype: type of the values; None if they are of several integer types.
    """

    def __init__(self, column: TokenColumn, dtype: np.dtype[Any] | None = None) -> None:
        self._column = column  # keeps the memory alive
        self._firsts = column.addresses.first_rows.tolist()
        self._chunks: list[tuple[Any, NDArray[Any]] | None] = [None] * (len(self._firsts) - 1)
        self._dtype = dtype
        types = {VALUE_TYPES[code] for code in column.addresses.value_codes.tolist()} if dtype is None else set()
        self.fits = all(np.can_cast(one, np.int32) for one in types)
        """Whether every value fits into int32."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values, if they are of one."""
        assert self._dtype is not None
        return self._dtype

    def copy(self, spans: _Spans, out: NDArray[Any]) -> int | None:
        """Copy spans into a row; return the number of the first that is longer than its list, or None."""
        for segment, (number, start, length, place) in enumerate(
            zip(spans.lists, spans.starts, spans.lengths, spans.places, strict=True)
        ):
            offsets, values, index = self._chunk_of(number)
            first, end = int(offsets[index]) + start, int(offsets[index + 1])
            if first + length > end:
                return segment
            out[place : place + length] = values[first : first + length]
        return None

    def values_of(self, spans: _Spans) -> Iterable[NDArray[Any]]:
        """Yield the values of each span, in their type in the source."""
        for number, start, length in zip(spans.lists, spans.starts, spans.lengths, strict=True):
            offsets, values, index = self._chunk_of(number)
            first = int(offsets[index]) + start
            yield values[first : first + length]

    def _chunk_of(self, number: int) -> tuple[Any, NDArray[Any], int]:
        chunk = bisect_right(self._firsts, number) - 1
        offsets, values = self._chunks[chunk] or self._view(chunk)
        return offsets, values, number - self._firsts[chunk]

    def _view(self, chunk: int) -> tuple[Any, NDArray[Any]]:
        """Return the offsets and the values of a chunk."""
        of = self._column.addresses
        count, width = self._firsts[chunk + 1] - self._firsts[chunk], int(of.offset_bytes[chunk])
        offsets: Any
        if width:
            offsets = array_at(int(of.offsets[chunk]), count + 1, np.dtype(f"i{width}"))
        else:
            size = int(of.list_sizes[chunk])
            offsets = range(0, (count + 1) * size, size) if size else [0] * (count + 1)
        dtype = self._dtype or np.dtype(VALUE_TYPES[of.value_codes[chunk]])
        views = self._chunks[chunk] = offsets, array_at(int(of.values[chunk]), int(offsets[-1]), dtype)
        return views
