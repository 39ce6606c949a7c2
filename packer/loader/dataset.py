"""Packed datasets as memory-mapped, map-style datasets: rows by number, of a disk, object storage or an index."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.figures.charts import ShownRow, notebook_facts, row_plot
from packer.loader.cache_space import CacheSpace
from packer.loader.open_shards import ColumnViews, OpenShard, OpenShards, Row
from packer.paths import expanded
from packer.progress import silent
from packer.shards.manifest import Manifest, first_generations, keys_of
from packer.shards.reader import check_sizes, read_manifest
from packer.shards.row_format import PADDING
from packer.stores import AnyPath, RemotePath, any_path

if TYPE_CHECKING:
    from packer.loader.index_tokens import GenerationTokens
    from packer.loader.shard_cache import ShardCache
    from packer.sources.open_sources import SourceLike

_T = TypeVar("_T")

MOST_OPEN = 4096
"""Shards that a process keeps mapped. Linux allows 65,530 maps, and an open shard takes up to a megabyte of memory."""

MOST_HELD = 16
"""Shards that a process keeps in the cache of the node while it reads rows in no announced order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What `load` found, from which this or another process maps a dataset. Can be pickled."""

    path: AnyPath
    manifest: Manifest

    cache: CacheSpace
    """Where shards are kept that are in object storage, or made."""

    tokens: GenerationTokens | None
    """Tokens of an index, with which its rows are filled; None if the shards have them."""


class EpochList(list[_T]):
    """A batch as a list, with its epoch if known: row numbers from a sampler, or the rows they select."""

    epoch: int | None = None
    shards: tuple[int, ...] | None = None  # of the windows that the batch belongs to, if they are fetched ahead


class PackedDataset:
    """Memory-mapped rows of a packed dataset, which `load` opens: `len(dataset)`, `dataset[i]`.

    A row is a dict of read-only arrays that view the mapped file:

        input_ids, labels, position_ids   int32, shape (max_len,); the latter two if they were written. Tokens of rows
                                          with trees are `tree_input_ids`
        seq_lengths                       int32, shape (segments,): segment lengths in order, a padding tail last
        seq_tokens                        int32, shape (segments,): real tokens per segment, only with `--align`
        doc_ids                           int64, shape (segments,): index of the document, -1 for padding
        doc_starts                        int32, shape (segments,): offset of the segment in its document

    Kept columns are included: those with max_len numbers per row, and those with one value per segment. The latter are
    exact, and of one type in all rows: numbers and booleans are masked arrays (numpy.ma) of their type on disk, in
    which missing values are masked; dates and times are datetime64 or timedelta64, with NaT where one is missing; all
    others are Python objects, with None. A row of an index that is loaded without its source has only these and the
    segment columns.

    It is a map-style dataset for torch without importing torch. Pickling stores the path and the manifest (and the path
    of the cache for a dataset in object storage), so that each DataLoader worker maps the shards itself.
    """

    def __init__(self, opening: Opening) -> None:
        if not isinstance(opening, Opening):
            raise TypeError("packer.load(path) opens a packed dataset")
        self._opening = opening
        self.path, self.manifest = path, manifest = opening.path, opening.manifest
        self.max_len = manifest.max_len
        # For a single number, bisect on a list takes a quarter of the time of np.searchsorted.
        self._first_rows: list[int] = [0, *accumulate(self.shard_rows)]
        self._cache: ShardCache | None = None
        if isinstance(path, RemotePath):
            from packer.loader.shard_cache import ShardCache
            from packer.loader.shard_providers import DownloadedShards

            self._cache = ShardCache(
                manifest, [(key, DownloadedShards(path)) for key in keys_of(manifest)], opening.cache
            )
            self._shards = OpenShards(self._cache.open, MOST_HELD)
        else:
            self._shards = OpenShards(lambda number, _: OpenShard(path, manifest.shards[number], manifest), MOST_OPEN)
            if len(manifest.shards) > MOST_OPEN:
                check_sizes(path, manifest)
            else:
                for number in range(len(manifest.shards)):
                    self._shards.open(number)
        # Tokens of an index fill its rows, or whole shards if its source is in object storage.
        self._tokens, self._row_shards = opening.tokens, self._shards
        if opening.tokens is not None and opening.tokens.is_remote:
            from packer.loader.shard_cache import ShardCache
            from packer.loader.shard_providers import materialized_shards

            copied = replace(manifest, options=replace(manifest.options, index_only=False))
            self._cache = ShardCache(copied, materialized_shards(path, manifest, opening.tokens), opening.cache)
            self._row_shards, self._tokens = OpenShards(self._cache.open, MOST_HELD), None
        if self._cache is not None:
            weakref.finalize(self, self._cache.fetch_ahead, (), ())

    @property
    def column_names(self) -> list[str]:
        """Names of the columns in each row."""
        views = self._any_views()
        return [*self._token_dtypes(views), *views.segments, *views.others]

    @property
    def pad_id(self) -> int:
        """Token id of the padding."""
        return self.manifest.row_format.pad_id

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the shards' hashes, 16 hexadecimal digits; datasets with different rows have different ones."""
        return blake2b(self.manifest.shards.hashes.tobytes().hex().encode(), digest_size=8).hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether rows are read from whole shards in a cache, as of a dataset or a source in object storage."""
        return self._cache is not None

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows in each shard."""
        rows: list[int] = self.manifest.shards.column("rows").tolist()
        return rows

    def __len__(self) -> int:
        return self._first_rows[-1]

    def __getitem__(self, index: int) -> Row:
        found, tokens = self._stored_row(index), self._tokens
        return found if tokens is None else tokens.fill([found])[0]

    def _stored_row(self, index: int) -> Row:
        """Return a row as it is on disk; that of an index has no tokens, unless its shards are made."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard, shards = bisect_right(self._first_rows, row) - 1, self._row_shards
        return (shards.opened.get(shard) or shards.open(shard)).row(row - self._first_rows[shard])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return the rows of a batch; torch's DataLoader calls this. Without indices, return one row of padding.

        `BatchSampler` yields empty batches when the last rows of an epoch are fewer than the batches of a step.
        """
        self._row_shards.keep(getattr(indices, "shards", None))
        found = [self._stored_row(index) for index in indices]
        if self._tokens is not None:
            found = self._tokens.fill(found)
        rows = EpochList(found or [self._padding_row()])
        rows.epoch = getattr(indices, "epoch", None)
        return rows

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, rows={len(self):,}, max_len={self.max_len:,})"

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        rows = [_drawn(number, self[number]) for number in range(min(_SHOWN_ROWS, len(self)))]
        plot = row_plot(f"The first {len(rows)} rows", rows, max_len=self.max_len)
        return notebook_facts(f"PackedDataset {self.path.name}", self.manifest.facts(), plot)

    def __reduce__(self) -> tuple[Any, ...]:
        opening = self._opening
        if isinstance(opening.path, Path):  # another process may run in another folder
            opening = replace(opening, path=opening.path.absolute())
        return PackedDataset, (opening,)

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards that are read now, then upcoming ones, in the background; `BatchSampler` calls this.

        Has no effect on shards that are not read from a cache.
        """
        if self._cache is not None:
            self._cache.fetch_ahead(shards, upcoming)

    def segments(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (offsets, seq_lengths, doc_ids) of one record batch after the other, without reading tokens.

        Row i of a record batch has the segments offsets[i]:offsets[i + 1]; offsets[0] may be above 0.
        """
        for views in self._batches():
            yield np.array(views.offsets), views.segments["seq_lengths"], views.segments["doc_ids"]

    def find(self, doc_id: int) -> list[int]:
        """Return the rows that hold a document, in ascending order; every segment of the dataset is looked at."""
        found, first_row = [], 0
        for views in self._batches():
            is_wanted = views.segments["doc_ids"] == doc_id
            rows = np.searchsorted(views.offsets, np.flatnonzero(is_wanted), side="right") - 1
            found += (first_row + np.unique(rows)).tolist()
            first_row += len(views.offsets) - 1
        return found

    def _batches(self) -> Iterator[ColumnViews]:
        """Yield the columns of one record batch after the other, as they are on disk."""
        for number in range(len(self.manifest.shards)):
            shard = self._shards.open(number)
            yield from map(shard.view, range(shard.batches))

    def _any_views(self) -> ColumnViews:
        """Return the columns of some record batch, preferably of a shard that is open."""
        shards = self._row_shards
        return shards.open(next(iter(shards.opened), 0)).view(0)

    def _padding_row(self) -> Row:
        """Return a row of padding with the columns of the dataset."""
        views = self._any_views()
        token_fill = {self.manifest.row_format.input_ids: self.pad_id, "labels": NO_LOSS}
        segment_fill = {"seq_lengths": self.max_len, "doc_ids": PADDING}
        row: Row = {}
        for name, dtype in self._token_dtypes(views).items():
            row[name] = np.full(self.max_len, token_fill.get(name, 0), dtype)
        if "position_ids" in row:
            row["position_ids"] = np.arange(self.max_len, dtype=np.int32)
        for name, values in views.segments.items():
            filler = np.array([segment_fill.get(name, 0)], values.dtype)
            row[name] = np.ma.MaskedArray(filler, mask=False) if isinstance(values, np.ma.MaskedArray) else filler
        for name in views.others:
            row[name] = np.array([None])  # as padding has it on disk
        return row

    def _token_dtypes(self, views: ColumnViews) -> dict[str, np.dtype[Any]]:
        """Return the types of the columns with a value per token, in the order of a row."""
        if self._tokens is not None:
            return self._tokens.dtypes
        return {name: np.dtype((values.dtype, values.shape[2:])) for name, values in views.tokens.items()}


def load(
    path: str | AnyPath,
    *,
    verify: bool = False,
    cache_dir: str | Path | None = None,
    cache_bytes: int | str | None = None,
    source: SourceLike | Sequence[SourceLike] | None = None,
    generations: int | None = None,
) -> PackedDataset:
    """Open a packed dataset and check the structure of its shards, without reading tokens.

    Sizes, row counts and columns are checked immediately, the segments of a record batch when its first row is read. If
    there are more than 4,096 shards, only sizes are checked immediately, and at most so many shards are mapped at once.

    A dataset in object storage ("s3://bucket/dataset") is read by whole shards. They are fetched into a cache when they
    are needed, or ahead by `BatchSampler`. All processes of a node share the cache. A process hashes each shard before
    its first use; a shard in the cache that does not match the manifest is fetched again.

    Args:
        path: folder of the packed dataset, or its address in object storage (needs the extra `store`).
        verify: whether to read and hash every byte first, as `packer verify` does; of a dataset in object storage, this
            fetches every shard. DataLoader workers do not repeat it.
        cache_dir: folder for shards of a dataset or source in object storage, on a local disk; by default the one that
            the variable PACKER_SHARD_CACHE names, or `packer/shards` in the user's cache folder. Several datasets may
            share it.
        cache_bytes: bytes that the shards in it may take, as a number or as "200GB"; by default half of what the disk
            has for them. The shards that were not used for the longest time make room for new ones.
        source: for an index (`packer pack --index-only`), what was packed: a path or a `datasets` object, or a list, in
            order: of all paths of a source, and, after `packer append`, of everything that was packed and appended. Its
            files must have the same names and sizes, and all documents the same lengths, which takes a pass over the
            offsets of its lists. Rows are then those of the copied dataset; of a source in object storage, whole shards
            are made in the cache. Without it, rows of an index have no tokens.
        generations: number of generations to read: 1 for the rows of `packer pack`, 2 with those of the first `packer
            append`, and so on; by default all. The state of a `BatchSampler` fits as many as it was saved with.

    Raises:
        PackerError: the folder is not a packed dataset, is unfinished or has an unknown format version, a shard was
            changed, the cache cannot be used, or the source is not that of the index.
    """
    path = any_path(expanded(path))
    cache = CacheSpace.of(cache_dir, cache_bytes)
    try:
        if verify:
            from packer.shards.check_shards import verify_packed  # imports Numba, which loading does not need

            for fault in verify_packed(path, silent):
                raise PackerError(f"{path}: {fault}; restore it, or pack again to another folder")
        manifest = first_generations(read_manifest(path), generations)
    except OSError as error:
        raise PackerError(f"{path} cannot be read: {error.strerror or error}") from error
    tokens = None
    if source is not None:
        from packer.loader.index_tokens import GenerationTokens

        tokens = GenerationTokens.open(path, manifest, expanded(source))
    return PackedDataset(Opening(path=path, manifest=manifest, cache=cache, tokens=tokens))


_SHOWN_ROWS, _SHOWN_SEGMENTS = 5, 400  # rows in the picture of a notebook, and segments of a row drawn one by one


def _drawn(number: int, row: Row) -> ShownRow:
    extents = row["seq_lengths"][: np.count_nonzero(row["doc_ids"] >= 0)]
    shown = tuple(extents[:_SHOWN_SEGMENTS].tolist())
    return ShownRow(row=number, extents=shown, rest=int(extents[_SHOWN_SEGMENTS:].sum()))
