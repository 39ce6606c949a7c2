"""The rows of a packed dataset by number, memory-mapped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy, is_numeric
from packer.errors import PackerError
from packer.paths import expanded
from packer.progress import silent
from packer.shards.columns import PADDING
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest

NO_LOSS = -100  # as in packer.gather, which imports numba

Row = dict[str, NDArray[Any]]
_T = TypeVar("_T")


class OfEpoch(list[_T]):
    """A list that tells the epoch it is of, where that is known: of row numbers from a sampler, then of the rows."""

    epoch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Views:
    """The columns of one record batch as arrays that stay in the mapped file."""

    tokens: dict[str, NDArray[Any]]
    """Token columns, shape (rows, max_len), in the order on disk."""

    segments: dict[str, NDArray[Any]]
    """Segment columns, shape (segments,), in the order on disk."""

    others: dict[str, pa.Array]
    """Segment columns that are no numbers, or have nulls, shape (segments,)."""

    offsets: list[int]
    """Row i has the segments offsets[i]:offsets[i + 1]; a list, because it is read one number at a time."""

    def row(self, within: int) -> Row:
        """The row of this number."""
        first, last = self.offsets[within], self.offsets[within + 1]
        found = {name: values[within] for name, values in self.tokens.items()}
        for name, values in self.segments.items():
            found[name] = values[first:last]
        for name, column in self.others.items():
            found[name] = _as_objects(name, column[first:last])
        return found


class PackedDataset:
    """Rows of a packed dataset, memory-mapped: `len(dataset)`, `dataset[i]`.

    A row is a dict of read-only arrays that stay in the mapped file:

        input_ids, labels, position_ids   int32, shape (max_len,); the latter two where they were written
        seq_lengths                       int32, shape (segments,): extents in order, a padding tail last
        seq_tokens                        int32, shape (segments,): tokens in each extent, with `--align` only
        doc_ids                           int64, shape (segments,): index of the document, -1 for padding
        doc_starts                        int32, shape (segments,): where in its document the segment starts
        source_ids, copy                  int32, shape (segments,): of a mixture, the source (-1 for padding), in which
                                          doc_ids count, and which repetition of the document it is

    and every other column of numbers that has max_len values a row or one per segment.

    It is a map-style dataset of torch without importing torch. It pickles as its path, so that DataLoader workers
    map the shards for themselves.
    """

    def __init__(self, path: str | Path, *, verify: bool = False) -> None:
        self.path = Path(expanded(path))
        if verify:
            _verify(self.path)
        self.manifest: Manifest = read_manifest(self.path)
        self.max_len = self.manifest.max_len
        self._shards = [open_shard(self.path, entry, self.manifest) for entry in self.manifest.shards]
        # lists and bisect: for one number at a time they take a quarter of the time of np.searchsorted
        self._first_rows: list[int] = [0, *accumulate(shard.num_rows for shard in self._shards)]
        self._chunk_rows: dict[int, list[int]] = {}
        self._views: dict[tuple[int, int], _Views] = {}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns of a row."""
        views = self._view(0, 0)
        return [*views.tokens, *views.segments, *views.others]

    @property
    def pad_id(self) -> int:
        """Token id of the padding."""
        return self.manifest.row_format.pad_id

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell this dataset's rows from any other's: a hash of the shards' hashes."""
        hashes = "".join(entry.xxh3_128 for entry in self.manifest.shards)
        return blake2b(hashes.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return self._first_rows[-1]

    def __getitem__(self, index: int) -> Row:
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect_right(self._first_rows, row) - 1
        views, within = self._batch_of(shard, row - self._first_rows[shard])
        return views.row(within)

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Rows of a batch, as torch's DataLoader asks for them; a batch of none is one row of padding alone.

        `BatchSampler` hands out such a batch where the last rows of an epoch are fewer than the batches of a step.
        """
        rows = OfEpoch(self[index] for index in indices) or OfEpoch([self._padding_row()])
        rows.epoch = getattr(indices, "epoch", None)
        return rows

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, rows={len(self):,}, max_len={self.max_len:,})"

    def __reduce__(self) -> tuple[type[PackedDataset], tuple[Path]]:
        return type(self), (self.path.absolute(),)  # a worker may run in another folder

    def segments(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (offsets, seq_lengths, doc_ids) of all rows, in pieces, in order; no token is read.

        Row i of a piece has the segments offsets[i]:offsets[i + 1]; offsets[0] may be above 0.
        """
        for shard, table in enumerate(self._shards):
            for chunk in range(table["input_ids"].num_chunks):
                views = self._view(shard, chunk)
                yield np.array(views.offsets), views.segments["seq_lengths"], views.segments["doc_ids"]

    def _batch_of(self, shard: int, row: int) -> tuple[_Views, int]:
        """(views of the record batch that holds a row of a shard, the row's number in it)."""
        if shard not in self._chunk_rows:
            chunks = self._shards[shard]["input_ids"].chunks
            self._chunk_rows[shard] = [0, *accumulate(len(chunk) for chunk in chunks)]
        starts = self._chunk_rows[shard]
        chunk = bisect_right(starts, row) - 1
        return self._view(shard, chunk), row - starts[chunk]

    def _view(self, shard: int, chunk: int) -> _Views:
        if (shard, chunk) not in self._views:
            path = self.path / self.manifest.shards[shard].file
            self._views[shard, chunk] = _numpy_views(self._shards[shard], chunk, self.manifest, path)
        return self._views[shard, chunk]

    def _padding_row(self) -> Row:
        views = self._view(0, 0)
        pads = {"input_ids": self.pad_id, "labels": NO_LOSS}
        extent = {"seq_lengths": self.max_len, "doc_ids": PADDING, "source_ids": PADDING}
        row = {name: np.full(self.max_len, pads.get(name, 0), each.dtype) for name, each in views.tokens.items()}
        if "position_ids" in row:
            row["position_ids"] = np.arange(self.max_len, dtype=np.int32)
        row |= {name: np.array([extent.get(name, 0)], each.dtype) for name, each in views.segments.items()}
        nothing = {pa.bool_(): False}  # as the shards have it
        return row | {name: np.array([nothing.get(each.type)]) for name, each in views.others.items()}


def load(path: str | Path, *, verify: bool = False) -> PackedDataset:
    """Open a packed dataset; the shards' structure is checked, no token is read.

    Sizes, rows and columns are checked at once, the segments of a record batch when its first row is asked for.

    Args:
        path: its folder.
        verify: read and hash every byte first, as `packer verify` does; DataLoader workers do not again.

    Raises:
        PackerError: it is not a packed dataset, unfinished, of an unknown format version, or a shard was changed.
    """
    return PackedDataset(path, verify=verify)


def _verify(path: Path) -> None:
    from packer.shards.verify import verify_packed  # imports numba, for which loading has no need

    fault = next(verify_packed(path, silent), None)
    if fault is not None:
        raise PackerError(f"{path}: {fault}; restore it, or pack again to another folder")


def _numpy_views(table: pa.Table, chunk: int, manifest: Manifest, path: Path) -> _Views:
    arrays = {name: table[name].chunk(chunk) for name in manifest.row_format.schema.names}
    if len({len(array) for array in arrays.values()}) > 1:
        raise PackerError(f"{path}: the columns of a record batch are of different lengths; restore it, or pack again")
    rows = len(arrays["input_ids"])
    others = [name for name in table.column_names if name not in arrays and table.column_names.count(name) == 1]
    more = {name: table[name].chunk(chunk) for name in others}
    arrays |= {name: column for name, column in more.items() if len(column) == rows}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    check_batch(batch, path, manifest)
    return _views_of(batch)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a record batch of a shard, in order; its structure is taken on trust."""
    views = _views_of(batch)
    return [views.row(within) for within in range(batch.num_rows)]


def _views_of(batch: pa.RecordBatch) -> _Views:
    """View the columns of numbers, and of what else there is a value for each segment of; others are left out."""
    rows, offsets = batch.num_rows, batch["seq_lengths"].offsets
    max_len = batch["input_ids"].type.list_size
    tokens, segments, others = {}, {}, {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not _has_numbers(column):
            if pa.types.is_list(column.type) and not column.null_count and column.offsets.equals(offsets):
                others[name] = column.values
            continue
        if not pa.types.is_fixed_size_list(column.type):
            if column.offsets.equals(offsets):
                segments[name] = as_numpy(column.values)
        elif column.type.list_size == max_len:
            tokens[name] = as_numpy(column.flatten()).reshape(rows, -1)
    return _Views(tokens=tokens, segments=segments, others=others, offsets=as_numpy(offsets).tolist())


def _as_objects(name: str, column: pa.Array) -> NDArray[Any]:
    """The values of a column that is no numbers, or has nulls.

    Raises:
        PackerError: Python has no such value: a date after the year 9999, say.
    """
    try:
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PackerError(
            f"column '{name}' holds a {column.type} that Python cannot represent ({reason}): "
            "restore the packed dataset, or pack again with that column as strings"
        ) from error
    return values


def _has_numbers(column: pa.Array) -> bool:
    """Whether a column is of lists of numbers that can stay where they lie."""
    lists = pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type)
    return lists and is_numeric(column.type.value_type) and not column.null_count + column.values.null_count
