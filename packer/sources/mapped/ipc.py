"""Arrow IPC streams and files: their record batches, and token lists that are memory-mapped."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packer.errors import SourceError
from packer.gather import TokenColumn
from packer.gather.token_column import ColumnBuilder
from packer.sources.documents import Columns, SourceFile, reading
from packer.sources.files.file_access import headers_of, map_file
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mapped.record_batches import FileState, MappedFile, ends_of, is_ipc_file, schema_of
from packer.stores import AnyPath, RemotePath
from packer.stores.mirror import fetch, map_whole

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def map_lists(path: AnyPath, file: SourceFile, columns: Columns, *, has_labels: bool) -> tuple[MappedLists | None, int]:
    """Map the token lists of a stream or file, and check that it is complete; call this inside `reading`.

    Args:
        path: the file.
        file: its name in messages and in the manifest, and its size.
        columns: the columns to read.
        has_labels: whether the file has labels.

    Returns:
        The lists, and the number of documents; None for the lists if they must be decoded, as they are compressed.
    """
    buffer = map_file(path)
    index = _Index(buffer, columns, has_labels=has_labels)
    wanted = columns.wanted(has_labels=has_labels)
    if isinstance(path, RemotePath):
        rows, is_compressed = headers_of(path)
        if is_compressed:
            return None, rows
        _fetch_structure(buffer, file.name, wanted, but_values_of=(*wanted[: 1 + has_labels], *columns.per_token))
    rows = sum(index.add(batch, place) for batch, place in _placed_batches(buffer, file.name, wanted))
    if not index.lies_inside:
        return None, rows
    mapped = MappedLists(
        file=file,
        path=path,
        stores=(index.finish(FileState(path.absolute(), file.name, file.bytes)),),
        input_ids=columns.input_ids,
        labels=columns.labels if has_labels else None,
        extra=columns.extra,
    )
    return mapped, rows


def _fetch_structure(buffer: pa.Buffer, name: str, columns: Sequence[str], *, but_values_of: Sequence[str]) -> None:
    """Fetch the columns of an object; of some lists of numbers, everything but the numbers."""
    starts, lengths = array("q"), array("q")
    for batch, _ in _placed_batches(buffer, name, None):
        for column in columns:
            parts = batch.column(column).buffers()
            for part in parts[: -1 if column in but_values_of else None]:
                if part is not None:
                    starts.append(part.address)
                    lengths.append(part.size)
    fetch(np.array(starts, np.int64), np.array(lengths, np.int64))


class _Place(NamedTuple):
    """Location of a record batch."""

    at: int
    """Byte offset in a stream, or number in a file."""

    dictionaries_changed: bool
    """Whether the dictionaries of a stream have changed since its first record batch."""


class _Index:
    """Collects the locations of the record batches of a mapped file, and the addresses of their token lists."""

    def __init__(self, buffer: pa.Buffer, columns: Columns, *, has_labels: bool) -> None:
        self._buffer = buffer
        self._wanted = columns.wanted(has_labels=has_labels)
        self._columns = {name: ColumnBuilder() for name in self._wanted[: 1 + has_labels]}
        self._rows, self._places = array("q"), array("q")
        self._in_sequence = False
        self.lies_inside = True
        """Whether all columns so far lie in the mapped file, so that they were not decompressed."""

    def add(self, batch: pa.RecordBatch, place: _Place) -> int:
        """Add a record batch; return its number of rows."""
        for name in self._wanted if self.lies_inside else ():
            column = batch.column(name)
            buffers = column.buffers()
            self.lies_inside = self.lies_inside and is_within(self._buffer, buffers)
            if self.lies_inside and name in self._columns:
                self._columns[name].add(column, buffers)
        if len(batch):
            self._rows.append(len(batch))
            self._places.append(place.at)
            self._in_sequence = self._in_sequence or place.dictionaries_changed
        return len(batch)

    def finish(self, state: FileState) -> MappedFile:
        """Return the record batches that were added."""
        return MappedFile(
            state=state,
            owner=self._buffer,
            ends=ends_of(self._rows),
            places=np.array(self._places, np.int64),
            in_sequence=self._in_sequence,
            tokens={
                name: TokenColumn(addresses=column.addresses(), owners=(self._buffer,))
                for name, column in self._columns.items()
            },
        )


def read_indices(paths: list[AnyPath]) -> list[pa.Array]:
    """Read an indices mapping from Arrow streams of one column, as old versions of `datasets` saved it.

    Raises:
        SourceError: a file is truncated or corrupt, or does not hold one column of whole numbers, of equal type in all.
    """
    chunks: list[pa.Array] = []
    for path in paths:
        with reading(path.name):
            buffer = map_whole(path)
            types = pa.ipc.open_stream(buffer).schema.types
            if len(types) != 1 or not pa.types.is_integer(types[0]) or {chunk.type for chunk in chunks} - set(types):
                raise SourceError(
                    f"{path.name}: an indices mapping of {', '.join(map(str, types)) or 'no column'}, where one column "
                    "of whole numbers, the same in every file, is expected; save the dataset again"
                )
            for batch, _ in _stream_batches(buffer, path.name):
                batch.validate()
                chunks.append(batch.column(0))
                if chunks[-1].null_count:
                    raise SourceError(f"{path.name}: nulls in an indices mapping; save the dataset again")
    return chunks


def record_batches(
    buffer: pa.Buffer, name: str, columns: Sequence[str], only: tuple[str, ...] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a mapped stream or file, and check that it is complete.

    Args:
        buffer: the mapped file.
        name: its name in messages.
        columns: columns whose structure is checked.
        only: the only columns to decode, or None for all; not for mapping, since the reader of IPC files then copies.
    """
    return (batch for batch, _ in _placed_batches(buffer, name, columns, only))


def _placed_batches(
    buffer: pa.Buffer, name: str, columns: Sequence[str] | None, only: tuple[str, ...] | None = None
) -> Iterator[tuple[pa.RecordBatch, _Place]]:
    """Yield (record batch, location); see `record_batches`. With None for the columns, nothing is checked."""
    schema = schema_of(buffer)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column) for column in only or ()])
    if is_ipc_file(buffer):
        file = pa.ipc.open_file(buffer, options=options)
        for number in range(file.num_record_batches):
            with reading(name):
                batch = file.get_batch(number)
                _check_structure(batch, columns)
            yield batch, _Place(number, dictionaries_changed=False)
        return
    for batch, place in _stream_batches(buffer, name, options):
        with reading(name):
            _check_structure(batch, columns)
        yield batch, place


def _stream_batches(
    buffer: pa.Buffer, name: str, options: pa.ipc.IpcReadOptions | None = None
) -> Iterator[tuple[pa.RecordBatch, _Place]]:
    """Yield the record batches of a mapped stream, and check that it ends where the file does."""
    reader = pa.BufferReader(buffer)
    stream = pa.ipc.open_stream(reader, options=options)
    has_dictionaries, dictionaries = any(map(_has_dictionary, stream.schema.types)), None
    while True:
        at = reader.tell()
        with reading(name):
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                break
        now = stream.stats.num_dictionary_batches if has_dictionaries else 0
        dictionaries = now if dictionaries is None else dictionaries
        yield batch, _Place(at, dictionaries_changed=now != dictionaries)
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


def _has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type is dictionary-encoded at any level of nesting."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inside))


def _check_structure(batch: pa.RecordBatch, columns: Sequence[str] | None) -> None:
    """Raise if a column differs in length from the batch, or claims more values than its buffers hold.

    Whatever counts or slices the columns relies on this. The offsets of their lists are checked by every pass.
    """
    if columns is not None:
        batch.select([column for column in columns if column in batch.schema.names]).validate()


def is_within(buffer: pa.Buffer, column: Sequence[pa.Buffer | None]) -> bool:
    """Whether the buffers of a column lie inside the mapped file, so that they were not decompressed."""
    parts = [part for part in column if part is not None and part.size]
    end = buffer.address + buffer.size
    return all(buffer.address <= part.address and part.address + part.size <= end for part in parts)
