"""Entries of the shards of a dataset, held as a table, which is written to a file of its own if they are very many.

JSON with an entry for each of 100,000 shards takes seconds to read, and the file milliseconds. It is an Arrow IPC
stream, uncompressed, with the fields of `ShardEntry` as columns except for `file`, which follows from the number of the
shard. The manifest has its hash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.facts import ShardEntry
from packer.shards.file_names import shard_name

_HASH_BYTES = 16
_LEAST = {"rows": 1, "tokens": 0, "trained": 0, "untrained_segments": 0, "bytes": 0}
_RECORD = np.dtype([(name, np.int64) for name in _LEAST] + [("xxh3_128", f"V{_HASH_BYTES}")])
_SCHEMA = pa.schema([(name, pa.int64()) for name in _LEAST] + [("xxh3_128", pa.binary(_HASH_BYTES))])


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ShardTable(Sequence[ShardEntry]):
    """A sequence of entries, which are made when they are requested; a slice is a table, too."""

    _records: NDArray[np.void]
    _ends: tuple[int, ...]  # number of shards of the dataset after each generation, from which names follow
    _first: int = 0  # number of the first shard

    @classmethod
    def of(cls, entries: Iterable[ShardEntry], ends: Sequence[int] = ()) -> ShardTable:
        """Return the table of entries that are in order; their file names are not looked at.

        `ends` are the numbers of shards after each generation; if empty, there is one generation. Raises a TypeError if
        a hash does not have 32 hexadecimal digits, or values are out of range.
        """
        records = []
        for number, entry in enumerate(entries):
            try:
                digest = bytes.fromhex(entry.xxh3_128)
            except ValueError:
                digest = b""
            if len(digest) != _HASH_BYTES:
                raise TypeError(f"xxh3_128 of shard {number} is {entry.xxh3_128[:40]!r}, not 32 hexadecimal digits")
            records.append((*(getattr(entry, name) for name in _LEAST), digest))
        return cls(_checked(np.array(records, _RECORD)), tuple(ends) or (len(records),))

    @classmethod
    def from_bytes(cls, content: bytes, ends: Sequence[int] = ()) -> ShardTable:
        """Return the table that a file holds; columns that it does not know are ignored. `ends` is as in `of`.

        Raises a TypeError for missing columns, wrong types and values out of range, a ValueError or OSError if the
        content is not an Arrow stream, and a MemoryError if a damaged length asks for too much.
        """
        table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
        table.validate(full=True)
        records = np.empty(table.num_rows, _RECORD)
        for column in _SCHEMA:
            if table.column_names.count(column.name) != 1 or table.schema.field(column.name).type != column.type:
                raise TypeError(f"it has no column {column.name} of type {column.type}")
            if table[column.name].null_count:
                raise TypeError(f"a value of {column.name} is null")
            values = [_values_of(chunk) for chunk in table[column.name].chunks]
            records[column.name] = np.concatenate(values) if values else ()
        return cls(_checked(records), tuple(ends) or (len(records),))

    def to_bytes(self) -> bytes:
        """Return the content of the file; equal tables give equal bytes."""
        columns = [as_arrow(np.ascontiguousarray(self.column(name))) for name in _LEAST]
        buffers = [None, pa.py_buffer(self.hashes.tobytes())]
        columns.append(pa.Array.from_buffers(_SCHEMA.field("xxh3_128").type, len(self), buffers))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        return bytes(sink.getvalue())

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a numeric field of all entries."""
        return self._records[name]

    @property
    def hashes(self) -> NDArray[np.void]:
        """xxh3-128 of all entries, 16 bytes each."""
        return self._records["xxh3_128"]

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> ShardEntry: ...

    @overload
    def __getitem__(self, index: slice) -> ShardTable: ...

    def __getitem__(self, index: int | slice) -> ShardEntry | ShardTable:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            assert chosen.step == 1
            return ShardTable(self._records[index], self._ends, self._first + chosen.start)
        *counts, digest = self._records[chosen].item()
        shard = self._first + chosen
        name = shard_name(shard, self._ends[bisect_right(self._ends, shard)])
        return ShardEntry(file=name, xxh3_128=digest.hex(), **dict(zip(_LEAST, counts, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShardTable({len(self):,} shards)"


def _checked(records: NDArray[Any]) -> NDArray[Any]:
    """Return records whose values are in range; raise a TypeError for others."""
    for name, least in _LEAST.items():
        wrong = np.flatnonzero(records[name] < least)
        if len(wrong):
            raise TypeError(f"{name} of shard {wrong[0]} is {records[name][wrong[0]]}, less than {least}")
        if records[name].sum(dtype=np.float64) >= 2**62:  # sums of int64 would overflow
            raise TypeError(f"{name} add up to {2**62} or more")
    return records


def _values_of(chunk: pa.Array) -> NDArray[Any]:
    """View numbers, or fixed-size binary values, of a column."""
    if chunk.type != _SCHEMA.field("xxh3_128").type:
        return as_numpy(chunk)
    values = chunk.buffers()[1] if len(chunk) else b""
    return np.frombuffer(values, f"V{_HASH_BYTES}", len(chunk), chunk.offset * _HASH_BYTES)
