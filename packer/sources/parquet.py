"""Parquet files, read page by page, never whole row groups. Pieces are runs of row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import PackerError, SourceError
from packer.sources import format_reader
from packer.sources.column_types import find_columns, holds_json
from packer.sources.documents import Columns, SourceFile, reading
from packer.sources.format_reader import LIST_ROWS, LISTS, ROWS, Lists, Reader, share_of
from packer.stores import RemotePath

_PAGES = 1 << 16  # number of bytes of an object read for the first page of a column


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetReader(Reader):
    """A Parquet file, or a run of its row groups."""

    file: SourceFile
    """Name of the file, with the size of this run in bytes."""

    fields: pa.Schema
    run: range = range(0)
    """Numbers of the row groups in this run."""

    group_rows: tuple[int, ...] = ()
    """Number of rows in each row group of the file."""

    group_bytes: tuple[int, ...] = ()
    """Decoded size of each row group in bytes; for token lists, the size of the token column."""

    row_sizes: tuple[float, ...] = ()
    """Mean size of a row in each row group, in tokens or bytes of text; lists of lists may enlarge it."""

    holds_lists: bool = False
    """Whether the file is read as token lists, for which larger blocks are decoded together."""

    @classmethod
    def open(cls, file: SourceFile) -> ParquetReader:
        """Open a file, and read the schema in its footer."""
        with reading(file.name), _opened(file, ahead=False) as parquet:
            return cls(file=file, fields=parquet.schema_arrow)

    def for_records(self) -> ParquetReader:
        """Read the sizes of all row groups."""
        return self._with_sizes()

    def for_lists(self, columns: Columns) -> Lists:
        """Read the sizes of the lists in all row groups."""
        has_labels = find_columns(self.fields, self.file.name, columns)
        return Lists(self._with_sizes(columns.input_ids, has_labels=has_labels), has_labels)

    def _with_sizes(self, tokens: str | None = None, *, has_labels: bool = False) -> ParquetReader:
        """Read the sizes of all row groups from the footer; `tokens` is the column of token lists.

        The first row of each group is read before the group's metadata, in column `tokens` (None: all columns). If the
        data is damaged, pyarrow's reader raises an error. Reading damaged metadata from Python would end the process,
        because nothing catches the C++ exception.
        """
        rows, decoded, row_sizes = list[int](), list[int](), list[float]()
        with reading(self.file.name), _opened(self.file, ahead=False) as parquet:
            leaves = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
            leaf = next((i for i, leaf in enumerate(leaves) if leaf.startswith(f"{tokens}.")), None)
            for number in range(parquet.metadata.num_row_groups):
                next(parquet.iter_batches(1, [number], None if tokens is None else [tokens]), None)
                group = parquet.metadata.row_group(number)
                rows.append(max(group.num_rows, 0))
                encoded = max(group.total_byte_size, 0)  # size of all columns
                tokens_held = 0 if leaf is None else max(group.column(leaf).num_values, 0)
                decoded.append(encoded if leaf is None else 4 * (tokens_held + group.num_rows) * (1 + has_labels))
                row_sizes.append(max(tokens_held or decoded[-1], encoded // 8) / max(rows[-1], 1))
            if sum(rows) != parquet.metadata.num_rows:
                raise SourceError(
                    f"{self.file.name}: corrupt: it says {parquet.metadata.num_rows} rows, its row groups say "
                    f"{sum(rows)}"
                )
        return replace(
            self,
            run=range(len(rows)),
            group_rows=tuple(rows),
            group_bytes=tuple(decoded),
            row_sizes=tuple(row_sizes),
            holds_lists=tokens is not None,
        )

    @property
    def rows(self) -> int:
        """Number of rows in this run."""
        return sum(self.group_rows[self.run.start : self.run.stop])

    @property
    def first_row(self) -> int:
        """Number of rows before this run."""
        return sum(self.group_rows[: self.run.start])

    def cut(self, size: int) -> Sequence[ParquetReader]:
        """Cut between row groups into pieces of about `size` decoded bytes."""
        runs, start, held = [], 0, 0
        for stop, decoded in enumerate(self.group_bytes, start=1):
            held += decoded
            if held >= size or stop == len(self.group_bytes):
                runs.append(range(start, stop))
                start, held = stop, 0
        rows = [0, *accumulate(self.group_rows)]
        return [
            replace(self, file=share_of(self.file, rows[run.start], rows[run.stop], rows[-1]), run=run) for run in runs
        ] or [self]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield (record batch, number of bytes of the file up to its end), in order."""
        present = [column for column in columns if column in self.fields.names]
        rows, done = self.rows, 0
        size, most = (LISTS, LIST_ROWS) if self.holds_lists else (format_reader.BLOCK, ROWS)
        largest = max([1.0, *self.row_sizes[self.run.start : self.run.stop]])
        per_block = int(min(max(size / largest, 1), most))
        with reading(self.file.name), _opened(self.file, ahead=True) as parquet:
            _refuse_unread_json(parquet, present, self.file.name)
            for batch in parquet.iter_batches(per_block, self.run, present, use_threads=False):
                done += len(batch)
                if done > rows:
                    break
                yield batch, self.file.bytes * done // max(rows, 1)
            if done != rows:
                raise SourceError(
                    f"{self.file.name}: corrupt: its footer says {rows} rows, its pages hold more or fewer"
                )


def _refuse_unread_json(parquet: pq.ParquetFile, columns: Sequence[str], name: str) -> None:
    """Refuse JSON columns if pyarrow reads them as text. Versions before 21 do so in files without an Arrow schema."""
    leaves = map(parquet.schema.column, range(len(parquet.schema)))
    of_json = {leaf.path.split(".")[0] for leaf in leaves if leaf.logical_type.type == "JSON"}
    for column in columns:
        if column in of_json and not holds_json(parquet.schema_arrow.field(column).type):
            what = f"JSON, which pyarrow {pa.__version__} reads as text; install pyarrow 21 or newer"
            raise PackerError(f"{name}: column '{column}' holds {what}")


def _opened(file: SourceFile, *, ahead: bool) -> pq.ParquetFile:
    """Open a Parquet file. With `ahead`, columns of an object are read ahead, not only its footer and a few pages."""
    path = file.stored
    if not isinstance(path, RemotePath):
        return pq.ParquetFile(path, memory_map=True)
    return pq.ParquetFile(path.open("rb"), buffer_size=0 if ahead else _PAGES, pre_buffer=ahead)
