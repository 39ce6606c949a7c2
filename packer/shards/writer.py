"""Writing of shards. The bytes of a shard depend only on the source, the plan and the number of the shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from packer.algorithms.index_arrays import joined_ranges, restart_positions
from packer.arrow import as_arrow, as_scalar, numpy_dtype
from packer.arrow import compute as pc
from packer.column_names import NO_LOSS, PADDING, SEGMENT_COLUMNS
from packer.json_records import ShardEntry
from packer.shards.files import HashingFile
from packer.shards.located_rows import LocatedRows
from packer.shards.row_format import RowFormat
from packer.signals import CURRENT_TASK
from packer.token_memory.token_column import Spans, TokenColumn, count_trained, gather, gather_bytes


class BadTokenError(Exception):
    """Raised with (column, segment) for a value that is not a token id. Copied segments are counted from 0."""


class Counts(NamedTuple):
    """Counts of a record batch or a shard."""

    tokens: int = 0
    """Number of tokens, without padding."""

    trained: int = 0
    """Number of labels that are not NO_LOSS; 0 if no labels are written."""

    untrained_segments: int = 0
    """Number of segments without a trained token; 0 if no labels are written."""

    trained_later: int = 0
    """Number of trained tokens in segments that do not begin their document."""

    largest_id: int = -1
    """Largest token id or label, with padding; -1 in an index, whose tokens are not read."""

    @classmethod
    def of(
        cls, rows: LocatedRows, trained: NDArray[np.integer[Any]] | None, ids: Iterable[NDArray[np.int32]]
    ) -> Counts:
        """Return the counts of rows, given the trained tokens of each segment, if known, and all tokens and labels."""
        largest_id = max((int(values.max()) for values in ids), default=-1)
        tokens = int(rows.lengths.sum())
        if trained is None:
            return cls(tokens, largest_id=largest_id)
        later = int(trained[rows.starts > 0].sum())
        return cls(tokens, int(trained.sum()), int(np.count_nonzero(trained == 0)), later, largest_id)

    def with_counts(self, other: Counts) -> Counts:
        """Return the counts of two parts together."""
        sums = Counts(*map(sum, zip(self, other, strict=True)))
        return sums._replace(largest_id=max(self.largest_id, other.largest_id))


TokenColumns: TypeAlias = Mapping[str, TokenColumn]
"""Lists of the source with one value per token: "input_ids"; "labels", unless tokens are labels; and kept columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValues:
    """Values of kept columns for the documents of a shard. Looking them up once per shard is faster."""

    lists: NDArray[np.int64]
    """Lists of the source with a segment in the shard, ascending, shape (lists,)."""

    values: Mapping[str, pa.Array]
    """Values of these lists, by column."""

    def column(self, name: str, lists: NDArray[np.int64], is_padding: NDArray[np.bool_]) -> pa.Array:
        """Return one value per segment. Padding has 0 in columns of numbers and booleans, and null in others.

        lists: list of each segment, any value for padding. Both arrays have the shape (segments,).
        """
        taken = self.values[name].take(as_arrow(np.where(is_padding, 0, np.searchsorted(self.lists, lists))))
        if not is_padding.any():
            return taken
        numeric = pa.types.is_integer(taken.type) or pa.types.is_floating(taken.type) or pa.types.is_boolean(taken.type)
        filler = as_scalar(0, taken.type) if numeric else pa.nulls(1, taken.type)[0]
        return pc.if_else(as_arrow(is_padding), filler, taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedRows:
    """Rows with their values per token."""

    rows: LocatedRows
    row_format: RowFormat
    kept: KeptValues
    columns: Mapping[str, NDArray[Any]]
    """Values per token by column, shape (rows * max_len, ...); none for an index."""

    trained: NDArray[np.integer[Any]] | None
    """Number of trained tokens of each segment; None if the tokens are the labels, or no labels are written."""

    def part(self, first: int, last: int, kept: KeptValues) -> CopiedRows:
        """Return rows first to last - 1, with their own kept values."""
        begin, end = self.rows.row_starts[[first, last]].tolist()
        places = slice(first * self.row_format.max_len, last * self.row_format.max_len)
        columns = {name: values[places] for name, values in self.columns.items()}
        trained = None if self.trained is None else self.trained[begin:end]
        return replace(self, rows=self.rows.part(first, last), kept=kept, columns=columns, trained=trained)

    def batch(self) -> tuple[pa.RecordBatch, Counts]:
        """Build the record batch of the rows, and count their tokens."""
        max_len, trained = self.row_format.max_len, self.trained
        arrays = [pa.FixedSizeListArray.from_arrays(as_arrow(each), max_len) for each in self.columns.values()]
        arrays += _segment_arrays(self.rows, self.kept, self.row_format)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.row_format.schema)
        ids = [self.columns[name] for name in (self.row_format.input_ids, "labels") if name in self.columns]
        if trained is None and "labels" in self.row_format.token_columns:
            del ids[1:]  # the labels are tokens
            trained = self.rows.lengths - 1
        return batch, Counts.of(self.rows, trained, ids)


def copy_rows(
    rows: LocatedRows, lists: NDArray[np.int64], source: TokenColumns, kept: KeptValues, row_format: RowFormat
) -> CopiedRows:
    """Copy the tokens of rows whose segments come from `lists` of the source.

    If the source has no labels, the tokens are the labels. In both cases, the first label of every segment is NO_LOSS.
    For an index, labels are only counted. Raises a BadTokenError if a token is negative or above
    `row_format.largest_id`, or if a label is neither a token id nor NO_LOSS.
    """
    if row_format.index_only:
        trained = _count_labels(rows, lists, source, row_format) if "labels" in source else None
        return CopiedRows(rows=rows, row_format=row_format, kept=kept, columns={}, trained=trained)
    max_len, align = row_format.max_len, row_format.align
    lengths, extents, ends, places = rows.lengths, rows.extents(align), rows.ends(align), rows.places(align, max_len)
    row_ends, tails = np.arange(len(rows)) * max_len + ends, max_len - ends
    gaps = joined_ranges(np.concatenate([places + lengths, row_ends]), np.concatenate([extents - lengths, tails]))
    seq_lengths = np.insert(extents, rows.row_starts[1:], tails)  # 0 for a row that is full
    columns = token_columns(Spans(lists, rows.starts, lengths, places), gaps, seq_lengths, source, row_format)
    trained = count_trained(places, columns["labels"]) if "labels" in source else None
    return CopiedRows(rows=rows, row_format=row_format, kept=kept, columns=columns, trained=trained)


def token_columns(
    spans: Spans, gaps: NDArray[np.int64], seq_lengths: NDArray[np.int64], source: TokenColumns, row_format: RowFormat
) -> dict[str, NDArray[Any]]:
    """Copy the per-token values of consecutive rows. Returns new arrays of shape (tokens,), by column.

    For errors see `copy_checked`.

    Args:
        spans: segments in the source, and their places in the rows.
        gaps: places in the rows without a token.
        seq_lengths: extents of segments and lengths of padding tails, in order; they sum to the places in the rows.
        source: columns to copy from, by their names in the rows.
        row_format: columns of the rows.
    """
    size = int(seq_lengths.sum())
    columns: dict[str, NDArray[Any]] = {}
    tokens = columns[row_format.input_ids] = np.empty(size, np.int32)
    copy_checked("input_ids", source, spans, row_format, tokens)
    tokens[gaps] = row_format.pad_id
    if "labels" in row_format.token_columns:
        labels = columns["labels"] = np.empty(size, np.int32) if "labels" in source else tokens.copy()
        if "labels" in source:
            copy_checked("labels", source, spans, row_format, labels)
        labels[gaps] = NO_LOSS
        labels[spans.places] = NO_LOSS  # this token would be predicted from the previous document
    if "position_ids" in row_format.token_columns:
        columns["position_ids"] = restart_positions(seq_lengths).astype(np.int32)
    for name, value_type in row_format.kept_tokens.items():
        dtype = numpy_dtype(value_type)
        values = columns[name] = np.zeros(size, dtype)  # 0 in the gaps
        gather_bytes(source[name].addresses, spans, dtype.itemsize, values.ctypes.data)
    return columns


def _segment_arrays(rows: LocatedRows, kept: KeptValues, row_format: RowFormat) -> list[pa.Array]:
    """Return the columns with one value per segment, in the order of the schema: kept columns are last."""
    ends = rows.ends(row_format.align)
    is_short = ends < row_format.max_len
    offsets = rows.row_starts.astype(np.int32)
    offsets[1:] += np.cumsum(is_short, dtype=np.int32)
    tails = offsets[1:][is_short] - 1  # a padding tail is the last segment of its row
    is_padding = np.zeros(offsets[-1], bool)
    is_padding[tails] = True
    segments = np.flatnonzero(~is_padding)

    def column(values: NDArray[np.int64], padding: NDArray[np.int64] | int, dtype: DTypeLike) -> NDArray[Any]:
        out = np.empty(len(is_padding), dtype)
        out[segments], out[tails] = values, padding
        return out

    of_segments: dict[str, tuple[NDArray[np.int64], Any]] = {
        "seq_lengths": (rows.extents(row_format.align), row_format.max_len - ends[is_short]),
        "seq_tokens": (rows.lengths, 0),
        "doc_ids": (rows.documents, PADDING),
        "doc_starts": (rows.starts, 0),
    }
    values = [as_arrow(column(*of_segments[name], SEGMENT_COLUMNS[name])) for name in row_format.segment_columns]
    if row_format.kept:
        lists = column(rows.documents, 0, np.int64)
        values += [kept.column(name, lists, is_padding) for name in row_format.kept]
    return [pa.ListArray.from_arrays(as_arrow(offsets), each) for each in values]


def copy_checked(name: str, source: TokenColumns, spans: Spans, row_format: RowFormat, out: NDArray[np.int32]) -> None:
    """Copy tokens or labels. Raises a BadTokenError for a value that is no token id, nor NO_LOSS in "labels"."""
    allowed = NO_LOSS if name == "labels" else 0
    bad = gather(source[name].addresses, spans, allowed, out, largest=row_format.largest_id)
    if bad >= 0:
        raise BadTokenError(name, bad)


def _count_labels(
    rows: LocatedRows, lists: NDArray[np.int64], source: TokenColumns, row_format: RowFormat
) -> NDArray[np.int32]:
    """Return the number of trained tokens of each segment. Reads only labels."""
    lengths = rows.lengths
    places = np.cumsum(lengths) - lengths
    labels = np.empty(int(lengths.sum()), np.int32)
    copy_checked("labels", source, Spans(lists, rows.starts, lengths, places), row_format, labels)
    labels[places] = NO_LOSS
    return count_trained(places, labels)


def write_shard(path: Path, *, parts: Iterable[CopiedRows], row_format: RowFormat, name: str) -> ShardEntry:
    """Write an Arrow stream; return the entry of the shard with its final name. Reports the number of rows written.

    path: temporary name, which the caller renames or removes. parts: rows of each record batch, in order.
    """
    rows, total = 0, Counts()
    with HashingFile(path) as sink, pa.ipc.new_stream(sink, row_format.schema) as stream:
        for part in parts:
            CURRENT_TASK.report(rows)
            batch, counts = part.batch()
            stream.write_batch(batch)
            rows += batch.num_rows
            total = total.with_counts(counts)
    return ShardEntry(file=name, rows=rows, **total._asdict(), bytes=sink.bytes, xxh3_128=sink.hexdigest())
