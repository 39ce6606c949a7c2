"""Plans of histogram algorithms place each segment once, in as few rows as a solver needs, mixed like the corpus."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.bench_rows import shuffled
from packer.algorithms import get_algorithm
from packer.errors import PackerError
from packer.options import PackOptions
from packer.plan.make_plan import plan_lengths
from packer.plan.segments import cut_documents
from packer.report.measures import RowSums
from tests.helpers import naive
from tests.helpers.histograms import read_histogram
from tests.helpers.small import shrink


@pytest.fixture
def real_partitions():
    """Leave partitions as large as they are."""


@pytest.fixture(autouse=True)
def partitions_of_a_shard(monkeypatch, request):
    """Partitions as small as shards, so that a small source has several."""
    if "real_partitions" not in request.fixturenames:
        shrink(monkeypatch, partition_tokens=1)


some_lengths = st.lists(st.integers(0, 25), min_size=1, max_size=60)


def int32s(values):
    return np.array(values, np.int32)


def planned(lengths, max_len, rows_per_shard=10**9, **options):
    """Plan documents of these lengths; return (plan, its shards)."""
    row_bytes = 8 * max_len
    pack_options = PackOptions(max_len=max_len, shard_size=min(rows_per_shard * row_bytes, 2**60), **options)
    plan = plan_lengths(int32s(lengths), pack_options)
    shards = [plan.rows(number) for number in range(len(plan.shard_starts) - 1)]
    assert [len(shard) for shard in shards] == np.diff(plan.shard_starts).tolist()
    return plan, shards


def partitions_in(plan):
    return len(plan.job.partitions)


def rows_of(shard):
    segments = list(zip(shard.documents.tolist(), shard.starts.tolist(), shard.lengths.tolist(), strict=True))
    starts = shard.row_starts.tolist()
    return [segments[a:b] for a, b in itertools.pairwise(starts)]


def like_real(documents, seed=7, longest=2048):
    return np.minimum(np.random.default_rng(seed).lognormal(5, 1, documents) + 1, longest).astype(np.int32)


@settings(deadline=None)
@given(
    some_lengths, st.integers(1, 12), st.sampled_from(["split", "truncate", "drop"]), st.integers(1, 6),
    st.integers(0, 3), st.integers(1, 3), st.sampled_from(["auto", "mixed", "bfd"]),
    st.none() | st.integers(1, 4),
)  # fmt: skip
def test_every_segment_is_in_one_row_that_holds_it(
    lengths, pieces, long, rows_per_shard, seed, align, algorithm, max_segments
):
    max_len = pieces * align
    expected = naive.cut_documents(lengths, max_len, long)
    options = {"long": long, "seed": seed, "align": align, "algorithm": algorithm}
    if not expected:
        with pytest.raises(PackerError, match="nothing to pack"):
            planned(lengths, max_len, rows_per_shard, **options)
        return
    plan, shards = planned(lengths, max_len, rows_per_shard, max_segments=max_segments, **options)
    rows = [row for shard in shards for row in rows_of(shard)]
    assert sorted(segment for row in rows for segment in row) == expected
    assert len(rows) == plan.totals.rows >= plan.totals.lower_bound
    for row in rows:
        assert 0 < sum(-(-length // align) * align for _, _, length in row) <= max_len
        assert len(row) <= (max_segments or max_len)
    assert all(0 < len(shard.row_starts) - 1 <= rows_per_shard for shard in shards)
    if algorithm != "mixed" and partitions_in(plan) == 1:
        histogram = cut_documents(int32s(lengths), max_len, long, align=align).histogram
        solved = get_algorithm(algorithm).solve(histogram, max_segments).packs
        assert len(rows) <= solved


few_lengths = st.integers(8, 24).flatmap(
    lambda max_len: st.tuples(st.just(max_len), st.lists(st.integers(1, max_len), min_size=1, max_size=11))
)


@given(few_lengths, st.none() | st.integers(2, 5))
@example((16, [10, 7, 12, 14, 6, 1, 9, 11, 3, 14]), None)
def test_auto_packs_a_few_documents_into_the_fewest_rows_there_can_be(case, max_segments):
    max_len, lengths = case
    plan, _ = planned(lengths, max_len, max_segments=max_segments)
    assert plan.totals.rows == naive.optimal_packs(lengths, max_len, max_segments)


def assert_no_solver_needs_fewer_rows(lengths, max_len):
    rows = {
        name: planned(lengths, max_len, algorithm=name)[0].totals.rows
        for name in ("auto", "bfd", "ffd", "spfhp", "optimal")
    }
    assert rows["auto"] == min(rows.values())


@given(
    st.sampled_from([50, 128, 512, 2048]), st.integers(8, 59), st.integers(0, 2**32),
    st.sampled_from(["uniform", "log-normal", "fifths"]),
)  # fmt: skip
def test_auto_takes_no_more_rows_than_any_solver_on_small_sets(max_len, documents, seed, kind):
    random = np.random.default_rng(seed)
    if kind == "log-normal":
        lengths = np.clip(random.lognormal(np.log(max_len / 4), 0.8, documents), 1, max_len)
    else:
        least, most = (1, max_len) if kind == "uniform" else (max_len // 5, max_len // 2)
        lengths = random.integers(least, most + 1, documents)
    assert_no_solver_needs_fewer_rows(lengths, max_len)


@pytest.mark.nightly(after=12)
@pytest.mark.parametrize("max_len", [4096, 512, 1024, 2048, 8192, 32_768])
@pytest.mark.parametrize("name", ["gsm8k", "nltk_docs", "python_code", "python_peps", "sgd_multiturn", "t0_train_50k"])
def test_auto_takes_no_more_rows_than_optimal_on_real_sets(shared_data, name, max_len):
    lengths = np.load(shared_data / "lengths" / f"{name}.npy").astype(np.int32)
    plan, _ = planned(lengths, max_len)
    assert partitions_in(plan) == 1
    assert plan.totals.rows <= get_algorithm("optimal").solve(cut_documents(lengths, max_len, "split").histogram).packs


@pytest.mark.nightly(after=5)
@pytest.mark.parametrize(
    ("name", "max_len", "documents"),
    [
        ("gsm8k", 8192, None), ("sgd_multiturn", 4096, None), ("t0_train_50k", 32_768, None), ("gsm8k", 4096, 1500),
        ("sgd_multiturn", 4096, 1200), ("gsm8k", 1024, None), ("gsm8k", 2048, None), ("gsm8k", 4096, None),
        ("sgd_multiturn", 2048, None), ("sgd_multiturn", 8192, None), ("sgd_multiturn", 32_768, None),
        ("t0_train_50k", 32_768, 10_000),
    ],
)  # fmt: skip
def test_sets_of_short_documents_are_as_mixed_as_a_shuffle_in_as_few_rows_as_optimal_needs(
    shared_data, name, max_len, documents
):
    """Documents are shorter than half a row, and there are 60 rows or more, as in sets for fine-tuning."""
    lengths = np.load(shared_data / "lengths" / f"{name}.npy").astype(np.int32)[:documents]
    assert 2 * lengths.max() < max_len
    plan, shards = planned(lengths, max_len)
    histogram = np.bincount(lengths, minlength=max_len + 1)
    histogram[0] = 0
    assert 60 <= plan.totals.rows == plan.totals.lower_bound
    assert figures_of(shards, max_len).within_row_share > 0.97 * shuffled(histogram).within_row_share


ORDERS = {
    "mixed": lambda lengths: lengths,
    "sorted": np.sort,
    "long then short": lambda lengths: lengths[np.argsort(lengths < 500, kind="stable")],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_len", [2048, 8192])
def test_partitions_cost_a_row_each_at_most_in_any_order_of_the_source(order, max_len):
    lengths = ORDERS[order](like_real(120_000))
    solved = get_algorithm("auto").solve(cut_documents(lengths, max_len, "split").histogram)
    plan, _ = planned(lengths, max_len, rows_per_shard=-(-solved.packs // 5))
    assert partitions_in(plan) > 4
    assert plan.totals.lower_bound == solved.lower_bound
    assert plan.totals.rows <= solved.packs + partitions_in(plan)


@pytest.mark.parametrize("order", ORDERS)
def test_every_shard_is_a_sample_of_the_corpus(order):
    lengths = ORDERS[order](like_real(120_000))
    _, shards = planned(lengths, 4096, rows_per_shard=1500)
    means = [np.average(np.log(shard.lengths), weights=shard.lengths) for shard in shards]
    assert len(means) >= 5
    assert max(means) - min(means) < 0.05  # over tokens the standard deviation is 0.8


@pytest.mark.parametrize("rows_per_shard", [10**9, 1_000])
@pytest.mark.parametrize("order", ["random", "sorted"])
def test_rows_are_mixed_like_the_corpus(order, rows_per_shard):
    """In shards of any size. Skewed like T0: most prompts are short, and the long ones need short partners."""
    lengths = np.minimum(np.random.default_rng(2).lognormal(4.9, 1.0, 50_000) + 1, 4096).astype(np.int32)
    lengths = np.sort(lengths) if order == "sorted" else lengths
    plan, shards = planned(lengths, 1024, rows_per_shard)
    sums = RowSums(1024)
    for shard in shards:
        sums.add(shard.lengths, shard.row_starts)
    assert plan.totals.rows <= plan.totals.lower_bound + partitions_in(plan)
    assert (
        sums.finish().within_row_share
        > 0.95 * shuffled(cut_documents(lengths, 1024, "split").histogram).within_row_share
    )


@pytest.mark.parametrize("algorithm", ["bfd", "mixed"])
def test_a_trainer_that_reads_rows_in_order_sees_about_the_same_lengths_in_every_quarter(algorithm):
    _, shards = planned(like_real(60_000, longest=1024), 1024, 200, algorithm=algorithm)
    depths = np.concatenate([np.diff(shard.row_starts) for shard in shards])
    quarters = [part.mean() for part in np.array_split(depths, 4)]
    assert max(quarters) < 1.1 * min(quarters)


def test_partitions_of_mixed_are_drawn_like_the_first_one():
    plan, _ = planned(like_real(60_000, longest=1024), 1024, 1000, algorithm="mixed", max_segments=3)
    rows, drawn = np.array([(p.packs, p.counts.tolist().count(1)) for p in plan.patterns()]).T
    assert len(rows) > 10
    assert (drawn / rows).std() < 0.05


def test_auto_solves_long_documents_and_mixed_draws_them():
    lengths = np.random.default_rng(0).integers(200, 2048, 4_000)
    solved = get_algorithm("auto").solve(np.bincount(lengths, minlength=2049)).packs
    auto, _ = planned(lengths, 2048)
    mixed, _ = planned(lengths, 2048, algorithm="mixed")
    assert auto.totals.rows == solved
    assert mixed.totals.rows > solved


def test_a_million_documents_are_drawn_into_as_few_rows_as_there_can_be():
    drawn = np.exp(np.random.default_rng(0).standard_normal(1_000_000, np.float32) + np.float32(5.5))
    plan = plan_lengths(np.minimum(drawn + 1, 20_000).astype(np.int32), PackOptions(max_len=2048), threads=2)
    assert plan.totals.rows <= plan.totals.lower_bound + partitions_in(plan)


def neighbors_in_a_row(shards):
    """Count the documents that share a row with the next one of the source."""
    found = 0
    for shard in shards:
        rows = np.repeat(np.arange(len(shard)), np.diff(shard.row_starts))
        order = np.lexsort((shard.documents, rows))
        found += np.count_nonzero((np.diff(rows[order]) == 0) & (np.diff(shard.documents[order]) == 1))
    return found


def figures_of(shards, max_len):
    sums = RowSums(max_len)
    for shard in shards:
        sums.add(shard.lengths, shard.row_starts)
    return sums.finish()


@pytest.mark.nightly(after=1)
@pytest.mark.usefixtures("real_partitions")
@pytest.mark.parametrize(("max_len", "typical"), [(512, 3.6), (4096, 5)])
def test_small_shards_are_mixed_as_well_as_large_ones(max_len, typical):
    """The source is sorted by length: then its neighbors are most alike, and few of them should share a row."""
    drawn = np.random.default_rng(7).lognormal(typical, 1, 800_000) + 1
    lengths = np.sort(np.minimum(drawn, max_len).astype(np.int32))
    found = {}
    for shard_size in (2_000_000, 512_000_000):
        plan, shards = planned(lengths, max_len, rows_per_shard=shard_size // (8 * max_len))
        assert max(map(len, shards)) <= shard_size // (8 * max_len)
        found[shard_size] = plan.totals.rows, figures_of(shards, max_len).within_row_share, neighbors_in_a_row(shards)
    (rows, share, neighbors), (rows_of_large, share_of_large, neighbors_of_large) = found.values()
    assert rows == pytest.approx(rows_of_large, abs=partitions_in(plan))
    assert share == pytest.approx(share_of_large, rel=0.02)
    assert neighbors < 1.5 * neighbors_of_large + 30


@pytest.mark.parametrize("max_len", [512, 2048, 32_768])
@pytest.mark.parametrize("rows_per_shard", [16, 61, 488])
@pytest.mark.usefixtures("real_partitions")
def test_shards_of_any_size_are_as_many_as_their_rows_need(rows_per_shard, max_len):
    plan, shards = planned(like_real(30_000), max_len, rows_per_shard)
    assert plan.totals.rows == plan.totals.lower_bound
    assert len(shards) == -(-plan.totals.rows // rows_per_shard)


@pytest.mark.usefixtures("real_partitions")
def test_a_sorted_source_packs_in_nearly_as_few_rows_as_all_documents_at_once(shared_data):
    """Rows of at most 3 segments need partitions with almost the same lengths."""
    histogram = read_histogram(shared_data / "histograms" / "wikipedia_bert_512.csv") // 8
    lengths = np.repeat(np.arange(len(histogram), dtype=np.int32), histogram)
    plan = plan_lengths(lengths, PackOptions(max_len=512, algorithm="bfd", max_segments=3))
    assert partitions_in(plan) > 8
    assert plan.totals.rows < 1.0003 * get_algorithm("bfd").solve(histogram, 3).packs


def test_a_partition_may_be_several_shards(monkeypatch):
    """They are parts of the same rows, each made alone, in any order."""
    shrink(monkeypatch, partition_tokens=300 * 2048)
    for algorithm in ("auto", "bfd"):
        plan, shards = planned(like_real(20_000), 2048, rows_per_shard=100, algorithm=algorithm)
        count = partitions_in(plan)
        assert count > 3
        assert 3 * count <= len(shards) <= 4 * count
        assert max(map(len, shards)) <= 100
        documents = np.concatenate([shard.documents for shard in shards])
        assert np.array_equal(np.sort(documents), np.arange(20_000))
        for number in reversed(range(len(shards))):
            again = pickle.loads(pickle.dumps(plan)).rows(number)
            assert np.array_equal(again.values, shards[number].values)
            assert np.array_equal(again.row_starts, shards[number].row_starts)


def test_a_shard_holds_documents_of_one_partition_alone():
    for algorithm in ("auto", "bfd"):
        plan, shards = planned(like_real(20_000), 2048, rows_per_shard=300, algorithm=algorithm)
        partitions = plan.job.partitions
        assert len(partitions) > 5
        of = {
            document: partition
            for partition in range(len(partitions))
            for first, last in partitions.ranges(partition)
            for document in range(first, last)
        }
        read = [{of[document] for document in shard.documents.tolist()} for shard in shards]
        assert all(len(partitions) == 1 for partitions in read)
        assert [number for (number,) in read] == sorted(number for (number,) in read)


def test_shards_are_alike_if_documents_have_few_lengths():
    lengths = np.random.default_rng(0).choice([100, 300, 1000, 1500], 60_000)
    _, shards = planned(lengths, 2048, rows_per_shard=2000, algorithm="bfd")
    assert len(shards) > 5
    fills = [shard.lengths.sum() / (len(shard.row_starts) - 1) for shard in shards]
    depths = [np.diff(shard.row_starts).mean() for shard in shards]
    assert max(fills) < 1.05 * min(fills)
    assert max(depths) < 1.1 * min(depths)  # the mean lengths of 5,000 documents differ by up to 7% by chance


def test_partitions_have_no_more_segments_than_a_worker_can_hold(monkeypatch):
    shrink(monkeypatch, partition_segments=1000)
    lengths = np.tile(int32s([1, 2, 3, 4]), 2500)
    plan, shards = planned(lengths, 64)
    segments = [len(shard.documents) for shard in shards]
    assert len(segments) >= 10
    assert max(segments) < 1200
    assert sorted(np.concatenate([shard.documents for shard in shards])) == list(range(10_000))
    assert plan.totals.lower_bound == -(-25_000 // 64) <= plan.totals.rows <= plan.totals.lower_bound + len(segments)
