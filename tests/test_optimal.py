"""Column generation: bounds that are proofs, packs that are complete."""

import subprocess
import sys

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.algorithms.bounds import lower_bound
from packer.algorithms.column_generation import certified_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.optimal import Limits, Search, auto, solve
from packer.algorithms.worst_fit import deepest, spread
from tests.helpers import naive
from tests.helpers.algorithms import assert_valid, heavy_tailed, jit_only, packs_of
from tests.helpers.histograms import histogram_of, histograms, lengths_of, limits, read_histogram

SETS = ["gsm8k", "nltk_docs", "python_code", "python_peps", "sgd_multiturn", "t0_train_50k"]


def solve_optimal(histogram, max_segments=None, **limits):
    """Return the search after its end: its best packing, and the bound that it proved."""
    search = Search(histogram, max_segments, Limits(**limits))
    assert search.run().lower_bound == search.bound
    return search


# ---- pricing ----


def test_the_certificate_is_exact_where_floats_are_not():
    # 2**53 + 1 segments that fill a pack each
    assert certified_bound(np.array([2**53 + 1]), np.array([2**40]), 2**40) == 2**53 + 1
    assert certified_bound(np.array([3]), np.array([2]), 4) == 2
    assert certified_bound(np.array([3]), np.array([0]), 0) == 0


# ---- small instances ----


@given(
    histogram=st.integers(4, 14).flatmap(
        lambda capacity: st.lists(st.integers(1, capacity), min_size=1, max_size=9).map(
            lambda lengths: np.bincount(lengths, minlength=capacity + 1)
        )
    ),
    max_segments=limits,
)
def test_small_instances_are_packed_to_their_optimum_and_no_bound_is_above_it(histogram, max_segments):
    optimum = naive.optimal_packs(lengths_of(histogram), len(histogram) - 1, max_segments)
    solution = solve_optimal(histogram, max_segments)
    assert solution.bound <= optimum <= solution.best.packs
    assert solution.best.packs == optimum or histogram.sum() > 6


# ---- any instance ----


@given(histogram=histograms(), max_segments=limits)
def test_packs_are_never_more_than_those_of_best_fit_nor_less_than_the_bound(histogram, max_segments):
    solution = solve_optimal(histogram, max_segments, rounds=20)
    assert_valid(solution.best, histogram, max_segments)
    packs = solution.best.packs
    assert lower_bound(histogram, max_segments) <= solution.bound <= packs
    assert packs <= best_fit_decreasing(histogram, max_segments).packs


# ---- limits ----


def hard_histogram():
    lengths = np.random.default_rng([4]).lognormal(4, 0.8, 20_000).astype(np.int64)
    return np.bincount(np.clip(lengths, 1, 512), minlength=513) * (np.arange(513) > 0)


@jit_only
def test_it_stops_at_each_limit_with_the_best_so_far():
    histogram = hard_histogram()
    whole = solve_optimal(histogram, 7)
    assert whole.rounds > 2
    few = solve_optimal(histogram, 7, rounds=2)
    assert few.rounds == 2
    narrow = solve_optimal(histogram, 7, columns=1)
    assert narrow.rounds == 0
    no_work = solve_optimal(histogram, 7, work=1)
    assert no_work.rounds == 0
    early = solve_optimal(histogram, 7, work=1_000_000)
    assert 0 < early.rounds < whole.rounds
    for solution in (few, narrow, no_work, early):
        assert whole.best.packs <= solution.best.packs
        assert solution.bound <= whole.bound
        assert_valid(solution.best, histogram, 7)


@pytest.mark.nightly(after=1)
@jit_only
@pytest.mark.slow
@pytest.mark.parametrize("max_segments", [None, 7])
def test_the_same_histogram_gives_the_same_patterns_in_every_process(max_segments):
    histogram = hard_histogram()
    first = solve(histogram, max_segments)
    script = (
        "import sys, hashlib; sys.path.insert(0, 'tests'); from test_optimal import hard_histogram, solve;"
        f"patterns = solve(hard_histogram(), {max_segments});"
        "print(hashlib.sha256(patterns.extents.tobytes() + patterns.counts.tobytes()).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) == 1, "the solver prints on stdout"
    again = solve(histogram, max_segments)
    np.testing.assert_array_equal(first.extents, again.extents)
    np.testing.assert_array_equal(first.counts, again.counts)


def test_a_limit_ends_the_heuristics_too():
    histogram = hard_histogram()
    asked = []
    patterns = spread(histogram, 7, stop=lambda: bool(asked.append(1)) or len(asked) > 3)
    assert_valid(patterns, histogram, 7)
    assert patterns.packs >= spread(histogram, 7).packs
    assert len(asked) < 100
    assert_valid(spread(histogram, 7, stop=lambda: True), histogram, 7)


def test_a_limit_binds_below_the_deepest_pack_there_can_be():
    assert deepest(histogram_of(9, {2: 2, 5: 1})) == 4
    assert deepest(histogram_of(9, {})) == 0


# ---- auto, and exact fill, which it tries first ----


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


# ---- the numbers that are promised ----


def split(shared_data, name, max_len):
    """A histogram of real lengths; documents that are longer are split."""
    lengths = np.load(shared_data / "lengths" / f"{name}.npy").astype(np.int64)
    histogram = np.bincount(lengths % max_len, minlength=max_len + 1)
    histogram[max_len] += (lengths // max_len).sum()
    histogram[0] = 0
    return histogram


@jit_only
@pytest.mark.nightly(after=2)
@pytest.mark.parametrize(
    ("max_segments", "packs"), [(3, 8_143_840), (4, 8_135_730), (8, 8_135_730), (12, 8_135_730), (None, 8_135_730)]
)
def test_wikipedia_is_packed_to_its_bound(shared_data, max_segments, packs):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    solution = solve_optimal(histogram, max_segments)
    assert_valid(solution.best, histogram, max_segments)
    assert solution.best.packs <= packs
    # the optimum of the linear program, rounded up
    assert solution.bound == (8_143_829 if max_segments == 3 else 8_135_727)


@jit_only
@pytest.mark.parametrize(
    "max_len", [512, 2048, 8192, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1024, 4096))]
)
@pytest.mark.parametrize("name", SETS)
def test_real_lengths_are_packed_within_one_pack_of_a_proven_bound(shared_data, name, max_len):
    histogram = split(shared_data, name, max_len)
    solution = solve_optimal(histogram)
    assert_valid(solution.best, histogram, None)
    assert solution.best.packs <= solution.bound + 1


@jit_only
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "max_len", "max_segments"),
    [
        ("t0_train_50k", 2048, 8),
        ("gsm8k", 8192, 64),
        ("python_code", 2048, 3),
        ("python_code", 8192, 4),
        ("nltk_docs", 4096, 4),
        ("nltk_docs", 8192, 6),
        ("python_peps", 8192, 3),
    ],
)
def test_real_lengths_are_packed_within_a_thousandth_of_a_bound_where_a_limit_binds(
    shared_data, name, max_len, max_segments
):
    histogram = split(shared_data, name, max_len)
    solution = solve_optimal(histogram, max_segments)
    assert_valid(solution.best, histogram, max_segments)
    assert solution.best.packs <= max(solution.bound + 1, 1.001 * solution.bound)
    # auto has limits of its own, which it reaches in about a second
    patterns = auto(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= max(patterns.lower_bound + 1, 1.003 * patterns.lower_bound)


@jit_only
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("max_len", "max_segments"), [(2048, 5), (4096, 8), (4096, 9), (8192, 8), (8192, 16)])
def test_a_million_heavy_tailed_lengths_are_packed_within_a_thousandth_where_a_limit_binds(max_len, max_segments):
    lengths = np.random.default_rng([7]).lognormal(np.log(300), 1, 1_000_000).astype(np.int64)
    histogram = np.bincount(np.clip(lengths, 1, max_len), minlength=max_len + 1)
    patterns = auto(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= 1.001 * patterns.lower_bound
    assert patterns.packs < 0.95 * best_fit_decreasing(histogram, max_segments).packs


def test_a_sample_is_packed_as_tightly_from_the_patterns_of_the_whole_in_fewer_rounds(shared_data):
    whole = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv") // 67
    sample = np.random.default_rng(0).binomial(whole, 0.3)
    cold, warm = Search(sample, 3, Limits()), Search(sample, 3, Limits(), start=auto(whole, 3))
    packs, found = cold.run(), warm.run()
    assert_valid(found, sample, 3)
    assert (found.packs, found.lower_bound) == (packs.packs, packs.lower_bound)
    assert warm.rounds < cold.rounds / 2
    # At the values of the linear program, no packing of other segments needs fewer packs than they are worth.
    other = sample // 3
    assert found.values @ other <= auto(other, 3).packs


@jit_only
def test_a_limit_that_binds_leaves_a_small_gap_in_long_packs():
    histogram = heavy_tailed(4096, 1)
    assert best_fit_decreasing(histogram, 8).packs > 1.1 * lower_bound(histogram, 8)
    assert spread(histogram, 8).packs <= 1.003 * lower_bound(histogram, 8)


# ---- HiGHS elsewhere in the process ----

_ANY_THREADS = """
import sys, highspy, packer
other = highspy.Highs()
other.setOptionValue("threads", int(sys.argv[1]))
other.addVariable(0, 1)
other.run()
print(packer.stats(sys.argv[2], max_len=100, algorithm="optimal").totals.rows)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_do_not_depend_on_how_other_code_ran_highs_in_the_process(tmp_path, threads):
    counts = {41: 70, 34: 130, 27: 90, 19: 210, 12: 45}
    histogram = tmp_path / "lengths.csv"
    histogram.write_text("length,count\n" + "".join(f"{length},{count}\n" for length, count in counts.items()))
    fewest = packer.stats(histogram, max_len=100, algorithm="optimal").totals.rows
    assert fewest < packer.stats(histogram, max_len=100, algorithm="bfd").totals.rows
    command = [sys.executable, "-c", _ANY_THREADS, str(threads), str(histogram)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(printed.split()[-1]) == fewest


def test_a_linear_program_that_highs_leaves_unsolved_is_said(monkeypatch, caplog):
    histogram = histogram_of(100, {41: 70, 34: 130, 27: 90, 19: 210, 12: 45})
    monkeypatch.setattr(highspy.Highs, "run", lambda self: highspy.HighsStatus.kError)
    patterns = solve(histogram)
    assert_valid(patterns, histogram, None)
    assert "HiGHS left a linear program unsolved (kError, " in caplog.text
