"""Readers: opened files of one format, from which records or token lists are read in blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.sources.column_types import find_columns, names_of, require_column, require_kept
from packer.sources.documents import Columns, SourceFile, place_of_row
from packer.sources.list_checks import BlockRecords, Faults
from packer.stores import AnyPath, RemotePath
from packer.token_memory.token_column import TokenColumn

Block: TypeAlias = Any
"""Unit that a reader cuts a file into: bytes, a record batch or records."""

BLOCK = 1 << 20
"""Number of bytes of records tokenized together, some hundred thousand tokens."""

ROWS = 1 << 12
"""Maximum number of records tokenized together."""

LISTS = 1 << 22
"""Number of token ids decoded together: 16 to 32 MB."""

LIST_ROWS = 1 << 16
"""Maximum number of token lists decoded together."""

CODECS = {".gz": "gzip", ".zst": "zstd"}
"""Codecs of compressed files, by file name ending."""

BIN = ".bin"
"""Ending of the token file next to an `.idx` file."""

OLMO_TOKENS, OLMO_MASKS = "token_ids", "labels_mask"
"""Name prefixes of OLMo's token arrays, and of its arrays that mark trained tokens."""


class BatchStore(Protocol):
    """Lists in memory, as non-empty record batches in order. Several threads may read them at the same time."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Cumulative lengths of the batches; shape (batches,)."""

    @property
    def tokens(self) -> Mapping[str, TokenColumn]:
        """Addresses of the token and label columns, by name."""

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the named columns of each of the given batches."""

    def whole(self) -> BatchStore:
        """Return the same lists with all values in memory, even if the file is in object storage."""


class Lists(NamedTuple):
    """Token lists of a file."""

    reader: Reader
    """Reader that decodes the lists."""

    has_labels: bool | None
    """Whether there are labels; None if there are no records."""

    store: BatchStore | None = None
    """The lists in memory; None if they must be decoded."""


class Reader(Protocol):
    """A file of one format, or a piece of one, read in blocks of records.

    `blocks` cuts the file quickly, in one thread; `records` decodes a block in any thread. Subclasses that read record
    batches need to define only `open`, `file`, `fields` and `blocks`.

    `open`, `for_lists` and `for_records` raise a `PackerError` if the file cannot be read, and a `SourceError` if it is
    truncated or corrupt.
    """

    no_lists: ClassVar[str] = ""
    """Why files of this format contain no token lists, for a message; empty if they may contain some."""

    @classmethod
    def open(cls, file: SourceFile) -> Reader:
        """Open a file, and find its schema or its first record."""

    def for_lists(self, columns: Columns) -> Lists:
        """Return the token lists of the file; `columns` are the columns to read.

        Raises a PackerError if a column is missing, or if the format contains no lists.
        """
        if self.no_lists:
            raise PackerError(f"{self.file.name}: {self.no_lists}: set --tokenizer, or give another format")
        fields = self.fields
        if isinstance(fields, pa.Schema):
            return Lists(self, find_columns(fields, self.file.name, columns))
        if not fields:
            return Lists(self, None)
        require_column(fields, self.file.name, columns)
        self.require(columns.extra)
        return Lists(self, fields.get(columns.labels) is not None)

    def for_records(self) -> Reader:
        """Return a reader for records of text or numbers. Raises a PackerError if the format has no such records."""
        return self

    @property
    def file(self) -> SourceFile:
        """Name, path and size of the file. For a piece, the size is its share of the file."""

    @property
    def path(self) -> AnyPath:
        """Path of the file."""
        return self.file.stored

    @property
    def rows(self) -> int | None:
        """Number of records; None if unknown before reading."""
        return None

    @property
    def first_row(self) -> int:
        """Number of records in the file before this piece; 0 if records are located by line."""
        return 0

    @property
    def place(self) -> Callable[[int], str]:
        """Function that returns the location of a record, such as "rows.parquet row 17". Can be pickled."""
        return partial(place_of_row, self.file.name, self.first_row)

    @property
    def fields(self) -> pa.Schema | Mapping[str, object] | None:
        """Schema of the file, or its first valid record; None if there is no record.

        Types help to decide what columns mean: masks, and lengths of documents in a row, must be lists of numbers. A
        reader of text must therefore convert the values of the first record.
        """

    @property
    def names(self) -> list[str]:
        """Column names in the schema or the first valid record; empty without records."""
        return names_of(self.fields or {})

    def require(self, columns: Sequence[str]) -> None:
        """Check the columns to keep: each must occur exactly once, with a type that can be kept."""
        if isinstance(self.fields, pa.Schema):
            require_kept(self.fields, columns, self.file.name)

    def cut(self, size: int) -> Sequence[Reader]:
        """Cut into pieces of about `size` bytes. The cuts depend only on the file and `size`."""
        return (self,)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Block, int]]:
        """Yield (block of records with at least these columns, number of bytes of the file up to its end)."""

    def records(self, block: Block, columns: Sequence[str]) -> tuple[BlockRecords, Faults]:
        """Return (decoded columns of a block, errors of invalid records). Invalid records have no fields.

        Columns that are not in the file are left out: only one of two chat files may have tools, for example.
        """
        for column in columns:
            if column not in block.schema.names:
                block = block.append_column(column, pa.nulls(len(block)))
        return block, {}

    def names_in(self, block: Block, records: BlockRecords) -> Collection[str]:
        """Return the names of fields in a block that may not be in the schema."""
        return () if isinstance(records, pa.RecordBatch) else set[str]().union(*records)

    def lines_of(self, block: Block) -> bytes | None:
        """Return the lines of a block; None if records are located by number."""
        return None


@contextmanager
def opened(path: AnyPath) -> Iterator[tuple[pa.NativeFile, pa.NativeFile]]:
    """Open a local or remote file. Yields the file and its content, decompressed according to its ending."""
    with pa.PythonFile(path.open("rb"), mode="r") if isinstance(path, RemotePath) else pa.OSFile(str(path)) as file:
        codec = CODECS.get(path.suffix)
        yield file, pa.CompressedInputStream(file, codec) if codec else file


def share_of(file: SourceFile, start: int, stop: int, rows: int) -> SourceFile:
    """Return the file with its size scaled to the rows `start` to `stop` - 1 of `rows`."""
    first, last = (file.bytes * row // max(rows, 1) for row in (start, stop))
    return replace(file, bytes=last - first)
