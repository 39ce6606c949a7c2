"""Padding ratios: the share of computed tokens that is padding, 1 - tokens / (rows x tokens per row).

A histogram holds the number of segments by length in tokens: int64, shape (max_len + 1,), with histogram[0] == 0 and at
least one segment. The cost of all functions depends on its shape, not on the number of segments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows per batch for which padding ratios are computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Padding:
    """Padding ratios of one epoch over the same segments, 0 <= ratio < 1, for several ways to form batches."""

    max_len: float
    """Ratio if every segment is padded to max_len."""

    batch_longest: dict[int, float]
    """Expected ratio by batch size, for random batches padded to their longest segment."""

    group_by_length: dict[int, float]
    """Ratio by batch size, for batches of similar lengths padded to their longest segment; no grouping has less."""

    packed: float
    """Ratio of the packed rows."""

    def speedup(self, ratio: float) -> float:
        """Return the tokens computed at a padding ratio over those computed if packed: 0.90, packed 0.05 -> 9.5."""
        return (1 - self.packed) / (1 - ratio)

    def to_json(self) -> dict[str, object]:
        """Return the ratios as values for JSON, with batch sizes as strings."""
        return {
            "max_len": self.max_len,
            "batch_longest": {str(size): ratio for size, ratio in self.batch_longest.items()},
            "group_by_length": {str(size): ratio for size, ratio in self.group_by_length.items()},
            "packed": self.packed,
        }


def padding_ratios(histogram: NDArray[np.int64], rows: int) -> Padding:
    """Return the padding ratios of the segments in a histogram, in batches and in `rows` packed rows.

    Random batches are computed exactly, not sampled: with q batches of B segments and a last one of r, the ratio is
    1 - tokens / (q B E[longest of B] + r E[longest of r]).
    """
    max_len = len(histogram) - 1
    tokens = tokens_of(histogram)
    segments = int(histogram.sum())
    longest = expected_longest(histogram, max(BATCH_SIZES))

    def random_total(size: int) -> float:
        if size == 1:
            return tokens  # equals the expectation, without its rounding errors
        batches, rest = divmod(segments, size)
        return float(batches * size * longest[min(size, segments)] + rest * longest[rest])

    return Padding(
        max_len=_ratio(tokens, segments * max_len),
        batch_longest={size: _ratio(tokens, random_total(size)) for size in BATCH_SIZES},
        group_by_length={size: _ratio(tokens, grouped_total(histogram, size)) for size in BATCH_SIZES},
        packed=_ratio(tokens, rows * max_len),
    )


def expected_longest(histogram: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Return the expected length of the longest of 0, 1, ..., `draws` random segments, drawn without replacement.

    The expectation is exact: if n of N segments are no longer than l, then b draws are all no longer than l with
    probability n/N (n-1)/(N-1) ... (n-b+1)/(N-b+1). Lengths 1, 2 and 4 -> [0, 7/3, 10/3, 4].

    Returns:
        Shape (min(draws, segments) + 1,).
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
    """Return the fewest tokens, including padding, of all segments in batches of `size` padded to their longest.

    Batches are consecutive in the order of length, and one smaller batch, if there is a remainder, is where it saves
    most: 9, 2, 2, 1, 1 in batches of 2 -> [9], [2, 2], [1, 1], which take 9 + 4 + 2 tokens.
    """
    values = np.flatnonzero(histogram)[::-1]
    # Segments are ranked from the longest: rank i has the length values[j] with ends[j - 1] <= i < ends[j].
    ends = np.cumsum(histogram[values])
    batches, rest = divmod(int(ends[-1]), size)

    # At first the smaller batch has the longest segments; the others start at the ranks rest, rest + size, ...
    started = -(-np.maximum(ends - rest, 0) // size)
    total = rest * int(values[0]) + size * int(np.diff(started, prepend=0) @ values)
    if rest == 0:
        return total

    # Then the smaller batch moves past one batch after the other. The total changes only where the length changes
    # between the first rank of the two batches and the first rank of the next one.
    moved = (ends - 1) // size
    moved = moved[(moved < batches) & (np.diff(moved, prepend=-1) > 0)] * size

    def length_at(rank: NDArray[np.int64]) -> NDArray[np.int64]:
        return values[np.searchsorted(ends, rank, side="right")]

    change = (size - rest) * length_at(moved) + rest * length_at(moved + size) - size * length_at(moved + rest)
    return total + int(np.cumsum(change).min(initial=0))


def tokens_of(histogram: NDArray[np.int64]) -> int:
    """Return the number of tokens in all segments of a histogram."""
    return int(histogram @ np.arange(len(histogram)))


def _ratio(tokens: int, total: float) -> float:
    """Return 1 - tokens / total, at least 0: rounding may leave an expected total slightly below the tokens."""
    return max(0.0, 1 - tokens / total)
