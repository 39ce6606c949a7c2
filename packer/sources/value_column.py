"""A column beside the tokens, whose values are looked up where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.gather import TokenColumn
from packer.sources.record_batches import BatchStore, ends_of


@dataclass(frozen=True, slots=True)
class HeldChunks:
    """A column in chunks that are held, as those of a table that is read as a stream."""

    chunks: Sequence[pa.Array]
    """None of them empty."""

    kind: pa.DataType
    """Their type."""

    ends: NDArray[np.int64]
    """Shape (chunks,): values up to the end of each."""

    @classmethod
    def of(cls, chunks: Sequence[pa.Array], kind: pa.DataType) -> HeldChunks:
        """Hold these chunks, those without values left out."""
        filled = [chunk for chunk in chunks if len(chunk)]
        return cls(filled, kind, ends_of(map(len, filled)))

    @property
    def tokens(self) -> Mapping[str, TokenColumn]:
        """None is described."""
        return {}

    @property
    def owner(self) -> object:
        """The chunks."""
        return self.chunks

    def type_of(self, name: str) -> pa.DataType:
        """The type of the chunks."""
        return self.kind

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the chunks."""
        for number in numbers:
            yield [self.chunks[number]]


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column with a value for each list of a table; record batches are decoded when their values are wanted."""

    name: str

    type: pa.DataType
    """Of all values."""

    stores: tuple[BatchStore, ...]
    """Where they are, in order."""

    @classmethod
    def of_chunks(cls, name: str, chunks: Sequence[pa.Array], kind: pa.DataType | None = None) -> ValueColumn:
        """A column of arrays that are held.

        Args:
            name: the column.
            chunks: the arrays, all of one type.
            kind: the type; None for that of the arrays, of which there must be one then.
        """
        kind = chunks[0].type if kind is None else kind
        return cls(name, kind, (HeldChunks.of(chunks, kind),))

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All values, decoded array by array."""
        for store in self.stores:
            for (chunk,) in store.read(range(len(store.ends)), [self.name]):
                yield chunk

    def at(self, rows: NDArray[np.int64]) -> pa.Array:
        """The values at these rows, ascending; chunk by chunk, since taking from all chunks at once copies all."""
        parts, first = [], 0
        for store in self.stores:
            count = int(store.ends[-1]) if len(store.ends) else 0
            begin, end = np.searchsorted(rows, [first, first + count])
            parts += _taken(store, self.name, rows[begin:end] - first)
            first += count
        return pa.concat_arrays(parts) if parts else pa.array([], self.type)

    def addresses(self) -> TokenColumn:
        """The lists of a column of values per token, by address."""
        return TokenColumn.from_arrow(self.chunks, tuple(store.owner for store in self.stores))


def _taken(store: BatchStore, name: str, rows: NDArray[np.int64]) -> list[pa.Array]:
    """The values of a column at rows of a store, ascending: those of each batch that has any."""
    numbers = np.searchsorted(store.ends, rows, side="right")
    wanted, firsts = np.unique(numbers, return_index=True)
    starts = np.concatenate([[0], store.ends])[wanted]
    parts = [rows[first:last] for first, last in pairwise([*firsts, len(rows)])]
    chunks = store.read(wanted.tolist(), [name])
    return [chunk.take(as_arrow(part - start)) for (chunk,), part, start in zip(chunks, parts, starts, strict=True)]
