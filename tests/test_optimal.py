"""Column generation: bounds that are proofs, packs that are complete, targets that are met."""

import subprocess
import sys
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_algorithms import assert_valid, heavy_tailed, jit_only

from packer.algorithms.best_fit import best_fit_decreasing
from packer.algorithms.bounds import lower_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.optimal import Limits, solve, solve_optimal
from packer.algorithms.optimal.pricing import certified_bound, patterns_with, price
from packer.algorithms.optimal.rounding import round_packs
from packer.algorithms.patterns import Patterns
from packer.algorithms.spread import deepest, spread
from tests import naive
from tests.histograms import histogram_of, histograms, lengths_of, limits, read_histogram

SETS = ["gsm8k", "nltk_docs", "python_code", "python_peps", "sgd_multiturn", "t0_train_50k"]


def every_pattern(lengths, capacity, limit):
    """Every pattern, as indices of lengths, descending."""
    found = []
    for size in range(1, limit + 1):
        for indices in combinations_with_replacement(range(len(lengths) - 1, -1, -1), size):
            if sum(lengths[i] for i in indices) <= capacity:
                found.append(indices)
    return found


# ---- pricing ----


@given(
    capacity=st.integers(1, 12),
    limit=st.integers(1, 5),
    values=st.dictionaries(st.integers(1, 12), st.integers(0, 20), min_size=1, max_size=6),
)
def test_priced_patterns_are_the_best_of_all(capacity, limit, values):
    lengths = sorted(length for length in values if length <= capacity) or [1]
    worth = [values.get(length, 3) for length in lengths]
    patterns = every_pattern(lengths, capacity, limit)
    priced = price(np.array(lengths), np.array(worth), capacity, limit)
    assert priced.best == max(sum(worth[i] for i in pattern) for pattern in patterns)
    offsets, indices = patterns_with(np.arange(len(lengths)), np.array(lengths), np.array(worth), priced.table)
    for i in range(len(lengths)):
        best = max(sum(worth[j] for j in pattern) for pattern in patterns if i in pattern)
        assert priced.worth[i] == best
        pattern = tuple(indices[offsets[i] : offsets[i + 1]].tolist())
        assert i in pattern
        assert pattern in patterns
        assert sum(worth[j] for j in pattern) == best


def test_the_certificate_is_exact_where_floats_are_not():
    # 2**53 + 1 segments that fill a pack each
    assert certified_bound(np.array([2**53 + 1]), np.array([2**40]), 2**40) == 2**53 + 1
    assert certified_bound(np.array([3]), np.array([2]), 4) == 2
    assert certified_bound(np.array([3]), np.array([0]), 0) == 0


# ---- small instances, all of them ----


@jit_only
@pytest.mark.parametrize("max_segments", [None, 1, 2, 3])
def test_every_small_multiset_is_packed_within_its_optimum_and_its_bound(max_segments):
    off = cases = 0
    for capacity in range(1, 9):
        for size in range(1, 6):
            for lengths in combinations_with_replacement(range(1, capacity + 1), size):
                histogram = np.bincount(lengths, minlength=capacity + 1)
                optimum = naive.optimal_packs(sorted(lengths, reverse=True), capacity, max_segments)
                solution = solve_optimal(histogram, max_segments, limits=Limits())
                assert_valid(solution.patterns, histogram, max_segments)
                assert solution.lower_bound <= optimum <= solution.patterns.packs
                assert solution.proven == (solution.lower_bound == solution.patterns.packs)
                off += solution.patterns.packs > optimum
                cases += 1
    assert off <= cases / 1000


@given(
    histogram=st.integers(4, 14).flatmap(
        lambda capacity: st.lists(st.integers(1, capacity), min_size=4, max_size=9).map(
            lambda lengths: np.bincount(lengths, minlength=capacity + 1)
        )
    ),
    max_segments=limits,
)
def test_no_bound_is_above_the_optimum(histogram, max_segments):
    optimum = naive.optimal_packs(lengths_of(histogram), len(histogram) - 1, max_segments)
    solution = solve_optimal(histogram, max_segments, limits=Limits())
    assert solution.lower_bound <= optimum <= solution.patterns.packs


# ---- any instance ----


@given(histogram=histograms(), max_segments=limits)
def test_packs_are_never_more_than_those_of_best_fit_nor_less_than_the_bound(histogram, max_segments):
    solution = solve_optimal(histogram, max_segments, limits=Limits(rounds=20))
    assert_valid(solution.patterns, histogram, max_segments)
    packs = solution.patterns.packs
    assert lower_bound(histogram, max_segments) <= solution.lower_bound <= packs
    assert packs <= best_fit_decreasing(histogram, max_segments).packs
    assert solution.gap == pytest.approx((packs - solution.lower_bound) / max(1, solution.lower_bound))


@given(histogram=histograms(), max_segments=limits)
def test_spread_is_complete_and_feasible(histogram, max_segments):
    assert_valid(spread(histogram, max_segments), histogram, max_segments)


@given(histogram=histograms(st.integers(2, 40)), max_segments=limits, data=st.data())
def test_any_rounding_of_any_patterns_packs_exactly_the_histogram(histogram, max_segments, data):
    templates = exact_fill(histogram, max_segments)
    amounts = st.lists(st.floats(0, 30), min_size=len(templates.counts), max_size=len(templates.counts))
    packs = np.array(data.draw(amounts), np.float64)
    attempt = data.draw(st.integers(0, 5))
    strict = data.draw(st.booleans())
    patterns = round_packs(histogram, max_segments, templates=templates, packs=packs, attempt=attempt, strict=strict)
    assert_valid(patterns, histogram, max_segments)


def test_a_place_without_its_length_takes_the_next_shorter():
    histogram = histogram_of(8, {5: 3, 3: 2, 2: 7})
    templates = Patterns(offsets=np.array([0, 2]), extents=np.array([5, 3], np.int32), counts=np.array([4]))
    patterns = round_packs(histogram, 2, templates=templates, packs=np.array([4.0]), attempt=0, strict=True)
    packs = [
        patterns.extents[start:end].tolist()
        for start, end in zip(patterns.offsets[:-1], patterns.offsets[1:], strict=True)
    ]
    assert packs[:3] == [[5, 3], [5, 2], [2, 2]]
    np.testing.assert_array_equal(patterns.histogram(8), histogram)


# ---- limits ----


def hard_histogram():
    lengths = np.random.default_rng([4]).lognormal(4, 0.8, 20_000).astype(np.int64)
    return np.bincount(np.clip(lengths, 1, 512), minlength=513) * (np.arange(513) > 0)


def test_it_stops_at_each_limit_with_the_best_so_far():
    histogram = hard_histogram()
    whole = solve_optimal(histogram, 7, limits=Limits())
    assert whole.rounds > 2
    few = solve_optimal(histogram, 7, limits=Limits(rounds=2))
    assert few.rounds == 2
    none = solve_optimal(histogram, 7, limits=Limits(seconds=0))
    assert (none.rounds, none.columns) == (0, 0)
    narrow = solve_optimal(histogram, 7, limits=Limits(columns=1))
    assert narrow.rounds == 0
    wide = solve_optimal(histogram, 7, limits=Limits(gap=1.0))
    assert wide.rounds == 0
    early = solve_optimal(histogram, 7, limits=Limits(work=1))
    assert early.rounds == 1
    for solution in (few, none, narrow, wide, early):
        assert whole.patterns.packs <= solution.patterns.packs
        assert solution.lower_bound <= whole.lower_bound
        assert_valid(solution.patterns, histogram, 7)


@pytest.mark.parametrize("max_segments", [None, 6, 7])
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
    again = solve(histogram, max_segments)
    np.testing.assert_array_equal(first.extents, again.extents)
    np.testing.assert_array_equal(first.counts, again.counts)


def test_the_solver_is_imported_only_where_the_heuristics_are_not_enough():
    script = (
        "import sys; import numpy as np; from packer.algorithms.optimal import solve;"
        "solve(np.array([0, 4, 2, 0, 1])); print('highspy' in sys.modules);"
        "sys.path.insert(0, 'tests'); from test_optimal import hard_histogram;"
        "solve(hard_histogram(), 7); print('highspy' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "True"]


def test_a_limit_binds_below_the_deepest_pack_there_can_be():
    assert deepest(histogram_of(9, {2: 2, 5: 1})) == 4
    assert deepest(histogram_of(9, {})) == 0


# ---- the numbers that are promised ----


@jit_only
@pytest.mark.parametrize(
    ("max_segments", "packs"), [(3, 8_143_840), (4, 8_135_730), (8, 8_135_730), (12, 8_135_730), (None, 8_135_730)]
)
def test_wikipedia_is_packed_to_its_bound(shared_data, max_segments, packs):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    solution = solve_optimal(histogram, max_segments, limits=Limits())
    assert_valid(solution.patterns, histogram, max_segments)
    assert solution.patterns.packs <= packs
    # the optimum of the linear program, rounded up
    assert solution.lower_bound == (8_143_829 if max_segments == 3 else 8_135_727)


@jit_only
@pytest.mark.parametrize("max_len", [512, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("name", SETS)
def test_real_lengths_are_packed_within_one_pack_of_a_proven_bound(shared_data, name, max_len):
    lengths = np.load(shared_data / "lengths" / f"{name}.npy").astype(np.int64)
    # documents that are longer are split
    histogram = np.bincount(lengths % max_len, minlength=max_len + 1)
    histogram[max_len] += (lengths // max_len).sum()
    histogram[0] = 0
    solution = solve_optimal(histogram, limits=Limits())
    assert_valid(solution.patterns, histogram, None)
    assert solution.patterns.packs <= solution.lower_bound + 1


@jit_only
@pytest.mark.parametrize(("max_len", "max_segments", "packs"), [(2048, 8, 7_490), (4096, 16, 3_511)])
def test_a_coarse_program_first_proves_long_packs_where_a_limit_binds(shared_data, max_len, max_segments, packs):
    lengths = np.load(shared_data / "lengths" / "t0_train_50k.npy").astype(np.int64)
    histogram = np.bincount(lengths % max_len, minlength=max_len + 1)
    histogram[max_len] += (lengths // max_len).sum()
    histogram[0] = 0
    solution = solve_optimal(histogram, max_segments, limits=Limits())
    assert_valid(solution.patterns, histogram, max_segments)
    assert solution.patterns.packs <= packs
    assert solution.gap < 0.001
    # the bounds that need no linear program are not enough
    assert solution.lower_bound > lower_bound(histogram, max_segments)


@jit_only
def test_a_limit_that_binds_leaves_a_small_gap_in_long_packs():
    histogram = heavy_tailed(4096, 1)
    assert best_fit_decreasing(histogram, 8).packs > 1.1 * lower_bound(histogram, 8)
    assert spread(histogram, 8).packs <= 1.003 * lower_bound(histogram, 8)
