"""NNLSHP: the solver meets the conditions of a least-squares solution, and the packs those of the paper."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packer.algorithms import get_algorithm
from packer.algorithms.nnls import (
    PatternColumns,
    WantedSums,
    count_strategies,
    every_strategy,
    fill,
    improve,
    nnlshp,
    no_columns,
)
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.patterns import Rows
from packer.errors import PackerError
from tests.helpers import naive
from tests.helpers.algorithms import assert_valid, jit_only, packs_of
from tests.helpers.histograms import histogram_of, histograms, read_histogram


def rows_of(offsets, values):
    return [values[start:end].tolist() for start, end in pairwise(offsets)]


# ---- strategies ----


@given(capacity=st.integers(1, 16), limit=st.integers(1, 17))
def test_every_way_to_fill_a_pack_is_a_strategy_once(capacity, limit):
    expected = naive.strategies(capacity, limit)
    assert count_strategies(capacity, limit, 10**9) == len(expected)
    assert rows_of(*every_strategy(capacity, limit)) == expected


def test_the_paper_has_22102_strategies():
    assert count_strategies(512, 3, 10**6) == 22_102
    assert len(every_strategy(512, 3)[0]) == 22_103


def test_counting_stops_above_what_is_asked():
    assert 1000 < count_strategies(8192, 10**6, 1000) < 10**4


# ---- the solver ----


def assert_least_squares(columns, target, passive):
    """The Karush-Kuhn-Tucker conditions, for a convex problem those of a minimum."""
    numbers = passive.columns[: passive.used]
    amounts = np.zeros(len(columns.offsets) - 1)
    amounts[numbers] = passive.amounts[: passive.used]
    assert (passive.amounts[: passive.used] > 0).all()
    entries = [[(row, 1.0) for row in rows] for rows in rows_of(columns.offsets, columns.lengths)]
    slopes = np.array(naive.slopes(entries, np.zeros(len(entries)), amounts, target.counts, target.weights))
    scale = 1 + target.counts.max()
    assert slopes.max(initial=0) <= 1e-7 * scale
    assert np.abs(slopes[numbers]).max(initial=0) <= 1e-7 * scale


@given(data=st.data(), capacity=st.integers(1, 12), limit=st.integers(1, 6))
def test_amounts_are_the_least_squares(data, capacity, limit):
    counts = data.draw(st.lists(st.integers(0, 50), min_size=capacity, max_size=capacity))
    weight = data.draw(st.sampled_from([1.0, 0.09**2, 9.0]))
    columns = PatternColumns(*every_strategy(capacity, limit))
    weights = np.ones(capacity + 1)
    weights[: capacity // 3 + 1] = weight
    target = WantedSums(np.array([0.0, *counts]), weights)
    passive = improve(columns, target, no_columns(capacity + 1), 1e-9)
    assert_least_squares(columns, target, passive)
    # once more from there changes nothing
    assert improve(columns, target, passive, 1e-9).used == passive.used


@jit_only
def test_amounts_are_the_least_squares_at_the_size_of_the_paper():
    rng = np.random.default_rng([5])
    offsets, lengths = every_strategy(128, 3)
    columns = PatternColumns(offsets, lengths)
    counts = np.append(0, rng.integers(0, 10**5, 128)).astype(np.float64)
    target = WantedSums(counts, np.ones(129))
    assert_least_squares(columns, target, improve(columns, target, no_columns(129), 1e-6))


# ---- the remainder ----


def test_places_without_a_segment_take_shorter_ones_then_padding():
    # 2 packs of [6, 4] are asked for and there is one 4; the 3 goes where the other would
    histogram = histogram_of(10, {6: 2, 4: 1, 3: 1})
    strategy = Rows(values=np.array([4, 6], np.int32), row_starts=np.array([0, 2]))
    assert packs_of(fill(histogram, 2, strategy, np.array([2]))) == {(6, 4): 1, (6, 3): 1}
    assert packs_of(fill(histogram, 2, strategy, np.array([9]))) == {(6, 4): 1, (6, 3): 1}
    assert packs_of(fill(histogram, 1, strategy, np.array([0]))) == {(6,): 2, (4,): 1, (3,): 1}


@given(data=st.data(), histogram=histograms(st.integers(1, 12)), limit=st.integers(1, 8))
def test_any_counts_give_packs_of_all_there_is(data, histogram, limit):
    offsets, lengths = every_strategy(len(histogram) - 1, limit)
    strategies = Rows(values=lengths, row_starts=offsets)
    size = len(strategies)
    counts = np.array(data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)), np.int64)
    patterns = fill(histogram, limit, strategies, counts)
    assert_valid(patterns, histogram, limit)
    if not counts.any():
        assert packs_of(patterns) == packs_of(best_fit_decreasing(histogram, limit))


# ---- the algorithms ----


@given(histogram=histograms(st.integers(1, 60)), max_segments=st.sampled_from([None, 1, 2, 3, 4]))
@example(histogram_of(10, {10: 3, 7: 5, 3: 1}), 1)  # a residual at 10 itself may be left
@example(histogram_of(8, {8: 1, 4: 3, 5: 9}), 2)
def test_the_published_form_packs_all(histogram, max_segments):
    patterns = nnlshp(histogram, max_segments)
    assert_valid(patterns, histogram, 3 if max_segments is None else max_segments)
    assert packs_of(patterns) == packs_of(nnlshp(histogram, 3 if max_segments is None else max_segments))


@jit_only
def test_a_part_begun_with_the_patterns_of_all_needs_as_few_packs():
    rng = np.random.default_rng(3)
    whole = np.append(0, rng.integers(0, 10**6, 64))
    part = rng.multinomial(30_000, whole / whole.sum())
    begun = nnlshp(part, 3, nnlshp(whole, 3))
    assert_valid(begun, part, 3)
    assert begun.packs == pytest.approx(nnlshp(part, 3).packs, rel=0.001)


def test_the_published_form_refuses_what_it_cannot_list():
    histogram = histogram_of(4096, {4096: 1})
    with pytest.raises(PackerError) as error:
        get_algorithm("nnlshp").solve(histogram)
    assert str(error.value) == (
        "nnlshp lists every way to fill 4096 tokens with at most 3 segments: "
        "1,400,150 or more, above its limit of 100,000; choose auto, or fewer segments"
    )


# ---- published numbers ----


@pytest.mark.nightly
@jit_only
def test_wikipedia_packs_as_published(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    published = nnlshp(histogram, 3)
    assert_valid(published, histogram, 3)
    assert published.packs == pytest.approx(8_155_059, abs=5)


@jit_only
def test_squad_packs_as_published(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "squad_1_1_384.csv")
    assert 40_700 <= nnlshp(histogram, 3).packs <= 40_778
