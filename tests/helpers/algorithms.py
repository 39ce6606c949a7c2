"""What tests of histogram algorithms share."""

from collections import Counter

import numba
import numpy as np
import pytest

from tests.helpers.histograms import packed_by

jit_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="too slow without compiled kernels")


def packs_of(patterns):
    """The packs as a multiset: {(3000, 1000, 96): 1204}."""
    packs = Counter()
    for start, end, count in zip(patterns.offsets[:-1], patterns.offsets[1:], patterns.counts, strict=True):
        packs[tuple(patterns.extents[start:end].tolist())] += int(count)
    return packs


def assert_valid(patterns, histogram, max_segments):
    capacity = len(histogram) - 1
    assert (patterns.offsets.dtype, patterns.extents.dtype, patterns.counts.dtype) == (np.int64, np.int32, np.int64)
    assert patterns.offsets[0] == 0
    assert patterns.offsets[-1] == len(patterns.extents)
    assert len(patterns.counts) == len(patterns.offsets) - 1
    assert (patterns.counts > 0).all()
    np.testing.assert_array_equal(packed_by(patterns, capacity), histogram)
    for pack in packs_of(patterns):
        assert 0 < sum(pack) <= capacity
        assert list(pack) == sorted(pack, reverse=True)
        assert max_segments is None or len(pack) <= max_segments


def heavy_tailed(capacity, sigma):
    lengths = np.random.default_rng([3]).lognormal(6, sigma, 200_000).astype(np.int64)
    return np.bincount(np.clip(lengths, 1, capacity), minlength=capacity + 1)
