"""Records of text in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packer.sources import text_records
from packer.sources.column_checks import require_kept
from packer.sources.documents import Places, SourceFile, reading
from packer.sources.row_groups import RowGroups
from packer.sources.text_records import ROWS, RecordReader, with_columns


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetRecords(RecordReader):
    """A Parquet file, or a run of its row groups."""

    groups: RowGroups
    """Measured by bytes, decompressed."""

    @property
    def file(self) -> SourceFile:
        """Name and size."""
        return self.groups.file

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.groups.path

    @property
    def rows(self) -> int:
        """Records."""
        return self.groups.rows

    @property
    def fields(self) -> pa.Schema:
        """The schema."""
        return self.groups.schema

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut between row groups: as many together as come to `size` when they are decompressed."""
        return [replace(self, groups=piece) for piece in self.groups.cut(lambda group: group.size >= size)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        """Yield runs of rows."""
        there = [column for column in columns if column in self.fields.names]
        at_once = int(min(max(text_records.BLOCK / self.groups.size_of_a_row, 1), ROWS))
        for batch, done in self.groups.batches(there, at_once):
            yield pa.Table.from_batches([batch]), done

    def records(self, block: pa.Table, columns: Sequence[str]) -> pa.Table:
        """They are Arrow's already; a column that is not there is null throughout."""
        return with_columns(block, columns)

    @property
    def places(self) -> Places:
        """What names the records."""
        return self.groups.places

    def require(self, columns: Sequence[str]) -> None:
        """Check that the file has each of these columns, once, of a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)


def open_parquet_records(path: Path, name: str) -> ParquetRecords:
    """Open a Parquet file: read its footer.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: truncated or corrupt.
    """
    with reading(name), pq.ParquetFile(path, memory_map=True) as parquet:
        return ParquetRecords(groups=RowGroups.survey(parquet, path, name, lambda group: group.total_byte_size))
