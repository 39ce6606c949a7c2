"""Parquet files: decoded a few million tokens at a time, the wanted columns only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.sources.documents import Batch, Columns, SourceFile, find_columns, reading

MAGIC = b"PAR1"

_VALUES = 1 << 22  # values decoded at once: 16 to 32 MB
_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetFile:
    """A Parquet file."""

    file: SourceFile
    path: Path
    rows: int
    has_labels: bool
    columns: Columns
    rows_at_once: int
    """How many rows hold about `_VALUES` values where the documents are longest."""

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
            longest = max([1.0, *_mean_lengths(parquet, name, columns.input_ids)])
            return cls(
                file=SourceFile(name=name, bytes=path.stat().st_size),
                path=path,
                rows=parquet.metadata.num_rows,
                has_labels=has_labels,
                columns=columns,
                rows_at_once=int(min(max(_VALUES / longest, 1), _ROWS)),
            )

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in order; a row group is read page by page, never held as a whole."""
        wanted = list(self.columns if self.has_labels else self.columns[:1])
        with reading(self.file.name):
            parquet = pq.ParquetFile(self.path, memory_map=True, pre_buffer=False)
        with parquet:
            batches = parquet.iter_batches(batch_size=self.rows_at_once, columns=wanted)
            done = 0
            while True:
                with reading(self.file.name):
                    batch = next(batches, None)
                if batch is None:
                    break
                done += len(batch)
                if done > self.rows:
                    break
                labels = [batch.column(self.columns.labels)] if self.has_labels else None
                yield Batch([batch.column(self.columns.input_ids)], labels, self.file.bytes * done // self.rows)
            if done != self.rows:
                raise SourceError(f"{self.file.name}: corrupt: its footer says {self.rows} rows, its pages hold others")

    def place(self, row: int) -> str:
        """Name the row."""
        return f"{self.file.name} row {row}"


def _mean_lengths(parquet: pq.ParquetFile, name: str, column: str) -> Iterator[float]:
    """Yield the values per row of a list column, for every row group.

    The first row of each is read before its footer is asked: pyarrow's own reader refuses a damaged entry, and asking
    for it from Python ends the process, since nothing there catches what C++ throws.
    """
    paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
    leaf = next(i for i, path in enumerate(paths) if path.startswith(f"{column}."))
    rows = 0
    for number in range(parquet.metadata.num_row_groups):
        next(parquet.iter_batches(batch_size=1, row_groups=[number], columns=[column]), None)
        group = parquet.metadata.row_group(number)
        rows += max(group.num_rows, 0)
        yield group.column(leaf).num_values / max(group.num_rows, 1)
    if rows != parquet.metadata.num_rows:
        raise SourceError(f"{name}: corrupt: it says {parquet.metadata.num_rows} rows, its row groups say {rows}")
