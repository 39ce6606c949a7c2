"""Worst-fit decreasing: shortest-pack-first histogram packing (SPFHP) as published, and spread."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import jit
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
    detach,
    next_key,
    no_links,
    open_packs,
    push,
    segment_limit,
    to_patterns,
)
from packer.algorithms.patterns import Patterns


def spfhp(histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
    """Pack by SPFHP as published (Krell et al., arXiv 2107.02027).

    Each segment, the longest first, goes into the pack with the most room; among packs with equal room, into the most
    recently changed one. A pack that was opened for a length takes no second segment of that length. A larger
    `max_segments` may need more packs.
    """
    packs = open_packs(histogram, 0)
    return to_patterns(packs.groups, _place_all(packs, no_links(), histogram, segment_limit(histogram, max_segments)))


@jit
def _place_all(out: OpenPacks, out_links: Links, histogram: NDArray[np.int64], limit: int) -> Links:
    """Place all segments by worst fit. Stacks are kept by fill. Returns the new links.

    For each length, groups are visited from the emptiest packs upwards, and each takes one segment per pack. Each
    segment that is left then opens a new pack.
    """
    groups, links = out.groups, out_links
    capacity = len(histogram) - 1
    shortest = capacity
    for length in range(capacity, 0, -1):
        if histogram[length] > 0:
            shortest = length
    for length in range(capacity, 0, -1):
        fill = 1
        left = histogram[length]
        while left > 0:
            fill = next_key(out, fill)
            key = 0 if fill > capacity - length else fill
            top = out.tops[key]
            taken = min(groups[top, COUNT], left)
            group = detach(out, key, taken, links.groups)
            left -= taken

            link = groups[group, CHAIN]
            if group == top and link != NONE and links.rows[link, EXTENT] == length:
                # Use one link for all segments of a length; otherwise many short segments in long gaps make many links.
                # No other chain shares this link, because a group splits only when the last segments of a length are
                # placed.
                links.rows[link, REPEAT] += 1
                groups[group, SEGMENTS] += 1
            else:
                links = add_segments(groups, group, length, 1, links)

            filled = key + length
            if capacity - filled >= shortest and groups[group, SEGMENTS] < limit:
                push(out, filled, group)
    return links


SWITCHES = 12
"""Number of lengths to try as the switch to best fit, for each of two ways to choose them."""

NEAR = 8
"""Number of lengths to try next on each side of the best switch."""

SURPLUSES = (0.0, 0.001, 0.004, 0.016, 0.06)
"""Numbers of packs to spread over: the lower bound plus these shares of it."""


def deepest(histogram: NDArray[np.int64]) -> int:
    """Return the maximum number of segments that fit into a pack; higher limits have no effect. [2, 2, 5] in 6 -> 3."""
    lengths = np.flatnonzero(histogram)
    return 0 if len(lengths) == 0 else (len(histogram) - 1) // int(lengths[0])


def spread(
    histogram: NDArray[np.int64], max_segments: int | None = None, *, stop: Callable[[], bool] = lambda: False
) -> Patterns:
    """Spread the longer segments over a fixed number of packs by worst fit, then place the shorter ones by best fit.

    Searches for the best number of packs, and for the length at which best fit takes over, until `stop` returns True.
    Best fit alone puts long segments together. Packs of short segments then reach the limit on segments half empty.
    """
    limit = segment_limit(histogram, max_segments)
    bound = lower_bound(histogram, max_segments)
    lengths = np.flatnonzero(histogram)
    if len(lengths) == 0:
        return best_fit_decreasing(histogram)
    best_packs, best_target, best_switch = int(histogram.sum()) + 1, 1, 0
    # Lengths at even shares of the segments, and of the lengths.
    ranks = np.arange(1, SWITCHES) / SWITCHES
    sums = np.cumsum(histogram[lengths])
    by_count = lengths[np.searchsorted(sums, ranks * sums[-1])]
    switches = {0, *by_count.tolist(), *lengths[(ranks * len(lengths)).astype(np.int64)].tolist()}
    targets = [min(int(bound * (1 + surplus)), int(histogram.sum())) for surplus in SURPLUSES]
    for fine in (False, True):
        if fine:
            near = best_switch + lengths[-1] // SWITCHES * np.linspace(-1, 1, 2 * NEAR + 1)
            switches = set(np.maximum(near, 0).astype(np.int64).tolist())
            # Also try the middle between the best number of packs and the next lower one.
            lower = max((target for target in targets if target < best_target), default=best_target)
            targets = sorted({(lower + best_target) // 2, best_target})
        for target in targets:
            for switch in sorted(switches):
                # A target above the best number of packs cannot be better.
                if target >= best_packs or best_packs == bound or stop():
                    break
                groups, _ = _spread(histogram, limit, target, switch)
                packs = int(groups[1:, COUNT].sum())
                if packs < best_packs:
                    best_packs, best_target, best_switch = packs, target, switch
    return to_patterns(*_spread(histogram, limit, best_target, best_switch))


def _spread(histogram: NDArray[np.int64], limit: int, target: int, switch: int) -> tuple[NDArray[np.int64], Links]:
    """Place lengths above `switch` by worst fit into `target` packs, others by best fit. Returns groups and links."""
    # Worst fit and best fit each create new groups.
    by_fill = open_packs(histogram, 0, more=2 * np.count_nonzero(histogram) + 1)
    packs = open_packs(histogram, len(histogram) - 1)._replace(groups=by_fill.groups)
    # The packs to spread over replace the untouched packs in the stack, so worst fit never reaches the latter.
    by_fill.groups[1] = target, 0, NONE, NONE
    by_fill.tops[0] = 1
    links = _worst_then_best_fit(histogram, limit, switch, by_fill, packs, no_links()._replace(groups=2))
    groups = by_fill.groups[: links.groups]
    is_kept = groups[:, SEGMENTS] > 0  # packs to spread over that stayed empty are a group without segments
    is_kept[0] = True
    return groups[is_kept], links._replace(groups=int(is_kept.sum()))


@jit
def _worst_then_best_fit(
    histogram: NDArray[np.int64],
    limit: int,
    switch: int,
    out_by_fill: OpenPacks,
    out_packs: OpenPacks,
    out_links: Links,
) -> Links:
    """Run the kernel of `_spread`; return the new links.

    `out_by_fill` has the packs to spread over at key 0, and `out_packs` the untouched packs at key `capacity`. Both
    share one array of groups.
    """
    capacity = len(histogram) - 1
    by_fill, packs, links = out_by_fill, out_packs, out_links
    groups = packs.groups
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
        group = detach(by_fill, fill, min(groups[by_fill.tops[fill], COUNT], left), links.groups)
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
    return best_fit(packs, links, rest, length, limit)
