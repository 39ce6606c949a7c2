"""Write a shard; its bytes depend only on the source, the plan and the number of the shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.facts import ShardEntry
from packer.gather import (
    RowLayout,
    Spans,
    TokenColumn,
    count_trained,
    fill_gaps,
    gather,
    mask_context,
    restart_positions,
)
from packer.shards.files import HashingFile
from packer.shards.kept_columns import KeptValues, tokens_at
from packer.shards.row_block import RowBlock, SegmentColumns
from packer.shards.row_format import RowFormat


class BadTokenError(Exception):
    """A value in `column` is not a token id; `segment` is the number of its segment in the block."""

    def __init__(self, column: str, segment: int) -> None:
        super().__init__(column, segment)
        self.column = column
        self.segment = segment


class Counts(NamedTuple):
    """Counts of a record batch or a shard."""

    tokens: int = 0
    """Number of tokens, without padding."""

    trained: int = 0
    """Labels that are not NO_LOSS; 0 if no labels are written."""

    untrained_segments: int = 0
    """Segments without a trained token; 0 if no labels are written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceColumns:
    """Columns of the source that rows are copied from."""

    input_ids: TokenColumn
    """Lists of tokens."""

    labels: TokenColumn | None
    """Lists of labels; None if the tokens are the labels."""

    kept_tokens: Mapping[str, TokenColumn]
    """Lists of other values per token, by the name of the column."""


def build_batches(
    block: RowBlock, source: SourceColumns, kept: KeptValues, row_format: RowFormat, schema: pa.Schema
) -> tuple[list[pa.RecordBatch], Counts]:
    """Build the record batches of a block of rows, and count their tokens and labels.

    If the source has no labels, the tokens are the labels. The first label of every segment is NO_LOSS either way.

    Args:
        block: segments of the rows.
        source: columns that values per token are copied from; an index only counts its labels.
        kept: values of the kept columns with a value per segment.
        row_format: format of the rows.
        schema: `row_format.schema`, built once per shard.

    Returns:
        Record batches, and the counts of all.

    Raises:
        BadTokenError: a token is negative or above int32, or a label is neither a token id nor NO_LOSS.
    """
    tokens: list[pa.Buffer] = []
    if row_format.index_only:
        trained = _count_labels(block, source, row_format)
    else:
        tokens, trained = token_buffers(block, source, row_format)
    segments = SegmentColumns.of(block, row_format)
    batches = []
    for first, last in row_format.batches(block.rows):
        # Slices of arrays would be written with what follows them as padding, which slices of buffers are not.
        arrays = [_rows(values, field.type, first, last) for values, field in zip(tokens, schema, strict=False)]
        arrays += segments.arrays(first, last, kept, row_format)
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return batches, Counts(int(block.lengths.sum()), *trained)


def token_buffers(
    block: RowBlock, source: SourceColumns, row_format: RowFormat
) -> tuple[list[pa.Buffer], tuple[int, int]]:
    """Copy the tokens of a block of rows.

    Returns:
        The values of each column with a value per token, in the order of the schema; and the number of trained tokens
        and of segments without any.

    Raises:
        BadTokenError: as in `build_batches`.
    """
    max_len = row_format.max_len
    layout, spans = _placed(block, max_len)
    size = len(layout.ends) * max_len
    columns: dict[str, NDArray[np.int32]] = {}
    trained = 0, 0
    tokens = columns["input_ids"] = np.empty(size, np.int32)
    bad = gather(source.input_ids.addresses, spans, 0, tokens)
    if bad >= 0:
        raise BadTokenError("input_ids", bad)
    fill_gaps(layout, max_len, row_format.pad_id, tokens)
    if "labels" in row_format.token_columns:
        columns["labels"] = tokens.copy() if source.labels is None else _gathered_labels(source.labels, spans, size)
        fill_gaps(layout, max_len, NO_LOSS, columns["labels"])
        mask_context(layout.places, block.context, NO_LOSS, columns["labels"])
        trained = count_trained(layout.places, block.extents, columns["labels"])
    if "position_ids" in row_format.token_columns:
        columns["position_ids"] = np.empty(size, np.int32)
        restart_positions(layout.places, layout.ends, max_len, columns["position_ids"])
    buffers = [pa.py_buffer(columns[name]) for name in row_format.token_columns]
    for name, value_type in row_format.kept_tokens.items():
        buffers.append(tokens_at(source.kept_tokens[name], value_type, spans, size).buffers()[1])
    return buffers, (int(trained[0]), int(trained[1]))


def _rows(values: pa.Buffer, kind: pa.FixedSizeListType, first: int, last: int) -> pa.Array:
    """Return rows first..last - 1 of a column with a value per token."""
    size = kind.list_size * (last - first)
    width = kind.value_type.bit_width // 8
    part = values.slice(kind.list_size * first * width, size * width)
    return pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(kind.value_type, size, [None, part]), type=kind)


def _placed(block: RowBlock, max_len: int) -> tuple[RowLayout, Spans]:
    """Return where the segments of a block are in its rows, and the spans that are copied there."""
    before = np.cumsum(block.extents) - block.extents  # extents before each segment, padding tails not counted
    row_of = np.repeat(np.arange(block.rows), np.diff(block.row_starts))
    places = row_of * max_len + before - before[block.row_starts[:-1]][row_of]
    layout = RowLayout(places, block.lengths, block.extents, block.ends)
    return layout, Spans(block.lists, block.starts, block.lengths, places)


def _gathered_labels(labels: TokenColumn, spans: Spans, size: int) -> NDArray[np.int32]:
    out = np.empty(size, np.int32)
    bad = gather(labels.addresses, spans, NO_LOSS, out)
    if bad >= 0:
        raise BadTokenError("labels", bad)
    return out


def _count_labels(block: RowBlock, source: SourceColumns, row_format: RowFormat) -> tuple[int, int]:
    """Count the trained tokens of a block, and its segments without any, as `token_arrays` does; read labels only."""
    if "labels" not in row_format.token_columns:
        return 0, 0
    if source.labels is None:
        trained = np.maximum(block.lengths - block.context, 0)
        return int(trained.sum()), int(np.count_nonzero(trained == 0))
    places = np.cumsum(block.lengths) - block.lengths
    labels = _gathered_labels(
        source.labels, Spans(block.lists, block.starts, block.lengths, places), int(block.lengths.sum())
    )
    mask_context(places, block.context, NO_LOSS, labels)
    tokens, without = count_trained(places, block.lengths, labels)
    return int(tokens), int(without)


def write_shard(
    path: Path, *, batches: Iterator[tuple[list[pa.RecordBatch], Counts]], schema: pa.Schema, name: str, sync: bool
) -> ShardEntry:
    """Write record batches as an Arrow stream, and return the entry of the shard.

    Args:
        path: temporary name of the shard; the caller renames or removes the file.
        batches: (record batches, their counts) of each block of rows in order, built while they are written.
        schema: schema of the record batches.
        name: final name of the shard, for the entry.
        sync: fsync the file.

    Raises:
        OSError: the disk is full, or writing fails.
    """
    rows, total = 0, Counts()
    sink = HashingFile(path)
    try:
        with pa.ipc.new_stream(sink, schema) as stream:
            for built, counts in batches:
                for batch in built:
                    stream.write_batch(batch)
                    rows += batch.num_rows
                total = Counts(*map(sum, zip(total, counts, strict=True)))
        if sync:
            sink.sync()
    finally:
        sink.close()
    return ShardEntry(file=name, rows=rows, **total._asdict(), bytes=sink.bytes, xxh3_128=sink.hexdigest())
