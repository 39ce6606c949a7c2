"""Rows of one group."""

import re
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import packer
from packer.algorithms import get_algorithm
from packer.algorithms.index_arrays import extents_of
from packer.errors import PackerError
from packer.plan.segments import cut_documents
from packer.plan.whole_plan import NO_GROUP, pack_by_group, together_bound
from tests.helpers import naive
from tests.helpers.commands import succeeded
from tests.helpers.kept import write
from tests.helpers.plan import int32s, located, rows_of
from tests.helpers.small import shrink
from tests.helpers.writing import write_ipc, write_lines

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
    documents = segments.locate(plan.values)["document"]
    return [
        of_documents[documents[a:b]].tolist() for a, b in zip(plan.row_starts[:-1], plan.row_starts[1:], strict=True)
    ]


def check_rows(segments, plan, *, max_segments):
    assert sorted(plan.values.tolist()) == sorted(segments.numbers().tolist())
    for row in rows_of(plan):
        assert 0 < extents_of(segments.locate(np.array(row))["length"], segments.align).sum() <= segments.max_len
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


def test_groups_of_mapped_and_of_decoded_files_are_planned_together(tmp_path):
    documents = {"input_ids": [[1, 2], [3], [4, 5, 6]], "source": ["a", "b", "a"]}
    (tmp_path / "in").mkdir()
    write_ipc(tmp_path / "in" / "a.arrow", pa.table(documents))
    write_lines(tmp_path / "in" / "b.jsonl", pa.table(documents).to_pylist())
    planned = packer.stats(tmp_path / "in", max_len=6, group_by="source")
    packed = packer.pack(tmp_path / "in", tmp_path / "out", max_len=6, group_by="source")
    assert planned.rows == packed.totals.rows == 3


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
    said = succeeded("pack", source, "--max-len", 100, "-o", tmp_path / "out", "--group-by", "source")
    line = next(line for line in said.splitlines() if line.strip().startswith("together"))
    assert "rows more than ungrouped, " in line
    assert re.search(r"^  groups +30  of source; 57 documents in none$", said, re.MULTILINE)


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
    write_ipc(path, table)
    with pytest.raises(PackerError, match=message):
        packer.pack(path, tmp_path / "out", max_len=10, **options)


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
