"""Arrow files, saved datasets and tables in memory. Token lists are mapped if possible; everything else is decoded.

A decoded batch takes about a kilobyte per column, so batches are not kept. `MappedFile` stores where the batches of a
file begin and the addresses of its token columns, about 70 bytes per batch. Pickling stores its path; unpickling maps
the file again.

For an object in storage, only message headers are fetched at first, one after another. They are put into memory of the
size of the object, from which pyarrow reads record batches. pyarrow reads the bodies of compressed record batches
immediately, so `packer/arrow.py` identifies compressed batches first.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import DICTIONARY_BATCH, RECORD_BATCH, MessageHeader
from packer.errors import SourceError
from packer.sources import format_reader
from packer.sources.column_types import as_plain, find_columns, has_type, is_json, plain_type
from packer.sources.documents import Columns, SourceFile, reading
from packer.sources.format_reader import LIST_ROWS, LISTS, ROWS, BatchStore, Lists, Reader, share_of
from packer.stores import AnyPath, RemotePath, pinned
from packer.stores.mirror import Mirror, fetch_chunks, map_whole
from packer.token_memory.token_column import Addresses, ColumnBuilder, TokenColumn

if TYPE_CHECKING:
    from datasets.table import Table as DatasetsTable


MAGIC = b"ARROW1"
"""First bytes of an IPC file; an IPC stream begins with the length of its schema message."""

_TAIL = 1 << 12  # number of bytes at the end of an Arrow file that contain its footer


def map_file(path: AnyPath) -> pa.Buffer:
    """Map an Arrow file into memory. For an object in storage, only message headers are fetched."""
    if isinstance(path, RemotePath):
        return with_headers(path)[0].buffer
    return map_whole(path)


def mirrored(path: RemotePath) -> Mirror:
    """Return memory of the size of an object, with the parts fetched so far. All tasks of the process share it."""
    found = path.pinned()
    return _mirrored(found, found.stat().etag)


def with_headers(path: RemotePath) -> tuple[Mirror, int, bool]:
    """Return (memory with the headers of an Arrow stream or file, number of rows, whether it is compressed)."""
    mirror = mirrored(path)
    return mirror, *_fetch_headers(mirror)


@lru_cache(maxsize=1 << 16)
def _mirrored(path: RemotePath, etag: str) -> Mirror:
    return Mirror(path, path.stat().st_size)


def _is_ipc_file(buffer: pa.Buffer) -> bool:
    """Whether a buffer holds an IPC file rather than a stream."""
    return bytes(buffer.slice(0, len(MAGIC))) == MAGIC


def schema_of(buffer: pa.Buffer) -> pa.Schema:
    """Return the schema of a mapped stream or file, with types as in `_with_storage`."""
    schema = pa.ipc.open_file(buffer).schema if _is_ipc_file(buffer) else pa.ipc.open_stream(buffer).schema
    for number, field in enumerate(schema):
        if isinstance(field.type, pa.BaseExtensionType) and not is_json(field.type):
            schema = schema.set(number, field.with_type(field.type.storage_type))
    return schema


def _with_storage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace extension columns, except JSON, by their storage; nothing is copied.

    pyarrow reads such a column as its storage until a library registers the type, such as `datasets` for `Array2D`.
    With this function, the result does not depend on imported libraries.
    """
    for number, column in enumerate(batch.columns):
        if isinstance(column.type, pa.BaseExtensionType) and not is_json(column.type):
            field = batch.schema.field(number).with_type(column.type.storage_type)
            batch = batch.set_column(number, field, column.storage)
    return batch


@dataclass(frozen=True, slots=True)
class FileState:
    """Path and size of a file when it was opened. Unpickling checks both."""

    path: AnyPath
    name: str
    bytes: int

    def __reduce__(self) -> tuple[object, ...]:
        return _unchanged, (self.path, self.name, self.bytes)


def _unchanged(path: AnyPath, name: str, size: int) -> FileState:
    """Unpickle a `FileState`. Raises a SourceError if the file is missing or its size differs."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise SourceError(
            f"{name}: cannot be read again ({error.strerror}); it was opened as {path}: put it back there"
        ) from error
    if found != size:
        raise SourceError(
            f"{name}: changed from {size:,} to {found:,} bytes since it was opened; open the source again"
        )
    return FileState(path, name, size)


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFile:
    """The record batches of an uncompressed IPC stream or file."""

    state: FileState
    owner: pa.Buffer
    ends: NDArray[np.int64]
    """Cumulative lengths of the batches; shape (batches,)."""

    places: NDArray[np.int64]
    """Byte offset (stream) or number (file) of each batch, without empty batches; shape (batches,)."""

    in_sequence: bool
    """Whether batches must be decoded in order, because their dictionaries change."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return schema_of(self.owner)

    def whole(self) -> MappedFile:
        """Return the file itself: reading it from the beginning decodes all of it."""
        return self

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Decode batches, and yield the named columns of each."""
        with reading(self.state.name):
            for batch in map(_with_storage, self._decode(numbers)):
                yield [batch.column(name) for name in names]

    def _decode(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        if _is_ipc_file(self.owner):
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
                head = stream.read_next_batch()  # also reads dictionaries, which later batches need
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
        path = self.state.path
        fetched = np.array(sorted(mirrored(path).fetched) if isinstance(path, RemotePath) else [], np.int64)
        return _map_again, (self.state, self.ends, self.places, self.in_sequence, columns, fetched)


def _map_again(
    state: FileState,
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
    in_sequence: bool,
    columns: Mapping[str, Addresses],
    fetched: NDArray[np.int64],
) -> MappedFile:
    """Unpickle a `MappedFile` by mapping its file again. `fetch_queued` fetches the chunks of an object."""
    with reading(state.name):
        if isinstance(state.path, RemotePath):
            mirror = mirrored(state.path)
            _later.append((mirror, fetched))
            owner = mirror.buffer
        else:
            owner = map_whole(state.path)
    by = owner.address
    tokens = {name: TokenColumn(addresses=_moved(each, by), owners=(owner,)) for name, each in columns.items()}
    return MappedFile(state=state, owner=owner, ends=ends, places=places, in_sequence=in_sequence, tokens=tokens)


_later: list[tuple[Mirror, NDArray[np.int64]]] = []
_fetching = threading.Lock()  # other threads wait until this thread has fetched its chunks


def fetch_queued() -> None:
    """Fetch the chunks of all unpickled files together; fetching them one at a time would be slow."""
    with _fetching:
        count = len(_later)  # other threads may add more in the meantime
        fetch_chunks(_later[:count])
        del _later[:count]


def _moved(addresses: Addresses, distance: int) -> Addresses:
    """Add a distance to all addresses, modulo 2**64. Fixed-size lists have no offsets and keep 0 for them."""
    by = np.uint64(distance % 2**64)
    offsets = np.where(addresses.offset_bytes > 0, addresses.offsets + by, addresses.offsets)
    return addresses._replace(offsets=offsets, values=addresses.values + by)


@lru_cache(maxsize=1 << 16)
def _fetch_headers(mirror: Mirror) -> tuple[int, bool]:
    """Fetch the headers of all messages, the dictionaries and the footer of an object.

    Returns (number of rows, whether a record batch is compressed). Stops without an error at the first damaged message;
    pyarrow reports the damage when it reads the message.
    """
    size, view = mirror.buffer.size, memoryview(mirror.buffer)
    tail = min(size, _TAIL)
    mirror.fetch([0, size - tail], [tail, tail])
    at = 0
    if bytes(view[: len(MAGIC)]) == MAGIC and size > 10:
        at = 8
        footer = int.from_bytes(view[size - 10 : size - 6], "little")
        if 0 < footer < size:
            mirror.fetch([size - 10 - footer], [footer])
    rows, is_compressed = 0, False
    while at + 8 <= size:
        mirror.fetch([at], [8])
        mark, length = struct.unpack_from("<II", view, at)
        start = at + 8
        if mark != 0xFFFFFFFF:  # streams of old versions have no such mark
            start, length = at + 4, mark
        if not 0 < length <= size - start:
            break
        mirror.fetch([start], [length])
        try:
            message = MessageHeader(view[start : start + length])
        except (struct.error, IndexError):
            break
        if message.kind == RECORD_BATCH:
            rows, is_compressed = rows + message.rows, is_compressed or message.is_compressed
        at = start + length + message.body
        if message.kind == DICTIONARY_BATCH:
            mirror.fetch([start], [min(at, size) - start])
    return rows, is_compressed


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInMemory:
    """Record batches of a table. No batch spans several chunks of a column. Pickling copies the table."""

    owner: pa.Table | DatasetsTable
    """Tables of `datasets` map their files again when they are unpickled."""

    files: tuple[FileState, ...]
    """Files that a table of `datasets` maps, and maps again when it is unpickled."""

    ends: NDArray[np.int64]
    """Cumulative lengths of the batches; shape (batches,)."""

    chunk_ends: Mapping[str, NDArray[np.int64]]
    """Cumulative lengths of the chunks of each column, each of shape (chunks,)."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @classmethod
    def of(cls, owner: pa.Table | DatasetsTable, names: Sequence[str], tokens: Sequence[str] = ()) -> TableInMemory:
        """Describe columns of a table; `tokens` are the columns of tokens and labels among `names`."""
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
        """Slice the chunks, and yield the named columns of each batch."""
        table = _table(self.owner)
        columns = [(table.column(name), self.chunk_ends[name]) for name in names]
        all_plain = all(column.type.equals(plain_type(column.type)) for column, _ in columns)
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            rows = int(self.ends[number]) - first
            slices = [_slice(column, ends, first, rows) for column, ends in columns]
            yield slices if all_plain else [as_plain(values) for values in slices]

    def whole(self) -> TableInMemory:
        """Return the table itself, which is in memory."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        names, token_names = list(self.chunk_ends), list(self.tokens)
        owner = self.owner.select(names)
        return _describe_again, (self.files, owner, names, token_names)


def _describe_again(
    _: tuple[FileState, ...],  # unpickled first, which checks that the files are unchanged
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


_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowReader(Reader):
    """Records in the record batches of a file, or of a table in memory."""

    file: SourceFile
    fields: pa.Schema
    rows: int = 0
    table: BatchStore | None = None
    """Table that holds the lists; None if they are in the Arrow file."""

    first_row: int = 0
    """Number of records before this part."""

    holds_lists: bool = False
    """Whether the records are token lists, for which larger blocks are decoded together."""

    whole: bool = False
    """Whether the file stays whole: it is compressed, so every piece would have to decompress all of it."""

    @classmethod
    def open(cls, file: SourceFile) -> ArrowReader:
        """Map a stream or file. Raises a SourceError if it is empty."""
        if not file.bytes:
            raise SourceError(
                f"{file.name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it or write it again"
            )
        with reading(file.name):
            return cls(file=file, fields=schema_of(map_file(file.stored)))

    @classmethod
    def of_table(cls, table: DatasetsTable, name: str) -> ArrowReader:
        """Open a table of `datasets`."""
        store = TableInMemory.of(table, table.table.column_names)
        file = SourceFile(name=name, bytes=table.table.nbytes, path=None)
        return cls(file=file, fields=table.table.schema, rows=len(table.table), table=store)

    @classmethod
    def of_lists(cls, file: SourceFile, store: BatchStore, *, has_labels: bool) -> Lists:
        """Return the token lists in memory among the columns of a store."""
        rows = int(store.ends[-1]) if len(store.ends) else 0
        return Lists(cls(file=file, fields=store.schema, rows=rows, table=store, holds_lists=True), has_labels, store)

    def for_records(self) -> ArrowReader:
        """Count the records of a stream or file."""
        if self.table is not None:
            return self
        rows, whole, path = 0, False, self.file.stored
        with reading(self.file.name):
            if isinstance(path, RemotePath):
                _, rows, whole = with_headers(path)
            else:
                buffer = map_file(path)
                for batch, _, _ in _placed_batches(buffer, self.file.name, ()):
                    rows += len(batch)
                    whole = whole or not all(_is_within(buffer, column.buffers()) for column in batch.columns)
        return replace(self, rows=rows, whole=whole)

    def for_lists(self, columns: Columns) -> Lists:
        """Map the token lists of a stream or file. If they cannot be mapped, prepare to decode them."""
        has_labels = find_columns(self.fields, self.file.name, columns)
        wanted = columns.wanted(has_labels=has_labels)
        if isinstance(self.table, TableInMemory):
            size = int(_table(self.table.owner).select(list(wanted)).nbytes)
            store = TableInMemory.of(self.table.owner, list(dict.fromkeys(wanted)), wanted[: 1 + has_labels])
            return self.of_lists(replace(self.file, bytes=size), store, has_labels=has_labels)
        kinds = [self.fields.field(name).type for name in columns.extra]
        with reading(self.file.name):
            mapped, rows = _map_lists(self.file, columns, has_labels=has_labels)
        reader = replace(self, rows=rows, holds_lists=True, whole=mapped is None)
        return Lists(reader, has_labels, mapped if all(plain_type(kind).equals(kind) for kind in kinds) else None)

    def cut(self, size: int) -> Sequence[ArrowReader]:
        """Cut into runs of equally many records, except compressed and remote files: a piece would read the whole."""
        is_read_whole = self.whole or isinstance(self.file.path, RemotePath)
        pieces = 1 if is_read_whole else max(1, min(self.file.bytes // size, self.rows))
        bounds = pairwise(self.rows * piece // pieces for piece in range(pieces + 1))
        return [
            replace(
                self,
                file=share_of(self.file, start, stop, self.rows),
                first_row=self.first_row + start,
                rows=stop - start,
            )
            for start, stop in bounds
        ]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield runs of records, each with the number of bytes of the file up to its end."""
        present = tuple(column for column in columns if column in self.fields.names)
        begin, last, per_block = 0, self.first_row + self.rows, self._per_block
        for batch in self._read(present):
            end = begin + len(batch)
            for start in range(max(begin, self.first_row), min(end, last), per_block):
                stop = min(start + per_block, end, last)
                done = self.file.bytes * (stop - self.first_row) // max(self.rows, 1)
                yield batch.slice(start - begin, stop - start), done
            begin = end
            if begin >= last:
                return

    @property
    def _per_block(self) -> int:
        size, most = (4 * LISTS, LIST_ROWS) if self.holds_lists else (format_reader.BLOCK, ROWS)
        return min(max(size * self.rows // max(self.file.bytes, 1), 1), most)

    def _read(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all record batches in order, with these columns."""
        if self.table is not None:
            lists = self.table.whole()
            for arrays in lists.read(range(len(lists.ends)), columns):
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
            return
        with reading(self.file.name):
            buffer = map_whole(self.path)
        for batch, _, _ in _placed_batches(buffer, self.file.name, columns, columns if self.whole else None):
            yield batch.select(columns)


def _map_lists(file: SourceFile, columns: Columns, *, has_labels: bool) -> tuple[MappedFile | None, int]:
    """Map the token lists of a stream or file, and check that it is complete. Call it inside `reading`.

    Returns (lists, number of documents). The lists are None if they are compressed and must be decoded.
    """
    path = pinned(file.stored)  # stores the state of the object, so unpickling tasks need not request it
    buffer = map_file(path)
    wanted = columns.wanted(has_labels=has_labels)
    if isinstance(path, RemotePath):
        mirror, rows, is_compressed = with_headers(path)
        if is_compressed:
            return None, rows
        _fetch_structure(mirror, file.name, wanted, but_values_of=(*wanted[: 1 + has_labels], *columns.per_token))
    builders = {name: ColumnBuilder() for name in wanted[: 1 + has_labels]}
    lengths, places = array("q"), array("q")
    in_sequence, lies_inside = False, True
    for batch, place, dictionaries_changed in _placed_batches(buffer, file.name, wanted):
        if not len(batch):
            continue
        for name in wanted if lies_inside else ():
            column = batch.column(name)
            buffers = column.buffers()
            lies_inside = lies_inside and _is_within(buffer, buffers)
            if lies_inside and name in builders:
                builders[name].add(column, buffers)
        lengths.append(len(batch))
        places.append(place)
        in_sequence = in_sequence or dictionaries_changed
    if not lies_inside:
        return None, sum(lengths)
    store = MappedFile(
        state=FileState(path.absolute(), file.name, file.bytes),
        owner=buffer,
        ends=np.cumsum(np.array(lengths, np.int64)),
        places=np.array(places, np.int64),
        in_sequence=in_sequence,
        tokens={
            name: TokenColumn(addresses=builder.addresses(), owners=(buffer,)) for name, builder in builders.items()
        },
    )
    return store, sum(lengths)


def _fetch_structure(mirror: Mirror, name: str, columns: Sequence[str], *, but_values_of: Sequence[str]) -> None:
    """Fetch the columns of an object; for the columns `but_values_of`, everything except the values."""
    starts, lengths = array("q"), array("q")
    for batch, _, _ in _placed_batches(mirror.buffer, name, ()):
        for column in columns:
            parts = batch.column(column).buffers()
            for part in parts[: -1 if column in but_values_of else None]:
                if part is not None:
                    starts.append(part.address - mirror.base)
                    lengths.append(part.size)
    mirror.fetch(np.array(starts, np.int64), np.array(lengths, np.int64))


def _placed_batches(
    buffer: pa.Buffer, name: str, columns: Sequence[str], only: tuple[str, ...] | None = None
) -> Iterator[tuple[pa.RecordBatch, int, bool]]:
    """Yield the record batches of a mapped stream or file, and check that it is complete.

    Yields (batch, place, dictionaries_changed). The place is a byte offset in a stream and a number in a file.
    Dictionaries are compared with those of the first batch. The given columns are checked: they must be as long as the
    batch, and their buffers must hold all values. Every pass checks the offsets of lists. With `only`, other columns
    are not decoded; do not map such batches, because pyarrow copies them.
    """
    schema = schema_of(buffer)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column) for column in only or ()])
    with reading(name):
        if _is_ipc_file(buffer):
            file = pa.ipc.open_file(buffer, options=options)
            numbers = range(file.num_record_batches)
            every: Iterator[tuple[pa.RecordBatch, int, bool]] = ((file.get_batch(at), at, False) for at in numbers)
        else:
            every = _batches_of_stream(buffer, name, options)
        for stored, place, dictionaries_changed in every:
            batch = _with_storage(stored)
            batch.select([column for column in columns if column in batch.schema.names]).validate()
            yield batch, place, dictionaries_changed


def _batches_of_stream(
    buffer: pa.Buffer, name: str, options: pa.ipc.IpcReadOptions
) -> Iterator[tuple[pa.RecordBatch, int, bool]]:
    """Yield the record batches of a stream, and check that the stream ends at the end of the file."""
    reader = pa.BufferReader(buffer)
    stream = pa.ipc.open_stream(reader, options=options)
    has_dictionaries = any(has_type(kind, pa.types.is_dictionary) for kind in stream.schema.types)
    dictionaries = None
    while True:
        at = reader.tell()
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            break
        now = stream.stats.num_dictionary_batches if has_dictionaries else 0
        dictionaries = now if dictionaries is None else dictionaries
        yield batch, at, now != dictionaries
    end = reader.tell()
    if buffer.slice(end - len(_END_OF_STREAM), len(_END_OF_STREAM)).to_pybytes() != _END_OF_STREAM:
        raise SourceError(
            f"{name}: truncated: the Arrow stream stops at byte {end} without its end mark; write it again"
        )
    if end != buffer.size:
        raise SourceError(
            f"{name}: {buffer.size - end} bytes follow the end of the Arrow stream at byte {end}; "
            "streams cannot be concatenated, give them as separate files"
        )


def _is_within(buffer: pa.Buffer, column: Sequence[pa.Buffer | None]) -> bool:
    """Whether the buffers of a column lie in the mapped file, so that they were not decompressed."""
    parts = [part for part in column if part is not None and part.size]
    end = buffer.address + buffer.size
    return all(buffer.address <= part.address and part.address + part.size <= end for part in parts)
