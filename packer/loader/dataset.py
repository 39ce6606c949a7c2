"""Packed datasets as memory-mapped, map-style datasets: rows by number."""

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
from packer.labels import NO_LOSS
from packer.paths import expanded
from packer.progress import silent
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest
from packer.shards.row_format import PADDING

Row = dict[str, NDArray[Any]]
_T = TypeVar("_T")


class EpochList(list[_T]):
    """A batch as a list, with its epoch if known: row numbers from a sampler, or the rows they select."""

    epoch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _ColumnViews:
    """Columns of one record batch, as arrays that view the mapped file."""

    tokens: dict[str, NDArray[Any]]
    """Token columns, shape (rows, max_len), in the order on disk."""

    segments: dict[str, NDArray[Any]]
    """Numeric segment columns without nulls, shape (segments,), in the order on disk."""

    others: dict[str, pa.Array]
    """Other segment columns, shape (segments,)."""

    offsets: list[int]
    """Row i has the segments offsets[i]:offsets[i + 1]. A list, because it is faster than an array to index."""

    def row(self, index: int) -> Row:
        """Return a row by its number in the record batch."""
        first, last = self.offsets[index], self.offsets[index + 1]
        found = {name: values[index] for name, values in self.tokens.items()}
        for name, values in self.segments.items():
            found[name] = values[first:last]
        for name, column in self.others.items():
            found[name] = _as_objects(name, column[first:last])
        return found


class PackedDataset:
    """Memory-mapped rows of a packed dataset: `len(dataset)`, `dataset[i]`.

    A row is a dict of read-only arrays that view the mapped file:

        input_ids, labels, position_ids   int32, shape (max_len,); the latter two if they were written
        seq_lengths                       int32, shape (segments,): segment lengths in order, a padding tail last
        seq_tokens                        int32, shape (segments,): real tokens per segment, only with `--align`
        doc_ids                           int64, shape (segments,): index of the document, -1 for padding
        doc_starts                        int32, shape (segments,): offset of the segment in its document
        source_ids, copy                  int32, shape (segments,): only in mixtures: the source that doc_ids
                                          refers to (-1 for padding), and the repetition of the document

    Kept columns are included: those with max_len numbers per row, and those with one value per segment.

    It is a map-style dataset for torch without importing torch. Pickling stores only its path, so that each
    DataLoader worker maps the shards itself.
    """

    def __init__(self, path: str | Path, *, verify: bool = False) -> None:
        self.path = Path(expanded(path))
        if verify:
            _verify(self.path)
        self.manifest: Manifest = read_manifest(self.path)
        self.max_len = self.manifest.max_len
        self._shards = [open_shard(self.path, entry, self.manifest) for entry in self.manifest.shards]
        # For a single number, bisect on a list takes a quarter of the time of np.searchsorted.
        self._first_rows: list[int] = [0, *accumulate(shard.num_rows for shard in self._shards)]
        self._chunk_rows: dict[int, list[int]] = {}
        self._views: dict[tuple[int, int], _ColumnViews] = {}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns in each row."""
        views = self._view(0, 0)
        return [*views.tokens, *views.segments, *views.others]

    @property
    def pad_id(self) -> int:
        """Token id of the padding."""
        return self.manifest.row_format.pad_id

    @property
    def fingerprint(self) -> str:
        """Hash of the shards' hashes, 16 hexadecimal digits; datasets with different rows have different ones."""
        hashes = "".join(entry.xxh3_128 for entry in self.manifest.shards)
        return blake2b(hashes.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return self._first_rows[-1]

    def __getitem__(self, index: int) -> Row:
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect_right(self._first_rows, row) - 1
        views, index_in_batch = self._record_batch(shard, row - self._first_rows[shard])
        return views.row(index_in_batch)

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return the rows of a batch; torch's DataLoader calls this. Without indices, return one row of padding.

        `BatchSampler` yields empty batches when the last rows of an epoch are fewer than the batches of a step.
        """
        rows = EpochList(self[index] for index in indices) or EpochList([self._padding_row()])
        rows.epoch = getattr(indices, "epoch", None)
        return rows

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, rows={len(self):,}, max_len={self.max_len:,})"

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from packer.loader.notebook_view import dataset_html

        return dataset_html(self)

    def __reduce__(self) -> tuple[type[PackedDataset], tuple[Path]]:
        return type(self), (self.path.absolute(),)  # a worker may run in another folder

    def segments(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (offsets, seq_lengths, doc_ids) of one record batch after the other, without reading tokens.

        Row i of a record batch has the segments offsets[i]:offsets[i + 1]; offsets[0] may be above 0.
        """
        for shard, table in enumerate(self._shards):
            for chunk in range(table["input_ids"].num_chunks):
                views = self._view(shard, chunk)
                yield np.array(views.offsets), views.segments["seq_lengths"], views.segments["doc_ids"]

    def find(self, doc_id: int, source_id: int | None = None) -> list[int]:
        """Return the rows that hold a document, in ascending order; every segment of the dataset is looked at.

        Args:
            doc_id: index of the document in its source.
            source_id: index of the source in a mixture; None for a single source.
        """
        found = []
        for shard, table in enumerate(self._shards):
            first_row = self._first_rows[shard]
            for chunk in range(table["input_ids"].num_chunks):
                views = self._view(shard, chunk)
                is_wanted = views.segments["doc_ids"] == doc_id
                if source_id is not None:
                    is_wanted &= views.segments["source_ids"] == source_id
                rows = np.searchsorted(views.offsets, np.flatnonzero(is_wanted), side="right") - 1
                found += (first_row + np.unique(rows)).tolist()
                first_row += len(views.offsets) - 1
        return found

    def _record_batch(self, shard: int, row: int) -> tuple[_ColumnViews, int]:
        """Return (views of the record batch that contains a row of a shard, the row's number in that batch)."""
        if shard not in self._chunk_rows:
            chunks = self._shards[shard]["input_ids"].chunks
            self._chunk_rows[shard] = [0, *accumulate(len(chunk) for chunk in chunks)]
        starts = self._chunk_rows[shard]
        chunk = bisect_right(starts, row) - 1
        return self._view(shard, chunk), row - starts[chunk]

    def _view(self, shard: int, chunk: int) -> _ColumnViews:
        if (shard, chunk) not in self._views:
            path = self.path / self.manifest.shards[shard].file
            self._views[shard, chunk] = _numpy_views(self._shards[shard], chunk, self.manifest, path)
        return self._views[shard, chunk]

    def _padding_row(self) -> Row:
        views = self._view(0, 0)
        token_fill = {"input_ids": self.pad_id, "labels": NO_LOSS}
        segment_fill = {"seq_lengths": self.max_len, "doc_ids": PADDING, "source_ids": PADDING}
        row: Row = {}
        for name, values in views.tokens.items():
            row[name] = np.full(self.max_len, token_fill.get(name, 0), values.dtype)
        if "position_ids" in row:
            row["position_ids"] = np.arange(self.max_len, dtype=np.int32)
        for name, values in views.segments.items():
            row[name] = np.array([segment_fill.get(name, 0)], values.dtype)
        for name, column in views.others.items():
            row[name] = np.array([False if column.type == pa.bool_() else None])  # as padding has it on disk
        return row


def load(path: str | Path, *, verify: bool = False) -> PackedDataset:
    """Open a packed dataset and check the structure of its shards, without reading tokens.

    Sizes, row counts and columns are checked immediately, the segments of a record batch when its first row is read.

    Args:
        path: folder of the packed dataset.
        verify: whether to read and hash every byte first, as `packer verify` does. DataLoader workers do not repeat it.

    Raises:
        PackerError: the folder is not a packed dataset, is unfinished or has an unknown format version, or a shard was
            changed.
    """
    return PackedDataset(path, verify=verify)


def _verify(path: Path) -> None:
    from packer.shards.check_shards import verify_packed  # imports Numba, which loading does not need

    fault = next(verify_packed(path, silent), None)
    if fault is not None:
        raise PackerError(f"{path}: {fault}; restore it, or pack again to another folder")


def _numpy_views(table: pa.Table, chunk: int, manifest: Manifest, path: Path) -> _ColumnViews:
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
    """Return the rows of a shard's record batch in order, without checking its structure."""
    views = _views_of(batch)
    return [views.row(index) for index in range(batch.num_rows)]


def _views_of(batch: pa.RecordBatch) -> _ColumnViews:
    """Return views of the token and segment columns of a record batch; columns of any other shape are left out."""
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
    return _ColumnViews(tokens=tokens, segments=segments, others=others, offsets=as_numpy(offsets).tolist())


def _as_objects(name: str, column: pa.Array) -> NDArray[Any]:
    """Return the values of a column as Python objects; `name` appears in the error.

    Raises:
        PackerError: Python cannot represent a value, such as a date after the year 9999.
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
    """Return whether a column holds lists of numbers without nulls, which can be viewed in place."""
    lists = pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type)
    return lists and is_numeric(column.type.value_type) and not column.null_count + column.values.null_count
