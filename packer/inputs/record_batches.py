"""Record batches of mapped files and of tables in memory, and columns of them, decoded each time they are needed.

A decoded batch takes about a kilobyte per column, so none is held. A store holds only where its batches begin and
the addresses of its token columns, about 70 bytes per batch. Stores can be pickled: a file is mapped again by path, and
a table is pickled by value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.gather import TokenColumn
from packer.gather.token_column import Addresses, ColumnBuilder
from packer.inputs.column_types import as_plain, plain_type
from packer.inputs.document_errors import reading
from packer.inputs.mapped_files import is_ipc_file, map_file, map_parts, schema_of
from packer.stores import AnyPath, RemotePath
from packer.stores.mirror import fetched_parts, map_whole


class BatchStore(Protocol):
    """Record batches in order, none of them empty."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Shape (batches,): cumulative lengths of the batches."""

    @property
    def tokens(self) -> Mapping[str, TokenColumn]:
        """Addresses of the token and label columns, by name."""

    @property
    def owner(self) -> object:
        """Object that keeps the memory of the batches alive."""

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column as `read` yields it."""

    def whole(self) -> BatchStore:
        """Return the same record batches with all of their values in memory."""

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Decode batches and yield the named columns of each. Several threads may read at the same time.

        Args:
            numbers: numbers of the batches, ascending.
            names: names of the columns.
        """


@dataclass(frozen=True, slots=True)
class FileState:
    """Path and size of a file when it was opened."""

    path: AnyPath
    name: str
    """Name of the file in messages."""

    bytes: int

    def check(self) -> None:
        """Raise a `SourceError` if the file is missing or has another size."""
        try:
            found = self.path.stat().st_size
        except OSError as error:
            raise SourceError(
                f"{self.name}: cannot be read again ({error.strerror}); it was opened as {self.path}: put it back there"
            ) from error
        if found != self.bytes:
            raise SourceError(
                f"{self.name}: changed from {self.bytes:,} to {found:,} bytes since it was opened; "
                "open the source again"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFile:
    """The record batches of an uncompressed IPC stream or file."""

    state: FileState
    """AnyPath, name and size of the file."""

    owner: pa.Buffer
    """Memory of the mapped file."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    places: NDArray[np.int64]
    """Shape (batches,): byte offset of each batch in a stream, or its number in a file; empty batches are left out."""

    in_sequence: bool
    """Whether batches must be decoded in sequence because their dictionaries change."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return schema_of(self.owner).field(name).type

    def whole(self) -> MappedFile:
        """Return the same record batches with all of their values in memory, also if the file is in a store."""
        if not isinstance(self.state.path, RemotePath):
            return self
        with reading(self.state.name):
            return self._moved_to(map_whole(self.state.path))

    def _moved_to(self, owner: pa.Buffer) -> MappedFile:
        by = owner.address - self.owner.address
        tokens = {
            name: TokenColumn(addresses=_moved(column.addresses, by), owners=(owner,))
            for name, column in self.tokens.items()
        }
        return replace(self, owner=owner, tokens=tokens)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Decode batches and yield the named columns of each."""
        with reading(self.state.name):
            for batch in self._decode(numbers):
                yield [batch.column(name) for name in names]

    def _decode(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        if is_ipc_file(self.owner):
            file = pa.ipc.open_file(self.owner)
            for number in numbers:
                yield file.get_batch(int(self.places[number]))
            return
        source = pa.BufferReader(self.owner)
        stream = pa.ipc.open_stream(source)
        start, head = source.tell(), None
        for number in numbers:
            place = int(self.places[number])
            if head is None:
                head = stream.read_next_batch()  # also reads the dictionaries before it, which later batches need
            if place == start:
                yield head
                continue
            if self.in_sequence:
                while source.tell() < place:
                    stream.read_next_batch()
            else:
                source.seek(place)
            yield stream.read_next_batch()

    def __reduce__(self) -> tuple[object, ...]:
        base = self.owner.address
        columns = {name: _moved(column.addresses, -base) for name, column in self.tokens.items()}
        fetched = fetched_parts(base, self.owner.size) if isinstance(self.state.path, RemotePath) else None
        return _map_again, (self.state, self.ends, self.places, self.in_sequence, columns, fetched)


def _map_again(
    state: FileState,
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
    in_sequence: bool,
    columns: Mapping[str, Addresses],
    fetched: NDArray[np.int64] | None,
) -> MappedFile:
    """Unpickle a `MappedFile`: map its file again. What is in memory of an object is fetched on first use."""
    state.check()
    with reading(state.name):
        owner = map_file(state.path) if fetched is None else map_parts(state.path, fetched)  # type: ignore[arg-type]
    tokens = {
        name: TokenColumn(addresses=_moved(addresses, owner.address), owners=(owner,))
        for name, addresses in columns.items()
    }
    return MappedFile(state=state, owner=owner, ends=ends, places=places, in_sequence=in_sequence, tokens=tokens)


def _moved(addresses: Addresses, distance: int) -> Addresses:
    """Add a distance to all addresses, modulo 2**64. Fixed-size lists have no offsets and keep 0 for them."""
    by = np.uint64(distance % 2**64)
    offsets = np.where(addresses.offset_bytes > 0, addresses.offsets + by, addresses.offsets)
    return addresses._replace(offsets=offsets, values=addresses.values + by)


def ends_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return cumulative lengths, shape (batches,): [2, 3] -> [2, 5]."""
    return np.cumsum(np.array(array("q", lengths), np.int64))


class DatasetsTable(Protocol):
    """Table of `datasets`, which maps its files again when it is unpickled."""

    @property
    def table(self) -> pa.Table:
        """The same table."""

    def select(self, columns: Sequence[str], /) -> DatasetsTable:
        """Return some columns of the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInMemory:
    """Record batches of a table, each of them a slice of one chunk per column."""

    owner: pa.Table | DatasetsTable

    files: tuple[FileState, ...]
    """Files that a table of `datasets` maps, and maps again when it is unpickled."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    chunk_ends: Mapping[str, NDArray[np.int64]]
    """Cumulative lengths of the chunks of each column, each of shape (chunks,)."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @classmethod
    def of(cls, owner: pa.Table | DatasetsTable, names: Sequence[str], token_names: Sequence[str]) -> TableInMemory:
        """Describe some columns of a table.

        Args:
            owner: the table.
            names: columns to read.
            token_names: columns among `names` that hold tokens or labels.
        """
        table = _table(owner)
        chunk_ends = {name: ends_of(len(chunk) for chunk in table.column(name).iterchunks()) for name in names}
        ends = np.unique(np.concatenate([np.zeros(0, np.int64), *chunk_ends.values()]))
        ends = ends[ends > 0]
        bare = cls(owner=owner, files=_files_of(owner), ends=ends, chunk_ends=chunk_ends, tokens={})
        builders = {name: ColumnBuilder() for name in token_names}
        for columns in bare.read(range(len(ends)), token_names):
            for builder, column in zip(builders.values(), columns, strict=True):
                builder.add(column, column.buffers())
        tokens = {
            name: TokenColumn(addresses=builder.addresses(), owners=(owner,)) for name, builder in builders.items()
        }
        return cls(owner=owner, files=bare.files, ends=ends, chunk_ends=chunk_ends, tokens=tokens)

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return plain_type(_table(self.owner).schema.field(name).type)

    def whole(self) -> TableInMemory:
        """Return itself: all values are in memory."""
        return self

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
        return _describe_again, (_Unchanged(self.files), owner, names, token_names)


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """Files that unpickling checks; placed before the table in the pickle, so that it runs before they are mapped."""

    files: tuple[FileState, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return _check_again, (self.files,)


def _check_again(files: tuple[FileState, ...]) -> _Unchanged:
    for file in files:
        file.check()
    return _Unchanged(files)


def _describe_again(
    _: _Unchanged, owner: pa.Table | DatasetsTable, names: Sequence[str], token_names: Sequence[str]
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
