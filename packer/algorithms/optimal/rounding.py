"""Whole packs from the fractions of a linear program: rounded patterns filled in turn, and the rest packed anew."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.best_fit import best_fit_decreasing
from packer.algorithms.exact_fill import Filled, add_packs, exact_fill, longest_left, often
from packer.algorithms.jit import jit
from packer.algorithms.open_packs import new_links, to_patterns
from packer.algorithms.patterns import Patterns

GOLDEN = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, spread evenly: the offsets of the roundings."""


def heuristic(histogram: NDArray[np.int64], max_segments: int | None) -> Patterns:
    """The better of best fit and exact fill."""
    best_fit = best_fit_decreasing(histogram, max_segments)
    filled = exact_fill(histogram, max_segments)
    return filled if filled.packs < best_fit.packs else best_fit


def round_packs(
    histogram: NDArray[np.int64],
    max_segments: int | None,
    *,
    templates: Patterns,
    packs: NDArray[np.float64],
    attempt: int,
) -> Patterns:
    """Pack the histogram with `packs[i]` packs, more or less, like template i, and the rest by a heuristic.

    Attempt 0 rounds down and attempt 1 to the nearest. The others round each count such that the running sum is
    right: 0.4, 0.4, 0.4 with an offset of 0.5 become 0, 1, 0; every attempt has an offset of its own.
    """
    if attempt < 2:
        counts = np.floor(packs + (1e-6, 0.5)[attempt]).astype(np.int64)
    else:
        sums = np.floor(np.cumsum(packs) + attempt * GOLDEN % 1.0).astype(np.int64)
        counts = np.diff(sums, prepend=0)
    groups, links, left = _fill(histogram, templates.offsets, templates.extents.astype(np.int64), counts)
    rest = heuristic(left, max_segments)
    return joined(to_patterns(groups, links), rest)


def joined(first: Patterns, second: Patterns) -> Patterns:
    """The patterns of both."""
    return Patterns(
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        extents=np.concatenate([first.extents, second.extents]),
        counts=np.concatenate([first.counts, second.counts]),
    )


@jit
def _fill(
    histogram: NDArray[np.int64], offsets: NDArray[np.int64], extents: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Fill packs after templates; the groups (groups, 4), the links (links, 3) and the histogram of what is left.

    Each place takes the longest segment left that fits it. Where [5, 3] wants 4 packs, but 3 of length 5 and 2
    of length 3 are left, and some of 2, there are two packs [5, 3], one of [5, 2] and one of [2].
    """
    capacity = len(histogram) - 1
    left = histogram.copy()
    below = np.arange(capacity + 1)
    found = np.zeros(capacity, np.int64)
    filled = Filled(np.zeros((64, 4), np.int64), 1, new_links())
    for template in range(len(counts)):
        wanted = counts[template]
        while wanted > 0:
            size = 0
            repeat = 0
            for place in range(offsets[template], offsets[template + 1]):
                length = longest_left(below, left, extents[place])
                if length > 0 and size > 0 and length >= found[size - 1]:
                    # no longer than the one before, and only as often as there are segments
                    length = found[size - 1]
                    if left[length] == repeat:
                        length = longest_left(below, left, length - 1)
                if length == 0:
                    break
                repeat = repeat + 1 if size > 0 and length == found[size - 1] else 1
                found[size] = length
                size += 1
            if size == 0:
                break
            packs = min(wanted, often(left, found, size))
            filled = add_packs(filled, found, size, packs, left)
            wanted -= packs
    return filled.groups[: filled.used], filled.links.rows[: filled.links.used], left
