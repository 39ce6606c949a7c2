"""Lists of a mapped source as NumPy arrays: many are located at once, and copied one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.memory import array_at
from packer.gather import TokenColumn
from packer.gather.token_column import VALUE_TYPES

_ALL = 1 << 46  # bytes: views reach over all chunks of a layout; only what lies in a chunk is read


class ListSpans(NamedTuple):
    """Where lists are; int64 arrays of shape (lists,)."""

    layouts: NDArray[np.int64]
    """Layout of each list, an index into `SourceLists.layouts`."""

    begins: NDArray[np.int64]
    """First value of each list, counted from the first value of its layout."""

    lengths: NDArray[np.int64]
    """Number of values."""


class _Layout(NamedTuple):
    """Chunks that differ in their addresses only, by multiples of the width of offsets and values."""

    offsets: NDArray[Any] | None
    """Memory from the first offset of any of the chunks on; None for fixed-size lists."""

    values: NDArray[Any]
    """Memory from the first value of any of the chunks on."""

    list_size: int
    """Length of fixed-size lists, otherwise 0."""


class SourceLists:
    """A column of lists, whose chunks may have any layout and integer type, and whose offsets have been checked.

    `dtype` is the type of the values, or None for integers of the types in the addresses.
    """

    def __init__(self, column: TokenColumn, dtype: np.dtype[Any] | None = None) -> None:
        of = column.addresses
        self._column = column  # keeps the memory alive
        self._firsts = of.first_rows
        if dtype is None:
            kinds = {np.dtype(VALUE_TYPES[code]) for code in set(of.value_codes.tolist())}
            fits = all(np.can_cast(kind, np.int32) for kind in kinds)
            self.dtype: np.dtype[Any] = np.dtype(np.int32 if fits else np.int64)
        else:
            self.dtype = dtype
        """Type of the values in `copy`: the given one, or int32 if it holds all integers of these types, or int64."""
        widths, value_bytes = of.offset_bytes, of.value_bytes
        layouts = np.stack(
            [
                widths,
                of.list_sizes,
                of.value_codes,
                value_bytes,
                (of.offsets % np.maximum(widths, 1).astype(np.uint64)).astype(np.int64),
                (of.values % np.maximum(value_bytes, 1).astype(np.uint64)).astype(np.int64),
            ]
        )
        distinct, self._layout_of = np.unique(layouts, axis=1, return_inverse=True)
        self._layout_of = self._layout_of.reshape(-1)
        self._offset_of, self._value_of = np.zeros((2, len(widths)), np.int64)
        self.layouts: list[_Layout] = []
        for number, (width, size, code, bytes_, *_) in enumerate(distinct.T.tolist()):
            here = self._layout_of == number
            offsets: NDArray[Any] | None = None
            if width:
                offsets, self._offset_of[here] = _view(of.offsets[here], np.dtype(f"i{width}"))
            kind = dtype if dtype is not None else np.dtype(VALUE_TYPES[code])
            assert kind.itemsize == bytes_
            values, self._value_of[here] = _view(of.values[here], kind)
            self.layouts.append(_Layout(offsets, values, size))

    def located(self, lists: NDArray[np.int64]) -> ListSpans:
        """Locate lists, given their numbers."""
        chunks = self._firsts.searchsorted(lists, side="right") - 1
        index = lists - self._firsts[chunks]
        layouts = self._layout_of[chunks]
        begins, ends = np.empty((2, len(lists)), np.int64)
        for number, layout in enumerate(self.layouts):
            here: Any = slice(None) if len(self.layouts) == 1 else np.flatnonzero(layouts == number)
            if layout.offsets is None:
                begins[here], ends[here] = index[here] * layout.list_size, (index[here] + 1) * layout.list_size
            else:
                at = self._offset_of[chunks[here]] + index[here]
                begins[here], ends[here] = layout.offsets[at], layout.offsets[at + 1]
        return ListSpans(layouts, begins + self._value_of[chunks], ends - begins)

    def copy(
        self,
        spans: ListSpans,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        """Copy a stretch of each list, from `starts` on in the list, to `places` in `out`; arrays of shape (lists,)."""
        if len(self.layouts) == 1:
            values = self.layouts[0].values
            for begin, length, place in zip(
                (spans.begins + starts).tolist(), lengths.tolist(), places.tolist(), strict=True
            ):
                out[place : place + length] = values[begin : begin + length]
            return
        for part, place in zip(self.values_of(spans, starts, lengths), places.tolist(), strict=True):
            out[place : place + len(part)] = part

    def ranges(
        self, spans: ListSpans, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return address and bytes of a stretch of each list; the arguments are those of `copy`."""
        bases = np.array([layout.values.ctypes.data for layout in self.layouts], np.int64)[spans.layouts]
        widths = np.array([layout.values.itemsize for layout in self.layouts], np.int64)[spans.layouts]
        return bases + (spans.begins + starts) * widths, lengths * widths

    def values_of(
        self, spans: ListSpans, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Iterator[NDArray[Any]]:
        """Yield a stretch of each list, in its type in the source; the arguments are those of `copy`."""
        firsts = (spans.begins + starts).tolist()
        for number, first, length in zip(spans.layouts.tolist(), firsts, lengths.tolist(), strict=True):
            yield self.layouts[number].values[first : first + length]


def _view(addresses: NDArray[np.uint64], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """View memory from the lowest of some addresses on; return the view, and the index of each address in it.

    An empty buffer has the address 0, and nothing is read there.
    """
    low = addresses[addresses > 0].min(initial=np.uint64(2**63))
    index = np.where(addresses > 0, addresses - low, 0).astype(np.int64) // dtype.itemsize
    view = array_at(int(low), _ALL // dtype.itemsize, dtype) if low < 2**63 else np.empty(0, dtype)
    return view, index
