"""A packed dataset to which documents are appended: what they must have in common, and whether it has them already."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from packer.errors import OtherSourceError, PackerError, SourceError
from packer.facts import SourceIdentity, TextIdentity
from packer.options import PackOptions
from packer.pipeline.packed_source import refuse_decoding
from packer.pipeline.read_documents import SourceLike, one_source, open_sources
from packer.pipeline.verifying import compare_opened
from packer.progress import Progress
from packer.shards.file_names import appending_folder
from packer.shards.generations import parts_of
from packer.shards.manifest import Manifest
from packer.shards.reader import checked_batches, open_shard, read_manifest
from packer.shards.row_format import RowFormat
from packer.sources.open_documents import OpenDocuments
from packer.stores import AnyPath

_MAY_DIFFER = ("indices_xxh3_128", "today")


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendTarget:
    """A complete packed dataset to which a generation is appended."""

    folder: AnyPath
    """Its folder."""

    manifest: Manifest
    """Its manifest."""

    @property
    def documents(self) -> int:
        """Number of its documents, which is the number of the first one that is appended."""
        return self.manifest.source.documents

    @property
    def generations(self) -> int:
        """Number of its generations."""
        return max(len(self.manifest.generations), 1)

    @property
    def key(self) -> str:
        """Hash of the dataset, for the request of the generation."""
        import xxhash

        return xxhash.xxh3_128_hexdigest(self.manifest.to_bytes())

    @property
    def building(self) -> AnyPath:
        """Folder in which the next generation is packed."""
        return appending_folder(self.folder, self.generations)

    def has_grown(self) -> bool:
        """Whether a generation was put in place since."""
        return read_manifest(self.folder) != self.manifest

    def refuse_kind(self) -> None:
        """Raise a PackerError if nothing can be appended to this kind of dataset."""
        if self.manifest.source.mixture:
            names = ", ".join(part.name for part in self.manifest.source.mixture)
            raise PackerError(
                f"{self.folder} is a mixture of {names}, whose shares more documents would change: "
                "pack the mixture again with all documents, or append to a dataset of a single source"
            )

    def open(self, source: SourceLike, options: PackOptions) -> OpenDocuments:
        """Open a source of documents like those of the dataset.

        Args:
            source: source to open.
            options: options of the dataset.

        Raises:
            PackerError: it cannot be opened, or is of another kind.
        """
        try:
            opened = open_sources(source, options)
        except OtherSourceError as error:
            kind = "tokens" if self.manifest.source.text is None else "text"
            raise PackerError(
                f"{error.found}; {self.folder} was packed from {kind}: append documents of the same kind"
            ) from error
        if options.index_only:
            refuse_decoding(opened)
        texts = {name: source.tokenized.identity for name, source in opened.sources.items() if source.tokenized}
        self._check_text(texts.get(""))
        return opened

    def _check_text(self, found: TextIdentity | None) -> None:
        """Raise a PackerError if text is not tokenized like that of the dataset; library versions may differ."""
        recorded = self.manifest.source.text
        one = {} if recorded is None else recorded.without_versions()
        other = {} if found is None else found.without_versions()
        for name in dict.fromkeys([*one, *other]):
            if name not in _MAY_DIFFER and one.get(name) != other.get(name):
                raise PackerError(
                    f"{self.folder} was packed with {name} {one.get(name)}, and these documents have "
                    f"{other.get(name)}: append documents that are tokenized in the same way, "
                    "or pack them to another dataset"
                )

    def check_source(self, identity: SourceIdentity) -> None:
        """Raise a SourceError if either the dataset or the documents, but not both, say which tokens are trained."""
        if identity.labels != self.manifest.source.labels and self.manifest.options.labels:
            has, lacks = ("these documents have", f"those of {self.folder} have none")
            if not identity.labels:
                has, lacks = (f"the documents of {self.folder} have", "these have none")
            raise SourceError(
                f"{has} labels or a mask, and {lacks}: give both, so that the same tokens are trained, or pack to "
                "another dataset"
            )

    def check_columns(self, row_format: RowFormat) -> None:
        """Raise a SourceError if a kept column has another type than in the dataset."""
        options = self.manifest.options
        if not (options.kept or options.stored_keep_tokens):
            return  # the types of all others are those of the format
        schema = open_shard(self.folder, self.manifest.shards[0], self.manifest).schema
        for name in (*options.kept, *options.stored_keep_tokens):
            one, other = (each.field(name).type.value_type for each in (schema, row_format.schema))
            if one != other:
                raise SourceError(
                    f"'{name}' is {other} in these documents, and {one} in {self.folder}: convert the column, or pack "
                    "to another dataset"
                )


log = logging.getLogger(__name__)

_SHOWN = 3  # files in a message


def is_last_generation(
    growing: AppendTarget, source: SourceLike, opened: OpenDocuments, options: PackOptions, progress: Progress
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
        PackerError: all documents of a generation are among them; of the last one, together with others;
            or a shard of such a generation is damaged.
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
        for entry in part.shards:  # damage must not pass for other documents
            deque(checked_batches(growing.folder, entry, part), maxlen=0)
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
