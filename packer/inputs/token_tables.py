"""Tables of checked documents: addresses of their tokens, and columns with a value per list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.gather import TokenColumn
from packer.inputs.documents import Batch
from packer.inputs.record_batches import BatchStore, ends_of


@dataclass(frozen=True, slots=True)
class HeldChunks:
    """A column as chunks in memory, such as one of a table read as a stream; satisfies `BatchStore`."""

    chunks: Sequence[pa.Array]
    """Chunks of the column, none of them empty."""

    kind: pa.DataType
    """Type of the chunks."""

    ends: NDArray[np.int64]
    """Shape (chunks,): cumulative lengths of the chunks."""

    @classmethod
    def of(cls, chunks: Sequence[pa.Array], kind: pa.DataType) -> HeldChunks:
        """Hold the chunks that are not empty."""
        filled = [chunk for chunk in chunks if len(chunk)]
        return cls(filled, kind, ends_of(map(len, filled)))

    @property
    def tokens(self) -> Mapping[str, TokenColumn]:
        """Empty: no addresses are held."""
        return {}

    @property
    def owner(self) -> object:
        """The chunks, which own their memory."""
        return self.chunks

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of the chunks."""
        return self.kind

    def whole(self) -> HeldChunks:
        """Return itself: all values are in memory."""
        return self

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the chunks with these numbers."""
        for number in numbers:
            yield [self.chunks[number]]


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column with one value per list of a table; record batches are decoded each time values are needed."""

    name: str

    type: pa.DataType
    """Type of all values."""

    stores: tuple[BatchStore, ...]
    """Record batches that hold the values, in order."""

    @classmethod
    def of_chunks(cls, name: str, chunks: Sequence[pa.Array], kind: pa.DataType | None = None) -> ValueColumn:
        """Make a column of arrays in memory.

        Args:
            name: name of the column.
            chunks: arrays of one type.
            kind: type of the arrays; None for the type of the first, which must exist then.
        """
        kind = chunks[0].type if kind is None else kind
        return cls(name, kind, (HeldChunks.of(chunks, kind),))

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All values, as arrays that are decoded one at a time."""
        for store in self.stores:
            for (chunk,) in store.read(range(len(store.ends)), [self.name]):
                yield chunk

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the values of lists, given their numbers in ascending order."""
        parts, first = [], 0  # taken chunk by chunk, because `take` of a chunked array copies all chunks
        for store in self.stores:
            count = int(store.ends[-1]) if len(store.ends) else 0
            begin, end = np.searchsorted(lists, [first, first + count])
            parts += _taken(store, self.name, lists[begin:end] - first)
            first += count
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)

    def addresses(self) -> TokenColumn:
        """Return the addresses of a column that holds one value per token."""
        return TokenColumn.from_arrow(self.chunks, tuple(store.owner for store in self.stores))


def _taken(store: BatchStore, name: str, lists: NDArray[np.int64]) -> list[pa.Array]:
    """Return the values of lists of a store, ascending, as one array per record batch."""
    numbers = np.searchsorted(store.ends, lists, side="right")
    wanted, firsts = np.unique(numbers, return_index=True)
    starts = np.concatenate([[0], store.ends])[wanted]
    parts = [lists[first:last] for first, last in pairwise([*firsts, len(lists)])]
    chunks = store.read(wanted.tolist(), [name])
    return [chunk.take(as_arrow(part - start)) for (chunk,), part, start in zip(chunks, parts, starts, strict=True)]


class ListNumbers(Protocol):
    """Maps documents to lists: an array, or an object that computes its elements on demand."""

    def __getitem__(self, documents: NDArray[np.int64], /) -> NDArray[Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """A contiguous stretch of checked documents, in memory or memory-mapped.

    No list is null or holds a null, offsets are valid, labels are as long as input_ids. Gathering checks token values.
    """

    input_ids: TokenColumn
    """Lists of token ids."""

    labels: TokenColumn | None
    """Lists of labels; None if the source has none."""

    lengths: NDArray[np.int32]
    """(documents,) tokens in each document."""

    lists: ListNumbers | None
    """List of each document: document i is list lists[i] of the columns; None if it is list i."""

    extra: Mapping[str, ValueColumn]
    """Requested extra columns by name, with one value per list."""

    first_document: int
    """Index of the first document in the whole source."""

    def lists_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of the columns that each of these documents is."""
        return documents if self.lists is None else self.lists[documents].astype(np.int64)


def table_of(batch: Batch, lengths: NDArray[np.int32], first_document: int) -> TokenTable:
    """Return checked documents as a table.

    Args:
        batch: the documents.
        lengths: (documents,) tokens of each.
        first_document: index of the first one in the source.
    """
    return TokenTable(
        input_ids=TokenColumn.from_arrow(batch.input_ids),
        labels=TokenColumn.from_arrow(batch.labels) if batch.labels is not None else None,
        lengths=lengths,
        lists=None,
        extra={name: ValueColumn.of_chunks(name, chunks) for name, chunks in batch.extra.items()}
        if batch.input_ids
        else {},
        first_document=first_document,
    )
