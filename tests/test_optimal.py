"""Column generation: bounds that are proofs, packs that are complete, targets that are met."""

import subprocess
import sys
import time
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_algorithms import assert_valid, heavy_tailed, jit_only, packs_of

from packer.algorithms.bounds import lower_bound, segments_bound, token_bound
from packer.algorithms.exact_fill import exact_fill
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.optimal import Limits, auto, search, solve, solve_optimal
from packer.algorithms.optimal.column_generation import first_values
from packer.algorithms.optimal.pricing import certified_bound, patterns_with, price
from packer.algorithms.optimal.round_patterns import follow_rounded, round_packs
from packer.algorithms.optimal.search import KNOTS, stages
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


def rests(lengths, room, places, start=0):
    """What a pack with so much room and so many places may leave of descending lengths, each way once."""
    yield lengths
    for i in range(start, len(lengths) if places else start):
        if lengths[i] <= room and (i == start or lengths[i] != lengths[i - 1]):
            yield from rests(lengths[:i] + lengths[i + 1 :], room - lengths[i], places - 1, i)


def optima(capacity, limit, most):
    """The fewest packs of every multiset of up to `most` lengths, descending: a pack for the longest, and the rest."""
    packs = {(): 0}
    for size in range(1, most + 1):
        for lengths in combinations_with_replacement(range(capacity, 0, -1), size):
            packs[lengths] = 1 + min(packs[rest] for rest in rests(lengths[1:], capacity - lengths[0], limit - 1))
    return packs


@pytest.mark.parametrize("max_segments", [None, 2, 3])
def test_the_optima_are_those_of_trying_every_way(max_segments):
    for lengths, packs in optima(6, max_segments or 6, 4).items():
        assert packs == naive.optimal_packs(list(lengths), 6, max_segments)


@jit_only
@pytest.mark.slow
@pytest.mark.parametrize(("max_segments", "largest"), [(None, 11), (2, 9), (4, 8)])
def test_every_small_multiset_is_packed_to_its_optimum_and_the_bound_is_no_more(max_segments, largest):
    # all of up to 6 lengths, thousands for each limit
    off = []
    for capacity in range(1, largest + 1):
        for lengths, optimum in optima(capacity, max_segments or capacity, 6).items():
            histogram = np.bincount(np.array(lengths, np.int64), minlength=capacity + 1)
            solution = solve_optimal(histogram, max_segments, limits=Limits())
            assert (solution.patterns.histogram(capacity) == histogram).all()
            assert solution.patterns.max_segments <= (max_segments or capacity)
            assert solution.lower_bound <= optimum <= solution.patterns.packs
            if solution.patterns.packs > optimum:
                off.append((capacity, lengths))
    assert off == []


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


@given(histogram=histograms(st.integers(2, 40)), max_segments=limits, share=st.floats(0, 1), strict=st.booleans())
def test_kept_packs_and_what_they_leave_are_the_histogram(histogram, max_segments, share, strict):
    templates = exact_fill(histogram, max_segments)
    limit = max_segments or len(histogram) - 1
    packs = templates.counts * 1.01
    kept, left = follow_rounded(
        histogram, limit, templates=templates, packs=packs, share=share, attempt=1, strict=strict
    )
    assert_valid(kept, histogram - left, max_segments)
    assert (left >= 0).all()
    assert kept.packs <= packs.sum() * share + 1.5  # rounded twice: up by less than one, then to the nearest


def test_what_one_place_lacks_the_others_get():
    # no 50, but a 47 and a 52 as near: the next places make up for the 3 too few and the 2 too many
    histogram = histogram_of(100, {47: 1, 52: 1, 30: 2, 33: 1, 20: 1, 18: 1})
    templates = Patterns(offsets=np.array([0, 3]), extents=np.array([50, 30, 20], np.int32), counts=np.array([2]))
    patterns = round_packs(histogram, 3, templates=templates, packs=np.array([2.0]), attempt=0, strict=False)
    assert packs_of(patterns) == {(52, 30, 18): 1, (47, 33, 20): 1, (30,): 1}


# ---- where it begins ----


@given(histogram=histograms(st.integers(1, 300)), max_segments=limits)
def test_the_first_values_are_the_simple_bounds(histogram, max_segments):
    if histogram.any():
        lengths = np.flatnonzero(histogram)
        limit = min(max_segments or len(histogram), len(histogram) - 1)
        values = first_values(histogram, limit)
        best = price(lengths, np.round(values * 2**40).astype(np.int64), len(histogram) - 1, limit).best
        assert best <= 2**40 * (1 + 1e-9)
        bound = max(token_bound(histogram), segments_bound(histogram, max_segments))
        assert np.ceil(values @ histogram[lengths] - 1e-6) == bound


@pytest.mark.parametrize("max_len", [2048, 8192])
def test_knots_of_coarse_programs_lie_close_at_both_ends(max_len):
    histogram = np.ones(max_len + 1, np.int64)
    histogram[0] = 0
    *coarse, last = stages(histogram, 8)
    assert last is None
    assert len(coarse) == 2
    for knots, rows in zip(coarse, KNOTS, strict=True):
        assert len(knots) <= rows
        assert (np.diff(knots) > 0).all()
        assert (knots[0], knots[-1]) == (0, max_len - 1)
        steps = np.diff(knots)
        assert steps[0] == steps[-1] == 1
        assert steps.max() > 8
    # as many rows as lengths, where the limit does not bind
    assert stages(histogram, max_len) == [None]


# ---- limits ----


def hard_histogram():
    lengths = np.random.default_rng([4]).lognormal(4, 0.8, 20_000).astype(np.int64)
    return np.bincount(np.clip(lengths, 1, 512), minlength=513) * (np.arange(513) > 0)


@jit_only
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
    no_work = solve_optimal(histogram, 7, limits=Limits(work=1))
    assert no_work.rounds == 0
    early = solve_optimal(histogram, 7, limits=Limits(work=1_000_000))
    assert 0 < early.rounds < whole.rounds
    for solution in (few, none, narrow, wide, no_work, early):
        assert whole.patterns.packs <= solution.patterns.packs
        assert solution.lower_bound <= whole.lower_bound
        assert_valid(solution.patterns, histogram, 7)


@jit_only
def test_compiling_takes_no_time_from_the_limit(monkeypatch):
    histogram, limits = hard_histogram(), Limits(seconds=0.001)
    whole = solve_optimal(histogram, 7, limits=Limits())
    assert solve_optimal(histogram, 7, limits=limits).rounds == 0
    monkeypatch.setattr(search, "compile_seconds", time.perf_counter)  # as if all time were spent on compiling
    assert solve_optimal(histogram, 7, limits=limits).lower_bound == whole.lower_bound > 0


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


@jit_only
def test_the_solver_is_imported_only_where_the_heuristics_are_not_enough():
    script = (
        "import sys; import numpy as np; from packer.algorithms.optimal import solve;"
        "solve(np.array([0, 4, 2, 0, 1])); print('highspy' in sys.modules);"
        "sys.path.insert(0, 'tests'); from test_optimal import hard_histogram;"
        "solve(hard_histogram(), 7); print('highspy' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "True"]


def test_time_ends_the_heuristics_too():
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


# ---- the numbers that are promised ----


def split(shared_data, name, max_len):
    """A histogram of real lengths; documents that are longer are split."""
    lengths = np.load(shared_data / "lengths" / f"{name}.npy").astype(np.int64)
    histogram = np.bincount(lengths % max_len, minlength=max_len + 1)
    histogram[max_len] += (lengths // max_len).sum()
    histogram[0] = 0
    return histogram


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
    histogram = split(shared_data, name, max_len)
    solution = solve_optimal(histogram, limits=Limits())
    assert_valid(solution.patterns, histogram, None)
    assert solution.patterns.packs <= solution.lower_bound + 1


@jit_only
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
    solution = solve_optimal(histogram, max_segments, limits=Limits())
    assert_valid(solution.patterns, histogram, max_segments)
    assert solution.patterns.packs <= max(solution.lower_bound + 1, 1.001 * solution.lower_bound)
    # auto has limits of its own, which it reaches in about a second
    patterns = auto(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= max(patterns.lower_bound + 1, 1.003 * patterns.lower_bound)


@jit_only
@pytest.mark.slow
@pytest.mark.parametrize(("max_len", "max_segments"), [(2048, 5), (4096, 8), (4096, 9), (8192, 8), (8192, 16)])
def test_a_million_heavy_tailed_lengths_are_packed_within_a_thousandth_where_a_limit_binds(max_len, max_segments):
    lengths = np.random.default_rng([7]).lognormal(np.log(300), 1, 1_000_000).astype(np.int64)
    histogram = np.bincount(np.clip(lengths, 1, max_len), minlength=max_len + 1)
    patterns = auto(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs <= 1.001 * patterns.lower_bound
    assert patterns.packs < 0.95 * best_fit_decreasing(histogram, max_segments).packs


@jit_only
def test_a_limit_that_binds_leaves_a_small_gap_in_long_packs():
    histogram = heavy_tailed(4096, 1)
    assert best_fit_decreasing(histogram, 8).packs > 1.1 * lower_bound(histogram, 8)
    assert spread(histogram, 8).packs <= 1.003 * lower_bound(histogram, 8)
