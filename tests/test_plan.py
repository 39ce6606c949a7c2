"""The long-document policy, plans that are held as a whole, and their randomness."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer.algorithms import permute as permutations
from packer.algorithms.permute import key_of as key
from packer.algorithms.permute import permute
from packer.plan.segments import cut_documents
from tests.helpers import naive
from tests.helpers.plan import int32s, located

some_lengths = st.lists(st.integers(0, 25), min_size=1, max_size=60)
policies = st.sampled_from(["split", "truncate", "drop"])


@given(some_lengths, st.integers(1, 12), policies, st.integers(1, 4))
def test_segments_equal_the_naive_cut(lengths, pieces, long, align):
    max_len = pieces * align
    segments = cut_documents(int32s(lengths), max_len, long, align=align)
    expected = naive.cut_documents(lengths, max_len, long)
    assert sorted(located(segments, segments.numbers())) == expected
    numbers, in_order = segments.in_order()
    assert located(segments, numbers[in_order > 0]) == expected
    extents = [-(-length // align) * align for _, _, length in expected]
    assert [extent for extent in in_order.tolist() if extent] == extents
    histogram = Counter(extents)
    assert segments.histogram.tolist() == [histogram[extent] for extent in range(max_len + 1)]
    assert segments.account.tokens_packed == sum(length for _, _, length in expected)
    places = Counter()
    for document, _, length in expected:
        places[document] += -(-length // align) * align
    assert segments.places_of_documents().tolist() == [places[document] for document in range(len(lengths))]


@given(some_lengths, st.integers(1, 8), policies, st.integers(1, 3), st.data())
def test_segments_can_be_left_out(lengths, pieces, long, align, data):
    segments = cut_documents(int32s(lengths), pieces * align, long, align=align)
    numbers = segments.numbers().tolist()
    gone = data.draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else []
    left = segments.without_untrained(np.array(sorted(gone), np.int64))
    expected = sorted(set(located(segments, segments.numbers())) - set(located(segments, np.array(gone, np.int64))))
    assert sorted(located(left, left.numbers())) == expected
    assert left.account.tokens_packed == sum(length for _, _, length in expected)
    extents = [-(-length // align) * align for _, _, length in expected]
    assert left.histogram.tolist() == [extents.count(extent) for extent in range(pieces * align + 1)]
    assert left.places_of_documents().sum() == sum(extents)


draw_below = permutations.draw_below


def permuted(index, size, stream, seed=0):
    found = np.array([index])
    return int(permutations.permuted_all(found, np.full(1, size), np.full(1, key(seed, 10, stream), np.uint64))[0])


def test_permutations_are_part_of_the_format():
    # These numbers are part of the bytes on disk: a change of them is a new format version.
    numbers = np.arange(10)
    permute(numbers, 0, 10, key(42, 2, 7))
    assert sorted(numbers) == list(range(10))
    assert numbers.tolist() == naive.permutation(10, seed=42, purpose=2, stream=7)


@given(st.integers(1, 300), st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_permutation_is_found_index_by_index(size, seed, stream):
    places = [permuted(index, size, stream, seed) for index in range(size)]
    assert sorted(places) == list(range(size))
    assert places == [naive.permuted(index, size, seed=seed, purpose=10, stream=stream) for index in range(size)]


def test_every_place_of_a_permutation_is_about_equally_likely_also_given_another():
    size, streams = 12, 1500
    found = np.array([[permuted(index, size, stream) for index in (0, 1, 7)] for stream in range(streams)])
    pairs = found[:, :1] * size + found[:, 1:]
    for values, bins in ((found[:, 0], size), (found[:, 2], size), (pairs[:, 0], size**2), (pairs[:, 1], size**2)):
        counts = np.bincount(values, minlength=bins)
        possible = counts[counts > 0]
        assert len(possible) == (bins if bins == size else size * (size - 1))
        expected, freedom = streams / len(possible), len(possible) - 1
        assert ((possible - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_every_permutation_of_four_is_about_equally_likely():
    counts: Counter[tuple[int, ...]] = Counter()
    for stream in range(12_000):
        numbers = np.arange(4)
        permute(numbers, 0, 4, key(0, 3, stream))
        counts[tuple(numbers.tolist())] += 1
    assert len(counts) == 24
    chi_squared = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi_squared < 60  # 23 degrees of freedom: p < 0.0001


@given(st.integers(1, 2**40), st.integers(0, 2**62))
def test_draws_stay_below_their_limit(limit, index):
    assert 0 <= draw_below(key(1, 1, 1), index, limit) < limit
