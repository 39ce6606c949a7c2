"""Check a packed dataset: by itself, and against its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packer.errors import OtherSourceError, PackerError
from packer.facts import MixturePart, SourceIdentity
from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.against_source import compare_with_source
from packer.pipeline.open_inputs import with_texts
from packer.pipeline.read_documents import Given, open_sources
from packer.pipeline.recounting import identity_faults
from packer.progress import Progress, silent
from packer.shards.check_shards import verify_packed
from packer.shards.figures import differences
from packer.shards.manifest import Manifest
from packer.shards.reader import read_manifest
from packer.sources import OpenDocuments, Source


def verify(
    packed: str | Path,
    source: Given | Sequence[Given] | None = None,
    *,
    tokenizer: str | None = None,
    progress: Progress = silent,
) -> Iterator[str]:
    """Yield what is wrong with a packed dataset, a sentence each; nothing when it is right.

    Without `source`: hashes and structure, that pairs stand side by side, and groups, if their column is kept. With it,
    groups in any case, and every token of the source, too: it stands at the place that doc_ids and doc_starts say,
    once, with its label; or the long-document policy leaves it out. Text is tokenized again, as the manifest says;
    `tokenizer` is where its tokenizer is, if the name in the manifest does not tell. Of a mixture, give all sources in
    their order: every token stands there once for each copy, and nothing else does.

    The figures of the manifest are counted again: those of the rows without `source`, with it also what became of
    documents and tokens, and the facts about the source. Three are only held to their limits, as the planner alone
    knows them: `pool_packs`, `packs_ungrouped`, and `lower_bound` where the algorithm or `apart` may improve on the
    bounds of `packer.algorithms.bounds`.

    Raises:
        PackerError: there is no packed dataset or no source to read.
    """
    folder, source = Path(expanded(packed)), expanded(source)
    faults = 0
    for fault in verify_packed(folder, progress):
        faults += 1
        yield fault
    if source is None or faults:
        return
    manifest = read_manifest(folder)
    names = [part.name for part in manifest.source.mixture]
    given = source if isinstance(source, (list, tuple)) else [source]
    if len(given) != max(len(names), 1):
        of = f"a mixture of {', '.join(names)}" if names else "packed from one source"
        raise PackerError(f"{folder} is {of}, and {len(given)} source(s) are given: give each one, in this order")
    options = _options(folder, manifest, tokenizer)
    try:
        opened = open_sources(list(given) if names else given[0], options)
    except OtherSourceError as error:
        of_split = f" of the split {options.split}" if options.split is not None else ""
        raise PackerError(
            f"{error.found}; {folder} was packed from the column '{options.input_column}'{of_split}: give that source"
            if manifest.source.text is None
            else f"{error.found}; {folder} was packed from text{of_split}: give that source"
        ) from error
    yield from compare_opened(folder, manifest, opened, progress)


def compare_opened(folder: Path, manifest: Manifest, opened: OpenDocuments, progress: Progress) -> Iterator[str]:
    """Yield in what the rows differ from an open source, or a mixture of as many as were packed, a sentence each."""
    packed = manifest.source
    parts: tuple[SourceIdentity | MixturePart, ...] = packed.mixture or (packed,)
    faults = [
        f"the source {part.name}: {fault}" if isinstance(part, MixturePart) else fault
        for part, source in zip(parts, opened.sources.values(), strict=True)
        if (fault := _other_text(part, source))
    ]
    if faults:
        yield from faults
        return
    order = opened.in_source_order()
    faults = [fault for pair in zip(order.mixture, packed.mixture, strict=True) if (fault := _other(*pair))]
    if faults:
        yield from faults
        return
    is_same = yield from compare_with_source(folder, manifest, order, progress)
    if is_same:
        yield from identity_faults(packed, order.identity())
        yield from differences(manifest.totals, with_texts(manifest.totals, opened).to_dict(), "the source")


def _other(found: MixturePart, told: MixturePart) -> str | None:
    """Say in what a source of a mixture is not the one that was packed."""
    others = found.to_dict()
    for name, value in told.to_dict().items():
        if name != "text" and others.get(name) != value:
            was = f"{name} is {others.get(name)}, the manifest says {value}"
            return f"the source {told.name} is not as it was packed: {was}"
    return None


def _options(folder: Path, manifest: Manifest, tokenizer: str | None) -> PackOptions:
    """The options of the pack, with the tokenizer at its place.

    Raises:
        PackerError: it is not known, or there was none.
    """
    options = manifest.options
    if tokenizer is None:
        name = options.tokenizer
        if name is not None and "/" not in name and not Path(name).exists():
            raise PackerError(f"{folder} was packed with the tokenizer {name}: say where it is by --tokenizer")
        return options
    if options.tokenizer is None:
        raise PackerError(f"{folder} was packed from tokens: leave --tokenizer {tokenizer} out")
    return replace(options, tokenizer=tokenizer)


def _other_text(told: SourceIdentity | MixturePart, opened: Source) -> str | None:
    """Say in what the text is tokenized otherwise than it was; versions of libraries are no matter here."""
    packed = told.text.without_versions() if told.text is not None else {}
    found = opened.tokenized.identity.without_versions() if opened.tokenized is not None else {}
    if bool(packed) != bool(found):
        kinds = ("text" if text else "tokens" for text in (packed, found))
        return "it was packed from {}, here it holds {}".format(*kinds)
    for name in dict.fromkeys([*packed, *found]):
        if packed.get(name) != found.get(name):
            return f"it was packed with another {name}: {packed.get(name)}, here {found.get(name)}"
    return None
