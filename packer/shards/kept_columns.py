"""Look up source columns that the rows keep: one value per segment, or one per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_scalar
from packer.arrow import compute as pc
from packer.gather import Spans, TokenColumn, gather_bytes


class LookupColumn(Protocol):
    """Column of a source whose values can be looked up by position."""

    def at(self, positions: NDArray[np.int64]) -> pa.Array:
        """Return the values at these positions, which ascend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValues:
    """Values that the documents of a shard have in kept columns, looked up once for speed."""

    lists: NDArray[np.int64]
    """Lists of the source that have a segment in the shard, ascending: shape (lists,)."""

    values: Mapping[str, pa.Array]
    """Values of these lists, by column."""

    @classmethod
    def of(cls, columns: Mapping[str, LookupColumn], lists: NDArray[np.int64]) -> KeptValues:
        """Look up the values of lists, which may come in any order and repeat."""
        found = np.unique(lists)
        return cls(lists=found, values={name: column.at(found) for name, column in columns.items()})

    def column(self, name: str, lists: NDArray[np.int64], is_padding: NDArray[np.bool_] | None = None) -> pa.Array:
        """Return a value per segment; padding has 0 in columns of numbers and booleans, null in others.

        `lists` is the list of each segment, any value for padding; `lists` and `is_padding` have the shape (segments,).
        """
        positions = np.searchsorted(self.lists, lists)
        if is_padding is None or not is_padding.any():
            return self.values[name].take(as_arrow(positions.astype(np.int64)))
        positions[is_padding] = 0
        taken = self.values[name].take(as_arrow(positions.astype(np.int64)))
        numeric = pa.types.is_integer(taken.type) or pa.types.is_floating(taken.type) or pa.types.is_boolean(taken.type)
        filler = as_scalar(0, taken.type) if numeric else pa.nulls(1, taken.type)[0]
        return pc.if_else(as_arrow(is_padding), filler, taken)


def tokens_at(column: TokenColumn, value_type: pa.DataType, spans: Spans, size: int) -> pa.Array:
    """Copy values per token, of a numeric type of whole bytes, unchanged into an Arrow array; 0 outside the spans."""
    width = value_type.bit_width // 8
    out = np.zeros(size * width, np.uint8)
    gather_bytes(column.addresses, spans, width, out)
    return pa.Array.from_buffers(value_type, size, [None, pa.py_buffer(out)])
