"""Where an output goes: its name, outside of its source, and on a disk with enough free space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from packer.errors import OptionError, PackerError
from packer.inputs.formats import ending_of
from packer.options import byte_size
from packer.output.unfinished_output import Output
from packer.sources.number_columns import ARRAY, is_array_file
from packer.sources.open_sources import SourceLike
from packer.stores import AnyPath, RemotePath, any_path, is_remote
from packer.stores.paths import PathList, split_configuration


def name_after(source: SourceLike, suffix: str, split: str | None) -> Path:
    """Name an output after the source, its configuration and its split, if any: rows.jsonl.gz -> rows-packed-4096.

    The output is next to the source. Its name follows from the path alone, so that a repeated command finds its
    output whatever other files there are: rows.jsonl and rows.parquet share a name, and the second needs another
    one. Raises a PackerError for several paths or a dataset in memory, which have no name.
    """
    if isinstance(source, PathList):
        raise OptionError(f"{source} have no common name: name the output with --output")
    if not isinstance(source, str | Path):
        raise PackerError("a dataset in memory has no name: name the output with output=...")
    if is_remote(source):
        return Path(name_after(any_path(source).name, suffix, split).name)  # in the current folder
    place, config = split_configuration(source)
    path = Path(place)
    if path.name in ("", ".."):
        path = path.resolve()
    ending = ARRAY if is_array_file(path) else ending_of(path.name)
    name = path.name if path.is_dir() else path.name.removesuffix(ending)
    folder = path.parent if path.exists() else Path()  # for a Hub id, the current folder
    return folder / "-".join(filter(None, (name, config, split, suffix)))


def refuse_inside(source: SourceLike, out: AnyPath) -> None:
    """Raise a PackerError for an output inside a source; a repeated command would read it as source files."""
    if isinstance(source, PathList):
        for each in source.paths:
            refuse_inside(each, out)
        return
    if isinstance(out, RemotePath):
        places = (str(source), split_configuration(str(source))[0]) if is_remote(source) else ()
        if any(f"{out}/".startswith(f"{any_path(place)}/") for place in places):
            raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")
        return
    if not isinstance(source, str | Path) or is_remote(source):
        return
    folder, _ = split_configuration(source)
    if Path(folder).is_dir() and Path(os.path.realpath(folder)) in Path(os.path.realpath(out)).parents:
        raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")


def check_writing(claimed: Output, rows: int, shard_size: int, workers: int) -> None:
    """Raise a PackerError if the rows still to be written do not fit on the disk.

    All rows have `rows` bytes, and `workers` shards are made at a time.
    """
    needed, free = claimed.disk_needed(rows, workers * shard_size), shutil.disk_usage(claimed.disk).free
    if needed <= free:
        return
    place, other = claimed.out, "choose an --output with more"
    if claimed.store.is_remote:
        place, other = claimed.disk.parent, "choose a TMPDIR with more"
    raise PackerError(
        f"{place}: the rows to be written need {byte_size(needed)}, {byte_size(free)} are free: free some space and "
        f"repeat the same command, or {other}"
    )
