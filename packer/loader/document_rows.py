"""Rows as lists of documents, for a trainer whose dataset builds its own examples, for instance from images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from packer.loader.batch_sampler import BatchSampler
from packer.loader.dataset import PackedDataset, Segment, segments_in
from packer.loader.load import load
from packer.stores import AnyPath


class DocumentRows(Sequence[list[Segment]]):
    """Documents of each row of a packed dataset: `rows[0]` is [(doc_id, start, length), ...].

    With several datasets, segments are (doc_id, start, length, source).
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @overload
    def __getitem__(self, index: int) -> list[Segment]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Segment]]: ...
    def __getitem__(self, index: int | slice) -> list[Segment] | list[list[Segment]]:
        if isinstance(index, slice):
            return [segments_in(self.dataset[row]) for row in range(*index.indices(len(self)))]
        return segments_in(self.dataset[index])

    def __repr__(self) -> str:
        return f"DocumentRows({self.dataset!r})"

    def batch_sampler(self, *, global_batch: int, **options: Any) -> DocumentBatchSampler:
        """Return a `batch_sampler` for a DataLoader. The DataLoader then passes rows instead of indices to its dataset.

            loader = DataLoader(examples, batch_sampler=rows.batch_sampler(global_batch=8), collate_fn=...)

        calls `examples[[(doc_id, start, length), ...]]` for each row of a batch. Without `drop_last`, some batches of
        the last step of an epoch may be empty.

        Args:
            global_batch: rows per optimizer step, over all ranks and accumulated batches.
            **options: further arguments of `BatchSampler`.

        Raises:
            PackerError: as in `BatchSampler`.
        """
        return DocumentBatchSampler(self.dataset, global_batch=global_batch, **options)


class DocumentBatchSampler(BatchSampler):
    """A `BatchSampler` whose batches hold the documents of each row, as `DocumentRows` returns them.

    Ranks, epochs and states work as in `BatchSampler`.
    """

    def __iter__(self) -> Iterator[Any]:
        for numbers in super().__iter__():
            yield [segments_in(row) for row in self.dataset.__getitems__(numbers)] if numbers else []


def rows(
    path: str | AnyPath | Sequence[str | AnyPath] | Mapping[Any, float],
    *,
    cache_dir: str | Path | None = None,
    cache_bytes: int | str | None = None,
) -> DocumentRows:
    """Open a packed dataset to read only which documents each row contains.

    The dataset may be a copied one or an index, of tokens or of lengths alone (`packer pack --lengths`).

    Args:
        path: folder of the dataset, or its address in object storage. For several datasets, pass a list or mapping as
            in `load`; each segment then includes its dataset: (doc_id, start, length, source).
        cache_dir: as in `load`.
        cache_bytes: as in `load`.

    Raises:
        PackerError: as in `load`.
    """
    return DocumentRows(load(path, cache_dir=cache_dir, cache_bytes=cache_bytes))
