"""NNLSHP: the solver meets the conditions of a least-squares solution, and the packs those of the paper."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packer.algorithms import get_algorithm
from packer.algorithms.active_set import PatternColumns, Target, improve, no_columns
from packer.algorithms.nnls import Strategies, ennlshp, fill, nnlshp, nnlshp_published
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.strategies import NEVER, best_strategies, count_strategies, every_strategy
from packer.algorithms.worst_fit import spfhp
from packer.errors import PackerError
from tests.helpers import naive
from tests.helpers.algorithms import assert_valid, jit_only, packs_of
from tests.helpers.histograms import histogram_of, histograms, limits, read_histogram


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


@given(data=st.data(), capacity=st.integers(2, 14), limit=st.integers(1, 15))
def test_the_best_strategies_are_the_best_with_each_length(data, capacity, limit):
    worth = st.one_of(st.just(NEVER), st.integers(-5, 5).map(float))
    values = np.array([NEVER, *data.draw(st.lists(worth, min_size=capacity, max_size=capacity))])
    found = rows_of(*best_strategies(values, limit, 0.0))
    every = naive.strategies(capacity, limit)
    for strategy in found:
        assert strategy in every
    best = {
        length: max((sum(values[strategy]) for strategy in every if length in strategy), default=NEVER)
        for length in range(1, capacity + 1)
    }
    expected = sorted((value for value in best.values() if value > 0), reverse=True)
    assert [sum(values[strategy]) for strategy in found] == expected


# ---- the solver ----


def assert_least_squares(columns, target, passive):
    """The Karush-Kuhn-Tucker conditions, for a convex problem those of a minimum."""
    numbers = passive.columns[: passive.used]
    amounts = np.zeros(len(columns.damping))
    amounts[numbers] = passive.amounts[: passive.used]
    assert (passive.amounts[: passive.used] > 0).all()
    signs = np.where(columns.damping > 0, -1.0, 1.0)
    entries = [
        [(row, sign) for row in rows]
        for rows, sign in zip(rows_of(columns.offsets, columns.lengths), signs, strict=True)
    ]
    slopes = np.array(naive.slopes(entries, columns.damping, amounts, target.counts, target.weights))
    scale = 1 + target.counts.max()
    assert slopes.max(initial=0) <= 1e-7 * scale
    assert np.abs(slopes[numbers]).max(initial=0) <= 1e-7 * scale


@given(data=st.data(), capacity=st.integers(1, 12), limit=st.integers(1, 6), damped=st.booleans())
def test_amounts_are_the_least_squares(data, capacity, limit, damped):
    counts = data.draw(st.lists(st.integers(0, 50), min_size=capacity, max_size=capacity))
    weight = data.draw(st.sampled_from([1.0, 0.09**2, 9.0]))
    offsets, lengths = every_strategy(capacity, limit)
    padding = np.arange(1, capacity + 1) if damped else np.empty(0, np.int64)
    columns = PatternColumns(
        np.concatenate([np.arange(len(padding)), len(padding) + offsets]),
        np.concatenate([padding.astype(np.int32), lengths]),
        np.concatenate([(padding / 4.0) ** 2, np.zeros(len(offsets) - 1)]),
    )
    weights = np.ones(capacity + 1)
    weights[: capacity // 3 + 1] = weight
    target = Target(np.array([0.0, *counts]), weights)
    passive = improve(columns, target, no_columns(capacity + 1 + len(padding)), 1e-9, 10**12)
    assert_least_squares(columns, target, passive)
    # once more from there changes nothing; half the work gives a solution to go on from
    again = improve(columns, target, passive, 1e-9, 10**12)
    assert again.used == passive.used


@jit_only
def test_amounts_are_the_least_squares_at_the_size_of_the_paper():
    rng = np.random.default_rng([5])
    offsets, lengths = every_strategy(128, 3)
    columns = PatternColumns(offsets, lengths, np.zeros(len(offsets) - 1))
    counts = np.append(0, rng.integers(0, 10**5, 128)).astype(np.float64)
    target = Target(counts, np.ones(129))
    assert_least_squares(columns, target, improve(columns, target, no_columns(129), 1e-6, 10**12))


# ---- the remainder ----


def test_places_without_a_segment_take_shorter_ones_then_padding():
    # 2 packs of [6, 4] are asked for and there is one 4; the 3 goes where the other would
    histogram = histogram_of(10, {6: 2, 4: 1, 3: 1})
    strategy = Strategies(np.array([0, 2]), np.array([4, 6], np.int32), np.empty(1))
    assert packs_of(fill(histogram, 2, strategy, np.array([2]))) == {(6, 4): 1, (6, 3): 1}
    assert packs_of(fill(histogram, 2, strategy, np.array([9]))) == {(6, 4): 1, (6, 3): 1}
    assert packs_of(fill(histogram, 1, strategy, np.array([0]))) == {(6,): 2, (4,): 1, (3,): 1}


@given(data=st.data(), histogram=histograms(st.integers(1, 12)), limit=st.integers(1, 8))
def test_any_counts_give_packs_of_all_there_is(data, histogram, limit):
    strategies = Strategies(*every_strategy(len(histogram) - 1, limit), np.empty(0))
    size = len(strategies.offsets) - 1
    counts = np.array(data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)), np.int64)
    patterns = fill(histogram, limit, strategies, counts)
    assert_valid(patterns, histogram, limit)
    if not counts.any():
        assert packs_of(patterns) == packs_of(best_fit_decreasing(histogram, limit))


# ---- the algorithms ----


@pytest.mark.parametrize("solve", [nnlshp, ennlshp])
@given(histogram=histograms(st.integers(1, 200)), max_segments=limits)
@example(histogram_of(10, {10: 3, 7: 5, 3: 1}), 2)
def test_nnlshp_packs_all_and_is_never_worse_than_spfhp(solve, histogram, max_segments):
    patterns = solve(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= spfhp(histogram, max_segments).packs


@given(histogram=histograms(st.integers(1, 60)), max_segments=st.sampled_from([None, 1, 2, 3, 4]))
@example(histogram_of(10, {10: 3, 7: 5, 3: 1}), 1)  # a residual at 10 itself may be left
@example(histogram_of(8, {8: 1, 4: 3, 5: 9}), 2)
def test_the_published_form_packs_all(histogram, max_segments):
    patterns = nnlshp_published(histogram, max_segments)
    assert_valid(patterns, histogram, 3 if max_segments is None else max_segments)
    assert packs_of(patterns) == packs_of(nnlshp_published(histogram, 3 if max_segments is None else max_segments))


def test_least_squares_finds_what_greedy_misses():
    histogram = histogram_of(10, {5: 40, 4: 40, 3: 80, 2: 40})
    assert best_fit_decreasing(histogram, 3).packs > 70
    assert nnlshp(histogram, 3).packs < best_fit_decreasing(histogram, 3).packs


def test_the_published_form_refuses_what_it_cannot_list():
    histogram = histogram_of(4096, {4096: 1})
    with pytest.raises(PackerError) as error:
        get_algorithm("nnlshp-published").solve(histogram)
    assert str(error.value) == (
        "nnlshp-published lists every way to fill 4096 tokens with at most 3 segments: "
        "1,400,150 or more, above its limit of 1,000,000; use nnlshp, or fewer segments"
    )


# ---- published numbers, and times with room for busy machines ----


@pytest.mark.nightly
@jit_only
def test_wikipedia_packs_as_published_and_better(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    published = nnlshp_published(histogram, 3)
    assert_valid(published, histogram, 3)
    assert 8_154_900 <= published.packs <= 8_155_059
    assert nnlshp(histogram, 3).packs <= 8_150_037
    assert nnlshp(histogram, 2).packs <= spfhp(histogram, 2).packs
    assert nnlshp(histogram, 8).packs <= 8_135_740


@jit_only
def test_squad_packs_as_published_and_better(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "squad_1_1_384.csv")
    assert 40_700 <= nnlshp_published(histogram, 3).packs <= 40_778
    assert nnlshp(histogram, 3).packs <= 40_400
    assert ennlshp(histogram, 3).packs <= 40_300


@jit_only
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("max_len", "max_segments"), [(4096, 8), (8192, None)])
def test_long_packs_stay_quick(shared_data, max_len, max_segments):
    lengths = np.load(shared_data / "lengths" / "nltk_docs.npy")
    histogram = np.bincount(lengths[lengths <= max_len], minlength=max_len + 1).astype(np.int64)
    began = time.perf_counter()
    patterns = nnlshp(histogram, max_segments)
    assert time.perf_counter() - began < 60
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= spfhp(histogram, max_segments).packs
