"""Entries of the shards of a dataset, held and written by field: 100,000 records of JSON would take seconds to read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.json_record import read_fields
from packer.manifest_fields import ShardEntry
from packer.shards.file_names import MOST_SHARDS, shard_name

_DIGITS = 32  # of a hash, hexadecimal
_LEAST = {"rows": 1, "tokens": 0, "trained": 0, "untrained_segments": 0, "bytes": 0}


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ShardTable:
    """A sequence of `ShardEntry`, which are made when they are requested. File names follow from numbers."""

    _columns: Mapping[str, NDArray[np.int64]]

    hashes: Sequence[str]
    """xxh3-128 of each entry, hexadecimal."""

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
        columns = {name: _numbers(name, content[name], least) for name, least in _LEAST.items()}
        hashes = _hashes(content["xxh3_128"])
        counts = {**{name: len(column) for name, column in columns.items()}, "xxh3_128": len(hashes)}
        if len(set(counts.values())) > 1:
            raise TypeError(f"the lists of shards have different lengths: {counts}")
        if not 0 < counts["rows"] <= MOST_SHARDS:
            raise TypeError(f"there are {counts['rows']:,} shards, not 1 to {MOST_SHARDS:,}")
        return cls(columns, hashes)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the JSON object."""
        return {**{name: self._columns[name].tolist() for name in _LEAST}, "xxh3_128": [*self.hashes]}

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a numeric field of all entries."""
        return self._columns[name]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, shard: int) -> ShardEntry:
        counts = {name: int(self._columns[name][shard]) for name in _LEAST}
        name = shard_name(range(len(self))[shard], len(self))
        return ShardEntry(file=name, xxh3_128=self.hashes[shard], **counts)

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


def _hashes(values: object) -> list[str]:
    """Return a list of hashes of JSON; raise a TypeError for other values."""
    hashes: list[str] = values if isinstance(values, list) else [""]
    with contextlib.suppress(TypeError, ValueError):
        found = bytes.fromhex("".join(hashes))  # which skips spaces
        if all(len(digest) == _DIGITS for digest in hashes) and len(found) == len(hashes) * _DIGITS // 2:
            return hashes
    raise TypeError(f"shards.xxh3_128 is not a list of strings of {_DIGITS} hexadecimal digits")
