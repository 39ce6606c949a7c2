"""Mapped shards of a packed dataset. Rows are read by number, as arrays that view the file."""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy, has_dtype, is_numeric
from packer.column_names import SEGMENT_COLUMNS, input_ids_in
from packer.errors import PackerError, first_line
from packer.json_records import ShardEntry
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard
from packer.stores.local_files import FileLock

Row = dict[str, NDArray[Any]]

_CHECK_PAUSE = 1.0  # seconds between two checks of the size of a shard that is being read


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnViews:
    """Columns of one record batch, as arrays that view the mapped file."""

    tokens: dict[str, NDArray[Any]]
    """Token columns, shape (rows, max_len) or (rows, max_len, values per token), in the order on disk."""

    segments: dict[str, NDArray[Any]]
    """Segment columns of numbers and booleans, shape (segments,), in the order on disk. Kept ones are masked arrays."""

    others: dict[str, pa.Array]
    """Other segment columns, shape (segments,)."""

    offsets: list[int]
    """Row i has the segments offsets[i]:offsets[i + 1]. It is a list because indexing a list is faster."""

    def row(self, index: int) -> Row:
        """Return a row by its number in the record batch."""
        first, last = self.offsets[index], self.offsets[index + 1]
        found = {name: values[index] for name, values in self.tokens.items()}
        for name, values in self.segments.items():
            found[name] = values[first:last]
        for name, column in self.others.items():
            found[name] = _as_objects(name, column[first:last])
        return found


class OpenShard:
    """A mapped shard. Each record batch is checked when it is first read.

    `lock`, if not None, keeps the file in its cache. Raises PackerError if the file is missing, or if its size, rows,
    columns or segments contradict the manifest.
    """

    def __init__(self, folder: Path, entry: ShardEntry, manifest: Manifest, lock: FileLock | None = None) -> None:
        self._lock = lock
        self._path = folder / entry.file
        self._manifest = manifest
        self._table = open_shard(folder, entry, manifest)
        self._bytes, self._inode = entry.bytes, self._path.stat().st_ino
        self._next_check = 0.0
        # For a single number, bisect on a list takes a quarter of the time of np.searchsorted.
        self._starts = [0, *accumulate(len(chunk) for chunk in self._table["seq_lengths"].chunks)]
        self._views: list[ColumnViews | None] = [None] * (len(self._starts) - 1)

    def close(self) -> None:
        """Release the lock. Rows that were returned stay valid."""
        if self._lock is not None:
            self._lock.release()

    @property
    def batches(self) -> int:
        """Number of record batches."""
        return len(self._views)

    def row(self, index: int) -> Row:
        """Return a row by its number in the shard."""
        if time.monotonic() > self._next_check:
            self._check_size()
        number = bisect_right(self._starts, index) - 1
        return (self._views[number] or self.view(number)).row(index - self._starts[number])

    def view(self, number: int) -> ColumnViews:
        """Return the columns of a record batch, which is checked at first."""
        views = self._views[number]
        if views is None:
            self._check_size()
            arrays = {name: self._table[name].chunk(number) for name in self._table.column_names}
            if len({len(array) for array in arrays.values()}) > 1:
                raise PackerError(
                    f"{self._path}: the columns of a record batch are of different lengths; restore it, or pack again"
                )
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
            check_batch(batch, self._path, self._manifest)
            views = self._views[number] = _views_of(batch)
        return views

    def _check_size(self) -> None:
        """Check that the file has not become shorter. Reading a missing part would end the process with SIGBUS."""
        self._next_check = time.monotonic() + _CHECK_PAUSE
        try:
            found = self._path.stat()
        except OSError:  # the file was removed; its mapped pages can still be read
            return
        if found.st_ino == self._inode and found.st_size < self._bytes:
            raise PackerError(
                f"{self._path} became shorter while it was open: it has {found.st_size:,} bytes, the manifest says "
                f"{self._bytes:,}; restore it, or pack again to another folder"
            )


class OpenShards:
    """Open shards of a dataset, at most `most` at the same time. Several threads may read rows.

    To make room for another shard, the shard that was opened first is closed, except shards that are kept.
    `open_one(number, close_one)` opens a shard. It may call `close_one`, which closes a shard that is not kept, and
    returns whether there was one. `open_one` must not refer to the dataset, or the dataset would never be freed.
    """

    def __init__(self, open_one: Callable[[int, Callable[[], bool]], OpenShard], most: int) -> None:
        self.opened: dict[int, OpenShard] = {}
        self._open_one = open_one
        self._most = most
        self._kept: Sequence[int] | None = None
        self._start()

    def open(self, number: int) -> OpenShard:
        """Return a shard; open it if it is not open."""
        if self._pid != os.getpid():  # after a fork, the locks belong to another process
            self.opened = {}
            self._start()
        with self._opening:
            shard = self.opened.get(number)
            if shard is None:
                while len(self.opened) >= self._most and self.close_one():
                    pass
                shard = self.opened[number] = self._open_one(number, self.close_one)
        return shard

    def keep(self, shards: Sequence[int] | None) -> None:
        """Keep these shards open, and close all others; with None, do nothing."""
        if shards is None or shards == self._kept:
            return
        with self._opening:
            self._kept = shards
            for number in [number for number in self.opened if number not in shards]:
                self.opened.pop(number).close()

    def close_one(self) -> bool:
        """Close the first opened shard that is not kept. Returns whether there was one."""
        with self._opening:
            number = next((number for number in self.opened if number not in (self._kept or ())), None)
            if number is not None:
                self.opened.pop(number).close()
        return number is not None

    def _start(self) -> None:
        self._opening = threading.RLock()
        self._pid = os.getpid()


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a record batch in order, without checking its structure."""
    views = _views_of(batch)
    return [views.row(index) for index in range(batch.num_rows)]


def _views_of(batch: pa.RecordBatch) -> ColumnViews:
    """Return views of the token and segment columns of a record batch. Columns of other shapes are left out."""
    offsets = batch["seq_lengths"].offsets
    tokens_name = input_ids_in(batch.schema.names)
    max_len = batch[tokens_name].type.list_size if tokens_name in batch.schema.names else None  # None: an index
    tokens, segments, others = {}, {}, {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            continue
        if pa.types.is_fixed_size_list(column.type):
            nulls = column.values.null_count + column.flatten(recursive=True).null_count
            if column.type.list_size == max_len and has_dtype(column.type.value_type) and not nulls:
                tokens[name] = as_numpy(column)
        elif pa.types.is_list(column.type) and column.offsets.equals(offsets):
            if name in SEGMENT_COLUMNS:
                segments[name] = as_numpy(column.values)
            elif is_numeric(column.type.value_type) or pa.types.is_boolean(column.type.value_type):
                segments[name] = _masked(column.values)
            else:
                others[name] = column.values
    return ColumnViews(tokens=tokens, segments=segments, others=others, offsets=as_numpy(offsets).tolist())


def _masked(column: pa.Array) -> NDArray[Any]:
    """Return numbers or booleans as a masked array of their type; missing values are masked."""
    if not column.null_count:
        return np.ma.MaskedArray(as_numpy(column), mask=False)
    mask = as_numpy(column.is_null())
    values = as_numpy(pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], 0, column.offset))
    filler = math.nan if values.dtype.kind == "f" else 0  # NaN, in case the mask is dropped
    return np.ma.MaskedArray(np.where(mask, values.dtype.type(filler), values), mask=mask)


def _as_objects(name: str, column: pa.Array) -> NDArray[Any]:
    """Return the values of a column as Python objects, or as NumPy's dates and times; `name` is for the error."""
    try:
        if not pa.types.is_nested(column.type):
            values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return values
        # pyarrow would round integers next to nulls inside a list or struct
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column))
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError) as error:
        reason = first_line(error)
        raise PackerError(
            f"column '{name}' holds a {column.type} that Python cannot represent ({reason}): "
            "restore the packed dataset, or pack again with that column as strings"
        ) from error
