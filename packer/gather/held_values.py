"""Bring values that lie in object storage into memory while they are read; those of ordinary memory are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.gather.gather_kernels import find_values
from packer.gather.token_column import TokenColumn
from packer.stores.mirror import held, in_use, is_mirrored


@contextmanager
def held_spans(
    columns: Sequence[TokenColumn], lists: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Iterator[None]:
    """Hold spans of lists in memory until the end of the block; the columns' offsets are in memory.

    `lists` numbers each span's list and `starts` is its first value within that list, all of shape (spans,).
    Raises OSError where the store cannot be read, PackerError where the disk of temporary files is full.
    """
    if not in_use():
        yield
        return
    found, sizes = np.empty((2, len(columns), len(lists)), np.int64)
    for i, column in enumerate(columns):
        found[i], chunks = find_values(column.addresses, lists, starts)
        sizes[i] = lengths * column.addresses.value_bytes[chunks]
    with held(found, sizes):
        yield


def is_remote(column: TokenColumn) -> bool:
    """Whether values of a column lie in object storage."""
    return is_mirrored(column.addresses.values)


@contextmanager
def held_lists(chunks: Sequence[pa.Array]) -> Iterator[None]:
    """Hold the values of list arrays in memory until the end of the block; raises as `held_spans`."""
    if not in_use():
        yield
        return
    starts, lengths = [], []
    for chunk in chunks:
        values, buffer = chunk.values, chunk.buffers()[-1]
        if buffer is None or not len(chunk):
            continue
        if pa.types.is_fixed_size_list(chunk.type):
            first, last = (number * chunk.type.list_size for number in (chunk.offset, chunk.offset + len(chunk)))
        else:
            first, last = (chunk.offsets[at].as_py() for at in (0, -1))
        bits = values.type.bit_width
        begin, end = (values.offset + first) * bits // 8, -(-(values.offset + last) * bits // 8)
        starts.append(buffer.address + begin)
        lengths.append(end - begin)
    with held(np.array(starts, np.int64), np.array(lengths, np.int64)):
        yield
