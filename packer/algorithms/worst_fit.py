"""Worst-fit decreasing on a histogram: shortest-pack-first histogram packing (SPFHP), as published and repaired."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import jit, jit_helper
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
    """Pack as SPFHP was published (Krell et al., arXiv 2107.02027).

    Each segment, the longest first, goes into the pack with the most room, among equals the one that changed last;
    but a pack that was opened for a length takes no second segment of that length. A larger limit may need more packs.
    """
    return to_patterns(*_worst_fit(histogram, segment_limit(histogram, max_segments), False))


def worst_fit_decreasing(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Put each segment, the longest first, into the pack with the most room, among equals the one that changed last.

    The packs are exactly those of placing the segments one by one. A larger limit may need more packs.
    """
    return to_patterns(*_worst_fit(histogram, segment_limit(histogram, max_segments), True))


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
        better_limit = _better_limit(histogram, _reached(run), refill, best.packs)
        if better_limit > 0:
            best = to_patterns(*_worst_fit(histogram, better_limit, refill))
    return best


def _reached(patterns: Patterns) -> NDArray[np.int64]:
    """The length at which the first pack came to hold 1, 2, ... segments: [9, 1] and [5, 4, 1] -> [9, 4, 1]."""
    sizes = np.diff(patterns.offsets)
    places = np.arange(len(patterns.extents)) - np.repeat(patterns.offsets[:-1], sizes)
    reached = np.zeros(patterns.max_segments, np.int64)
    np.maximum.at(reached, places, patterns.extents)
    return reached


class _Run(NamedTuple):
    """A run of worst fit between two lengths; stacks are kept by fill."""

    packs: OpenPacks
    used: int  # groups
    links: Links
    opened: int  # packs that hold anything
    closed: int  # packs that take no more
    closed_segments: int
    closed_tokens: int


@jit
def _worst_fit(histogram: NDArray[np.int64], limit: int, refill: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups (groups, 4) and links (links, 3) of worst fit, with `refill` or as published."""
    run = _new_run(histogram)
    lengths = _descending_lengths(histogram)
    for length in lengths:
        run = _place(run, length, histogram[length], limit, refill, lengths[-1])
    return run.packs.groups[: run.used], run.links.rows[: run.links.used]


@jit_helper
def _new_run(histogram: NDArray[np.int64]) -> _Run:
    return _Run(open_packs(histogram, 0), 1, new_links(), 0, 0, 0, 0)


@jit_helper
def _descending_lengths(histogram: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lengths that there are: [0, 2, 0, 1] -> [3, 1]."""
    return np.flatnonzero(histogram)[::-1]


@jit_helper
def _place(out: _Run, length: int, left: int, limit: int, refill: bool, shortest: int) -> _Run:
    """Place `left` segments of one length; returns the run after it. Packs without room for `shortest` close.

    Fills are visited upwards from the emptiest pack, and each group takes one segment per pack. The segments that are
    then left open new packs: with `refill` each takes as many segments as it can, otherwise one.
    """
    packs, used, links, opened, closed, closed_segments, closed_tokens = out
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
        group = detach(packs, key, taken, used)
        used += group == used
        opened += taken if fresh else 0
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
            closed += taken
            closed_segments += taken * groups[group, SEGMENTS]
            closed_tokens += taken * filled
    return _Run(packs, used, links, opened, closed, closed_segments, closed_tokens)


@jit
def _better_limit(histogram: NDArray[np.int64], reached: NDArray[np.int64], refill: bool, packs: int) -> int:
    """The limit below `len(reached)` that packs best, if it needs fewer than `packs` packs; otherwise 0.

    Runs with limits L and d < L are equal until a pack holds d segments. So the run that `reached` describes is
    repeated, and where it first reaches d segments, the run with limit d branches off. (A limit above the deepest
    pack of a run changes nothing.) A branch ends as soon as it cannot win.
    """
    capacity = len(histogram) - 1
    lengths = _descending_lengths(histogram)
    shortest = lengths[-1]
    segments = histogram.sum()
    tokens = (histogram * np.arange(capacity + 1)).sum()
    remaining = segments
    trunk = _new_run(histogram)
    branch = _new_run(histogram)
    winner = 0
    limit = 1
    for index, length in enumerate(lengths):
        while limit < len(reached) and reached[limit - 1] == length:
            if limit * (packs - 1) >= segments and _packs_needed(trunk, remaining, limit, shortest) < packs:
                used = copy_packs(trunk.packs, branch.packs)
                branch = _Run(branch.packs, used, Links(branch.links.rows, 0), *trunk[3:])
                for shorter in lengths[index:]:
                    branch = _place(branch, shorter, histogram[shorter], limit, refill, shortest)
                    # the packs not closed must take all that closed packs do not hold
                    usable = packs - 1 - branch.closed
                    if usable * capacity < tokens - branch.closed_tokens:
                        break
                    if usable * limit < segments - branch.closed_segments or branch.opened >= packs:
                        break
                else:
                    winner = limit
                    packs = branch.opened
            limit += 1
        if trunk.opened >= packs or limit >= len(reached):
            break
        trunk = _place(trunk, length, histogram[length], capacity, refill, shortest)
        remaining -= histogram[length]
    return winner


@jit_helper
def _packs_needed(run: _Run, remaining: int, limit: int, shortest: int) -> int:
    """Packs that the run has at the end, at the least: as if the remaining segments were all of the shortest length."""
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
    return run.opened + max(0, (remaining + most - 1) // most)
