"""Rows drawn at random: exactly full, nothing lost, as the slow twin draws them, and mixed like the corpus."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.bench_rows import shuffled
from packer.algorithms import get_algorithm
from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.mixed import NEAR, draw_rows
from packer.report.measures import RowSums
from tests.helpers import naive

orders = st.integers(1, 40).flatmap(
    lambda max_len: st.tuples(st.just(max_len), st.lists(st.integers(1, max_len), max_size=80))
)


ahead = st.integers(1, 12) | st.just(NEAR)


def drawn(order, max_len, max_segments=None, reserve=0, ahead=NEAR, *, far=False):
    order = np.array(order, np.int32)
    found = draw_rows(order, max_len, max_segments, reserve=reserve, ahead=ahead, far=far)
    return [found.values[a:b].tolist() for a, b in itertools.pairwise(found.row_starts.tolist())]


@given(orders, st.none() | st.integers(1, 8), st.integers(0, 100), ahead, st.booleans())
@example((3, [2, 2, 1]), None, 0, 1, True)  # the order goes on beyond what was looked at ahead
def test_rows_are_those_of_the_slow_twin_and_exactly_full(made, max_segments, reserve, ahead, far):
    max_len, order = made
    rows = drawn(order, max_len, max_segments, reserve, ahead, far=far)
    assert rows == naive.draw_rows(order, max_len, max_segments, reserve, ahead, far=far)
    assert all(sum(row) == max_len for row in rows)
    assert all(len(row) <= (max_segments or max_len) for row in rows)
    assert Counter(extent for row in rows for extent in row) <= Counter(order)
    most = drawn(order, max_len, max_segments, 0, ahead, far=far)
    assert most[: len(rows)] == rows  # a larger reserve only ends earlier
    if order:  # the last row may take what it needs of the reserve
        assert sum(order) - max_len * len(rows) >= min(reserve, sum(order)) - max_len


def test_rows_of_real_like_lengths_are_those_of_the_slow_twin():
    order = like_real(2_000, 512)
    for max_segments, ahead, far in ((None, NEAR, False), (3, 300, True), (6, 100, False), (None, 100, True)):
        twin = naive.draw_rows(order.tolist(), 512, max_segments, 0, ahead, far=far)
        assert drawn(order, 512, max_segments, 0, ahead, far=far) == twin


def like_real(documents, max_len, seed=5):
    return np.minimum(np.random.default_rng(seed).lognormal(4.5, 0.8, documents) + 1, max_len).astype(np.int32)


def test_the_example_of_the_docstring():
    assert drawn([5, 3, 2, 4, 5, 6], 10) == [[5, 3, 2], [4, 6]]


def test_the_first_rows_have_segments_as_long_as_the_last_however_many_there_are():
    order = like_real(200_000, 512)
    found = draw_rows(order.copy(), 512, reserve=int(0.02 * order.sum()))
    depths = np.diff(found.row_starts)
    tenths = [part.mean() for part in np.array_split(depths, 10)]
    assert max(tenths) < 1.05 * min(tenths)


@pytest.mark.parametrize("max_len", [1024, 4096])
def test_drawn_rows_are_mixed_like_a_shuffled_corpus_and_solved_ones_are_not(max_len):
    order = like_real(50_000, max_len)
    histogram = np.bincount(order, minlength=max_len + 1)
    found = draw_rows(order.copy(), max_len, reserve=int(0.02 * order.sum()))
    solved = get_algorithm("bfd").solve(histogram)
    packs = np.repeat(np.arange(len(solved.counts)), solved.counts)
    depths = np.diff(solved.offsets)[packs]
    extents = solved.extents[joined_ranges(solved.offsets[:-1][packs], depths)]
    shares = []
    for rows in ((found.values, found.row_starts), (extents, np.cumsum([0, *depths]))):
        sums = RowSums(max_len)
        sums.add(*rows)
        shares.append(sums.finish().within_row_share)
    assert shares[0] > 0.8 * shuffled(histogram).within_row_share
    assert shares[1] < 0.3 * shuffled(histogram).within_row_share
    assert len(found) > 0.975 * order.sum() / max_len


def test_what_is_left_is_like_what_was_drawn():
    # were the short ones used up to close rows, the solver could not fill the last
    order = like_real(50_000, 512)
    found = draw_rows(order.copy(), 512, reserve=int(0.02 * order.sum()))
    left = np.bincount(order, minlength=513) - np.bincount(found.values, minlength=513)
    left = np.repeat(np.arange(513), left)
    assert 0.5 * order.mean() < left.mean() < 2 * order.mean()
