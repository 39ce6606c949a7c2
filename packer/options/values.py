"""Values of options as users give them, converted to those that are stored."""

from __future__ import annotations

from pathlib import Path

from packer.options.sizes import parse_size


def as_bytes(size: int | str) -> int:
    """A size in bytes: "512MB" -> 512,000,000."""
    return parse_size(size) if isinstance(size, str) else size


def as_path(path: str | Path | None) -> str | None:
    """A path as a string."""
    return str(path) if isinstance(path, Path) else path


def as_token_columns(columns: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """The columns to add: "labels,position_ids" -> ("position_ids",), because labels are written anyway."""
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns
    return tuple(dict.fromkeys(name for name in names if name not in ("", "labels")))
