"""Lower bounds: no packing goes below them, and they are what their definitions say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.algorithms.bounds import l2_bound, lower_bound, segments_bound, token_bound
from tests.helpers import naive
from tests.helpers.histograms import histogram_of, histograms, lengths_of, limits, read_histogram

few = st.integers(1, 14).flatmap(
    lambda capacity: st.lists(st.integers(1, capacity), max_size=8).map(
        lambda lengths: np.bincount(np.array(lengths, np.int64), minlength=capacity + 1)
    )
)


@given(histogram=few, max_segments=limits)
def test_no_bound_is_above_the_optimum(histogram, max_segments):
    optimum = naive.optimal_packs(lengths_of(histogram), len(histogram) - 1, max_segments)
    assert token_bound(histogram) <= optimum
    assert l2_bound(histogram) <= optimum
    assert segments_bound(histogram, max_segments) <= optimum
    assert lower_bound(histogram, max_segments) <= optimum


@given(histogram=histograms(st.integers(1, 60)))
def test_l2_is_its_definition_and_at_least_the_token_bound(histogram):
    assert l2_bound(histogram) == naive.l2_bound(lengths_of(histogram), len(histogram) - 1)
    assert l2_bound(histogram) >= token_bound(histogram)


@given(histogram=histograms(), max_segments=st.integers(1, 6))
def test_the_segments_bound_is_at_least_segments_over_the_limit(histogram, max_segments):
    assert segments_bound(histogram, max_segments) * max_segments >= histogram.sum()


@pytest.mark.parametrize(
    ("capacity", "counts", "max_segments", "bounds"),
    [
        (10, {}, None, (0, 0, 0)),
        (1, {1: 3}, None, (3, 3, 3)),
        (4, {3: 3}, None, (3, 3, 3)),
        (12, {9: 1, 5: 1, 4: 2, 1: 1}, None, (2, 3, 2)),
        (10, {6: 3, 5: 1}, None, (3, 4, 4)),
        (10, {9: 1, 2: 3}, 2, (2, 2, 3)),
        (10, {1: 20}, 4, (2, 2, 5)),
        (10, {10: 3, 1: 8}, 4, (4, 4, 5)),
    ],
    ids=[
        "nothing",
        "packs of 1",
        "large only",
        "L2",
        "L2 and segments",
        "long ones apart",
        "short ones",
        "full ones apart",
    ],
)
def test_bounds_of_examples(capacity, counts, max_segments, bounds):
    histogram = histogram_of(capacity, counts)
    found = (token_bound(histogram), l2_bound(histogram), segments_bound(histogram, max_segments))
    assert found == bounds
    assert lower_bound(histogram, max_segments) == max(bounds)
    assert all(type(bound) is int for bound in found)


def test_bounds_are_exact_where_floats_are_not():
    # 2**53 + 1 tokens in packs of 1024
    histogram = histogram_of(1024, {1024: 2**43, 1: 1})
    assert token_bound(histogram) == l2_bound(histogram) == 2**43 + 1


def test_wikipedia_has_the_published_token_bound_and_better_ones(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    assert histogram.sum() == 16_279_552
    assert token_bound(histogram) == 8_134_368
    # the optimum of the linear program, rounded up, is the same
    assert lower_bound(histogram) == l2_bound(histogram) == 8_135_727
    # what best fit needs at depth 2 is therefore optimal
    assert lower_bound(histogram, 2) == segments_bound(histogram, 2) == 10_099_081


def test_squad_has_the_published_token_bound_and_a_better_one(shared_data):
    histogram = read_histogram(shared_data / "histograms" / "squad_1_1_384.csv")
    assert token_bound(histogram) == 39_713
    assert lower_bound(histogram) == 39_775
