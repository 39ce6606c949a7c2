"""Worst-fit decreasing: shortest-pack-first histogram packing (SPFHP), published and repaired, and spread."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import jit, jit_if_large
from packer.algorithms.open_packs import (
    BELOW,
    CHAIN,
    COUNT,
    EXTENT,
    NONE,
    REPEAT,
    SEGMENTS,
    Links,
    OpenPacks,
    add_segments,
    best_fit,
    best_fit_decreasing,
    copy_packs,
    detach,
    new_links,
    next_key,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns


def spfhp_published(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by SPFHP as published (Krell et al., arXiv 2107.02027).

    Each segment, the longest first, goes into the pack with the most room, among equals the one that changed last;
    but a pack that was opened for a length takes no second segment of that length. A larger limit may need more packs.
    """
    return _worst_fit(histogram, segment_limit(histogram, max_segments), refill=False)


def worst_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack with the most room, among equals the one that changed last.

    The packs are exactly those of placing the segments one by one. A larger limit may need more packs.
    """
    return _worst_fit(histogram, segment_limit(histogram, max_segments), refill=True)


def spfhp(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Keep the best of `worst_fit_decreasing` and `spfhp_published` over every limit up to `max_segments`.

    So it never needs more packs than SPFHP as published, nor more with a larger limit than with a smaller one. Limits
    that cannot win are not tried.
    """
    bound = lower_bound(histogram, max_segments)
    best = worst_fit_decreasing(histogram, max_segments)
    for refill in (True, False):
        if best.packs == bound:
            break
        run = best if refill else spfhp_published(histogram, max_segments)
        if run.packs < best.packs:
            best = run
        lengths, trunk, branch = descending_lengths(histogram), _new_run(histogram), _new_run(histogram)
        better_limit = _better_limit(histogram, lengths, _reached(run), refill, best.packs, trunk, branch)
        if better_limit > 0:
            best = _worst_fit(histogram, better_limit, refill=refill)
    return best


def _reached(patterns: Patterns) -> NDArray[np.int64]:
    """The length at which a pack first held 1, 2, ... segments: [9, 1] and [5, 4, 1] -> [9, 4, 1]."""
    sizes = np.diff(patterns.offsets)
    places = np.arange(len(patterns.extents)) - np.repeat(patterns.offsets[:-1], sizes)
    reached = np.zeros(patterns.max_segments, np.int64)
    np.maximum.at(reached, places, patterns.extents)
    return reached


USED, OPENED, CLOSED, CLOSED_SEGMENTS, CLOSED_TOKENS = range(5)
"""Counts of a run: groups, packs that are not empty, packs that take no more, and the segments and tokens in these."""


class _Run(NamedTuple):
    """A run of worst fit between two lengths; stacks are kept by fill."""

    packs: OpenPacks
    counts: NDArray[np.int64]  # (5,)
    links: Links


def _new_run(histogram: NDArray[np.int64]) -> _Run:
    return _Run(open_packs(histogram, 0), np.array([1, 0, 0, 0, 0]), new_links())


def descending_lengths(histogram: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lengths that occur, descending: [0, 2, 0, 1] -> [3, 1]."""
    lengths: NDArray[np.int64] = np.flatnonzero(histogram)[::-1].copy()
    return lengths


def _worst_fit(histogram: NDArray[np.int64], limit: int, *, refill: bool) -> Patterns:
    """Pack by worst fit, with `refill` or as published."""
    run = _new_run(histogram)
    links = _place_all(run, descending_lengths(histogram), histogram, limit, refill)
    return to_patterns(run.packs.groups[: run.counts[USED]], links.rows[: links.used])


@jit
def _place_all(out: _Run, lengths: NDArray[np.int64], histogram: NDArray[np.int64], limit: int, refill: bool) -> Links:
    """Place all segments; returns the links."""
    links = out.links
    for length in lengths:
        links = _place(out, links, length, histogram[length], limit, refill, lengths[-1])
    return links


@jit_if_large
def _place(out: _Run, out_links: Links, length: int, left: int, limit: int, refill: bool, shortest: int) -> Links:
    """Place `left` segments of one length; returns the links. Packs without room for `shortest` close.

    Fills are visited upwards from the emptiest pack, and each group takes one segment per pack. The segments that are
    then left open new packs: with `refill` each takes as many segments as it can, otherwise one.
    """
    packs, counts, links = out.packs, out.counts, out_links
    groups = packs.groups
    capacity = len(packs.tops) - 1
    fill = 1
    while left > 0:
        fill = next_key(packs, fill)
        fresh = fill > capacity - length
        key = 0 if fresh else fill
        repeat = min(capacity // length, limit, left) if fresh and refill else 1
        top = packs.tops[key]
        taken = min(groups[top, COUNT], left // repeat)
        group = detach(packs, key, taken, counts[USED])
        counts[USED] += group == counts[USED]
        counts[OPENED] += taken if fresh else 0
        left -= repeat * taken

        link = groups[group, CHAIN]
        if group == top and link != NONE and links.rows[link, EXTENT] == length:
            # One link for all segments of a length: else links multiply where many short ones fill long gaps.
            # No other chain shares this link: a group splits only when the last segments of a length are placed.
            links.rows[link, REPEAT] += repeat
            groups[group, SEGMENTS] += repeat
        else:
            links = add_segments(groups, group, length, repeat, links)

        filled = key + repeat * length
        if capacity - filled >= shortest and groups[group, SEGMENTS] < limit:
            push(packs, filled, group)
        else:
            counts[CLOSED] += taken
            counts[CLOSED_SEGMENTS] += taken * groups[group, SEGMENTS]
            counts[CLOSED_TOKENS] += taken * filled
    return links


@jit
def _better_limit(
    histogram: NDArray[np.int64],
    lengths: NDArray[np.int64],
    reached: NDArray[np.int64],
    refill: bool,
    packs: int,
    out_trunk: _Run,
    out_branch: _Run,
) -> int:
    """The limit below `len(reached)` that packs best, if it needs fewer than `packs` packs; otherwise 0.

    Runs with limits L and d < L are equal until a pack holds d segments. So the run that `reached` describes is
    repeated, and where it first reaches d segments, the run with limit d branches off. (A limit above the deepest
    pack of a run changes nothing.) A branch ends as soon as it cannot win.
    """
    capacity = len(histogram) - 1
    shortest = lengths[-1]
    segments, tokens = 0, 0
    for length in lengths:
        segments += histogram[length]
        tokens += histogram[length] * length
    remaining = segments
    trunk, branch = out_trunk.counts, out_branch.counts
    trunk_links, branch_links = out_trunk.links, out_branch.links
    winner = 0
    limit = 1
    for index in range(len(lengths)):
        length = lengths[index]
        while limit < len(reached) and reached[limit - 1] == length:
            if limit * (packs - 1) >= segments and _packs_needed(out_trunk, remaining, limit, shortest) < packs:
                for count in range(len(trunk)):
                    branch[count] = trunk[count]
                branch[USED] = copy_packs(out_trunk.packs, out_branch.packs)
                branch_links = Links(branch_links.rows, 0)
                can_win = True
                for place in range(index, len(lengths)):
                    shorter = lengths[place]
                    branch_links = _place(
                        out_branch, branch_links, shorter, histogram[shorter], limit, refill, shortest
                    )
                    # the packs not closed must take all that closed packs do not hold
                    usable = packs - 1 - branch[CLOSED]
                    can_win = (
                        usable * capacity >= tokens - branch[CLOSED_TOKENS]
                        and usable * limit >= segments - branch[CLOSED_SEGMENTS]
                        and branch[OPENED] < packs
                    )
                    if not can_win:
                        break
                if can_win:
                    winner = limit
                    packs = branch[OPENED]
            limit += 1
        if trunk[OPENED] >= packs or limit >= len(reached):
            break
        trunk_links = _place(out_trunk, trunk_links, length, histogram[length], capacity, refill, shortest)
        remaining -= histogram[length]
    return winner


@jit_if_large
def _packs_needed(run: _Run, remaining: int, limit: int, shortest: int) -> int:
    """Lower bound on the packs at the end of the run: as if all remaining segments had the shortest length."""
    packs = run.packs
    capacity = len(packs.tops) - 1
    fill = next_key(packs, 1)
    while fill <= capacity:
        group = packs.tops[fill]
        while group != NONE:
            places = min((capacity - fill) // shortest, limit - packs.groups[group, SEGMENTS])
            remaining -= places * packs.groups[group, COUNT]
            group = packs.groups[group, BELOW]
        fill = next_key(packs, fill + 1)
    most = min(limit, capacity // shortest)
    opened: int = run.counts[OPENED]
    return opened + max(0, (remaining + most - 1) // most)


SWITCHES = 12
"""Number of lengths at which best fit takes over that are tried, for each of two ways to choose them."""

NEAR = 8
"""Number of lengths that are then tried on either side of the best of these."""

SURPLUSES = (0.0, 0.001, 0.004, 0.016, 0.06)
"""Packs to spread over beyond the lower bound, as shares of it."""


def deepest(histogram: NDArray[np.int64]) -> int:
    """Return the most segments that any pack can hold; a limit from there on does not bind. [2, 2, 5] in 6 -> 3."""
    lengths = np.flatnonzero(histogram)
    return 0 if len(lengths) == 0 else (len(histogram) - 1) // int(lengths[0])


def spread(
    histogram: NDArray[np.int64], max_segments: int | None = None, *, stop: Callable[[], bool] = lambda: False
) -> Patterns:
    """Spread the longer segments over a fixed number of packs by worst fit, then place the shorter by best fit.

    The number of packs and the length at which best fit takes over are searched until `stop` returns True. Best fit
    alone puts long segments together and leaves packs of short ones, which reach the limit on segments half empty.
    """
    limit = segment_limit(histogram, max_segments)
    bound = lower_bound(histogram, max_segments)
    lengths = np.flatnonzero(histogram)
    if len(lengths) == 0:
        return best_fit_decreasing(histogram)
    best_packs, best_target, best_switch = int(histogram.sum()) + 1, 1, 0
    # lengths at even shares of the segments, and of the lengths
    ranks = np.arange(1, SWITCHES) / SWITCHES
    sums = np.cumsum(histogram[lengths])
    by_count = lengths[np.searchsorted(sums, ranks * sums[-1])]
    switches = {0, *by_count.tolist(), *lengths[(ranks * len(lengths)).astype(np.int64)].tolist()}
    targets = [min(int(bound * (1 + surplus)), int(histogram.sum())) for surplus in SURPLUSES]
    for fine in (False, True):
        if fine:
            near = best_switch + lengths[-1] // SWITCHES * np.linspace(-1, 1, 2 * NEAR + 1)
            switches = set(np.maximum(near, 0).astype(np.int64).tolist())
            # and, between the best number of packs and the next lower one, the middle
            lower = max((target for target in targets if target < best_target), default=best_target)
            targets = sorted({(lower + best_target) // 2, best_target})
        for target in targets:
            for switch in sorted(switches):
                # more packs than the best has cannot win
                if target >= best_packs or best_packs == bound or stop():
                    break
                groups, _ = _spread(histogram, limit, target, switch)
                packs = int(groups[1:, COUNT].sum())
                if packs < best_packs:
                    best_packs, best_target, best_switch = packs, target, switch
    return to_patterns(*_spread(histogram, limit, best_target, best_switch))


def _spread(
    histogram: NDArray[np.int64], limit: int, target: int, switch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups (groups, 4) and links (links, 3) with worst fit into `target` packs for lengths above `switch`."""
    # each way to place segments makes groups of its own
    by_fill = open_packs(histogram, 0, more=2 * np.count_nonzero(histogram) + 1)
    packs = open_packs(histogram, len(histogram) - 1)._replace(groups=by_fill.groups)
    used, links = _worst_then_best_fit(histogram, limit, target, switch, by_fill, packs, new_links())
    groups = by_fill.groups[:used]
    kept = groups[:, SEGMENTS] > 0
    kept[0] = True
    return groups[kept], links.rows[: links.used]


@jit
def _worst_then_best_fit(
    histogram: NDArray[np.int64],
    limit: int,
    target: int,
    switch: int,
    out_by_fill: OpenPacks,
    out_packs: OpenPacks,
    out_links: Links,
) -> tuple[int, Links]:
    """Kernel of `_spread`: returns the groups in use, and the links.

    `out_by_fill` has the untouched packs at key 0, and `out_packs` at key `capacity`, with the same array of groups.
    Packs of the target that hold nothing become a group without segments.
    """
    capacity = len(histogram) - 1
    by_fill, packs, links = out_by_fill, out_packs, out_links
    groups = by_fill.groups
    # the packs to spread over lie on the untouched ones, which are never reached
    groups[1, COUNT] = target
    groups[1, CHAIN] = NONE
    groups[1, SEGMENTS] = 0
    used = 2
    by_fill.tops[0] = 1
    groups[1, BELOW] = NONE
    length = capacity
    left = histogram[length]
    while length > switch:
        if left == 0:
            length -= 1
            left = histogram[length]
            continue
        fill = next_key(by_fill, 0)
        if fill + length > capacity:
            break
        group = detach(by_fill, fill, min(groups[by_fill.tops[fill], COUNT], left), used)
        used += group == used
        links = add_segments(groups, group, length, 1, links)
        left -= groups[group, COUNT]
        if groups[group, SEGMENTS] < limit:
            push(by_fill, fill + length, group)

    fill = next_key(by_fill, 1)
    while fill <= capacity:
        group = by_fill.tops[fill]
        while group != NONE:
            below = groups[group, BELOW]
            if fill < capacity:
                push(packs, capacity - fill, group)
            group = below
        fill = next_key(by_fill, fill + 1)

    rest = histogram.copy()
    rest[length] = left
    return best_fit(packs, used, links, rest, length, limit)
