"""Segments of packed rows in the order of their documents, sorted in runs so that any number of them can be read.

Rows hold documents in random order. The boundaries of a few shards are read, sorted by document, and written as a run
to a temporary folder. The segments of a range of documents are then in a few neighboring record batches of every run. A
comparison of rows with their source reads segments here.

segments-run-00007.arrow     an Arrow IPC file of document, start, length, place and number; its metadata hold the first
                             document of every record batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.inputs.documents import reading
from packer.inputs.format_reader import opened
from packer.shards.manifest import Manifest
from packer.shards.reader import checked_batches
from packer.shards.structure import RowSegments, documents_fault
from packer.stores import AnyPath
from packer.stores.local_files import temporary_folder

_RUN = 32 << 20  # bytes of a run: about a million segments, which take some three times as much while they are sorted
_BATCH = 1 << 10  # segments in a record batch of a run: a range of documents reads up to twice as many for nothing
_FIELDS = {"document": np.int64, "start": np.int32, "length": np.int32, "place": np.int64, "number": np.int32}
_BYTES = sum(np.dtype(dtype).itemsize for dtype in _FIELDS.values())  # of a segment
_FIRSTS = b"first documents"


class SortedSegments(NamedTuple):
    """Segments in the order of their documents and starts; arrays of shape (segments,): int64 once they are sorted."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]  # row * max_len + offset in the row
    numbers: NDArray[np.int64]  # position among the segments of the row

    def of(self, which: NDArray[np.int64] | slice) -> SortedSegments:
        """Return some of the segments."""
        return SortedSegments(*(column[which] for column in self))


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentIndex:
    """The runs of a packed dataset, whose documents are numbered from 0."""

    packed: AnyPath
    manifest: Manifest
    """Its manifest."""

    folder: Path

    @property
    def runs(self) -> int:
        """Number of runs."""
        return -(-len(self.manifest.shards) // self._shards_per_run)

    @property
    def _shards_per_run(self) -> int:
        segments = self.manifest.totals.segments / len(self.manifest.shards)
        return max(1, int(_RUN / max(1.0, segments * _BYTES)))

    def run(self, number: int) -> Path:
        """Return the path of a run."""
        return self.folder / f"segments-run-{number:05d}.arrow"

    def write(self, number: int) -> None:
        """Sort the segments of some shards, and write them as a run."""
        segments = _sorted([*self._segments(number)], list(_FIELDS.values()))
        columns = [as_arrow(column) for column in segments]
        schema = pa.schema(
            [(name, column.type) for name, column in zip(_FIELDS, columns, strict=True)],
            metadata={_FIRSTS: segments.documents[::_BATCH].tobytes()},
        )
        with pa.OSFile(str(self.run(number)), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for first in range(0, len(segments.documents), _BATCH):
                batch = [column.slice(first, _BATCH) for column in columns]
                writer.write_batch(pa.record_batch(batch, schema=schema))

    def read(self, first: int, last: int) -> SortedSegments:
        """Return the segments of documents first to last - 1."""
        parts = [SortedSegments(*np.empty((len(_FIELDS), 0), np.int64))]
        for path in map(self.run, range(self.runs)):
            with reading(path.name), opened(path) as (source, _):
                file = pa.ipc.open_file(source)
                firsts = np.frombuffer(file.schema.metadata[_FIRSTS], np.int64)
                begin, end = np.searchsorted(firsts, [first, last])
                for number in range(max(int(begin) - 1, 0), int(end)):
                    batch = file.get_batch(number)
                    segments = SortedSegments(*(as_numpy(batch[name]) for name in _FIELDS))
                    parts.append(segments.of(slice(*np.searchsorted(segments.documents, [first, last]))))
        return _sorted(parts, [np.int64] * len(_FIELDS))

    def _segments(self, run: int) -> Iterator[SortedSegments]:
        """Yield the segments of each record batch of some shards, in the order of the rows."""
        shards = self.manifest.shards
        first, last = run * self._shards_per_run, min((run + 1) * self._shards_per_run, len(shards))
        row = int(shards.column("rows")[:first].sum())
        for number in range(first, last):
            entry = shards[number]
            for batch in checked_batches(self.packed, entry, self.manifest, compares_hash=False):
                segments = RowSegments.of(batch)
                fault = documents_fault(segments, self.manifest)
                if fault is not None:
                    raise PackerError(f"{self.packed / entry.file}: {fault}: it was changed after packing; restore it")
                columns = (
                    segments.documents,
                    segments.starts,
                    segments.lengths,
                    segments.places + row * self.manifest.max_len,
                    segments.numbers,
                )
                yield SortedSegments(*map(np.ndarray.astype, columns, _FIELDS.values()))
                row += batch.num_rows


@contextmanager
def sorted_segments(packed: AnyPath, manifest: Manifest) -> Iterator[SegmentIndex]:
    """Yield the sorted segments of a packed dataset, in a temporary folder that is removed at the end of the block."""
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="segments-", dir=temporary_folder())))
            index = SegmentIndex(packed=packed, manifest=manifest, folder=folder)
            for number in range(index.runs):
                index.write(number)
        except OSError as error:
            count = manifest.totals.segments
            raise PackerError(
                f"{gettempdir()}: {error.strerror or error}: to sort {count:,} segments by document takes "
                f"{count * _BYTES / 1e9:,.1f} GB there: free some space, or set TMPDIR to another folder"
            ) from error
        yield index


def _sorted(parts: Sequence[SortedSegments], dtypes: Sequence[type[np.integer]]) -> SortedSegments:
    """Join segments, sort them by document and start, and convert each column to its dtype, one column at a time."""
    documents, starts = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    order = np.lexsort((starts, documents))
    del documents, starts
    columns = (np.concatenate([part[field] for part in parts])[order] for field in range(len(_FIELDS)))
    return SortedSegments(*(column.astype(dtype, copy=False) for column, dtype in zip(columns, dtypes, strict=True)))
