"""Parquet files of tokens: decoded a few million at a time, the wanted columns only; pieces are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from packer.sources.column_checks import find_columns
from packer.sources.crew import Crew
from packer.sources.documents import Batch, Columns, DecodedSize, Input, Places, SourceFile, reading
from packer.sources.row_groups import RowGroup, RowGroups

MAGIC = b"PAR1"

_VALUES = 1 << 22  # values decoded at once: 16 to 32 MB
_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetFile:
    """A Parquet file, or a run of its row groups."""

    groups: RowGroups
    """Measured by tokens; an empty list counts as one."""

    has_labels: bool
    columns: Columns
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
            paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
            leaf = next(i for i, path in enumerate(paths) if path.startswith(f"{columns.input_ids}."))
            groups = RowGroups.survey(
                parquet, path, name, lambda group: group.column(leaf).num_values, [columns.input_ids]
            )
        return cls(groups=groups, has_labels=has_labels, columns=columns)

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
        """Documents."""
        return self.groups.rows

    @property
    def decoded(self) -> DecodedSize:
        """What its documents come to, or a little more."""
        return self._decoded(RowGroup(self.groups.rows, self.groups.size))

    def cut(self, size: int) -> Sequence[Input]:
        """Cut between row groups: as many together as come to `size` when they are decoded."""
        pieces = self.groups.cut(lambda group: self._decoded(group).bytes >= size)
        return [replace(self, groups=piece) for piece in pieces]

    def batches(self, crew: Crew | None = None) -> Iterator[Batch]:
        """Yield the rows in order."""
        at_once = int(min(max(_VALUES / self.groups.size_of_a_row, 1), _ROWS))
        for batch, done in self.groups.batches(self.columns.wanted(has_labels=self.has_labels), at_once):
            yield Batch.of(batch, self.columns, done, has_labels=self.has_labels)

    @property
    def places(self) -> Places:
        """What names the documents."""
        return self.groups.places

    def place(self, row: int) -> str:
        """Name the row."""
        return self.places.place(row)

    def _decoded(self, group: RowGroup) -> DecodedSize:
        return DecodedSize.of(group.size, group.rows, has_labels=self.has_labels)


def schema_names(path: Path, name: str) -> list[str]:
    """The names of the columns of a file."""
    with reading(name), pq.ParquetFile(path, memory_map=True) as parquet:
        return list(parquet.schema_arrow.names)
