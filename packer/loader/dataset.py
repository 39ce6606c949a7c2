"""Packed datasets as map-style datasets: memory-mapped rows by number, from a disk, object storage or an index."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from packer.column_names import LOSS_WEIGHTS, NO_LOSS, PADDING, SOURCE
from packer.errors import PackerError
from packer.loader.open_shards import ColumnViews, OpenShard, OpenShards, Row
from packer.loader.row_order import whole_shards
from packer.loader.shard_cache import CacheSpace, ShardCache
from packer.shards.manifest import Manifest
from packer.shards.reader import check_sizes, read_types, types_of
from packer.stores import AnyPath, RemotePath

if TYPE_CHECKING:
    from packer.loader.index_tokens import IndexTokens

_T = TypeVar("_T")

MOST_HELD = 16
"""Maximum number of shards that a process keeps in the node's cache while it reads rows in an unknown order."""


class Segment(NamedTuple):
    """A document, or a part of one, in a row."""

    doc_id: int
    """Index of the document in its source."""

    start: int
    """First token of the segment in the document."""

    length: int
    """Number of tokens."""


class SourceSegment(NamedTuple):
    """A segment in a row of several datasets: a `Segment` with the number of its dataset."""

    doc_id: int
    start: int
    length: int
    source: int
    """Number of the dataset."""


class EpochList(list[_T]):
    """A batch as a list: row numbers from a sampler, or the rows themselves. It also holds the epoch, if known."""

    epoch: int | None = None
    shards: tuple[int, ...] | None = None  # shards of the batch's windows, if they are fetched ahead


class PackedDataset:
    """Memory-mapped rows of a packed dataset: `len(dataset)`, `dataset[i]`, `dataset[:4]`. `load` opens it.

    A row is a dict of read-only arrays that view the mapped file:

        input_ids, labels, position_ids   int32, shape (max_len,); labels and positions only if they were written. In
                                          rows with trees, the tokens are in `tree_input_ids`
        seq_lengths                       int32, shape (segments,): segment lengths in order, a padding tail last
        seq_tokens                        int32, shape (segments,): real tokens per segment, only with `--align`
        doc_ids                           int64, shape (segments,): index of the document, -1 for padding
        doc_starts                        int32, shape (segments,): offset of the segment in its document

    Kept columns are included, with max_len values per row or one value per segment. Values per segment are exact, and
    have the same type in all rows. Numbers and booleans are masked arrays (numpy.ma) of their type on disk, in which
    missing values are masked. Dates and times are datetime64 or timedelta64, with NaT for missing values. Everything
    else is a Python object, with None for missing values. If an index is loaded without its source, its rows have only
    these and the segment columns.

    It is a map-style dataset for torch without importing torch. Pickling stores the path, the manifest and, for a
    dataset in object storage, the path of the cache; each DataLoader worker maps the shards itself.
    """

    def __init__(
        self,
        path: AnyPath,
        manifest: Manifest | None = None,
        cache: CacheSpace | None = None,  # for shards in object storage
        most_open: int = 1,  # maximum number of shards that are mapped at the same time
        tokens: IndexTokens | None = None,  # for the rows of an index
    ) -> None:
        if manifest is None:
            raise TypeError("packer.load(path) opens a packed dataset")
        self.path, self.manifest, self.max_len = path, manifest, manifest.max_len
        self._space, self._most_open, self._tokens = cache, most_open, tokens
        # For a single number, bisect on a list takes a quarter of the time of np.searchsorted.
        self._first_rows: list[int] = [0, *accumulate(self.shard_rows)]
        self._cache: ShardCache | None = None
        if isinstance(path, RemotePath):
            assert cache is not None
            self._cache = ShardCache(path, manifest, cache)
            self._shards = OpenShards(self._cache.open, MOST_HELD)
            weakref.finalize(self, self._cache.fetch_ahead, (), ())
        else:
            self._shards = OpenShards(lambda number, _: OpenShard(path, manifest.shards[number], manifest), most_open)
            if len(manifest.shards) > most_open:
                check_sizes(path, manifest)
            else:
                for number in range(len(manifest.shards)):
                    self._shards.open(number)

    @property
    def datasets(self) -> tuple[PackedDataset, ...]:
        """Datasets whose rows these are, in the order of a row's column `source`: this one, or several combined."""
        return (self,)

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
        """Hash of the shards' hashes, 16 hexadecimal digits; it differs between datasets with different rows."""
        return blake2b("".join(self.manifest.shards.hashes).encode(), digest_size=8).hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether rows are read from shards in a cache, because the dataset is in object storage."""
        return self._cache is not None

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows in each shard."""
        rows: list[int] = self.manifest.shards.column("rows").tolist()
        return rows

    @property
    def columns(self) -> set[str]:
        """Names of the columns that the manifest lists."""
        options, row_format = self.manifest.options, self.manifest.row_format
        of_tokens = {*row_format.token_columns, *options.kept_tokens}
        if options.index_only and self._tokens is None:
            of_tokens = set()
        return {*of_tokens, *row_format.segment_columns, *options.kept}

    @property
    def has_weights(self) -> bool:
        """Whether documents or tokens have weights in the loss other than 0 and 1, which batches can return."""
        return LOSS_WEIGHTS in self.columns

    @property
    def types(self) -> dict[str, str]:
        """Types of the columns that the manifest lists."""
        if self._tokens is None:
            types = read_types(self.path, self.manifest.shards[0])
        else:
            types = types_of(self._tokens.row_format.schema)
        return {name: kind for name, kind in types.items() if name in self.columns}

    @property
    def tokens(self) -> int:
        """Number of real tokens in all rows."""
        return int(self.manifest.shards.column("tokens").sum())

    @property
    def documents_per_row(self) -> float:
        """Mean number of documents per row; a split document counts once."""
        return self.manifest.totals.documents_packed / len(self)

    @property
    def most_repeats(self) -> int:
        """Maximum number of times a row occurs in an epoch."""
        return 1

    def __len__(self) -> int:
        return self._first_rows[-1]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[Row]: ...
    def __getitem__(self, index: Any) -> Row | list[Row]:
        """Return a row, or a list of rows for a slice or several numbers; negative numbers count from the end."""
        if isinstance(index, int | np.integer):
            return self._row(int(index))
        return [self._row(number) for number in self._several(index)]

    def _row(self, index: int) -> Row:
        found, tokens = self._stored_row(index), self._tokens
        return found if tokens is None else tokens.fill([found])[0]

    def _several(self, index: Any) -> Sequence[int]:
        """Return the row numbers that a slice, a list or an array selects."""
        if isinstance(index, slice):
            return range(*index.indices(len(self)))
        if isinstance(index, str):
            raise PackerError(f"a dataset has rows, which have columns: dataset[0][{index!r}] is one of the first row")
        numbers = np.asarray(index)
        if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
            raise PackerError(f"rows are chosen by a number, a slice or a list of numbers, not by {index!r}")
        found: list[int] = numbers.tolist()
        return found

    def _stored_row(self, index: int) -> Row:
        """Return a row as stored in its shard; rows of an index have no tokens yet."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard, shards = bisect_right(self._first_rows, row) - 1, self._shards
        return (shards.opened.get(shard) or shards.open(shard)).row(row - self._first_rows[shard])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return the rows of a batch; torch's DataLoader calls this. For an empty batch, return one row of padding.

        `BatchSampler` yields empty batches if the last rows of an epoch are fewer than the batches of a step.
        """
        self.keep(getattr(indices, "shards", None))
        rows = EpochList(self.read(indices) or [self._padding_row()])
        rows.epoch = getattr(indices, "epoch", None)
        return rows

    def read(self, indices: Sequence[int]) -> list[Row]:
        """Return the rows with the given numbers."""
        found = [self._stored_row(index) for index in indices]
        return self._tokens.fill(found) if self._tokens is not None and found else found

    def keep(self, shards: Sequence[int] | None) -> None:
        """Keep these shards open, and close all others; with None, do nothing."""
        self._shards.keep(shards)

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, rows={len(self):,}, max_len={self.max_len:,})"

    def _repr_html_(self) -> str | None:
        return self.manifest.as_html(f"PackedDataset {self.path.name}")

    def __reduce__(self) -> tuple[Any, ...]:
        path = self.path
        if isinstance(path, Path):  # a process that unpickles it may run in another folder
            path = path.absolute()
        return PackedDataset, (path, self.manifest, self._space, self._most_open, self._tokens)

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch `shards`, which are needed now, then `upcoming` shards in the background. `BatchSampler` calls this.

        Has no effect on local datasets, which have no cache.
        """
        if self._cache is not None:
            self._cache.fetch_ahead(shards, upcoming)

    # Rows of an epoch, for `BatchSampler`. They differ between epochs only in a combined dataset.

    def first_number(self, epoch: int) -> int:
        """Return the number of the first row of an epoch."""
        return 0

    def used(self, epochs: int) -> dict[str, list[Any]] | None:
        """Return [rows used after some epochs, key of their order, path] of each dataset so far, by fingerprint."""
        return {self.fingerprint: [epochs * len(self), None, str(self.path)]}

    def stored_rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the given rows among all stored rows, in the order of `segments`."""
        return numbers

    def shard_ranges(self, epoch: int) -> NDArray[np.int64]:
        """Return (shard, number of its first row, number after its last row) for the shards of an epoch."""
        return whole_shards(self.shard_rows)

    def segments(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (offsets, seq_lengths, doc_ids) of each record batch in order, without reading tokens.

        Row i of a record batch has the segments offsets[i]:offsets[i + 1]; offsets[0] may be above 0.
        """
        for views in self._batches():
            yield np.array(views.offsets), views.segments["seq_lengths"], views.segments["doc_ids"]

    def find(self, doc_id: int) -> list[int]:
        """Return the rows that hold a document, in ascending order. Reads all segments of the dataset."""
        found, first_row = [], 0
        for views in self._batches():
            is_wanted = views.segments["doc_ids"] == doc_id
            rows = np.searchsorted(views.offsets, np.flatnonzero(is_wanted), side="right") - 1
            found += (first_row + np.unique(rows)).tolist()
            first_row += len(views.offsets) - 1
        return found

    def _batches(self) -> Iterator[ColumnViews]:
        """Yield the columns of each record batch in order, as stored on disk."""
        for number in range(len(self.manifest.shards)):
            shard = self._shards.open(number)
            yield from map(shard.view, range(shard.batches))

    def _any_views(self) -> ColumnViews:
        """Return the columns of any record batch, preferably of a shard that is open."""
        shards = self._shards
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
            row[name] = np.array([None])  # padding is null on disk as well
        return row

    def _token_dtypes(self, views: ColumnViews) -> dict[str, np.dtype[Any]]:
        """Return the types of the columns with one value per token, in the order of a row."""
        if self._tokens is not None:
            return self._tokens.dtypes
        return {name: np.dtype((values.dtype, values.shape[2:])) for name, values in views.tokens.items()}


def segments_in(row: Row) -> list[Segment]:
    """Return the segments of a row, without padding; of several datasets, each is a `SourceSegment`."""
    ids = row["doc_ids"].tolist()
    count = len(ids) - (ids[-1] == PADDING)
    lengths = row.get("seq_tokens", row["seq_lengths"])[:count].tolist()
    starts = row["doc_starts"][:count].tolist()
    if SOURCE not in row:
        return list(map(Segment, ids[:count], starts, lengths))
    with_source = map(SourceSegment, ids[:count], starts, lengths, [int(row[SOURCE])] * count)
    return cast("list[Segment]", list(with_source))
