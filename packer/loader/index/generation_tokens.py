"""Tokens of an index of one or several generations, each of which reads its own source."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.errors import PackerError
from packer.loader.index.index_tokens import IndexTokens
from packer.loader.open_shards import Row
from packer.pipeline.packed_source import with_sources
from packer.pipeline.read_documents import SourceLike
from packer.shards.manifest import Manifest
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationTokens:
    """Columns with a value per token of the rows of an index; see `IndexTokens`. Can be pickled."""

    parts: tuple[IndexTokens, ...]
    """Tokens of each generation."""

    firsts: tuple[int, ...]
    """Number of the first document of each generation."""

    @classmethod
    def open(cls, folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> GenerationTokens:
        """Open the source of an index, or the sources of its generations in order.

        Raises:
            PackerError: as `IndexTokens.open`; or the number of sources is wrong, or they have columns of other types.
        """
        parts = [IndexTokens.open(folder, part, one) for part, one in with_sources(folder, manifest, source)]
        for number, part in enumerate(parts):
            for name, dtype in part.dtypes.items():
                if dtype != parts[0].dtypes[name]:
                    raise PackerError(
                        f"'{name}' is {parts[0].dtypes[name]} in the source of generation 0, and {dtype} in that of "
                        f"generation {number}: give sources with columns of one type, or pack them to one index"
                    )
        return cls(parts=tuple(parts), firsts=tuple(part.first_document for part in parts))

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Columns with a value per token, in the order of a row, and their types."""
        return self.parts[0].dtypes

    @property
    def is_remote(self) -> bool:
        """Whether a source is in object storage, so that rows are not filled, but whole shards are made."""
        return any(part.is_remote for part in self.parts)

    def fill(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with their tokens; see `IndexTokens.fill`."""
        if len(self.parts) == 1:
            return self.parts[0].fill(rows)
        generations = [bisect_right(self.firsts, int(row["doc_ids"][0])) - 1 for row in rows]
        filled = list(rows)
        for generation in dict.fromkeys(generations):
            at = [index for index, each in enumerate(generations) if each == generation]
            for index, row in zip(at, self.parts[generation].fill([rows[index] for index in at]), strict=True):
                filled[index] = row
        return filled
