"""Text records in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from packer.sources.columns.column_checks import require_kept
from packer.sources.documents import DocumentError, reading
from packer.sources.files.file_access import open_parquet_footer
from packer.sources.row_groups import ParquetPiece, RowGroups
from packer.sources.text import text_records
from packer.sources.text.text_records import ROWS, RecordReader, with_columns
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetRecords(ParquetPiece, RecordReader):
    """A Parquet file of text records, or a run of its row groups."""

    @property
    def fields(self) -> pa.Schema:
        """Schema of the file."""
        return self.groups.schema

    def cut(self, size: int) -> Sequence[RecordReader]:
        """Cut between row groups, into pieces of about `size` bytes once decompressed."""
        return [replace(self, groups=piece) for piece in self.groups.cut(lambda group: group.size >= size)]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.Table, int]]:
        """Yield tables of consecutive records, each with the bytes of the file up to its end."""
        present = [column for column in columns if column in self.fields.names]
        at_once = int(min(max(text_records.BLOCK / self.groups.row_size, 1), ROWS))
        for batch, done in self.groups.batches(present, at_once):
            yield pa.Table.from_batches([batch]), done

    def records(self, block: pa.Table, columns: Sequence[str], rejected: list[DocumentError] | None = None) -> pa.Table:
        """Return the table, with missing columns added as nulls."""
        return with_columns(block, columns)

    def require(self, columns: Sequence[str]) -> None:
        """Check that each of these columns exists exactly once and has a type that can be kept."""
        require_kept(self.fields, columns, self.file.name)


def open_parquet_records(path: AnyPath, name: str) -> ParquetRecords:
    """Open a Parquet file: read its footer.

    Args:
        path: the file.
        name: its name in messages and in the manifest.

    Raises:
        SourceError: the file is truncated or corrupt.
    """
    with reading(name), open_parquet_footer(path) as parquet:
        return ParquetRecords(groups=RowGroups.survey(parquet, path, name, lambda group: group.total_byte_size))
