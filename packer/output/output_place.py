"""Where an output goes: its name, outside of its source, and on a disk with enough free space."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from packer.errors import OptionError, PackerError
from packer.inputs.formats import ending_of
from packer.options import RowOptions, byte_size
from packer.output.unfinished_output import Output
from packer.paths import PathList
from packer.shards.row_format import RowFormat
from packer.sources.decoded_pieces import spill_size
from packer.sources.number_columns import ARRAY, is_array_file
from packer.sources.open_sources import SourceLike
from packer.sources.source import Source
from packer.stores import AnyPath, RemotePath, any_path, is_remote

_WORTH_LOGGING = 0.25  # share of the free space
_CERTAIN_SHARE = 0.8  # share of a size estimated from a sample that is needed for certain

log = logging.getLogger(__name__)


def name_after(source: SourceLike, suffix: str, split: str | None) -> Path:
    """Name an output after the source and, if there is one, its split: rows.jsonl.gz -> rows-packed-4096.

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
    path = Path(source)
    if path.name in ("", ".."):
        path = path.resolve()
    ending = ARRAY if is_array_file(path) else ending_of(path.name)
    name = path.name if path.is_dir() else path.name.removesuffix(ending)
    folder = path.parent if path.exists() else Path()  # for a Hub id, the current folder
    return folder / "-".join(filter(None, (name, split, suffix)))


def refuse_inside(source: SourceLike, out: AnyPath) -> None:
    """Raise a PackerError for an output inside a source; a repeated command would read it as source files."""
    if isinstance(source, PathList):
        for each in source.paths:
            refuse_inside(each, out)
        return
    if isinstance(out, RemotePath):
        if is_remote(source) and f"{out}/".startswith(f"{any_path(str(source))}/"):
            raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")
        return
    if not isinstance(source, str | Path) or is_remote(source) or not Path(source).is_dir():
        return
    if Path(os.path.realpath(source)) in Path(os.path.realpath(out)).parents:
        raise PackerError(f"{out} is inside the source {source}: choose an --output next to it")


def check_decoding(claimed: Output, source: Source, options: RowOptions, workers: int) -> None:
    """Check that the decoded source and the rows fit, and log the space they need if it is a quarter of what is free.

    This process writes `workers` shards at a time.
    """
    spill, free = spill_size(source, claimed.spill), _free(claimed)
    if not spill.bytes:
        return
    rows = spill.tokens * RowFormat.of(options).row_bytes // options.max_len
    needs = f"needs {'about' if spill.sampled else 'up to'} {byte_size(spill.bytes)}"
    if spill.bytes + rows >= _WORTH_LOGGING * free:
        log.info(
            f"decoding {needs} in addition to the output until it is complete, the rows about {byte_size(rows)}; "
            f"{byte_size(free)} are free"
        )
    # If long documents are truncated or dropped, the size of the rows is not known before decoding.
    kept = claimed.disk_needed(rows, workers * options.shard_size)
    kept = kept if options.long in ("split", "error") else 0
    least = (spill.bytes + kept) * (_CERTAIN_SHARE if spill.sampled else 1)
    _check_room(claimed, least, f"the decoded source {needs} and the rows about {byte_size(rows)}")


def check_tokenizing(claimed: Output, source: Source) -> None:
    """Check that the tokens fit, and log the space still needed, if significant."""
    size, free = spill_size(source, claimed.spill), _free(claimed)
    needed = f"{'about' if size.sampled else 'up to'} {byte_size(size.bytes)}"
    if size.bytes >= _WORTH_LOGGING * free:
        log.info(f"tokenizing needs {needed} for the output; {byte_size(free)} are free")
    _check_room(claimed, size.bytes * (_CERTAIN_SHARE if size.sampled else 1), f"the tokens need {needed}")


def check_writing(claimed: Output, rows: int, shard_size: int, workers: int) -> None:
    """Check that the rows still to be written fit; all have `rows` bytes, and `workers` shards are made at a time."""
    needed = claimed.disk_needed(rows, workers * shard_size)
    remedy = "free some space and repeat the same command"
    _check_room(claimed, needed, f"the rows to be written need {byte_size(needed)}", remedy)


def _free(claimed: Output) -> int:
    return shutil.disk_usage(claimed.disk).free


def _check_room(claimed: Output, least: float, needs: str, remedy: str = "free some space") -> None:
    """Raise a PackerError if fewer than `least` bytes are free where a claimed output, or temporary files, grow."""
    free = _free(claimed)
    if least <= free:
        return
    place, other = claimed.out, ", or choose an --output with more"
    if claimed.store.is_remote:
        place, other = claimed.disk.parent, ", or choose a TMPDIR with more"
    raise PackerError(f"{place}: {needs}, {byte_size(free)} are free: {remedy}{other}")
