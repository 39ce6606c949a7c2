"""Worst-fit decreasing on a histogram: shortest-pack-first histogram packing (SPFHP), as published and repaired."""

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
