"""Non-negative least-squares histogram packing (NNLSHP) as published (Krell et al., arXiv 2107.02027).

Every way to fill a pack exactly is a **strategy**. How often each is used is the non-negative least-squares solution of
"all strategies together hold the histogram", rounded to whole numbers; the remainder is packed by a rule.

`active_set.py` solves the least squares.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.active_set import Passive, PatternColumns, Target, improve, no_columns
from packer.algorithms.exact_fill import Filled, add_packs, packs_left
from packer.algorithms.jit import jit
from packer.algorithms.open_packs import (
    Links,
    OpenPacks,
    best_fit,
    no_links,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns, Rows
from packer.errors import PackerError

PAPER_DEPTH = 3
"""Segments per pack in the paper's experiments; the published form uses it if no limit is given."""

CHEAP_LENGTHS = 8
"""Lengths up to this one have the weight CHEAP_WEIGHT in the paper's objective, others 1."""

CHEAP_WEIGHT = 0.09

MOST_STRATEGIES = 100_000
"""Strategies that the published form builds, within seconds: enough for 1,024 tokens at depth 3."""


class Strategies(NamedTuple):
    """Strategies and how often each is used."""

    offsets: NDArray[np.int64]  # (strategies + 1,)
    lengths: NDArray[np.int32]  # (offsets[-1],)
    amounts: NDArray[np.float64]  # (strategies,)


def nnlshp(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by NNLSHP as published: every strategy, nearest whole numbers, and {l, max_len - l} for what is left.

    None means the paper's 3 segments. A `PackerError` says so where there are more than `MOST_STRATEGIES` strategies.
    """
    limit = segment_limit(histogram, PAPER_DEPTH if max_segments is None else max_segments)
    capacity = len(histogram) - 1
    strategies = count_strategies(capacity, limit, MOST_STRATEGIES)
    if strategies > MOST_STRATEGIES:
        raise PackerError(
            f"nnlshp lists every way to fill {capacity} tokens with at most {limit} segments: "
            f"{strategies:,} or more, above its limit of {MOST_STRATEGIES:,}; choose auto, or fewer segments"
        )
    offsets, lengths = every_strategy(capacity, limit)
    columns = PatternColumns(offsets, lengths)
    target = Target(histogram.astype(np.float64), _paper_weights(capacity))
    tolerance = 1e-12 * max(1, int(histogram.sum()))  # the slope below which a strategy does not count
    passive = improve(columns, target, no_columns(capacity + 1), tolerance)
    solution = _taken(columns, passive)
    counts = np.rint(solution.amounts).astype(np.int64)
    if limit == 1:
        return fill(histogram, limit, solution, counts)

    # every positive residual at length l takes {l, max_len - l}
    left = np.maximum(histogram - _places(solution, counts, capacity), 0)
    partner = np.minimum(np.arange(capacity + 1), capacity - np.arange(capacity + 1))
    pairs = np.stack([partner, capacity - partner], axis=1)
    rest = np.flatnonzero(left)
    whole = rest == capacity
    kept = np.stack([~whole, np.ones(len(rest), bool)], axis=1)
    completed = Strategies(
        np.concatenate([solution.offsets, solution.offsets[-1] + np.cumsum(kept.sum(axis=1))]),
        np.concatenate([solution.lengths, pairs[rest][kept].astype(np.int32)]),
        np.empty(0),
    )
    return fill(histogram, limit, completed, np.concatenate([counts, left[rest]]))


def _taken(columns: PatternColumns, passive: Passive) -> Strategies:
    """The strategies in use, in the order in which they came into use."""
    chosen = Rows(values=columns.lengths, row_starts=columns.offsets).chosen(passive.columns[: passive.used])
    return Strategies(chosen.row_starts, chosen.values, passive.amounts[: passive.used])


def _places(solution: Strategies, counts: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The places for each length when strategy k is used counts[k] times, shape (max_len + 1,)."""
    places = np.zeros(capacity + 1, np.int64)
    np.add.at(places, solution.lengths, np.repeat(counts, np.diff(solution.offsets)))
    return places


def _paper_weights(capacity: int) -> NDArray[np.float64]:
    """The squares of the paper's weights, shape (max_len + 1,)."""
    weights = np.ones(capacity + 1)
    weights[: CHEAP_LENGTHS + 1] = CHEAP_WEIGHT**2
    return weights


def fill(histogram: NDArray[np.int64], limit: int, solution: Strategies, counts: NDArray[np.int64]) -> Patterns:
    """Pack `counts[k]` times strategy k, and whatever is then left by best fit.

    If the strategies need more segments of a length than there are, the last packs go without: their places may take
    shorter segments, and otherwise stay padding. Empty packs are left out. Lengths ascend in a strategy.
    """
    # A length that runs out cuts the packs of a strategy at most twice: where there are too few for a whole pack, and
    # where there are none.
    packs = open_packs(histogram, len(histogram) - 1, more=len(counts) + 2 * np.count_nonzero(histogram))
    found = np.empty(len(histogram), np.int64)
    links = _fill(histogram, limit, solution.offsets, solution.lengths, counts, found, packs, no_links())
    patterns = to_patterns(packs.groups, links)
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
    out_found: NDArray[np.int64],
    out: OpenPacks,
    out_links: Links,
) -> Links:
    """Return the links of groups, first those of the strategies, then those of best fit."""
    capacity = len(histogram) - 1
    left = histogram.copy()
    filled = Filled(out.groups, out_links)
    for strategy in range(len(counts)):
        wanted = counts[strategy]
        while wanted > 0:
            # as many segments of each length as the strategy has, or as are left
            size, repeat, room = 0, 0, capacity
            for entry in range(offsets[strategy], offsets[strategy + 1]):
                length = lengths[entry]
                repeat = repeat + 1 if entry > offsets[strategy] and lengths[entry - 1] == length else 1
                if left[length] >= repeat:
                    out_found[size] = length
                    size += 1
                    room -= length
            if size == 0:
                break
            packs = min(wanted, packs_left(left, out_found, size))
            filled = add_packs(filled, out_found, size, packs, left)
            if room > 0 and size < limit:
                push(out, room, filled.links.groups - 1)
            wanted -= packs
    return best_fit(out, filled.links, left, capacity, limit)


def count_strategies(capacity: int, limit: int, most: int) -> int:
    """The ways to fill `capacity` tokens exactly with at most `limit` segments; counts on to just above `most`.

    4 tokens, at most 3 segments: [4], [3, 1], [2, 2], [2, 1, 1] -> 4.
    """
    # as many as there are ways with segments of at most `limit` tokens: [2, 1, 1] drawn as dots, columns for rows
    ways = [1] * (capacity + 1)
    for part in range(2, min(limit, capacity) + 1):
        if ways[capacity] > most:
            break
        for tokens in range(part, capacity + 1):
            ways[tokens] += ways[tokens - part]
    return ways[capacity]


def every_strategy(capacity: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets and lengths of every way to fill a pack with at most `limit` segments, ascending within each."""
    strategies = count_strategies(capacity, limit, np.iinfo(np.int64).max)
    return _every_strategy(capacity, min(limit, capacity), strategies)


@jit
def _every_strategy(capacity: int, limit: int, strategies: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Count through the strategies in the order of their lengths: [1, 1, 2], [1, 3], [2, 2], [4]."""
    offsets = np.zeros(strategies + 1, np.int64)
    lengths = np.empty(limit * strategies, np.int32)  # memory that is not written is not used
    stack = np.zeros(limit + 1, np.int64)
    used = 0
    entries = 0
    depth = 0  # stack[:depth] stands; stack[depth] is to be tried
    stack[0] = 1
    left = capacity
    while depth >= 0:
        new = stack[depth]
        if new == left or ((2 * new > left or depth + 1 == limit) and new < left):
            # nothing but one last segment fits after stack[:depth]
            stack[depth] = left
            for place in range(depth + 1):
                lengths[entries] = stack[place]
                entries += 1
            used += 1
            offsets[used] = entries
            depth -= 1
            if depth >= 0:
                left += stack[depth]
                stack[depth] += 1
        else:
            left -= new
            depth += 1
            stack[depth] = new
    return offsets, lengths[:entries]
