"""Entries of very many shards: a table in a file of its own, next to the manifest.

JSON with an entry for each of 100,000 shards takes seconds to read, and this table milliseconds. It is an Arrow IPC
stream, uncompressed, with the fields of `ShardEntry` as columns except for `file`, which follows from the number of the
shard. The manifest has its hash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.facts import ShardEntry
from packer.shards.file_names import all_shard_names, shard_name
from packer.shards.manifest import Manifest, datasets_files

MOST_IN_MANIFEST = 4096
"""Largest number of shards whose entries are in manifest.json itself; these take a quarter of a second to read."""

_HASH_BYTES = 16
_LEAST = {"rows": 1, "tokens": 0, "trained": 0, "untrained_segments": 0, "bytes": 0}
_SCHEMA = pa.schema([(name, pa.int64()) for name in _LEAST] + [("xxh3_128", pa.binary(_HASH_BYTES))])


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ShardTable(Sequence[ShardEntry]):
    """A sequence of entries, which are made from columns when they are requested."""

    _counts: Mapping[str, NDArray[np.int64]]
    _hashes: bytes
    _ends: tuple[int, ...]

    @classmethod
    def of(cls, entries: Iterable[ShardEntry], ends: Sequence[int] = ()) -> ShardTable:
        """Return the table of entries that are in order and have the file names of shards.

        `ends` are the numbers of shards after each generation; if empty, there is one generation.
        """
        entries = list(entries)
        counts = {name: np.array([getattr(entry, name) for entry in entries], np.int64) for name in _LEAST}
        hashes = bytes.fromhex("".join(entry.xxh3_128 for entry in entries))
        return cls(counts, hashes, tuple(ends) or (len(entries),))

    @classmethod
    def from_bytes(cls, content: bytes, ends: Sequence[int] = ()) -> ShardTable:
        """Return the table that a file holds; columns that it does not know are ignored. `ends` is as in `of`.

        Raises a TypeError for missing columns, wrong types and values out of range, a ValueError or OSError if the
        content is not an Arrow stream, and a MemoryError if a damaged length asks for too much.
        """
        table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
        table.validate(full=True)
        for column in _SCHEMA:
            if table.column_names.count(column.name) != 1 or table.schema.field(column.name).type != column.type:
                raise TypeError(f"it has no column {column.name} of type {column.type}")
            if table[column.name].null_count:
                raise TypeError(f"a value of {column.name} is null")
        counts = {name: _joined(table[name]) for name in _LEAST}
        for name, least in _LEAST.items():
            wrong = np.flatnonzero(counts[name] < least)
            if len(wrong):
                raise TypeError(f"{name} of shard {wrong[0]} is {counts[name][wrong[0]]}, less than {least}")
            if counts[name].sum(dtype=np.float64) >= 2**62:  # sums of int64 would overflow
                raise TypeError(f"{name} add up to {2**62} or more")
        hashes = (as_numpy(_bytes_of(chunk)).tobytes() for chunk in table["xxh3_128"].chunks)
        return cls(counts, b"".join(hashes), tuple(ends) or (len(counts["rows"]),))

    def to_bytes(self) -> bytes:
        """Return the content of the file; equal tables give equal bytes."""
        hashes = pa.Array.from_buffers(_SCHEMA.field("xxh3_128").type, len(self), [None, pa.py_buffer(self._hashes)])
        columns = [*(as_arrow(self._counts[name]) for name in _LEAST), hashes]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        return bytes(sink.getvalue())

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a numeric field of all entries."""
        return self._counts[name]

    @property
    def hashes(self) -> NDArray[np.void]:
        """xxh3-128 of all entries, 16 bytes each."""
        return np.frombuffer(self._hashes, f"V{_HASH_BYTES}")

    def __len__(self) -> int:
        return len(self._counts["rows"])

    @overload
    def __getitem__(self, index: int) -> ShardEntry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ShardEntry]: ...

    def __getitem__(self, index: int | slice) -> ShardEntry | Sequence[ShardEntry]:
        if isinstance(index, slice):
            return tuple(map(self._entry, range(len(self))[index]))
        return self._entry(range(len(self))[index])

    def __iter__(self) -> Iterator[ShardEntry]:
        names, size = list(self._counts), _HASH_BYTES * 2
        digests = self._hashes.hex()
        files = all_shard_names(*self._ends)
        for shard, counts in enumerate(zip(*(values.tolist() for values in self._counts.values()), strict=True)):
            digest = digests[shard * size : (shard + 1) * size]
            fields = dict(zip(names, counts, strict=True))
            yield ShardEntry(file=files[shard], xxh3_128=digest, **fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShardTable({len(self):,} shards)"

    def _entry(self, shard: int) -> ShardEntry:
        counts = {name: int(values[shard]) for name, values in self._counts.items()}
        digest = self._hashes[shard * _HASH_BYTES : (shard + 1) * _HASH_BYTES].hex()
        end = self._ends[bisect_right(self._ends, shard)]
        return ShardEntry(file=shard_name(shard, end), xxh3_128=digest, **counts)


def column_of(shards: Sequence[ShardEntry], name: str) -> NDArray[np.int64]:
    """Return a numeric field of all entries of a manifest; fast also for very many."""
    if isinstance(shards, ShardTable):
        return shards.column(name)
    return np.array([getattr(entry, name) for entry in shards], np.int64)


def hashes_of(shards: Sequence[ShardEntry]) -> NDArray[np.void]:
    """Return the xxh3-128 of all entries of a manifest, 16 bytes each; fast also for very many."""
    if isinstance(shards, ShardTable):
        return shards.hashes
    return np.frombuffer(bytes.fromhex("".join(entry.xxh3_128 for entry in shards)), f"V{_HASH_BYTES}")


def kept_shards(entries: Sequence[ShardEntry], ends: Sequence[int] = ()) -> Sequence[ShardEntry]:
    """Return the entries as a manifest keeps them: a tuple, or a table if there are very many; `ends` as there."""
    return tuple(entries) if len(entries) <= MOST_IN_MANIFEST else ShardTable.of(entries, ends)


def files_beside(manifest: Manifest) -> dict[str, bytes]:
    """Return the content, by name, of the small files of a dataset that depend on its shards and its source."""
    table = {manifest.table_name: manifest.shards.to_bytes()} if isinstance(manifest.shards, ShardTable) else {}
    return datasets_files(manifest.source, all_shard_names(*manifest.shard_ends)) | table


def _joined(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *map(as_numpy, column.chunks)])


def _bytes_of(chunk: pa.FixedSizeBinaryArray) -> pa.Array:
    """View fixed-size binary values as the bytes that they consist of."""
    first, count = chunk.offset * _HASH_BYTES, len(chunk) * _HASH_BYTES
    return pa.Array.from_buffers(pa.uint8(), count, [None, chunk.buffers()[1]], offset=first)
