"""Arrow: files, saved datasets and tables in memory. Token lists are mapped if they can be, all else is decoded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from packer.errors import SourceError
from packer.sources import format_reader
from packer.sources.column_types import Fields, find_columns, has_type, plain_type
from packer.sources.documents import Columns, SourceFile, reading
from packer.sources.format_reader import LIST_ROWS, LISTS, ROWS, DecodedInput, Reader, decoded_lists, share_of
from packer.sources.mapped_files import (
    FileState,
    MappedArrays,
    MappedFile,
    is_ipc_file,
    map_file,
    schema_of,
    with_headers,
    with_storage,
)
from packer.sources.token_tables import MappedLists, TableInMemory
from packer.stores import RemotePath, pinned
from packer.stores.mirror import Mirror, map_whole
from packer.token_memory import TokenColumn
from packer.token_memory.token_column import ColumnBuilder

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowReader(Reader):
    """Records in the record batches of a file, or of a table in memory."""

    file: SourceFile
    fields: pa.Schema
    rows: int
    table: TableInMemory | MappedArrays | None = None
    """The lists, unless they are in the Arrow file."""

    first_row: int = 0
    """Number of records before these."""

    holds_lists: bool = False
    """Whether the records are token lists, so that larger blocks are decoded at once."""

    whole: bool = False
    """Whether the file is compressed, so that each piece would decompress all of it."""

    @classmethod
    def open(cls, file: SourceFile) -> ArrowReader:
        """Map a stream or file and count its records."""
        with reading(file.name):
            buffer = _mapped(file)
            if isinstance(file.path, RemotePath):
                _, rows, whole = with_headers(file.path)
            else:
                rows, whole = 0, False
                for batch, _, _ in placed_batches(buffer, file.name, ()):
                    rows += len(batch)
                    whole = whole or not all(_is_within(buffer, column.buffers()) for column in batch.columns)
        return cls(file=file, fields=schema_of(buffer), rows=rows, whole=whole)

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> MappedLists | DecodedInput:
        """Map the token lists of a stream or file, or prepare to decode them if they cannot be mapped."""
        with reading(file.name):
            fields = schema_of(_mapped(file))
            has_labels = find_columns(fields, file.name, columns)
            is_plain = all(
                plain_type(kind).equals(kind) for kind in (fields.field(name).type for name in columns.extra)
            )
            mapped, rows = _map_lists(file, columns, has_labels=has_labels)
        if mapped is not None and is_plain:
            return mapped
        reader = cls(file=file, fields=fields, rows=rows, holds_lists=True, whole=mapped is None)
        return decoded_lists(reader, columns, has_labels=has_labels)

    @classmethod
    def first_fields(cls, file: SourceFile) -> Fields:
        """Return the schema of a stream or file; no columns if it is empty."""
        with reading(file.name):
            return schema_of(_mapped(file)) if file.bytes else {}

    def cut(self, size: int) -> Sequence[ArrowReader]:
        """Cut into runs of equally many records. A file stays whole if each piece would decompress or download it."""
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
        """Yield runs of records, each with the bytes of the file up to its end."""
        done = 0
        present = tuple(column for column in columns if column in self.fields.names)
        for batch in self._in_order(present):
            done += len(batch)
            yield batch, self.file.bytes * done // max(self.rows, 1)

    @property
    def _per_block(self) -> int:
        size, most = (4 * LISTS, LIST_ROWS) if self.holds_lists else (format_reader.BLOCK, ROWS)
        return min(max(size * self.rows // max(self.file.bytes, 1), 1), most)

    def _read(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all record batches in order, with these columns."""
        if self.table is not None:
            lists = self.table.whole() if isinstance(self.table, MappedArrays) else self.table
            for arrays in lists.read(range(len(lists.ends)), columns):
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
            return
        with reading(self.file.name):
            buffer = map_whole(self.path)
        for batch, _, _ in placed_batches(buffer, self.file.name, columns, columns if self.whole else None):
            yield batch.select(columns)

    def _in_order(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        begin, stop, per_block = 0, self.first_row + self.rows, self._per_block
        for batch in self._read(columns):
            end = begin + len(batch)
            for start in range(max(begin, self.first_row), min(end, stop), per_block):
                yield batch.slice(start - begin, min(per_block, stop - start))
            begin = end
            if begin >= stop:
                return


def decoded_again(lists: MappedLists, columns: Columns) -> DecodedInput:
    """Return mapped lists as an input that decodes them each time they are read, so that steps can change them."""
    (store,) = lists.stores
    reader = ArrowReader(
        file=lists.file,
        fields=store.schema,
        rows=lists.rows,
        table=None if isinstance(store, MappedFile) else store,
        holds_lists=True,
    )
    return decoded_lists(reader, columns, has_labels=lists.has_labels)


def _mapped(file: SourceFile) -> pa.Buffer:
    """Map a file. Raises a SourceError if it is empty."""
    if not file.bytes:
        raise SourceError(
            f"{file.name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it or write it again"
        )
    return map_file(file.stored)


def _map_lists(file: SourceFile, columns: Columns, *, has_labels: bool) -> tuple[MappedLists | None, int]:
    """Map the token lists of a stream or file, and check that it is complete. Call it inside `reading`.

    Returns (lists, documents). The lists are None if they are compressed and must be decoded.
    """
    path = pinned(file.stored)  # so that tasks, which unpickle it, need not ask for its state
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
    for batch, place, dictionaries_changed in placed_batches(buffer, file.name, wanted):
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
    mapped = MappedLists(
        file=file,
        stores=(store,),
        columns=columns,
        labels=has_labels,
    )
    return mapped, sum(lengths)


def _fetch_structure(mirror: Mirror, name: str, columns: Sequence[str], *, but_values_of: Sequence[str]) -> None:
    """Fetch the columns of an object, without the values of the columns `but_values_of`."""
    starts, lengths = array("q"), array("q")
    for batch, _, _ in placed_batches(mirror.buffer, name, ()):
        for column in columns:
            parts = batch.column(column).buffers()
            for part in parts[: -1 if column in but_values_of else None]:
                if part is not None:
                    starts.append(part.address - mirror.base)
                    lengths.append(part.size)
    mirror.fetch(np.array(starts, np.int64), np.array(lengths, np.int64))


def placed_batches(
    buffer: pa.Buffer, name: str, columns: Sequence[str], only: tuple[str, ...] | None = None
) -> Iterator[tuple[pa.RecordBatch, int, bool]]:
    """Yield the record batches of a mapped stream or file, and check that it is complete.

    Yields (batch, place, dictionaries_changed). The place is a byte offset in a stream and a number in a file.
    Dictionaries are compared with those of the first batch. The given columns are checked to be as long as the batch
    and to claim no more values than their buffers hold. Every pass checks the offsets of their lists. With `only`,
    other columns are not decoded; do not map such batches, because pyarrow copies them.
    """
    schema = schema_of(buffer)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column) for column in only or ()])
    with reading(name):
        if is_ipc_file(buffer):
            file = pa.ipc.open_file(buffer, options=options)
            numbers = range(file.num_record_batches)
            every: Iterator[tuple[pa.RecordBatch, int, bool]] = ((file.get_batch(at), at, False) for at in numbers)
        else:
            every = _batches_of_stream(buffer, name, options)
        for stored, place, dictionaries_changed in every:
            batch = with_storage(stored)
            batch.select([column for column in columns if column in batch.schema.names]).validate()
            yield batch, place, dictionaries_changed


def _batches_of_stream(
    buffer: pa.Buffer, name: str, options: pa.ipc.IpcReadOptions
) -> Iterator[tuple[pa.RecordBatch, int, bool]]:
    """Yield the record batches of a stream, and check that it ends where the file does."""
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
    """Whether the buffers of a column lie inside the mapped file, so that they were not decompressed."""
    parts = [part for part in column if part is not None and part.size]
    end = buffer.address + buffer.size
    return all(buffer.address <= part.address and part.address + part.size <= end for part in parts)
