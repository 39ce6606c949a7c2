"""Mapped rows of a packed dataset, whose values are compared with those of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.inputs.arrow_files import ArrowReader
from packer.inputs.column_types import as_plain, plain_type
from packer.inputs.documents import Columns
from packer.inputs.mapped_files import MappedFile
from packer.inputs.token_tables import MappedLists, ValueColumn, chunks_with
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.stores import AnyPath
from packer.token_memory import TokenColumn


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Mapped rows of a packed dataset; each is a list of max_len tokens."""

    folder: AnyPath
    manifest: Manifest
    """Its manifest."""

    shards: tuple[MappedFile, ...]
    kept: Mapping[str, pa.DataType]
    """Types of the kept columns to read that have a value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the values of the kept columns to read that have a value per token."""

    @classmethod
    def of(cls, folder: AnyPath, manifest: Manifest, kept: Sequence[str], kept_tokens: Sequence[str]) -> PackedRows:
        """Map all shards; those in object storage are read as a whole.

        Kept columns have a value per segment or, in `kept_tokens`, per
        token. A PackerError is raised if a shard is damaged, or contradicts the manifest.
        """
        first = open_shard(folder, manifest.shards[0], manifest).schema
        for name in (*kept, *kept_tokens):
            if first.names.count(name) != 1:
                raise PackerError(
                    f"{folder / manifest.shards[0].file} lacks the column {name}: restore it, or pack again"
                )
        row_format = manifest.row_format  # an index has no tokens, so its lists are addressed by their boundaries
        lists = "seq_lengths" if row_format.index_only else row_format.input_ids
        columns = Columns(lists, "labels", tuple(kept_tokens), tuple(kept_tokens))
        shards = tuple(_mapped(folder, entry.file, columns) for entry in manifest.shards)
        for shard in shards:
            schema = shard.schema
            if any(schema.field(name).type != first.field(name).type for name in (*kept, *kept_tokens)):
                raise PackerError(
                    f"{folder / shard.state.name} and {manifest.shards[0].file} have columns of different types"
                )
        return cls(
            folder=folder,
            manifest=manifest,
            shards=shards,
            kept={name: plain_type(first.field(name).type.value_type) for name in kept},
            kept_tokens={name: first.field(name).type.value_type for name in kept_tokens},
        )

    @property
    def widths(self) -> dict[str, int]:
        """Values per token, of the kept columns that have several."""
        kinds = self.kept_tokens.items()
        return {name: kind.list_size for name, kind in kinds if pa.types.is_fixed_size_list(kind)}

    @cached_property
    def tokens(self) -> dict[str, TokenColumn]:
        """Addresses of the columns "input_ids" and "labels" of all rows; an index has neither."""
        row_format = self.manifest.row_format
        return {
            name: TokenColumn.joined([shard.tokens[column] for shard in self.shards])
            for name, column in (("input_ids", row_format.input_ids), ("labels", "labels"))
            if column in row_format.stored_token_columns
        }

    @cached_property
    def token_columns(self) -> dict[str, TokenColumn]:
        """Addresses of the kept columns with a value per token."""
        return {name: ValueColumn(name, kind, self.shards).addresses for name, kind in self.kept_tokens.items()}

    def kept_at(self, name: str, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array:
        """Return the values of a kept column for segments in any order, given their rows and numbers in these."""
        ends = np.cumsum([shard.ends[-1] for shard in self.shards])
        order = np.argsort(rows, kind="stable")
        rows, numbers = rows[order], numbers[order]
        of_shards = np.searchsorted(ends, rows, side="right")
        parts: list[pa.Array] = []
        for number in np.unique(of_shards).tolist():
            of_shard, shard = slice(*np.searchsorted(of_shards, [number, number + 1])), self.shards[number]
            first, inside = ends[number] - shard.ends[-1], numbers[of_shard]
            for column, lists, here in chunks_with(shard, name, rows[of_shard] - first):
                places = as_numpy(column.offsets).astype(np.int64)[lists] + inside[here]
                parts.append(as_plain(column.values.take(as_arrow(places))))
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.kept[name])
        return values.take(as_arrow(np.argsort(order)))


def _mapped(folder: AnyPath, name: str, columns: Columns) -> MappedFile:
    opened = ArrowReader.open_lists(folder / name, name, columns)
    if not isinstance(opened, MappedLists):
        raise PackerError(f"{folder / name} is compressed, which packed datasets are not: restore it, or pack again")
    (shard,) = opened.stores
    assert isinstance(shard, MappedFile), shard
    return shard.whole()
