"""Names of the files of a packed dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from packer.stores import AnyPath, RemotePath

MANIFEST = "manifest.json"

EXPORT_RECORD = "_export.json"
"""Record of an export. Readers of Parquet folders ignore names that begin with an underscore."""

WORK = ".packer"
"""Folder inside an output until it is complete and in place."""

LISTED = re.compile(r".*\.arrow|rejected\.jsonl")
"""Files that must be in the manifest if they are in the folder."""

HOLDOUT = "-holdout"
"""End of the name of the dataset with the documents that another one holds out."""

MOST_SHARDS = 10_000_000


def holdout_of(out: AnyPath, *, is_holdout: bool = False) -> AnyPath:
    """Return the folder next to a dataset with its held-out documents; with `is_holdout`, the reverse."""
    if isinstance(out, Path) and out.name in ("", ".."):
        out = out.resolve()
    if out.parent == out:
        raise PackerError(f"{out} has no folder next to it for documents held out: choose an --output inside of it")
    return out.parent / (out.name.removesuffix(HOLDOUT) if is_holdout else f"{out.name}{HOLDOUT}")


def shard_name(shard: int, shards: int) -> str:
    """Return the file name of a shard, as `datasets` has it: data-00000-of-00012.arrow.

    Names sort like numbers, also of more than 100,000 shards: data-099999-of-234000.arrow.
    """
    return f"data-{shard:0{max(5, len(str(shards - 1)))}d}-of-{shards:05d}.arrow"


def shard_number(name: str) -> int:
    """Return the number of a shard from its file name."""
    return int(name.split("-")[1])


def all_shard_names(shards: int) -> list[str]:
    """Return the file names of all shards in order."""
    return [shard_name(shard, shards) for shard in range(shards)]


def names_listed(content: Mapping[str, Any]) -> list[str]:
    """Return the names of all other files of a packed dataset, from the content of its manifest.

    Raises a LookupError, TypeError, ValueError or AttributeError if the content is damaged.
    """
    return [*all_shard_names(len(content["shards"]["rows"])), *content["files"]]


def refuse_foreign_work(out: AnyPath) -> None:
    """Raise a PackerError if the work folder of an output is a symbolic link, or holds one.

    Unfinished files are removed and replaced there, and through a link that would happen elsewhere.
    """
    if isinstance(out, RemotePath):
        return
    folders = [out / WORK]
    _refuse_link(folders[0], folders[0].is_symlink())
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    _refuse_link(Path(entry.path), entry.is_symlink())
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        except (FileNotFoundError, NotADirectoryError):  # there is none, or another process has just removed it
            continue


def _refuse_link(path: Path, is_link: bool) -> None:
    if is_link:
        raise PackerError(f"{path} is a symbolic link, which packer does not make in its work folders: remove it")
