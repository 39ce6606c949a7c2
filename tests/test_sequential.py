"""Order algorithms: exactly next fit, and concatenate and cut; every token in one row, in source order."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.algorithms import ALGORITHMS
from packer.algorithms.bounds import cut_bound, lower_bound
from packer.algorithms.sequential import sequential, wrapped
from tests.helpers import naive
from tests.helpers.histograms import histogram_of
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.small import shrink

NAMES = [name for name, known in ALGORITHMS.items() if known.arrange]
TWINS = {"sequential": naive.sequential, "wrapped": naive.wrapped}

max_lens = st.integers(1, 40)
limits = st.one_of(st.none(), st.integers(1, 6), st.just(10**6))
many_lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 130)), max_size=40)


def int32(lengths):
    return np.array(lengths, np.int32)


def rows_of(ordered, lengths):
    """Rows of (document, start, length), from the arrays alone."""
    cuts = {}
    for document, start in zip(ordered.cut_documents.tolist(), ordered.cut_starts.tolist(), strict=True):
        cuts.setdefault(document, [0]).append(start)
    pieces = []
    for document, length in enumerate(lengths):
        starts = cuts.get(document, [0])
        ends = [*starts[1:], length]
        pieces += [(document, start, end - start) for start, end in zip(starts, ends, strict=True) if length]
    assert ordered.row_starts[0] == 0
    assert ordered.row_starts[-1] == ordered.segments == len(pieces)
    bounds = ordered.row_starts.tolist()
    firsts = zip(ordered.row_documents.tolist(), ordered.row_offsets.tolist(), strict=True)
    assert list(firsts) == [pieces[start][:2] for start in bounds[:-1]]
    return [pieces[start:end] for start, end in pairwise(bounds)]


def histogram_of_segments(lengths, max_len):
    return histogram_of(max_len, Counter(length for _, _, length in naive.cut_documents(lengths, max_len, "split")))


def tokens_of(rows):
    return [sum(length for _, _, length in row) for row in rows]


@pytest.mark.parametrize("name", NAMES)
@given(lengths=many_lengths, max_len=max_lens, max_segments=limits)
def test_rows_are_those_of_placing_one_by_one_and_hold_every_token_in_order(name, lengths, max_len, max_segments):
    given_lengths = int32(lengths)
    ordered = ALGORITHMS[name].arrange(given_lengths, max_len, max_segments)
    assert given_lengths.tolist() == lengths
    rows = rows_of(ordered, lengths)
    assert rows == TWINS[name](lengths, max_len, max_segments)
    placed = [(document, start + token) for row in rows for document, start, size in row for token in range(size)]
    assert placed == [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    assert all(0 < tokens <= max_len for tokens in tokens_of(rows))
    assert all(1 <= len(row) <= (max_segments or max_len) for row in rows)
    assert ordered.packs == len(rows)


@pytest.mark.parametrize("name", NAMES)
@given(lengths=many_lengths, max_len=max_lens, max_segments=limits, data=st.data())
def test_documents_arranged_part_by_part_make_the_same_rows(name, lengths, max_len, max_segments, data):
    arrange = ALGORITHMS[name].arrange
    whole = arrange(int32(lengths), max_len, max_segments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=5)))
    open_row, pieces, rows, of_cuts = None, 0, [], []
    for first, last in pairwise([0, *cuts, len(lengths)]):
        part = arrange(int32(lengths[first:last]), max_len, max_segments, open_row)
        starts = zip(part.row_starts.tolist(), part.row_documents.tolist(), part.row_offsets.tolist(), strict=False)
        rows += [(start + pieces, document + first, offset) for start, document, offset in starts]
        of_cuts += zip((part.cut_documents + first).tolist(), part.cut_starts.tolist(), strict=True)
        open_row, pieces = part.open_row, pieces + part.segments
    expected = whole.row_starts[:-1], whole.row_documents, whole.row_offsets
    assert rows == list(zip(*(array.tolist() for array in expected), strict=True))
    assert of_cuts == list(zip(whole.cut_documents.tolist(), whole.cut_starts.tolist(), strict=True))
    assert (pieces, open_row or whole.open_row) == (whole.segments, whole.open_row)


@pytest.mark.parametrize("name", NAMES)
def test_a_document_of_100_million_tokens(name):
    length, max_len = 100_000_000, 1000
    ordered = ALGORITHMS[name].arrange(int32([1, length, 1]), max_len)
    pieces = np.diff(ordered.cut_starts, prepend=0, append=length)
    assert pieces.sum() == length
    assert pieces.max() == max_len
    assert ordered.packs == {"sequential": 100_002, "wrapped": 100_001}[name]
    assert ordered.cut_starts[-1] == {"sequential": length - 1000, "wrapped": length - 1}[name]


@given(lengths=many_lengths, max_len=max_lens, max_segments=limits)
def test_no_order_algorithm_goes_below_its_bound(lengths, max_len, max_segments):
    histogram = histogram_of_segments(lengths, max_len)
    assert wrapped(int32(lengths), max_len, max_segments).packs >= cut_bound(histogram, max_segments)
    assert sequential(int32(lengths), max_len, max_segments).packs >= lower_bound(histogram, max_segments)


def test_the_bound_where_segments_may_be_cut():
    histogram = histogram_of(10, {6: 3})
    assert (cut_bound(histogram), lower_bound(histogram)) == (2, 3)
    histogram = histogram_of(10, {1: 9})
    assert (cut_bound(histogram), cut_bound(histogram, 2)) == (1, 5)


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_seed_changes_nothing_but_its_own_line_of_the_manifest(tmp_path, algorithm):
    source = save_arrow(tmp_path / "source.arrow", made_documents(100))
    for seed in (1, 2):
        packer.pack(source, tmp_path / str(seed), max_len=64, algorithm=algorithm, seed=seed)
    one, other = hashes(tmp_path / "1"), hashes(tmp_path / "2")
    assert {name for name in one if one[name] != other[name]} <= {"manifest.json"}


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("options", [{}, {"max_segments": 3}, {"untrained": "drop"}], ids=str)
@pytest.mark.parametrize("algorithm", NAMES)
def test_bytes_do_not_depend_on_how_many_documents_are_read_together(tmp_path, monkeypatch, algorithm, options):
    source = save_arrow(tmp_path / "source.arrow", made_documents(400, longest=90))
    options = {"max_len": 40, "shard_size": "8KB", "algorithm": algorithm, **options}
    packer.pack(source, tmp_path / "whole", **options)
    for together in (2, 34):
        shrink(monkeypatch, documents_together=together, segments_arranged=7)
        packer.pack(source, tmp_path / f"by {together}", **options)
        assert hashes(tmp_path / f"by {together}") == hashes(tmp_path / "whole")
