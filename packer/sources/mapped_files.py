"""Map Arrow files into memory, and decode their record batches each time they are needed.

A decoded batch takes about a kilobyte per column, so none is held: `MappedFile` holds where the batches of a file begin
and the addresses of its token columns, about 70 bytes per batch. It is pickled by path, and mapped again.

Of an object in storage, the headers of the messages are fetched first, one after the other, without their bodies.
pyarrow then reads record batches from memory of the size of the object, which has only the headers. It reads the bodies
of compressed record batches immediately, so these must be known first (`packer/arrow.py`).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import DICTIONARY_BATCH, RECORD_BATCH, MessageHeader, as_arrow
from packer.errors import SourceError
from packer.sources.column_types import is_json
from packer.sources.documents import reading
from packer.stores import AnyPath, RemotePath, pinned
from packer.stores.mirror import Mirror, fetch_chunks, map_whole
from packer.token_memory import TokenColumn
from packer.token_memory.token_column import VALUE_TYPES, Addresses

MAGIC = b"ARROW1"
"""First bytes of an IPC file; an IPC stream begins with the length of its schema message."""

_TAIL = 1 << 12  # bytes at the end of an Arrow file, where its footer is


def map_file(path: AnyPath) -> pa.Buffer:
    """Map an Arrow file into memory. Of an object, only the headers of messages are fetched."""
    if isinstance(path, RemotePath):
        return with_headers(path)[0].buffer
    return map_whole(path)


def mirrored(path: RemotePath) -> Mirror:
    """Return memory of the size of an object; a task that is unpickled finds what the one before it has fetched."""
    found = path.pinned()
    return _mirrored(found, found.stat().etag)


def with_headers(path: RemotePath) -> tuple[Mirror, int, bool]:
    """Return memory with the headers of an Arrow stream or file, its rows, and whether it is compressed."""
    found = path.pinned()
    return _with_headers(found, found.stat().etag)


@lru_cache(maxsize=1 << 16)
def _mirrored(path: RemotePath, etag: str) -> Mirror:
    return Mirror(path, path.stat().st_size)


@lru_cache(maxsize=1 << 16)
def _with_headers(path: RemotePath, etag: str) -> tuple[Mirror, int, bool]:
    mirror = _mirrored(path, etag)
    return mirror, *fetch_headers(mirror)


def is_ipc_file(buffer: pa.Buffer) -> bool:
    """Whether a buffer holds an IPC file rather than a stream."""
    return bytes(buffer.slice(0, len(MAGIC))) == MAGIC


def schema_of(buffer: pa.Buffer) -> pa.Schema:
    """Return the schema of a mapped stream or file, with types as in `with_storage`."""
    schema = pa.ipc.open_file(buffer).schema if is_ipc_file(buffer) else pa.ipc.open_stream(buffer).schema
    for number, field in enumerate(schema):
        if isinstance(field.type, pa.BaseExtensionType) and not is_json(field.type):
            schema = schema.set(number, field.with_type(field.type.storage_type))
    return schema


def with_storage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a record batch with the storage of columns of extension types but JSON; nothing is copied.

    pyarrow reads such a column as its storage until a library, such as `datasets` for `Array2D`, declares the type, so
    this makes the result independent of what is imported.
    """
    for number, column in enumerate(batch.columns):
        if isinstance(column.type, pa.BaseExtensionType) and not is_json(column.type):
            field = batch.schema.field(number).with_type(column.type.storage_type)
            batch = batch.set_column(number, field, column.storage)
    return batch


@dataclass(frozen=True, slots=True)
class FileState:
    """Path and size of a file when it was opened; they are checked when it is unpickled."""

    path: AnyPath
    name: str
    bytes: int

    def __reduce__(self) -> tuple[object, ...]:
        return _unchanged, (self.path, self.name, self.bytes)


def _unchanged(path: AnyPath, name: str, size: int) -> FileState:
    """Unpickle a `FileState`. Raises a SourceError if the file is missing or has another size."""
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
    """Shape (batches,): cumulative lengths of the batches."""

    places: NDArray[np.int64]
    """Shape (batches,): byte offset of each batch in a stream, or its number in a file; empty batches are left out."""

    in_sequence: bool
    """Whether batches must be decoded in sequence because their dictionaries change."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return schema_of(self.owner)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Decode batches and yield the named columns of each."""
        with reading(self.state.name):
            for batch in map(with_storage, self._decode(numbers)):
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
    """Unpickle a `MappedFile`: map its file again. The chunks of an object are fetched by `fetch_queued`."""
    with reading(state.name):
        if isinstance(state.path, RemotePath):
            mirror = mirrored(state.path)
            _later.append((mirror, fetched))
            owner = mirror.buffer
        else:
            owner = map_whole(state.path)
    tokens = _token_columns(columns, owner.address, owner)
    return MappedFile(state=state, owner=owner, ends=ends, places=places, in_sequence=in_sequence, tokens=tokens)


_later: list[tuple[Mirror, NDArray[np.int64]]] = []
_fetching = threading.Lock()  # other threads wait for what this one fetches


def fetch_queued() -> None:
    """Fetch what the objects of unpickled files had in memory, together: one after the other would take long."""
    with _fetching:
        count = len(_later)  # other threads may add more meanwhile
        fetch_chunks(_later[:count])
        del _later[:count]


def _token_columns(columns: Mapping[str, Addresses], by: int, owner: pa.Buffer) -> dict[str, TokenColumn]:
    return {name: TokenColumn(addresses=_moved(each, by), owners=(owner,)) for name, each in columns.items()}


def _moved(addresses: Addresses, distance: int) -> Addresses:
    """Add a distance to all addresses, modulo 2**64. Fixed-size lists have no offsets and keep 0 for them."""
    by = np.uint64(distance % 2**64)
    offsets = np.where(addresses.offset_bytes > 0, addresses.offsets + by, addresses.offsets)
    return addresses._replace(offsets=offsets, values=addresses.values + by)


def fetch_headers(mirror: Mirror) -> tuple[int, bool]:
    """Fetch the headers of all messages, the dictionaries and the footer of an object.

    Return the number of rows, and whether a record batch is compressed. If the object is damaged, this stops there;
    pyarrow finds the fault at the same place.
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
        if mark != 0xFFFFFFFF:  # streams of old versions have no mark
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


_CHECKED = 1 << 20  # values that are checked together
_TOGETHER = 1 << 18  # lists in a record batch, which has 2 MB of offsets


class Bounds(NamedTuple):
    """Where lists end in an array of values; the first list begins with its first value.

    Example: lists 3, inner [6, 10], shift 1, end 9: the values 0 to 2, 3 to 4, and 5 to 8 are a list each.
    """

    lists: int
    inner: NDArray[np.int64]  # (lists - 1,) values before each other list, times 2**shift; may be unaligned
    shift: int
    end: int  # number of values

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of values before each of the lists `first` to `last` - 1, and up to their end."""
        offsets = np.empty(last - first + 1, np.int64)
        inside = self.inner[max(first - 1, 0) : last] >> self.shift
        begin = int(first == 0)
        offsets[begin : begin + len(inside)] = inside
        offsets[:begin] = 0
        offsets[begin + len(inside) :] = self.end  # one place if these are the last lists, otherwise none
        return offsets


class MappedColumn(NamedTuple):
    """Values of a column in a mapped file."""

    state: FileState
    owner: pa.Buffer
    dtype: np.dtype[Any]
    skipped: int  # bytes before the first value

    @classmethod
    def of(cls, path: AnyPath, name: str, dtype: np.dtype[Any], skipped: int = 0) -> MappedColumn:
        """Map a file; the values of an object in storage are fetched when they are needed."""
        path = pinned(path)
        owner = map_values(path)
        return cls(FileState(path.absolute(), name, owner.size), owner, dtype, skipped)

    @property
    def values(self) -> pa.Array:
        """All values; nothing is copied."""
        kind = pa.from_numpy_dtype(self.dtype)
        count = (self.owner.size - self.skipped) // self.dtype.itemsize
        return pa.Array.from_buffers(kind, count, [None, self.owner.slice(self.skipped)])


def map_values(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; of an object, nothing is fetched."""
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    return mirrored(path).buffer if isinstance(path, RemotePath) else map_whole(path)


def map_index(path: AnyPath) -> pa.Buffer:
    """Map a file into memory; an object is fetched, once for all tasks of the process."""
    buffer = map_values(path)
    if isinstance(path, RemotePath) and buffer.size:
        mirrored(path).fetch([0], [buffer.size])
    return buffer


def first_descent(values: NDArray[np.int64]) -> int | None:
    """Return the index of the first value below the one before it, or of a negative first one; None if all ascend."""
    for first in range(0, len(values), _CHECKED):
        before = int(values[first - 1]) if first else 0
        wrong = np.diff(values[first : first + _CHECKED], prepend=before) < 0
        if wrong.any():
            return first + int(wrong.argmax())
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedArrays:
    """Lists of values in files of bare integers, as record batches of large lists. It is pickled by paths."""

    columns: Mapping[str, MappedColumn]
    """Columns by name, each with a value per token."""

    bounds: Bounds
    index: tuple[FileState, pa.Buffer] | None
    """File in which the bounds lie; None if they are in memory of their own."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the columns, by name."""

    @classmethod
    def of(
        cls, columns: Mapping[str, MappedColumn], bounds: Bounds, index: tuple[FileState, pa.Buffer] | None = None
    ) -> MappedArrays:
        """Describe columns whose files have been checked to hold `bounds.end` values."""
        owners = (*(column.owner for column in columns.values()), bounds.inner, index)
        tokens = {
            name: TokenColumn(addresses=_addresses(column, bounds), owners=owners) for name, column in columns.items()
        }
        ends = np.minimum(np.arange(_TOGETHER, bounds.lists + _TOGETHER, _TOGETHER), bounds.lists)
        return cls(columns=columns, bounds=bounds, index=index, ends=ends, tokens=tokens)

    @property
    def owner(self) -> object:
        """What keeps the memory alive."""
        return self

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return pa.schema(
            [(name, pa.large_list(pa.from_numpy_dtype(column.dtype))) for name, column in self.columns.items()]
        )

    def whole(self) -> MappedArrays:
        """Return the same lists with all of their values in memory, also if the files are in a store."""
        columns = {}
        for name, column in self.columns.items():
            with reading(column.state.name):
                path, empty = column.state.path, not column.owner.size
                columns[name] = column if empty else column._replace(owner=map_whole(path))
        return MappedArrays.of(columns, self.bounds, self.index)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the named columns of each record batch, whose offsets are made."""
        values = [self.columns[name].values for name in names]
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            offsets = as_arrow(self.bounds.offsets(first, int(self.ends[number])))
            yield [pa.LargeListArray.from_arrays(offsets, each) for each in values]

    def __reduce__(self) -> tuple[object, ...]:
        files = {name: (each.state, each.dtype, each.skipped) for name, each in self.columns.items()}
        if self.index is None:
            return _map_arrays_again, (files, self.bounds, None, 0)
        (state, owner), inner = self.index, self.bounds.inner
        return _map_arrays_again, (
            files,
            self.bounds._replace(inner=inner[:0].copy()),
            state,
            inner.ctypes.data - owner.address,
        )


def _map_arrays_again(
    files: Mapping[str, tuple[FileState, np.dtype[Any], int]], bounds: Bounds, index: FileState | None, place: int
) -> MappedArrays:
    """Unpickle `MappedArrays`: map the files again, and find the bounds at this place of the index."""
    columns = {}
    for name, (state, dtype, skipped) in files.items():
        with reading(state.name):
            columns[name] = MappedColumn(state, map_values(state.path), dtype, skipped)
    if index is None:
        return MappedArrays.of(columns, bounds)
    with reading(index.name):
        owner = map_index(index.path)
    inner = np.frombuffer(owner, "<i8", max(bounds.lists - 1, 0), place)
    return MappedArrays.of(columns, bounds._replace(inner=inner), (index, owner))


def _addresses(column: MappedColumn, bounds: Bounds) -> Addresses:
    """Return the addresses of lists. The first and the last one, which lack a bound, are chunks of their own."""
    dtype, lists, inner, shift = column.dtype, bounds.lists, bounds.inner, bounds.shift
    chunks: list[tuple[int, ...]] = []  # (lists, address of offsets, bytes per offset, length, first value, shift)
    if lists:
        chunks.append((1, 0, 0, int(inner[0]) >> shift if lists > 1 else bounds.end, 0, 0))
    if lists > 2:
        chunks.append((lists - 2, inner.ctypes.data, 8, 0, 0, shift))
    if lists > 1:
        before = int(inner[-1]) >> shift
        chunks.append((1, 0, 0, bounds.end - before, before, 0))
    counts, offsets, offset_bytes, list_sizes, firsts, shifts = np.array(chunks, np.int64).reshape(-1, 6).T.copy()
    return Addresses(
        first_rows=np.cumsum([0, *counts], dtype=np.int64),
        offsets=offsets.astype(np.uint64),
        offset_bytes=offset_bytes,
        offset_shifts=shifts,
        list_sizes=list_sizes,
        values=(column.owner.address + column.skipped + firsts * dtype.itemsize).astype(np.uint64),
        value_codes=np.full(len(counts), VALUE_TYPES.index(dtype.type)),
        value_bytes=np.full(len(counts), dtype.itemsize),
    )
