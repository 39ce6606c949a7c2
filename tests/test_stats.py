"""Ratios, totals and quantiles, against enumeration on tiny sets and simulation on real lengths."""

import json
from itertools import chain, pairwise, permutations
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.stats.dataset_figures import dataset_stats, epoch_steps
from packer.stats.distribution import MAX_BINS, distribution
from packer.stats.packed_figures import RowArrays, packed_stats
from packer.stats.padding import BATCH_SIZES, expected_longest, grouped_total, padding_ratios

MAX_LEN = 32

segment_lengths = st.lists(st.integers(1, MAX_LEN), min_size=1, max_size=200)
few_segments = st.lists(st.integers(1, MAX_LEN), min_size=1, max_size=6)


def histogram_of(lengths: list[int] | NDArray[np.int32], max_len: int = MAX_LEN) -> NDArray[np.int64]:
    return np.bincount(lengths, minlength=max_len + 1).astype(np.int64)


def padded_total(lengths: list[int] | tuple[int, ...], size: int) -> int:
    """Tokens, padding included, of batches cut from the lengths as they come."""
    batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
    return sum(len(batch) * max(batch) for batch in batches)


def least_total(lengths: list[int] | tuple[int, ...], size: int) -> int:
    """The least over the places of the one smaller batch among batches cut from the lengths as they come."""
    rest = len(lengths) % size
    return min(
        padded_total(lengths[:start], size)
        + padded_total(lengths[start : start + rest], size)
        + padded_total(lengths[start + rest :], size)
        for start in range(0, len(lengths), size)
    )


# Padding


def test_every_padding_ratio_of_a_tiny_set_is_known() -> None:
    padding = padding_ratios(histogram_of([1, 2, 4], max_len=4), packs=2)
    assert padding.max_len == pytest.approx(1 - 7 / 12)
    # Any two of the three: 2 x (2 + 4 + 4) / 3, and the third alone, 7 / 3.
    assert padding.batch_longest[2] == pytest.approx(1 - 7 / (20 / 3 + 7 / 3))
    assert padding.batch_longest[4] == padding.batch_longest[64] == pytest.approx(1 - 7 / 12)
    assert padding.group_by_length[2] == pytest.approx(1 - 7 / 8)  # [4] and [2, 1]
    assert padding.batch_longest[1] == padding.group_by_length[1] == 0
    assert padding.packed == pytest.approx(1 - 7 / 8)


def test_expected_longest_of_three_is_known_and_ends_when_none_is_left() -> None:
    assert expected_longest(histogram_of([1, 2, 4]), 64) == pytest.approx([0, 7 / 3, 10 / 3, 4])


@settings(deadline=None)
@given(few_segments)
def test_random_order_is_the_mean_over_all_orders(lengths: list[int]) -> None:
    padding = padding_ratios(histogram_of(lengths), packs=len(lengths))
    for size in (1, 2, 4, 8):
        mean_total = np.mean([padded_total(order, size) for order in permutations(lengths)])
        assert padding.batch_longest[size] == pytest.approx(1 - sum(lengths) / mean_total, abs=1e-12)


@settings(deadline=None)
@given(few_segments, st.integers(1, 7))
def test_grouped_by_length_is_the_least_of_all_groupings(lengths: list[int], size: int) -> None:
    least = min(least_total(order, size) for order in set(permutations(lengths)))
    assert grouped_total(histogram_of(lengths), size) == least


@given(segment_lengths, st.integers(1, 70))
def test_grouped_by_length_is_the_least_of_the_sorted_segments(lengths: list[int], size: int) -> None:
    assert grouped_total(histogram_of(lengths), size) == least_total(sorted(lengths, reverse=True), size)


@given(segment_lengths)
def test_padding_grows_with_the_batch_and_shrinks_with_sorting(lengths: list[int]) -> None:
    padding = padding_ratios(histogram_of(lengths), packs=len(lengths))
    random, grouped = (list(ratios.values()) for ratios in (padding.batch_longest, padding.group_by_length))
    assert all(0 <= ratio < 1 for ratio in (padding.max_len, padding.packed, *random, *grouped))
    for ratios in (random, grouped):
        assert all(larger >= smaller - 1e-12 for smaller, larger in pairwise(ratios))
    for least, ratio in zip(grouped, random, strict=True):
        assert least <= ratio + 1e-12
        assert ratio <= padding.max_len + 1e-12


@given(st.integers(1, MAX_LEN), st.integers(1, 500))
def test_segments_of_one_length_need_no_padding_in_any_batch(length: int, segments: int) -> None:
    padding = padding_ratios(histogram_of([length] * segments), packs=segments)
    assert set(padding.batch_longest.values()) | set(padding.group_by_length.values()) == {0.0}
    assert padding.max_len == pytest.approx(1 - length / MAX_LEN)


def test_counts_beyond_any_corpus_keep_their_ratio() -> None:
    few, many = np.array([0, 1, 0, 0, 1]) * 10**6, np.array([0, 1, 0, 0, 1]) * 10**12
    of_few, of_many = padding_ratios(few, packs=2 * 10**6), padding_ratios(many, packs=2 * 10**12)
    assert of_many.max_len == of_few.max_len == 1 - 2.5 / 4
    assert of_many.batch_longest[2] == pytest.approx(1 - 2.5 / 3.25)
    assert of_many.group_by_length[64] == 0


@pytest.mark.parametrize("name", ["t0_train_50k", "gsm8k", "sgd_multiturn"])
def test_random_order_on_real_lengths_is_what_shuffling_gives(name: str, shared_data: Path) -> None:
    lengths = np.load(shared_data / "lengths" / f"{name}.npy")
    padding = padding_ratios(histogram_of(lengths, int(lengths.max())), packs=len(lengths))
    for size in BATCH_SIZES:
        rows = len(lengths) // size * size
        totals = [
            np.random.default_rng([size, seed]).permutation(lengths)[:rows].reshape(-1, size).max(axis=1).sum() * size
            for seed in range(5)
        ]
        assert padding.batch_longest[size] == pytest.approx(
            1 - lengths.sum() * rows / len(lengths) / np.mean(totals), abs=0.003
        )


def test_speedup_is_padded_tokens_over_packed_tokens() -> None:
    padding = padding_ratios(histogram_of([1, 2, 4, 1], max_len=4), packs=2)
    assert padding.speedup(padding.max_len) == pytest.approx(4 / 2)
    assert padding.speedup(padding.packed) == 1


# Distribution


def test_quantiles_are_numbers_that_occur() -> None:
    spread = distribution(np.array([5, 1, 2, 900, 2], np.int32))
    assert (spread.min, spread.p1, spread.p25, spread.p50, spread.p75, spread.p99, spread.max) == (
        1,
        1,
        2,
        2,
        5,
        900,
        900,
    )
    assert spread.mean == 182


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300))
def test_quantiles_and_bins_are_those_of_the_sorted_list(numbers: list[int]) -> None:
    spread, in_order = distribution(np.array(numbers)), sorted(numbers)
    for percent, value in ((1, spread.p1), (25, spread.p25), (50, spread.p50), (75, spread.p75), (99, spread.p99)):
        assert value == in_order[max(0, ceil(percent * len(numbers) / 100) - 1)]
    assert (spread.min, spread.max) == (in_order[0], in_order[-1])
    assert spread.mean == pytest.approx(sum(numbers) / len(numbers))
    ranges = pairwise(spread.bin_edges)
    assert spread.bin_counts == tuple(sum(low <= value < high for value in numbers) for low, high in ranges)
    assert sum(spread.bin_counts) == len(numbers)
    assert len(spread.bin_counts) <= MAX_BINS
    assert spread.bin_counts[0] > 0
    assert spread.bin_counts[-1] > 0


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_values_with_counts_are_the_same_as_the_list(numbers: list[int]) -> None:
    values, counts = np.unique(numbers, return_counts=True)
    assert distribution((values, counts)) == distribution(np.array(numbers))


def test_values_that_do_not_occur_change_nothing() -> None:
    assert distribution((np.arange(6), np.array([0, 0, 3, 0, 1, 0]))) == distribution(np.array([2, 2, 2, 4]))


def test_bins_are_of_one_width_or_double_when_the_tail_is_long() -> None:
    assert distribution(np.array([62, 159, 469])).bin_edges == tuple(range(32, 481, 32))
    assert distribution(np.array([17, 114, 5853])).bin_edges == tuple(2**power for power in range(4, 14))
    assert distribution(np.array([0, 0, 0, 3])).bin_edges == (0, 1, 2, 4)


# Epochs


def test_packed_rows_per_step_keep_the_documents_per_step() -> None:
    epoch = epoch_steps(documents=1000, segments=1010, packs=100, documents_per_step=64)
    assert (epoch.rows, epoch.rows_per_step, epoch.steps) == (1010, 64 * 1.01, 16)
    assert (epoch.packed_rows, epoch.packed_rows_per_step, epoch.packed_steps) == (100, 6, 17)
    assert epoch.packed_documents_per_step == 60


def test_a_step_has_one_row_where_a_row_has_more_documents_than_the_step() -> None:
    epoch = epoch_steps(documents=1000, segments=1000, packs=10, documents_per_step=8)
    assert (epoch.packed_rows_per_step, epoch.packed_steps, epoch.packed_documents_per_step) == (1, 10, 100)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 1000))
def test_documents_per_step_are_missed_by_half_a_row_at_most(documents: int, packs: int, per_step: int) -> None:
    epoch = epoch_steps(documents=documents, segments=documents, packs=packs, documents_per_step=per_step)
    if epoch.packed_rows_per_step > 1:
        assert abs(epoch.packed_documents_per_step - per_step) <= documents / packs / 2 * (1 + 1e-9)


# Datasets


def test_stats_of_a_tiny_dataset_are_known() -> None:
    # Documents of 0, 3, 5 and 10 tokens; the last is split into 8 and 2, and [8] and [5, 3] and [2] are the packs.
    stats = dataset_stats(
        lengths=np.array([3, 0, 10, 5]),
        histogram=histogram_of([3, 5, 8, 2], max_len=8),
        packs=3,
        lower_bound=3,
        algorithm="bfd",
        documents_per_step=2,
    )
    assert (stats.documents, stats.tokens, stats.documents_packed, stats.tokens_packed) == (4, 18, 3, 18)
    assert (stats.segments, stats.documents_over_max_len, stats.max_len, stats.packs) == (4, 1, 8, 3)
    assert stats.efficiency == 18 / 24
    assert stats.packing_factor == 1
    assert (stats.lengths.min, stats.lengths.max) == (0, 10)
    assert (stats.epoch.steps, stats.epoch.packed_rows_per_step) == (2, 2)


@pytest.mark.parametrize(("segments", "documents_packed"), [([3, 5, 8, 2], 3), ([3, 5, 8], 3), ([3, 5], 2)])
def test_documents_packed_follows_from_the_segments(segments: list[int], documents_packed: int) -> None:
    """Of documents of 0, 3, 5 and 10 tokens the longest is split, truncated, dropped."""
    stats = dataset_stats(
        lengths=(np.array([0, 3, 5, 10]), np.ones(4, np.int64)),
        histogram=histogram_of(segments, max_len=8),
        packs=3,
        lower_bound=2,
        algorithm="bfd",
    )
    assert stats.documents_packed == documents_packed
    assert stats.tokens == 18
    assert stats.tokens_packed == sum(segments)
    assert stats.efficiency == sum(segments) / 24
    assert stats.efficiency == pytest.approx(1 - stats.padding.packed)


def test_json_has_the_keys_that_scripts_read() -> None:
    stats = dataset_stats(
        lengths=np.array([1, 2, 4]), histogram=histogram_of([1, 2, 4], 4), packs=2, lower_bound=2, algorithm="bfd"
    )
    read = json.loads(json.dumps(stats.to_json()))
    expected = {"documents": 3, "tokens": 7, "max_len": 4, "packs": 2, "lower_bound": 2, "efficiency": 7 / 8}
    assert {key: read[key] for key in expected} == expected
    assert read["packing_factor"] == 1.5
    assert set(read["padding"]) == {"max_len", "batch_longest", "group_by_length", "packed"}
    for mode in ("batch_longest", "group_by_length"):
        assert list(read["padding"][mode]) == ["1", "2", "4", "8", "16", "32", "64"]
    assert read["padding"]["packed"] == 1 / 8
    assert read["lengths"]["p50"] == 2
    assert read["epoch"]["packed_rows_per_step"] == 43


def test_real_lengths_are_described_as_numpy_counts_them(shared_data: Path) -> None:
    for path in sorted((shared_data / "lengths").glob("*.npy")):
        lengths = np.load(path)
        histogram = histogram_of(np.minimum(lengths, 4096), max_len=4096)
        packs = ceil(np.minimum(lengths, 4096).sum() / 4096)
        stats = dataset_stats(lengths=lengths, histogram=histogram, packs=packs, lower_bound=packs, algorithm="bfd")
        assert stats.tokens == lengths.sum(dtype=np.int64), path.name
        assert stats.documents_over_max_len == (lengths > 4096).sum()
        assert stats.lengths.p50 == np.sort(lengths)[(len(lengths) - 1) // 2]
        assert stats.padding.max_len == pytest.approx(1 - np.minimum(lengths, 4096).mean() / 4096)
        assert 0 <= stats.padding.packed < 4096 / stats.tokens_packed


# Packed datasets

# [3, 1], [2, 2 of padding] and [4] in rows of 4.
ROWS = RowArrays(
    row_offsets=np.array([0, 2, 4, 5]),
    seq_lengths=np.array([3, 1, 2, 2, 4], np.int32),
    doc_ids=np.array([7, 8, 9, -1, 3]),
)


def test_stats_of_tiny_rows_are_known() -> None:
    stats = packed_stats(documents=4, lower_bound=3, max_len=4, rows=[ROWS])
    assert (stats.documents, stats.segments, stats.tokens, stats.packs) == (4, 4, 10, 3)
    assert stats.efficiency == 10 / 12
    assert stats.packing_factor == 4 / 3
    assert stats.mean_padding == pytest.approx(2 / 3)
    assert stats.attention_share == (9 + 1 + 4 + 4 + 16) / (3 * 16)
    assert (stats.segments_per_row.min, stats.segments_per_row.mean, stats.segments_per_row.max) == (1, 4 / 3, 2)
    assert stats.padding == padding_ratios(histogram_of([3, 1, 2, 4], 4), packs=3)


def test_rows_in_parts_give_what_they_give_at_once() -> None:
    parts = [
        RowArrays(row_offsets=ROWS.row_offsets[first : last + 1], seq_lengths=ROWS.seq_lengths, doc_ids=ROWS.doc_ids)
        for first, last in ((0, 1), (1, 1), (1, 3))
    ]
    at_once = packed_stats(documents=4, lower_bound=3, max_len=4, rows=[ROWS])
    assert packed_stats(documents=4, lower_bound=3, max_len=4, rows=iter(parts)) == at_once


def test_alignment_is_padding_but_is_attended() -> None:
    aligned = RowArrays(
        row_offsets=np.array([0, 2]),
        seq_lengths=np.array([4, 4], np.int32),
        doc_ids=np.array([0, 1]),
        seq_tokens=np.array([3, 1], np.int32),
    )
    stats = packed_stats(documents=2, lower_bound=1, max_len=8, rows=[aligned])
    assert stats.tokens == 4
    assert stats.efficiency == 0.5
    assert stats.mean_padding == 4
    assert stats.attention_share == 0.5
    assert stats.padding.max_len == 1 - 4 / 16


def test_json_of_a_packed_dataset_has_the_same_keys() -> None:
    read = json.loads(json.dumps(packed_stats(documents=4, lower_bound=3, max_len=4, rows=[ROWS]).to_json()))
    expected = {"documents": 4, "tokens": 10, "max_len": 4, "packs": 3, "lower_bound": 3, "efficiency": 10 / 12}
    assert {key: read[key] for key in expected} == expected
    assert set(read["padding"]) == {"max_len", "batch_longest", "group_by_length", "packed"}


@given(st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=4), min_size=1, max_size=30))
def test_rows_of_any_shape_are_counted_as_one_by_one(rows: list[list[int]]) -> None:
    """The rows hold segments of up to 8 tokens; a tail fills those below 32."""
    seq_lengths = [[*row, MAX_LEN - sum(row)] if sum(row) < MAX_LEN else row for row in rows]
    doc_ids = [[5] * len(row) + [-1] * (sum(row) < MAX_LEN) for row in rows]
    arrays = RowArrays(
        row_offsets=np.cumsum([0, *map(len, seq_lengths)]),
        seq_lengths=np.array(list(chain(*seq_lengths)), np.int32),
        doc_ids=np.array(list(chain(*doc_ids))),
    )
    stats = packed_stats(documents=1, lower_bound=1, max_len=MAX_LEN, rows=[arrays])
    assert stats.packs == len(rows)
    assert stats.tokens == sum(map(sum, rows))
    assert stats.segments == sum(map(len, rows))
    assert stats.segments_per_row == distribution(np.array([len(row) for row in rows]))
    assert 0 < stats.attention_share <= 1
