"""The manifest: what a packed dataset is made of. Written last, it is the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packer.shards.columns import RowFormat

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

_LARGEST = 2**63 - 1
_READ: dict[str, dict[str, type]] = {
    "options": {
        **{"max_len": int, "pad_id": int, "labels": bool, "position_ids": bool, "long": str, "algorithm": str},
        **{"split": object, "input_column": str, "labels_column": str},
    },
    "source": {"files": list, "lengths_xxh3_128": str},
    "totals": {
        **{"documents": int, "documents_dropped": dict, "packs": int, "lower_bound": int, "efficiency": float},
        **{
            "tokens": int,
            "tokens_packed": int,
            "tokens_trained": int,
            "tokens_repeated": int,
            "tokens_truncated": int,
            "tokens_dropped": dict,
        },
    },
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
    def row_format(self) -> RowFormat:
        """What the rows look like."""
        return RowFormat.of(self.options)

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
        return _to_bytes({**content, "checksum": checksum(content)})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Manifest:
        """Read what `to_dict` gives; unknown keys are ignored, as later minor additions are.

        Raises:
            KeyError, TypeError: a key is missing, or a value of the wrong kind or size.
        """
        for part, kinds in _READ.items():
            _check(content[part], kinds)
        for name in ("documents_dropped", "tokens_dropped"):
            _check(content["totals"][name], dict.fromkeys(content["totals"][name], int))
        for file in content["source"]["files"]:
            _check(file, {"name": str, "bytes": int})
        _check(content["files"], dict.fromkeys(content["files"], str))
        _check(content["options"], {name: int for name in ("align", "overlap") if name in content["options"]})
        if not 0 < content["options"]["max_len"] < 2**31:
            raise TypeError(f"'max_len' is {content['options']['max_len']}")
        if content["options"].get("align", 1) < 1:
            raise TypeError(f"'align' is {content['options']['align']}")
        kinds = {"file": str, "rows": int, "tokens": int, "trained": int, "untrained_segments": int}
        kinds |= {"bytes": int, "xxh3_128": str}
        for shard in content["shards"]:
            _check(shard, kinds)
        shards = tuple(ShardEntry(**{name: shard[name] for name in kinds}) for shard in content["shards"])
        return cls(
            options=content["options"],
            source=content["source"],
            totals=content["totals"],
            shards=shards,
            files=content["files"],
        )


def _check(values: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise unless these values are there and of these kinds; whole numbers from 0, as far as int64 goes."""
    for name, kind in kinds.items():
        value = values[name]
        is_kind = type(value) is int and 0 <= value <= _LARGEST if kind is int else isinstance(value, kind)
        if not is_kind:
            raise TypeError(f"'{name}' is {json.dumps(value)[:40]}")


def is_canonical(text: bytes, content: Mapping[str, Any]) -> bool:
    """Whether these bytes are those that `Manifest.to_bytes` writes for this content, checksum included."""
    return text == _to_bytes(content)


def _to_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


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
