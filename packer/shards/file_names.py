"""Names of the files of a packed dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from packer.facts import REJECTED
from packer.stores import AnyPath, RemotePath

MANIFEST = "manifest.json"

WORK = ".packer"
"""Folder inside an output until it is complete and in place, and while a generation is appended to it."""

SHARDS = "manifest-shards.arrows"
"""File with the entries of the shards, if these are too many for the manifest; see `shard_table.py`.

The ending is that of Arrow streams, so that *.arrow are the shards only.
"""

LISTED = re.compile(r".*\.arrow|manifest-shards(-\d{5,})?\.arrows|rejected(-\d{5,})?\.jsonl")
"""Files that must be in the manifest if they are in the folder."""

HOLDOUT = "-holdout"
"""End of the name of the dataset with the documents that another one holds out."""

MOST_SHARDS = 10_000_000

_NOBODY = 65534  # owner of what root writes to a network file system that does not trust it


def holdout_of(out: AnyPath, *, is_holdout: bool = False) -> AnyPath:
    """Return the folder of the documents that a dataset holds out, next to it; of a holdout, that of the others."""
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


def all_shard_names(*ends: int) -> list[str]:
    """Return the file names of all shards in order, given the number of shards after each generation.

    With 2 and 3, the names are data-00000-of-00002.arrow, data-00001-of-00002.arrow and data-00002-of-00003.arrow.
    """
    return [shard_name(shard, end) for begin, end in pairwise((0, *ends)) for shard in range(begin, end)]


def table_name(generation: int) -> str:
    """Return the name of the table of shards that a dataset has since a generation, numbered from 0."""
    return SHARDS if generation == 0 else f"manifest-shards-{generation:05d}.arrows"


def rejected_name(generation: int) -> str:
    """Return the name of the list of the records that a generation, numbered from 0, has left out."""
    return REJECTED if generation == 0 else f"rejected-{generation:05d}.jsonl"


def names_listed(content: Mapping[str, Any]) -> list[str]:
    """Return the names of all other files of a packed dataset, from the content of its manifest.

    Raises a LookupError, TypeError, ValueError or AttributeError if the content is damaged.
    """
    ends = list(accumulate(generation["shards"] for generation in content["generations"]))
    if not 0 < ends[-1] <= MOST_SHARDS:
        raise ValueError(f"the generations have {ends[-1]} shards")
    return [*all_shard_names(*ends), *content["files"]]


def appending_folder(folder: AnyPath, generation: int) -> AnyPath:
    """Return the folder in which a generation with this number is made, to be appended to a packed dataset."""
    return folder / WORK / f"append-{generation:05d}"


def or_other_output(out: AnyPath) -> str:
    """Return the advice to choose another output; none for a generation, whose command has no such option."""
    return "" if out.parent.name == WORK else ", or choose another --output"


def is_appended_to(folder: AnyPath) -> bool:
    """Whether a generation was begun, but is not part of the packed dataset yet."""
    work = folder / WORK
    return work.is_dir() and any(path.name.startswith("append-") for path in work.iterdir())


def refuse_foreign_work(out: AnyPath, *, other_owners: bool = True) -> None:
    """Raise a PackerError if the work folder of an output, or anything in it, was not made by packer for this user.

    Unfinished files are removed and replaced there, and through a symbolic link that would happen elsewhere. With
    `other_owners`, files of other users are accepted.
    """
    if isinstance(out, RemotePath):
        return
    owners = {os.geteuid(), _NOBODY} if os.geteuid() == 0 else {os.geteuid()}
    folders = [out / WORK]
    _refuse_link(folders[0], folders[0].is_symlink())
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    _refuse_link(path, entry.is_symlink())
                    if not other_owners and entry.stat(follow_symlinks=False).st_uid not in owners:
                        raise PackerError(
                            f"{path} belongs to another user: remove {out / WORK}, and repeat the command"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
        except (FileNotFoundError, NotADirectoryError):  # there is none, or another process has just removed it
            continue


def _refuse_link(path: Path, is_link: bool) -> None:
    if is_link:
        raise PackerError(f"{path} is a symbolic link, which packer does not make in its work folders: remove it")
