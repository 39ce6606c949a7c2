"""The manifest, a JSON description of a packed dataset. It is written last: a dataset with a manifest is complete."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packer.facts import REJECTED, Facts, SourceIdentity, Totals, kinds_of
from packer.facts.kinds import EVERY, TEXT, Count, Positive, check_fields, whole_number
from packer.options import PackOptions, byte_size
from packer.shards.option_kinds import OPTIONS
from packer.shards.row_format import RowFormat
from packer.stores import AnyPath, RemotePath

MANIFEST = "manifest.json"

SHARDS = "manifest-shards.arrows"
"""File with the entries of the shards, if these are too many for the manifest; see `shard_table.py`.

The ending is that of Arrow streams, so that *.arrow are the shards only.
"""

IN_MANIFEST, IN_TABLE, INDEX_ONLY = FORMAT_VERSIONS = 1, 2, 3
"""Format versions: the entries of the shards are in the manifest, or in a table beside it; in either place, but the
shards have no tokens. Nothing else differs.
"""

_MOST_SHARDS = 10_000_000

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry(Facts):
    """Entry of a shard in the manifest."""

    file: str
    """File name, in the folder of the manifest."""

    rows: Positive
    """Number of rows."""

    tokens: Count
    """Number of tokens, without padding."""

    trained: Count
    """Labels that are not -100; 0 if no labels are written."""

    untrained_segments: Count
    """Segments without a trained token; 0 if no labels are written."""

    bytes: Count
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


_FIELDS = {
    "options": OPTIONS,
    "source": kinds_of(SourceIdentity),
    "totals": kinds_of(Totals),
    "shards": [kinds_of(ShardEntry)],
    "files": {EVERY: TEXT},
}
_FIELDS_BESIDE_TABLE = _FIELDS | {"shards": whole_number(1, _MOST_SHARDS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Description of a packed dataset. It has no time, host or absolute path, so that equal packs have equal manifests.

    The file contains `max_len`, and other options that differ from their defaults.
    """

    options: PackOptions
    """Options of the pack."""

    source: SourceIdentity
    """Relative names, sizes, documents and tokens of the source files, and a hash of all lengths."""

    totals: Totals
    """Counts of documents, segments and rows, and of tokens packed, repeated, truncated and dropped."""

    shards: Sequence[ShardEntry]
    """Shards in order; the rows of each continue those of the one before. A tuple, or a `ShardTable` of very many."""

    files: Mapping[str, str]
    """xxh3-128 of the small files beside the shards, by name."""

    @property
    def format_version(self) -> int:
        """Version of the format on disk."""
        if self.options.index_only:
            return INDEX_ONLY
        return IN_MANIFEST if isinstance(self.shards, tuple) else IN_TABLE

    @property
    def packs(self) -> int:
        """Number of rows in all shards."""
        return self.totals.packs

    @property
    def max_len(self) -> int:
        """Length of a row, padding included."""
        return self.options.max_len

    @property
    def row_format(self) -> RowFormat:
        """Columns and layout of the rows."""
        return RowFormat.of(self.options)

    @property
    def efficiency(self) -> float:
        """Tokens / (rows * max_len), padding not counted as tokens."""
        return self.totals.efficiency

    def __repr__(self) -> str:
        totals = self.totals
        return (
            f"Manifest(packs={totals.packs}, max_len={self.max_len}, documents={totals.documents_packed}, "
            f"tokens={totals.tokens_packed}, efficiency={self.efficiency:.6f})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from packer.plots.notebook_facts import notebook_facts

        return notebook_facts("Manifest of a packed dataset", self.facts())

    def facts(self) -> list[tuple[str, str]]:
        """Return the main facts as (name, value in words)."""
        totals = self.totals
        facts = [
            ("rows", f"{totals.packs:,} of {self.max_len:,} tokens, {self.efficiency:.2%} full"),
            ("documents", f"{totals.documents_packed:,} of {totals.documents:,}, {totals.segments:,} segments"),
            ("tokens", f"{totals.tokens_packed:,}, {totals.tokens_lost:,} truncated or dropped"),
            ("algorithm", self.options.algorithm),
            ("size", byte_size(sum(shard.bytes for shard in self.shards))),
        ]
        if self.options.labels:
            facts.insert(3, ("trained tokens", f"{totals.tokens_trained:,}"))
        if self.options.weights:
            facts.append(("sources", ", ".join(part.name for part in self.source.mixture)))
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file without its checksum."""
        in_manifest = isinstance(self.shards, tuple)
        return {
            "format_version": self.format_version,
            "options": self.options.to_dict(),
            "source": self.source.to_dict(),
            "totals": self.totals.to_dict(),
            "shards": [shard.to_dict() for shard in self.shards] if in_manifest else len(self.shards),
            "files": dict(self.files),
        }

    def to_bytes(self) -> bytes:
        """Return the bytes of manifest.json, checksum included; equal manifests give equal bytes."""
        content = self.to_dict()
        return _to_bytes({**content, "checksum": checksum(content)})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], table: Sequence[ShardEntry] | None = None) -> Manifest:
        """Create a manifest from what `to_dict` returns; unknown fields, which later versions may add, are ignored.

        Args:
            content: content of manifest.json.
            table: entries of the shards, if the content has only their number.

        Raises:
            KeyError: a field is missing.
            TypeError: a field holds a value of the wrong type or out of range, or a file has an unexpected name.
        """
        check_fields(content, _FIELDS if table is None else _FIELDS_BESIDE_TABLE)
        _check_together(content)
        _check_names(content)
        if table is not None and len(table) != content["shards"]:
            raise TypeError(f"there are {content['shards']:,} shards, and {len(table):,} in {SHARDS}")
        return cls(
            options=PackOptions.from_dict(content["options"]),
            source=SourceIdentity.from_dict(content["source"]),
            totals=Totals.from_dict(content["totals"]),
            shards=table if table is not None else tuple(map(ShardEntry.from_dict, content["shards"])),
            files=content["files"],
        )


def _check_together(content: Mapping[str, Any]) -> None:
    """Check that the source and the totals agree with the options.

    Raises:
        TypeError: they contradict each other.
    """
    options, source = content["options"], content["source"]
    if bool(options.get("index_only")) != (content["format_version"] == INDEX_ONLY):
        raise TypeError(f"options.index_only contradicts the format version {content['format_version']}")
    weights, mixture = options.get("weights", []), source.get("mixture", [])
    if len(weights) != len(mixture):
        raise TypeError(f"options.weights has {len(weights)} values, source.mixture has {len(mixture)}")
    if "groups" in content["totals"] and options.get("group_by") is None:
        raise TypeError("there is totals.groups, but no options.group_by")
    skips, reasons = options.get("on_error") == "skip", content["totals"].get("documents_rejected")
    if skips != (reasons is not None) or skips != (REJECTED in content["files"]):
        raise TypeError(
            f"options.on_error is {options.get('on_error', 'error')}, which contradicts totals.documents_rejected or "
            f"whether there is a {REJECTED}"
        )
    if any("text" in part for part in (source, *mixture)) and options.get("tokenizer") is None:
        raise TypeError("the source is text, but there is no options.tokenizer")


def _check_names(content: Mapping[str, Any]) -> None:
    """Check that every file name has the expected form, so that none points outside the folder.

    Raises:
        TypeError: a name has another form, or there are no shards.
    """
    shards = content["shards"]
    if not shards:
        raise TypeError("there are no shards")
    for number, shard in enumerate(shards if isinstance(shards, list) else ()):
        expected = shard_name(number, len(shards))
        if shard["file"] != expected:
            raise TypeError(f"shard {number} is named {json.dumps(shard['file'])[:60]}, not {expected}")
    for name in content["files"]:
        if not _PLAIN_NAME.fullmatch(name):
            raise TypeError(f"a file is named {json.dumps(name)[:60]}, which is not a plain file name")


def is_canonical(text: bytes, content: Mapping[str, Any]) -> bool:
    """Whether `text` is exactly what `Manifest.to_bytes` writes for this content, checksum included."""
    return text == _to_bytes(content)


def _to_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest without its checksum: xxh3-128 of its compact JSON with sorted keys."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def shard_name(shard: int, shards: int) -> str:
    """Return the file name of a shard, as `datasets` has it: data-00000-of-00012.arrow.

    Names sort like numbers, also of more than 100,000 shards: data-099999-of-234000.arrow.
    """
    return f"data-{shard:0{max(5, len(str(shards - 1)))}d}-of-{shards:05d}.arrow"


def table_digest(content: Mapping[str, Any]) -> str | None:
    """Return the hash of the file with the entries of the shards; None if these are in the manifest.

    Raises:
        KeyError, TypeError: the content has no such hash, or is damaged.
    """
    if content["format_version"] == IN_MANIFEST or isinstance(content.get("shards"), list):
        return None
    check_fields(content, _FIELDS_BESIDE_TABLE)
    digest: str = content["files"][SHARDS]
    return digest


def names_listed(content: Mapping[str, Any]) -> list[str]:
    """Return the names of all other files of a packed dataset, from the content of its manifest.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the content is damaged.
    """
    shards = content["shards"]
    if not isinstance(shards, list) and not 0 < shards <= _MOST_SHARDS:
        raise ValueError(f"shards is {shards}")
    names = [shard["file"] for shard in shards] if isinstance(shards, list) else all_shard_names(shards)
    return [*names, *content["files"]]


def all_shard_names(shards: int) -> list[str]:
    """Return the file names of all shards in order."""
    return [shard_name(shard, shards) for shard in range(shards)]


def datasets_files(source: SourceIdentity, shard_files: list[str]) -> dict[str, bytes]:
    """Return the content, by name, of the files with which datasets.load_from_disk opens the folder."""
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
    """Whether a folder has a manifest, intact or not; `read_manifest` checks it."""
    path = folder / MANIFEST
    return path.is_file() if isinstance(path, RemotePath) else os.path.lexists(path)
