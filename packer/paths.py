"""Paths as users write them: `~` is the home folder, and an output that is a link lies where the link leads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from packer.errors import PackerError

Given = TypeVar("Given")


def expanded(given: Given) -> Given:
    """A path with the home folder in place of a leading `~` or `~user`, of the type that it has.

    Shells leave the `~` in quotes and after `=` to the program. Lists are expanded item by item; what is no path, as a
    dataset in memory, stays as it is.
    """
    if isinstance(given, (list, tuple)):
        items: Any = type(given)(expanded(item) for item in given)
        return items  # type: ignore[no-any-return]
    if isinstance(given, (str, Path)) and str(given).startswith("~"):
        return type(given)(os.path.expanduser(str(given)))  # noqa: PTH111 (Path.expanduser raises for an unknown user)
    return given


def output_folder(path: str | Path) -> Path:
    """Where an output is built and swapped in: where the folder is, if the path is a link to it.

    Raises:
        PackerError: the path is a link that leads in a circle, or cannot be written down.
    """
    out = Path(expanded(path))
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise PackerError(f"{os.fsencode(out)!r}: the name is not UTF-8; choose another --output") from None
    if os.path.islink(out):  # noqa: PTH114 (Path.is_symlink raises for a name that is too long)
        out = Path(os.path.realpath(out))
    if os.path.islink(out):  # noqa: PTH114
        raise PackerError(f"{out} is a link that leads in a circle: choose another --output")
    return out


def tokenizer_name(path_or_id: str) -> str:
    """Name of a tokenizer without its path: "/data/qwen3/" -> "qwen3"; an id on the Hub stays as it is."""
    path = Path(expanded(path_or_id))
    return path.resolve().name if path.exists() else path_or_id
