"""Find out whether documents are already in a packed dataset, so that none is appended twice by mistake."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.growing_dataset import GrowingDataset
from packer.pipeline.read_documents import SourceLike, one_source
from packer.pipeline.verifying import compare_opened
from packer.progress import Progress
from packer.shards.generations import parts_of
from packer.sources import OpenDocuments

log = logging.getLogger(__name__)

_SHOWN = 3  # files in a message


def is_last_generation(
    growing: GrowingDataset, source: SourceLike, opened: OpenDocuments, options: PackOptions, progress: Progress
) -> bool:
    """Return whether documents are those of the last generation.

    Files are compared by name and size. If a source has all files of a generation, their tokens decide. If it has some
    of them, there is a warning.

    Args:
        growing: dataset to which they are to be appended.
        source: source of the documents.
        opened: the same, open.
        options: options of the dataset.
        progress: callback, as in `pack`.

    Raises:
        PackerError: all documents of a generation are among them; of the last one, together with others.
    """
    paths = {(input_.file.name, input_.file.bytes): input_.path for input_ in opened.inputs}
    parts = parts_of(growing.manifest)
    doubtful: dict[str, None] = {}
    for part in reversed(parts):
        files = [(file.name, file.bytes) for file in part.source.files]
        if not paths.keys() >= set(files):
            doubtful |= {name: None for name, size in files if (name, size) in paths}
            continue
        is_whole = len(files) == len(opened.inputs)
        if is_whole:
            again = growing.open(source, options)  # subtle: a comparison reads it to the end
        else:
            again = growing.open(one_source([str(paths[file]) for file in files]), replace(options, split=None))
        if next(compare_opened(growing.folder, part, again, progress), None) is not None:
            continue
        if is_whole and part is parts[-1] and part.part is not None:
            return True
        rows = f"rows {part.first.row:,} to {part.first.row + part.packs - 1:,}"
        if is_whole:
            what, remedy = "these documents", "append others, or pack a mixture with --mix-unit epochs to repeat some"
        else:
            what, remedy = f"the documents of {_listed([name for name, _ in files])}", "append the other files alone"
        raise PackerError(f"{growing.folder} holds {what} already, in {rows}: {remedy}")
    if doubtful:
        log.warning(
            "%s holds documents of files with the names and sizes of %s: if they are the same, append the others alone",
            growing.folder,
            _listed(list(doubtful)),
        )
    return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
