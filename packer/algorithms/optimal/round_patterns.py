"""Whole packs from the fractions of a linear program: packs that follow rounded patterns, and the rest packed again."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.best_fit import best_fit_decreasing
from packer.algorithms.exact_fill import exact_fill, nothing_filled
from packer.algorithms.open_packs import segment_limit, to_patterns
from packer.algorithms.optimal.following import STRICT, follow
from packer.algorithms.patterns import Patterns

GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio conjugate; its multiples, modulo 1, are evenly spread and offset the roundings."""

LOOSE = ((16, 50), (16, 0), (64, 50), (1, 50), (64, 0), (1, 0))
"""Turns of the templates, and the window for packs without a gap; attempts cycle through these."""


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
    first, left = _followed(histogram, limit, templates, counts, LOOSE[attempt % len(LOOSE)], strict=strict)
    return joined(first, heuristic(left, max_segments))


def follow_rounded(
    histogram: NDArray[np.int64],
    limit: int,
    *,
    templates: Patterns,
    packs: NDArray[np.float64],
    share: float,
    attempt: int,
    strict: bool,
) -> tuple[Patterns, NDArray[np.int64]]:
    """Packs like the templates for a share of `packs`, and the histogram of what they leave."""
    counts = np.floor(np.cumsum(rounded(packs, attempt)) * share + 0.5).astype(np.int64)
    return _followed(histogram, limit, templates, np.diff(counts, prepend=0), LOOSE[0], strict=strict)


def rounded(packs: NDArray[np.float64], attempt: int) -> NDArray[np.int64]:
    """Round to whole packs so that the running sum is kept: 0.4, 0.4, 0.4 with an offset of 0.5 become 0, 1, 0.

    Every attempt has its own offset.
    """
    sums = np.floor(np.cumsum(packs) + attempt * GOLDEN % 1.0).astype(np.int64)
    return np.diff(sums, prepend=0)


def _followed(
    histogram: NDArray[np.int64],
    limit: int,
    templates: Patterns,
    counts: NDArray[np.int64],
    way: tuple[int, int],
    *,
    strict: bool,
) -> tuple[Patterns, NDArray[np.int64]]:
    """Packs that follow templates, and the histogram of what they leave."""
    turns, window = (1, STRICT) if strict else way
    extents = templates.extents.astype(np.int64)
    filled, left = follow(histogram, templates.offsets, extents, counts, limit, turns, window, nothing_filled())
    return to_patterns(filled.groups[: filled.used], filled.links.rows[: filled.links.used]), left


def joined(first: Patterns, second: Patterns) -> Patterns:
    """Concatenate two sets of patterns."""
    return Patterns(
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        extents=np.concatenate([first.extents, second.extents]),
        counts=np.concatenate([first.counts, second.counts]),
    )
