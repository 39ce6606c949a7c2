"""Kernels that copy segments from Arrow lists, and positions in segments."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.algorithms.index_arrays import restart_positions
from packer.column_names import NO_LOSS
from packer.token_memory.token_column import VALUE_TYPES, Spans, TokenColumn, count_trained, gather, list_lengths
from tests.helpers import naive


def int64s(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def read_back(column: TokenColumn, lists: list[list[int]], allowed: int = 0) -> list[list[int]]:
    lengths = int64s(*map(len, lists))
    places = np.cumsum(lengths) - lengths
    out = np.full(int(lengths.sum()), -7, np.int32)
    rows = np.arange(len(lists), dtype=np.int64)
    assert gather(column.addresses, Spans(rows, np.zeros_like(rows), lengths, places), allowed, out) == -1
    return [out[place : place + length].tolist() for place, length in zip(places, lengths, strict=True)]


lists_of_tokens = st.lists(st.lists(st.integers(0, 127), max_size=6), min_size=1, max_size=8)
list_kinds = st.sampled_from([pa.list_, pa.large_list])


@given(st.lists(st.tuples(lists_of_tokens, list_kinds, st.sampled_from(VALUE_TYPES)), min_size=1, max_size=4))
def test_a_column_of_mixed_chunks_reads_back(chunks):
    arrays = [pa.array(lists, kind(pa.from_numpy_dtype(value))) for lists, kind, value in chunks]
    expected = [tokens for lists, _, _ in chunks for tokens in lists]
    assert read_back(TokenColumn.from_arrow(arrays), expected) == expected


@given(lists_of_tokens, st.data())
def test_slices_yield_only_their_own_lists(lists, data):
    first = data.draw(st.integers(0, len(lists)))
    last = data.draw(st.integers(first, len(lists)))
    sliced = pa.array(lists, pa.list_(pa.int32())).slice(first, last - first)
    assert read_back(TokenColumn.from_arrow([sliced]), lists[first:last]) == lists[first:last]
    assert list_lengths(sliced).tolist() == [len(tokens) for tokens in lists[first:last]]


def test_segments_are_copied_to_their_places():
    column = TokenColumn.from_arrow([pa.array([[7, 8, 9], [5]], pa.list_(pa.int32()))])
    out = np.full(6, -1, np.int32)
    spans = Spans(lists=int64s(1, 0), starts=int64s(0, 1), lengths=int64s(1, 2), places=int64s(0, 3))
    assert gather(column.addresses, spans, 0, out) == -1
    assert out.tolist() == [5, -1, -1, 8, 9, -1]


@pytest.mark.parametrize("value_type", [np.int32, np.int64, np.int16, np.int8])
def test_a_negative_token_is_reported_with_its_segment(value_type):
    column = TokenColumn.from_arrow([pa.array([[1], [2, -5]], pa.list_(pa.from_numpy_dtype(value_type)))])
    out = np.zeros(3, np.int32)
    spans = Spans(lists=int64s(0, 1), starts=int64s(0, 0), lengths=int64s(1, 2), places=int64s(0, 1))
    assert gather(column.addresses, spans, 0, out) == 1
    assert gather(column.addresses, spans, -5, out) == -1


@pytest.mark.parametrize(
    ("value", "value_type"),
    [(2**31, np.int64), (2**31, np.uint32), (2**63, np.uint64), (2**64 - 100, np.uint64), (-(2**31) - 1, np.int64)],
)
def test_a_token_above_int32_is_reported(value, value_type):
    column = TokenColumn.from_arrow([pa.array([[value]], pa.list_(pa.from_numpy_dtype(value_type)))])
    assert gather(column.addresses, Spans(*[int64s(n) for n in (0, 0, 1, 0)]), NO_LOSS, np.zeros(1, np.int32)) == 0


def test_decreasing_or_outside_offsets_are_rejected():
    values = pa.array([1, 2, 3], pa.int32())
    for wrong in ([0, 2, 1], [0, 9, 2], [0, 2, 9], [-1, 2, 3]):
        offsets = np.zeros(3, np.int32)
        array = pa.Array.from_buffers(pa.list_(pa.int32()), 2, [None, pa.py_buffer(offsets)], children=[values])
        offsets[:] = wrong
        with pytest.raises(ValueError, match="backwards or outside the 3 values"):
            list_lengths(array)


rows_of_lengths = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


@given(rows_of_lengths, st.integers(0, 3))
def test_positions_equal_the_naive_twin(extents, spare):
    max_len = max(map(sum, extents)) + spare
    tails = [max_len - sum(row) for row in extents]
    lengths = [each for row, tail in zip(extents, tails, strict=True) for each in (*row, tail)]
    positions = restart_positions(int64s(*lengths))
    assert positions.reshape(len(extents), max_len).tolist() == naive.restarted_positions(extents, max_len)


def test_every_label_except_no_loss_counts_as_trained_even_token_0():
    labels = np.array([NO_LOSS, 0, 5, NO_LOSS, NO_LOSS, 0], np.int32)
    assert count_trained(int64s(0, 3, 5), labels).tolist() == [2, 0, 1]
