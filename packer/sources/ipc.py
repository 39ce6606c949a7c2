"""Arrow IPC streams and files: memory-mapped where they are uncompressed, else decoded batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from packer.errors import SourceError
from packer.sources.column_types import plain_type
from packer.sources.crew import Crew
from packer.sources.documents import Batch, Columns, DecodedSize, Input, SourceFile, find_columns, reading

MAGIC = b"ARROW1"
"""How an IPC file begins; a stream begins with the length of its schema message."""

_DOCUMENTS = 1 << 20  # documents handed on at once: 4 MB of lengths
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedLists:
    """Lists that stay where they are: a mapped IPC file, a mapped decoded copy of some input, or a table in memory."""

    file: SourceFile
    path: Path | None
    input_ids: tuple[pa.Array, ...]
    labels: tuple[pa.Array, ...] | None
    extra: Mapping[str, tuple[pa.Array, ...]]
    """Other columns, by name."""

    origin: Input | None = None
    """The input whose decoded copy this is."""

    @property
    def rows(self) -> int:
        """Documents."""
        return sum(map(len, self.input_ids))

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

    def cut(self, size: int) -> Sequence[Input]:
        """Nothing is to be decoded."""
        return (self,)

    def batches(self, crew: Crew | None = None) -> Iterator[Batch]:
        """Yield runs of about a million documents: small chunks together, a huge chunk in slices."""
        input_ids: list[pa.Array] = []
        labels: list[pa.Array] = []
        extra: dict[str, list[pa.Array]] = {name: [] for name in self.extra}
        documents = finished = 0
        total = max(self.rows, 1)
        for number, chunk in enumerate(self.input_ids):
            for start in range(0, len(chunk), _DOCUMENTS):
                input_ids.append(chunk.slice(start, _DOCUMENTS))
                if self.labels is not None:
                    labels.append(self.labels[number].slice(start, _DOCUMENTS))
                for name, chunks in self.extra.items():
                    extra[name].append(chunks[number].slice(start, _DOCUMENTS))
                documents += len(input_ids[-1])
                if documents >= _DOCUMENTS or finished + documents == total:
                    finished += documents
                    done = self.file.bytes * finished // total
                    yield Batch(input_ids, labels if self.labels is not None else None, done, extra)
                    input_ids, labels, documents = [], [], 0
                    extra = {name: [] for name in self.extra}

    def place(self, row: int) -> str:
        """Name the row, or what the row was decoded from."""
        return self.origin.place(row) if self.origin is not None else f"{self.file.name} row {row}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedIpc:
    """An IPC stream or file with compressed buffers, or columns to be kept as another type; decoded batch by batch."""

    file: SourceFile
    path: Path
    rows: int
    has_labels: bool
    columns: Columns
    mapped: bool = False

    @property
    def decoded(self) -> DecodedSize | None:
        """Only reading tells."""
        return None

    def cut(self, size: int) -> Sequence[Input]:
        """Record batches follow one another: one piece."""
        return (self,)

    def batches(self, crew: Crew | None = None) -> Iterator[Batch]:
        """Yield one batch for each record batch."""
        buffer = map_file(self.path)
        wanted = self.columns.wanted(has_labels=self.has_labels)
        done = 0
        for batch in record_batches(buffer, self.file.name, wanted, only=wanted):
            done += len(batch)
            share = self.file.bytes * done // max(self.rows, 1)
            yield Batch.of(batch, self.columns, share, has_labels=self.has_labels)

    def place(self, row: int) -> str:
        """Name the row."""
        return f"{self.file.name} row {row}"


def open_ipc(path: Path, name: str, columns: Columns) -> MappedLists | CompressedIpc:
    """Map an Arrow IPC stream or file; where its buffers are compressed, prepare to decode it.

    Args:
        path: where it is.
        name: how messages and the manifest call it.
        columns: the columns to take.

    Raises:
        PackerError: no such column, or the file cannot be read.
        SourceError: truncated, corrupt, or of a type that is not taken.
    """
    with reading(name):
        file = SourceFile(name=name, bytes=path.stat().st_size)
        if not file.bytes:
            raise SourceError(
                f"{name}: 0 bytes, neither an Arrow stream nor an Arrow file; remove it or write it again"
            )
        buffer = map_file(path)
        rows, inside, has_labels = 0, True, find_columns(schema_of(buffer), name, columns)
        wanted = columns.wanted(has_labels=has_labels)
        chunks: dict[str, list[pa.Array]] = {column: [] for column in wanted}
        is_plain = all(
            plain_type(kind).equals(kind) for kind in (schema_of(buffer).field(name).type for name in columns.extra)
        )
        for batch in record_batches(buffer, name, wanted):
            rows += len(batch)
            inside = inside and is_plain and lies_in(buffer, batch, wanted)
            for column, found in chunks.items():
                if inside:
                    found.append(batch.column(column))  # a batch takes memory of its own, and there may be many
                else:
                    found.clear()
    if not inside:
        return CompressedIpc(file=file, path=path, rows=rows, has_labels=has_labels, columns=columns)
    return MappedLists(
        file=file,
        path=path,
        input_ids=tuple(chunks[columns.input_ids]),
        labels=tuple(chunks[columns.labels]) if has_labels else None,
        extra={name: tuple(chunks[name]) for name in columns.extra},
    )


def schema_names(path: Path, name: str) -> list[str]:
    """The names of the columns of a stream or file."""
    with reading(name):
        return list(schema_of(map_file(path)).names) if path.stat().st_size else []


def read_indices(paths: list[Path]) -> list[pa.Array]:
    """Read the one column of Arrow streams in which old datasets kept an indices mapping; mapped where possible.

    Raises:
        SourceError: truncated, corrupt, or not one column of whole numbers, of the same type in every file.
    """
    chunks: list[pa.Array] = []
    for path in paths:
        with reading(path.name):
            buffer = map_file(path)
            found = pa.ipc.open_stream(buffer).schema.types
            if len(found) != 1 or not pa.types.is_integer(found[0]) or {chunk.type for chunk in chunks} - set(found):
                raise SourceError(
                    f"{path.name}: an indices mapping of {', '.join(map(str, found)) or 'no column'}, where one column "
                    "of whole numbers, the same in every file, is expected; save the dataset again"
                )
            for batch in _stream_batches(buffer, path.name):
                batch.validate()
                chunks.append(batch.column(0))
                if chunks[-1].null_count:
                    raise SourceError(f"{path.name}: nulls in an indices mapping; save the dataset again")
    return chunks


def map_file(path: Path) -> pa.Buffer:
    """Map a file."""
    with pa.memory_map(str(path)) as file:  # closing gives the file descriptor back; the mapping lives in the buffer
        return file.read_buffer()


def schema_of(buffer: pa.Buffer) -> pa.Schema:
    """The schema of a mapped stream or file."""
    is_file = buffer.slice(0, len(MAGIC)).to_pybytes() == MAGIC
    return pa.ipc.open_file(buffer).schema if is_file else pa.ipc.open_stream(buffer).schema


def record_batches(
    buffer: pa.Buffer, name: str, columns: Sequence[str], only: tuple[str, ...] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a mapped stream or file, and make sure that it is whole.

    `only` leaves other columns undecoded. A file's reader copies when it is given, so mapping goes without.
    """
    schema = schema_of(buffer)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(column) for column in only or ()])
    if buffer.slice(0, len(MAGIC)).to_pybytes() == MAGIC:
        file = pa.ipc.open_file(buffer, options=options)
        for number in range(file.num_record_batches):
            with reading(name):
                batch = file.get_batch(number)
                _check_structure(batch, columns)
            yield batch
        return
    for batch in _stream_batches(buffer, name, options):
        with reading(name):
            _check_structure(batch, columns)
        yield batch


def _stream_batches(
    buffer: pa.Buffer, name: str, options: pa.ipc.IpcReadOptions | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a mapped stream, and make sure that it ends where the file does."""
    reader = pa.BufferReader(buffer)
    stream = pa.ipc.open_stream(reader, options=options)
    while True:
        with reading(name):
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                break
        yield batch
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


def _check_structure(batch: pa.RecordBatch, columns: Sequence[str]) -> None:
    """Raise where the wanted columns are of another length than the batch, or claim more than their buffers hold.

    What is counted, sliced and paired from here on relies on it; the offsets in between are checked by every pass.
    """
    batch.select([column for column in columns if column in batch.schema.names]).validate()


def lies_in(buffer: pa.Buffer, batch: pa.RecordBatch, columns: Sequence[str]) -> bool:
    """Whether the columns of a record batch lie inside the mapped file, that is, were not decompressed."""
    parts = [part for name in columns for part in batch.column(name).buffers() if part is not None and part.size]
    end = buffer.address + buffer.size
    return all(buffer.address <= part.address and part.address + part.size <= end for part in parts)
