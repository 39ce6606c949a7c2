"""Blocks of documents, and partitions that are random sets of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.plan.partitions import BlockMarker, Blocks, make_partitions

some_places = st.lists(st.integers(0, 30), max_size=200)


def mark(places, target=50, most=1 << 20, parts=1, documents_each=1) -> Blocks:
    marker = BlockMarker(target, most=most)
    for part in np.array_split(np.array(places, np.int64), parts):
        marker.add(part, documents_each=documents_each)
    return marker.finish()


@given(some_places, st.integers(1, 100), st.integers(1, 7), st.sampled_from([1, 2]))
def test_blocks_cover_all_documents_and_reach_their_target(places, target, parts, documents_each):
    blocks = mark(places, target, parts=parts, documents_each=documents_each)
    assert blocks.starts[0] == 0
    assert blocks.starts[-1] == documents_each * len(places)
    assert (np.diff(blocks.starts) > 0).all()
    assert (blocks.starts % documents_each == 0).all()
    starts = blocks.starts // documents_each
    sums = [sum(places[a:b]) for a, b in itertools.pairwise(starts)]
    assert blocks.places.tolist() == sums
    assert all(target <= place < target + 31 for place in sums[:-1])


@given(some_places, st.integers(1, 7))
def test_blocks_do_not_depend_on_how_documents_arrive(places, parts):
    one, other = mark(places), mark(places, parts=parts)
    assert one.starts.tolist() == other.starts.tolist()
    assert one.places.tolist() == other.places.tolist()


@given(some_places, st.sampled_from([2, 4, 8]))
def test_there_are_never_more_blocks_than_allowed(places, most):
    blocks = mark(places, target=1, most=most)
    assert len(blocks.places) <= most + 1
    assert blocks.places.sum() == sum(places)
    assert blocks.starts[-1] == len(places)


@given(some_places.filter(any), st.integers(1, 12), st.integers(0, 5))
def test_partitions_have_every_document_once(places, partitions, seed):
    blocks = mark(places, target=20)
    dealt = make_partitions(blocks, partitions, seed=seed)
    assert len(dealt) == partitions
    documents = []
    for partition in range(partitions):
        ranges = dealt.ranges(partition)
        assert (ranges[1:, 0] > ranges[:-1, 1]).all()  # adjacent blocks are one range
        documents += [document for first, last in ranges for document in range(first, last)]
    assert sorted(documents) == list(range(len(places)))


@given(
    some_places.filter(any), st.integers(1, 12), st.integers(0, 5), st.sampled_from([2, 4, 16]), st.sampled_from([1, 2])
)
def test_merged_blocks_are_divided_again_and_have_every_document_once(places, partitions, seed, most, documents_each):
    blocks = mark(places, target=5, most=most, documents_each=documents_each)
    dealt = make_partitions(blocks, partitions, seed=seed)
    documents = []
    for partition in range(partitions):
        ranges = dealt.ranges(partition)
        assert (ranges % documents_each == 0).all()
        assert (ranges[:, 0] < ranges[:, 1]).all()
        documents += [document for first, last in ranges for document in range(first, last)]
    assert sorted(documents) == list(range(documents_each * len(places)))


@pytest.mark.parametrize("most", [1 << 20, 1 << 9])
def test_partitions_take_about_the_same_place(most):
    """Also if blocks were merged: then, they are divided into as many parts again."""
    places = np.random.default_rng(0).integers(1, 30, 50_000)
    blocks = mark(places, target=500, most=most)
    assert (blocks.parts > 1) == (most < 1000)
    dealt = make_partitions(blocks, 7, seed=1)
    sums = [sum(places[first:last].sum() for first, last in dealt.ranges(partition)) for partition in range(7)]
    assert max(sums) - min(sums) < 1500 * blocks.parts**0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1 << 20, 1 << 10])
def test_a_partition_of_a_sorted_source_is_a_sample_of_it(seed, most):
    blocks = mark(np.full(64_000, 10), target=100, most=most)
    dealt = make_partitions(blocks, 10, seed=seed)
    for partition in range(10):
        documents = np.concatenate([np.arange(first, last) for first, last in dealt.ranges(partition)])
        # 5 standard errors of the mean of 640 numbers, each uniform within a 640th
        assert abs(documents.mean() / 64_000 - 0.5) < 5 * (1 / 12 / 640) ** 0.5 / 640


@pytest.mark.parametrize("most", [1 << 20, 1 << 5])
def test_another_seed_gives_another_set_of_blocks(most):
    blocks = mark(np.full(1000, 10), target=100, most=most)
    one, other = (make_partitions(blocks, 4, seed=seed) for seed in (1, 2))
    assert one.ranges(0).tolist() != other.ranges(0).tolist()
