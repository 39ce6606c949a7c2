"""A packed dataset that is already complete: whether it is intact, and has the requested options and source."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from packer.errors import PackerError
from packer.options import PackOptions
from packer.output.claim_pack import way_to_replace
from packer.output.request import Request, difference, names_and_sizes
from packer.pipeline.complete_output import changed_since, check_files
from packer.pipeline.open_inputs import request_of
from packer.progress import Progress
from packer.shards.file_names import MANIFEST
from packer.shards.generations import in_generation, parts_of
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import read_manifest
from packer.sources import OpenDocuments
from packer.sources.packed.packed_documents import files_read
from packer.stores import AnyPath

log = logging.getLogger(__name__)


def check_complete(
    out: AnyPath, sources: Sequence[OpenDocuments], options: PackOptions, progress: Progress
) -> tuple[Manifest, str]:
    """Check that a complete dataset is what a pack of these sources would write, and that its files are intact.

    Sources are compared by file names, sizes and lengths. If file times do not prove that they are unchanged, every
    token is compared.

    Args:
        out: the dataset.
        sources: source of each requested generation; the dataset may have later generations.
        options: options of the pack.
        progress: callback, as in `pack`.

    Returns:
        Its manifest, and what was checked, in words.

    Raises:
        PackerError: it is damaged, or has other options or other sources.
    """
    manifest = read_manifest(out)
    packed = parts_of(manifest)
    remedy = f"choose another --output, or {way_to_replace(out)}"
    for number, (part, opened) in enumerate(zip(packed, sources, strict=False)):
        found, requested = _request_in(part), request_of(opened, options.to_dict()).without_times
        is_same = found == requested
        if is_same and opened.mapped:  # the lengths of a mapped source are cheap to read
            is_same = opened.survey(progress).identity == part.source
        if not is_same:
            which = f"generation {number} " if len(sources) > 1 else ""
            raise PackerError(f"{out} is complete, {which}packed {difference(found, requested)}: {remedy}")
    if len(packed) < len(sources):
        raise PackerError(
            f"{out} is complete, with the first {len(packed)} of {len(sources)} generations: append the sources of the "
            f"others with `packer append`, or {remedy}"
        )
    check_files(out / MANIFEST, manifest.shards, manifest.files)
    if _is_newer(out, packed, sources):
        return manifest, "its shards have the recorded sizes, and no source file was written since"
    log.info("the times of the source files do not prove that they are unchanged: comparing every token")
    from packer.pipeline.verifying import compare_opened

    for part, opened in zip(packed, sources, strict=False):
        fault = next(compare_opened(out, part, opened, progress), None)
        if fault is not None:
            where = in_generation(part, fault) if len(sources) > 1 else fault
            raise PackerError(f"{out} is complete, packed from a source that has changed since ({where}): {remedy}")
    return manifest, "its shards have the recorded sizes, and hold every token of the source"


def _is_newer(out: AnyPath, packed: Sequence[Manifest], sources: Sequence[OpenDocuments]) -> bool:
    """Whether the manifest was written after all files of the sources, which proves that they are unchanged."""
    if len(packed) > 1:  # an append replaces the manifest, long after rows were packed
        return False
    (opened,) = sources
    paths = [path for input_ in opened.inputs for path, _ in files_read(input_)]
    return len(paths) >= len(opened.inputs) and not changed_since(out / MANIFEST, paths)


def written_by_another(out: AnyPath, request: Request) -> Manifest | None:
    """Return the manifest that another process has written for this request; None if there is none."""
    with contextlib.suppress(OSError, PackerError):  # the first error is the one to report
        if is_packed(out) and answers(manifest := read_manifest(out), request):
            return manifest
    return None


def answers(manifest: Manifest, request: Request) -> bool:
    """Whether a manifest is that of the requested pack; times of source files are ignored."""
    return _request_in(manifest) == request.without_times


def _request_in(manifest: Manifest) -> Request:
    """Return the request that a manifest answers, without the times of files."""
    files, texts = names_and_sizes(manifest.source.files), manifest.source.texts
    return Request(options=manifest.options.to_dict(), files=files, texts=texts)
