"""Tokenize once and keep it: text to a dataset as `save_to_disk` lays it out, whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer import replacing, workspace
from packer.errors import PackerError
from packer.executors import available_workers
from packer.options import PackOptions
from packer.paths import expanded, output_folder, tokenizer_name
from packer.pipeline.finding_complete import changed_since, check_files
from packer.pipeline.opening import names_and_sizes, open_with, source_files
from packer.pipeline.pack import name_after, refuse_inside
from packer.pipeline.room import check_tokenizing
from packer.pipeline.watching import Watch
from packer.progress import Progress, silent
from packer.replacing import Kind
from packer.request import difference
from packer.shards.manifest import datasets_files, shard_name
from packer.sources import Source, identify
from packer.sources.hugging_face import REPORT, STATE
from packer.sources.spill import Piece, cut_source
from packer.system_errors import system_errors
from packer.workspace import Workspace

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

TOKENIZED = Kind(
    record=REPORT,
    building="tokenizing",
    listed=lambda report: [*(shard["file"] for shard in report["shards"]), STATE, "dataset_info.json"],
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeResult:
    """What tokenizing came to."""

    report: dict[str, Any]
    """The content of tokenized.json: "tokenizer" (its name), "pad_id", "options" (what is kept), "text" (what shapes
    the tokens), "files", "source" (what came of it), "documents_straddling", "documents_untrained" and "shards" (file,
    bytes and xxh3_128 of each)."""

    output: Path
    """The folder."""

    found_complete: bool
    """Whether it was there already, of the same source and made in the same way."""

    checked: str = ""
    """What was checked of a dataset that was there, for a message."""


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
        replacing.restore(out, TOKENIZED)
        report = _read_report(out)
        if report is not None and not overwrite:
            if {name: report.get(name) for name in request} != request:
                raise PackerError(
                    f"{out} is complete, tokenized {difference(report, request)}: "
                    "choose another --output, or replace it with --overwrite"
                )
            checked = _check_complete(out, report, opened)
            return TokenizeResult(report=report, output=out, found_complete=True, checked=checked)
        building = replacing.beside(out, TOKENIZED)
        with workspace.claim(building, request, sync=sync, fresh=True, kind=TOKENIZED) as claimed:
            report = _write(
                claimed,
                out,
                opened,
                watch,
                request,
                tokenizer_name(options.tokenizer),
                workers=workers or available_workers(),
                progress=progress,
            )
            replacing.swap(out, building, TOKENIZED, sync=sync)
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


def _check_complete(out: Path, report: dict[str, Any], opened: Source) -> str:
    """Say what was checked of a complete dataset.

    Raises:
        PackerError: a file is missing or damaged, or one of the source was written to since.
    """
    record = out / REPORT
    check_files(record, report.get("shards", ()), {})
    paths = [given.path for given in opened.inputs if given.path is not None]
    changed = changed_since(record, paths, in_content=True)
    if changed is not None:
        raise PackerError(
            f"{out} is complete, and {changed} was written to since: "
            "choose another --output, or replace it with --overwrite"
        )
    if len(paths) < len(opened.inputs):
        return "its shards have their sizes, and the source its name and size"
    return "its shards have their sizes, and no file of the source was written since"


def _write(
    claimed: Workspace,
    out: Path,
    opened: Source,
    watch: Watch,
    request: dict[str, Any],
    tokenizer: str,
    *,
    workers: int,
    progress: Progress,
) -> dict[str, Any]:
    """Tokenize into a claimed folder, to be `out`, and name its files as `datasets` does.

    Raises:
        PackerError: the disk has no room for it, or a document is wrong.
    """
    pieces = cut_source(opened, claimed.spill)
    names = [shard_name(number, len(pieces)) for number in range(len(pieces))]
    _take_back(claimed, pieces, names)
    check_tokenizing(claimed.spill, opened, out)
    spilled = opened.spill(claimed.spill, progress, workers=workers)
    watch.check()
    assert spilled.tokenized is not None
    identity = identify(spilled)
    report = {
        "tokenizer": tokenizer,
        "pad_id": opened.pad_id,
        **request,
        "source": identity,
        "documents_straddling": spilled.tokenized.straddling,
        "documents_untrained": spilled.tokenized.untrained,
        "shards": [
            {"file": name, "bytes": piece.stream.stat().st_size, "xxh3_128": piece.digest()}
            for piece, name in zip(pieces, names, strict=True)
        ],
    }
    for piece, name in zip(pieces, names, strict=True):
        if claimed.sync:
            with piece.stream.open("rb") as file:
                os.fsync(file.fileno())
        piece.stream.rename(claimed.out / name)
    for name, content in {**datasets_files(identity, names), REPORT: _to_bytes(report)}.items():
        claimed.write_file(claimed.out / name, content)
    return report


def _take_back(claimed: Workspace, pieces: list[Piece], names: list[str]) -> None:
    """Undo the end of a run that was killed there, and remove what is of another source."""
    for piece, name in zip(pieces, names, strict=True):
        if piece.note_path.exists() and (claimed.out / name).is_file():
            (claimed.out / name).replace(piece.stream)
    ours = {path for piece in pieces for path in (piece.stream, piece.note_path)}
    for left in {path for path in claimed.out.iterdir() if path.is_file()} | (set(claimed.spill.iterdir()) - ours):
        left.unlink()


def _to_bytes(report: dict[str, Any]) -> bytes:
    return (json.dumps(report, indent=1) + "\n").encode()
