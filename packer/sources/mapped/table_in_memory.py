"""Record batches of a table in memory, such as that of a `datasets.Dataset`, which may map files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.gather import TokenColumn
from packer.gather.token_column import ColumnBuilder
from packer.sources.columns.column_types import as_plain, plain_type
from packer.sources.mapped.record_batches import FileState, ends_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInMemory:
    """Record batches of a table, each of them a slice of one chunk per column."""

    owner: Any
    """A `pa.Table`, or a table of `datasets`, which has one as its attribute `table`."""

    files: tuple[FileState, ...]
    """Files that a table of `datasets` maps, and maps again when it is unpickled."""

    ends: NDArray[np.int64]
    """Shape (batches,): cumulative lengths of the batches."""

    chunk_ends: Mapping[str, NDArray[np.int64]]
    """Cumulative lengths of the chunks of each column, each of shape (chunks,)."""

    tokens: Mapping[str, TokenColumn]
    """Addresses of the token and label columns, by name."""

    @classmethod
    def of(cls, owner: Any, names: Sequence[str], token_names: Sequence[str]) -> TableInMemory:
        """Describe some columns of a table.

        Args:
            owner: the table.
            names: columns to read.
            token_names: columns among `names` that hold tokens or labels.
        """
        table = _table(owner)
        chunk_ends = {name: ends_of(len(chunk) for chunk in table.column(name).iterchunks()) for name in names}
        ends = np.unique(np.concatenate([np.zeros(0, np.int64), *chunk_ends.values()]))
        ends = ends[ends > 0]
        bare = cls(owner=owner, files=_files_of(owner), ends=ends, chunk_ends=chunk_ends, tokens={})
        builders = {name: ColumnBuilder() for name in token_names}
        for columns in bare.read(range(len(ends)), token_names):
            for builder, column in zip(builders.values(), columns, strict=True):
                builder.add(column, column.buffers())
        tokens = {
            name: TokenColumn(addresses=builder.addresses(), owners=(owner,)) for name, builder in builders.items()
        }
        return cls(owner=owner, files=bare.files, ends=ends, chunk_ends=chunk_ends, tokens=tokens)

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return plain_type(_table(self.owner).schema.field(name).type)

    def whole(self) -> TableInMemory:
        """Return itself: all values are in memory."""
        return self

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Slice the chunks and yield the named columns of each batch."""
        table = _table(self.owner)
        columns = [(table.column(name), self.chunk_ends[name]) for name in names]
        all_plain = all(column.type.equals(plain_type(column.type)) for column, _ in columns)
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            rows = int(self.ends[number]) - first
            slices = [_slice(column, ends, first, rows) for column, ends in columns]
            yield slices if all_plain else [as_plain(values) for values in slices]

    def __reduce__(self) -> Any:
        names, token_names = list(self.chunk_ends), list(self.tokens)
        owner = self.owner.select(names)
        return _describe_again, (_Unchanged(self.files), owner, names, token_names)


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """Files that unpickling checks; placed before the table in the pickle, so that it runs before they are mapped."""

    files: tuple[FileState, ...]

    def __reduce__(self) -> Any:
        return _check_again, (self.files,)


def _check_again(files: tuple[FileState, ...]) -> _Unchanged:
    for file in files:
        file.check()
    return _Unchanged(files)


def _describe_again(_: _Unchanged, owner: Any, names: Sequence[str], token_names: Sequence[str]) -> TableInMemory:
    return TableInMemory.of(owner, names, token_names)


def _slice(column: pa.ChunkedArray, ends: NDArray[np.int64], first: int, rows: int) -> pa.Array:
    number = int(np.searchsorted(ends, first, side="right"))
    chunk = column.chunk(number)
    return chunk.slice(first - int(ends[number]) + len(chunk), rows)


def _table(owner: Any) -> pa.Table:
    return owner if isinstance(owner, pa.Table) else owner.table


def _files_of(owner: Any) -> tuple[FileState, ...]:
    """Return the files that a table of `datasets` maps."""
    if isinstance(owner, pa.Table):
        return ()
    from datasets.table import list_table_cache_files

    paths = dict.fromkeys(Path(file).absolute() for file in list_table_cache_files(owner))
    return tuple(FileState(path, path.name, path.stat().st_size) for path in paths)
