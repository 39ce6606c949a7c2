"""Rows of a Parquet file, or of a run of its row groups: cut into pieces, and read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.sources.documents import SourceFile, reading
from packer.sources.files.file_access import open_parquet_pages
from packer.sources.places import Places, RowPlaces
from packer.stores import AnyPath


class RowGroup(NamedTuple):
    """Size of a row group, from the footer."""

    rows: int
    size: int
    """Size in tokens or in bytes, depending on the reader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroups:
    """A Parquet file, or a run of its row groups."""

    file: SourceFile
    """Name of the file, and the share of its bytes that belongs to this run."""

    path: AnyPath
    schema: pa.Schema
    every: tuple[RowGroup, ...]
    """All row groups of the file."""

    run: range
    """Numbers of the row groups to read."""

    @classmethod
    def survey(
        cls,
        parquet: pq.ParquetFile,
        path: AnyPath,
        name: str,
        size_of: Callable[[pq.RowGroupMetaData], int],
        columns: list[str] | None = None,
    ) -> RowGroups:
        """Read the sizes of all row groups from the footer; call it inside `reading`.

        The first row of each group is read before its metadata. If they are damaged, pyarrow's reader raises an error,
        whereas access from Python ends the process, since nothing catches the C++ exception.

        Args:
            parquet: the open file.
            path: its path.
            name: its name in messages and in the manifest.
            size_of: returns the size of a row group.
            columns: columns of which the first row is read; None for all.

        Raises:
            SourceError: the file is corrupt.
        """
        groups = []
        for number in range(parquet.metadata.num_row_groups):
            next(parquet.iter_batches(batch_size=1, row_groups=[number], columns=columns), None)
            group = parquet.metadata.row_group(number)
            groups.append(RowGroup(max(group.num_rows, 0), max(size_of(group), 0)))
        rows = sum(group.rows for group in groups)
        if rows != parquet.metadata.num_rows:
            raise SourceError(f"{name}: corrupt: it says {parquet.metadata.num_rows} rows, its row groups say {rows}")
        file = SourceFile(name=name, bytes=path.stat().st_size)
        return cls(file=file, path=path, schema=parquet.schema_arrow, every=tuple(groups), run=range(len(groups)))

    @property
    def rows(self) -> int:
        """Number of rows in this run."""
        return sum(group.rows for group in self._own)

    @property
    def size(self) -> int:
        """Size of all row groups of this run."""
        return sum(group.size for group in self._own)

    @property
    def first_row(self) -> int:
        """Number of rows of the file before this run."""
        return sum(group.rows for group in self.every[: self.run.start])

    @property
    def row_size(self) -> float:
        """Average size of a row in the row group where it is largest; at least 1."""
        return max([1.0, *(group.size / max(group.rows, 1) for group in self._own)])

    def cut(self, is_enough: Callable[[RowGroup], bool]) -> list[RowGroups]:
        """Cut the file into runs of row groups, each ending where `is_enough` holds for the sum of its row groups."""
        runs, start, held = [], 0, RowGroup(0, 0)
        for stop, group in enumerate(self.every, start=1):
            held = RowGroup(held.rows + group.rows, held.size + group.size)
            if is_enough(held) or stop == len(self.every):
                runs.append(range(start, stop))
                start, held = stop, RowGroup(0, 0)
        rows = [0, *accumulate(group.rows for group in self.every)]

        def bytes_before(group: int) -> int:
            return self.file.bytes * rows[group] // max(rows[-1], 1)

        shares = [bytes_before(run.stop) - bytes_before(run.start) for run in runs]
        return [
            replace(self, file=SourceFile(name=self.file.name, bytes=share), run=run)
            for run, share in zip(runs, shares, strict=True)
        ] or [self]

    def batches(self, columns: Sequence[str], at_once: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield batches of `at_once` rows in order, each with the bytes of the file up to its end.

        A row group is read page by page and never held as a whole.

        Raises:
            SourceError: the file is corrupt.
        """
        with reading(self.file.name):
            parquet = open_parquet_pages(self.path)
        with parquet:
            batches = parquet.iter_batches(at_once, self.run, list(columns), use_threads=False)
            rows, done = self.rows, 0
            while True:
                with reading(self.file.name):
                    batch = next(batches, None)
                if batch is None:
                    break
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetPiece:
    """A Parquet file, or a run of its row groups; the common part of `ParquetFile` and `ParquetRecords`."""

    groups: RowGroups
    """Row groups, measured by tokens for `ParquetFile` and by decompressed bytes for `ParquetRecords`."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.groups.file

    @property
    def path(self) -> AnyPath:
        """Path of the file."""
        return self.groups.path

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self.groups.rows

    @property
    def places(self) -> Places:
        """Locations of the documents, for messages."""
        return RowPlaces(self.groups.file.name, self.groups.first_row)
