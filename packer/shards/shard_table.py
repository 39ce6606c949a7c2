"""Entries of the shards of a dataset, held and written by field: 100,000 records of JSON would take seconds to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.json_record import read_fields
from packer.manifest_fields import ShardEntry
from packer.shards.file_names import MOST_SHARDS, shard_name

_HASH_BYTES = 16
_LEAST = {"rows": 1, "tokens": 0, "trained": 0, "untrained_segments": 0, "bytes": 0}
_HASH = np.dtype(f"V{_HASH_BYTES}")


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ShardTable:
    """A sequence of `ShardEntry`, which are made when they are requested. File names follow from numbers."""

    _columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> ShardTable:
        """Return the table of entries that are in order; their file names are not looked at."""
        found = [*entries]
        return cls.from_dict({name: [getattr(entry, name) for entry in found] for name in (*_LEAST, "xxh3_128")})

    @classmethod
    def from_dict(cls, content: object) -> ShardTable:
        """Return the table of a JSON object with a list for each field; fields that it does not know are ignored.

        Raises a KeyError for missing fields, and a TypeError for values of another type or out of range.
        """
        read_fields(content, {}, name="shards")
        assert isinstance(content, dict)
        columns: dict[str, NDArray[Any]] = {
            name: _numbers(name, content[name], least) for name, least in _LEAST.items()
        }
        columns["xxh3_128"] = _hashes(content["xxh3_128"])
        counts = {name: len(column) for name, column in columns.items()}
        if len(set(counts.values())) > 1:
            raise TypeError(f"the lists of shards have different lengths: {counts}")
        if not 0 < counts["rows"] <= MOST_SHARDS:
            raise TypeError(f"there are {counts['rows']:,} shards, not 1 to {MOST_SHARDS:,}")
        return cls(columns)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the JSON object."""
        numbers = {name: self._columns[name].tolist() for name in _LEAST}
        return {**numbers, "xxh3_128": [digest.hex() for digest in self.hashes.tolist()]}

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a numeric field of all entries."""
        return self._columns[name]

    @property
    def hashes(self) -> NDArray[np.void]:
        """xxh3-128 of all entries, 16 bytes each."""
        return self._columns["xxh3_128"]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, shard: int) -> ShardEntry:
        counts = {name: int(self._columns[name][shard]) for name in _LEAST}
        name = shard_name(range(len(self))[shard], len(self))
        return ShardEntry(file=name, xxh3_128=self.hashes[shard].item().hex(), **counts)

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShardTable({len(self):,} shards)"


def _numbers(name: str, values: object, least: int) -> NDArray[np.int64]:
    """Return a list of JSON as an array, checked as a whole; raise a TypeError for other values, or too large ones."""
    try:
        found = np.array(values if isinstance(values, list) else None)
    except ValueError:  # lists of different lengths
        found = np.array(None)
    if found.dtype != np.int64 or found.ndim != 1:
        raise TypeError(f"shards.{name} is not a list of whole numbers")
    if len(wrong := np.flatnonzero(found < least)):
        raise TypeError(f"{name} of shard {wrong[0]} is {found[wrong[0]]}, less than {least}")
    if found.sum(dtype=np.float64) >= 2**62:  # sums of int64 would overflow
        raise TypeError(f"{name} add up to {2**62} or more")
    return found


def _hashes(values: object) -> NDArray[np.void]:
    """Return a list of hashes, 32 hexadecimal digits each, as an array of their bytes; raise a TypeError for others."""
    try:
        assert isinstance(values, list)
        assert all(len(value) == 2 * _HASH_BYTES for value in values)
        return np.frombuffer(bytes.fromhex("".join(values)), _HASH, count=len(values))
    except (AssertionError, TypeError, ValueError):
        raise TypeError(f"shards.xxh3_128 is not a list of strings of {2 * _HASH_BYTES} hexadecimal digits") from None
