"""Columns of the source that are kept beside the tokens: a value per segment, or per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.gather import Spans, TokenColumn, gather_bytes


class ValuesByRow(Protocol):
    """A column of values that are looked up where they lie."""

    def at(self, rows: NDArray[np.int64]) -> pa.Array:
        """The values at these rows, ascending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValues:
    """The values of a shard's documents, looked up once: taking from the chunks of a source is slow row by row."""

    lists: NDArray[np.int64]
    """Shape (lists,), ascending: the lists of the source that the shard has segments of."""

    values: Mapping[str, pa.Array]
    """The value of each, by column."""

    @classmethod
    def of(cls, columns: Mapping[str, ValuesByRow], lists: NDArray[np.int64]) -> KeptValues:
        """Look up the values of these lists, in any order and as often as they come."""
        found = np.unique(lists)
        return cls(lists=found, values={name: column.at(found) for name, column in columns.items()})

    def column(self, name: str, lists: NDArray[np.int64], is_padding: NDArray[np.bool_]) -> pa.Array:
        """The values of segments: at padding 0 where they are numbers, else null.

        Args:
            name: the column.
            lists: (segments,) the list that each segment comes from; whatever at padding.
            is_padding: (segments,)
        """
        positions = np.searchsorted(self.lists, lists)
        positions[is_padding] = 0
        taken = self.values[name].take(as_arrow(positions.astype(np.int64)))
        if not is_padding.any():
            return taken
        numeric = pa.types.is_integer(taken.type) or pa.types.is_floating(taken.type) or pa.types.is_boolean(taken.type)
        nothing = pa.scalar(0).cast(taken.type) if numeric else pa.scalar(None, taken.type)
        return pc.if_else(pa.array(is_padding), nothing, taken)


def values_at(column: pa.ChunkedArray, rows: NDArray[np.int64]) -> pa.Array:
    """The values of a column at these rows, ascending; chunk by chunk, since taking from all copies all of them."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks], dtype=np.int64)
    bounds = np.searchsorted(rows, np.concatenate([[0], ends]))
    parts = []
    for number, chunk in enumerate(column.chunks):
        first, last = bounds[number], bounds[number + 1]
        if first < last:
            parts.append(chunk.take(as_arrow(rows[first:last] - (ends[number] - len(chunk)))))
    return pa.concat_arrays(parts) if parts else pa.array([], column.type)


def tokens_at(column: TokenColumn, value_type: pa.DataType, spans: Spans, size: int) -> pa.Array:
    """Gather values per token as they are, 0 where nothing goes: an Arrow array of `size` values.

    Args:
        column: lists of `value_type`.
        value_type: a number of whole bytes.
        spans: the values of each segment, and where they go.
        size: values in all.
    """
    width = value_type.bit_width // 8
    out = np.zeros(size * width, np.uint8)
    gather_bytes(column.addresses, spans, width, out)
    return pa.Array.from_buffers(value_type, size, [None, pa.py_buffer(out)])


def same_values(one: pa.Array, other: pa.Array) -> int | None:
    """The first position at which two arrays of a type differ, or None; a NaN is equal to itself."""
    if one.equals(other):
        return None
    if one.type == other.type and pa.types.is_floating(one.type) and not one.null_count and not other.null_count:
        bits = {16: np.uint16, 32: np.uint32, 64: np.uint64}[one.type.bit_width]
        differ = np.flatnonzero(as_numpy(one).view(bits) != as_numpy(other).view(bits))
        return int(differ[0]) if len(differ) else None
    pairs = enumerate(zip(one, other, strict=True))
    return next((at for at, (value, like) in pairs if not _is_same(value, like)), None)


def _is_same(value: pa.Scalar, like: pa.Scalar) -> bool:
    """Whether two values of a type are the same; a NaN, also inside of a value, is equal to itself."""
    if value.equals(like):
        return True
    try:
        return repr(value.as_py()) == repr(like.as_py())
    except (OverflowError, ValueError):  # a date that Python has not
        return False
