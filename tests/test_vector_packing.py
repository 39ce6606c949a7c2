"""Rows under several limits: every item once, no capacity exceeded, few rows, the same in both modes of the kernels."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.algorithms import get_algorithm, jit
from packer.algorithms.bounds import token_bound, vector_bounds
from packer.plan.vector_packing import pack_vectors, vector_first_fit
from tests.helpers import naive

LARGE_TABLE = 20_000
large = pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="many documents for plain Python")
LARGE = 3_000_000_000  # a capacity that is counted in coarser units


@st.composite
def tables(draw, most_items=40):
    """(demands, capacities): of tokens at least 1, of other resources 0 or more."""
    capacities = draw(st.lists(st.integers(1, 40) | st.just(LARGE), min_size=1, max_size=3))
    few = [st.integers(1 if r == 0 else 0, capacity) for r, capacity in enumerate(capacities)]
    small = [st.integers(1 if r == 0 else 0, max(1, capacity // 4)) for r, capacity in enumerate(capacities)]
    demand = draw(st.sampled_from([st.tuples(*few), st.tuples(*small), st.tuples(*few) | st.tuples(*small)]))
    items = draw(st.lists(demand, max_size=most_items))
    return as_table(items, capacities)


def as_table(items, capacities):
    demands = np.minimum(np.array(items, np.int64).reshape(-1, len(capacities)).T, 2**31 - 1)
    return np.ascontiguousarray(demands).astype(np.int32), np.array(capacities, np.int64)


def listed(rows):
    """Rows as lists of item numbers."""
    return [rows.values[a:b].tolist() for a, b in zip(rows.row_starts[:-1], rows.row_starts[1:], strict=True)]


def check(rows, demands, capacities, max_segments=None):
    """Every item is in one row, and no row holds too much."""
    assert sorted(rows.values.tolist()) == list(range(demands.shape[1]))
    for row in listed(rows):
        assert 1 <= len(row) <= (max_segments or len(row))
        assert (demands[:, row].sum(axis=1, dtype=np.int64) <= capacities).all()
    assert rows.row_starts[0] == 0
    assert rows.row_starts[-1] == demands.shape[1]


def vision(documents, per_image, seed=0):
    """Tokens and images of documents: text of log-normal length, and images of a number of tokens each."""
    random = np.random.default_rng(seed)
    images = np.where(random.random(documents) < 0.7, random.geometric(0.25, documents), 0)
    tokens = random.lognormal(5.5, 1, documents).astype(np.int64) + 1
    tokens += images * random.integers(*per_image, documents)
    fits = (tokens <= 8192) & (images <= 16)
    return np.stack([tokens[fits], images[fits]]).astype(np.int32)


VISION = np.array([8192, 16])


@given(table=tables(), max_segments=st.none() | st.integers(1, 5), seed=st.integers(0, 2**63 - 1))
def test_every_item_is_in_one_row_that_has_room_for_it(table, max_segments, seed):
    rows = pack_vectors(*table, max_segments=max_segments, seed=seed)
    check(rows, *table, max_segments)
    assert len(rows) >= vector_bounds(*table).max()
    assert len(rows) * (max_segments or table[0].shape[1]) >= table[0].shape[1]


@given(table=tables(), max_segments=st.none() | st.integers(1, 5), seed=st.integers(0, 9))
def test_plain_kernels_make_the_rows_of_compiled_ones(table, max_segments, seed):
    compiled = pack_vectors(*table, max_segments=max_segments, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "_is_compiling", False)
        patch.setattr(jit, "PLAIN_SECONDS", np.inf)
        plain = pack_vectors(*table, max_segments=max_segments, seed=seed)
    assert listed(plain) == listed(compiled)


def test_the_arguments_stay_as_they_are_and_only_the_seed_decides():
    demands = vision(3_000, (256, 480))
    before, capacities = demands.copy(), VISION.copy()
    rows = pack_vectors(demands, capacities, max_segments=9, seed=3)
    assert (demands == before).all()
    assert (capacities == VISION).all()
    assert listed(pack_vectors(demands, capacities, max_segments=9, seed=3)) == listed(rows)
    assert listed(pack_vectors(demands, capacities, max_segments=9, seed=4)) != listed(rows)


@given(table=tables(most_items=6), max_segments=st.none() | st.integers(1, 3))
def test_no_bound_is_above_the_optimum_and_no_packing_below(table, max_segments):
    demands, capacities = table
    optimum = naive.fewest_vector_rows(demands.T.tolist(), capacities.tolist(), max_segments)
    assert vector_bounds(demands, capacities).max(initial=0) <= optimum
    found = len(pack_vectors(demands, capacities, max_segments=max_segments, seed=0))
    assert optimum <= found <= max(optimum, 2 * optimum - 1)


@large
@pytest.mark.parametrize(
    ("per_image", "above"),
    [((256, 1500), 1.002), ((64, 256), 1.005), ((256, 480), 1.015)],
    ids=["tokens bind", "images bind", "both bind"],
)
def test_a_vision_table_needs_few_rows_more_than_the_bound(per_image, above):
    demands = vision(LARGE_TABLE, per_image)
    rows = pack_vectors(demands, VISION, seed=1)
    check(rows, demands, VISION)
    assert len(rows) <= above * vector_bounds(demands, VISION).max()
    largest_first = np.argsort(-(demands / VISION[:, None]).max(axis=0), kind="stable")
    row_of = np.empty(demands.shape[1], np.int64)
    decreasing = vector_first_fit(demands.T.copy(), VISION, largest_first, np.empty((0, 2), np.int64), row_of)
    assert len(rows) <= decreasing


@large
@pytest.mark.parametrize("kind", ["sounds", "segments"])
def test_rows_are_full_where_three_resources_bind(kind):
    """Many rows are full in one resource alone, so that rows with room in all are hard to find."""
    demands = vision(LARGE_TABLE, (256, 460))
    items = demands.shape[1]
    sounds = np.minimum(np.random.default_rng(1).geometric(1 / 3, items) - 1, 12)
    third, capacity = (sounds, 12) if kind == "sounds" else (np.ones(items), 7)
    demands = np.concatenate([demands, third[None].astype(np.int32)])
    rows = pack_vectors(demands, np.array([8192, 16, capacity]), seed=1)
    check(rows, demands, np.array([8192, 16, capacity]))
    assert len(rows) <= 1.05 * vector_bounds(demands, np.array([8192, 16, capacity])).max()


@large
def test_one_resource_packs_as_without_limits():
    demands = np.minimum(np.random.default_rng(0).lognormal(5.5, 1, 20_000) + 1, 4096).astype(np.int32)[None]
    histogram = np.bincount(demands[0], minlength=4097)
    rows = pack_vectors(demands, np.array([4096]), seed=1)
    assert len(rows) == token_bound(histogram)
    for max_segments in (4, 8):
        rows = pack_vectors(demands, np.array([4096]), max_segments=max_segments, seed=1)
        check(rows, demands, np.array([4096]), max_segments)
        assert len(rows) <= 1.002 * get_algorithm("bfd").solve(histogram, max_segments).packs


def test_the_order_of_rows_and_of_items_in_a_row_is_random():
    demands = np.full((2, 4_000), 1, np.int32)
    demands[:, ::2] = 3  # two to a row, one of each, wherever exact filling finds them
    rows = listed(pack_vectors(demands, np.array([4, 4]), seed=1))
    assert len(rows) == 2_000
    first_is_large = np.mean([row[0] % 2 == 0 for row in rows])
    assert 0.45 < first_is_large < 0.55
    numbers = np.array([row[0] for row in rows])
    assert abs(np.corrcoef(numbers, np.arange(len(rows)))[0, 1]) < 0.1


def within_row_share(values, weights, items, row_starts):
    """Within-row share of the variance of values, near 1 if each row is a sample (packer/report/measures.py)."""
    values, weights = values[items], weights[items]
    rows = np.repeat(np.arange(len(row_starts) - 1), np.diff(row_starts))
    middle = np.average(values, weights=weights)
    of_rows = np.bincount(rows, weights * values) / np.maximum(np.bincount(rows, weights), 1)
    return 1 - weights @ (of_rows[rows] - middle) ** 2 / (weights @ (values - middle) ** 2)


def almost_sorted(demands):
    """A source whose first documents are short."""
    return demands[:, np.argsort(demands[0] // 50, kind="stable")]


BINDING = pytest.mark.parametrize(
    "per_image", [(256, 1500), (64, 256), (256, 460)], ids=["tokens bind", "images bind", "both bind"]
)


@BINDING
def test_rows_are_mixed_like_the_corpus(per_image):
    """By length, number of images and place in the source, as rows are that take documents in random order."""
    demands = almost_sorted(vision(LARGE_TABLE, per_image))
    rows = pack_vectors(demands, VISION, seed=1)
    items = demands.shape[1]
    shuffled = np.random.default_rng(0).permutation(items)
    used, starts = VISION, []
    for number, demand in enumerate(demands.T[shuffled]):
        if (used + demand > VISION).any():
            starts.append(number)
            used = np.zeros(2, np.int64)
        used = used + demand
    tokens, images = demands
    logs = np.log(tokens), np.log(np.maximum(images, 1))
    for values, weights in ((logs[0], tokens), (logs[1], images), (np.arange(items), np.ones(items))):
        expected = within_row_share(values, weights, shuffled, np.array([*starts, items]))
        assert within_row_share(values, weights, rows.values, rows.row_starts) > 0.85 * expected


@BINDING
def test_what_a_document_is_says_nothing_about_where_it_stands(per_image):
    """Neither about the number of its row nor, for the first and the last of a row, about which of them it is."""
    demands = almost_sorted(vision(LARGE_TABLE, per_image))
    rows = pack_vectors(demands, VISION, seed=1)
    counts = np.diff(rows.row_starts)
    first, last = (rows.values[ends[counts > 1]] for ends in (rows.row_starts[:-1], rows.row_starts[1:] - 1))
    is_first = np.arange(2 * len(first)) < len(first)
    for values in (*demands, np.arange(demands.shape[1])):
        by_row = np.add.reduceat(values[rows.values], rows.row_starts[:-1]) / counts
        assert abs(np.corrcoef(by_row, np.arange(len(rows)))[0, 1]) < 4 / len(rows) ** 0.5
        of_both = np.concatenate([values[first], values[last]])
        assert abs(np.corrcoef(of_both, is_first)[0, 1]) < 4 / len(of_both) ** 0.5


def test_vector_bounds_are_those_of_the_docstring():
    assert vector_bounds(np.array([[6, 6, 2], [0, 1, 1]], np.int32), np.array([10, 1])).tolist() == [2, 2]
