"""Tables in memory, and documents as lists in these or in mapped files: addressed in place, decoded when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.shards.row_format import RowFormat
from packer.sources.column_types import as_plain, plain_type
from packer.sources.documents import Columns, SourceFile, place_of_row, reading, reading_copy
from packer.sources.list_checks import as_wide, document_error, document_lengths, wide_type, width_of
from packer.sources.mapped_files import FileState, MappedArrays, MappedFile
from packer.token_memory import TokenColumn

if TYPE_CHECKING:
    from datasets.table import Table as DatasetsTable


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInMemory:
    """Record batches of a table. Each is a slice of one chunk per column. Pickled by value."""

    owner: pa.Table | DatasetsTable
    """A table of `datasets` maps its files again when it is unpickled."""

    files: tuple[FileState, ...]
    """Files that a table of `datasets` maps, and maps again when it is unpickled."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    chunk_ends: Mapping[str, NDArray[np.int64]]
    """Cumulative lengths of the chunks of each column, each of shape (chunks,)."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @classmethod
    def of(cls, owner: pa.Table | DatasetsTable, names: Sequence[str], tokens: Sequence[str] = ()) -> TableInMemory:
        """Describe the columns `names` of a table; the columns `tokens` hold tokens or labels."""
        columns = {name: _table(owner).column(name).iterchunks() for name in names}
        chunk_ends = {name: np.cumsum([*map(len, chunks)], dtype=np.int64) for name, chunks in columns.items()}
        ends = np.unique(np.concatenate([np.zeros(0, np.int64), *chunk_ends.values()]))
        ends = ends[ends > 0]
        bare = cls(owner=owner, files=_files_of(owner), ends=ends, chunk_ends=chunk_ends, tokens={})

        def addressed(name: str) -> TokenColumn:
            return TokenColumn.from_arrow((column for (column,) in bare.read(range(len(ends)), [name])), (owner,))

        return replace(bare, tokens={name: addressed(name) for name in tokens})

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns, as they are read."""
        found = _table(self.owner).schema
        return pa.schema([(name, plain_type(found.field(name).type)) for name in self.chunk_ends])

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Slice the chunks and yield the named columns of each batch."""
        table = _table(self.owner)
        columns = [(table.column(name), self.chunk_ends[name]) for name in names]
        all_plain = all(column.type.equals(plain_type(column.type)) for column, _ in columns)
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            rows = int(self.ends[number]) - first
            slices = [_slice(column, ends, first, rows) for column, ends in columns]
            yield slices if all_plain else [as_plain(values) for values in slices]

    def __reduce__(self) -> tuple[object, ...]:
        names, token_names = list(self.chunk_ends), list(self.tokens)
        owner = self.owner.select(names)
        return _describe_again, (self.files, owner, names, token_names)


def _describe_again(
    _: tuple[FileState, ...],  # which are checked before the table maps them
    owner: pa.Table | DatasetsTable,
    names: Sequence[str],
    token_names: Sequence[str],
) -> TableInMemory:
    return TableInMemory.of(owner, names, token_names)


def _slice(column: pa.ChunkedArray, ends: NDArray[np.int64], first: int, rows: int) -> pa.Array:
    number = int(np.searchsorted(ends, first, side="right"))
    chunk = column.chunk(number)
    return chunk.slice(first - int(ends[number]) + len(chunk), rows)


def _table(owner: pa.Table | DatasetsTable) -> pa.Table:
    return owner if isinstance(owner, pa.Table) else owner.table


def _files_of(owner: pa.Table | DatasetsTable) -> tuple[FileState, ...]:
    """Return the files that a table of `datasets` maps."""
    if isinstance(owner, pa.Table):
        return ()
    from datasets.table import list_table_cache_files

    paths = dict.fromkeys(Path(file).absolute() for file in list_table_cache_files(owner))
    return tuple(FileState(path, path.name, path.stat().st_size) for path in paths)


BatchStore: TypeAlias = MappedFile | MappedArrays | TableInMemory
"""Record batches in order, none empty. Several threads may read them at the same time."""


@dataclass(frozen=True)
class ValueColumn:
    """A column with one value per list of a table; record batches are decoded each time values are needed."""

    name: str

    type: pa.DataType
    stores: tuple[BatchStore, ...]
    """Record batches that hold the values, in order; lists of lists become fixed-size ones if the type says so."""

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All values, as arrays that are decoded one at a time."""
        for store in self.stores:
            for (chunk,) in store.read(range(len(store.ends)), [self.name]):
                yield as_wide(chunk, width_of(self.type))

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the values of lists, given their numbers in ascending order."""
        parts, first = [], 0  # taken chunk by chunk, because `take` of a chunked array copies all chunks
        for store in self.stores:
            count = int(store.ends[-1]) if len(store.ends) else 0
            begin, end = np.searchsorted(lists, [first, first + count])
            found = chunks_with(store, self.name, lists[begin:end] - first)
            parts += [chunk.take(as_arrow(numbers)) for chunk, numbers, _ in found]
            first += count
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)

    def of_lists(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the values of lists, which may come in any order and repeat."""
        found, positions = np.unique(lists, return_inverse=True)
        return self.at(found).take(as_arrow(positions))

    @cached_property
    def addresses(self) -> TokenColumn:
        """Addresses of a column that holds one value per token, or several; the offsets of the latter may be made."""
        owners = tuple(store.owner for store in self.stores)
        return TokenColumn.from_arrow(self.chunks, owners if width_of(self.type) is None else None)


@dataclass(frozen=True)
class RecordColumn(ValueColumn):
    """The record of each list, numbered from 0, by a column that numbers the lists of each record from 0."""

    before: NDArray[np.int64]
    """Shape (batches,): number of records of the source that begin before each record batch of the stores."""

    @classmethod
    def of(cls, name: str, stores: Sequence[BatchStore]) -> RecordColumn:
        """Read the column once, to count the records."""
        numbers = ValueColumn(name, pa.int32(), tuple(stores)).chunks
        counts = [int(np.count_nonzero(as_numpy(chunk) == 0)) for chunk in numbers]
        ends = np.cumsum([0, *counts], dtype=np.int64)
        return cls(name, pa.int64(), tuple(stores), ends[:-1])

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All records, as arrays of int64 that are made one at a time."""
        numbers = ValueColumn(self.name, self.type, self.stores).chunks
        for chunk, before in zip(numbers, self.before.tolist(), strict=True):
            yield as_arrow(before + np.cumsum(as_numpy(chunk) == 0) - 1)

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the records of lists, given their numbers in ascending order."""
        batches = [(store, number) for store in self.stores for number in range(len(store.ends))]
        sizes = [np.diff(store.ends, prepend=0) for store in self.stores]
        ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *sizes]))
        found, firsts = np.unique(np.searchsorted(ends, lists, side="right"), return_index=True)
        parts = [np.zeros(0, np.int64)]
        for batch, some in zip(found.tolist(), np.split(lists, firsts[1:]), strict=True):
            store, number = batches[batch]
            ((chunk,),) = store.read([number], [self.name])
            records = self.before[batch] + np.cumsum(as_numpy(chunk) == 0) - 1
            parts.append(records[some - ends[batch] + len(chunk)])
        return as_arrow(np.concatenate(parts))


def chunks_with(
    store: BatchStore, name: str, lists: NDArray[np.int64]
) -> Iterator[tuple[pa.Array, NDArray[np.int64], slice]]:
    """Yield a column of each record batch that has some of `lists`, which are ascending.

    Yields (array, numbers, place): `lists[place]` are in the array, at these numbers.
    """
    numbers = np.searchsorted(store.ends, lists, side="right")
    wanted, firsts = np.unique(numbers, return_index=True)
    starts = np.concatenate([[0], store.ends])[wanted]
    places = map(slice, firsts, [*firsts[1:], len(lists)])
    for (chunk,), start, here in zip(store.read(wanted.tolist(), [name]), starts, places, strict=True):
        yield chunk, lists[here] - start, here


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """Checked documents of a source, in memory or memory-mapped.

    No list is null or holds a null, offsets are valid, labels are as long as input_ids. Gathering checks token values.
    """

    input_ids: TokenColumn
    labels: TokenColumn | None
    """Lists of labels; None if the source has none."""

    lengths: NDArray[np.int32]
    """(documents,) tokens in each document."""

    lists: NDArray[np.int64] | None
    """List of each document in the columns; None if document i is list i."""

    extra: Mapping[str, ValueColumn]
    """Requested extra columns by name, with one value per list."""

    def token_columns(self, row_format: RowFormat) -> dict[str, TokenColumn]:
        """Return the columns that rows have their values per token from; those of an index only have labels counted."""
        columns = {} if row_format.index_only else {"input_ids": self.input_ids}
        if self.labels is not None and "labels" in row_format.token_columns:
            columns["labels"] = self.labels
        return columns | {name: self.extra[name].addresses for name in row_format.stored_kept_tokens}

    def lists_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lists in which these documents are."""
        return documents if self.lists is None else self.lists[documents]


_DOCUMENTS = 1 << 20  # whose lengths are yielded together: 4 MB
_CHUNKS = 1 << 10  # record batches, if they are small


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedLists:
    """An input whose lists are in memory: a mapped IPC file, the mapped decoded copy of an input, or a table."""

    file: SourceFile

    stores: tuple[BatchStore, ...]
    """Record batches in order; those of a decoded copy are in several files."""

    columns: Columns
    labels: bool
    """Whether there are labels."""

    origin: Callable[[int], str] | None = None
    """Function from a record to its location in the original file; None unless this is a decoded copy."""

    numbers_documents: str = ""
    """Column that numbers the documents of each record from 0, if there is one: then `origin` locates records."""

    @property
    def fields(self) -> list[str]:
        """Names of the columns of its files, read or not."""
        return list(dict.fromkeys(name for store in self.stores for name in store.schema.names))

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that are read."""
        return self.columns.wanted(has_labels=self.labels)

    @property
    def rows(self) -> int:
        """Number of documents."""
        return sum(int(store.ends[-1]) for store in self.stores if len(store.ends))

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if there are neither labels nor documents."""
        return None if not self.labels and not self.rows else self.labels

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the extra columns; empty if there are no documents."""
        return next((self.types_in(store) for store in self.stores if len(store.ends)), {})

    def types_in(self, store: BatchStore) -> dict[str, pa.DataType]:
        """Return the types of the extra columns in one of the stores, as `chunks` has them."""
        names, widths = self.columns.extra, self.columns.widths
        return {name: wide_type(store.schema.field(name).type, widths.get(name)) for name in names}

    def tokens(self, name: str) -> TokenColumn:
        """Return the addresses of the column of this name, that with the tokens or that with the labels."""
        return TokenColumn.joined([store.tokens[name] for store in self.stores])

    def chunks(self, *names: str) -> Iterator[list[pa.Array]]:
        """Decode columns; yield a list of one array per column for each record batch."""
        for store in self.stores:
            for arrays in store.read(range(len(store.ends)), names):
                yield [as_wide(array, self.columns.widths.get(name)) for name, array in zip(names, arrays, strict=True)]

    def chunks_of(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield extra columns of the documents in order."""
        return (dict(zip(names, arrays, strict=True)) for arrays in self.chunks(*names))

    def lengths(self) -> Iterator[NDArray[np.int32]]:
        """Check the documents, and yield the lengths of about a million at a time.

        Raises a DocumentError, with its place, if a document is invalid. Gathering checks values of tokens.
        """
        columns = self.columns
        names = (columns.input_ids, *((columns.labels,) if self.labels else ()), *columns.per_token)
        parts: list[NDArray[np.int32]] = []
        held = row = 0
        with self._reading():
            for chunks in self.chunks(*names):
                for start in range(0, len(chunks[0]), _DOCUMENTS):
                    tokens, *others = (chunk.slice(start, _DOCUMENTS) for chunk in chunks)
                    beside = dict(zip(names[1:], others, strict=True))
                    parts.append(document_lengths(tokens, beside, columns.widths))
                    for wrong in np.flatnonzero(parts[-1] < 0)[:1].tolist():
                        fault = document_error(tokens, beside, wrong, columns).at(row + wrong)
                        fault.place = self.place(fault.row)
                        raise fault
                    held, row = held + len(tokens), row + len(tokens)
                    if held >= _DOCUMENTS or len(parts) >= _CHUNKS:
                        yield np.concatenate(parts)
                        parts, held = [], 0
        if parts:
            yield np.concatenate(parts)

    def place(self, row: int) -> str:
        """Return the location of a document in its file, such as "rows.jsonl line 18"."""
        if self.numbers_documents:
            row = RecordColumn.of(self.numbers_documents, self.stores).at(np.array([row]))[0].as_py()
        return self.origin(row) if self.origin is not None else place_of_row(self.file.name, 0, row)

    def _reading(self) -> AbstractContextManager[None]:
        """Convert errors of reading the file, or the decoded copy of it."""
        files = [store for store in self.stores if isinstance(store, MappedFile)]
        if files and self.origin is not None:
            return reading_copy(files[0].state.path.parent, self.file.name)
        return reading(self.file.name)
