"""Check a packed dataset, alone or against its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from packer.engine import Engine, Threads, available_workers
from packer.errors import OptionError, SourceError
from packer.facts import MixturePart, SourceIdentity
from packer.facts.rejection import REMEDY
from packer.options.choices import EngineName
from packer.paths import PathList, expanded
from packer.pipeline.against_source import compare_with_source
from packer.pipeline.open_inputs import with_texts
from packer.pipeline.packed_source import open_packed_source, with_sources
from packer.pipeline.read_documents import SourceLike
from packer.pipeline.recounting import identity_faults
from packer.pipeline.rejected_list import list_faults
from packer.progress import Progress, silent
from packer.shards.check_shards import verify_packed
from packer.shards.check_totals import differences
from packer.shards.generations import in_generation
from packer.shards.manifest import Manifest
from packer.shards.reader import read_manifest
from packer.sources.corpus import Corpus
from packer.sources.source import Source
from packer.sources.source_order import in_source_order
from packer.stores import AnyPath, any_path
from packer.system_errors import system_errors

_PATHS = (str, Path, PathList)


def verify(
    packed: str | AnyPath,
    source: SourceLike | Sequence[SourceLike] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: EngineName = "threads",
    ray_address: str | None = None,
    progress: Progress = silent,
) -> Iterator[str]:
    """Yield a sentence for each fault of a packed dataset; yield nothing if it is verified.

    Without `source`, checks hashes, structure, the position of pairs, and groups if their column is kept. With
    `source`, also checks all groups, and that every token that the long-document policy keeps is in the rows once (in a
    mixture, once per copy), with its label, at the place that doc_ids and doc_starts give.

    Totals of the manifest are counted again: from the rows, and with `source` also those of its documents and tokens,
    which are otherwise compared with each other and with the limits that the rows set.
    Three that only the planner knows are checked for their limits: `pool_rows`, `rows_ungrouped`, and `lower_bound`
    if the algorithm or `apart` may improve on the bounds of `packer.algorithms.bounds`.

    Args:
        packed: folder of the packed dataset.
        source: source that was packed, or a list, in order: of all sources of a mixture, of all paths of a source, and
            of the sources of all generations. Text is tokenized again.
        tokenizer: path or Hub id of the tokenizer, needed if the name in the manifest is not enough to find it.
        workers: shards that are checked at a time; by default the cores this process may use.
        engine: "threads", or "ray" to check the shards on a Ray cluster.
        ray_address: address of the cluster; None to start one on this machine.
        progress: callback, called with "verify" in bytes of the shards and "compare" in tokens.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    folder, source = any_path(expanded(packed)), expanded(source)
    faults = 0
    with system_errors(folder, resumes=False), _engine(engine, ray_address, workers or available_workers()) as checking:
        for fault in verify_packed(folder, progress, checking):
            faults += 1
            yield fault
    if source is None or faults:
        return
    for part, of_part in with_sources(folder, read_manifest(folder), source):
        opened = open_packed_source(folder, part, of_part, tokenizer)
        try:
            for fault in compare_opened(folder, part, opened, progress):
                yield in_generation(part, fault, source=of_part if isinstance(of_part, _PATHS) else None)
        except SourceError as error:  # the packed tokens do not depend on how they are verified
            raise SourceError(str(error).removesuffix(f"; {REMEDY}")) from error


def _engine(name: EngineName, ray_address: str | None, workers: int) -> AbstractContextManager[Engine]:
    """Return a context with the engine that checks the shards.

    Raises:
        PackerError: there is an address, but the engine is not a cluster.
    """
    if name == "ray":
        from packer.ray_engine import ray_engine

        return ray_engine(ray_address, workers)
    if ray_address is not None:
        raise OptionError(f"--ray-address {ray_address} is for --engine ray")
    return nullcontext(Threads(workers=workers))


def compare_opened(folder: AnyPath, manifest: Manifest, opened: Corpus, progress: Progress) -> Iterator[str]:
    """Yield a sentence for each difference between the rows and an open source, or a mixture of as many as packed."""
    packed = manifest.source
    parts: tuple[SourceIdentity | MixturePart, ...] = packed.mixture or (packed,)
    faults = [
        f"the source {part.name}: {fault}" if isinstance(part, MixturePart) else fault
        for part, source in zip(parts, opened.sources.values(), strict=True)
        if (fault := _text_fault(part, source))
    ]
    if faults:
        yield from faults
        return
    order = in_source_order(opened)
    faults = [fault for pair in zip(order.mixture, packed.mixture, strict=True) if (fault := _part_fault(*pair))]
    if faults:
        yield from faults
        return
    is_same = yield from compare_with_source(folder, manifest, order, progress)
    if is_same:
        yield from identity_faults(packed, order.identity())
        yield from differences(manifest.totals, with_texts(manifest.totals, opened).to_dict(), "the source")
        if manifest.options.on_error == "skip":
            yield from list_faults(folder, manifest, opened.sources)


def _part_fault(found: MixturePart, recorded: MixturePart) -> str | None:
    """Return the first difference between a source of a mixture and the one that was packed, or None."""
    others = found.to_dict()
    for name, value in recorded.to_dict().items():
        if name != "text" and others.get(name) != value:
            difference = f"{name} is {others.get(name)}, the manifest says {value}"
            return f"the source {recorded.name} differs from the packed one: {difference}"
    return None


def _text_fault(recorded: SourceIdentity | MixturePart, opened: Source) -> str | None:
    """Return the first difference in how text is tokenized, versions of libraries aside, or None."""
    packed = recorded.text.without_versions() if recorded.text is not None else {}
    found = opened.tokenized.identity.without_versions() if opened.tokenized is not None else {}
    if bool(packed) != bool(found):
        kinds = ("text" if text else "tokens" for text in (packed, found))
        return "it was packed from {}, here it holds {}".format(*kinds)
    for name in dict.fromkeys([*packed, *found]):
        if packed.get(name) != found.get(name):
            return f"it was packed with another {name}: {packed.get(name)}, here {found.get(name)}"
    return None
