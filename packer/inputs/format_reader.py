"""Readers, which take records from a file in blocks, and the input that decodes these blocks to documents."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from packer.engine import DecodePool
from packer.errors import PackerError
from packer.inputs.column_types import as_plain, infer, plain_type, require_kept
from packer.inputs.documents import (
    Batch,
    Columns,
    DocumentError,
    Places,
    RowPlaces,
    SourceFile,
    reading,
)
from packer.inputs.list_checks import Faults, check_lists, is_nested, values_of
from packer.inputs.token_tables import MappedLists
from packer.stores import AnyPath, RemotePath
from packer.token_memory import list_lengths

Block: TypeAlias = Any
"""What a reader cuts a file into: bytes, a record batch or records."""

BlockRecords: TypeAlias = pa.RecordBatch | Sequence[Mapping[str, object]]
"""Records of a block, as columns or as Python objects."""

ListDecoder: TypeAlias = Callable[[tuple[Block, int]], Batch]
"""Function that decodes a block of token lists, given with the bytes of the file up to its end."""

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

    `blocks` cuts the file quickly, in one thread; `records` and the function that `lists` returns decode a block in any
    thread. Subclasses may leave out every member but `open`, `file`, `path`, `fields`, `blocks` and `records`.

    The class methods take the path of a file, and its name in messages and in the manifest. They raise a `PackerError`
    if the file cannot be read, and a `SourceError` if it is truncated or corrupt.
    """

    no_lists: ClassVar[str] = ""
    """Why files of the format hold no lists of tokens, for a message; empty if they may."""

    @classmethod
    def open(cls, path: AnyPath, name: str) -> Reader:
        """Open a file of other records than token lists: text, or numbers."""

    @classmethod
    def open_lists(cls, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> Input:
        """Open a file of token lists, given the columns to read; with `skips`, unusable records are rejected.

        A PackerError is raised if a column is missing, or the format holds no lists.
        """
        raise PackerError(f"{name}: {cls.no_lists}: set --tokenizer, or give another format")

    @classmethod
    def column_names(cls, path: AnyPath, name: str) -> list[str]:
        """Return the names of the columns at the beginning of the file; none if it has no record."""
        fields = cls.open(path, name).fields
        return [*(fields.names if isinstance(fields, pa.Schema) else fields or ())]

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of records; None if it is known only after reading."""
        return None

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return RowPlaces(self.file.name)

    @property
    def fields(self) -> pa.Schema | Mapping[str, object] | None:
        """Schema of the file, or its first valid record; None if there is no record."""

    def require(self, columns: Sequence[str]) -> None:
        """Check that records have these columns, which are to be kept, each once and in a type that can be kept."""

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut into pieces of about `size` bytes, which depend on nothing but the file and `size`."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Block, int]]:
        """Yield blocks of records with at least these columns, each with the bytes of the file up to its end."""

    def records(self, block: Block, columns: Sequence[str]) -> tuple[BlockRecords, Faults]:
        """Decode columns of a block; also return the errors for records that are not valid, which have no fields."""

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that decodes columns of blocks of token lists in one pass over the file.

        With `skips`, records that cannot be parsed are rejected, with an empty document in the place of each.
        """
        raise AssertionError(f"{self.file.name} holds no lists")

    def lines_of(self, block: Block) -> bytes | None:
        """Return the lines that a block is made of; None if records are located by number."""
        return None


class TableReader(Reader, Protocol):
    """A reader of a format with a schema, whose blocks are record batches."""

    @property
    def fields(self) -> pa.Schema:
        """Schema of the file."""

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns exists exactly once and has a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)

    def records(self, block: pa.RecordBatch, columns: Sequence[str]) -> tuple[pa.RecordBatch, Faults]:
        """Return the record batch, with missing columns added as nulls: of two files of chats, one may have tools."""
        for column in columns:
            if column not in block.schema.names:
                block = block.append_column(column, pa.nulls(len(block)))
        return block, {}

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool) -> ListDecoder:
        """Return a function that takes the columns of a record batch."""

        def decode(block: tuple[pa.RecordBatch, int]) -> Batch:
            batch, done = block
            labels = batch.column(columns.labels) if has_labels else None
            extra = {name: as_plain(batch.column(name)) for name in columns.extra}
            return Batch(batch.column(columns.input_ids), labels, done, extra)

        return decode


@contextmanager
def opened(path: AnyPath) -> Iterator[tuple[pa.NativeFile, pa.NativeFile]]:
    """Yield a file, local or in object storage, and its content, decompressed if the ending of its path says so."""
    with pa.PythonFile(path.open("rb"), mode="r") if isinstance(path, RemotePath) else pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        yield file, pa.CompressedInputStream(file, codec) if codec else file


def values_of_column(records: BlockRecords, column: str) -> pa.Array:
    """Return the values of a kept column. Raises a DocumentError if they have no common type."""
    if isinstance(records, pa.RecordBatch):
        return as_plain(records.column(column))
    return infer([record.get(column) for record in records], column)


def share_of(file: SourceFile, start: int, stop: int, rows: int) -> SourceFile:
    """Return the share of a file of `rows` rows that rows `start` to `stop` - 1 take, by their number."""
    first, last = (file.bytes * row // max(rows, 1) for row in (start, stop))
    return SourceFile(name=file.name, bytes=last - first)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedInput:
    """A file, or a piece of one, whose documents are decoded each time they are read."""

    reader: Reader
    needed: tuple[str, ...]
    kept: tuple[str, ...]
    """Columns among them that are kept as they are."""

    start: Callable[[DecodedInput], ListDecoder]
    """Function from the input to what decodes the blocks of its reader in one pass; can be pickled."""

    is_slow: bool
    """Whether blocks are worth decoding ahead in several threads, although the results wait in memory."""

    has_labels: bool | None
    """Whether the documents have labels after all steps; None if there are no documents."""

    steps: tuple[Step, ...] = ()
    """What each batch passes through, in order."""

    numbers_documents: bool = False
    """Whether a record makes any number of documents, which the column `answer` numbers from 0; if not, one."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.reader.file

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""
        return self.reader.path

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return None if self.numbers_documents else self.reader.rows

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty if the file has no schema or no documents."""
        fields = self.reader.fields
        if not isinstance(fields, pa.Schema) or self.rows == 0:
            return {}
        return {name: fields.field(name).type for name in self.kept}

    @property
    def places(self) -> Places:
        """Locations of the records, for messages."""
        return self.reader.places

    def cut(self, size: int) -> Sequence[DecodedInput]:
        """Cut into the pieces of the reader (`Reader.cut`). `file.bytes` of a piece is its share of the file."""
        return [replace(self, reader=piece) for piece in self.reader.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, checked, one `Batch` per block. Raises a DocumentError if one is invalid.

        Blocks are decoded in the threads of `pool`, or of a small pool of its own.
        """
        decode, blocks = self.start(self), self.reader.blocks(self.needed)

        def documents_of(block: tuple[Block, int]) -> Batch:
            batch = decode(block)
            for step in self.steps:
                batch = step(batch)
            return batch

        with reading(self.file.name):
            if not self.is_slow:
                yield from self._numbered(map(documents_of, blocks))
                return
            own = closing(DecodePool(_THREADS)) if pool is None else nullcontext(pool)
            with own as working, closing(working.in_order(documents_of, blocks)) as results:
                yield from self._numbered(results)

    def chunks_of(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield extra columns of the documents in order."""
        return ({name: batch.extra[name] for name in names} for batch in self.batches())

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
            fault.place = self.places.place(records + fault.row - row) if fault.of_record else self.place(fault.row)
            raise fault from None

    def place(self, row: int) -> str:
        """Return the location of a document. If records make any number of documents, this is the file alone."""
        return self.file.name if self.numbers_documents else self.places.place(row)


Input: TypeAlias = DecodedInput | MappedLists
"""A file or a dataset in memory, opened: its documents are decoded, or lie in memory."""


def paths_of(input_: Input) -> tuple[AnyPath, ...]:
    """Return the paths of all files that an input is read from; none for data in memory."""
    return () if input_.path is None else (input_.path, *input_.file.beside)


def written_ns(input_: Input) -> int | None:
    """Return the time of the last write to the files of an input, in ns; None for data in memory."""
    return max((path.stat().st_mtime_ns for path in paths_of(input_)), default=None)


def _list_decoder(columns: Columns, has_labels: bool, skips: bool, input_: DecodedInput) -> ListDecoder:
    return input_.reader.lists(columns, has_labels=has_labels, skips=skips)  # before any steps, which may make labels


def decoded_lists(reader: Reader, columns: Columns, *, has_labels: bool | None, skips: bool = False) -> DecodedInput:
    """Return the token lists of a reader as an input that checks them; `has_labels` is None without documents."""
    wanted = columns.wanted(has_labels=bool(has_labels))
    return DecodedInput(
        reader=reader,
        needed=tuple(dict.fromkeys(wanted)),
        kept=columns.extra,
        start=partial(_list_decoder, columns, bool(has_labels), skips),
        is_slow=not isinstance(reader.fields, pa.Schema),
        has_labels=has_labels,
        steps=(partial(check_lists, columns=columns, skips=skips),),
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
