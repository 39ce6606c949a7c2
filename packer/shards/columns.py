"""The columns of a shard, and how they lie in an Arrow record batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

PADDING = -1
"""The doc_id of a padding tail."""

TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
"""Columns of max_len values a row, int32, in the order on disk."""

SEGMENT_COLUMNS = {
    "seq_lengths": pa.int32(),
    "seq_tokens": pa.int32(),
    "doc_ids": pa.int64(),
    "doc_starts": pa.int32(),
    "source_ids": pa.int32(),
    "copy": pa.int32(),
}
"""Columns of one value per segment (a padding tail is one), in the order on disk."""

ROLE = "role"
"""The kept column of preference pairs: one of ROLES."""

ROLES = ("chosen", "rejected")
"""The sides of a preference pair: of documents 2i and 2i + 1."""

_BATCH_BYTES = 2 << 20  # record batches of 1-4 MB write fastest


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """What the rows of a dataset look like."""

    max_len: int
    """Tokens and padding of a row."""

    pad_id: int
    """Token id of the padding."""

    token_columns: tuple[str, ...]
    """Which of TOKEN_COLUMNS are written."""

    align: int
    """Extents are multiples of it; above 1, `seq_tokens` are written."""

    mixture: bool
    """Whether there are several sources, and `source_ids` and `copy` are written."""

    kept: Mapping[str, pa.DataType]
    """Columns of the source that are kept, one value per segment."""

    kept_tokens: Mapping[str, pa.DataType]
    """Columns of the source that are kept, one value per token."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RowFormat:
        """What these options make of the rows, as a manifest holds them."""
        return cls(
            max_len=options["max_len"],
            pad_id=options["pad_id"],
            token_columns=tuple(name for name in TOKEN_COLUMNS if name == "input_ids" or options[name]),
            align=options.get("align", 1),
            mixture=bool(options.get("weights")),
            kept={},
            kept_tokens={},
        )

    def keeping(self, kept: Mapping[str, pa.DataType], kept_tokens: Mapping[str, pa.DataType]) -> RowFormat:
        """The same with columns that are kept."""
        return replace(self, kept=kept, kept_tokens=kept_tokens)

    @property
    def segment_columns(self) -> tuple[str, ...]:
        """Which of SEGMENT_COLUMNS are written."""
        written = {"seq_tokens": self.align > 1, "source_ids": self.mixture, "copy": self.mixture}
        return tuple(name for name in SEGMENT_COLUMNS if written.get(name, True))

    @property
    def schema(self) -> pa.Schema:
        """Of the shards."""
        fields = [pa.field(name, pa.list_(pa.int32(), self.max_len)) for name in self.token_columns]
        fields += [pa.field(name, pa.list_(value, self.max_len)) for name, value in self.kept_tokens.items()]
        fields += [pa.field(name, pa.list_(SEGMENT_COLUMNS[name])) for name in self.segment_columns]
        fields += [pa.field(name, pa.list_(value)) for name, value in self.kept.items()]
        return pa.schema(fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, its few per-segment values apart."""
        widths = [4] * len(self.token_columns) + [value.bit_width // 8 for value in self.kept_tokens.values()]
        return self.max_len * sum(widths)

    def batches(self, first_row: int, last_row: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows that make the record batches of a shard; so that the same rows give the same bytes."""
        step = max(1, _BATCH_BYTES // self.row_bytes)
        for first in range(first_row, last_row, step):
            yield first, min(first + step, last_row)
