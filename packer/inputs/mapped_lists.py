"""Documents as lists in mapped files or tables, addressed in place and decoded only when values are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from packer.gather import TokenColumn
from packer.inputs.decode_pool import DecodePool
from packer.inputs.document_errors import reading, reading_copy
from packer.inputs.documents import Batch, Columns, DecodedSize, Input, Places, RowPlaces, SourceFile
from packer.inputs.mapped_files import MappedFile
from packer.inputs.token_tables import BatchStore
from packer.stores import AnyPath

_DOCUMENTS = 1 << 20  # documents per batch: 4 MB of lengths
_CHUNKS = 1 << 10  # record batches per batch if they are small: a megabyte per column


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedLists(Input):
    """An input whose lists are in memory: a mapped IPC file, the mapped decoded copy of an input, or a table."""

    file: SourceFile
    path: AnyPath | None

    stores: tuple[BatchStore, ...]
    """Record batches in order; those of a decoded copy are in several files."""

    input_ids: str
    """Name of the column with the tokens."""

    labels: str | None
    """Name of the column with the labels, possibly that with the tokens; None if there are no labels."""

    extra: tuple[str, ...]
    """Names of the extra columns."""

    origin: Places | None = None
    """Locations in the original file; None unless this is a decoded copy."""

    @property
    def rows(self) -> int:
        """Number of documents."""
        return sum(int(store.ends[-1]) for store in self.stores if len(store.ends))

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if there are neither labels nor documents."""
        return None if self.labels is None and not self.rows else self.labels is not None

    @property
    def decoded(self) -> DecodedSize | None:
        """Zero: nothing needs decoding."""
        return DecodedSize(0, 0)

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the extra columns; empty if there are no documents."""
        stores = [store for store in self.stores if len(store.ends)]
        return {name: stores[0].schema.field(name).type for name in self.extra} if stores else {}

    @property
    def places(self) -> Places:
        """Locations of the documents, in the original file if this is a decoded copy."""
        return self.origin or RowPlaces(self.file.name)

    def tokens(self, name: str) -> TokenColumn:
        """Return the addresses of the column of this name, that with the tokens or that with the labels."""
        return TokenColumn.joined([store.tokens[name] for store in self.stores])

    def chunks(self, *names: str) -> Iterator[list[pa.Array]]:
        """Decode columns; yield a list of one array per column for each record batch."""
        for store in self.stores:
            yield from store.read(range(len(store.ends)), names)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield batches of about a million documents: small chunks are combined, large ones sliced."""
        names = Columns(self.input_ids, self.labels or "", self.extra).wanted(has_labels=self.labels is not None)
        parts: list[list[pa.Array]] = [[] for _ in names]
        documents = finished = 0
        total = max(self.rows, 1)
        for chunks in self.chunks(*names):
            for start in range(0, len(chunks[0]), _DOCUMENTS):
                for part, chunk in zip(parts, chunks, strict=True):
                    part.append(chunk.slice(start, _DOCUMENTS) if len(chunk) > _DOCUMENTS else chunk)
                documents += len(parts[0][-1])
                if documents >= _DOCUMENTS or len(parts[0]) >= _CHUNKS or finished + documents == total:
                    finished += documents
                    yield self._batch(parts, self.file.bytes * finished // total)
                    parts, documents = [[] for _ in names], 0

    def _batch(self, parts: list[list[pa.Array]], done: int) -> Batch:
        input_ids, *others = parts
        labels = others.pop(0) if self.labels is not None else None
        return Batch(input_ids, labels, done, dict(zip(self.extra, others, strict=True)))

    def reading(self) -> AbstractContextManager[None]:
        """Convert errors of reading the file, or the decoded copy of it."""
        files = [store for store in self.stores if isinstance(store, MappedFile)]
        if files and self.origin is not None:
            return reading_copy(files[0].state.path.parent, self.file.name)
        return reading(self.file.name)
