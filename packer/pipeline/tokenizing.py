"""Tokenize once and keep it: text to a dataset as `save_to_disk` lays it out, whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer import workspace
from packer.errors import PackerError
from packer.executors import available_workers
from packer.options import PackOptions
from packer.paths import expanded, output_folder
from packer.pipeline.opening import names_and_sizes, open_with, source_files
from packer.pipeline.pack import name_after, refuse_inside
from packer.pipeline.room import check_tokenizing
from packer.pipeline.watching import Watch
from packer.progress import Progress, silent
from packer.shards.manifest import datasets_files, shard_name
from packer.sources import Source, scan
from packer.sources.hugging_face import REPORT
from packer.sources.spill import cut_source
from packer.system_errors import system_errors
from packer.text import tokenizer_name

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeResult:
    """What tokenizing came to."""

    report: dict[str, Any]
    """The content of tokenized.json: "tokenizer" (its name), "pad_id", "options" (what is kept), "text" (what shapes
    the tokens), "files", "source" (what came of it), "documents_straddling" and "documents_untrained"."""

    output: Path
    """The folder."""

    found_complete: bool
    """Whether it was there already, of the same source and made in the same way."""


def tokenize(
    source: str | Path | Dataset | DatasetDict,
    output: str | Path | None = None,
    *,
    options: PackOptions,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> TokenizeResult:
    """Tokenize a dataset of text into the folder `output`; killed at any instant, the same call goes on from there.

    Packed, it gives the rows that the text itself would.

    Args:
        source: a path, glob, Hub id, or a `datasets` object.
        output: folder to write; by default the source's name with "-tokenized".
        options: those of text, and `keep`; no others are looked at.
        workers: threads at work; by default the cores this process may use. Does not change the bytes.
        sync: fsync every file and folder.
        overwrite: replace what was tokenized otherwise, at one stroke when the new dataset is whole.
        progress: told of "tokenize", in bytes of the source.

    Raises:
        PackerError: anything in the user's hands, in one line.
    """
    if options.tokenizer is None:
        raise PackerError("nothing to tokenize with: give a tokenizer by --tokenizer")
    source = expanded(source)
    opened = open_with(source, options, turns_of_chats=True)
    assert opened.tokenized is not None
    watch = Watch.of(opened)
    out = output_folder(output if output is not None else name_after(source, options, "tokenized"))
    refuse_inside(source, out)
    kept = {"keep": list(options.keep)}
    request = {"options": kept, "text": dict(opened.tokenized.identity), "files": names_and_sizes(source_files(opened))}
    with system_errors(out, resumes=True):
        report = _read_report(out)
        if report is not None and not overwrite:
            if {name: report.get(name) for name in request} != request:
                difference = workspace.difference(report, request)
                raise PackerError(
                    f"{out} is complete, tokenized {difference}: "
                    "choose another --output, or replace it with --overwrite"
                )
            return TokenizeResult(report=report, output=out, found_complete=True)
        building = workspace.sibling(out, "tokenizing")
        with _locked(building, out):
            report = _write(
                building,
                out,
                opened,
                watch,
                request,
                tokenizer_name(options.tokenizer),
                workers=workers or available_workers(),
                sync=sync,
                progress=progress,
            )
            if out.is_dir() and any(out.iterdir()):
                workspace.swap(out, building, sync=sync)
            else:
                building.rename(out)
    if sync:
        workspace.sync_folder(out.parent)
    return TokenizeResult(report=report, output=out, found_complete=False)


def _read_report(out: Path) -> dict[str, Any] | None:
    """Return the report of a complete dataset, None where nothing is there.

    Raises:
        PackerError: something else is there.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    with contextlib.suppress(OSError, ValueError):
        report = json.loads((out / REPORT).read_bytes())
        if isinstance(report, dict):
            return report
    raise PackerError(f"{out} exists and is not a tokenized dataset: choose another --output")


def _write(
    folder: Path,
    out: Path,
    opened: Source,
    watch: Watch,
    request: dict[str, Any],
    tokenizer: str,
    *,
    workers: int,
    sync: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Tokenize into a folder, to be `out`, and name its files as `datasets` does.

    Raises:
        PackerError: the disk has no room for it, or a document is wrong.
    """
    pieces = cut_source(opened, folder)
    ours = {path for piece in pieces for path in (piece.stream, piece.note_path)} | {folder / "lock"}
    for left in set(folder.iterdir()) - ours:  # of another source, or of a process that died at the end
        left.unlink()
    check_tokenizing(folder, opened, out)
    spilled = opened.spill(folder, progress, workers=workers)
    watch.check()
    assert spilled.tokenized is not None
    identity = scan(spilled).identity
    report = {
        "tokenizer": tokenizer,
        "pad_id": opened.pad_id,
        **request,
        "source": identity,
        "documents_straddling": spilled.tokenized.straddling,
        "documents_untrained": spilled.tokenized.untrained,
    }
    names = [shard_name(number, len(pieces)) for number in range(len(pieces))]
    for piece, name in zip(pieces, names, strict=True):
        piece.note_path.unlink()
        piece.stream.rename(folder / name)
    for name, content in {**datasets_files(identity, names), REPORT: _to_bytes(report)}.items():
        (folder / name).write_bytes(content)
    (folder / "lock").unlink()
    if sync:
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        workspace.sync_folder(folder)
    return report


@contextlib.contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Hold a folder in which to build.

    Raises:
        PackerError: another process does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackerError(f"{out} is in use by another packer: wait for it, or choose another --output") from error
        yield


def _to_bytes(report: dict[str, Any]) -> bytes:
    return (json.dumps(report, indent=1) + "\n").encode()
