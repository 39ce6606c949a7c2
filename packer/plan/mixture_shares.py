"""Decide how much a mixture takes of each source, which documents, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.errors import PackerError
from packer.options.choices import MixUnit
from packer.plan.hash_sample import HashSample, WeightCounter

_DOCUMENT_BYTES = 32  # memory per document to order a mixture: its length, twice, its position, and the plan
_MOST_DOCUMENTS = 2**53


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """Documents that a mixture takes of one source: all of them `copies` times, and a sample of them once more.

    They are numbered copy by copy, then the sample, each in the order of the source: of documents a, b and c with 2
    copies and the sample {b, c}, the numbers 0 to 7 are a, b, c, a, b, c, b, c.
    """

    copies: int
    """Number of times that all documents are taken."""

    sample: HashSample
    """Documents that are taken once more, as copy number `copies`; not all of them."""

    @classmethod
    def whole(cls, documents: int) -> Take:
        """Take every document of a source once."""
        none = HashSample(population=documents, key=np.uint64(0), threshold=np.uint64(0), before=np.zeros(1, np.int64))
        return cls(copies=1, sample=none)

    @property
    def documents(self) -> int:
        """Number of documents taken, with every copy counted."""
        return self.copies * self.sample.population + len(self.sample)

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (documents of the source, copies) of taken documents by number."""
        copies, documents = np.divmod(numbers, self.sample.population)
        is_sampled = copies == self.copies
        if is_sampled.any():
            documents[is_sampled] = self.sample.members(documents[is_sampled])
        return documents, copies

    def numbers(
        self, documents: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the numbers of documents of the source and their copies, and whether each of them is taken.

        This reverses `locate`. Documents and copies are at least 0.
        """
        population = self.sample.population
        is_taken = (documents < population) & (copies <= self.copies)
        numbers = copies * population + documents
        last = np.flatnonzero(is_taken & (copies == self.copies))
        ranks, is_sampled = self.sample.ranks(documents[last])
        numbers[last] = self.copies * population + ranks
        is_taken[last] = is_sampled
        return numbers, is_taken

    def times(self, first: int, last: int) -> NDArray[np.int64]:
        """Return how often each of the documents first..last - 1 of the source is taken: shape (last - first,)."""
        return self.copies + self.sample.contains(first, last).astype(np.int64)


def mixture_targets(
    tokens: Sequence[int], weights: Sequence[float], *, unit: MixUnit, total: int | None
) -> list[Fraction]:
    """Return the tokens to take of each source, as fractions, so that a weight of 0.1 is exactly a tenth.

    Example: of 600 and 100 tokens, weights 0.7 and 0.3 take 233.3 and 100; as epochs, 420 and 30.

    Args:
        tokens: tokens of each source, at least 1.
        weights: weight of each source, above 0.
        unit: whether weights are shares of the tokens of the mixture, or numbers of epochs of each source.
        total: tokens of the mixture; None for as many as possible without repeating a source. For shares only.
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
    """Choose documents of a source with `target` tokens, within half a document.

    All documents are taken as often as they fit, then a random sample without replacement: documents in the order of
    their hash, up to the number of tokens nearest to the target.

    Args:
        counter: counter of the tokens that reach the rows, for all documents; at least 1 token.
        target: tokens to take.
        kept_of: function that returns the tokens of ascending documents that reach the rows.

    Returns:
        The documents, and their tokens that reach the rows.
    """
    copies = int(target // counter.total)
    rest = round(target - copies * counter.total)
    threshold, tokens = counter.nearest(rest, kept_of) if rest else (np.uint64(0), 0)
    if tokens == counter.total:
        copies, threshold, tokens = copies + 1, np.uint64(0), 0
    sample = HashSample.of(counter.population, counter.key, threshold)
    return Take(copies=copies, sample=sample), copies * counter.total + tokens


def refuse_too_many(takes: Sequence[Take], names: Sequence[str], unit: MixUnit, *, in_order: bool = False) -> None:
    """Refuse a mixture of more documents than can be numbered, or than the memory of this machine can hold in order.

    Args:
        takes: documents taken of each source.
        names: names of the sources, for messages.
        unit: unit of the weights, for messages.
        in_order: whether the order of the documents is held in memory.

    Raises:
        PackerError: there are too many documents.
    """
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

    Args:
        kept: (documents,) tokens that reach the rows, of all documents taken, one source after the other.
        firsts: (sources + 1,) source s has the documents firsts[s]..firsts[s + 1] - 1.

    Returns:
        Documents in order, by their index in `kept`: shape (documents,), of the narrowest unsigned type.
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
