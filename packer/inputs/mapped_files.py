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

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import DICTIONARY_BATCH, RECORD_BATCH, MessageHeader
from packer.errors import SourceError
from packer.inputs.column_types import is_json
from packer.inputs.documents import reading
from packer.stores import AnyPath, RemotePath
from packer.stores.mirror import Mirror, fetch_chunks, map_whole
from packer.token_memory import TokenColumn
from packer.token_memory.token_column import Addresses

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
