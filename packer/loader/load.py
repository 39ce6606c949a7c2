"""Open packed datasets: one, or several combined in given shares (`load`), or only their documents (`rows`).

An epoch of E rows takes c rows of each dataset: the next c rows of its endless order (`RowStream`). Rows are numbered
across all epochs: epoch e has the rows e * E to (e + 1) * E - 1, dataset by dataset. A row number alone therefore
identifies the row in any process. Code that ignores epochs sees the rows of the first epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.permute import COMBINED, key_of
from packer.column_names import LOSS_WEIGHTS, SOURCE, TREE_INPUT_IDS
from packer.errors import PackerError
from packer.loader.batch_sampler import BatchSampler, SamplerState
from packer.loader.dataset import PackedDataset, Segment, segments_in
from packer.loader.open_shards import Row
from packer.loader.row_order import RowStream, check_range
from packer.loader.shard_cache import CacheSpace
from packer.options.option import as_amount
from packer.shards.reader import read_manifest
from packer.stores import AnyPath
from packer.stores.paths import expanded, located, packed_path

if TYPE_CHECKING:
    from packer.sources.find_source import SourceLike


MOST_OPEN = 4096
"""Maximum number of shards that a process maps. Linux allows 65,530 maps; an open shard takes up to 1 MB of memory."""


def load(
    path: str | AnyPath | Sequence[str | AnyPath] | Mapping[Any, float],
    *,
    rows: int | None = None,
    tokens: int | str | None = None,
    seed: int | None = 0,
    cache_dir: str | Path | None = None,
    cache_bytes: int | str | None = None,
    source: SourceLike | Sequence[SourceLike] | None = None,
    after: Mapping[str, Any] | None = None,
) -> PackedDataset:
    """Open one packed dataset, or several as one. Checks the structure of the shards without reading tokens.

    Sizes, row counts and columns are checked immediately; the segments of a record batch are checked when its first row
    is read. If there are more than 4,096 shards, only sizes are checked immediately, and at most 4,096 shards are
    mapped at the same time.

    A dataset in object storage ("s3://bucket/dataset") is read by whole shards. They are fetched into a cache that all
    processes of a node share, when they are needed or ahead by `BatchSampler`. A process hashes each shard before its
    first use; a cached shard that does not match the manifest is fetched again. A dataset on the Hub ("org/name" or
    "hf://datasets/org/name@REVISION/FOLDER") is downloaded.

    Pass several datasets as a list of paths to read all their rows, or as a mapping of paths to weights, as in
    `packer.load({"web-packed-4096": 0.7, "code-packed-4096": 0.3}, tokens="10B")`. A weight is a share of the rows.
    Each epoch matches the shares to within one row. As rows are nearly full, shares of tokens are almost the same; the
    `repr` shows them exactly. In each dataset, the next epoch continues where the last one stopped. All rows of a
    dataset are therefore used equally often, to within one time. The column `source` of a row is the index of its path,
    from 0.

    Args:
        path: folder of the packed dataset, or its address in object storage (needs the extra `store`); or several.
        rows: number of rows per epoch; by default the most that repeats no row.
        tokens: approximate number of tokens per epoch, such as 10**10 or "10B"; use it instead of `rows`.
        seed: seed that selects the rows if an epoch is smaller than a dataset, 0 to 2**64 - 1; None for the order on
            disk.
        cache_dir: folder on a local disk for shards of a dataset in object storage; by default the one in the
            environment variable PACKER_SHARD_CACHE, or `packer/shards` in the user's cache folder.
        cache_bytes: maximum size of the shards in cache_dir, as a number of bytes or as "200GB"; by default half of
            the sum of the free space and the space that the cache already takes. When space is needed, the least
            recently used shards are removed.
        source: for an index (`packer pack --index-only`), the source that was packed: a path, a `datasets` object, or a
            list of paths in order. Its document lengths and file sizes must be the same. Rows then equal the rows of a
            copied dataset; without `source`, they have no tokens. Several datasets: a list with an entry or None each.
        after: state of the sampler at the end of an epoch of an earlier mixture. Each dataset continues from there; a
            new sampler counts steps and epochs from 0.

    Raises:
        PackerError: a folder is not a packed dataset, is unfinished or has an unknown format version, a shard was
            changed, the cache cannot be used, the source does not match the index, or the datasets do not fit together.
    """
    path, one = located(path), partial(_load_one, cache=CacheSpace.of(cache_dir, cache_bytes))
    joined = partial(combine, rows=rows, tokens=tokens, seed=seed, after=after)
    if not isinstance(path, Mapping | Sequence) or isinstance(path, str):
        single = one(path, source)
        return single if (rows, tokens, after) == (None, None, None) else joined([single], None)
    sources = [None] * len(path) if source is None else source
    if not isinstance(sources, Sequence) or isinstance(sources, str) or len(sources) != len(path):
        raise PackerError(f"source has to be a list with an entry for each of the {len(path)} datasets, or None")
    found = [one(*each, of=len(path)) for each in zip(path, sources, strict=True)]
    return joined(found, list(path.values()) if isinstance(path, Mapping) else None)


def _load_one(
    path: str | AnyPath,
    source: SourceLike | Sequence[SourceLike] | None,
    *,
    of: int = 1,
    cache: CacheSpace,
) -> PackedDataset:
    """Open one of `of` datasets, which share MOST_OPEN."""
    path = packed_path(path)
    try:
        manifest = read_manifest(path)
    except OSError as error:
        raise PackerError(f"{path} cannot be read: {error.strerror or error}") from error
    tokens = None
    if source is not None:
        from packer.loader.index_tokens import IndexTokens

        tokens = IndexTokens.open(path, manifest, expanded(source))
    return PackedDataset(path, manifest, cache, max(1, MOST_OPEN // of), tokens)


MOST_ROWS = 2**40
"""Maximum number of rows per epoch. Rows are numbered across all epochs, up to 2^63."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Share of a dataset in an epoch."""

    rows: int
    """Number of its rows in an epoch."""

    tokens: float
    """Its share of the tokens, over all epochs."""

    passes: float
    """Number of passes over the dataset in an epoch; 0.5 is half of its rows."""


class CombinedDataset(PackedDataset):
    """Several packed datasets as one. `packer.load` opens it from a list of paths, or a mapping of paths to weights.

    For paths and manifests, see `datasets`.
    """

    def __init__(
        self, datasets: Sequence[PackedDataset], counts: Sequence[int], seed: int | None, used: Mapping[str, Any] = {}
    ) -> None:
        self._datasets = tuple(datasets)
        self.counts = tuple(counts)
        """Number of rows of each dataset in an epoch."""
        self._seed, self._used = seed, used
        self.max_len = datasets[0].max_len
        self._ends = np.cumsum(counts)
        self._streams = [self._stream(*each) for each in zip(datasets, counts, strict=True)]
        self._first_shards = [0, *accumulate(len(dataset.shard_rows) for dataset in datasets)]
        self._first_stored = [0, *accumulate(map(len, datasets))]
        self._numbers = [np.array(number, np.int32) for number in range(len(datasets))]

    def _stream(self, dataset: PackedDataset, count: int) -> RowStream:
        """Return the order of a dataset. If an earlier mixture stopped in the middle of a pass, it is continued."""
        begin, key, _ = self._used.get(dataset.fingerprint, (0, None, ""))
        if begin % len(dataset):
            return RowStream(dataset.shard_rows, None if key is None else np.uint64(key), begin)
        # Datasets whose rows an epoch uses equally often stay in the order on disk.
        if self._seed is None or count % len(dataset) == 0:
            return RowStream(dataset.shard_rows, None, begin)
        return RowStream(dataset.shard_rows, key_of(self._seed, COMBINED, int(dataset.fingerprint, 16)), begin)

    @property
    def datasets(self) -> tuple[PackedDataset, ...]:
        """The combined datasets, in the order of their paths."""
        return self._datasets

    @property
    def shares(self) -> tuple[Share, ...]:
        """Rows, token share and passes of each dataset in an epoch."""
        counts = list(zip(self.datasets, self.counts, strict=True))
        tokens = [Fraction(dataset.tokens * count, len(dataset)) for dataset, count in counts]
        return tuple(
            Share(rows=count, tokens=float(of_dataset / sum(tokens)), passes=count / len(dataset))
            for (dataset, count), of_dataset in zip(counts, tokens, strict=True)
        )

    @property
    def column_names(self) -> list[str]:
        return [*self.datasets[0].column_names, SOURCE]

    @property
    def has_weights(self) -> bool:
        """Whether any dataset has weights in the loss; rows of the others have the weight 1."""
        return any(dataset.has_weights for dataset in self.datasets)

    @property
    def pad_id(self) -> int:
        """Token id of the padding in the first dataset."""
        return self.datasets[0].pad_id

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the datasets, their numbers of rows in an epoch and the seed, 16 hexadecimal digits."""
        parts = [(dataset.fingerprint, count) for dataset, count in zip(self.datasets, self.counts, strict=True)]
        hashed = (parts, self._seed, *sorted(self._used.items()))
        return blake2b(repr(hashed).encode(), digest_size=8).hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether rows of any dataset are read from shards in a cache."""
        return any(dataset.is_remote for dataset in self.datasets)

    @property
    def shard_rows(self) -> list[int]:
        """Number of rows in each shard of all datasets."""
        return [rows for dataset in self.datasets for rows in dataset.shard_rows]

    @property
    def tokens(self) -> int:
        """Number of real tokens in all datasets."""
        return sum(dataset.tokens for dataset in self.datasets)

    @property
    def documents_per_row(self) -> float:
        """Mean number of documents per row, over all epochs."""
        counts = zip(self.datasets, self.counts, strict=True)
        return sum(dataset.documents_per_row * count for dataset, count in counts) / len(self)

    @property
    def most_repeats(self) -> int:
        parts = zip(self.datasets, self.counts, self._streams, strict=True)
        return max(-(-count // len(one)) + (count % len(one) + each.begin % len(one) > 0) for one, count, each in parts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _row(self, index: int) -> Row:
        number = index + len(self) if index < 0 else index
        if number < 0:
            raise IndexError(f"row {index} of {len(self)}")
        return self.read([number])[0]

    def __repr__(self) -> str:
        parts = [
            f"  {str(dataset.path)!r}: {share.tokens:.2%} of the tokens, {share.rows:,} rows, "
            f"{share.passes:.1%} of its own"
            for dataset, share in zip(self.datasets, self.shares, strict=True)
        ]
        head = f"PackedDataset of {len(self.datasets)}, rows={len(self):,}, max_len={self.max_len:,}; in an epoch:"
        return "\n".join([head, *parts])

    def _repr_html_(self) -> None:
        """Return None, so that notebooks show the `repr`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return CombinedDataset, (self.datasets, self.counts, self._seed, self._used)

    def used(self, epochs: int) -> dict[str, list[Any]] | None:
        """Return the rows used so far, as in `PackedDataset`; None if a dataset occurs twice."""
        used = dict(self._used)
        for dataset, stream, count in zip(self.datasets, self._streams, self.counts, strict=True):
            key = None if stream.key is None else int(stream.key)
            used[dataset.fingerprint] = [stream.begin + epochs * count, key, str(dataset.path)]
        return used if len({each.fingerprint for each in self.datasets}) == len(self.datasets) else None

    def first_number(self, epoch: int) -> int:
        if (epoch + 1) * len(self) >= 2**63:
            raise PackerError(f"epoch is {epoch}, and rows are numbered up to 2^63: choose a smaller epoch")
        return epoch * len(self)

    def shard_ranges(self, epoch: int) -> NDArray[np.int64]:
        parts = []
        for stream, count, first in zip(self._streams, self.counts, self._first_shards, strict=False):
            parts.append(stream.shard_counts(epoch * count, (epoch + 1) * count) + np.array([first, 0]))
        shards, counts = np.concatenate(parts).T
        ends = np.cumsum(counts) + self.first_number(epoch)
        return np.stack([shards, ends - counts, ends], axis=1)

    def stored_rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the given rows among the stored rows of all datasets, in the order of `segments`."""
        sources, rows = self._located(numbers)
        return np.asarray(self._first_stored)[sources] + rows

    def read(self, indices: Sequence[int]) -> list[Row]:
        sources, stored = self._located(np.array(indices, np.int64))
        found: list[Row] = [{} for _ in indices]
        for source in np.unique(sources).tolist():
            here = np.flatnonzero(sources == source)
            rows = self.datasets[source].read(stored[here].tolist())
            for at, row in zip(here.tolist(), rows, strict=True):
                row[SOURCE] = self._numbers[source]
                found[at] = row
        return found

    def keep(self, shards: Sequence[int] | None) -> None:
        if shards is not None:
            for dataset, own in zip(self.datasets, self._by_dataset(shards), strict=True):
                dataset.keep(own)

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        parts = zip(self.datasets, self._by_dataset(shards), self._by_dataset(upcoming), strict=True)
        for dataset, now, after in parts:
            dataset.fetch_ahead(now, after)

    def segments(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (offsets, seq_lengths, doc_ids) of all stored rows, one dataset after the other."""
        for dataset in self.datasets:
            yield from dataset.segments()

    def find(self, doc_id: int) -> NoReturn:
        """Raise a PackerError, because document numbers belong to one dataset."""
        raise PackerError("document numbers belong to one dataset: ask that one, as in datasets[0].find(5)")

    def _by_dataset(self, shards: Sequence[int]) -> list[tuple[int, ...]]:
        """Divide shards by dataset; return their numbers in that dataset."""
        firsts = self._first_shards
        return [
            tuple(shard - firsts[number] for shard in shards if firsts[number] <= shard < firsts[number + 1])
            for number in range(len(self.datasets))
        ]

    def _located(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (dataset, row in that dataset) for each row number."""
        epochs, inside = np.divmod(numbers, len(self))
        sources = np.searchsorted(self._ends, inside, side="right")
        rows = np.empty(len(numbers), np.int64)
        for source in np.unique(sources).tolist():
            here, count = np.flatnonzero(sources == source), self.counts[source]
            places = epochs[here] * count + inside[here] - (self._ends[source] - count)
            rows[here] = self._streams[source].rows(places)
        return sources, rows

    def _padding_row(self) -> Row:
        return self.datasets[0]._padding_row() | {SOURCE: np.array(-1, np.int32)}


def combine(
    datasets: Sequence[PackedDataset],
    weights: Sequence[float] | None,
    *,
    rows: int | None = None,
    tokens: int | str | None = None,
    seed: int | None = 0,
    after: Mapping[str, Any] | None = None,
) -> CombinedDataset:
    """Combine datasets in shares `weights`; without weights, in proportion to their numbers of rows. See `load`."""
    if not datasets:
        raise PackerError("there is no path: name at least one packed dataset")
    for other in datasets[1:]:
        _refuse_misfits(datasets[0], other)
    for dataset in datasets:
        if SOURCE in dataset.columns:
            raise PackerError(
                f"{dataset.path} has a column {SOURCE}, where rows have the number of their dataset: pack it without "
                f"--keep {SOURCE}, or rename the column in its source"
            )
    if seed is not None:
        check_range("seed", seed)
    shares = _shares(datasets, weights)
    size = _epoch_rows(datasets, shares, rows, tokens)
    counts = apportion(shares, size)
    for dataset, count in zip(datasets, counts, strict=True):
        if count == 0:
            raise PackerError(
                f"an epoch has {size:,} rows, and none of {dataset.path}: choose more rows, a larger weight, or leave "
                "it out"
            )
    return CombinedDataset(datasets, counts, seed, {} if after is None else _used_before(datasets, after))


def _used_before(datasets: Sequence[PackedDataset], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rows that earlier mixtures used, from a state of the sampler; see `PackedDataset.used`.

    Raises a PackerError if the state is not from the end of an epoch, or a dataset was packed again since then.
    """
    used = SamplerState.from_dict(state).used
    if used is None:
        raise PackerError(
            "the state of the earlier mixture is in mid-epoch, or has a dataset twice: change mixtures at the end of "
            "an epoch, whose length you choose by rows or tokens"
        )
    try:
        paths = {path: fingerprint for fingerprint, (_, _, path) in used.items()}
    except (AttributeError, TypeError, ValueError):
        raise PackerError("the rows used in the sampler's state are damaged: load one of state_dict") from None
    for dataset in datasets:
        if dataset.fingerprint not in used and str(dataset.path) in paths:
            raise PackerError(
                f"{dataset.path} has other rows than in the earlier mixture: it was packed again since then"
            )
    return used


def apportion(shares: Sequence[Fraction], rows: int) -> list[int]:
    """Divide rows in these shares, which sum to 1. The largest remainders are rounded up.

    Example: shares 1/2, 1/3 and 1/6 of 10 rows, 5, 3.33 and 1.67 -> [5, 3, 2].
    """
    counts = [int(share * rows) for share in shares]
    remainders = [share * rows - count for share, count in zip(shares, counts, strict=True)]
    for number in sorted(range(len(counts)), key=lambda number: -remainders[number])[: rows - sum(counts)]:
        counts[number] += 1
    return counts


def _epoch_rows(
    datasets: Sequence[PackedDataset], shares: Sequence[Fraction], rows: int | None, tokens: int | str | None
) -> int:
    """Return the number of rows of an epoch: as requested, or the most that repeats no row."""
    if rows is not None and tokens is not None:
        raise PackerError(
            f"rows is {rows}, and tokens is {tokens}: an epoch has the size of one of the two, leave one out"
        )
    parts = list(zip(shares, datasets, strict=True))
    if tokens is not None:
        wanted = as_amount(tokens)
        if not isinstance(wanted, int) or wanted < 1:
            raise PackerError(f"tokens is {tokens!r}: choose a number of tokens, as in 10000000000 or 10B")
        size = round(wanted / sum(share * Fraction(one.tokens, len(one)) for share, one in parts))
        if not 1 <= size <= MOST_ROWS:
            raise PackerError(f"tokens is {tokens}: an epoch of so many has {size} rows, and needs from 1 to 2^40")
        return size
    if rows is None:
        return min(int(len(one) / share) for share, one in parts)
    if not hasattr(rows, "__index__") or not 1 <= index(rows) <= MOST_ROWS:
        raise PackerError(f"rows is {rows!r}: an epoch has a whole number of rows, from 1 to 2^40")
    return index(rows)


def _shares(datasets: Sequence[PackedDataset], weights: Sequence[float] | None) -> list[Fraction]:
    """Return each dataset's share of the rows."""
    found = []
    for dataset, weight in zip(datasets, weights or map(len, datasets), strict=True):
        try:
            found.append(Fraction(str(weight)))  # as a decimal: the float 0.7 is not exactly 7/10
        except ValueError:
            found.append(Fraction(0))
        if found[-1] <= 0:
            raise PackerError(f"the weight of {dataset.path} is {weight!r}: choose a number above 0, or leave it out")
    return [share / sum(found) for share in found]


def _refuse_misfits(first: PackedDataset, other: PackedDataset) -> None:
    """Raise a PackerError if rows of two datasets cannot be in one batch."""
    facts: dict[str, Callable[[PackedDataset], object]] = {
        "max_len": lambda dataset: dataset.max_len,
        "segments aligned to": lambda dataset: dataset.manifest.options.align,
        "rows with": lambda dataset: "trees" if TREE_INPUT_IDS in dataset.columns else "no trees",
        "a tokenizer with hash": lambda dataset: text.tokenizer if (text := dataset.manifest.source.text) else None,
        "columns": lambda dataset: ", ".join(sorted(dataset.columns - {LOSS_WEIGHTS})),
        "columns of the types": lambda dataset: ", ".join(
            f"{name} {kind}" for name, kind in sorted(dataset.types.items()) if name != LOSS_WEIGHTS
        ),
    }
    for name, fact in facts.items():
        one, two = fact(first), fact(other)
        if one != two and None not in (one, two):
            raise PackerError(
                f"{first.path} has {name} {one}, and {other.path} {two}: combine datasets that were packed alike"
            )


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
