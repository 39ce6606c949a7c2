"""Tokenized documents in Parquet files, decoded a few million tokens at a time; pieces are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from packer.sources.columns.column_checks import find_columns
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.documents import Batch, Columns, DecodedSize, Input, reading
from packer.sources.files.file_access import open_parquet_footer
from packer.sources.row_groups import ParquetPiece, RowGroup, RowGroups
from packer.stores import AnyPath

_VALUES = 1 << 22  # values decoded at once: 16 to 32 MB
_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetFile(ParquetPiece, Input):
    """A Parquet file of tokenized documents, or a run of its row groups."""

    has_labels: bool
    columns: Columns

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns."""
        return {name: self.groups.schema.field(name).type for name in self.columns.extra}

    @property
    def decoded(self) -> DecodedSize:
        """Size of the documents once decoded, or slightly more: an empty list counts as one token."""
        return self._decoded(RowGroup(self.groups.rows, self.groups.size))

    def cut(self, size: int) -> Sequence[Input]:
        """Cut between row groups, into pieces of about `size` bytes once decoded."""
        pieces = self.groups.cut(lambda group: self._decoded(group).bytes >= size)
        return [replace(self, groups=piece) for piece in pieces]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order."""
        at_once = int(min(max(_VALUES / self.groups.row_size, 1), _ROWS))
        for batch, done in self.groups.batches(self.columns.wanted(has_labels=self.has_labels), at_once):
            yield Batch.of(batch, self.columns, done, has_labels=self.has_labels)

    def _decoded(self, group: RowGroup) -> DecodedSize:
        return DecodedSize.of(group.size, group.rows, has_labels=self.has_labels)


def open_parquet(path: AnyPath, name: str, columns: Columns) -> ParquetFile:
    """Open a Parquet file: read its footer.

    Args:
        path: the file.
        name: its name in messages and in the manifest.
        columns: the columns to read.

    Raises:
        PackerError: a column is missing, or the file cannot be read.
        SourceError: the file is truncated or corrupt, or the type of a column is not supported.
    """
    with reading(name), open_parquet_footer(path) as parquet:
        has_labels = find_columns(parquet.schema_arrow, name, columns)
        paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        leaf = next(i for i, path in enumerate(paths) if path.startswith(f"{columns.input_ids}."))
        groups = RowGroups.survey(parquet, path, name, lambda group: group.column(leaf).num_values, [columns.input_ids])
    return ParquetFile(groups=groups, has_labels=has_labels, columns=columns)


def column_names(path: AnyPath, name: str) -> list[str]:
    """Return the column names of a file."""
    with reading(name), open_parquet_footer(path) as parquet:
        return list(parquet.schema_arrow.names)
