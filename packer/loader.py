"""Read a packed dataset into training: rows by number, and batches in which no document sees another.

Needs numpy and pyarrow; torch where tensors are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.shards.columns import PADDING, SEGMENT_COLUMNS, TOKEN_COLUMNS
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard, read_manifest

Row = dict[str, NDArray[Any]]
NO_LOSS = -100  # as in packer.gather, which imports numba


class PackedDataset:
    """Rows of a packed dataset, memory-mapped: `len(dataset)`, `dataset[i]`.

    A row is a dict of read-only arrays that stay in the mapped file:

        input_ids, labels, position_ids   int32, shape (max_len,); the latter two where they were written
        seq_lengths                       int32, shape (segments,): extents in order, a padding tail last
        doc_ids                           int64, shape (segments,): index of the document, -1 for padding
        doc_starts                        int32, shape (segments,): where in its document the segment starts

    It pickles as its path, so that DataLoader workers map the shards for themselves.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        self.max_len = self.manifest.max_len
        self._shards = [open_shard(self.path, entry, self.max_len) for entry in self.manifest.shards]
        self._first_rows = np.cumsum([0] + [shard.num_rows for shard in self._shards])
        self._chunk_rows: dict[int, NDArray[np.int64]] = {}
        self._views: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns of a row."""
        known = (*TOKEN_COLUMNS, *SEGMENT_COLUMNS)  # a later version may have written more
        return [name for name in known if name in self._shards[0].column_names] if self._shards else []

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def __getitem__(self, index: int) -> Row:
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        views, within = self._batch_of(shard, row - int(self._first_rows[shard]))
        first, last = views["offsets"][within : within + 2]
        found = {name: views[name][within] for name in TOKEN_COLUMNS if name in views}
        return {**found, **{name: views[name][first:last] for name in SEGMENT_COLUMNS}}

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, rows={len(self):,}, max_len={self.max_len:,})"

    def __reduce__(self) -> tuple[type[PackedDataset], tuple[Path]]:
        return type(self), (self.path.absolute(),)  # a worker may run in another folder

    def _batch_of(self, shard: int, row: int) -> tuple[dict[str, Any], int]:
        """(numpy views of the record batch that holds a row of a shard, the row's number in it)."""
        if shard not in self._chunk_rows:
            sizes = [len(chunk) for chunk in self._shards[shard]["input_ids"].chunks]
            self._chunk_rows[shard] = np.cumsum([0, *sizes])
        starts = self._chunk_rows[shard]
        chunk = int(np.searchsorted(starts, row, side="right")) - 1
        if (shard, chunk) not in self._views:
            self._views[shard, chunk] = _numpy_views(self._shards[shard], chunk)
        return self._views[shard, chunk], row - int(starts[chunk])


def load(path: str | Path) -> PackedDataset:
    """Open a packed dataset; the shards' structure is checked, no token is read.

    Raises:
        PackerError: it is not a packed dataset, unfinished, of an unknown format version, or a shard was changed.
    """
    return PackedDataset(path)


def collate(
    rows: Sequence[Mapping[str, NDArray[Any]]], *, tensors: Literal["torch", "numpy"] = "torch"
) -> dict[str, Any]:
    """Make one batch of rows, flattened to a single sequence of T real tokens; padding is left out.

    The keys are those of transformers' DataCollatorWithFlattening, plus `use_cache`:

        input_ids, labels, position_ids   int64, shape (1, T); labels are NO_LOSS at every segment's first token
        seq_idx                           int32, shape (1, T): number of the segment each token belongs to
        cu_seq_lens_q, cu_seq_lens_k      int32, shape (segments + 1,): where segments begin, then T
        max_length_q, max_length_k        int: tokens of the longest segment
        use_cache                         False: with a cache transformers stops looking for packed sequences

    There is no attention_mask on purpose: even one of all ones switches packing off.

    Raises:
        PackerError: tensors are asked for and torch is not installed.
    """
    lengths = np.concatenate([row["seq_lengths"][row["doc_ids"] != PADDING] for row in rows]).astype(np.int64)
    ends = [int(row["seq_lengths"][row["doc_ids"] != PADDING].sum()) for row in rows]
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([row["input_ids"][:end] for row, end in zip(rows, ends, strict=True)]).astype(np.int64)
    if "labels" in rows[0]:
        labels = np.concatenate([row["labels"][:end] for row, end in zip(rows, ends, strict=True)]).astype(np.int64)
    else:  # packed with --no-labels
        labels = tokens.copy()
        labels[boundaries[:-1]] = NO_LOSS
    longest = int(lengths.max())
    arrays = {
        "input_ids": tokens[None],
        "labels": labels[None],
        "position_ids": (np.arange(len(tokens)) - np.repeat(boundaries[:-1], lengths))[None],
        "seq_idx": np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None],
        "cu_seq_lens_q": boundaries.astype(np.int32),
        "cu_seq_lens_k": boundaries.astype(np.int32),
    }
    batch: dict[str, Any] = _as_tensors(arrays) if tensors == "torch" else dict(arrays)
    return {**batch, "max_length_q": longest, "max_length_k": longest, "use_cache": False}


def batches(
    dataset: PackedDataset,
    *,
    rows: int,
    seed: int | None = 0,
    epoch: int = 0,
    drop_last: bool = False,
    tensors: Literal["torch", "numpy"] = "torch",
) -> Iterator[dict[str, Any]]:
    """Yield the batches of one epoch, as `collate` makes them.

    Args:
        dataset: from `load`.
        rows: rows of a batch; a row is up to max_len real tokens.
        seed: of the order of rows; None for the order on disk.
        epoch: another epoch is another order under the same seed.
        drop_last: leave out a last batch of fewer rows.
        tensors: "torch", or "numpy" for arrays.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch has at least 1")
    order = np.arange(len(dataset)) if seed is None else np.random.default_rng([seed, epoch]).permutation(len(dataset))
    for first in range(0, len(order) - rows + 1 if drop_last else len(order), rows):
        yield collate([dataset[int(row)] for row in order[first : first + rows]], tensors=tensors)


def _numpy_views(table: pa.Table, chunk: int) -> dict[str, Any]:
    """Views of the columns of one record batch; nothing is copied."""
    views: dict[str, Any] = {}
    for name in table.column_names:
        array = table[name].chunk(chunk)
        if name in TOKEN_COLUMNS:
            views[name] = np.asarray(array.flatten()).reshape(len(array), -1)
        elif name in SEGMENT_COLUMNS:
            views[name] = np.asarray(array.values)
            views["offsets"] = np.asarray(array.offsets)
    return views


def _as_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise PackerError('torch is not installed: pip install "packer[torch]", or ask for tensors="numpy"') from error
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
