"""Decide how much a mixture takes of each source, which documents, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.errors import PackerError
from packer.options.choices import MixUnit
from packer.plan.permute import hashes_of

_DOCUMENT_BYTES = 32  # memory per document to order a mixture: its length, twice, its position, and the plan
_MOST_DOCUMENTS = 2**53

BLOCK = 1 << 10
"""Documents per count of sampled ones. Finding one hashes the documents of its block."""

_BUCKET_BITS = 12
_BUCKET_SHIFT = np.uint64(64 - _BUCKET_BITS)
_CHUNK = 1 << 18  # documents hashed together


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """Documents that a mixture takes of one source: all of them `copies` times, and a sample of them once more.

    They are numbered copy by copy, then the sample, each in the order of the source: of documents a, b and c with 2
    copies and the sample {b, c}, the numbers 0 to 7 are a, b, c, a, b, c, b, c.

    The sample has the documents whose hash is below a threshold. The hash maps documents one to one to 64 bits, so no
    two hashes are equal, and taking documents in ascending order of their hash is drawing without replacement. It
    depends only on a key and the document, so that any worker can compute whether a document is sampled. Only one count
    per BLOCK documents is stored.
    """

    population: int
    """Number of documents of the source."""

    copies: int
    """Number of times that all documents are taken."""

    key: np.uint64
    """Key of the hash; see `packer.plan.permute.key_of`."""

    threshold: np.uint64
    """Threshold below which the hashes of the sample are; 0 for an empty one."""

    before: NDArray[np.int64]
    """Shape (blocks + 1,): sampled documents before each block of BLOCK documents, then the number of all."""

    @classmethod
    def of(cls, population: int, copies: int, key: np.uint64, threshold: np.uint64) -> Take:
        """Take documents; counts those of the sample in every block in one pass, unless it is empty."""
        before = np.zeros(-(-population // BLOCK) + 1, np.int64)
        for first in range(0, population if threshold else 0, _CHUNK):
            hashes = hashes_of(key, np.arange(first, min(first + _CHUNK, population)))
            sampled = np.add.reduceat(hashes < threshold, np.arange(0, len(hashes), BLOCK), dtype=np.int64)
            before[first // BLOCK + 1 :][: len(sampled)] = sampled
        np.cumsum(before, out=before)
        return cls(population=population, copies=copies, key=key, threshold=threshold, before=before)

    @classmethod
    def whole(cls, documents: int) -> Take:
        """Take every document of a source once."""
        return cls.of(documents, 1, np.uint64(0), np.uint64(0))

    @property
    def sampled(self) -> int:
        """Number of documents in the sample."""
        return int(self.before[-1])

    @property
    def documents(self) -> int:
        """Number of documents taken, with every copy counted."""
        return self.copies * self.population + self.sampled

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (documents of the source, copies) of taken documents by number."""
        copies, documents = np.divmod(numbers, self.population)
        is_sampled = copies == self.copies
        if is_sampled.any():
            documents[is_sampled] = self._at_ranks(documents[is_sampled])
        return documents, copies

    def numbers(
        self, documents: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers of documents of the source and their copies, and whether each of them is taken.

        This reverses `locate`. Documents and copies are at least 0.
        """
        is_taken = (documents < self.population) & (copies <= self.copies)
        numbers = copies * self.population + documents
        last = np.flatnonzero(is_taken & (copies == self.copies))
        ranks, is_sampled = self.ranks(documents[last])
        numbers[last] = self.copies * self.population + ranks
        is_taken[last] = is_sampled
        return numbers, is_taken

    def times(self, first: int, last: int) -> NDArray[np.int64]:
        """Return how often each of the documents first..last - 1 of the source is taken: shape (last - first,)."""
        return self.copies + self.is_sampled(first, last).astype(np.int64)

    def is_sampled(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return which of the documents first..last - 1 are in the sample: bool, shape (last - first,)."""
        is_sampled = np.zeros(last - first, np.bool_)
        for start in range(0, len(is_sampled) if self.sampled else 0, _CHUNK):
            part = is_sampled[start : start + _CHUNK]
            part[:] = hashes_of(self.key, first + start + np.arange(len(part))) < self.threshold
        return is_sampled

    def ranks(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (sampled documents below each document, whether it is sampled), for documents in any order.

        With the sample 3, 7 and 8, the result for 7 is (1, True), and for 5 (1, False).
        """
        ranks, is_found = np.zeros(len(documents), np.int64), np.zeros(len(documents), np.bool_)
        if not self.sampled:
            return ranks, is_found
        blocks, places = np.divmod(documents, BLOCK)
        for here, rows, is_sampled in self._blocks_with(blocks):
            is_found[here] = is_sampled[rows, places[here]]
            upto = np.cumsum(is_sampled, axis=1)[rows, places[here]]
            ranks[here] = self.before[blocks[here]] + upto - is_found[here]
        return ranks, is_found

    def _at_ranks(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sampled documents by rank, ranks in any order: of the sample 3, 7 and 8, ranks [2, 0] are [8, 3]."""
        found = np.empty(len(ranks), np.int64)
        blocks = np.searchsorted(self.before, ranks, side="right") - 1
        for here, rows, is_sampled in self._blocks_with(blocks):
            counts = is_sampled.sum(axis=1)
            in_block = ranks[here] - self.before[blocks[here]]
            places = np.flatnonzero(is_sampled)[(np.cumsum(counts) - counts)[rows] + in_block]
            found[here] = blocks[here] * BLOCK + places % BLOCK
        return found

    def _blocks_with(
        self, blocks: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
        """Hash some blocks, each once and a few together.

        Yields (indices of `blocks`, row of each in the third, which documents of each block are sampled); the third is
        of shape (blocks hashed together, BLOCK).
        """
        order = np.argsort(blocks, kind="stable")
        ascending = blocks[order]
        rows = np.cumsum(np.diff(ascending, prepend=-1) > 0) - 1
        for first in range(0, int(rows[-1]) + 1 if len(rows) else 0, _CHUNK // BLOCK):
            begin, end = np.searchsorted(rows, [first, first + _CHUNK // BLOCK])
            hashed = np.unique(ascending[begin:end])
            hashes = hashes_of(self.key, hashed[:, None] * BLOCK + np.arange(BLOCK))
            yield order[begin:end], rows[begin:end] - first, hashes < self.threshold


def mixture_targets(
    tokens: Sequence[int], weights: Sequence[float], *, unit: MixUnit, total: int | None
) -> list[Fraction]:
    """Return the tokens to take of each source, as fractions, so that a weight of 0.1 is exactly a tenth.

    Weights are shares of the tokens of the mixture, or numbers of epochs of each source. `total` is the tokens of
    the mixture; None for as many as possible without repeating a source. Of 600 and 100 tokens, weights 0.7 and 0.3
    take 233.3 and 100; as epochs, 420 and 30.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    if unit == "epochs":
        return [count * weight for count, weight in zip(tokens, exact, strict=True)]
    shares = [weight / sum(exact) for weight in exact]
    whole = min(count / share for count, share in zip(tokens, shares, strict=True)) if total is None else total
    return [share * whole for share in shares]


def take_documents(
    counter: WeightCounter, target: Fraction, kept_of: Callable[[NDArray[np.int64]], NDArray[np.int32]]
) -> tuple[Take, int]:
    """Choose documents of a source with `target` tokens, within half a document; return them and their tokens.

    All documents are taken as often as they fit, then a random sample without replacement: documents in the order
    of their hash, up to the number of tokens nearest to the target. Only tokens that reach the rows count;
    `kept_of` returns those of ascending documents, and `counter` has counted those of all.
    """
    copies = int(target // counter.total)
    rest = round(target - copies * counter.total)
    threshold, tokens = counter.nearest(rest, kept_of) if rest else (np.uint64(0), 0)
    if tokens == counter.total:
        copies, threshold, tokens = copies + 1, np.uint64(0), 0
    return Take.of(counter.population, copies, counter.key, threshold), copies * counter.total + tokens


def refuse_too_many(takes: Sequence[Take], names: Sequence[str], unit: MixUnit, *, in_order: bool = False) -> None:
    """Raise a PackerError for a mixture of more documents than can be numbered, or than fit into memory `in_order`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = memory // _DOCUMENT_BYTES if in_order else _MOST_DOCUMENTS
    documents = sum(take.documents for take in takes)
    if documents <= most:
        return
    copies, name = max((take.copies, name) for take, name in zip(takes, names, strict=True))
    limit = f"{memory / 1e9:,.0f} GB of memory can put in order ({_DOCUMENT_BYTES} bytes each)"
    raise PackerError(
        f"the mixture has {documents:.4g} documents, as it repeats {name} {copies:.4g} times: more than "
        + (limit if in_order else f"the limit of {_MOST_DOCUMENTS:,}")
        + f"; choose {'smaller weights' if unit == 'epochs' else 'fewer --mix-tokens'}"
    )


def interleave(kept: NDArray[np.int32], firsts: NDArray[np.int64]) -> NDArray[Any]:
    """Order the documents of a mixture so that every stretch has the shares of the whole.

    The next document comes from the source of which the smallest share has come so far. Documents of a source keep
    their order, so that a copy is complete before the next begins.

    `kept` has the tokens that reach the rows of all documents taken; source s has the documents firsts[s]..firsts[s
    + 1] - 1. Returns indices of `kept`: shape (documents,), of the narrowest unsigned type.
    """
    order = np.empty(len(kept), np.min_scalar_type(len(kept)))
    tokens = [max(int(kept[first:last].sum(dtype=np.int64)), 1) for first, last in pairwise(firsts)]
    _fill_order(kept, firsts, np.array(tokens, np.float64), order)
    return order


@jit
def _fill_order(
    kept: NDArray[np.int32], firsts: NDArray[np.int64], tokens: NDArray[np.float64], out: NDArray[Any]
) -> None:
    sources = len(tokens)
    following = firsts[:-1].copy()
    done = np.zeros(sources, np.float64)
    for place in range(len(out)):
        chosen = -1
        for source in range(sources):
            is_left = following[source] < firsts[source + 1]
            if is_left and (chosen < 0 or done[source] / tokens[source] < done[chosen] / tokens[chosen]):
                chosen = source
        out[place] = following[chosen]
        done[chosen] += kept[following[chosen]]
        following[chosen] += 1


class WeightCounter:
    """Adds up the weights of numbers by the highest bits of their hash, to find a sample of any total weight."""

    def __init__(self, key: np.uint64) -> None:
        self.key = key
        self.population = 0
        """Number of numbers that have been added."""
        self._buckets = np.zeros(1 << _BUCKET_BITS, np.int64)

    @property
    def total(self) -> int:
        """Sum of all weights."""
        return int(self._buckets.sum())

    def add(self, weights: NDArray[np.int32]) -> None:
        """Add the next numbers; their weights are at least 0: int32, shape (numbers,)."""
        for first in range(0, len(weights), _CHUNK):
            part = weights[first : first + _CHUNK]
            hashes = hashes_of(self.key, self.population + first + np.arange(len(part)))
            # sums of a part are below 2**53, and exact
            buckets = (hashes >> _BUCKET_SHIFT).astype(np.int64)
            self._buckets += np.bincount(buckets, part, len(self._buckets)).astype(np.int64)
        self.population += len(weights)

    def nearest(
        self, target: int, weights_of: Callable[[NDArray[np.int64]], NDArray[np.int32]]
    ) -> tuple[np.uint64, int]:
        """Find the threshold of the sample whose weight is nearest to a target from 1 to `total`, and this weight.

        If two are as near, it is the smaller one. Only the numbers of one bucket, about one in 4,096, are
        weighed again, by `weights_of`, which takes ascending numbers.
        """
        after = np.cumsum(self._buckets)
        bucket = int(np.searchsorted(after, target))
        numbers = self._numbers_in(bucket)
        hashes = hashes_of(self.key, numbers)
        order = np.argsort(hashes)
        weights = weights_of(numbers).astype(np.int64)[order]
        sums = after[bucket] - self._buckets[bucket] + np.cumsum(weights)
        last = int(np.searchsorted(sums, target))
        with_last = int(sums[last])
        without = with_last - int(weights[last])
        is_nearer = with_last - target < target - without
        # Adding 1 overflows only if the sample is the whole population, which is taken as a copy instead.
        threshold = hashes[order[last]] + np.uint64(1) if is_nearer else hashes[order[last]]
        return np.uint64(threshold), with_last if is_nearer else without

    def _numbers_in(self, bucket: int) -> NDArray[np.int64]:
        """Return the numbers whose hash falls into a bucket, ascending: int64."""
        found = []
        for first in range(0, self.population, _CHUNK):
            hashes = hashes_of(self.key, np.arange(first, min(first + _CHUNK, self.population)))
            found.append(first + np.flatnonzero(hashes >> _BUCKET_SHIFT == np.uint64(bucket)))
        return np.concatenate([np.zeros(0, np.int64), *found])
