"""Parquet files, read page by page and never a row group as a whole; pieces are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.inputs import format_reader
from packer.inputs.column_types import find_columns
from packer.inputs.documents import Columns, SourceFile, reading
from packer.inputs.format_reader import LIST_ROWS, LISTS, ROWS, DecodedInput, Reader, decoded_lists, share_of
from packer.stores import RemotePath

_PAGES = 1 << 16  # bytes read of an object for the first page of a column


class RowGroup(NamedTuple):
    """Size of a row group, from the footer."""

    rows: int
    tokens: int  # of the column with the tokens; 0 for text
    bytes: int  # once decoded; of token lists, without other columns
    encoded: int  # bytes of all columns, uncompressed


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetReader(Reader):
    """A Parquet file, or a run of its row groups."""

    file: SourceFile
    """Name of the file, and the share of its bytes that belongs to this run."""

    fields: pa.Schema
    every: tuple[RowGroup, ...]
    run: range
    holds_lists: bool
    """Whether the file is read as token lists, so that larger blocks are decoded at once."""

    @classmethod
    def open(cls, file: SourceFile) -> ParquetReader:
        """Open a file of records: read its footer."""
        with reading(file.name), _opened(file, ahead=False) as parquet:
            return _reader(parquet, file)

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> DecodedInput:
        """Open a file of token lists: read its footer."""
        with reading(file.name), _opened(file, ahead=False) as parquet:
            has_labels = find_columns(parquet.schema_arrow, file.name, columns)
            reader = _reader(parquet, file, columns.input_ids, has_labels=has_labels)
        return decoded_lists(reader, columns, has_labels=has_labels)

    @classmethod
    def column_names(cls, file: SourceFile) -> list[str]:
        """Return the column names of a file."""
        with reading(file.name), _opened(file, ahead=False) as parquet:
            return list(parquet.schema_arrow.names)

    @property
    def rows(self) -> int:
        """Number of rows in this run."""
        return sum(group.rows for group in self._own)

    @property
    def first_row(self) -> int:
        """Number of rows before this run."""
        return sum(group.rows for group in self.every[: self.run.start])

    def cut(self, size: int) -> Sequence[ParquetReader]:
        """Cut between row groups, into pieces of about `size` bytes once decoded."""
        runs, start, held = [], 0, 0
        for stop, group in enumerate(self.every, start=1):
            held += group.bytes
            if held >= size or stop == len(self.every):
                runs.append(range(start, stop))
                start, held = stop, 0
        rows = [0, *accumulate(group.rows for group in self.every)]
        return [
            replace(self, file=share_of(self.file, rows[run.start], rows[run.stop], rows[-1]), run=run) for run in runs
        ] or [self]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield record batches in order, each with the bytes of the file up to its end."""
        present = [column for column in columns if column in self.fields.names]
        rows, done = self.rows, 0
        size, most = (LISTS, LIST_ROWS) if self.holds_lists else (format_reader.BLOCK, ROWS)
        sizes = [(max(group.tokens or group.bytes, group.encoded // 8), max(group.rows, 1)) for group in self._own]
        largest = max([1.0, *(of_group / count for of_group, count in sizes)])  # of rows; others are lists of lists
        per_block = int(min(max(size / largest, 1), most))
        with reading(self.file.name), _opened(self.file, ahead=True) as parquet:
            for batch in parquet.iter_batches(per_block, self.run, present, use_threads=False):
                done += len(batch)
                if done > rows:
                    break
                yield batch, self.file.bytes * done // max(rows, 1)
            if done != rows:
                raise SourceError(
                    f"{self.file.name}: corrupt: its footer says {rows} rows, its pages hold more or fewer"
                )

    @property
    def _own(self) -> tuple[RowGroup, ...]:
        return self.every[self.run.start : self.run.stop]


def _reader(
    parquet: pq.ParquetFile, file: SourceFile, tokens: str | None = None, *, has_labels: bool = False
) -> ParquetReader:
    """Read the sizes of all row groups from the footer, given the column of token lists; call it inside `reading`.

    The first row of each group is read before its metadata, in that column (None for all). If they are damaged,
    pyarrow's reader raises an error, whereas access from Python ends the process, since nothing catches the C++
    exception.
    """
    leaves = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
    leaf = next((i for i, leaf in enumerate(leaves) if leaf.startswith(f"{tokens}.")), None)
    groups = []
    for number in range(parquet.metadata.num_row_groups):
        next(
            parquet.iter_batches(batch_size=1, row_groups=[number], columns=None if tokens is None else [tokens]), None
        )
        group = parquet.metadata.row_group(number)
        encoded = max(group.total_byte_size, 0)
        values = 0 if leaf is None else max(group.column(leaf).num_values, 0)
        size = encoded if leaf is None else 4 * (values + group.num_rows) * (1 + has_labels)
        groups.append(RowGroup(max(group.num_rows, 0), values, size, encoded))
    rows = sum(group.rows for group in groups)
    if rows != parquet.metadata.num_rows:
        raise SourceError(f"{file.name}: corrupt: it says {parquet.metadata.num_rows} rows, its row groups say {rows}")
    return ParquetReader(
        file=file,
        fields=parquet.schema_arrow,
        every=tuple(groups),
        run=range(len(groups)),
        holds_lists=tokens is not None,
    )


def _opened(file: SourceFile, *, ahead: bool) -> pq.ParquetFile:
    """Open a Parquet file: to read its footer and a few pages, or its columns, which are read `ahead` of an object."""
    path = file.stored
    if not isinstance(path, RemotePath):
        return pq.ParquetFile(path, memory_map=True)
    return pq.ParquetFile(path.open("rb"), buffer_size=0 if ahead else _PAGES, pre_buffer=ahead)
