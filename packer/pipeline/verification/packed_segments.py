"""Read the segments of a packed dataset in the order of their documents, one bucket at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.gather import TokenColumn
from packer.shards.kept_columns import values_at
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.shards.row_format import PADDING
from packer.sources.open_documents import SourceOrder
from packer.stores import AnyPath

BUCKET = 1 << 19
"""Approximate number of segments in a bucket: 12 MB of records, and as much again to sort them."""

_KEPT_BYTES = 16 << 20  # approximate bytes of the kept values of a bucket; long values make smaller buckets

_SEGMENT = [("document", np.int64), ("start", np.int32), ("length", np.int32), ("place", np.int64)]
_NUMBER = ("number", np.int64)  # position of the segment in the kept columns, padding counted


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSegments:
    """Segments of a bucket, ordered by document and start; each array has the shape (segments,)."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    places: NDArray[np.int64]
    """Positions in the rows: row * max_len + offset in the row."""

    columns: dict[str, TokenColumn]
    """Token columns of all rows, with a list per row."""

    kept: dict[str, pa.Array]
    """Kept columns with a value per segment: (segments,)."""

    kept_tokens: dict[str, tuple[TokenColumn, pa.DataType]]
    """Kept columns of all rows with a value per token, and the type of the values; a list per row."""


class SegmentBuckets:
    """All segments of the rows; buckets are read on demand, in ascending order."""

    def __init__(self, rows: _Rows, buckets: Buckets, read: Callable[[int], NDArray[Any]]) -> None:
        self.borders = buckets.borders
        """(buckets - 1,) first document of every bucket but the first."""
        self.count = int(buckets.sizes.sum())
        """Segments in all buckets."""
        self.passed = 0
        """Segments in the buckets before the one that was read last."""
        self._rows = rows
        self._sizes = buckets.sizes
        self._read = read
        self._bucket = -1
        self._segments: PackedSegments | None = None

    def at(self, bucket: int) -> PackedSegments:
        """Return the segments of a bucket; only the last bucket stays in memory."""
        if bucket != self._bucket or self._segments is None:
            self._segments = None  # do not hold two buckets
            self._segments = self._rows.in_order(self._read(bucket))
            self._bucket, self.passed = bucket, int(self._sizes[:bucket].sum())
        return self._segments


@contextmanager
def read_segments(folder: AnyPath, manifest: Manifest, source: SourceOrder) -> Iterator[SegmentBuckets]:
    """Read the segments of all rows.

    If there is more than one bucket, segments are distributed in a temporary file of 24 bytes per segment, or 32 with
    kept columns; see `segment_buckets.distributed`.

    Args:
        folder: packed dataset.
        manifest: its manifest, or that of one of its generations, whose documents are then numbered from 0.
        source: source that was packed; numbers the documents of a mixture.

    Raises:
        PackerError: a shard contradicts the manifest, or the temporary file cannot be written.
    """
    rows = _Rows(folder, manifest, source)
    buckets = Buckets.balanced(rows.documents(), manifest.totals.documents, rows.bucket_size)
    with distributed(rows.records(), rows.dtype, buckets) as read:
        yield SegmentBuckets(rows, buckets, read)


class _Rows:
    """Mapped rows of a packed dataset; the arguments are those of `read_segments`."""

    def __init__(self, folder: AnyPath, manifest: Manifest, source: SourceOrder) -> None:
        tables = [open_shard(folder, entry, manifest) for entry in manifest.shards]
        for table, entry in zip(tables, manifest.shards, strict=True):
            if not table.schema.equals(tables[0].schema):  # all values are read with the types of the first shard
                first = manifest.shards[0].file
                raise PackerError(f"{folder / entry.file} and {first} have columns of different types")
        self._batches: list[pa.RecordBatch] = [batch for table in tables for batch in table.to_batches()]
        self._max_len = manifest.max_len
        self._first_document = manifest.first.document
        self._source = source
        schema, options = self._batches[0].schema, manifest.options
        self._columns = {name: self._tokens(name) for name in ("input_ids", "labels") if name in schema.names}
        self._kept_tokens = {
            name: (self._tokens(name), schema.field(name).type.value_type) for name in options.stored_keep_tokens
        }
        self._kept = {name: pa.chunked_array([batch[name].values for batch in self._batches]) for name in options.kept}
        self.dtype = np.dtype([*_SEGMENT, _NUMBER] if self._kept else _SEGMENT)

    @property
    def bucket_size(self) -> int:
        """Number of segments that a bucket should have."""
        kept_bytes = sum(column.nbytes / len(column) for column in self._kept.values())
        return max(1, min(BUCKET, int(_KEPT_BYTES / max(1.0, kept_bytes))))

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """Yield the documents of the segments in each record batch, without padding."""
        for batch in self._batches:
            yield self._documents(batch, as_numpy(batch["doc_ids"].values) != PADDING)

    def records(self) -> Iterator[NDArray[Any]]:
        """Yield the segments of each record batch, without padding, as records of `dtype`."""
        row = number = 0
        for batch in self._batches:
            extents = as_numpy(batch["seq_lengths"].values)
            tokens = as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else extents
            is_real = as_numpy(batch["doc_ids"].values) != PADDING
            records = np.empty(int(np.count_nonzero(is_real)), self.dtype)
            records["document"] = self._documents(batch, is_real)
            records["start"] = as_numpy(batch["doc_starts"].values)[is_real]
            records["length"] = tokens[is_real]
            records["place"] = (row * self._max_len + np.cumsum(extents, dtype=np.int64) - extents)[is_real]
            if self._kept:
                records["number"] = np.flatnonzero(is_real) + number
            yield records
            row += batch.num_rows
            number += len(extents)

    def in_order(self, records: NDArray[Any]) -> PackedSegments:
        """Sort records, and look up their kept values."""
        order = np.lexsort((records["start"], records["document"]))
        return PackedSegments(
            documents=records["document"][order],
            starts=records["start"][order],
            lengths=records["length"][order],
            places=records["place"][order],
            columns=self._columns,
            kept={name: _values(column, records["number"][order]) for name, column in self._kept.items()},
            kept_tokens=self._kept_tokens,
        )

    def _tokens(self, name: str) -> TokenColumn:
        return TokenColumn.from_arrow([batch[name] for batch in self._batches])

    def _documents(self, batch: pa.RecordBatch, is_real: NDArray[np.bool_]) -> NDArray[np.int64]:
        names = [name for name in ("doc_ids", "source_ids", "copy") if name in batch.schema.names]
        numbers = self._source.numbers({name: as_numpy(batch[name].values)[is_real] for name in names})
        return numbers - self._first_document if self._first_document else numbers


def _values(column: pa.ChunkedArray, numbers: NDArray[np.int64]) -> pa.Array:
    """Return the values of a column at positions in any order."""
    order = np.argsort(numbers)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return values_at(column, numbers[order]).take(as_arrow(places))


_MOST_RANGES = 1 << 16  # ranges of documents whose segments are counted
_WRITTEN_TOGETHER = 1 << 18  # approximate number of records


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Division of documents into buckets, which consist of ranges of 2**shift documents."""

    shift: int
    """Logarithm of the documents per range, at least 1: ranges begin at even documents, so that pairs stay together."""

    of_range: NDArray[np.int64]
    """Shape (ranges,): bucket of each range, ascending; documents beyond the last range belong to it."""

    sizes: NDArray[np.int64]
    """Shape (buckets,): segments of each bucket."""

    @classmethod
    def balanced(cls, parts: Iterable[NDArray[np.int64]], documents: int, size: int) -> Buckets:
        """Divide documents into buckets of about equally many segments.

        Ranges of [3, 1, 2, 0, 4] segments have 0, 3, 4, 6 and 6 segments before them: with size 3, they make buckets of
        3, 3 and 4. A range with more segments is a bucket of its own.

        Args:
            parts: document of every segment, in any order.
            documents: approximate number of documents.
            size: segments per bucket.
        """
        shift = max(1, documents.bit_length() - _MOST_RANGES.bit_length() + 1)
        counts = np.zeros((documents >> shift) + 1, np.int64)
        for part in parts:
            counts += np.bincount(_ranges_of(part, shift, len(counts)), minlength=len(counts))
        _, firsts, of_range = np.unique((np.cumsum(counts) - counts) // size, return_index=True, return_inverse=True)
        return cls(shift=shift, of_range=of_range, sizes=np.add.reduceat(counts, firsts))

    @property
    def borders(self) -> NDArray[np.int64]:
        """First document of every bucket but the first: shape (buckets - 1,)."""
        borders: NDArray[np.int64] = (np.flatnonzero(np.diff(self.of_range)) + 1) << self.shift
        return borders

    def of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket of each document."""
        buckets: NDArray[np.int64] = self.of_range[_ranges_of(documents, self.shift, len(self.of_range))]
        return buckets


def _ranges_of(documents: NDArray[np.int64], shift: int, ranges: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.clip(documents >> shift, 0, ranges - 1)
    return numbers


@contextmanager
def distributed(
    parts: Iterable[NDArray[Any]], dtype: np.dtype[Any], buckets: Buckets
) -> Iterator[Callable[[int], NDArray[Any]]]:
    """Distribute records to their buckets; yield a function that reads the records of a bucket in their order.

    A single bucket stays in memory. Several are stored one after the other in an unnamed temporary file, in the folder
    for temporary files (`TMPDIR`). It has the size of all records, and disappears when the context is left, even if the
    process is killed.

    Args:
        parts: structured arrays of `dtype`, which has a field `document`.
        dtype: type of a record.
        buckets: buckets balanced by the same records.

    Raises:
        PackerError: the file cannot be written.
    """
    if len(buckets.sizes) == 1:
        records = np.concatenate([np.empty(0, dtype), *parts])
        yield lambda _: records
        return
    starts = np.cumsum(buckets.sizes) - buckets.sizes
    try:
        file = TemporaryFile(buffering=0)  # noqa: SIM115 (closed below; errors of this line are explained)
    except OSError as error:
        raise _cannot_write(error, buckets, dtype) from error
    with file:
        try:
            _write(file, parts, buckets, starts.copy())
        except OSError as error:
            raise _cannot_write(error, buckets, dtype) from error

        def read(bucket: int) -> NDArray[Any]:
            file.seek(int(starts[bucket]) * dtype.itemsize)
            return np.fromfile(file, dtype, int(buckets.sizes[bucket]))

        yield read


def _write(file: Any, parts: Iterable[NDArray[Any]], buckets: Buckets, ends: NDArray[np.int64]) -> None:
    """Append records to their buckets, which end at `ends`, in records; `ends` is updated."""

    def write(records: NDArray[Any]) -> None:
        numbers = buckets.of(records["document"])
        records = records[np.argsort(numbers, kind="stable")]
        counts = np.bincount(numbers, minlength=len(ends))
        first = 0
        for bucket in np.flatnonzero(counts):
            file.seek(int(ends[bucket]) * records.itemsize)
            left = records[first : first + counts[bucket]].view(np.uint8).data
            while left:
                left = left[file.write(left) :]
            first += counts[bucket]
        ends[:] += counts

    gathered: list[NDArray[Any]] = []
    held = 0
    for part in parts:
        gathered.append(part)
        held += len(part)
        if held >= _WRITTEN_TOGETHER:
            write(np.concatenate(gathered))
            gathered, held = [], 0
    if gathered:
        write(np.concatenate(gathered))


def _cannot_write(error: OSError, buckets: Buckets, dtype: np.dtype[Any]) -> PackerError:
    count = int(buckets.sizes.sum())
    return PackerError(
        f"{gettempdir()}: {error.strerror or error}: a comparison of {count:,} segments with their source "
        f"needs {count * dtype.itemsize / 1e9:,.1f} GB there: free some space, or set TMPDIR to another folder"
    )
