"""Histograms for tests: written down, drawn by Hypothesis, or read from a file."""

import numpy as np
from hypothesis import strategies as st


def histogram_of(capacity, counts):
    """{3: 2} in packs of 4 -> [0, 0, 0, 2, 0]."""
    histogram = np.zeros(capacity + 1, np.int64)
    for length, count in counts.items():
        histogram[length] = count
    return histogram


def lengths_of(histogram):
    """[0, 0, 0, 2, 0] -> [3, 3]."""
    return np.repeat(np.arange(len(histogram)), histogram).tolist()


def packed_by(patterns, capacity):
    """[2, 2, 1] three times and [4] once -> [0, 3, 6, 0, 1]."""
    counted = np.zeros(capacity + 1, np.int64)
    np.add.at(counted, patterns.extents, np.repeat(patterns.counts, np.diff(patterns.offsets)))
    return counted


def read_histogram(path):
    """A histogram from a CSV file with the columns length and count; its last length is the capacity."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64)
    histogram = np.zeros(table[-1, 0] + 1, np.int64)
    histogram[table[:, 0]] = table[:, 1]
    return histogram


# above 64 * 64 lengths the set of keys needs a second word of its summary
capacities = st.one_of(st.integers(1, 24), st.integers(25, 300), st.integers(4000, 9000))

limits = st.one_of(st.none(), st.integers(1, 6), st.just(10_000))


@st.composite
def histograms(draw, capacities=capacities):
    """A few lengths, some of them often: packs of the same content become groups, and groups get split."""
    capacity = draw(capacities)
    lengths = st.integers(1, capacity)
    counts = draw(st.dictionaries(lengths, st.one_of(st.integers(1, 4), st.integers(5, 25)), max_size=8))
    return histogram_of(capacity, counts)
