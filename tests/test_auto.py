"""The default algorithm: quick where it can be, better where that is worth it, never worse than best fit."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_algorithms import assert_valid, jit_only, packs_of
from test_optimal import hard_histogram, solve_optimal

from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.optimal import auto
from tests.histograms import histogram_of, histograms, limits


@given(histogram=histograms(), max_segments=limits)
def test_auto_never_needs_more_packs_than_best_fit_or_exact_fill(histogram, max_segments):
    patterns = auto(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= best_fit_decreasing(histogram, max_segments).packs
    assert patterns.packs <= exact_fill(histogram, max_segments).packs


@given(histogram=histograms(st.integers(1, 300)), max_segments=limits)
def test_exact_fill_is_complete_and_feasible(histogram, max_segments):
    before = histogram.copy()
    assert_valid(exact_fill(histogram, max_segments), histogram, max_segments)
    np.testing.assert_array_equal(histogram, before)


def test_exact_fill_finds_the_packs_without_a_gap():
    # the longest that fits beside 6 is 3, which leaves a gap; 2 and 2 leave none
    histogram = histogram_of(10, {6: 5, 3: 3, 2: 13})
    assert packs_of(exact_fill(histogram)) == {(6, 2, 2): 5, (3, 3, 2, 2): 1, (3, 2): 1}
    assert packs_of(exact_fill(histogram, 2))[(6, 3)] == 3


def test_exact_fill_takes_the_fullest_pack_where_none_is_full():
    assert packs_of(exact_fill(histogram_of(20, {12: 1, 7: 1, 4: 1, 3: 1}))) == {(12, 7): 1, (4, 3): 1}


@jit_only
@pytest.mark.parametrize("max_segments", [3, 4, 6])
def test_auto_closes_a_gap_that_is_worth_it(max_segments):
    histogram = hard_histogram()
    patterns = auto(histogram, max_segments)
    bound = solve_optimal(histogram, max_segments).bound
    assert patterns.packs <= bound * 1.001 + 1 < best_fit_decreasing(histogram, max_segments).packs


def test_auto_does_without_the_solver_where_the_bound_is_met():
    script = (
        "import sys; import numpy as np; from packer.algorithms.optimal import auto;"
        "auto(np.array([0, 4, 2, 0, 1])); print('highspy' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
