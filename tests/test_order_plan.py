"""Plans of order algorithms: rows made again from their marks equal those of arranging all documents at once."""

import itertools
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_pack import hashes

import packer
from packer.engine import Threads
from packer.errors import PackerError
from packer.notes import NotesInMemory
from packer.options import PackOptions
from packer.pipeline.planning.make_plan import plan_lengths
from packer.pipeline.planning.order_plan import plan_in_order
from packer.pipeline.segments.segment_reader import LengthsReader
from tests import naive
from tests.packings import write

policies, sides = st.sampled_from(["split", "truncate", "drop"]), st.sampled_from(["left", "right"])
some_lengths = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=50)
limits = st.none() | st.integers(2, 5)


@contextmanager
def in_parts(chunk, stretch):
    """Read `chunk` documents at a time, and arrange about `stretch` segments again together."""
    with (
        mock.patch("packer.pipeline.segments.segment_reader.CHUNK", chunk),
        mock.patch("packer.pipeline.planning.order_plan.STRETCH", stretch),
    ):
        yield


def planned(lengths, rows_per_shard, **options):
    """Plan documents of these lengths; return (totals, rows of (document, start, length) by shard)."""
    pack_options = PackOptions(**options)
    reader = LengthsReader(lengths=np.array(lengths, np.int32), options=pack_options)
    plan = plan_in_order(
        reader, pack_options, rows_per_shard=rows_per_shard, notes=NotesInMemory(), engine=Threads(workers=2)
    )
    shards = [plan.shard(number) for number in range(len(plan.shard_rows))]
    assert [len(shard) for shard in shards] == plan.shard_rows
    return plan.totals, [rows_of(shard.located(0, len(shard))) for shard in shards]


def rows_of(located):
    columns = (each.tolist() for each in (located.documents, located.starts, located.lengths))
    segments = list(zip(*columns, strict=True))
    return [segments[first:last] for first, last in itertools.pairwise(located.row_starts.tolist())]


def by_shard(rows, rows_per_shard):
    return [rows[first : first + rows_per_shard] for first in range(0, len(rows), rows_per_shard)]


@settings(deadline=None)
@given(
    some_lengths, st.integers(1, 12), policies, sides, st.integers(0, 5), st.integers(1, 3),
    st.none() | st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip
def test_next_fit_rows_equal_those_of_placing_segments_one_by_one(
    lengths, places, long, side, overlap, align, max_segments, rows_per_shard, chunk, stretch
):
    max_len = places * align
    overlap = min(overlap, max_len - 1) if long == "split" else 0
    side = side if long == "truncate" else "right"
    pieces = naive.cut_documents(lengths, max_len, long, overlap, side)
    assume(pieces)
    rows = naive.next_fit([[piece] for piece in pieces], max_len, max_segments, align)
    with in_parts(chunk, stretch):
        totals, shards = planned(
            lengths, rows_per_shard, algorithm="sequential", max_len=max_len, long=long, overlap=overlap,
            truncate_side=side, align=align, max_segments=max_segments,
        )  # fmt: skip
    assert shards == by_shard(rows, rows_per_shard)
    assert (totals.packs, totals.segments, totals.documents) == (len(rows), len(pieces), len(lengths))
    assert totals.tokens == sum(lengths)
    assert totals.tokens_packed == sum(length for _, _, length in pieces)
    assert totals.lower_bound <= len(rows)


@settings(deadline=None)
@given(
    some_lengths, st.integers(1, 12), policies, sides, limits, st.integers(1, 4), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip
def test_wrapped_rows_equal_those_of_placing_documents_one_by_one(
    lengths, max_len, long, side, max_segments, rows_per_shard, chunk, stretch
):
    side = side if long == "truncate" else "right"
    kept = [length if long == "split" or length <= max_len else max_len * (long == "truncate") for length in lengths]
    assume(any(kept))
    begins = [length - part if side == "left" else 0 for length, part in zip(lengths, kept, strict=True)]
    rows = [
        [(document, start + begins[document], length) for document, start, length in row]
        for row in naive.wrapped(kept, max_len, max_segments)
    ]
    with in_parts(chunk, stretch):
        totals, shards = planned(
            lengths, rows_per_shard, algorithm="wrapped", max_len=max_len, long=long, truncate_side=side,
            max_segments=max_segments,
        )  # fmt: skip
    assert shards == by_shard(rows, rows_per_shard)
    pieces = [piece for row in rows for piece in row]
    documents = [document for document, _, _ in pieces]
    assert (totals.packs, totals.segments) == (len(rows), len(pieces))
    assert totals.documents_split == sum(documents.count(document) > 1 for document in set(documents))
    assert (totals.tokens_packed, totals.tokens_repeated) == (sum(kept), 0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30), limits, st.integers(1, 3),
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip
def test_pairs_are_placed_one_by_one(pairs, max_segments, align, rows_per_shard, half_chunk, stretch):
    max_len = 5 * align
    items = []
    for number, (one, other) in enumerate(pairs):
        place = sum(-(-length // align) * align for length in (one, other))
        if one and other and place <= max_len:
            items.append([(2 * number, 0, one), (2 * number + 1, 0, other)])
    assume(items)
    # an odd limit has no room for half a pair
    rows = naive.next_fit(items, max_len, max_segments, align)
    with in_parts(2 * half_chunk, stretch):
        totals, shards = planned(
            [length for pair in pairs for length in pair], rows_per_shard, algorithm="sequential", max_len=max_len,
            long="drop", pairs=True, align=align, max_segments=max_segments,
        )  # fmt: skip
    assert shards == by_shard(rows, rows_per_shard)
    assert totals.segments == 2 * len(items)


@pytest.mark.parametrize("algorithm", ["sequential", "wrapped"])
def test_any_rows_of_a_shard_can_be_looked_up(algorithm):
    lengths = np.random.default_rng(0).integers(0, 60, 2_000).astype(np.int32)
    with in_parts(100, 50):
        shards = plan_lengths(lengths, PackOptions(max_len=40, algorithm=algorithm, shard_size=8 * 40 * 300)).shards
        assert len(shards.shard_rows) > 3
        for number in (0, 2, len(shards.shard_rows) - 1):
            shard = shards.shard(number)
            whole = rows_of(shard.located(0, len(shard)))
            end = len(shard)
            for first, last in [(5, 5), (7, 9), (0, end // 2), (3, end), (1, 2), (end - 1, end)]:
                assert rows_of(shard.located(first, last)) == whole[first:last]


@pytest.mark.parametrize("algorithm", ["sequential", "wrapped"])
def test_a_plan_holds_a_mark_per_shard_and_stretch_and_nothing_per_document(algorithm):
    lengths = np.full(100_000, 7, np.int32)
    options, notes = PackOptions(max_len=50, algorithm=algorithm), NotesInMemory()
    reader = LengthsReader(lengths=lengths, options=options)
    with in_parts(1_000, 20_000):
        plan = plan_in_order(reader, options, rows_per_shard=5_000, notes=notes)
    note = notes.load("order")
    shards = -(-plan.packs // 5_000)
    assert shards == len(plan.shard_rows)
    assert set(note.arrays) == {"rows", "documents", "skipped"}
    # documents and segments are both counted
    assert shards < len(note.arrays["rows"]) <= shards + 2 * 120_000 // 20_000 + 2
    assert np.isin(np.arange(0, plan.packs, 5_000), note.arrays["rows"]).all()


OPTIONS = {
    "sequential": {"algorithm": "sequential"},
    "wrapped": {"algorithm": "wrapped"},
    "wrapped, limited": {"algorithm": "wrapped", "max_segments": 3, "long": "truncate", "truncate_side": "left"},
    "overlap": {"algorithm": "sequential", "overlap": 8, "align": 4},
    "untrained": {"algorithm": "sequential", "overlap": 8, "untrained": "drop"},
    "wrapped, untrained": {"algorithm": "wrapped", "untrained": "drop"},
    "turns": {"algorithm": "sequential", "split_at": "turns"},
    "kept": {"algorithm": "wrapped", "keep": ("source",), "max_segments": 4},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """400 documents with labels (some have no trained token), starts of turns, and a name."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 90, 400) * (rng.random(400) < 0.9)
    tokens = [rng.integers(0, 99, length).tolist() for length in lengths]
    labels = [[-100 if rng.random() < chance else token for token in row] for row, chance in
              zip(tokens, rng.choice([0.0, 0.9, 1.0], 400), strict=True)]  # fmt: skip
    turns = [list(range(0, length, 20)) for length in lengths]
    path = tmp_path_factory.mktemp("source") / "source.arrow"
    names = [f"document {number}" for number in range(400)]
    return write(path, {"input_ids": tokens, "labels": labels, "turn_starts": turns, "source": names})


@pytest.mark.parametrize("chunk", [2, 34])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_bytes_do_not_depend_on_how_many_documents_are_read_together(tmp_path, source, name, chunk):
    options = {"max_len": 40, "shard_size": "8KB", **OPTIONS[name]}
    packer.pack(source, tmp_path / "whole", **options)
    with in_parts(chunk, 7):
        packer.pack(source, tmp_path / "parts", workers=2, **options)
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "parts")
    assert len(hashes(tmp_path / "whole")) > 10
    assert list(packer.verify(tmp_path / "parts", source)) == []


@pytest.mark.parametrize("algorithm", ["sequential", "wrapped"])
def test_the_error_if_nothing_is_left_to_pack_counts_all_documents(algorithm):
    options = PackOptions(max_len=4, algorithm=algorithm, long="drop")
    with in_parts(2, 2), pytest.raises(PackerError, match="of 5 documents, 3 are empty and 2 longer than max_len 4"):
        plan_lengths(np.array([0, 9, 0, 0, 5], np.int32), options)
