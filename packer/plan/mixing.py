"""A mixture of sources: how much of each, which documents, and in which order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit
from packer.errors import PackerError
from packer.plan.permute import permute, stream_key
from packer.random_purposes import MIXTURE

MixUnit = Literal["tokens", "epochs"]
_DOCUMENT_BYTES = 32  # of memory for each: its number, copy and length, and its place in the plan
MIX_UNITS: tuple[str, ...] = get_args(MixUnit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """What a mixture takes of one source."""

    copies: int
    """How often all of its documents come."""

    sample: NDArray[np.bool_]
    """Shape (documents,): those that come once more, as copy number `copies`."""

    @property
    def documents(self) -> int:
        """Documents taken, every copy counted."""
        return self.copies * len(self.sample) + int(np.count_nonzero(self.sample))

    def of(self, values: NDArray[np.int32]) -> int:
        """The sum of values, shape (documents,), over what is taken."""
        return self.copies * int(values.sum(dtype=np.int64)) + int(values[self.sample].sum(dtype=np.int64))


def mixture_targets(
    tokens: Sequence[int], weights: Sequence[float], *, unit: MixUnit, total: int | None
) -> list[Fraction]:
    """Tokens to be taken of each source; exact, so that a weight of 0.1 means a tenth.

    Example: 600 and 100 tokens with weights 0.7 and 0.3 are 233.3 and 100, as epochs 420 and 30.

    Args:
        tokens: of each source, at least 1.
        weights: of each, above 0.
        unit: whether weights are shares of the mixture's tokens, or say how often a source is seen.
        total: tokens of the mixture; None for as many as there are without repeating a source. For shares only.
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    if unit == "epochs":
        return [count * weight for count, weight in zip(tokens, exact, strict=True)]
    shares = [weight / sum(exact) for weight in exact]
    whole = min(count / share for count, share in zip(tokens, shares, strict=True)) if total is None else total
    return [share * whole for share in shares]


def take_documents(kept: NDArray[np.int32], target: Fraction, *, seed: int, source: int) -> Take:
    """Choose documents of a source that come to `target` tokens, within half a document.

    All of them as often as they fit, then a sample without replacement: the documents of a seeded permutation up to
    where the target is nearest.

    Args:
        kept: (documents,) tokens of each that reach the rows; at least 1 in all.
        target: tokens to be taken.
        seed: of the sample.
        source: number of the source in the mixture.
    """
    tokens = int(kept.sum(dtype=np.int64))
    copies = int(target // tokens)
    sample = np.zeros(len(kept), np.bool_)
    rest = round(target - copies * tokens)
    if rest:
        _sample(kept, rest, np.uint64(seed), source, sample)
    if int(kept[sample].sum(dtype=np.int64)) == tokens:
        return Take(copies=copies + 1, sample=np.zeros(len(kept), np.bool_))
    return Take(copies=copies, sample=sample)


def refuse_too_many(takes: Sequence[Take], names: Sequence[str], unit: MixUnit) -> None:
    """Refuse more documents than this machine's memory can hold the order of.

    Args:
        takes: what is taken of each source.
        names: of the sources, for messages.
        unit: what the weights are.

    Raises:
        PackerError: there are too many.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sum(take.documents for take in takes) * _DOCUMENT_BYTES <= memory:
        return
    copies, name = max((take.copies, name) for take, name in zip(takes, names, strict=True))
    raise PackerError(
        f"the mixture repeats {name} {copies:.4g} times, which is more documents than {memory / 1e9:,.0f} GB of memory "
        f"hold the order of ({_DOCUMENT_BYTES} bytes each): choose "
        + ("smaller weights" if unit == "epochs" else "fewer --mix-tokens")
    )


def interleave(
    kept: NDArray[np.int32], firsts: NDArray[np.int64], takes: Sequence[Take]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Order what is taken so that every stretch of the mixture has the shares of the whole.

    The next document is of the source of which the least has come, as a share of what is taken of it. Each source
    keeps its order, and a copy is complete before the next begins.

    Args:
        kept: tokens of the documents of all sources, one source after the other.
        firsts: (sources + 1,) source s has the documents firsts[s]..firsts[s + 1] - 1.
        takes: what is taken of each.

    Returns:
        (documents, copies) in order, as narrow as they fit: the index of a document in `kept`, and which copy it is.
    """
    count = sum(take.documents for take in takes)
    most = max(take.copies for take in takes)
    documents = np.empty(count, np.min_scalar_type(int(firsts[-1])))
    copies = np.empty(count, np.min_scalar_type(most))
    sample = np.concatenate([take.sample for take in takes])
    whole = np.array([take.copies for take in takes], np.int64)
    parts = [kept[first:last] for first, last in pairwise(firsts)]
    tokens = np.array([max(take.of(part), 1) for take, part in zip(takes, parts, strict=True)], np.float64)
    _fill_order(kept, firsts, whole, sample, tokens, documents, copies)
    return documents, copies


@jit
def _sample(kept: NDArray[Any], target: int, seed: np.uint64, source: int, out: NDArray[Any]) -> None:
    order = np.arange(len(kept))
    permute(order, 0, len(order), stream_key(seed, MIXTURE, source))
    done = 0
    for document in order:
        after = done + kept[document]
        if after >= target:
            out[document] = after - target < target - done
            return
        out[document] = True
        done = after


@jit
def _fill_order(
    kept: NDArray[Any],
    firsts: NDArray[Any],
    whole: NDArray[Any],
    sample: NDArray[Any],
    tokens: NDArray[Any],
    out_documents: NDArray[Any],
    out_copies: NDArray[Any],
) -> None:
    sources = len(whole)
    copy = np.zeros(sources, np.int64)
    following = np.empty(sources, np.int64)
    done = np.zeros(sources, np.float64)
    for source in range(sources):
        following[source] = firsts[source] - 1
        _advance(source, firsts, whole, sample, copy, following)
    for place in range(len(out_documents)):
        chosen = -1
        for source in range(sources):
            left = copy[source] <= whole[source]
            if left and (chosen < 0 or done[source] / tokens[source] < done[chosen] / tokens[chosen]):
                chosen = source
        document = following[chosen]
        out_documents[place] = document
        out_copies[place] = copy[chosen]
        done[chosen] += kept[document]
        _advance(chosen, firsts, whole, sample, copy, following)


@jit
def _advance(
    source: int,
    firsts: NDArray[Any],
    whole: NDArray[Any],
    sample: NDArray[Any],
    copy: NDArray[Any],
    following: NDArray[Any],
) -> None:
    """Go on to the next document that is taken of a source; past the last one, copy is above whole."""
    document = following[source] + 1
    while copy[source] <= whole[source]:
        if document == firsts[source + 1]:
            copy[source] += 1
            document = firsts[source]
        elif copy[source] == whole[source] and not sample[document]:
            document += 1
        else:
            break
    following[source] = document
