"""Parquet files: decoded a few million tokens at a time, the wanted columns only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

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
            longest = 1.0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                chunks = (group.column(i) for i in range(group.num_columns))
                values = sum(c.num_values for c in chunks if c.path_in_schema.split(".")[0] == columns.input_ids)
                longest = max(longest, values / max(group.num_rows, 1))
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
                    return
                done += len(batch)
                labels = [batch.column(self.columns.labels)] if self.has_labels else None
                yield Batch([batch.column(self.columns.input_ids)], labels, self.file.bytes * done // self.rows)

    def place(self, row: int) -> str:
        """Name the row."""
        return f"{self.file.name} row {row}"
