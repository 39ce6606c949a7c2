"""Rows of one group, and pairs that stay together."""

import re
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import packer
from packer.algorithms import get_algorithm
from packer.algorithms.index_arrays import extents_of
from packer.cli import cli
from packer.errors import PackerError
from packer.options import PackOptions
from packer.plan.groups import NO_GROUP, pack_by_group, together_bound
from packer.plan.make_plan import DocumentValues, plan_whole
from packer.plan.packable_segments import cut_by_policy
from packer.plan.segments import cut_documents, cut_lengths_of, cut_pairs
from tests.helpers import naive
from tests.helpers.kept import write
from tests.helpers.plan import int32s, located, rows_of
from tests.helpers.small import shrink

some_documents = st.lists(st.tuples(st.integers(0, 25), st.integers(NO_GROUP, 6)), min_size=1, max_size=60)


def solver(max_segments, algorithm="bfd"):
    return lambda histogram: get_algorithm(algorithm).solve(histogram, max_segments)


def cut_and_group(documents, max_len, long="split", align=1):
    lengths, of_documents = zip(*documents, strict=True)
    segments = cut_documents(int32s(lengths), max_len, long, align=align)
    assume(segments.histogram.any())
    return segments, int32s(of_documents)


def row_groups(segments, plan, of_documents):
    """Return the groups of the segments of every row."""
    documents = segments.locate(plan.values)[0]
    return [
        of_documents[documents[a:b]].tolist() for a, b in zip(plan.row_starts[:-1], plan.row_starts[1:], strict=True)
    ]


def check_rows(segments, plan, *, max_segments):
    assert sorted(plan.values.tolist()) == sorted(segments.numbers().tolist())
    for row in rows_of(plan):
        assert 0 < extents_of(segments.locate(np.array(row))[2], segments.align).sum() <= segments.max_len
        assert len(row) <= (max_segments or segments.max_len)


@settings(deadline=None)
@given(
    some_documents, st.integers(1, 12), st.sampled_from(["split", "truncate", "drop"]), st.integers(1, 3),
    st.none() | st.integers(1, 4), st.integers(0, 3), st.sampled_from([0, 2, 64]),
)  # fmt: skip
def test_every_row_holds_one_group(documents, pieces, long, align, max_segments, seed, most_solved):
    segments, of_documents = cut_and_group(documents, pieces * align, long, align)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, solved_groups=most_solved)
        plan = pack_by_group(segments, of_documents, solver(max_segments), max_segments=max_segments, seed=seed)
    check_rows(segments, plan, max_segments=max_segments)
    found = row_groups(segments, plan, of_documents)
    assert all(len(set(row)) == 1 for row in found)
    # There are as many rows as the groups need on their own.
    of_group = defaultdict(list)
    for document, _, length in located(segments, segments.numbers()):
        of_group[of_documents[document]].append(-(-length // align) * align)
    expected = {
        group: len(naive.best_fit_decreasing(extents, pieces * align, max_segments))
        for group, extents in of_group.items()
    }
    assert Counter(row[0] for row in found) == expected
    assert together_bound(segments, of_documents, max_segments) <= sum(expected.values())


@pytest.mark.parametrize(
    ("lengths", "max_segments", "bound"),
    [([3, 3, 3, 3], None, 2), ([1, 1, 1, 1, 1], 2, 3), ([6, 6, 6], None, 3)],
    ids=["tokens", "segments", "halves"],
)
def test_the_bound_of_a_group_is_the_largest_of_three(lengths, max_segments, bound):
    segments = cut_documents(int32s([*lengths, *lengths, 2]), 10, "split")
    of_documents = int32s([*[0] * len(lengths), *[1] * len(lengths), NO_GROUP])
    assert together_bound(segments, of_documents, max_segments) == 2 * bound + 1


def grouped_source(documents=400, seed=0):
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 50, documents).tolist()
    source = [f"s{number // 5 % 30}" if number % 7 != 3 else None for number in range(documents)]
    return {
        "input_ids": [random.integers(1, 1000, length).tolist() for length in lengths],
        "source": source,
        "weight": [float(number) for number in range(documents)],
    }


def groups_on_disk(out):
    """Return the kept sources of the segments of every row."""
    rows = packer.load(out)
    shards = [pa.ipc.open_stream(path).read_all() for path in sorted(out.glob("*.arrow"))]
    found = []
    for table in shards:
        for ids, sources in zip(table["doc_ids"].to_pylist(), table["source"].to_pylist(), strict=True):
            found.append([name for document, name in zip(ids, sources, strict=True) if document >= 0])
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("kind", ["shuffled", "parquet", "jsonl"])
def test_documents_are_grouped_by_a_column(kind, tmp_path):
    columns = grouped_source()
    source = write(tmp_path, kind, columns)
    out = tmp_path / "packed"
    options = {"max_len": 100, "shard_size": 20_000, "long": "truncate", "algorithm": "bfd"}
    manifest = packer.pack(source, out, keep=["source"], group_by="source", **options)
    rows = groups_on_disk(out)
    for row in rows:
        assert len(set(row)) == 1
    plain = packer.pack(source, tmp_path / "plain", **options)
    assert manifest.totals.groups.to_dict() == {
        "groups": 30,
        "documents_without": columns["source"].count(None),
        "rows_ungrouped": plain.totals.rows,
    }
    assert manifest.totals.lower_bound <= manifest.totals.rows == len(rows)
    assert list(packer.verify(out, source)) == []


def test_the_column_of_groups_need_not_be_kept_and_may_hold_numbers(tmp_path):
    columns = grouped_source()
    source = write(tmp_path, "parquet", columns)
    manifest = packer.pack(source, tmp_path / "out", max_len=100, group_by="weight")
    assert manifest.totals.groups.groups == len(columns["weight"])
    assert "weight" not in packer.load(tmp_path / "out")[0]
    assert "group_by" not in packer.pack(source, tmp_path / "plain", max_len=100).to_dict()["options"]


def test_the_command_reports_the_rows_that_groups_cost(tmp_path):
    source = write(tmp_path, "parquet", grouped_source())
    command = ["pack", str(source), "--max-len", "100", "-o", str(tmp_path / "out"), "--group-by", "source"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    line = next(line for line in done.output.splitlines() if line.strip().startswith("together"))
    assert "rows more than ungrouped, " in line
    assert re.search(r"^  groups +30  of source; 57 documents in none$", done.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "source", "algorithm": "sequential"}, "keeps the order of the source: choose another algorithm"),
        ({"group_by": "input_ids"}, "a column of tokens: name one with a value per document"),
        ({"group_by": "nowhere"}, "nowhere"),
        ({"group_by": "empty"}, "is null in every document; name another"),
        ({"group_by": "kinds"}, "which does not group; save it as strings or integers"),
    ],
)
def test_columns_that_cannot_group_are_refused_in_one_line(options, message, tmp_path):
    table = pa.table({
        "input_ids": [[1, 2], [3]],
        "source": ["a", "b"],
        "empty": pa.array([None, None], pa.string()),
        "kinds": [[1], [2]],
    })  # fmt: skip
    path = tmp_path / "source.arrow"
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(PackerError, match=message):
        packer.pack(path, tmp_path / "out", max_len=10, **options)


some_pairs = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), min_size=1, max_size=30)


def naive_pairs(pairs, max_len, long, align):
    """Return (document, start, length) of every segment."""
    segments = []
    for number, pair in enumerate(pairs):
        kept = list(pair)

        def place(lengths):
            return sum(-(-length // align) * align for length in lengths)

        if 0 in pair or (long == "drop" and place(pair) > max_len):
            continue
        while place(kept) > max_len:  # a token off the side that takes more, if it is above its half
            half = max_len // 2 // align * align
            extents = [-(-length // align) * align for length in kept]
            kept[extents.index(max(extents))] -= 1
            assert max(extents) > half
        for which in (0, 1):
            segments.append((2 * number + which, 0, kept[which]))
    return segments


@settings(deadline=None)
@given(
    some_pairs, st.integers(2, 12), st.sampled_from(["truncate", "drop"]), st.integers(1, 3),
    st.sampled_from([None, 2, 3, 4]), st.integers(0, 3),
)  # fmt: skip
def test_pairs_with_groups_stay_side_by_side(pairs, pieces, long, align, max_segments, seed):
    max_len = pieces * align
    lengths = int32s([length for pair in pairs for length in pair])
    options = PackOptions(
        max_len=max_len, long=long, align=align, algorithm="bfd", max_segments=max_segments,
        pairs=True, seed=seed, group_by="x",
    )  # fmt: skip
    expected = naive_pairs(pairs, max_len, long, align)
    assume(expected)
    segments = cut_by_policy(lengths, options)
    of_documents = np.repeat(np.arange(len(pairs), dtype=np.int32) % 3, 2)
    whole = plan_whole(segments, DocumentValues(groups=of_documents), options, rows_per_shard=3)
    plan, totals = whole.placed, whole.totals
    assert sum(whole.shard_rows) == len(plan)
    assert max(whole.shard_rows) <= 3
    check_rows(segments, plan, max_segments=max_segments)
    if long == "drop":
        assert sorted(located(segments, plan.values)) == expected
    else:  # if both are cut, either may have a token more
        by_pair = defaultdict(list)
        for document, start, length in located(segments, plan.values):
            assert start == 0
            by_pair[document // 2].append(length)
        assert sorted(by_pair) == sorted({document // 2 for document, _, _ in expected})
        for number, kept in by_pair.items():
            naive_kept = [length for document, _, length in expected if document // 2 == number]
            assert abs(sum(kept) - sum(naive_kept)) <= align
            assert sorted(kept)[0] >= min(*pairs[number], max_len // 2 // align * align)
    for row in rows_of(plan):
        assert all(document % 2 == 0 for document in row[::2])
        assert row[1::2] == [document + 1 for document in row[::2]]
        assert len({document // 2 % 3 for document in row[::2]}) == 1
    dropped = totals.documents_dropped
    assert totals.documents == totals.segments + sum(dropped.values())
    assert totals.tokens == (totals.tokens_packed + totals.tokens_lost)
    assert totals.tokens_truncated >= 0
    assert totals.lower_bound <= totals.rows


def test_truncation_gives_each_side_of_a_pair_its_share():
    # At max_len 8: of 10 and 4, each gets half; of 10 and 2, the longer gets the rest; of 9 and 7, each gets half.
    segments = cut_pairs(int32s([10, 4, 2, 10, 9, 7, 5, 3, 0, 6]), 8, "truncate")
    assert segments.tails.tolist() == [4, 4, 2, 6, 4, 4, 5, 3, 0, 0]
    assert segments.dropped == {"empty": (1, 0), "too_long": (0, 0), "unpaired": (1, 6)}
    assert segments.truncated == (4, (10 - 4) + (10 - 6) + (9 - 4) + (7 - 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_at": "turns"}, "--split-at is turns, and pairs are never split: leave it out"),
        ({"long": "drop", "algorithm": "wrapped"}, "pairs are never cut, and wrapped cuts documents"),
        ({"long": "drop", "max_segments": 1}, "a pair is two segments, so allow at least 2"),
        ({"long": "drop", "align": 8}, "a pair takes at least 16"),
        ({"long": "drop", "untrained": "drop"}, "may leave out one side of a pair"),
    ],
)
def test_options_that_would_separate_pairs_are_refused(options, message):
    with pytest.raises(PackerError, match=message):
        PackOptions(max_len=8, pairs=True, **options)


@pytest.mark.parametrize("long", ["split", "error"])
def test_long_pairs_are_refused_by_name(long):
    message = r"pair 1 takes 9 tokens and max_len is 8 \(1 pairs are longer\), and pairs are never split: choose --long"
    with pytest.raises(PackerError, match=message):
        cut_lengths_of(PackOptions(max_len=8, pairs=True, long=long), int32s([4, 4, 5, 4]))


def test_pairs_need_no_policy_for_long_ones_if_there_are_none(tmp_path):
    source = tmp_path / "pairs.jsonl"
    source.write_text('{"chosen_input_ids": [1, 2], "rejected_input_ids": [3, 4, 5, 6, 7, 8]}\n' * 5)
    rows = []
    for number, options in enumerate(({}, {"long": "drop"})):
        manifest = packer.pack(source, tmp_path / str(number), max_len=8, pairs=True, **options)
        assert manifest.totals.documents_dropped == {"empty": 0, "too_long": 0, "unpaired": 0}
        assert not list(packer.verify(tmp_path / str(number), source))
        rows.append([shard.xxh3_128 for shard in manifest.shards])
    assert rows[0] == rows[1]


def test_pairs_of_a_file_in_pieces_may_have_sides_of_different_sizes(tmp_path, monkeypatch):
    shrink(monkeypatch, piece=2000)
    source = tmp_path / "pairs.parquet"
    sides = {"chosen_input_ids": [[1, 2]] * 200, "rejected_input_ids": [[*range(3, 33)]] * 200}
    pq.write_table(pa.table(sides), source, row_group_size=20)
    manifest = packer.pack(source, tmp_path / "out", max_len=64, pairs=True)
    assert manifest.totals.documents == 400
    assert not list(packer.verify(tmp_path / "out", source))


def paired_source(pairs=150, seed=0):
    random = np.random.default_rng(seed)
    columns = {"source": [f"s{number % 9}" for number in range(pairs)]}
    for role in ("chosen", "rejected"):
        columns[f"{role}_input_ids"] = [
            random.integers(1, 1000, length).tolist() for length in random.integers(1, 70, pairs)
        ]
        columns[f"{role}_labels"] = [[-100, *ids[1:]] for ids in columns[f"{role}_input_ids"]]
    return columns


@pytest.mark.parametrize("kind", ["shuffled", "parquet", "jsonl"])
@pytest.mark.parametrize("grouped", [False, True])
def test_pairs_of_a_source_are_side_by_side(kind, grouped, tmp_path):
    columns, out = paired_source(), tmp_path / "packed"
    source = write(tmp_path, kind, columns)
    grouping = {"group_by": "source"} if grouped else {}
    manifest = packer.pack(
        source, out, max_len=100, long="drop", shard_size=20_000, pairs=True, keep=["source"], **grouping
    )
    table = pa.concat_tables([pa.ipc.open_stream(path).read_all() for path in sorted(out.glob("*.arrow"))])
    found = {}
    for row in table.to_pylist():
        place, held = 0, []
        for number, document in enumerate(row["doc_ids"]):
            end = place + row["seq_lengths"][number]
            if document >= 0:
                role = row["role"][number]
                assert role == ("rejected" if document % 2 else "chosen")
                found[document // 2, role] = row["input_ids"][place:end], row["labels"][place:end]
                held.append((document, row["source"][number]))
            place = end
        assert [document for document, _ in held[1::2]] == [document + 1 for document, _ in held[::2]]
        sources = [name for _, name in held[::2]]
        assert not grouped or len(set(sources)) == 1
    chosen, rejected = columns["chosen_input_ids"], columns["rejected_input_ids"]
    kept = [number for number in range(150) if len(chosen[number]) + len(rejected[number]) <= 100]
    assert sorted(found) == [(number, role) for number in kept for role in ("chosen", "rejected")]
    for (number, role), (tokens, labels) in found.items():
        assert tokens == columns[f"{role}_input_ids"][number]
        assert labels == columns[f"{role}_labels"][number]
    assert manifest.totals.documents_dropped == {"empty": 0, "too_long": 300 - 2 * len(kept), "unpaired": 0}
    assert list(packer.verify(out, source)) == []


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("keep", [["k"], []])
def test_equal_floats_are_one_group_wherever_they_are(tmp_path, kind, keep):
    nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    batches = [
        pa.record_batch({"input_ids": [[number] * 7] * 4, "k": pa.array(values, pa.float64()).cast(kind)})
        for number, values in enumerate(([0.0, 1.5, None, nan[0]], [-0.0, 1.5, None, nan[1]]))
    ]
    source = tmp_path / "source.arrow"
    with pa.ipc.new_stream(str(source), batches[0].schema) as file:
        for batch in batches:
            file.write_batch(batch)
    manifest = packer.pack(source, tmp_path / "out", max_len=14, group_by="k", keep=keep)
    assert manifest.totals.groups.groups == 3
    assert manifest.rows == 4
    assert packer.verify(tmp_path / "out", source) == []
