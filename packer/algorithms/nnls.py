"""Non-negative least-squares histogram packing (NNLSHP; Krell et al., arXiv 2107.02027): published, repaired, extended.

Every way to fill a pack exactly is a **strategy**. How often each is used is the non-negative least-squares solution of
"all strategies together hold the histogram", rounded to whole numbers; the remainder is packed by a rule.

`strategies.py` finds strategies, and `active_set.py` solves the least squares.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.active_set import Passive, PatternColumns, Target, improve, no_columns, weighted_residual
from packer.algorithms.bounds import lower_bound
from packer.algorithms.exact_fill import Filled, add_packs, packs_left
from packer.algorithms.jit import jit
from packer.algorithms.open_packs import (
    Links,
    OpenPacks,
    best_fit,
    best_fit_decreasing,
    no_links,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns, Rows
from packer.algorithms.strategies import NEVER, best_strategies, count_strategies, every_strategy
from packer.algorithms.worst_fit import spfhp
from packer.errors import PackerError

PAPER_DEPTH = 3
"""Segments per pack in the paper's experiments; the published form uses it if no limit is given."""

CHEAP_LENGTHS = 8
"""Lengths up to this one have the weight CHEAP_WEIGHT in the paper's objective, others 1."""

CHEAP_WEIGHT = 0.09

MOST_STRATEGIES = 1_000_000
"""Strategies that the published form builds: enough for 2,048 tokens at depth 3 and for 512 at depth 4."""

HELD_WEIGHT = 1e6
"""Weight of the rows in the extended form; a place that stays padding has length + 1."""

MOST_WORK = 20_000_000_000
"""Multiplications after which the solver stops: some seconds, but a count, so that every run is the same."""

MOST_ROUNDS = 100
"""Most searches for new strategies; a few dozen are usual."""

NEARLY = 1e-6
"""An amount this close to a whole number is one."""


class Strategies(NamedTuple):
    """Strategies and how often each is used."""

    offsets: NDArray[np.int64]  # (strategies + 1,)
    lengths: NDArray[np.int32]  # (offsets[-1],)
    amounts: NDArray[np.float64]  # (strategies,)


def nnlshp_published(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by NNLSHP as published: every strategy, nearest whole numbers, and {l, max_len - l} for what is left.

    None means the paper's 3 segments. A `PackerError` says so where there are more than `MOST_STRATEGIES` strategies.
    """
    limit = segment_limit(histogram, PAPER_DEPTH if max_segments is None else max_segments)
    capacity = len(histogram) - 1
    strategies = count_strategies(capacity, limit, MOST_STRATEGIES)
    if strategies > MOST_STRATEGIES:
        raise PackerError(
            f"nnlshp-published lists every way to fill {capacity} tokens with at most {limit} segments: "
            f"{strategies:,} or more, above its limit of {MOST_STRATEGIES:,}; use nnlshp, or fewer segments"
        )
    offsets, lengths = every_strategy(capacity, limit)
    columns = PatternColumns(offsets, lengths, np.zeros(strategies))
    target = Target(histogram.astype(np.float64), _paper_weights(capacity))
    tolerance = 1e-12 * max(1, int(histogram.sum()))  # the slope below which a strategy does not count
    passive = improve(columns, target, no_columns(capacity + 1), tolerance, np.iinfo(np.int64).max)
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


def nnlshp(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by the paper's least squares, with strategies found as they are needed and the remainder by best fit.

    Strategies use the lengths that occur and those that the paper counts as cheap. The search starts from the packings
    of `spfhp` and `bfd`, and keeps them if they meet the lower bound or nothing better is found, so it never takes more
    packs.
    """
    capacity = len(histogram) - 1
    return _packed(histogram, max_segments, _paper_weights(capacity), np.zeros(capacity + 1))


def ennlshp(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack as `nnlshp` with the paper's extended objective, which minimises the tokens of places that stay padding.

    For every length there is a column of padding, weighted by length + 1; the rows are held by a weight of 1e6.
    """
    # all in units of the largest weight of padding, so that slopes are of the size of counts as in `nnlshp`
    padding = (np.arange(len(histogram)) + 1) / len(histogram)
    held = np.full(len(histogram), HELD_WEIGHT / len(histogram))
    return _packed(histogram, max_segments, held**2, padding**2)


def _packed(
    histogram: NDArray[np.int64],
    max_segments: int | None,
    weights: NDArray[np.float64],
    padding: NDArray[np.float64],
) -> Patterns:
    """The best of the greedy algorithms' packings, and of all rounded solutions on the way to the least squares."""
    limit = segment_limit(histogram, max_segments)
    best = min(best_fit_decreasing(histogram, limit), spfhp(histogram, limit), key=lambda patterns: patterns.packs)
    if best.packs == lower_bound(histogram, limit):
        return best
    for solution in _solutions(histogram, limit, weights, padding):
        for counts in _roundings(histogram, solution):
            patterns = fill(histogram, limit, solution, counts)
            if patterns.packs < best.packs:
                best = patterns
        if best.packs == lower_bound(histogram, limit):
            break
    return best


def _roundings(histogram: NDArray[np.int64], solution: Strategies) -> list[NDArray[np.int64]]:
    """Round the amounts: to the nearest, upwards, and downwards with one more wherever all its segments are left.

    Rounding to the nearest is best if counts are large. If most amounts are below 1, any of the three may win.
    """
    downwards = np.floor(solution.amounts + NEARLY).astype(np.int64)
    order = np.argsort(downwards - solution.amounts, kind="stable")
    left = histogram - _places(solution, downwards, len(histogram) - 1)
    return [
        np.rint(solution.amounts).astype(np.int64),
        np.ceil(solution.amounts - NEARLY).astype(np.int64),
        downwards + one_more(left, solution.offsets, solution.lengths, order),
    ]


def _solutions(
    histogram: NDArray[np.int64], limit: int, weights: NDArray[np.float64], padding: NDArray[np.float64]
) -> Iterator[Strategies]:
    """Yield least-squares solutions over more and more strategies; the last one is over all, unless the work runs out.

    Each round finds the strategies that the residual asks for. `padding`, shape (max_len + 1,), is the damping of the
    padding column of each length; 0 for none.
    """
    capacity = len(histogram) - 1
    target = Target(histogram.astype(np.float64), weights)
    usable = histogram > 0
    usable[1 : CHEAP_LENGTHS + 1] = True
    # a strategy of more than twice the segments of a usual pack is not looked for
    tokens = int(histogram @ np.arange(capacity + 1))
    deepest = min(limit, 2 * -(-capacity * int(histogram.sum()) // tokens) + 2)
    tolerance = 1e-9 * max(1, int(histogram.sum()))
    search_work = capacity * capacity * (2 * deepest.bit_length() + 1)

    padded = np.flatnonzero(usable & (padding > 0)).astype(np.int32)
    columns = PatternColumns(np.arange(len(padded) + 1), padded, padding[padded])
    passive = no_columns(int(usable.sum()) + len(padded) + 1)
    for _ in range(MOST_ROUNDS):
        if passive.work + search_work > MOST_WORK:
            break
        residual = weighted_residual(columns, target, passive)
        offsets, lengths = best_strategies(np.where(usable, residual, NEVER), deepest, tolerance)
        if len(offsets) == 1:
            break
        columns, passive = _with_new(columns, passive, offsets, lengths)
        passive = improve(columns, target, passive._replace(work=passive.work + search_work), tolerance, MOST_WORK)
        first_new = len(columns.damping) - (len(offsets) - 1)
        if not (passive.columns[: passive.used] >= first_new).any():
            break  # except for rounding, what was found is a sum of columns in use
        yield _taken(columns, passive)


def _with_new(
    columns: PatternColumns, passive: Passive, offsets: NDArray[np.int64], lengths: NDArray[np.int32]
) -> tuple[PatternColumns, Passive]:
    """The padding, the strategies in use and new ones; those not in use are found again when they are needed."""
    size = int((columns.damping > 0).sum())
    kept = _taken(columns, passive)
    numbers = passive.columns.copy()
    numbers[: passive.used][numbers[: passive.used] >= size] = size + np.arange(len(kept.amounts))
    new = PatternColumns(
        np.concatenate([np.arange(size), size + kept.offsets, size + kept.offsets[-1] + offsets[1:]]),
        np.concatenate([columns.lengths[:size], kept.lengths, lengths]),
        np.concatenate([columns.damping[:size], np.zeros(len(kept.amounts) + len(offsets) - 1)]),
    )
    return new, passive._replace(columns=numbers)


def _taken(columns: PatternColumns, passive: Passive) -> Strategies:
    """The strategies in use, without the padding, in the order in which they came into use."""
    numbers = passive.columns[: passive.used]
    amounts = passive.amounts[: passive.used]
    strategies = columns.damping[numbers] == 0
    numbers, amounts = numbers[strategies], amounts[strategies]
    chosen = Rows(values=columns.lengths, row_starts=columns.offsets).chosen(numbers)
    return Strategies(chosen.row_starts, chosen.values, amounts)


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
