"""The rows of a Parquet file, or of a run of its row groups: cut into pieces, and read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import SourceError
from packer.sources.documents import Places, RowPlaces, SourceFile, reading


class RowGroup(NamedTuple):
    """What the footer says of a row group."""

    rows: int
    size: int
    """In whatever pieces are measured by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroups:
    """A Parquet file, or a run of its row groups."""

    file: SourceFile
    """Name, and the bytes of the file that are this run's share."""

    path: Path
    schema: pa.Schema

    every: tuple[RowGroup, ...]
    """All row groups of the file."""

    run: range
    """Those to read."""

    @classmethod
    def survey(
        cls,
        parquet: pq.ParquetFile,
        path: Path,
        name: str,
        size_of: Callable[[pq.RowGroupMetaData], int],
        columns: list[str] | None = None,
    ) -> RowGroups:
        """Ask the footer for all row groups; `reading` should be around it.

        The first row of each is read before its entry is asked: pyarrow's own reader refuses a damaged one, and asking
        for it from Python ends the process, since nothing there catches what C++ throws.

        Args:
            parquet: the open file.
            path: where it is.
            name: what users call it.
            size_of: what a row group is measured by.
            columns: those of which the first row is read; None for all.

        Raises:
            SourceError: corrupt.
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
        """Rows to read."""
        return sum(group.rows for group in self._own)

    @property
    def size(self) -> int:
        """Of what is read."""
        return sum(group.size for group in self._own)

    @property
    def first_row(self) -> int:
        """Rows of the file before these."""
        return sum(group.rows for group in self.every[: self.run.start])

    @property
    def size_of_a_row(self) -> float:
        """On average, in the row group where rows are largest; at least 1."""
        return max([1.0, *(group.size / max(group.rows, 1) for group in self._own)])

    def cut(self, is_enough: Callable[[RowGroup], bool]) -> list[RowGroups]:
        """Cut the file between row groups: as many are taken together as are enough, as if they were one."""
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
        """Yield the rows in order, `at_once` of them, and the bytes of the file up to their end.

        A row group is read page by page, never held as a whole.

        Raises:
            SourceError: corrupt.
        """
        with reading(self.file.name):
            parquet = pq.ParquetFile(self.path, memory_map=True, pre_buffer=False)
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
                raise SourceError(f"{self.file.name}: corrupt: its footer says {rows} rows, its pages hold others")

    @property
    def places(self) -> Places:
        """What names the documents."""
        return RowPlaces(self.file.name, self.first_row)

    @property
    def _own(self) -> tuple[RowGroup, ...]:
        return self.every[self.run.start : self.run.stop]
