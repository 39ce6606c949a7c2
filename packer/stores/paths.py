"""Paths as users write them: with `~`, with several paths for one source, or with a link as output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packer.errors import PackerError
from packer.stores import AnyPath, RemotePath, any_path, is_remote
from packer.stores.hub import at_address, download, names_hub

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PathList:
    """Several files and folders that are one source, in this order."""

    paths: tuple[str | Path, ...]

    def __str__(self) -> str:
        """Return the first path and the number of the others: "web.jsonl and 3 other paths"."""
        others = len(self.paths) - 1
        return f"{self.paths[0]} and {others} other path{'s' if others != 1 else ''}"


def located(value: Any) -> Any:
    """Return the folder of an object that packer returned, such as a manifest; return other values unchanged."""
    path = getattr(value, "path", None)
    return path if isinstance(path, (Path, RemotePath)) and not isinstance(value, (Path, RemotePath)) else value


def split_configuration(source: str | Path) -> tuple[str, str]:
    """Split "hub:main" into a path or Hub id and the name of a configuration, "" if there is none.

    A local path that exists is not split.
    """
    place, _, name = str(source).rpartition(":")
    is_named = place and name and "/" not in name and not os.path.lexists(source)
    return (place, name) if is_named else (str(source), "")


def expanded(value: Value) -> Value:
    """Replace a leading `~` or `~user` in a path, because shells do not expand it in quotes or after `=`.

    Replaces an address that begins with hf:// by an id or a downloaded path. Keeps the type otherwise. Expands lists
    item by item. Returns anything that is not a path, such as a dataset in memory, unchanged. Raises a PackerError for
    an empty path, which `Path` would read as the current folder.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(expanded(item) for item in value)
    if isinstance(value, PathList):
        return type(value)(expanded(value.paths))
    if isinstance(value, str) and not value:
        raise PackerError("a path is empty, as a variable is that was not set: name a file or folder")
    if isinstance(value, (str, Path)) and str(value).startswith("~"):
        return type(value)(os.path.expanduser(str(value)))  # noqa: PTH111 (Path.expanduser raises for an unknown user)
    if isinstance(value, (str, Path)):
        return type(value)(at_address(value))
    return value


def packed_path(packed: object) -> AnyPath:
    """Return the path of a packed dataset, given the path, or the manifest or summary that packer returned for it.

    A dataset on the Hub, named by its id or address, is downloaded.
    """
    path = expanded(located(packed))
    if not isinstance(path, (str, Path, RemotePath)):
        raise PackerError(f"a packed dataset is named by its folder, not by a {type(path).__name__}: give its path")
    return download(str(path), packed=True) if names_hub(path) else any_path(path)


def output_path(path: str | AnyPath) -> AnyPath:
    """Return the folder of an output, after following links.

    Raises a PackerError for circular links, names that are not UTF-8, and invalid addresses of stores.
    """
    if is_remote(path):
        return any_path(path)
    if "://" in str(path):
        raise PackerError(f"{path}: packer writes to folders, s3://, gs:// and az://; choose another --output")
    out = Path(expanded(str(path)))
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise PackerError(f"{os.fsencode(out)!r}: the name is not UTF-8; choose another --output") from None
    if os.path.islink(out):  # noqa: PTH114 (Path.is_symlink raises for a name that is too long)
        out = Path(os.path.realpath(out))
    if os.path.islink(out):  # noqa: PTH114
        raise PackerError(f"{out} is a link that leads in a circle: choose another --output")
    return out


def local_output(path: str | AnyPath, what: str) -> Path:
    """Return the folder of a local output. Raises a PackerError that names `what` for an address in object storage."""
    out = output_path(path)
    if isinstance(out, RemotePath):
        raise PackerError(f"{out} is in object storage, and {what} writes to local folders: copy the output there")
    return out


def tokenizer_name(path_or_id: str) -> str:
    """Return the name of a tokenizer without its path: "/data/qwen3/" -> "qwen3". An id on the Hub is unchanged."""
    path = Path(expanded(path_or_id))
    return path.resolve().name if path.exists() else path_or_id
