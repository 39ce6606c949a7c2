"""Parquet files: decoded a few million tokens at a time, the wanted columns only; pieces are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.sources.crew import Crew
from packer.sources.documents import Batch, Columns, DecodedSize, Input, SourceFile, find_columns, reading

MAGIC = b"PAR1"

_VALUES = 1 << 22  # values decoded at once: 16 to 32 MB
_ROWS = 1 << 16


class _Group(NamedTuple):
    """What the footer says of a row group."""

    rows: int
    tokens: int  # values of the token column; an empty list counts as one


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetFile:
    """A Parquet file, or a run of its row groups."""

    file: SourceFile
    path: Path
    rows: int
    has_labels: bool
    columns: Columns
    decoded: DecodedSize
    rows_at_once: int
    """How many rows hold about `_VALUES` values where the documents are longest."""

    sizes: tuple[_Group, ...]
    """All row groups of the file."""

    groups: range
    """Those to read."""

    first_row: int = 0
    """Rows of the file before them."""

    mapped: bool = False

    @classmethod
    def open(cls, path: Path, name: str, columns: Columns) -> ParquetFile:
        """Read the file's footer.

        Raises:
            PackerError: no such column, or the file cannot be read.
            SourceError: truncated, corrupt, or of a type that is not taken.
        """
        with reading(name), pq.ParquetFile(path, memory_map=True) as parquet:
            has_labels = find_columns(parquet.schema_arrow, name, columns)
            groups = _groups(parquet, name, columns)
            longest = max([1.0, *(group.tokens / max(group.rows, 1) for group in groups)])
            rows = parquet.metadata.num_rows
            return cls(
                file=SourceFile(name=name, bytes=path.stat().st_size),
                path=path,
                rows=rows,
                has_labels=has_labels,
                columns=columns,
                decoded=DecodedSize.of(sum(group.tokens for group in groups), rows, has_labels=has_labels),
                rows_at_once=int(min(max(_VALUES / longest, 1), _ROWS)),
                groups=range(len(groups)),
                sizes=tuple(groups),
            )

    def cut(self, size: int) -> Sequence[Input]:
        """Cut between row groups: as many together as come to `size` when they are decoded."""
        pieces: list[Input] = []
        first = first_row = rows = tokens = 0
        for number, group in enumerate(self.sizes):
            rows, tokens = rows + group.rows, tokens + group.tokens
            decoded = DecodedSize.of(tokens, rows, has_labels=self.has_labels)
            if decoded.bytes >= size or number == len(self.sizes) - 1:
                share = self._bytes_before(first_row + rows) - self._bytes_before(first_row)
                pieces.append(
                    replace(
                        self,
                        file=SourceFile(name=self.file.name, bytes=share),
                        rows=rows,
                        decoded=decoded,
                        groups=range(first, number + 1),
                        first_row=first_row,
                    )
                )
                first, first_row, rows, tokens = number + 1, first_row + rows, 0, 0
        return pieces or (self,)

    def batches(self, crew: Crew | None = None) -> Iterator[Batch]:
        """Yield the rows in order; a row group is read page by page, never held as a whole."""
        wanted = list(self.columns.wanted(has_labels=self.has_labels))
        with reading(self.file.name):
            parquet = pq.ParquetFile(self.path, memory_map=True, pre_buffer=False)
        with parquet:
            batches = parquet.iter_batches(self.rows_at_once, self.groups, wanted, use_threads=False)
            done = 0
            while True:
                with reading(self.file.name):
                    batch = next(batches, None)
                if batch is None:
                    break
                done += len(batch)
                if done > self.rows:
                    break
                share = self.file.bytes * done // self.rows
                yield Batch.of(batch, self.columns, share, has_labels=self.has_labels)
            if done != self.rows:
                raise SourceError(f"{self.file.name}: corrupt: its footer says {self.rows} rows, its pages hold others")

    def place(self, row: int) -> str:
        """Name the row."""
        return f"{self.file.name} row {self.first_row + row}"

    def _bytes_before(self, row: int) -> int:
        return self.file.bytes * row // max(self.rows, 1)


def schema_names(path: Path, name: str) -> list[str]:
    """The names of the columns of a file."""
    with reading(name), pq.ParquetFile(path, memory_map=True) as parquet:
        return list(parquet.schema_arrow.names)


def _groups(parquet: pq.ParquetFile, name: str, columns: Columns) -> list[_Group]:
    """Rows and tokens of every row group.

    The first row of each is read before its footer is asked: pyarrow's own reader refuses a damaged entry, and asking
    for it from Python ends the process, since nothing there catches what C++ throws.
    """
    paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
    leaf = next(i for i, path in enumerate(paths) if path.startswith(f"{columns.input_ids}."))
    groups = []
    for number in range(parquet.metadata.num_row_groups):
        next(parquet.iter_batches(batch_size=1, row_groups=[number], columns=[columns.input_ids]), None)
        group = parquet.metadata.row_group(number)
        groups.append(_Group(max(group.num_rows, 0), group.column(leaf).num_values))
    rows = sum(group.rows for group in groups)
    if rows != parquet.metadata.num_rows:
        raise SourceError(f"{name}: corrupt: it says {parquet.metadata.num_rows} rows, its row groups say {rows}")
    return groups
