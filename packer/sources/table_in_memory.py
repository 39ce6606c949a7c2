"""Record batches of a table in memory, as `datasets` holds one: in arrays, or in files that it maps."""

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
from packer.sources.column_types import as_plain, plain_type
from packer.sources.record_batches import FileState, ends_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInMemory:
    """The chunks of a table, aligned, so that each batch is a slice of one chunk of every column."""

    owner: Any
    """A `pa.Table`, or a table of `datasets`, which has one as its attribute `table`."""

    files: tuple[FileState, ...]
    """Those that a table of `datasets` maps; it maps them again when it is unpickled."""

    ends: NDArray[np.int64]
    """Shape (batches,): rows up to the end of each."""

    chunk_ends: Mapping[str, NDArray[np.int64]]
    """Shape (chunks,): the same of the chunks of each column."""

    tokens: Mapping[str, TokenColumn]
    """Columns of tokens and labels, by name."""

    @classmethod
    def of(cls, owner: Any, names: Sequence[str], token_names: Sequence[str]) -> TableInMemory:
        """Describe some columns of a table.

        Args:
            owner: the table.
            names: the columns to read.
            token_names: those of them that are lists of tokens or labels.
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
        """The type of a column."""
        return plain_type(_table(self.owner).schema.field(name).type)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Slice the chunks; yield the named columns of each batch."""
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
    """Files that are checked while they are unpickled: before what follows them in the pickle maps them again."""

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
    """The files that a table of `datasets` maps."""
    if isinstance(owner, pa.Table):
        return ()
    from datasets.table import list_table_cache_files

    paths = dict.fromkeys(Path(file).absolute() for file in list_table_cache_files(owner))
    return tuple(FileState(path, path.name, path.stat().st_size) for path in paths)
