"""Segments of packed rows in the order of their documents, sorted in runs so that any number of them can be read.

Rows hold documents in random order. A task reads the boundaries of a few shards, sorts their segments and writes them
as a run. The documents of the dataset are divided into ranges, and record batch r of every run has the segments of
range r, so that a range is read with one small read per run:

segments-run-00007.arrow     an Arrow IPC file of document, start, length and place, and the kept columns
segments-run-00007.json      note of what it was made from, and of its hash; see `decoded_pieces.Piece`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.engine import Engine
from packer.errors import PackerError, SourceError
from packer.progress import Progress
from packer.shards.files import HashingFile
from packer.shards.manifest import Manifest
from packer.shards.reader import checked_batches
from packer.shards.row_format import PADDING
from packer.shards.shard_table import column_of
from packer.sources.columns.column_types import as_plain
from packer.sources.decoding.decoded_pieces import Piece
from packer.sources.decoding.decoded_streams import atomic_write
from packer.sources.documents import Columns, reading
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.sources.documents import Input

_RUN = 32 << 20  # bytes of a run: about a million segments, which take some three times as much while they are sorted
_FIELDS = {"document": np.int64, "start": np.int64, "length": np.int64, "place": np.int64}


class SortedSegments(NamedTuple):
    """Segments in the order of their documents and starts; each array has the shape (segments,)."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]  # row * max_len + offset in the row
    kept: dict[str, pa.Array]  # kept columns with a value per segment

    def of(self, numbers: NDArray[np.int64]) -> SortedSegments:
        """Return some of the segments, in the order of their numbers."""
        return SortedSegments(
            self.documents[numbers],
            self.starts[numbers],
            self.lengths[numbers],
            self.places[numbers],
            {name: column.take(as_arrow(numbers)) for name, column in self.kept.items()},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentIndex:
    """The runs of a packed dataset. Can be pickled."""

    packed: AnyPath
    """Folder of the packed dataset."""

    manifest: Manifest
    """Its manifest."""

    kept: Mapping[str, pa.DataType]
    """Kept columns to store with the segments, and the types of their values."""

    kept_bytes: float
    """Approximate bytes of their values for a segment."""

    borders: tuple[int, ...]
    """First document of each range, and the number of all documents."""

    folder: AnyPath
    """Folder of the runs."""

    prefix: str
    """First part of the names of the runs."""

    made_from: dict[str, Any]
    """Facts about the packed dataset. A run is used again only if its note has the same."""

    @property
    def runs(self) -> int:
        """Number of runs."""
        return -(-len(self.manifest.shards) // self._shards_per_run)

    @property
    def _shards_per_run(self) -> int:
        segments = self.manifest.totals.segments / len(self.manifest.shards)
        return max(1, int(_RUN / max(1.0, segments * (8 * len(_FIELDS) + self.kept_bytes))))

    def run(self, number: int, like: Input) -> Piece:
        """Return a run as a piece of the input that it belongs to."""
        facts = {**self.made_from, "borders": list(self.borders), "kept": sorted(self.kept)}
        stream = self.folder / f"{self.prefix}-run-{number:05d}.arrow"
        return Piece(number=number, input=like, stream=stream, columns=Columns("", ""), made_from=facts)

    def write(self, number: int, path: Path) -> str:
        """Sort the segments of some shards, and write them as a run; return its hash.

        Raises:
            SourceError: a shard is damaged, or contradicts the manifest.
        """
        segments = _sorted([*self._segments(number)])
        fields = [(name, pa.from_numpy_dtype(dtype)) for name, dtype in _FIELDS.items()]
        schema = pa.schema([*fields, *((name, segments.kept[name].type) for name in self.kept)])
        columns = [*map(as_arrow, segments[:4]), *(segments.kept[name] for name in self.kept)]
        ends = np.searchsorted(segments.documents, self.borders)
        with closing(HashingFile(path)) as file:
            with pa.ipc.new_file(file, schema) as writer:
                for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                    writer.write_batch(
                        pa.record_batch([column.slice(first, last - first) for column in columns], schema=schema)
                    )
            return file.hexdigest()

    def read(self, number: int) -> SortedSegments:
        """Return the segments of a range of documents."""
        parts = []
        for run in range(self.runs):
            path = self.folder / f"{self.prefix}-run-{run:05d}.arrow"
            with reading(path.name), _opened(path) as file:
                batch = pa.ipc.open_file(file).get_batch(number)
                documents, starts, lengths, places = (as_numpy(batch[name]) for name in _FIELDS)
                kept = {name: batch[name] for name in self.kept}
                parts.append(SortedSegments(documents, starts, lengths, places, kept))
        return _sorted(parts)

    def _segments(self, run: int) -> Iterator[SortedSegments]:
        """Yield the segments of each record batch of some shards, in the order of the rows."""
        shards, max_len = self.manifest.shards, self.manifest.max_len
        first, last = run * self._shards_per_run, min((run + 1) * self._shards_per_run, len(shards))
        row = int(column_of(shards, "rows")[:first].sum())
        for entry in shards[first:last]:
            path = self.packed / entry.file
            with _as_source():
                batches = list(checked_batches(self.packed, entry, self.manifest))
            for batch in batches:
                documents, extents = (as_numpy(batch[name].values) for name in ("doc_ids", "seq_lengths"))
                tokens = as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else extents
                is_real = documents != PADDING
                if int(documents.max(initial=0)) >= self.borders[-1]:
                    raise SourceError(
                        f"{path} has a segment of document {documents.max():,}, and the manifest says that there are "
                        f"{self.borders[-1]:,} documents: it was changed after packing; restore it"
                    )
                kept = {name: as_plain(batch[name].values.filter(as_arrow(is_real))) for name in self.kept}
                for name, values in kept.items():
                    if values.type != self.kept[name]:
                        raise SourceError(f"{path} and {shards[0].file} have columns '{name}' of different types")
                yield SortedSegments(
                    documents[is_real],
                    as_numpy(batch["doc_starts"].values)[is_real].astype(np.int64),
                    tokens[is_real].astype(np.int64),
                    (row * max_len + np.cumsum(extents, dtype=np.int64) - extents)[is_real],
                    kept,
                )
                row += batch.num_rows


@dataclass(frozen=True, slots=True)
class _SortTask:
    """Writes single runs. Can be pickled."""

    index: SegmentIndex
    like: Input
    sync: bool

    def __call__(self, number: int) -> int:
        """Write a run; return its number."""
        piece = self.index.run(number, self.like)
        with atomic_write(piece.stream, sync=self.sync) as temporary:
            digest = self.index.write(number, temporary)
        piece.write_note({}, digest, None)
        return number


def write_runs(index: SegmentIndex, like: Input, engine: Engine, progress: Progress) -> None:
    """Write the runs that are missing.

    Args:
        index: the runs.
        like: input that they belong to.
        engine: decides which runs this process writes.
        progress: callback, called as `progress("sort", done, total)`, in segments.

    Raises:
        SourceError: a shard is damaged.
        PackerError: a run cannot be written.
    """
    is_shared = engine.is_shared

    def written(numbers: Sequence[int]) -> list[int]:
        runs = ((number, index.run(number, like)) for number in numbers)
        return [number for number, run in runs if (run.has_note() if is_shared else run.is_intact())]

    done, total = 0, index.manifest.totals.segments
    task = _SortTask(index, like, is_shared or not engine.is_local)
    for missing in engine.assigned(range(index.runs), written):
        for _ in engine.run(task, missing):
            done += 1
            progress("sort", total * done // index.runs, total)


def _sorted(parts: Sequence[SortedSegments]) -> SortedSegments:
    """Join segments and sort them by document and start."""
    documents, starts, lengths, places = (np.concatenate([part[field] for part in parts]) for field in range(4))
    kept = {name: pa.concat_arrays([part.kept[name] for part in parts]) for name in parts[0].kept}
    order = np.lexsort((starts, documents))
    return SortedSegments(documents, starts, lengths, places, kept).of(order)


@contextmanager
def _as_source() -> Iterator[None]:
    """Raise errors about a shard as errors of the source."""
    try:
        yield
    except PackerError as error:
        raise SourceError(str(error)) from error


@contextmanager
def _opened(path: AnyPath) -> Iterator[pa.NativeFile]:
    """Open a run for reading at random places."""
    if isinstance(path, Path):
        with pa.memory_map(str(path)) as mapped:
            yield mapped
        return
    with path.open("rb") as file:
        yield pa.PythonFile(file, mode="r")
