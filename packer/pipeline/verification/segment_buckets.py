"""Distribute records of segments to buckets of consecutive documents, in memory if they are few, otherwise on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError

_MOST_RANGES = 1 << 16  # ranges of documents whose segments are counted
_WRITTEN_TOGETHER = 1 << 18  # approximate number of records


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Division of documents into buckets, which consist of ranges of 2**shift documents."""

    shift: int
    """Logarithm of the documents per range, at least 1: ranges begin at even documents, so that pairs stay together."""

    of_range: NDArray[np.int64]
    """Shape (ranges,): bucket of each range, ascending; documents beyond the last range belong to it."""

    sizes: NDArray[np.int64]
    """Shape (buckets,): segments of each bucket."""

    @classmethod
    def balanced(cls, parts: Iterable[NDArray[np.int64]], documents: int, size: int) -> Buckets:
        """Divide documents into buckets of about equally many segments.

        Ranges of [3, 1, 2, 0, 4] segments have 0, 3, 4, 6 and 6 segments before them: with size 3, they make buckets of
        3, 3 and 4. A range with more segments is a bucket of its own.

        Args:
            parts: document of every segment, in any order.
            documents: approximate number of documents.
            size: segments per bucket.
        """
        shift = max(1, documents.bit_length() - _MOST_RANGES.bit_length() + 1)
        counts = np.zeros((documents >> shift) + 1, np.int64)
        for part in parts:
            counts += np.bincount(_ranges_of(part, shift, len(counts)), minlength=len(counts))
        _, firsts, of_range = np.unique((np.cumsum(counts) - counts) // size, return_index=True, return_inverse=True)
        return cls(shift=shift, of_range=of_range, sizes=np.add.reduceat(counts, firsts))

    @property
    def borders(self) -> NDArray[np.int64]:
        """First document of every bucket but the first: shape (buckets - 1,)."""
        borders: NDArray[np.int64] = (np.flatnonzero(np.diff(self.of_range)) + 1) << self.shift
        return borders

    def of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket of each document."""
        buckets: NDArray[np.int64] = self.of_range[_ranges_of(documents, self.shift, len(self.of_range))]
        return buckets


def _ranges_of(documents: NDArray[np.int64], shift: int, ranges: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.clip(documents >> shift, 0, ranges - 1)
    return numbers


@contextmanager
def distributed(
    parts: Iterable[NDArray[Any]], dtype: np.dtype[Any], buckets: Buckets
) -> Iterator[Callable[[int], NDArray[Any]]]:
    """Distribute records to their buckets; yield a function that reads the records of a bucket in their order.

    A single bucket stays in memory. Several are stored one after the other in an unnamed temporary file, in the folder
    for temporary files (`TMPDIR`). It has the size of all records, and disappears when the context is left, even if the
    process is killed.

    Args:
        parts: structured arrays of `dtype`, which has a field `document`.
        dtype: type of a record.
        buckets: buckets balanced by the same records.

    Raises:
        PackerError: the file cannot be written.
    """
    if len(buckets.sizes) == 1:
        records = np.concatenate([np.empty(0, dtype), *parts])
        yield lambda _: records
        return
    starts = np.cumsum(buckets.sizes) - buckets.sizes
    try:
        file = TemporaryFile(buffering=0)  # noqa: SIM115 (closed below; errors of this line are explained)
    except OSError as error:
        raise _cannot_write(error, buckets, dtype) from error
    with file:
        try:
            _write(file, parts, buckets, starts.copy())
        except OSError as error:
            raise _cannot_write(error, buckets, dtype) from error

        def read(bucket: int) -> NDArray[Any]:
            file.seek(int(starts[bucket]) * dtype.itemsize)
            return np.fromfile(file, dtype, int(buckets.sizes[bucket]))

        yield read


def _write(file: Any, parts: Iterable[NDArray[Any]], buckets: Buckets, ends: NDArray[np.int64]) -> None:
    """Append records to their buckets, which end at `ends`, in records; `ends` is updated."""

    def write(records: NDArray[Any]) -> None:
        numbers = buckets.of(records["document"])
        records = records[np.argsort(numbers, kind="stable")]
        counts = np.bincount(numbers, minlength=len(ends))
        first = 0
        for bucket in np.flatnonzero(counts):
            file.seek(int(ends[bucket]) * records.itemsize)
            left = records[first : first + counts[bucket]].view(np.uint8).data
            while left:
                left = left[file.write(left) :]
            first += counts[bucket]
        ends[:] += counts

    gathered: list[NDArray[Any]] = []
    held = 0
    for part in parts:
        gathered.append(part)
        held += len(part)
        if held >= _WRITTEN_TOGETHER:
            write(np.concatenate(gathered))
            gathered, held = [], 0
    if gathered:
        write(np.concatenate(gathered))


def _cannot_write(error: OSError, buckets: Buckets, dtype: np.dtype[Any]) -> PackerError:
    count = int(buckets.sizes.sum())
    return PackerError(
        f"{gettempdir()}: {error.strerror or error}: a comparison of {count:,} segments with their source "
        f"needs {count * dtype.itemsize / 1e9:,.1f} GB there: free some space, or set TMPDIR to another folder"
    )
