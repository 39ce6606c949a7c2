"""Padding ratios: the share of the tokens a model computes that is padding, 1 - tokens / (rows x tokens per row).

A histogram counts segments by length in tokens: int64, shape (max_len + 1,), with histogram[0] == 0 and one segment at
least. The cost of everything here depends on its shape, not on the number of segments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows per batch for which padding is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Padding ratios of one epoch over the same segments, 0 <= ratio < 1, by how they are put into batches."""

    max_len: float
    """Every segment padded to max_len."""

    batch_longest: dict[int, float]
    """By batch size: in random order, padded to the longest of the batch."""

    group_by_length: dict[int, float]
    """By batch size: sorted by length, padded to the longest of the batch; no other grouping has less."""

    packed: float
    """Packed into rows of max_len."""

    def speedup(self, ratio: float) -> float:
        """Tokens computed at a padding ratio over those computed when packed: 0.90 now, 0.05 packed -> 9.5."""
        return (1 - self.packed) / (1 - ratio)

    def to_json(self) -> dict[str, object]:
        """Batch sizes become strings, as JSON has no other keys."""
        return {
            "max_len": self.max_len,
            "batch_longest": {str(size): ratio for size, ratio in self.batch_longest.items()},
            "group_by_length": {str(size): ratio for size, ratio in self.group_by_length.items()},
            "packed": self.packed,
        }


def padding_ratios(histogram: NDArray[np.int64], packs: int) -> Padding:
    """Give the padding ratio of every way to batch the segments, and of `packs` rows that hold them all.

    Ratios of random order are those of the expected totals over all orders, the last batch having what is left: with
    q batches of B and one of r, 1 - tokens / (q B E[longest of B] + r E[longest of r]). Nothing is sampled.
    """
    max_len = len(histogram) - 1
    tokens = tokens_of(histogram)
    segments = int(histogram.sum())
    longest = expected_longest(histogram, max(BATCH_SIZES))

    def random_total(size: int) -> float:
        if size == 1:
            return tokens  # what the expectation comes to, without its rounding
        batches, rest = divmod(segments, size)
        return float(batches * size * longest[min(size, segments)] + rest * longest[rest])

    return Padding(
        max_len=_ratio(tokens, segments * max_len),
        batch_longest={size: _ratio(tokens, random_total(size)) for size in BATCH_SIZES},
        group_by_length={size: _ratio(tokens, grouped_total(histogram, size)) for size in BATCH_SIZES},
        packed=_ratio(tokens, packs * max_len),
    )


def expected_longest(histogram: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Give the expected longest of 0, 1, ..., `draws` segments drawn at random and not put back, shape (draws + 1,).

    It is exact: of N segments, n of them no longer than l, b draws all stay within l with probability
    n/N (n-1)/(N-1) ... (n-b+1)/(N-b+1). Lengths 1, 2 and 4 give [0, 7/3, 10/3, 4]. There are no more draws than
    segments: the result ends there.
    """
    values = np.flatnonzero(histogram)
    within = np.cumsum(histogram[values])
    segments = int(within[-1])
    probability = np.ones(len(values))
    longest = [0.0]
    for drawn in range(min(draws, segments)):
        probability = probability * (np.maximum(within - drawn, 0) / (segments - drawn))
        longest.append(float(values @ np.diff(probability, prepend=0.0)))
    return np.array(longest)


def grouped_total(histogram: NDArray[np.int64], size: int) -> int:
    """Give the fewest tokens, padding included, that all segments take in batches of `size` padded to the longest.

    It is that of batches cut from the segments in order of length, with the one smaller batch, if any, where it saves
    most: 9, 2, 2, 1, 1 in batches of 2 -> [9], [2, 2], [1, 1] of 9 + 4 + 2 tokens.
    """
    values = np.flatnonzero(histogram)[::-1]
    # By rank, the longest first: rank i has values[j] with ends[j - 1] <= i < ends[j].
    ends = np.cumsum(histogram[values])
    batches, rest = divmod(int(ends[-1]), size)

    # The smaller batch takes the longest; the others begin at ranks rest, rest + size, ...
    begun = -(-np.maximum(ends - rest, 0) // size)
    total = rest * int(values[0]) + size * int(np.diff(begun, prepend=0) @ values)
    if rest == 0:
        return total

    # Then it moves down past one batch after the other. That changes the total only where the length changes between
    # the first rank of the two batches and the first rank of the next.
    moved = np.unique((ends - 1) // size)
    moved = moved[moved < batches] * size

    def length_at(rank: NDArray[np.int64]) -> NDArray[np.int64]:
        return values[np.searchsorted(ends, rank, side="right")]

    change = (size - rest) * length_at(moved) + rest * length_at(moved + size) - size * length_at(moved + rest)
    return total + int(np.cumsum(change).min(initial=0))


def tokens_of(histogram: NDArray[np.int64]) -> int:
    """Add up the tokens of all segments."""
    return int(histogram @ np.arange(len(histogram)))


def _ratio(tokens: int, total: float) -> float:
    """The padding ratio; rounding may leave an expected total a hair below the tokens."""
    return max(0.0, 1 - tokens / total)
