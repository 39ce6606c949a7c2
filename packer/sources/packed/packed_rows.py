"""Rows of a packed dataset as a source of documents: their shards, mapped, and what is read of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from packer.gather import TokenColumn
from packer.shards.manifest import Manifest
from packer.shards.shard_table import column_of
from packer.sources.columns.value_column import ValueColumn
from packer.sources.documents import DecodedSize, SourceFile
from packer.sources.mapped.mapped_lists import MappedLists


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Mapped rows of a packed dataset; each is a list of max_len tokens. Can be pickled."""

    folder: Path
    """The packed dataset."""

    manifest: Manifest
    """Its manifest."""

    shards: tuple[MappedLists, ...]
    """Its shards in order."""

    kept: Mapping[str, pa.DataType]
    """Types of the kept columns to read that have a value per segment."""

    kept_bytes: float
    """Approximate bytes of their values for a segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Types of the values of the kept columns to read that have a value per token."""

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

        Returns:
            First document of each range, and the number of all documents.
        """
        ranges = max(1, -(-self.decoded.bytes // size))
        step = max(2, -(-self.documents // ranges))
        return (*range(0, self.documents, step + step % 2), self.documents)

    @cached_property
    def input_ids(self) -> TokenColumn:
        """Addresses of the tokens of all rows."""
        return self._tokens("input_ids")

    @cached_property
    def labels(self) -> TokenColumn | None:
        """Addresses of the labels of all rows; None if the tokens are the labels."""
        return self._tokens("labels") if self.has_labels else None

    @cached_property
    def token_columns(self) -> dict[str, TokenColumn]:
        """Addresses of the kept columns with a value per token."""
        stores = tuple(store for shard in self.shards for store in shard.stores)
        return {name: ValueColumn(name, kind, stores).addresses() for name, kind in self.kept_tokens.items()}

    def _tokens(self, name: str) -> TokenColumn:
        return TokenColumn.joined([shard.tokens(name) for shard in self.shards])

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without addresses
