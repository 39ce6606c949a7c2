"""The long-document policy, the deal and its randomness."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.errors import PackerError
from packer.plan import Plan, Segments, cut_documents, deal, partition_starts
from packer.plan.permute import draw_below, permute, stream_key
from tests import naive

some_lengths = st.lists(st.integers(0, 25), min_size=1, max_size=60)
policies = st.sampled_from(["split", "truncate", "drop"])


def int32s(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def make_plan(lengths, max_len, long="split", rows_per_shard=3, seed=0, threads=1, **cut) -> tuple[Segments, Plan]:
    segments = cut_documents(int32s(lengths), max_len, long, threads=threads, **cut)
    patterns = get_algorithm("bfd").solve(segments.histogram, None)
    return segments, deal(segments, patterns, rows_per_shard=rows_per_shard, seed=seed, threads=threads)


def rows_of(plan: Plan) -> list[list[int]]:
    return [plan.slots[a:b].tolist() for a, b in zip(plan.row_starts[:-1], plan.row_starts[1:], strict=True)]


def located(segments: Segments, numbers: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    return list(zip(*(part.tolist() for part in segments.locate(numbers)), strict=True))


@given(
    some_lengths, st.integers(1, 12), policies, st.integers(0, 5), st.sampled_from(["left", "right"]), st.integers(1, 4)
)
def test_segments_equal_the_naive_cut(lengths, pieces, long, overlap, side, align):
    max_len = pieces * align
    overlap = min(overlap, max_len - 1) if long == "split" else 0
    segments = cut_documents(int32s(lengths), max_len, long, overlap=overlap, truncate_side=side, align=align)
    expected = naive.cut_documents(lengths, max_len, long, overlap, side)
    assert sorted(located(segments, segments.numbers())) == expected
    assert located(segments, segments.numbers_in_order()) == expected
    extents = [-(-length // align) * align for _, _, length in expected]
    assert [extent for extent in segments.extents_in_order().tolist() if extent] == extents
    histogram = Counter(extents)
    assert segments.histogram.tolist() == [histogram[extent] for extent in range(max_len + 1)]
    assert segments.tokens == sum(length for _, _, length in expected)
    assert segments.block_places.sum() == sum(extents)


@given(some_lengths, st.integers(1, 8), policies, st.integers(1, 3), st.data())
def test_segments_can_be_left_out(lengths, pieces, long, align, data):
    segments = cut_documents(int32s(lengths), pieces * align, long, align=align)
    gone = data.draw(st.lists(st.sampled_from(segments.numbers().tolist()), unique=True)) if segments.tokens else []
    left = segments.without(np.array(sorted(gone), np.int64))
    expected = sorted(set(located(segments, segments.numbers())) - set(located(segments, np.array(gone, np.int64))))
    assert sorted(located(left, left.numbers())) == expected
    assert located(left, left.numbers_in_order()) == expected
    assert left.tokens == sum(length for _, _, length in expected)
    extents = [-(-length // align) * align for _, _, length in expected]
    assert left.histogram.tolist() == [extents.count(extent) for extent in range(pieces * align + 1)]
    assert left.block_places.sum() == sum(extents)


def test_error_policy_names_the_document_its_length_and_the_limit():
    with pytest.raises(PackerError, match=r"document 1 has 9 tokens and max_len is 8 .*--long split, truncate or drop"):
        cut_documents(int32s([8, 9, 3]), 8, "error")
    assert cut_documents(int32s([8, 3]), 8, "error").histogram[8] == 1


@given(some_lengths.filter(any), st.integers(1, 30))
def test_partitions_are_contiguous_and_cover_the_documents(lengths, partitions):
    starts = partition_starts(cut_documents(int32s(lengths), 10, "split"), partitions)
    assert len(starts) == partitions + 1
    assert starts[0] == 0
    assert starts[-1] == len(lengths)
    assert (np.diff(starts) >= 0).all()


@settings(deadline=None)
@given(
    some_lengths.filter(any), st.integers(1, 12), policies, st.integers(1, 6), st.integers(0, 3),
    st.integers(0, 5), st.integers(1, 3),
)  # fmt: skip
def test_every_segment_is_dealt_once_into_rows_that_hold_it(
    lengths, pieces, long, rows_per_shard, seed, overlap, align
):
    max_len = pieces * align
    if long == "drop" and not any(0 < length <= max_len for length in lengths):
        return
    overlap = min(overlap, max_len - 1) if long == "split" else 0
    segments, plan = make_plan(lengths, max_len, long, rows_per_shard, seed, overlap=overlap, align=align)
    assert sorted(located(segments, plan.slots)) == naive.cut_documents(lengths, max_len, long, overlap)
    for row in rows_of(plan):
        assert 0 < segments.extents_of(segments.locate(np.array(row))[2]).sum() <= max_len
    assert plan.shard_rows[0] == 0
    assert plan.shard_rows[-1] == len(plan.row_starts) - 1
    assert (np.diff(plan.shard_rows) > 0).all()
    assert np.diff(plan.shard_rows).max() <= rows_per_shard


@settings(deadline=None)
@given(some_lengths.filter(any), st.integers(1, 6), st.booleans())
def test_many_partitions_need_no_more_packs_than_one(lengths, rows_per_shard, is_sorted):
    lengths = sorted(lengths) if is_sorted else lengths
    _, whole = make_plan(lengths, 10, rows_per_shard=10**9)
    _, parts = make_plan(lengths, 10, rows_per_shard=rows_per_shard)
    assert len(parts.row_starts) == len(whole.row_starts)
    assert whole.pool_packs == 0


def real_like_lengths(documents: int) -> NDArray[np.int32]:
    return np.minimum(np.random.default_rng(7).lognormal(5, 1, documents).astype(np.int32) + 1, 2048)


def test_the_plan_does_not_depend_on_the_number_of_threads():
    lengths = np.concatenate([real_like_lengths(200_000), [0, 9000, 2049, 2048]])
    plans = [make_plan(lengths, 2048, rows_per_shard=1000, threads=threads)[1] for threads in (1, 2, 7)]
    for plan in plans[1:]:
        for name in ("shard_rows", "row_starts", "slots"):
            assert np.array_equal(getattr(plan, name), getattr(plans[0], name))


def test_blocks_of_documents_are_looked_at_as_one():
    # more than a block, so that heads, tokens and partitions are found across the edges
    lengths = np.concatenate([real_like_lengths(70_000), np.full(70_000, 3000, np.int32), [0, 1]]).astype(np.int32)
    segments = cut_documents(lengths, 2048, "split", threads=3)
    assert segments.head_documents.tolist() == np.flatnonzero(lengths > 2048).tolist()
    assert segments.block_places.sum() == lengths.sum()
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    starts = partition_starts(segments, 11)
    assert np.abs(np.diff(ends[starts]) - ends[-1] / 11).max() <= 3000


def test_mixed_documents_mostly_stay_with_their_partition_and_sorted_ones_pool():
    lengths = real_like_lengths(600_000)
    pool_share = {}
    for name, order in (("mixed", lengths), ("sorted", np.sort(lengths))):
        _, one = make_plan(order, 2048, rows_per_shard=10**9)
        _, many = make_plan(order, 2048, rows_per_shard=len(one.row_starts) // 10)
        assert len(one.row_starts) == len(many.row_starts)
        pool_share[name] = many.pool_packs / len(many.row_starts)
    assert pool_share["mixed"] < 0.15
    assert pool_share["sorted"] > 0.3


def test_shards_of_partitions_are_alike_in_how_many_documents_a_row_holds():
    _, plan = make_plan(real_like_lengths(100_000), 2048, rows_per_shard=1500)
    depths = np.diff(plan.row_starts)
    own = [depths[a:b].mean() for a, b in pairwise(plan.shard_rows) if b <= len(depths) - plan.pool_packs]
    assert len(own) > 5
    assert max(own) < 1.1 * min(own)


def test_shards_of_partitions_are_alike_where_documents_have_few_lengths():
    # a pattern recurs thousands of times there: were it not shared evenly, the first partitions would take all of it,
    # and others would be left with what fits to nothing
    lengths = np.random.default_rng(0).choice([100, 300, 1000, 1500], 60_000)
    segments, plan = make_plan(lengths, 2048, rows_per_shard=2000)
    depths = np.diff(plan.row_starts)
    ends = np.concatenate([[0], np.cumsum(lengths[segments.locate(plan.slots)[0]])])
    fills = np.diff(ends[plan.row_starts]) / 2048
    own = [(a, b) for a, b in pairwise(plan.shard_rows) if b <= len(depths) - plan.pool_packs]
    assert len(own) > 5
    assert plan.pool_packs < 0.05 * len(depths)
    for values in (depths, fills):
        means = [values[a:b].mean() for a, b in own]
        assert max(means) < 1.05 * min(means)


def test_a_row_of_a_partition_holds_documents_of_that_partition_only():
    lengths = real_like_lengths(20_000)
    segments, plan = make_plan(lengths, 2048, rows_per_shard=300)
    pool = len(plan.row_starts) - 1 - plan.pool_packs
    starts = partition_starts(segments, -(-(len(plan.row_starts) - 1) // 300))
    partitions = [{int(np.searchsorted(starts, d, side="right")) for d in row} for row in rows_of(plan)[:pool]]
    assert all(len(found) == 1 for found in partitions)


def test_another_seed_is_another_packing_of_as_many_packs():
    lengths = real_like_lengths(5_000)
    _, one = make_plan(lengths, 2048, rows_per_shard=100, seed=1)
    _, again = make_plan(lengths, 2048, rows_per_shard=100, seed=1)
    _, other = make_plan(lengths, 2048, rows_per_shard=100, seed=2)
    assert np.array_equal(one.slots, again.slots)
    assert len(one.row_starts) == len(other.row_starts)
    together = [{frozenset(row) for row in rows_of(plan) if len(row) > 1} for plan in (one, other)]
    assert len(together[0] & together[1]) < len(together[0]) / 3  # long documents of a length of their own stay paired


def test_order_within_rows_and_of_rows_says_nothing_about_length():
    # 5-sigma bounds of a rank correlation under independence: 5 / sqrt(n)
    lengths = real_like_lengths(30_000)
    segments, plan = make_plan(lengths, 2048, rows_per_shard=10**9)
    rows = rows_of(plan)
    sizes = [segments.locate(np.array(row))[2] for row in rows]
    means = np.array([size.mean() for size in sizes])
    assert abs(rank_correlation(np.arange(len(means)), means)) < 5 / np.sqrt(len(means))
    deep = [size for size in sizes if len(size) >= 4]
    firsts = np.mean([size[0] > np.median(size) for size in deep])
    lasts = np.mean([size[-1] > np.median(size) for size in deep])
    assert abs(firsts - lasts) < 5 / np.sqrt(len(deep))


def test_equal_lengths_are_dealt_at_random_not_in_source_order():
    _, plan = make_plan([5] * 4000, 10, rows_per_shard=10**9)
    pairs = plan.slots.reshape(-1, 2).astype(np.int64)
    assert abs(rank_correlation(pairs[:, 0], pairs[:, 1])) < 5 / np.sqrt(len(pairs))


def rank_correlation(one: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def key(seed: int, purpose: int, stream: int) -> np.uint64:
    return np.uint64(stream_key(np.uint64(seed), purpose, stream))  # compiled, it comes back as a Python int


def test_permutations_are_those_of_the_format():
    # These numbers are part of the bytes on disk: a change of them is a new format version.
    numbers = np.arange(10)
    permute(numbers, 0, 10, key(42, 2, 7))
    assert sorted(numbers) == list(range(10))
    assert numbers.tolist() == naive.permutation(10, seed=42, purpose=2, stream=7)


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
