"""Check a packed dataset, alone or against its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from packer.engines.engine import Engine, available_workers
from packer.errors import SourceError, system_errors
from packer.json_records import REMEDY, SourceIdentity
from packer.options import values_of
from packer.output.job import Job
from packer.pipeline.against_source import SourceComparison
from packer.pipeline.rejected_list import with_counts
from packer.progress import Progress, python_call
from packer.shards.check_shards import differences, verify_packed
from packer.shards.files import holdout_of
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import read_manifest
from packer.sources.find_source import SourceLike
from packer.sources.open_source import open_packed_source
from packer.sources.source import Source, read_documents
from packer.sources.spill import spill_source
from packer.stores import AnyPath
from packer.stores.local_files import temporary_directory
from packer.stores.paths import expanded, located, packed_path
from packer.text.text_source import open_source

_SHOWN = 20  # faults in the `repr` of a result


class Verification(list[str]):
    """A sentence for each fault of a packed dataset. It is true if there is none, so `if verify(packed)` reads right.

    Args:
        folder: the dataset.
        faults: the sentences.
    """

    def __init__(self, folder: AnyPath, faults: Iterable[str]) -> None:
        super().__init__(faults)
        self._folder = folder

    def __bool__(self) -> bool:
        return not len(self)

    def __repr__(self) -> str:
        """Say that the dataset is verified, or list its faults: "dataset-packed-4096 has 1 fault: ..."."""
        if self:
            return f"{self._folder} is verified"
        faults = f"{len(self):,} fault{'s' if len(self) > 1 else ''}"
        return "\n  ".join([f"{self._folder} has {faults}:", *self[:_SHOWN], *(["..."] if len(self) > _SHOWN else [])])


def verify(
    packed: str | AnyPath,
    source: SourceLike | Sequence[SourceLike] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: str = "threads",
    progress: Progress | bool = True,
) -> Verification:
    """Check a packed dataset; return a list of its faults, which is true if there is none.

    `if packer.verify(packed): train()` trains only on a dataset without faults. Otherwise, the result is a list of
    sentences, and false.

    Without `source`, this checks hashes, structure, the totals of the manifest, and groups if their column is kept.
    With it, every token that should be in the rows is also compared with the source, together with its label and its
    place, and the totals are those of its documents and tokens. Two totals that only the planner knows are not
    counted again: `rows_ungrouped`, and `lower_bound` if the algorithm may improve on the bounds of
    `packer.algorithms.bounds`.

    Args:
        packed: folder of the packed dataset.
        source: source that was packed, or a list of all its paths, in order. Text is tokenized again.
        tokenizer: path or Hub id of the tokenizer, if its name in the manifest is not enough to find it.
        workers: number of shards that are checked at a time; by default the number of available cores.
        engine: "threads", or a Ray cluster with the same storage that checks the shards, as in `pack`.
        progress: as in `pack`; the stages are "verify", in bytes of the shards, and "compare", in tokens.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    with python_call(progress) as shown:
        job = Job(**values_of(Job, {"workers": workers, "engine": engine, "progress": shown}))
        folder = packed_path(packed)
        return Verification(folder, _faults(folder, expanded(located(source)), tokenizer, job))


def _faults(
    folder: AnyPath, source: SourceLike | Sequence[SourceLike] | None, tokenizer: str | None, job: Job
) -> Iterator[str]:
    """Yield the faults that `verify` returns."""
    with system_errors(folder, resumes=False), job.alone() as engine:
        faults = [*verify_packed(folder, job.progress, engine)]
    yield from faults
    if faults:
        return
    manifest = read_manifest(folder)
    yield from _holdout_faults(folder, manifest)
    if source is None:
        return
    opened = open_packed_source(folder, manifest, source, tokenizer, opener=open_source)
    try:
        workers = job.workers or available_workers()
        yield from compare_opened(folder, manifest, opened, workers=workers, progress=job.progress)
    except SourceError as error:  # the packed tokens do not depend on how they are verified
        raise SourceError(str(error).removesuffix(f"; {REMEDY}")) from error


def _holdout_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence if a dataset and its holdout, which is next to it, may share documents."""
    ours, other = manifest.options, holdout_of(folder, is_holdout=manifest.options.is_holdout)
    if ours.holdout is None or other == folder or not is_packed(other):
        return
    theirs = read_manifest(other).options
    if (ours.seed, ours.holdout, not ours.is_holdout) != (theirs.seed, theirs.holdout, theirs.is_holdout):
        yield (
            f"{other} may share documents with it, because other documents were held out there: holdout is "
            f"{theirs.holdout} with seed {theirs.seed}, here {ours.holdout} with seed {ours.seed}"
        )


def compare_opened(
    folder: AnyPath, manifest: Manifest, opened: Source, *, workers: int, progress: Progress
) -> Iterator[str]:
    """Yield a sentence for each difference between the rows and an open source.

    Inputs that cannot be mapped are decoded to temporary files.
    """
    packed = manifest.source
    fault = _text_fault(packed, opened)
    if fault is not None:
        yield fault
        return
    with ExitStack() as stack:
        decoded = stack.enter_context(temporary_directory())
        opened = spill_source(opened, decoded, progress, engine=Engine(workers=workers))
        documents = read_documents(opened, progress)
        faults = [*SourceComparison(folder=folder, manifest=manifest, documents=documents).faults(workers, progress)]
    yield from faults
    if not faults:
        yield from identity_faults(packed, documents.identity)
        yield from differences(manifest.totals, with_counts(manifest.totals, documents).to_dict(), "the source")


def _text_fault(recorded: SourceIdentity, opened: Source) -> str | None:
    """Return the first difference in how text is tokenized, versions of libraries aside, or None."""
    packed = recorded.text.without_versions() if recorded.text is not None else {}
    found = opened.text.without_versions() if opened.text is not None else {}
    if bool(packed) != bool(found):
        kinds = ("text" if text else "tokens" for text in (packed, found))
        return "it was packed from {}, here it holds {}".format(*kinds)
    if packed and packed["columns"] != found["columns"]:
        is_other_kind = packed["columns"][0] != found["columns"][0]
        ours, theirs = (text["columns"][0] if is_other_kind else text["columns"] for text in (packed, found))
        return f"it was packed from {ours!r}, and this source has {theirs!r}: give the source that was packed"
    for name in dict.fromkeys([*packed, *found]):
        if packed.get(name) != found.get(name):
            return f"it was packed with another {name}: {packed.get(name)}, here {found.get(name)}"
    return None


def identity_faults(recorded: SourceIdentity, found: SourceIdentity) -> Iterator[str]:
    """Yield a sentence for each difference between a source and the identity in the manifest.

    Texts are compared before. The names and sizes of files may differ: the same documents
    in other files, or compressed, are the same source. Only if all names are equal must each file have the same
    documents and tokens.
    """
    one, other = ({**identity.to_dict(), "text": None} for identity in (recorded, found))
    files = [each.pop("files") for each in (one, other)]
    if [file["name"] for file in files[0]] == [file["name"] for file in files[1]]:
        for number, (file, its_like) in enumerate(zip(*files, strict=True)):
            for fault in _differing({**file, "bytes": None}, {**its_like, "bytes": None}):
                yield f"{fault} (files, number {number})"
    yield from _differing(one, other)


def _differing(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*recorded, *found]):
        one, other = recorded.get(name), found.get(name)
        if one != other:
            yield f"the source differs from the packed one: {name} is {other}, the manifest says {one}"
