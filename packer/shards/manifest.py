"""The manifest: what a packed dataset is made of. Written last, it is the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

_READ = {
    "options": ("max_len", "pad_id", "labels", "position_ids", "long", "split", "input_column", "labels_column"),
    "source": ("files", "lengths_xxh3_128"),
    "totals": (
        *("documents", "documents_dropped", "packs", "lower_bound", "efficiency"),
        *("tokens", "tokens_packed", "tokens_trained", "tokens_repeated", "tokens_truncated", "tokens_dropped"),
    ),
}  # what readers ask for; a manifest without it is damaged


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """What the manifest says of one shard."""

    file: str
    """File name, in the folder of the manifest."""

    rows: int
    """Packs in it."""

    tokens: int
    """Real tokens in it, padding not counted."""

    trained: int
    """Labels in it that are not -100; 0 where no labels are written."""

    untrained_segments: int
    """Segments in it of which nothing is trained; 0 where no labels are written."""

    bytes: int
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a packed dataset is made of: no time, host or absolute path, so that equal packs have equal manifests."""

    options: Mapping[str, Any]
    """Every option that shapes the bytes."""

    source: Mapping[str, Any]
    """The source's identity: relative file names, sizes, rows, tokens, and a hash of all lengths."""

    totals: Mapping[str, Any]
    """Documents, segments, packs, efficiency, lower bound; every token as packed, repeated, truncated or dropped."""

    shards: tuple[ShardEntry, ...]
    """The shards in order; their rows follow each other."""

    files: Mapping[str, str]
    """xxh3-128 of the small files beside the shards, by name."""

    @property
    def packs(self) -> int:
        """Rows in all shards."""
        return int(self.totals["packs"])

    @property
    def max_len(self) -> int:
        """Tokens and padding of a row."""
        return int(self.options["max_len"])

    @property
    def efficiency(self) -> float:
        """Real tokens / (packs * max_len)."""
        return float(self.totals["efficiency"])

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as it stands in the file, checksum apart."""
        return {
            "format_version": FORMAT_VERSION,
            "options": dict(self.options),
            "source": dict(self.source),
            "totals": dict(self.totals),
            "shards": [asdict(shard) for shard in self.shards],
            "files": dict(self.files),
        }

    def to_bytes(self) -> bytes:
        """Return the bytes of manifest.json: the same for the same content, with a checksum of itself."""
        content = self.to_dict()
        return (json.dumps({**content, "checksum": checksum(content)}, indent=1) + "\n").encode()

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Manifest:
        """Read what `to_dict` gives; unknown keys are ignored, as later minor additions are.

        Raises:
            KeyError, TypeError: a key is missing or of the wrong kind.
        """
        for part, names in _READ.items():
            for name in names:
                content[part][name]
        for file in content["source"]["files"]:
            file["name"], file["bytes"]
        shards = tuple(
            ShardEntry(**{field.name: shard[field.name] for field in fields(ShardEntry)}) for shard in content["shards"]
        )
        return cls(
            options=content["options"],
            source=content["source"],
            totals=content["totals"],
            shards=shards,
            files=content["files"],
        )


def checksum(content: Mapping[str, Any]) -> str:
    """Hash a manifest's content (without its checksum): xxh3-128 of its compact JSON with sorted keys."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def shard_name(shard: int, shards: int) -> str:
    """File name of a shard, as `datasets` names them: data-00000-of-00012.arrow."""
    return f"data-{shard:05d}-of-{shards:05d}.arrow"


def datasets_files(manifest_source: Mapping[str, Any], shard_files: list[str]) -> dict[str, bytes]:
    """Content of the files that make datasets.load_from_disk open the folder, by name."""
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shard_files],
        "_fingerprint": str(manifest_source["lengths_xxh3_128"])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    return {"dataset_info.json": b"{}\n", "state.json": (json.dumps(state, indent=1) + "\n").encode()}


def is_packed(folder: Path) -> bool:
    """Whether a folder is a complete packed dataset, by its manifest."""
    return (folder / MANIFEST).is_file()
