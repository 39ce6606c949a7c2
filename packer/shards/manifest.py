"""The manifest, a JSON description of a packed dataset. It is written last: a dataset with a manifest is complete."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from packer.errors import PackerError
from packer.facts import Generation, ShardEntry, SourceIdentity, Totals, joined_source, summed_totals
from packer.facts.json_record import read_fields, whole_number
from packer.options import PackOptions, byte_size
from packer.shards.file_names import MANIFEST, MOST_SHARDS, all_shard_names, rejected_name, table_name
from packer.shards.row_format import RowFormat
from packer.shards.shard_table import ShardTable
from packer.stores import AnyPath, RemotePath

READ_VERSIONS = FORMAT_VERSION, TREES_VERSION, HOLDOUT_VERSION, WIDE_VERSION = 5, 6, 7, 8
"""Versions of the format on disk: plain, with trees, with documents held out, and with several values per token.

1 to 4 were never released.
"""

MOST_IN_MANIFEST = 4096
"""Largest number of shards whose entries are in manifest.json itself; these take a quarter of a second to read."""

_FIELDS = {
    "options": PackOptions,
    "generations": tuple[Generation, ...],
    "shards": tuple[ShardEntry, ...],
    "files": Mapping[str, str],
}
_TABLE = _FIELDS | {"shards": whole_number(1, MOST_SHARDS)}

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartOfSet:
    """Position of a generation in its dataset: its number, first row and first document, each from 0."""

    generation: int = 0
    row: int = 0
    document: int = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a packed dataset. It has no time, host or absolute path, so that equal packs have equal manifests.

    Only library versions and `documents_by_gigatoken` may differ where text was tokenized in other ways.

    The file contains `max_len`, and other options that differ from their defaults.
    """

    options: PackOptions
    """Options of the pack."""

    generations: tuple[Generation, ...]
    """Source, totals and number of shards of the first pack, and of every append."""

    shards: ShardTable
    """Shards in order, a sequence of `ShardEntry`; the rows of each continue those of the one before."""

    files: Mapping[str, str]
    """xxh3-128 of the other files of the dataset, by name."""

    part: PartOfSet | None = None
    """Position of the rows in a dataset of several generations, if this describes one. Not stored in the file."""

    @cached_property
    def source(self) -> SourceIdentity:
        """Relative names, sizes, documents and tokens of the source files, and a hash of all lengths."""
        return joined_source(self.generations)

    @cached_property
    def totals(self) -> Totals:
        """Counts of documents, segments and rows, and of tokens packed, repeated, truncated and dropped."""
        return summed_totals(self.generations, self.options.max_len)

    @property
    def format_version(self) -> int:
        """Version of the format on disk."""
        if self.source.widths and not self.options.index_only:
            return WIDE_VERSION
        if self.options.holdout is not None:
            return HOLDOUT_VERSION
        return TREES_VERSION if self.options.share_prefixes else FORMAT_VERSION

    @property
    def shard_ends(self) -> tuple[int, ...]:
        """Number of shards that the dataset had after each generation."""
        return tuple(accumulate(generation.shards for generation in self.generations))

    @property
    def has_table(self) -> bool:
        """Whether the shards are too many for the manifest, so that a file of its own has their entries."""
        return len(self.shards) > MOST_IN_MANIFEST

    @property
    def table_name(self) -> str:
        """Name of the file with the entries of the shards, if there is one."""
        return table_name(len(self.generations) - 1)

    @property
    def rejected_name(self) -> str:
        """Name of the list of rejected records, if there is one."""
        return rejected_name(self.first.generation)

    @property
    def first(self) -> PartOfSet:
        """First row and document; above 0 only if this describes a later generation of a dataset."""
        return self.part or PartOfSet()

    @property
    def rows(self) -> int:
        """Number of rows in all shards."""
        return self.totals.rows

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
            f"Manifest(rows={totals.rows}, max_len={self.max_len}, documents={totals.documents_packed}, "
            f"tokens={totals.tokens_packed}, efficiency={self.efficiency:.6f})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from packer.figures.charts import notebook_facts

        return notebook_facts("Manifest of a packed dataset", self.facts())

    def facts(self) -> list[tuple[str, str]]:
        """Return the main facts as (name, value in words)."""
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
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file without its checksum, and source and totals of all generations together."""
        return {**self._content(), "source": self.source.to_dict(), "totals": self.totals.to_dict()}

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": self.format_version,
            "options": self.options.to_dict(),
            "generations": [generation.to_dict() for generation in self.generations],
            "shards": len(self.shards) if self.has_table else [shard.to_dict() for shard in self.shards],
            "files": dict(self.files),
        }

    def to_bytes(self) -> bytes:
        """Return the bytes of manifest.json, checksum included; equal manifests give equal bytes."""
        content = self._content()
        return _to_bytes({**content, "checksum": checksum(content)})

    def small_files(self) -> dict[str, bytes]:
        """Return the content, by name, of the small files of the dataset that depend on its shards and its source."""
        table = {self.table_name: self.shards.to_bytes()} if self.has_table else {}
        return datasets_files(self.source, all_shard_names(*self.shard_ends)) | table

    @classmethod
    def from_dict(
        cls, content: Mapping[str, Any], read_table: Callable[[str, str, Sequence[int]], ShardTable] | None = None
    ) -> Manifest:
        """Create a manifest from what `to_dict` returns; unknown fields, which later versions may add, are ignored.

        Args:
            content: content of manifest.json.
            read_table: function that reads the entries of the shards, if the content has only their number, given the
                name and hash of their file, and the number of shards after each generation.

        Raises:
            KeyError: a field is missing.
            TypeError: a field holds a value of the wrong type or out of range, or a file has an unexpected name.
        """
        found = read_fields(content, _TABLE if type(content.get("shards")) is int else _FIELDS)
        listed, files = found.pop("shards"), found["files"]
        ends = tuple(accumulate(generation.shards for generation in found["generations"]))
        if isinstance(listed, tuple):
            count, table = len(listed), ShardTable.of(listed, ends)
        else:
            assert read_table is not None
            name = table_name(len(ends) - 1)
            count, table = listed, read_table(name, files[name], ends)
        manifest = cls(**found, shards=table)
        manifest._check_generations(count)
        for name in files:
            if not _PLAIN_NAME.fullmatch(name):
                raise TypeError(f"a file is named {json.dumps(name)[:60]}, which is not a plain file name")
        if len(table) != count:
            raise TypeError(f"there are {count:,} shards, and {len(table):,} in {manifest.table_name}")
        shards = listed if isinstance(listed, tuple) else ()  # a table has no names
        for number, (shard, name) in enumerate(zip(shards, all_shard_names(*ends), strict=False)):
            if shard.file != name:
                raise TypeError(f"shard {number} is named {json.dumps(shard.file)[:60]}, not {name}")
        return manifest

    def _check_generations(self, listed: int) -> None:
        """Check that generations agree with the options and with each other, and have the shards that are listed."""
        if not self.generations:
            raise TypeError("there are no generations")
        counted = sum(generation.shards for generation in self.generations)
        if listed != counted:
            raise TypeError(f"the generations have {counted:,} shards, and the manifest {listed:,}")
        skips = self.options.on_error == "skip"
        for number, generation in enumerate(self.generations):
            source, totals = generation.source, generation.totals
            if totals.groups is not None and self.options.group_by is None:
                raise TypeError("there is totals.groups, but no options.group_by")
            has_list = rejected_name(number) in self.files
            if skips != (totals.documents_rejected is not None) or skips != has_list:
                raise TypeError(
                    f"options.on_error is {self.options.on_error}, which contradicts totals.documents_rejected or "
                    f"whether there is a {rejected_name(0)}"
                )
            if source.text is not None and self.options.tokenizer is None:
                raise TypeError("the source is text, but there is no options.tokenizer")


def is_sealed(text: bytes, content: Mapping[str, Any]) -> bool:
    """Whether `text` is exactly what `Manifest.to_bytes` writes for this content, and the checksum is right.

    The checksum does not cover whitespace, escapes and repeated keys.
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return text == _to_bytes(content) and content.get("checksum") == checksum(rest)


def _to_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest without its checksum: xxh3-128 of its compact JSON with sorted keys."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


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


# generations


def parts_of(manifest: Manifest) -> tuple[Manifest, ...]:
    """Return the description of each generation as if it were a dataset; `manifest` itself if there is only one."""
    if len(manifest.generations) == 1:
        return (manifest,)
    parts, first = [], PartOfSet()
    begins = (0, *manifest.shard_ends)
    for number, (generation, begin) in enumerate(zip(manifest.generations, begins, strict=False)):
        first = replace(first, generation=number)
        parts.append(
            replace(
                manifest,
                generations=(generation,),
                shards=manifest.shards[begin : begin + generation.shards],
                part=first,
            )
        )
        first = PartOfSet(row=first.row + generation.totals.rows, document=first.document + generation.source.documents)
    return tuple(parts)


def keys_of(manifest: Manifest) -> list[str]:
    """Return a hash of each generation: of the options, and the names, sizes and hashes of its shards.

    Those of the first generations stay the same when others are appended.
    """
    options = json.dumps(manifest.options.to_dict(), sort_keys=True).encode()
    sizes, hashes = manifest.shards.column("bytes"), manifest.shards.hashes
    keys, begin = [], 0
    for end in manifest.shard_ends:
        hashed = blake2b(options, digest_size=16)
        hashed.update(json.dumps([begin, end]).encode())  # from which the names of the shards follow
        hashed.update(sizes[begin:end].tobytes())
        hashed.update(hashes[begin:end].tobytes())
        keys.append(hashed.hexdigest())
        begin = end
    return keys


def in_generation(part: Manifest, sentence: str, *, source: object = None) -> str:
    """Return a sentence about a part of a dataset, with the number of its generation if there are several.

    `source` is the path or paths that the generation was compared with, if it was.
    """
    if part.part is None:
        return sentence
    at, compared = part.part, "" if source is None else f", compared with {source}"
    return f"generation {at.generation}, counted from row {at.row:,} and document {at.document:,}{compared}: {sentence}"


def documents_of_shard(manifest: Manifest, shard: int) -> range:
    """Return the numbers that the documents in a shard of a single source may have."""
    number = bisect_right(manifest.shard_ends, shard)
    before = sum(generation.source.documents for generation in manifest.generations[:number])
    first = manifest.first.document + before
    return range(first, first + manifest.generations[number].source.documents)


def first_generations(manifest: Manifest, generations: int | None) -> Manifest:
    """Return the description of the first generations (None: all), as it was before the others were appended.

    Raises a PackerError if there are not so many.
    """
    count = len(manifest.generations)
    if generations is None or generations == count:
        return manifest
    if not 1 <= generations <= count:
        raise PackerError(f"generations is {generations}: the dataset has {count}, choose 1 to {count}")
    chosen = manifest.generations[:generations]
    return replace(manifest, generations=chosen, shards=manifest.shards[: manifest.shard_ends[generations - 1]])


def with_generation(before: Manifest | None, added: Manifest) -> tuple[Manifest, Mapping[str, bytes]]:
    """Return the description of a dataset (None: empty) with one more generation, and the content of its small files.

    `added` is a dataset with the same options whose `files` are those that only it has.
    """
    from xxhash import xxh3_128_hexdigest

    generations = (*(before.generations if before else ()), *added.generations)
    ends = tuple(accumulate(generation.shards for generation in generations))
    shards = ShardTable.of([*(before.shards if before else ()), *added.shards], ends)
    grown = replace(added, generations=generations, shards=shards)
    files = grown.small_files()
    hashes = {name: xxh3_128_hexdigest(content) for name, content in files.items()}
    others = {**(before.files if before else {}), **added.files}
    rest = {name: digest for name, digest in others.items() if name not in hashes}
    return replace(grown, files={**hashes, **rest}), files
