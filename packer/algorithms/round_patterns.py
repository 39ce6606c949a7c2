"""Whole packs from the fractions of a linear program: packs that follow rounded patterns, and the rest packed again."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.exact_fill import Filled, add_packs, exact_fill, next_left, nothing_filled, packs_left
from packer.algorithms.jit import jit_if_large
from packer.algorithms.open_packs import best_fit_decreasing, segment_limit, to_patterns
from packer.algorithms.patterns import Patterns

GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio conjugate; its multiples, modulo 1, are evenly spread and offset the roundings."""

LOOSE = ((16, 50), (16, 0), (64, 50), (1, 50), (64, 0), (1, 0))
"""Turns of the templates, and the window for packs without a gap; attempts cycle through these."""


def round_packs(
    histogram: NDArray[np.int64],
    max_segments: int | None,
    templates: Patterns,
    packs: NDArray[np.float64],
    attempt: int,
    *,
    strict: bool,
) -> Patterns:
    """Pack the histogram with about `packs[i]` packs like template i, and the rest by a heuristic.

    If the templates provide a place for every segment, `strict` keeps to them; attempt 0 then rounds down and attempt 1
    to the nearest. Other attempts round so that the running sum is kept, as `rounded` does.
    """
    if strict and attempt < 2:
        counts = np.floor(packs + (1e-6, 0.5)[attempt]).astype(np.int64)
    else:
        counts = rounded(packs, attempt)
    limit = segment_limit(histogram, max_segments)
    first, left = follow_templates(histogram, limit, templates, counts, attempt, strict=strict)
    rest = best_fit_decreasing(left, max_segments), exact_fill(left, max_segments)
    return joined_patterns(first, min(rest, key=lambda patterns: patterns.packs))


def rounded(packs: NDArray[np.float64], attempt: int) -> NDArray[np.int64]:
    """Round to whole packs so that the running sum is kept: 0.4, 0.4, 0.4 with an offset of 0.5 become 0, 1, 0.

    Every attempt has its own offset.
    """
    sums = np.floor(np.cumsum(packs) + attempt * GOLDEN % 1.0).astype(np.int64)
    return np.diff(sums, prepend=0)


def follow_templates(
    histogram: NDArray[np.int64],
    limit: int,
    templates: Patterns,
    counts: NDArray[np.int64],
    attempt: int = 0,
    *,
    strict: bool,
) -> tuple[Patterns, NDArray[np.int64]]:
    """Return packs that follow templates, and the histogram of what they leave."""
    turns, window = (1, STRICT) if strict else LOOSE[attempt % len(LOOSE)]
    extents = templates.extents.astype(np.int64)
    filled, left = follow(histogram, templates.offsets, extents, counts, limit, turns, window, nothing_filled())
    return to_patterns(*filled), left


def joined_patterns(first: Patterns, second: Patterns) -> Patterns:
    """Concatenate two sets of patterns."""
    return Patterns(
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        extents=np.concatenate([first.extents, second.extents]),
        counts=np.concatenate([first.counts, second.counts]),
    )


STRICT = -1
"""Window of strict packs: every place takes its length or the next shorter one that is left."""

BORROWED = 4
"""A place may take 1 / BORROWED of the tokens of the places after it."""


@jit_if_large
def follow(
    histogram: NDArray[np.int64],
    offsets: NDArray[np.int64],
    extents: NDArray[np.int64],
    counts: NDArray[np.int64],
    limit: int,
    turns: int,
    window: int,
    out: Filled,
) -> tuple[Filled, NDArray[np.int64]]:
    """Fill `counts[i]` packs like template i; returns them and the histogram left over. `out` has no packs yet.

    The templates take `turns` turns, so that all of them are affected when a length runs out. `window` is how far the
    last place but one may deviate from its template to leave no gap; if it is STRICT, no place exceeds its template.
    """
    capacity = len(histogram) - 1
    left = histogram.copy()
    below = np.arange(capacity + 1)
    above = np.arange(capacity + 2)
    found = np.zeros(capacity + 1, np.int64)
    for turn in range(turns):
        for template in range(len(counts)):
            places = extents[offsets[template] : offsets[template + 1]]
            wanted = counts[template] * (turn + 1) // turns - counts[template] * turn // turns
            while wanted > 0:
                size = _one_pack(places, limit, window, below, above, left, found)
                if size == 0:
                    break
                packs = min(wanted, packs_left(left, found, size))
                out = add_packs(out, found, size, packs, left)
                wanted -= packs
    return out, left


@jit_if_large
def _one_pack(
    places: NDArray[np.int64],
    limit: int,
    window: int,
    out_below: NDArray[np.int64],
    out_above: NDArray[np.int64],
    out_left: NDArray[np.int64],
    out_found: NDArray[np.int64],
) -> int:
    """Write one pack that follows a template, descending, to `out_found`; returns how many segments it has.

    Where [5, 4, 3] finds no 5 but a 4, the token left makes the next place look for 4 + 1 * 4 // 7 = 4, and the last
    for whatever fills the pack: [4, 4, 4].
    """
    room = len(out_left) - 1
    rest = places.sum()
    ahead = 0  # tokens that the template would have used beyond those found
    size = 0
    for place in range(len(places) + limit):
        length = 0
        if window == STRICT:
            if place >= len(places):
                break
            length = next_left(out_below, out_left, places[place], -1)
        elif place >= len(places) - 1:
            # the last place, and any that the limit allows beyond it
            if size < limit:
                length = next_left(out_below, out_left, room, -1)
            if length == 0 and place >= len(places):
                break
        else:
            want = max(1, places[place] + ahead * places[place] // rest)
            rest -= places[place]
            most = min(room, room - rest + rest // BORROWED)
            length = _nearest(min(want, most), most, out_below, out_above, out_left)
            if place == len(places) - 2 and window > 0:
                exact = _beside_exact(want, window, room, out_left)
                length = exact if exact > 0 else length
            ahead += places[place] - length
        if length > 0:
            out_left[length] -= 1
            room -= length
            out_found[size] = length
            size += 1
    for place in range(size):
        out_left[out_found[place]] += 1
    _sort_descending(out_found, size)
    return size


@jit_if_large
def _nearest(
    want: int, most: int, out_below: NDArray[np.int64], out_above: NDArray[np.int64], left: NDArray[np.int64]
) -> int:
    """The length nearest to `want`, at most `most`, with a segment left; 0 if there is none."""
    if want <= 0:
        return 0
    shorter = next_left(out_below, left, want, -1)
    if most <= want or shorter == want:
        return shorter
    longer = next_left(out_above, left, want, 1)
    return longer if longer <= most and (shorter == 0 or longer - want <= want - shorter) else shorter


@jit_if_large
def _beside_exact(want: int, window: int, room: int, left: NDArray[np.int64]) -> int:
    """The length nearest to `want`, within the window, with which another segment left fills the room; or 0."""
    for away in range(window):
        for length in (want + away, want - away):
            if 0 < length < room and left[length] > 0:
                other = room - length
                if left[other] > (other == length):
                    return length
    return 0


@jit_if_large
def _sort_descending(out: NDArray[np.int64], size: int) -> None:
    """Sort out[:size]; it is nearly sorted, so by insertion."""
    for i in range(1, size):
        length = out[i]
        place = i
        while place > 0 and out[place - 1] < length:
            out[place] = out[place - 1]
            place -= 1
        out[place] = length
