"""Segments of packed rows by document: a range of documents is read without holding all segments in memory.

Rows hold documents in random order. Their segments are distributed to files in a temporary folder, each for a range of
documents that have about a million segments, which are sorted when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.shards.manifest import Manifest
from packer.shards.reader import checked_batches
from packer.shards.structure import RowSegments, documents_fault
from packer.stores import AnyPath
from packer.stores.local_files import temporary_folder

_TOGETHER = 1 << 20  # segments in a file, approximately, and distributed together: they take some 100 MB
_FIELDS = {"documents": "<i8", "starts": "<i4", "lengths": "<i4", "places": "<i8", "numbers": "<i4"}
_SEGMENT = np.dtype(list(_FIELDS.items()))


class SortedSegments(NamedTuple):
    """Segments in the order of their documents and starts; int64 arrays of shape (segments,)."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]  # row * max_len + offset in the row
    numbers: NDArray[np.int64]  # position among the segments of the row

    def of(self, which: NDArray[np.int64] | slice) -> SortedSegments:
        """Return some of the segments."""
        return SortedSegments(*(column[which] for column in self))


class SegmentIndex:
    """Segments of a packed dataset in the files of a folder.

    Args:
        folder: an empty folder.
        manifest: manifest of the dataset.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._files = -(-manifest.totals.segments // _TOGETHER)
        self._documents = max(-(-manifest.source.documents // max(self._files, 1)), 1)  # of each file
        self._read = -1, np.zeros(0, _SEGMENT)  # number of the file that was read last, and its sorted segments

    def file(self, number: int) -> Path:
        """Return the path of a file."""
        return self._folder / f"segments-{number:05d}"

    def write(self, segments: NDArray[np.void]) -> None:
        """Append segments to the files of their documents."""
        segments = segments[np.argsort(segments["documents"], kind="stable")]
        numbers, firsts = np.unique(segments["documents"] // self._documents, return_index=True)
        for number, part in zip(numbers.tolist(), np.split(segments, firsts[1:]), strict=False):
            with self.file(number).open("ab") as file:
                file.write(part.tobytes())

    def read(self, first: int, last: int) -> SortedSegments:
        """Return the segments of documents `first` to `last` - 1."""
        parts = [np.zeros(0, _SEGMENT)]
        for number in range(first // self._documents, min(-(-last // self._documents), self._files)):
            segments = self._sorted(number)
            parts.append(segments[slice(*np.searchsorted(segments["documents"], [first, last]))])
        found = np.concatenate(parts)
        return SortedSegments(*(found[name].astype(np.int64) for name in _FIELDS))

    def _sorted(self, number: int) -> NDArray[np.void]:
        if self._read[0] != number:
            path = self.file(number)
            segments = np.fromfile(path, _SEGMENT) if path.exists() else np.zeros(0, _SEGMENT)
            self._read = number, segments[np.lexsort((segments["starts"], segments["documents"]))]
        return self._read[1]


@contextmanager
def sorted_segments(packed: AnyPath, manifest: Manifest) -> Iterator[SegmentIndex]:
    """Yield the segments of a packed dataset, in a temporary folder that is removed at the end of the block."""
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="segments-", dir=temporary_folder())))
            index = SegmentIndex(folder, manifest)
            held: list[NDArray[np.void]] = []
            for segments in _segments(packed, manifest):
                held.append(segments)
                if sum(map(len, held)) >= _TOGETHER:
                    index.write(np.concatenate(held))
                    held = []
            index.write(np.concatenate([np.zeros(0, _SEGMENT), *held]))
        except OSError as error:
            count = manifest.totals.segments
            raise PackerError(
                f"{gettempdir()}: {error.strerror or error}: to sort {count:,} segments by document takes "
                f"{count * _SEGMENT.itemsize / 1e9:,.1f} GB there: free some space, or set TMPDIR to another folder"
            ) from error
        yield index


def _segments(packed: AnyPath, manifest: Manifest) -> Iterator[NDArray[np.void]]:
    """Yield the segments of each record batch, in the order of the rows."""
    row = 0
    for entry in manifest.shards:
        for batch in checked_batches(packed, entry, manifest, compares_hash=False):
            found = RowSegments.of(batch)
            fault = documents_fault(found, manifest)
            if fault is not None:
                raise PackerError(f"{packed / entry.file}: {fault}: it was changed after packing; restore it")
            segments = np.empty(len(found.documents), _SEGMENT)
            for name in _FIELDS:
                segments[name] = getattr(found, name)
            segments["places"] += row * manifest.max_len
            yield segments
            row += batch.num_rows
