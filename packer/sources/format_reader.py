"""Readers, which take records from a file in blocks, and the input that decodes these blocks to documents."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.engines.engine import DecodePool
from packer.errors import PackerError
from packer.sources.column_types import Fields, as_plain, holds_json, infer, plain_type, python_values, require_kept
from packer.sources.documents import Batch, Columns, DocumentError, SourceFile, place_of_row, reading
from packer.sources.list_checks import BlockRecords, Faults, decode_lists, is_nested, joined_batches, values_of
from packer.sources.meanings import counted_fields
from packer.sources.token_tables import MappedLists
from packer.stores import AnyPath, RemotePath
from packer.token_memory import list_lengths

Block: TypeAlias = Any
"""What a reader cuts a file into: bytes, a record batch or records."""

Step: TypeAlias = Callable[[Batch], Batch]
"""A check or change of a batch. Raises a DocumentError with the index of the document in the batch."""

BLOCK = 1 << 20
"""Bytes of records tokenized at once, some hundred thousand tokens."""

ROWS = 1 << 12
"""Largest number of records tokenized at once."""

LISTS = 1 << 22
"""Token ids decoded at once: 16 to 32 MB."""

LIST_ROWS = 1 << 16
"""Largest number of token lists decoded at once."""

_THREADS = 2  # of an input that is read alone

_SAMPLED = 1 << 16  # tokens whose numbers of values are compared

CODECS = {".gz": "gzip", ".zst": "zstd"}
"""Codecs of compressed files, by the endings of their names."""


class Reader(Protocol):
    """A file of one format, or a piece of one, read in blocks of records.

    `blocks` cuts the file quickly, in one thread; `records` decodes a block in any thread. Subclasses that read record
    batches may leave out every member but `open`, `file`, `fields` and `blocks`.

    Class methods raise a `PackerError` if the file cannot be read, and a `SourceError` if it is truncated or corrupt.
    """

    no_lists: ClassVar[str] = ""
    """Why files of the format hold no lists of tokens, for a message; empty if they may."""

    @classmethod
    def open(cls, file: SourceFile) -> Reader:
        """Open a file of other records than token lists: text, or numbers."""

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> Input:
        """Open a file of token lists, given the columns to read.

        A PackerError is raised if a column is missing, or the format holds no lists.
        """
        raise PackerError(f"{file.name}: {cls.no_lists}: set --tokenizer, or give another format")

    @classmethod
    def first_fields(cls, file: SourceFile) -> Fields:
        """Return the schema of the file, or its first record; an empty one if there is none."""
        return cls.open(file).fields or {}

    @property
    def file(self) -> SourceFile:
        """Name, path and size of the file; the size of a piece is its share."""

    @property
    def path(self) -> AnyPath:
        """Path of the file."""
        return self.file.stored

    @property
    def rows(self) -> int | None:
        """Number of records; None if it is known only after reading."""
        return None

    @property
    def first_row(self) -> int:
        """Number of records in the file before this piece; 0 for pieces whose records are located by line."""
        return 0

    @property
    def place(self) -> Callable[[int], str]:
        """Function from a record to its location, such as "rows.parquet row 17"; can be pickled."""
        return partial(place_of_row, self.file.name, self.first_row)

    @property
    def fields(self) -> pa.Schema | Mapping[str, object] | None:
        """Schema of the file, or its first valid record; None if there is no record."""

    @property
    def names(self) -> list[str]:
        """Names of the columns in the schema or the first valid record; none if there is no record."""
        fields = self.fields
        return [*(fields.names if isinstance(fields, pa.Schema) else fields or ())]

    def require(self, columns: Sequence[str]) -> None:
        """Check that records have these columns, which are to be kept, each once and in a type that can be kept."""
        if isinstance(self.fields, pa.Schema):
            require_kept(self.fields, columns, self.file.name)

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut into pieces of about `size` bytes, which depend on nothing but the file and `size`."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Block, int]]:
        """Yield blocks of records with at least these columns, each with the bytes of the file up to its end."""

    def records(self, block: Block, columns: Sequence[str]) -> tuple[BlockRecords, Faults]:
        """Decode columns of a block; also return the errors for records that are not valid, which have no fields.

        A record batch lacks columns that are not in the file: of two files of chats, one may have tools.
        """
        for column in columns:
            if column not in block.schema.names:
                block = block.append_column(column, pa.nulls(len(block)))
        return block, {}

    def names_in(self, block: Block, records: BlockRecords) -> Collection[str]:
        """Return the names of the fields in a block that the schema may not have."""
        return () if isinstance(records, pa.RecordBatch) else set[str]().union(*records)

    def lines_of(self, block: Block) -> bytes | None:
        """Return the lines that a block is made of; None if records are located by number."""
        return None


@contextmanager
def opened(path: AnyPath) -> Iterator[tuple[pa.NativeFile, pa.NativeFile]]:
    """Yield a file, local or in object storage, and its content, decompressed if the ending of its path says so."""
    with pa.PythonFile(path.open("rb"), mode="r") if isinstance(path, RemotePath) else pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        yield file, pa.CompressedInputStream(file, codec) if codec else file


def values_of_column(records: BlockRecords, column: str) -> pa.Array:
    """Return the values of a kept column. Raises a DocumentError if they have no common type."""
    if not isinstance(records, pa.RecordBatch):
        return infer([record.get(column) for record in records], column)
    values = records.column(column)
    return infer(python_values(values, column), column) if holds_json(values.type) else as_plain(values)


def _slice(records: BlockRecords, first: int, last: int) -> BlockRecords:
    return records.slice(first, last - first) if isinstance(records, pa.RecordBatch) else records[first:last]


def share_of(file: SourceFile, start: int, stop: int, rows: int) -> SourceFile:
    """Return the share of a file of `rows` rows that rows `start` to `stop` - 1 take, by their number."""
    first, last = (file.bytes * row // max(rows, 1) for row in (start, stop))
    return replace(file, bytes=last - first)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedInput:
    """A file, or a piece of one, whose documents are decoded each time they are read."""

    reader: Reader
    needed: tuple[str, ...]
    """Columns to read."""

    extra: tuple[str, ...]
    """Columns among them with further values of the documents; those that `decode` does not return are kept as is."""

    decode: Callable[[BlockRecords], Batch]
    """Function from records to documents. Its DocumentErrors have the number of a record. Can be pickled."""

    empty: Batch
    """Takes the place of the documents of a record that cannot be used."""

    is_slow: bool
    """Whether blocks are worth decoding ahead in several threads, although the results wait in memory."""

    has_labels: bool | None
    """Whether the documents have labels after all steps; None if there are no documents."""

    steps: tuple[Step, ...] = ()
    """What each batch passes through, in order."""

    numbers_documents: str = ""
    """Column that numbers the documents of each record from 0, if a record makes any number of them; if not, one."""

    skips: bool = False
    """Whether records that cannot be used are rejected."""

    @property
    def file(self) -> SourceFile:
        """Name, path and size of the file."""
        return self.reader.file

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return None if self.numbers_documents else self.reader.rows

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty if the file has no schema or no documents. JSON declares none."""
        fields = self.reader.fields
        if not isinstance(fields, pa.Schema) or self.rows == 0:
            return {}
        types = {name: fields.field(name).type for name in self.extra}
        return {name: kind for name, kind in types.items() if not holds_json(kind)}

    def cut(self, size: int) -> Sequence[DecodedInput]:
        """Cut into the pieces of the reader (`Reader.cut`). `file.bytes` of a piece is its share of the file."""
        return [replace(self, reader=piece) for piece in self.reader.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, checked, one `Batch` per block. Raises a DocumentError if one is invalid.

        Blocks are decoded in the threads of `pool`, or of a small pool of its own.
        """
        blocks = self.reader.blocks(self.needed)
        with reading(self.file.name):
            if not self.is_slow:
                yield from self._numbered(map(self._decoded, blocks))
                return
            own = closing(DecodePool(_THREADS)) if pool is None else nullcontext(pool)
            with own as working, closing(working.in_order(self._decoded, blocks)) as results:
                yield from self._numbered(results)

    def chunks_of(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield extra columns of the documents in order."""
        return ({name: batch.extra[name] for name in names} for batch in self.batches())

    def _decoded(self, block: tuple[Block, int]) -> Batch:
        """Decode a block, given with the bytes of the file up to its end, and let it pass through all steps."""
        content, done = block
        records, faults = self.reader.records(content, self.needed)
        try:
            if faults:
                raise faults[min(faults)]
            batch = self._with_kept(self.decode(records), records)
        except DocumentError as fault:
            if not self.skips:
                raise self._first_fault(records, fault) from None
            batch = self._usable(records, faults)
        if faults:
            owners = range(len(records)) if batch.records is None else batch.records.tolist()
            rejected = tuple(faults[row].at(at) for at, row in enumerate(owners) if row in faults)
            batch = batch._replace(rejected=rejected)
        counts = {**batch.counts, **counted_fields("column", self.reader.names_in(content, records))}
        lines = self.reader.lines_of(content) if self.skips else None
        batch = batch._replace(done=done, lines=lines, counts=counts)
        for step in self.steps:
            batch = step(batch)
        return batch

    def _first_fault(self, records: BlockRecords, fault: DocumentError) -> DocumentError:
        """Return the error of the first record that cannot be used, given any: earlier ones may fail later checks."""
        while 0 < fault.row < len(records):
            records = _slice(records, 0, fault.row)
            try:
                self._with_kept(self.decode(records), records)
            except DocumentError as earlier:
                fault = earlier
        fault.of_record = bool(self.numbers_documents)
        return fault

    def _usable(self, records: BlockRecords, faults: Faults) -> Batch:
        """Decode records without those that cannot be used, whose errors are added to `faults`."""
        parts = [*self._parts(records, 0, faults)]
        if not isinstance(records, pa.RecordBatch):  # values of rejected records may have any type
            records = [{} if row in faults else record for row, record in enumerate(records)]
        return self._with_kept(joined_batches(parts), records)

    def _parts(self, records: BlockRecords, first: int, faults: Faults) -> Iterator[Batch]:
        """Yield the documents of records, the first of which has the number `first` in its block.

        Halves are decoded where the whole cannot be, so a fault costs few attempts.
        """
        count = len(records)
        if not faults.keys() & range(first, first + count):
            try:
                batch = self._with_kept(self.decode(records), records)
                numbers = np.arange(count) if batch.records is None else batch.records
                yield batch._replace(records=first + numbers, extra={n: batch.extra[n] for n in self.empty.extra})
                return
            except DocumentError as fault:
                if count == 1 and fault.reason is None:
                    raise fault.at(first) from None
                if count == 1:
                    faults[first] = fault.at(first)
        if count == 1:
            yield self.empty._replace(records=np.full(len(self.empty.input_ids), first))
        elif count:
            half = count // 2
            yield from self._parts(_slice(records, 0, half), first, faults)
            yield from self._parts(_slice(records, half, count), first + half, faults)

    def _with_kept(self, batch: Batch, records: BlockRecords) -> Batch:
        """Add the columns that are kept as they are, and numbers of documents if a record makes several."""
        extra: dict[str, pa.Array] = dict.fromkeys(self.extra) | batch.extra  # in this order
        for name in (name for name in self.extra if name not in batch.extra):
            extra[name] = values_of_column(records, name)
            if batch.records is not None and len(batch.records) > len(records):
                extra[name] = extra[name].take(as_arrow(batch.records))
        if self.numbers_documents:
            assert batch.records is not None
            owners = batch.records  # ascending; the documents of each are numbered from 0
            numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
            extra[self.numbers_documents] = as_arrow(numbers.astype(np.int32))
        return batch._replace(extra=extra)

    def _numbered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches; errors with the index of a document in its batch get its index in the input, and its place."""
        row = records = 0
        try:
            for batch in batches:
                yield batch
                row += len(batch.input_ids)
                records += batch.record_count
        except DocumentError as fault:
            fault = fault.at(row + fault.row)
            fault.place = self.reader.place(records + fault.row - row) if fault.of_record else self.place(fault.row)
            raise fault from None

    def place(self, row: int) -> str:
        """Return the location of a document. If records make any number of documents, this is the file alone."""
        return self.file.name if self.numbers_documents else self.reader.place(row)


Input: TypeAlias = DecodedInput | MappedLists
"""A file or a dataset in memory, opened: its documents are decoded, or lie in memory."""


def decoded_lists(reader: Reader, columns: Columns, *, has_labels: bool | None) -> DecodedInput:
    """Return the token lists of a reader as an input that checks them; `has_labels` is None without documents."""
    wanted = columns.wanted(has_labels=bool(has_labels))
    ends, lists = as_arrow(np.zeros(2, np.int32)), (*columns.per_token, *columns.masks)
    nothing = pa.ListArray.from_arrays(ends, pa.nulls(0))  # pa.array would import pandas
    wide = {
        name: pa.ListArray.from_arrays(ends, pa.nulls(0, pa.list_(pa.null(), width)))
        for name, width in columns.widths.items()
    }
    return DecodedInput(
        reader=reader,
        needed=tuple(dict.fromkeys(wanted)),
        extra=columns.extra,
        decode=partial(decode_lists, columns=columns, has_labels=bool(has_labels)),
        empty=Batch(nothing, nothing if has_labels else None, 0, dict.fromkeys(lists, nothing) | wide),
        is_slow=not isinstance(reader.fields, pa.Schema),
        has_labels=has_labels,
    )


def usual_widths(inputs: Sequence[Input], names: Sequence[str]) -> dict[str, int]:
    """Return the number of values that most tokens have at the beginning, of columns of lists of lists."""
    found: dict[str, int] = {}  # 0 for lists of numbers
    for input_ in inputs:
        flat = [name for name, kind in input_.declared_types.items() if not is_nested(plain_type(kind))]
        missing = [name for name in names if name not in (*found, *flat)]
        with reading(input_.file.name), suppress(DocumentError):  # raised again when all documents are read
            for chunks in input_.chunks_of(missing) if missing else ():
                for name, chunk in chunks.items():
                    values = values_of(chunk)[:_SAMPLED]
                    lengths = list_lengths(values) if is_nested(chunk.type) else np.zeros(len(values), np.int64)
                    lengths = lengths[(lengths > 0) | (not is_nested(chunk.type))]
                    if len(lengths) and name not in found:
                        found[name] = statistics.mode(lengths.tolist())
                if found.keys() >= {*missing}:
                    break
    return {name: found[name] for name in names if found.get(name)}
