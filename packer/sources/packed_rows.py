"""Mapped rows of a packed dataset, whose documents are packed again or compared with their source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.gather import TokenColumn
from packer.inputs.arrow_files import open_lists
from packer.inputs.column_types import as_plain, plain_type
from packer.inputs.documents import Columns, DecodedSize, SourceFile
from packer.inputs.mapped_lists import MappedLists
from packer.inputs.token_tables import BatchStore, ValueColumn
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard
from packer.shards.shard_table import column_of
from packer.stores import AnyPath, RemotePath


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Mapped rows of a packed dataset; each is a list of max_len tokens. Can be pickled."""

    folder: AnyPath
    """The packed dataset."""

    manifest: Manifest
    """Its manifest, or that of one of its generations."""

    shards: tuple[MappedLists, ...]
    """Its shards in order."""

    kept: Mapping[str, pa.DataType]
    """Types of the kept columns to read that have a value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the values of the kept columns to read that have a value per token."""

    @classmethod
    def of(cls, folder: AnyPath, manifest: Manifest, kept: Sequence[str], kept_tokens: Sequence[str]) -> PackedRows:
        """Map all shards; those in object storage are read as a whole.

        The manifest may be that of one generation. Kept columns have a value per segment or, in `kept_tokens`, per
        token. A PackerError is raised if a shard is damaged, or contradicts the manifest.
        """
        first = open_shard(folder, manifest.shards[0], manifest).schema
        for name in (*kept, *kept_tokens):
            if first.names.count(name) != 1:
                raise PackerError(
                    f"{folder / manifest.shards[0].file} lacks the column {name}: restore it, or pack again"
                )
        has_tokens = "input_ids" in first.names  # an index has none, so its lists are addressed by their boundaries
        columns = Columns(
            "input_ids" if has_tokens else "seq_lengths", "labels", tuple(kept_tokens), tuple(kept_tokens)
        )
        shards = tuple(_mapped(folder, entry.file, columns) for entry in manifest.shards)
        for name in (*kept, *kept_tokens):
            for shard in shards:
                if any(store.type_of(name) != first.field(name).type for store in shard.stores):
                    raise PackerError(
                        f"{folder / shard.file.name} and {manifest.shards[0].file} have columns of different types"
                    )
        return cls(
            folder=folder,
            manifest=manifest,
            shards=shards,
            kept={name: plain_type(first.field(name).type.value_type) for name in kept},
            kept_tokens={name: first.field(name).type.value_type for name in kept_tokens},
        )

    @property
    def documents(self) -> int:
        """Number of documents, with those that are in no row."""
        return self.manifest.totals.documents

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels; if not, their tokens are the labels."""
        return self.manifest.source.labels

    @property
    def decoded(self) -> DecodedSize:
        """Size of all documents once decoded."""
        totals = self.manifest.totals
        tokens = totals.tokens_packed - totals.tokens_repeated
        return DecodedSize.of(tokens, self.documents, has_labels=self.has_labels)

    @property
    def file(self) -> SourceFile:
        """All shards under one name, as the file of the source."""
        name = f"data-*-of-{len(self.shards):05d}.arrow"
        return SourceFile(name=name, bytes=int(column_of(self.manifest.shards, "bytes").sum()))

    def borders(self, size: int) -> tuple[int, ...]:
        """Divide the documents into ranges of about `size` bytes once decoded, which begin at even documents.

        Return the first document of each range, and the number of all documents.
        """
        ranges = max(1, -(-self.decoded.bytes // size))
        step = max(2, -(-self.documents // ranges))
        return (*range(0, self.documents, step + step % 2), self.documents)

    @cached_property
    def tokens(self) -> dict[str, TokenColumn]:
        """Addresses of the columns "input_ids" and "labels" of all rows; an index has neither."""
        names = self.manifest.row_format.stored_token_columns
        return {
            name: TokenColumn.joined([shard.tokens(name) for shard in self.shards])
            for name in ("input_ids", "labels")
            if name in names
        }

    @cached_property
    def token_columns(self) -> dict[str, TokenColumn]:
        """Addresses of the kept columns with a value per token."""
        stores = tuple(store for shard in self.shards for store in shard.stores)
        return {name: ValueColumn(name, kind, stores).addresses() for name, kind in self.kept_tokens.items()}

    def kept_at(self, name: str, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array:
        """Return the values of a kept column for segments in any order, given their rows and numbers in these."""
        stores = [store for shard in self.shards for store in shard.stores]
        ends = np.cumsum([store.ends[-1] for store in stores])
        order = np.argsort(rows, kind="stable")
        rows, numbers = rows[order], numbers[order]
        of_stores = np.searchsorted(ends, rows, side="right")
        parts: list[pa.Array] = []
        for number in np.unique(of_stores).tolist():
            here, store = slice(*np.searchsorted(of_stores, [number, number + 1])), stores[number]
            parts += _kept_in(store, name, rows[here] - int(ends[number] - store.ends[-1]), numbers[here])
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.kept[name])
        return values.take(as_arrow(np.argsort(order)))

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without addresses


def _mapped(folder: AnyPath, name: str, columns: Columns) -> MappedLists:
    opened = open_lists(folder / name, name, columns)
    if not isinstance(opened, MappedLists):
        raise PackerError(f"{folder / name} is compressed, which packed datasets are not: restore it, or pack again")
    return opened.whole() if isinstance(folder, RemotePath) else opened


def _kept_in(store: BatchStore, name: str, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield the values of segments of a shard, whose rows ascend, from each record batch that has some of them."""
    batches = np.searchsorted(store.ends, rows, side="right")
    wanted = np.unique(batches)
    starts = np.concatenate([[0], store.ends])[wanted]
    borders = np.searchsorted(batches, [*wanted, len(store.ends)])
    for number, (column,) in enumerate(store.read(wanted.tolist(), [name])):
        here = slice(borders[number], borders[number + 1])
        places = as_numpy(column.offsets).astype(np.int64)[rows[here] - starts[number]] + numbers[here]
        yield as_plain(column.values.take(as_arrow(places)))
