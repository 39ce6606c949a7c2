"""Histogram algorithms: each is exactly its textbook, packs all there is, and keeps the limits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given

from packer.algorithms import ALGORITHMS, get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.first_fit import first_fit_decreasing
from packer.algorithms.open_packs import best_fit_decreasing
from packer.algorithms.worst_fit import spfhp
from packer.errors import PackerError
from tests.helpers import naive
from tests.helpers.algorithms import assert_valid, packs_of
from tests.helpers.histograms import histogram_of, histograms, lengths_of, limits, packed_by, read_histogram

# nnlshp keeps to the paper: it refuses long packs, and without a limit it takes 3; see test_nnls.py
UNRESTRICTED = [name for name, known in ALGORITHMS.items() if known.solve and name != "nnlshp"]

TWINS = [
    (best_fit_decreasing, naive.best_fit_decreasing),
    (first_fit_decreasing, naive.first_fit_decreasing),
    (spfhp, naive.spfhp),
]


# ---- the registry ----


def test_an_unknown_name_is_told_with_the_names_there_are():
    with pytest.raises(PackerError) as error:
        get_algorithm("bdf")
    assert str(error.value).startswith("No algorithm is called 'bdf'; choose one of: auto, bfd, ")
    assert set(str(error.value).split(": ")[1].split(", ")) == {*ALGORITHMS}


# ---- every algorithm ----


@pytest.mark.parametrize("name", UNRESTRICTED)
@given(histogram=histograms(), max_segments=limits)
def test_patterns_are_complete_and_feasible(name, histogram, max_segments):
    before = histogram.copy()
    patterns = ALGORITHMS[name].solve(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs >= lower_bound(histogram, max_segments)
    np.testing.assert_array_equal(histogram, before)


@pytest.mark.parametrize("name", UNRESTRICTED)
@pytest.mark.parametrize("max_segments", [None, 1, 3])
@pytest.mark.parametrize(
    ("capacity", "counts", "packs"),
    [
        (10, {}, {None: 0, 1: 0, 3: 0}),
        (1, {}, {None: 0, 1: 0, 3: 0}),
        (1, {1: 5}, {None: 5, 1: 5, 3: 5}),
        (10, {10: 4}, {None: 4, 1: 4, 3: 4}),
        (10, {6: 2, 4: 2}, {None: 2, 1: 4, 3: 2}),
    ],
    ids=["nothing", "nothing in packs of 1", "packs of 1", "all of full length", "pairs"],
)
def test_edge_cases(name, max_segments, capacity, counts, packs):
    histogram = histogram_of(capacity, counts)
    patterns = ALGORITHMS[name].solve(histogram, max_segments)
    assert_valid(patterns, histogram, max_segments)
    assert patterns.packs == packs[max_segments]
    if not counts:
        assert patterns.offsets.tolist() == [0]
        assert len(patterns.counts) == 0


# ---- each is its textbook ----


@pytest.mark.parametrize(("solve", "twin"), TWINS, ids=[twin.__name__ for _, twin in TWINS])
@given(histogram=histograms(), max_segments=limits)
# an item that could follow its own length into a pack, and packs that tie
@example(histogram_of(12, {7: 3, 5: 1, 2: 8, 1: 9}), 4)
@example(histogram_of(64, {33: 5, 31: 2, 16: 7, 3: 25}), None)
def test_packs_are_those_of_placing_one_by_one(solve, twin, histogram, max_segments):
    expected = Counter(map(tuple, twin(lengths_of(histogram), len(histogram) - 1, max_segments)))
    assert packs_of(solve(histogram, max_segments)) == expected


# ---- published numbers (Krell et al., tables reproduced with the authors' code) ----


WIKIPEDIA = {
    # limit: SPFHP, LPFHP
    1: (16_279_552, 16_279_552),
    2: (10_101_683, 10_099_081),
    3: (9_094_695, 9_090_154),
    4: (8_658_996, 8_657_119),
    8: (8_224_673, 8_207_569),
    12: (8_166_708, 8_149_619),
    16: (8_166_708, 8_140_006),
    None: (8_166_708, 8_138_483),
}


@pytest.mark.parametrize("max_segments", WIKIPEDIA)
def test_wikipedia_packs_as_published(shared_data, max_segments):
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv")
    published, best_fit = WIKIPEDIA[max_segments]
    assert get_algorithm("spfhp").solve(histogram, max_segments).packs == published
    patterns = get_algorithm("bfd").solve(histogram, max_segments)
    assert patterns.packs == best_fit
    assert max_segments is not None or np.diff(patterns.offsets).max() == 29
    np.testing.assert_array_equal(packed_by(patterns, 512), histogram)


@pytest.mark.parametrize(("max_segments", "published", "best_fit"), [(2, 45_335, None), (3, 40_711, 40_631)])
def test_squad_packs_as_published(shared_data, max_segments, published, best_fit):
    histogram = read_histogram(shared_data / "histograms" / "squad_1_1_384.csv")
    assert histogram.sum() == 88_641
    assert spfhp(histogram, max_segments).packs == published
    if best_fit is not None:
        for limit in (max_segments, max_segments + 1, 8, None):
            assert best_fit_decreasing(histogram, limit).packs == best_fit
            assert spfhp(histogram, limit).packs == published
