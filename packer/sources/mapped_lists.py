"""Documents as lists that stay where they are: addressed in memory, and decoded again only where values are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from packer.gather import TokenColumn
from packer.sources.decode_pool import DecodePool
from packer.sources.documents import Batch, Columns, DecodedSize, Input, Places, SourceFile
from packer.sources.record_batches import BatchStore

_DOCUMENTS = 1 << 20  # documents handed on at once: 4 MB of lengths
_CHUNKS = 1 << 10  # and record batches, where they are small: a megabyte for each column


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedLists(Input):
    """Lists that stay where they are: a mapped IPC file, a mapped decoded copy of some input, or a table in memory."""

    file: SourceFile
    path: Path | None

    stores: tuple[BatchStore, ...]
    """The record batches, in order; those of a decoded copy lie in several files."""

    input_ids: str
    """The column with the tokens."""

    labels: str | None
    """The column with the labels, which may be that with the tokens; None where there are none."""

    extra: tuple[str, ...]
    """Other columns."""

    origin: Places | None = None
    """Where the documents come from, if this is a decoded copy."""

    @property
    def rows(self) -> int:
        """Documents."""
        return sum(int(store.ends[-1]) for store in self.stores if len(store.ends))

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None without documents, where nothing needs them."""
        return None if self.labels is None and not self.rows else self.labels is not None

    @property
    def mapped(self) -> bool:
        """Always."""
        return True

    @property
    def decoded(self) -> DecodedSize | None:
        """Nothing is to be decoded."""
        return DecodedSize(0, 0)

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the other columns; empty without documents."""
        stores = [store for store in self.stores if len(store.ends)]
        return {name: stores[0].type_of(name) for name in self.extra} if stores else {}

    @property
    def places(self) -> Places:
        """What names the documents."""
        return self

    def tokens(self, name: str) -> TokenColumn:
        """The addresses of the column with the tokens, or of that with the labels."""
        return TokenColumn.joined([store.tokens[name] for store in self.stores])

    def chunks(self, *names: str) -> Iterator[list[pa.Array]]:
        """Decode columns; yield one array for each of them, record batch by record batch."""
        for store in self.stores:
            yield from store.read(range(len(store.ends)), names)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield runs of up to a million documents or so: small chunks together, a huge chunk in slices."""
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

    def place(self, row: int) -> str:
        """Name the row, or what the row was decoded from."""
        return self.origin.place(row) if self.origin is not None else f"{self.file.name} row {row}"
