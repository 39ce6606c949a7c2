"""Name outputs after their sources, and refuse outputs inside a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packer.errors import OptionError, PackerError
from packer.options import PackOptions
from packer.paths import PathList
from packer.pipeline.read_documents import SourceLike
from packer.sources.formats import ending_of
from packer.sources.lengths_alone import ARRAY, is_array_file
from packer.stores import AnyPath, RemotePath, any_path, is_remote


def default_output(source: SourceLike | Sequence[SourceLike], options: PackOptions) -> Path:
    """Name the output after the source: rows.jsonl.gz -> rows-packed-4096."""
    return name_after(source, options, f"packed-{options.max_len}")


def name_after(source: SourceLike | Sequence[SourceLike], options: PackOptions, suffix: str) -> Path:
    """Name an output after the source and, if there is one, its split: rows.jsonl.gz, "tokenized" -> rows-tokenized.

    The output is next to the source. Its name follows from the path alone, so that a repeated command finds its output
    whatever other files there are: rows.jsonl and rows.parquet share a name, and the second needs another one.

    Raises:
        PackerError: the source is a mixture, several paths, a glob or a dataset in memory.
    """
    if isinstance(source, (list, tuple)):
        raise OptionError("a mixture has no name: name the output with --output")
    if isinstance(source, PathList):
        raise OptionError(f"{source} have no common name: name the output with --output")
    if not isinstance(source, str | Path):
        raise PackerError("a dataset in memory has no name: name the output with output=...")
    if is_remote(source):
        return Path(name_after(any_path(source).name, options, suffix).name)  # in the current folder
    path = Path(source)
    if any(letter in str(source) for letter in "*?[") and not os.path.lexists(source):
        raise OptionError(f"{source} is a glob: name the output with --output")
    if path.name in ("", ".."):
        path = path.resolve()
    ending = ARRAY if is_array_file(path) else ending_of(path.name)
    name = path.name if path.is_dir() else path.name.removesuffix(ending)
    folder = path.parent if path.exists() else Path()  # for a Hub id, the current folder
    split = f"-{options.split}" if options.split else ""
    return folder / f"{name}{split}-{suffix}"


def refuse_inside(
    source: SourceLike | Sequence[SourceLike], out: AnyPath, *, remedy: str = "choose an --output next to it"
) -> None:
    """Raise a PackerError for an output inside a source; a repeated command would read it as source files."""
    if isinstance(source, (list, tuple, PathList)):
        for each in source.paths if isinstance(source, PathList) else source:
            refuse_inside(each, out, remedy=remedy)
        return
    if isinstance(out, RemotePath):
        if is_remote(source) and f"{out}/".startswith(f"{any_path(str(source))}/"):
            raise PackerError(f"{out} is inside the source {source}: {remedy}")
        return
    if not isinstance(source, str | Path) or is_remote(source) or not Path(source).is_dir():
        return
    if Path(os.path.realpath(source)) in Path(os.path.realpath(out)).parents:
        raise PackerError(f"{out} is inside the source {source}: {remedy}")
