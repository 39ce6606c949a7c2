"""Packs from whole numbers of strategies, which hold exactly the segments of the histogram."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit, jit_helper
from packer.algorithms.open_packs import (
    CHAIN,
    COUNT,
    NONE,
    SEGMENTS,
    Links,
    OpenPacks,
    add_segments,
    best_fit,
    new_links,
    no_packs,
    push,
    to_patterns,
)
from packer.algorithms.patterns import Patterns


def fill(
    histogram: NDArray[np.int64],
    limit: int,
    *,
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> Patterns:
    """Pack `counts[k]` times the strategy lengths[offsets[k]:offsets[k + 1]], and whatever is then left by best fit.

    If the strategies need more segments of a length than there are, the last packs go without: their places may take
    shorter segments, and otherwise stay padding. Empty packs are left out. Lengths ascend in a strategy.
    """
    packs = _open_packs(histogram, len(counts))
    used, links = _fill(histogram, limit, offsets, lengths, counts, packs, new_links())
    patterns = to_patterns(packs.groups[:used], links.rows[: links.used])
    owners = np.repeat(np.arange(len(patterns.counts)), np.diff(patterns.offsets))
    order = np.lexsort((-patterns.extents, owners))
    return Patterns(offsets=patterns.offsets, extents=patterns.extents[order], counts=patterns.counts)


@jit
def _fill(
    histogram: NDArray[np.int64],
    limit: int,
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    counts: NDArray[np.int64],
    out: OpenPacks,
    out_links: Links,
) -> tuple[int, Links]:
    """Return the groups in use, first those of the strategies, then those of best fit, and the links."""
    capacity = len(histogram) - 1
    left = histogram.copy()
    packs, links = out, out_links
    used = 1
    for strategy in range(len(counts)):
        start = offsets[strategy]
        end = offsets[strategy + 1]
        packs_left = counts[strategy]
        while packs_left > 0:
            alike = _alike(left, lengths[start:end], packs_left)
            if alike == 0:
                break
            packs.groups[used, COUNT] = alike
            packs.groups[used, SEGMENTS] = 0
            packs.groups[used, CHAIN] = NONE
            links, residual = _put_strategy(left, packs, used, lengths[start:end], links)
            if residual > 0 and packs.groups[used, SEGMENTS] < limit:
                push(packs, residual, used)
            used += 1
            packs_left -= alike

    return best_fit(packs, used, links, left, capacity, limit)


def _open_packs(histogram: NDArray[np.int64], strategies: int) -> OpenPacks:
    """Open packs as for best fit, with room for the groups of the strategies as well.

    A length that runs out cuts the packs of a strategy at most twice: where there are too few for a whole pack, and
    where there are none.
    """
    groups = np.zeros((strategies + 4 * np.count_nonzero(histogram) + 1, 4), np.int64)
    groups[0, COUNT] = histogram.sum() + 1
    groups[0, CHAIN] = NONE
    packs = no_packs(groups, len(histogram))
    push(packs, len(histogram) - 1, 0)
    return packs


@jit_helper
def _alike(left: NDArray[np.int64], strategy: NDArray[np.int32], packs: int) -> int:
    """Count the packs of a strategy that can be filled equally before a length runs out; 0 if all have run out."""
    alike = 0
    place = 0
    while place < len(strategy):
        length = strategy[place]
        repeat = 0
        while place < len(strategy) and strategy[place] == length:
            repeat += 1
            place += 1
        if left[length] > 0:
            packs = min(packs, max(1, left[length] // repeat))
            alike = packs
    return alike


@jit_helper
def _put_strategy(
    out_left: NDArray[np.int64], out: OpenPacks, group: int, strategy: NDArray[np.int32], out_links: Links
) -> tuple[Links, int]:
    """Fill a group with the segments left of a strategy's lengths; returns the links and the room that remains."""
    residual = len(out.tops) - 1
    packs = out.groups[group, COUNT]
    place = 0
    while place < len(strategy):
        length = strategy[place]
        repeat = 0
        while place < len(strategy) and strategy[place] == length:
            repeat += 1
            place += 1
        repeat = min(repeat, out_left[length] // packs)
        if repeat > 0:
            out_links = add_segments(out.groups, group, length, repeat, out_links)
            out_left[length] -= repeat * packs
            residual -= repeat * length
    return out_links, residual


@jit
def one_more(
    left: NDArray[np.int64], offsets: NDArray[np.int64], lengths: NDArray[np.int32], order: NDArray[np.int64]
) -> NDArray[np.int64]:
    """1 for each strategy, in the given order, that finds all its segments among those left; 0 for the others."""
    left = left.copy()
    more = np.zeros(len(order), np.int64)
    for strategy in order:
        end = offsets[strategy]
        while end < offsets[strategy + 1] and left[lengths[end]] > 0:
            left[lengths[end]] -= 1
            end += 1
        if end == offsets[strategy + 1]:
            more[strategy] = 1
        else:
            for entry in range(offsets[strategy], end):
                left[lengths[entry]] += 1
    return more
