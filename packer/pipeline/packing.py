"""Pack: open the source, claim the output, plan, write the shards, commit."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from packer.errors import PackerError
from packer.executors import available_workers
from packer.facts import SourceIdentity, Totals
from packer.notes import Note, NotesInFolder
from packer.options import PackOptions
from packer.output.output_folder import claim
from packer.output.packed_output import PACKED, PackedOutput
from packer.output.replace_folder import restore
from packer.output.request import Request, difference, names_and_sizes
from packer.paths import expanded, output_path
from packer.pipeline.complete_output import changed_since, check_files
from packer.pipeline.disk_space import check_decoding, check_mixture, check_writing
from packer.pipeline.make_plan import makes_own_rows, plan_documents
from packer.pipeline.open_inputs import request_of, with_texts
from packer.pipeline.read_documents import Given, open_sources, read_documents
from packer.pipeline.shard_maker import ShardMaker, write_shards
from packer.pipeline.verifying import compare_opened
from packer.pipeline.watch_source import Watch
from packer.progress import Progress, silent
from packer.shards.manifest import MANIFEST, Manifest, datasets_files, is_packed
from packer.shards.reader import read_manifest
from packer.sources import OpenDocuments
from packer.sources.formats import ending_of
from packer.system_errors import system_errors

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackResult:
    """What a pack came to."""

    manifest: Manifest
    """Of the packed dataset."""

    output: Path
    """Its folder."""

    found_complete: bool
    """Whether it was there already, made by the same options from the same source."""

    checked: str = ""
    """What was checked of a dataset that was there, for a message."""


def pack(
    source: Given | Sequence[Given],
    output: str | Path | None = None,
    *,
    options: PackOptions,
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> PackResult:
    """Pack a dataset into `output`; killed at any instant, the same call goes on from there.

    Args:
        source: a path, glob, Hub id, or a `datasets` object; or a list of these, to be mixed by `options.weights`.
        output: folder to write; by default the source's name with "-packed-MAX_LEN".
        options: what shapes the bytes.
        workers: threads that decode, plan and write; by default the cores this process may use. Does not change
            the bytes.
        sync: fsync every file and folder.
        overwrite: replace a complete dataset (at one stroke, when the new one is whole) or an unfinished one.
        progress: told of every stage.

    Raises:
        PackerError: anything in the user's hands, in one line.
    """
    source = expanded(source)
    opened = open_sources(source, options)
    watch = Watch.of(opened)
    if options.pad_id is None:
        options = replace(options, pad_id=opened.pad_id or 0)
    out = output_path(output if output is not None else default_output(source, options))
    for each in source if isinstance(source, (list, tuple)) else [source]:
        refuse_inside(each, out)
    request = request_of(opened, options.to_dict())
    with system_errors(out, resumes=True):
        restore(out, PACKED)
        if is_packed(out):
            if not overwrite:
                return _find_complete(out, opened, request, progress)
            read_manifest(out)  # only a readable manifest is replaced
        with claim(out, PACKED, request, sync=sync, overwrite=overwrite) as folder:
            claimed = PackedOutput.of(folder)
            manifest = _pack_into(
                claimed, opened, watch, options, workers or available_workers(), progress, overwrite=overwrite
            )
    return PackResult(manifest=manifest, output=out, found_complete=False)


def default_output(source: Given | Sequence[Given], options: PackOptions) -> Path:
    """Name the output after the source: rows.jsonl.gz -> rows-packed-4096."""
    return name_after(source, options, f"packed-{options.max_len}")


def name_after(source: Given | Sequence[Given], options: PackOptions, what: str) -> Path:
    """Name an output after the source, with the split between if one is given.

    Raises:
        PackerError: the source has no name.
    """
    if isinstance(source, (list, tuple)):
        raise PackerError("a mixture has no name: say where the packed one goes with --output")
    if not isinstance(source, str | Path):
        raise PackerError("a dataset in memory has no name: say where the output goes with output=...")
    path = Path(source)
    if any(letter in str(source) for letter in "*?["):
        raise PackerError(f"{source} is a glob: name the output with --output")
    if path.name in ("", ".."):
        path = path.resolve()
    name = path.name if path.is_dir() else path.name.removesuffix(ending_of(path.name))
    split = f"-{options.split}" if options.split else ""
    folder = path.parent if path.exists() else Path()  # a Hub id: here
    return folder / f"{name}{split}-{what}"


def refuse_inside(source: Given, out: Path) -> None:
    """Refuse an output that the same command, repeated, would read as part of the source."""
    if not isinstance(source, str | Path) or not Path(source).is_dir():
        return
    if Path(os.path.realpath(source)) in Path(os.path.realpath(out)).parents:
        raise PackerError(f"{out} is inside the source {source}: choose an --output beside it")


def _find_complete(out: Path, opened: OpenDocuments, request: Request, progress: Progress) -> PackResult:
    """Return what there is of a complete dataset of the same request.

    Its source is known by names, sizes and lengths, and by its times; where these do not tell, by every token.

    Raises:
        PackerError: it is of another request or source, or damaged.
    """
    manifest = read_manifest(out)
    files, texts = names_and_sizes(manifest.source.files), manifest.source.texts
    there = Request(options=manifest.options.to_dict(), files=files, texts=texts)
    asked = request.without_times
    remedy = "choose another --output, or replace it with --overwrite"
    same = there == asked
    if same and opened.mapped:  # lengths are cheap to look at; what must be decoded is known by names and sizes
        same = opened.survey(progress).identity == manifest.source
    if not same:
        raise PackerError(f"{out} is complete, packed {difference(there, asked)}: {remedy}")
    check_files(out / MANIFEST, manifest.shards, manifest.files)
    paths = [given.path for given in opened.inputs if given.path is not None]
    if len(paths) == len(opened.inputs) and not changed_since(out / MANIFEST, paths):
        checked = "its shards have their sizes, and no file of the source was written since"
        return PackResult(manifest=manifest, output=out, found_complete=True, checked=checked)
    log.info("the times of the source do not tell whether it is the one that was packed: comparing every token")
    fault = next(compare_opened(out, manifest, opened, progress), None)
    if fault is not None:
        raise PackerError(f"{out} is complete, packed of a source that has changed since ({fault}): {remedy}")
    checked = "its shards have their sizes, and every token of the source is in them"
    return PackResult(manifest=manifest, output=out, found_complete=True, checked=checked)


def _pack_into(
    claimed: PackedOutput,
    opened: OpenDocuments,
    watch: Watch,
    options: PackOptions,
    workers: int,
    progress: Progress,
    *,
    overwrite: bool,
) -> Manifest:
    """Plan, going on from the notes that are there, write the shards that are not, and commit."""
    mapped = opened
    if not opened.mapped:
        check_decoding(claimed, opened, options)
        mapped = opened.spill(claimed.spill, progress, workers=workers)
        watch.check()
        watch = watch.of_mapped(mapped)
    notes = NotesInFolder(claimed)
    is_grouped, is_in_order = options.group_by is not None, not makes_own_rows(options)
    documents = read_documents(mapped, progress, hold_lengths=is_grouped, interleaved=is_in_order)
    _refuse_changed(claimed, notes, documents.identity, overwrite=overwrite)
    check_mixture(claimed, documents.identity, options)
    planned = plan_documents(documents, options, notes=notes, workers=workers, progress=progress)
    watch.check()
    check_writing(claimed, planned.totals.packs * planned.row_format.row_bytes)
    maker = ShardMaker(
        mapped=planned.mapped,
        shards=planned.shards,
        row_format=planned.row_format,
        overlap=planned.overlap,
    )
    entries = write_shards(claimed, maker, watch, workers, progress)
    watch.check()
    files = datasets_files(documents.identity, [entry.file for entry in entries])
    totals = Totals(
        **planned.totals.values(),
        tokens_trained=sum(entry.trained for entry in entries),
        segments_untrained=sum(entry.untrained_segments for entry in entries),
    )
    manifest = Manifest(
        options=PackOptions.from_dict(options.to_dict()),  # as a reader of the file sees them: no path of a tokenizer
        source=documents.identity,
        totals=with_texts(totals, mapped),
        shards=tuple(entries),
        files={name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()},
    )
    claimed.finish(manifest.to_bytes(), files)
    return manifest


def _refuse_changed(claimed: PackedOutput, notes: NotesInFolder, identity: SourceIdentity, *, overwrite: bool) -> None:
    """Refuse to go on with another source than that of the notes, or begin again."""
    begun = notes.load("source")
    if begun is not None and begun.facts != identity.to_dict():
        if not overwrite:
            raise PackerError(
                f"{claimed.out} was begun from a source that has changed since: start afresh with --overwrite"
            )
        claimed.forget_plan()
        begun = None
    if begun is None:
        notes.save("source", Note(facts=identity.to_dict()), lasting=True)
