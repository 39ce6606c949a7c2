"""Tokenize a text dataset and store the tokens in the layout of `save_to_disk`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packer.engines.engine import Engine
from packer.errors import UNREADABLE, PackerError, system_errors
from packer.json_records import REJECTED, Count, JsonRecord, SourceIdentity
from packer.options import ReadOptions
from packer.output.claim import claim
from packer.output.job import Job, Written, name_after, refuse_inside
from packer.output.replace_folder import restore
from packer.output.unfinished_output import Output, OutputKind, Request, difference, names_and_sizes, request_of
from packer.pipeline.source_warnings import check_documents, notes_on, write_rejected_list
from packer.progress import Progress
from packer.shards.files import WrittenFile, changed_since, check_files, shard_name
from packer.shards.manifest import datasets_files
from packer.sources.hugging_face import REPORT, STATE
from packer.sources.source import Source, Watch, read_documents
from packer.sources.spill import Piece, cut_source, spill_source
from packer.stores import AnyPath
from packer.stores.paths import PathList, expanded, local_output, tokenizer_name
from packer.text.text_source import open_source

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

TOKENIZED = OutputKind(
    name="a tokenized dataset",
    record=REPORT,
    building="tokenizing",
    listed=lambda report: [
        *(shard["file"] for shard in report["shards"]),
        *(STATE, "dataset_info.json"),
        *([REJECTED] if "documents_rejected" in report else []),
    ],
)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TokenizeReport(JsonRecord):
    """Record of a tokenized dataset. It is written last."""

    tokenizer: str
    pad_id: Count
    """Padding token of the tokenizer; if it has none, its end-of-sequence token, or 0."""

    options: Mapping[str, object]
    """Names of kept columns, under the key "keep"; and "on_error" unless it has the default value."""

    source: SourceIdentity
    """Identity of the source of the tokens, including its files and how its text was tokenized."""

    documents_straddling: Count
    """Number of documents with a token that straddles a boundary of trained text."""

    documents_untrained: Count
    """Number of documents with tokens but without trained tokens."""

    documents_by_gigatoken: Count | None = None
    """Number of documents that gigatoken tokenized; None if there are none."""

    documents_rejected: Mapping[str, Count] | None = None
    """Number of unusable documents by reason (they are stored empty); None if unusable documents are errors."""

    rejected_xxh3_128: str | None = None
    """Hash of rejected.jsonl, the list of these documents; None if the file does not exist."""

    shards: tuple[WrittenFile, ...]

    path: AnyPath | None = field(default=None, compare=False)
    """Folder of the tokenized dataset; None if unknown."""

    def __repr__(self) -> str:
        counts = f"documents={self.source.documents}, tokens={self.source.tokens}"
        return f"TokenizeReport(path={str(self.path)!r}, {counts}, tokenizer={self.tokenizer!r})"

    @property
    def request(self) -> Request:
        """Request that made the dataset."""
        return Request(options=self.options, files=names_and_sizes(self.source.files), text=self.source.text)


def tokenize(
    source: str | Path | PathList | Dataset | DatasetDict,
    *,
    options: ReadOptions,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Written[TokenizeReport]:
    """Tokenize a text dataset. After an interruption, the same call resumes.

    Packing the result gives the same rows as packing the text. The job's engine is ignored: only this process works.
    """
    if options.tokenizer is None:
        raise PackerError("nothing to tokenize with: give a tokenizer with --tokenizer")
    source = expanded(source)
    out = name_after(source, "tokenized", options.split) if job.output is None else job.output
    out = local_output(out, "packer tokenize")
    opened = open_source(source, options)
    watch = Watch.of(opened)
    refuse_inside(source, out)
    skips = {"on_error": options.on_error} if options.on_error != "error" else {}
    request = request_of(opened, {"keep": list(options.keep), **skips})
    with system_errors(out, resumes=True):
        restore(out, TOKENIZED)
        if TOKENIZED.is_complete(out):
            try:
                found = TokenizeReport.from_dict(json.loads((out / REPORT).read_bytes()))
            except (OSError, *UNREADABLE) as error:
                raise PackerError(f"{out} exists and is not a tokenized dataset: choose another --output") from error
            if not job.overwrite:
                checked = _check_complete(out, found, request.without_times, opened)
                return Written(record=found, output=out, found_complete=True, checked=checked)
        with claim(out, TOKENIZED, request, job) as folder, job.alone() as engine:
            report, counts = _write(folder, opened, watch, request, options.tokenizer, engine, job.progress)
    return Written(record=report, output=out, notes=notes_on(opened, counts))


def _check_complete(out: Path, report: TokenizeReport, request: Request, opened: Source) -> str:
    """Check that a complete dataset is the requested one and intact, and that its source was not modified since.

    Returns a description of what was checked.
    """
    another = "choose another --output, or replace it with --overwrite"
    if report.request != request:
        raise PackerError(f"{out} is complete, tokenized {difference(report.request, request)}: {another}")
    record = out / REPORT
    rejected = {} if report.rejected_xxh3_128 is None else {REJECTED: report.rejected_xxh3_128}
    check_files(record, report.shards, rejected)
    paths = [file.path for file in opened.files if file.path is not None]
    changed = changed_since(record, paths, in_content=True)
    if changed is not None:
        raise PackerError(f"{out} is complete, and {changed} was written to since: {another}")
    if len(paths) < len(opened.files):
        return "its shards and its source have the recorded sizes"
    return "its shards have the recorded sizes, and no source file was written since"


def _write(
    folder: Output, opened: Source, watch: Watch, request: Request, tokenizer: str, engine: Engine, progress: Progress
) -> tuple[TokenizeReport, Mapping[str, int]]:
    """Tokenize into a claimed folder, with file names as in `datasets`. Returns (report, counts of the encoder)."""
    pieces = cut_source(opened, folder.spill)
    names = [shard_name(number, len(pieces)) for number in range(len(pieces))]
    _take_back(folder, pieces, names)
    spilled = spill_source(opened, folder.spill, folder.watched(progress), engine=engine)
    watch.check()
    documents = read_documents(spilled)
    check_documents(documents)
    identity = documents.identity
    counts, digest = None, None
    if opened.skips:
        counts, digest = documents.source.rejections.counts, write_rejected_list(folder, documents.source.rejections)
    report = TokenizeReport(
        tokenizer=tokenizer_name(tokenizer),
        pad_id=opened.pad_id or 0,
        options=request.options,
        source=identity,
        documents_straddling=documents.source.counts["straddling"],
        documents_untrained=documents.source.counts["untrained"],
        documents_by_gigatoken=documents.source.counts["fast"] or None,
        documents_rejected=counts,
        rejected_xxh3_128=digest,
        shards=tuple(
            WrittenFile(file=name, bytes=piece.path.stat().st_size, xxh3_128=piece.checkpoint()["xxh3_128"])
            for piece, name in zip(pieces, names, strict=True)
        ),
    )
    for piece, name in zip(pieces, names, strict=True):
        assert isinstance(piece.path, Path)
        folder.store.put_files({name: piece.path})
    folder.finish((json.dumps(report.to_dict(), indent=1) + "\n").encode(), datasets_files(identity, names))
    return report, documents.source.counts


def _take_back(folder: Output, pieces: list[Piece], names: list[str]) -> None:
    """Undo the last step of a killed run: move the token files back, and delete files of another source."""
    folder.check_claim()
    for piece, name in zip(pieces, names, strict=True):
        if piece.checkpoint_path.exists() and (folder.building / name).is_file():
            (folder.building / name).replace(str(piece.path))
    ours = {path for piece in pieces for path in (piece.path, piece.checkpoint_path, piece.rejected_path)}
    assert isinstance(folder.spill, Path)
    files = {path for path in folder.building.iterdir() if path.is_file()}
    for left in files | (set(folder.spill.iterdir()) - ours):
        left.unlink()
