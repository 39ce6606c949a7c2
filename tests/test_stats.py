"""Ratios, totals and quantiles, against enumeration on tiny sets and simulation on real lengths."""

import json
import statistics
from dataclasses import asdict
from itertools import chain, pairwise, permutations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import packer
from packer.report.measures import (
    BATCH_SIZES,
    KEYS_OF_MATRICES,
    MAX_BINS,
    RowSums,
    distribution,
    padding_ratios,
    sorted_total,
    tally,
)
from tests.helpers import naive
from tests.helpers.commands import succeeded
from tests.helpers.made_figures import figures_of, rows_of
from tests.helpers.pack import made_documents, save_arrow

MAX_LEN = 32

segment_lengths = st.lists(st.integers(1, MAX_LEN), min_size=1, max_size=200)
few_segments = st.lists(st.integers(1, MAX_LEN), min_size=1, max_size=6)


def histogram_of(lengths: list[int] | NDArray[np.int32], max_len: int = MAX_LEN) -> NDArray[np.int64]:
    return np.bincount(lengths, minlength=max_len + 1).astype(np.int64)


def padded_total(lengths: list[int] | tuple[int, ...], size: int) -> int:
    """Tokens, padding included, of batches cut from the lengths as they come."""
    batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
    return sum(len(batch) * max(batch) for batch in batches)


# Padding


def test_every_padding_ratio_of_a_tiny_set_is_known() -> None:
    padding = padding_ratios(histogram_of([1, 2, 4], max_len=4), rows=2)
    assert padding.max_len == pytest.approx(1 - 7 / 12)
    # Any two of the three: 2 x (2 + 4 + 4) / 3, and the third alone, 7 / 3.
    assert padding.batch_longest[2] == pytest.approx(1 - 7 / (20 / 3 + 7 / 3))
    assert padding.batch_longest[4] == padding.batch_longest[64] == pytest.approx(1 - 7 / 12)
    assert padding.group_by_length[2] == pytest.approx(1 - 7 / 9)  # [4, 2] and [1]
    assert padding.batch_longest[1] == padding.group_by_length[1] == 0
    assert padding.packed == pytest.approx(1 - 7 / 8)


@settings(deadline=None)
@given(few_segments)
def test_random_order_is_the_mean_over_all_orders(lengths: list[int]) -> None:
    padding = padding_ratios(histogram_of(lengths), rows=len(lengths))
    for size in (1, 2, 4, 8):
        mean_total = np.mean([padded_total(order, size) for order in permutations(lengths)])
        assert padding.batch_longest[size] == pytest.approx(1 - sum(lengths) / mean_total, abs=1e-12)


@given(segment_lengths, st.integers(1, 70))
def test_batches_sorted_by_length_are_cut_from_the_sorted_segments(lengths: list[int], size: int) -> None:
    assert sorted_total(histogram_of(lengths), size) == padded_total(sorted(lengths, reverse=True), size)


@given(segment_lengths)
def test_padding_grows_with_the_batch(lengths: list[int]) -> None:
    padding = padding_ratios(histogram_of(lengths), rows=len(lengths))
    random = list(padding.batch_longest.values())
    assert all(0 <= ratio < 1 for ratio in (padding.max_len, padding.packed, *random))
    assert all(larger >= smaller - 1e-12 for smaller, larger in pairwise(random))
    assert all(ratio <= padding.max_len + 1e-12 for ratio in random)


def test_counts_beyond_any_corpus_keep_their_ratio() -> None:
    few, many = np.array([0, 1, 0, 0, 1]) * 10**6, np.array([0, 1, 0, 0, 1]) * 10**12
    of_few, of_many = padding_ratios(few, rows=2 * 10**6), padding_ratios(many, rows=2 * 10**12)
    assert of_many.max_len == of_few.max_len == 1 - 2.5 / 4
    assert of_many.batch_longest[2] == pytest.approx(1 - 2.5 / 3.25)


@pytest.mark.parametrize("name", ["t0_train_50k", "gsm8k", "sgd_multiturn"])
def test_random_order_on_real_lengths_is_what_shuffling_gives(name: str, shared_data: Path) -> None:
    lengths = np.load(shared_data / "lengths" / f"{name}.npy")
    padding = padding_ratios(histogram_of(lengths, int(lengths.max())), rows=len(lengths))
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
    padding = padding_ratios(histogram_of([1, 2, 4, 1], max_len=4), rows=2)
    assert padding.speedup(padding.max_len) == pytest.approx(4 / 2)
    assert padding.speedup(padding.packed) == 1


# Distribution


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300))
def test_quantiles_and_bins_are_those_of_the_sorted_list(numbers: list[int]) -> None:
    spread, in_order = distribution(tally(numbers)), sorted(numbers)
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


def test_values_that_do_not_occur_change_nothing() -> None:
    assert distribution((np.arange(6), np.array([0, 0, 3, 0, 1, 0]))) == distribution(tally([2, 2, 2, 4]))


def test_bins_are_of_one_width_or_double_when_the_tail_is_long() -> None:
    assert distribution(tally([62, 159, 469])).bin_edges == tuple(range(32, 481, 32))
    assert distribution(tally([17, 114, 5853])).bin_edges == tuple(2**power for power in range(4, 14))
    assert distribution(tally([0, 0, 0, 3])).bin_edges == (0, 1, 2, 4)


# Epochs


def test_packed_rows_per_step_keep_the_documents_per_step() -> None:
    epoch = figures_of([5] * 1000, max_len=100, rows=100).epoch
    assert (epoch.rows, epoch.rows_per_step, epoch.steps) == (1000, 64, 16)
    assert (epoch.packed_rows, epoch.packed_rows_per_step, epoch.packed_steps) == (100, 6, 17)
    assert epoch.packed_documents_per_step == 60


def test_a_step_has_one_row_where_a_row_has_more_documents_than_the_step() -> None:
    epoch = figures_of([1] * 1000, max_len=100, rows=10, documents_per_step=8).epoch
    assert (epoch.packed_rows_per_step, epoch.packed_steps, epoch.packed_documents_per_step) == (1, 10, 100)


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_documents_per_step_are_missed_by_half_a_row_at_most(packs: int, per_step: int) -> None:
    epoch = figures_of([1] * 500, max_len=500, rows=packs, documents_per_step=per_step).epoch
    if epoch.packed_rows_per_step > 1:
        assert abs(epoch.packed_documents_per_step - per_step) <= 500 / packs / 2 * (1 + 1e-9)


# Datasets


def stats(*arguments: object) -> dict[str, Any]:
    return json.loads(succeeded("stats", *arguments, "--json"))


def test_stats_of_a_tiny_dataset_are_known(tmp_path: Path) -> None:
    """Documents of 3, 0, 10 and 5 tokens; the last but one is split into 8 and 2: rows are [8], [5, 3] and [2]."""
    source = save_arrow(tmp_path / "tiny.arrow", [[1] * length for length in (3, 0, 10, 5)])
    read = stats(source, "--max-len", 8, "--batch-size", 2, "--algorithm", "bfd")
    expected = {"documents": 4, "tokens": 18, "documents_packed": 3, "tokens_packed": 18, "segments": 4}
    expected |= {"documents_over_max_len": 1, "max_len": 8, "rows": 3, "lower_bound": 3, "efficiency": 18 / 24}
    assert {key: read[key] for key in expected} == expected
    assert read["packing_factor"] == 1
    assert (read["lengths"]["min"], read["lengths"]["p50"], read["lengths"]["max"]) == (0, 3, 10)
    assert (read["epoch"]["rows"], read["epoch"]["rows_per_step"]) == (4, 2 * 4 / 3)
    assert (read["epoch"]["steps"], read["epoch"]["packed_rows_per_step"]) == (2, 2)
    assert set(read["padding"]) == {"max_len", "batch_longest", "group_by_length", "packed"}
    for mode in ("batch_longest", "group_by_length"):
        assert list(read["padding"][mode]) == ["1", "2", "4", "8", "16", "32", "64"]
    assert read["padding"]["packed"] == pytest.approx(1 / 4)


# Packed datasets


@pytest.mark.parametrize("options", [{}, {"align": 8}, {"algorithm": "wrapped"}], ids=str)
def test_figures_of_packed_rows_are_those_counted_row_by_row(tmp_path: Path, options: dict[str, Any]) -> None:
    source = save_arrow(tmp_path / "rows.arrow", made_documents(300))
    packer.pack(source, tmp_path / "out", max_len=40, **options)
    read, dataset = stats(tmp_path / "out"), packer.load(tmp_path / "out")
    segments = [row["doc_ids"] >= 0 for row in dataset]
    rows = [
        row.get("seq_tokens", row["seq_lengths"])[used].tolist() for row, used in zip(dataset, segments, strict=True)
    ]
    tokens, keys = sum(map(sum, rows)), [sum(length * (length + 1) // 2 for length in row) for row in rows]
    expected = {"rows": len(rows), "segments": sum(map(len, rows)), "tokens": tokens, "max_len": 40}
    expected |= {"documents": len({int(i) for row in dataset for i in row["doc_ids"] if i >= 0})}
    expected |= {"efficiency": tokens / (len(rows) * 40), "keys_per_token": sum(keys) / tokens}
    align = options.get("align", 1)
    expected |= {"align_padding_tokens": sum(-length % align for row in rows for length in row)}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    planned = stats(source, "--max-len", 40, *words)
    assert planned["align_padding_tokens"] == expected["align_padding_tokens"]
    assert {name: read[name] for name in expected} == expected
    assert read["mean_padding"] == pytest.approx(40 - tokens / len(rows))
    assert read["segments_per_row"] == json.loads(json.dumps(asdict(distribution(tally(list(map(len, rows)))))))
    assert read["within_row_share"] == pytest.approx(naive.within_row_share(rows), abs=1e-6)
    work = [KEYS_OF_MATRICES * sum(row) + attended for row, attended in zip(rows, keys, strict=True)]
    assert read["work_peak"] == pytest.approx(max(work) / statistics.mean(work))
    assert read["attention_share"] == pytest.approx(sum(keys) / sum(work))
    padding = asdict(padding_ratios(histogram_of(list(chain(*rows)), 40), len(rows)))
    assert read["padding"] == json.loads(json.dumps(padding))


@given(st.lists(st.lists(st.integers(1, MAX_LEN), min_size=1, max_size=5), min_size=1, max_size=20), st.integers(1, 3))
def test_rows_in_parts_give_what_rows_give_at_once(rows: list[list[int]], parts: int) -> None:
    whole, in_parts = rows_of(rows * 3, 5 * MAX_LEN), RowSums(5 * MAX_LEN)
    for part in range(parts):
        some = (rows * 3)[part::parts]
        in_parts.add(np.array(list(chain(*some)), int), np.cumsum([0, *map(len, some)]))
    found = in_parts.finish()
    for name in ("rows", "tokens", "segments_per_row", "attention"):
        assert getattr(found, name) == getattr(whole, name)
    assert found.histogram.tolist() == whole.histogram.tolist()
    for name in ("within_row_share", "work_peak", "keys_per_token"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), abs=1e-6)


def test_segments_of_a_plan_are_those_in_the_rows_though_wrapping_cuts_more(tmp_path):
    source = save_arrow(tmp_path / "rows.arrow", made_documents(90))
    for algorithm in ("wrapped", "sequential", "bfd"):
        found = json.loads(succeeded("stats", source, "--max-len", 64, "--algorithm", algorithm, "--json"))
        made = packer.pack(source, tmp_path / algorithm, max_len=64, algorithm=algorithm, sync=False)
        assert found["segments"] == made.totals.segments


@pytest.mark.parametrize("options", [{}, {"align": 8}, {"max_segments": 3}, {"algorithm": "mixed"}], ids=str)
def test_a_comparison_describes_the_rows_that_pack_makes(tmp_path, options):
    lengths = np.random.default_rng(0).lognormal(3, 0.8, 900).astype(int).clip(1, 128)
    source = save_arrow(tmp_path / "rows.arrow", [[7] * length for length in lengths])
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    compared = json.loads(succeeded("stats", source, "--max-len", "96,128", *words, "--json"))
    for planned in compared["outcomes"]:
        out = tmp_path / str(planned["max_len"])
        packer.pack(source, out, max_len=planned["max_len"], sync=False, **options)
        made = stats(out)
        for name in ("rows", "segments", "segments_per_row"):
            assert planned[name] == made[name]
        assert planned["within_row_share"] == pytest.approx(made["within_row_share"], abs=1e-9)
