"""Order of the rows by lanes: compared with a slow twin, and how well it is mixed; ranks and states: test_order."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.loader.row_order import LaneOrder, whole_shards
from tests.helpers import naive
from tests.helpers.order import Rows

seeds = st.one_of(st.none(), st.integers(0, 2**64 - 1))
shard_lists = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def rows_in(shard_rows, **options):
    """What a sampler sees of a dataset of shards with so many rows."""
    return Rows([1] * sum(shard_rows), tuple(shard_rows[:-1]), **options)


def ranges_of(shard_rows):
    """The shards of any epoch, as `LaneOrder` wants them."""
    ranges = whole_shards(shard_rows)
    return lambda epoch: ranges


@st.composite
def layouts(draw):
    """(global_batch, lanes, world_size)."""
    world_size, lanes, taken = (draw(st.integers(1, most)) for most in (4, 3, 4))
    return world_size * lanes * taken, world_size * lanes, world_size


# ---- the order ----


@given(shard_lists, layouts(), st.integers(1, 4), seeds, st.integers(0, 2**64 - 1))
def test_steps_equal_those_of_the_slow_twin(shard_rows, layout, window, seed, epoch):
    global_batch, lanes, world_size = layout
    expected = naive.lane_steps(
        shard_rows, lanes=lanes, window=window, seed=seed, epoch=epoch, global_batch=global_batch
    )
    options = {"lanes": lanes, "window": window, "seed": seed, "global_batch": global_batch, "world_size": world_size}
    for rank in range(world_size):
        order = LaneOrder(shard_ranges=ranges_of(shard_rows), rank=rank, **options)
        own = slice(rank * lanes // world_size, (rank + 1) * lanes // world_size)
        for step, parts in enumerate(expected):
            turns = range(global_batch // lanes)
            in_turn = [part[turn] for turn in turns for part in parts[own] if turn < len(part)]
            assert order.rows_of_step(epoch, step).tolist() == in_turn


@given(shard_lists, layouts(), st.integers(1, 4), seeds, st.integers(0, 3))
def test_shards_are_announced_before_their_rows_are_read(shard_rows, layout, window, seed, epoch):
    global_batch, lanes, world_size = layout
    options = {"lanes": lanes, "window": window, "seed": seed}
    windows = naive.lane_windows(shard_rows, epoch=epoch, **options)
    following = naive.lane_windows(shard_rows, epoch=epoch + 1, **options)
    taken = global_batch // lanes
    for rank in range(world_size):
        order = LaneOrder(
            shard_ranges=ranges_of(shard_rows), global_batch=global_batch, rank=rank, world_size=world_size, **options
        )
        for step in range(-(-sum(shard_rows) // global_batch)):
            now, upcoming = set(), set()
            for lane in range(rank * lanes // world_size, (rank + 1) * lanes // world_size):
                place, last = 0, None
                for number, (shards, rows) in enumerate(windows[lane]):
                    if place < (step + 1) * taken and place + len(rows) > step * taken:
                        now |= set(shards)
                        last = number
                    place += len(rows)
                if last is not None:
                    later = [*windows[lane][last + 1 :], *following[lane]]
                    upcoming |= set(later[0][0])
            found = order.shards_of_step(epoch, step)
            assert [set(part) for part in found] == [now, upcoming - now]
            assert all(len(part) == len(set(part)) for part in found)


def test_without_a_seed_lanes_are_parts_of_the_dataset_in_order():
    one, two = (packer.BatchSampler(rows_in([3, 5]), global_batch=2, lanes=lanes, seed=None) for lanes in (1, 2))
    assert list(one) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert list(two) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_rank_reads_the_same_shards_in_every_epoch_and_few_that_others_read():
    shard_rows = [10] * 64
    options = {"lanes": 16, "window": 2, "seed": 5, "global_batch": 16, "world_size": 4}
    shards = []
    for rank in range(4):
        order = LaneOrder(shard_ranges=ranges_of(shard_rows), rank=rank, **options)
        epochs = [{row // 10 for step in range(40) for row in order.rows_of_step(epoch, step)} for epoch in range(3)]
        assert epochs[0] == epochs[1] == epochs[2]
        shards.append(epochs[0])
    assert sum(map(len, shards)) == 64
    uneven = [LaneOrder(shard_ranges=ranges_of([7, *shard_rows]), rank=rank, **options) for rank in range(4)]
    read = [{shard for step in range(41) for shard in order.shards_of_step(0, step)[0]} for order in uneven]
    assert sum(map(len, read)) <= 65 + 3  # a shard where the lanes of two ranks meet is read by both


def test_memory_grows_with_the_rows_of_a_window_and_not_with_those_of_the_dataset():
    """A thousand million rows, whose numbers alone would take 8 GB."""
    tracemalloc.start()
    try:
        order = LaneOrder(
            shard_ranges=ranges_of([50_000] * 20_480),
            lanes=64,
            window=2,
            seed=0,
            global_batch=640,
            rank=3,
            world_size=64,
        )
        for step in (0, 1, 700_000, 1_599_999):
            assert len(order.rows_of_step(0, step)) == 10
            assert len(order.shards_of_step(0, step)[0]) == 2
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


# ---- state ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 2}, "the sampler's state has lanes 4, this sampler 2: resume with the same lanes"),
        ({"lanes": None}, "the sampler's state has lanes 4, this sampler None: resume with the same lanes"),
        ({"window": 3}, "the sampler's state has window 2, this sampler 3: resume with the same window"),
    ],
)
def test_a_state_of_other_lanes_is_refused(options, message):
    one, other = ({"global_batch": 8, "lanes": 4} | more for more in ({}, options))
    state = packer.BatchSampler(rows_in([20, 30]), **one).state_dict()
    with pytest.raises(PackerError, match=message):
        packer.BatchSampler(rows_in([20, 30]), **other).load_state_dict(state)
    plain = packer.BatchSampler(rows_in([20, 30]), global_batch=8).state_dict()
    assert plain["lanes"] is None
    with pytest.raises(PackerError, match="has lanes None, this sampler 4"):
        packer.BatchSampler(rows_in([20, 30]), **one).load_state_dict(plain)


# ---- options ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 3}, "lanes is 3, global_batch 8: choose a divisor of the global batch"),
        ({"lanes": 0}, "lanes is 0, global_batch 8: choose a divisor"),
        (
            {"lanes": 2, "world_size": 4},
            "lanes is 2, for 4 ranks: choose a multiple of the number of ranks that divides",
        ),
        ({"lanes": 2, "window": 0}, "window is 0: it must be at least 1"),
        ({"lanes": 2, "balance": 1}, "balance is 1, and lanes is 2: balancing moves rows between"),
    ],
)
def test_options_of_lanes_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(PackerError, match=message):
        packer.BatchSampler(rows_in([20, 30]), global_batch=8, **options)


@pytest.mark.parametrize(("global_batch", "lanes"), [(512, 16), (8, 8), (20, 10), (17, 1), (1, 1), (36, 12)])
def test_a_dataset_in_object_storage_is_read_in_lanes(global_batch, lanes):
    sampler = packer.BatchSampler(rows_in([20, 30], is_remote=True), global_batch=global_batch)
    assert sampler.lanes == lanes
    assert packer.BatchSampler(rows_in([20, 30]), global_batch=global_batch).lanes is None


def test_imbalance_is_not_measured_in_lanes():
    with pytest.raises(PackerError, match="lanes is 2: the imbalance is known only for rows that are"):
        packer.BatchSampler(rows_in([20, 30]), global_batch=8, lanes=2).imbalance()


# ---- how well rows are mixed ----


def test_every_row_of_a_lane_stands_anywhere_equally_often():
    """Chi-squared of (row, place) over 2,000 epochs, wrong by chance once in 10,000 times."""
    shard_rows, epochs = [4, 4, 4, 4], 2000
    order = LaneOrder(
        shard_ranges=ranges_of(shard_rows), lanes=2, window=1, seed=1, global_batch=2, rank=0, world_size=1
    )
    lanes = [order.rows_of_step(0, step) for step in range(8)]
    counts = np.zeros((2, 16, 8))
    for epoch in range(epochs):
        for step in range(8):
            for lane, row in enumerate(order.rows_of_step(epoch, step)):
                counts[lane, row, step] += 1
    for lane, own in enumerate(np.sort(np.array(lanes).T)):
        found = counts[lane, own]
        assert found.sum() == 8 * epochs
        expected = epochs / 8
        assert ((found - expected) ** 2 / expected).sum() * 7 / 8 < 95  # 49 degrees of freedom


def test_within_a_window_the_place_of_a_row_says_nothing_about_its_number():
    """Spearman's correlation, standardised, for 200 seeds: its mean and its spread, each wrong once in 10,000 times."""
    found = []
    for seed in range(200):
        order = LaneOrder(
            shard_ranges=ranges_of([25, 15, 20]), lanes=1, window=3, seed=seed, global_batch=1, rank=0, world_size=1
        )
        rows = [order.rows_of_step(seed % 3, step)[0] for step in range(60)]
        found.append(np.corrcoef(np.arange(60), rows)[0, 1] * 59**0.5)
    assert abs(np.mean(found)) < 3.89 / 200**0.5
    assert np.dot(found, found) < 283.1  # chi-squared with 200 degrees of freedom
