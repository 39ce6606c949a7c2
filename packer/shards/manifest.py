"""The manifest, a JSON description of a packed dataset. It is written last and completes the dataset."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import ROW_DOCUMENT
from packer.errors import PackerError
from packer.json_records import ShardEntry, SourceIdentity, Totals, read_fields
from packer.options import PackOptions, byte_size
from packer.plain_text import html_table
from packer.shards.files import MANIFEST, MOST_SHARDS, all_shard_names, shard_name
from packer.shards.row_format import RowFormat
from packer.stores import AnyPath, RemotePath

FORMAT_VERSION = 2
"""Version of the format on disk."""

_FIELDS = {"options": PackOptions, "source": SourceIdentity, "totals": Totals, "files": Mapping[str, str]}

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a packed dataset. It has no time, host or absolute path, so equal packs have equal manifests.

    Different ways to tokenize text change only library versions and `documents_by_gigatoken`.

    The file contains `max_len`, and other options that differ from their defaults.
    """

    options: PackOptions
    source: SourceIdentity
    """Relative names, sizes, documents and tokens of the source files, and a hash of all lengths."""

    totals: Totals
    """Counts of documents, segments and rows, and of tokens packed, repeated, truncated and dropped."""

    shards: ShardTable
    """Entries of the shards in order, a sequence of `ShardEntry`. Row numbers continue across shards."""

    files: Mapping[str, str]
    """xxh3-128 of the other files of the dataset, by name."""

    path: AnyPath | None = field(default=None, compare=False)
    """Folder of the dataset, if `packer.pack` returned this manifest; otherwise None. Not stored in the file."""

    @property
    def rows(self) -> int:
        """Number of rows in all shards."""
        return self.totals.rows

    @property
    def max_len(self) -> int:
        """Number of places in a row, including padding."""
        return self.options.max_len

    @cached_property
    def row_format(self) -> RowFormat:
        """Columns and layout of the rows."""
        return RowFormat.of(self.options)

    def place(self, document: int, record: int | None = None) -> tuple[str, int | None]:
        """Return (file of a document, index of its record in the file), by the document's number in the source.

        If records make several documents, `record` is the value of `record_ids`, which counts the records of all files:
        the index in the first file. In other files the index is unknown, None, because only documents are counted.
        """
        number = int(np.searchsorted(self._file_ends, document, side="right"))
        if number == len(self._file_ends):
            raise PackerError(f"{MANIFEST} is damaged: document {document} is in none of its files; restore it")
        file = self.source.files[number]
        if self.options.numbers_records:
            return file.name, record if number == 0 else None
        first = int(self._file_ends[number]) - file.rows
        return file.name, None if ROW_DOCUMENT in self.source.columns else document - first

    @cached_property
    def _file_ends(self) -> NDArray[np.int64]:
        """Number of documents up to the end of each file."""
        return np.cumsum([file.rows for file in self.source.files])

    @property
    def efficiency(self) -> float:
        """Tokens / (rows * max_len), without padding."""
        return self.totals.efficiency

    def __repr__(self) -> str:
        totals, path = self.totals, "" if self.path is None else f"{str(self.path)!r}, "
        return (
            f"Manifest({path}rows={totals.rows:,}, max_len={self.max_len:,}, documents={totals.documents_packed:,}, "
            f"tokens={totals.tokens_packed:,}, padding={1 - self.efficiency:.2%})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return self.as_html("Manifest of a packed dataset" if self.path is None else f"Manifest of {self.path.name}")

    def as_html(self, title: str) -> str:
        """Return a title and a table of the main facts for a notebook."""
        totals = self.totals
        facts = [
            ("rows", f"{totals.rows:,} of {self.max_len:,} tokens, {self.efficiency:.2%} full"),
            ("documents", f"{totals.documents_packed:,} of {totals.documents:,}, {totals.segments:,} segments"),
            ("tokens", f"{totals.tokens_packed:,}, {totals.tokens_lost:,} truncated or dropped"),
            ("algorithm", self.options.algorithm),
            ("size", byte_size(int(self.shards.column("bytes").sum()))),
        ]
        if self.options.labels:
            facts.insert(3, ("trained tokens", f"{totals.tokens_trained:,}"))
        return html_table(title, facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file without its checksum."""
        return {
            "format_version": FORMAT_VERSION,
            "options": self.options.to_dict(),
            "source": self.source.to_dict(),
            "totals": self.totals.to_dict(),
            "shards": self.shards.to_dict(),
            "files": dict(self.files),
        }

    def to_bytes(self) -> bytes:
        """Return the bytes of manifest.json, including the checksum. Equal manifests give equal bytes."""
        content = self.to_dict()
        return json_of({**content, "checksum": checksum(content)})

    def small_files(self) -> dict[str, bytes]:
        """Return the contents, by name, of the small files that datasets.load_from_disk needs to open the folder."""
        return datasets_files(self.source, all_shard_names(len(self.shards)))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Manifest:
        """Create a manifest from the result of `to_dict`. Unknown fields, which later versions may add, are ignored.

        Raises:
            KeyError: a field is missing.
            TypeError: a value has the wrong type or is out of range, or a file has an unexpected name.
        """
        rest = {name: value for name, value in content.items() if name != "shards"}
        manifest = cls(**read_fields(rest, _FIELDS), shards=ShardTable.from_dict(content["shards"]))
        for name in manifest.files:
            if not _PLAIN_NAME.fullmatch(name):
                raise TypeError(f"a file is named {json.dumps(name)[:60]}, which is not a plain file name")
        return manifest


def is_sealed(text: bytes, content: Mapping[str, Any]) -> bool:
    """Whether `text` is exactly what `Manifest.to_bytes` returns for this content, and the checksum is right.

    The checksum does not cover whitespace, escapes and repeated keys.
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return text == json_of(content) and content.get("checksum") == checksum(rest)


def json_of(content: Mapping[str, Any]) -> bytes:
    """Return the JSON of a manifest, with one line for each value, and for each list of the shards."""
    lists = [f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in content["shards"].items()]
    parts = {name: json.dumps(value, indent=1).replace("\n", "\n ") for name, value in content.items()}
    parts["shards"] = "{\n" + ",\n".join(lists) + "\n }"
    return ("{\n" + ",\n".join(f" {json.dumps(name)}: {part}" for name, part in parts.items()) + "\n}\n").encode()


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of the rest of a manifest: xxh3-128 of its compact JSON with sorted keys."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def datasets_files(source: SourceIdentity, shard_files: list[str]) -> dict[str, bytes]:
    """Return the contents, by name, of the files that datasets.load_from_disk needs to open the folder."""
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shard_files],
        "_fingerprint": source.lengths_xxh3_128[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    return {"dataset_info.json": b"{}\n", "state.json": (json.dumps(state, indent=1) + "\n").encode()}


def is_packed(folder: AnyPath) -> bool:
    """Whether a folder has a manifest, even a damaged one; `read_manifest` checks it."""
    path = folder / MANIFEST
    return path.is_file() if isinstance(path, RemotePath) else os.path.lexists(path)


def dataset_key(manifest: Manifest) -> str:
    """Return a hash of the options, and of the sizes and hashes of the shards."""
    hashed = blake2b(json.dumps(manifest.options.to_dict(), sort_keys=True).encode(), digest_size=16)
    hashed.update(manifest.shards.column("bytes").tobytes())
    hashed.update("".join(manifest.shards.hashes).encode())
    return hashed.hexdigest()


_DIGITS = 32  # hexadecimal digits of a hash
_SUMMED = {
    "tokens_packed": "tokens",
    "tokens_trained": "trained",
    "segments_untrained": "untrained_segments",
    "tokens_trained_later": "trained_later",
}
"""Fields of `ShardEntry` by the names of totals that are their sums."""

_LEAST = {"rows": 1, "largest_id": -1} | dict.fromkeys((*_SUMMED.values(), "bytes"), 0)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ShardTable:
    """A sequence of `ShardEntry`, each of which is created on request. File names follow from numbers.

    It is stored as one list per field, because reading 100,000 JSON records would take seconds.
    """

    _columns: Mapping[str, NDArray[np.int64]]

    hashes: Sequence[str]
    """Hexadecimal xxh3-128 of each shard."""

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> ShardTable:
        """Return the table of entries, which must be in order. Their file names are ignored."""
        found = [*entries]
        return cls.from_dict({name: [getattr(entry, name) for entry in found] for name in (*_LEAST, "xxh3_128")})

    @classmethod
    def from_dict(cls, content: object) -> ShardTable:
        """Return the table of a JSON object with a list for each field. Unknown fields are ignored.

        Raises a KeyError for missing fields, and a TypeError for values of another type or out of range.
        """
        read_fields(content, {}, name="shards")
        assert isinstance(content, dict)
        columns = {name: _numbers(name, content[name], least) for name, least in _LEAST.items()}
        hashes = _hashes(content["xxh3_128"])
        counts = {**{name: len(column) for name, column in columns.items()}, "xxh3_128": len(hashes)}
        if len(set(counts.values())) > 1:
            raise TypeError(f"the lists of shards have different lengths: {counts}")
        if counts["rows"] > MOST_SHARDS:
            raise TypeError(f"there are {counts['rows']:,} shards, more than {MOST_SHARDS:,}")
        return cls(columns, hashes)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the JSON object."""
        return {**{name: self._columns[name].tolist() for name in _LEAST}, "xxh3_128": [*self.hashes]}

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a numeric field of all entries."""
        return self._columns[name]

    def totals(self) -> dict[str, int | None]:
        """Return the counts of all shards, by the names of totals in a manifest."""
        largest_id = int(self._columns["largest_id"].max())
        sums = {total: int(self._columns[name].sum()) for total, name in _SUMMED.items()}
        return {**sums, "largest_id": None if largest_id < 0 else largest_id}

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
    """Return a JSON list as an array. Raises a TypeError if it has other values, or values below `least`."""
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
    """Return a JSON list of hashes. Raises a TypeError for other values."""
    hashes: list[str] = values if isinstance(values, list) else [""]
    with contextlib.suppress(TypeError, ValueError):
        found = bytes.fromhex("".join(hashes))  # ignores spaces
        if all(len(digest) == _DIGITS for digest in hashes) and len(found) == len(hashes) * _DIGITS // 2:
            return hashes
    raise TypeError(f"shards.xxh3_128 is not a list of strings of {_DIGITS} hexadecimal digits")
