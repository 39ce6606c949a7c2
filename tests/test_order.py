"""Which rows an epoch shows when, on how many ranks, and how it is resumed."""

import json
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.loader.batch_sampler import attention_costs
from packer.loader.row_order import (
    WINDOW,
    deal_by_cost,
    order_for_readers,
    row_order,
    slot_sizes,
    steps_of_like_work,
)
from tests.helpers import naive
from tests.helpers.order import Rows, sampler_at, samplers
from tests.helpers.packed_rows import LENGTHS, heads, make, segments_of, tokens_of

# ---- batches: one process ----


@pytest.fixture(scope="module")
def disk_order(dataset) -> list[int]:
    """First tokens of all segments, in the order on disk."""
    return [tokens_of(d, LENGTHS[d])[start] for row in dataset for d, start, _ in segments_of(row)]


def order_of(dataset, **options) -> list[int]:
    """First tokens of all segments, in the order in which an epoch shows them."""
    return [head for batch in packer.batches(dataset, tensors="numpy", **options) for head in heads(batch)]


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_an_epoch_shows_every_row_once(dataset, disk_order, rows):
    found = list(packer.batches(dataset, rows=rows, seed=3, epoch=2, tensors="numpy"))
    assert len(found) == -(-len(dataset) // rows)
    assert sorted(head for batch in found for head in heads(batch)) == sorted(disk_order)


def test_the_order_depends_on_seed_and_epoch_alone(packed, dataset, tmp_path):
    order = order_of(dataset, rows=1, seed=3, epoch=2)
    np.random.seed(1)
    assert order_of(packer.load(packed), rows=1, seed=3, epoch=2) == order
    assert order_of(dataset, rows=4, seed=3, epoch=2) == order
    for seed, epoch in [(3, 1), (2, 2), (2, 3), (5, 0)]:
        assert order_of(dataset, rows=1, seed=seed, epoch=epoch) != order


def test_without_a_seed_the_order_is_that_on_disk(dataset, disk_order):
    assert order_of(dataset, rows=2, seed=None, epoch=7) == disk_order
    assert order_of(dataset, rows=2) != disk_order


def test_drop_last_leaves_out_only_what_does_not_fill_a_batch(dataset):
    rows = next(number for number in range(2, 10) if len(dataset) % number)
    kept = list(packer.batches(dataset, rows=rows, drop_last=True, tensors="numpy"))
    everything = list(packer.batches(dataset, rows=rows, tensors="numpy"))
    assert [heads(batch) for batch in kept] == [heads(batch) for batch in everything[:-1]]
    assert not list(packer.batches(dataset, rows=len(dataset) + 1, drop_last=True, tensors="numpy"))
    assert len(list(packer.batches(dataset, rows=len(dataset), drop_last=True, tensors="numpy"))) == 1


def test_a_batch_of_no_rows_is_refused(dataset):
    with pytest.raises(PackerError, match="rows is 0: it must be at least 1"):
        next(packer.batches(dataset, rows=0))


# ---- the permutation ----


@given(st.integers(0, 400), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_order_of_rows_equals_the_naive_one(rows, seed, epoch):
    assert row_order(rows, seed=seed, epoch=epoch).tolist() == naive.row_order(rows, seed=seed, epoch=epoch)


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0, -1)])
def test_a_seed_or_epoch_out_of_range_is_refused(dataset, seed, epoch):
    with pytest.raises(PackerError, match=r"(seed|epoch) is -?\d+: it must be a whole number from 0 to 2\^64 - 1"):
        sampler_at(epoch, dataset, global_batch=1, seed=seed)


# ---- the sampler: ranks and steps ----


def joined(lists) -> list:
    return list(chain.from_iterable(lists))


@st.composite
def datasets(draw):
    """Rows of some lengths, in some shards."""
    shards = draw(st.lists(st.integers(0, 12), max_size=5))
    total = sum(shards)
    return Rows(draw(st.lists(st.integers(1, 50), min_size=total, max_size=total + 12)), tuple(shards))


@st.composite
def layouts(draw, order=None):
    """Options of the samplers of a job. With those of another one, both have the same order of rows."""
    world_size, rows, accumulation = (draw(st.integers(1, most)) for most in (4, 3, 3))
    options = {"world_size": world_size, "rows": rows, "global_batch": world_size * rows * accumulation}
    if order is not None:
        options["global_batch"] = int(np.lcm(options["global_batch"], order["global_batch"]))
    own = options["global_batch"] // world_size
    if draw(st.booleans()) and order is None:
        lanes = world_size * draw(st.sampled_from([number for number in range(1, own + 1) if own % number == 0]))
        return {**options, "lanes": lanes, "window": draw(st.integers(1, 3))}
    of_order = (order or {}).get("balance", draw(st.sampled_from([None, 1, 2, 3])))
    moves_rows = (of_order or 1) > 1
    return {**options, "balance": of_order if moves_rows else draw(st.sampled_from([None, 1]))}


def turns_of(ranks):
    """The batches of all ranks side by side: a list per turn; every rank has as many."""
    return [list(turn) for turn in zip(*ranks, strict=True)]


def steps_of(ranks):
    """The rows of every optimizer step, over all ranks, ascending."""
    turns, accumulation = turns_of(ranks), ranks[0].accumulation
    steps = [joined(turns[first : first + accumulation]) for first in range(0, len(turns), accumulation)]
    return [sorted(joined(step)) for step in steps]


@given(datasets(), layouts(), st.booleans(), st.integers(0, 5))
def test_an_epoch_shows_each_row_once_over_all_ranks(dataset, layout, drop_last, epoch):
    ranks = samplers(dataset, layout, drop_last=drop_last, epoch=epoch)
    turns, accumulation = turns_of(ranks), ranks[0].accumulation
    shown = joined(joined(turns))
    left_out = len(dataset) % layout["global_batch"] if drop_last else 0
    assert len(shown) == len(set(shown)) == len(dataset) - left_out
    assert {len(rank) for rank in ranks} == {len(turns)} == {ranks[0].steps * accumulation}
    full = turns if drop_last else turns[: len(dataset) // layout["global_batch"] * accumulation]
    assert all(len(batch) == layout["rows"] for turn in full for batch in turn)
    last = [len(batch) for turn in turns[len(full) :] for batch in turn]
    assert max(last, default=0) - min(last, default=0) <= 1


@given(datasets(), st.data())
def test_a_step_sees_the_same_rows_on_any_number_of_ranks(dataset, data):
    one = data.draw(layouts().filter(lambda layout: "lanes" not in layout))
    other = data.draw(layouts(one))
    first = steps_of(samplers(dataset, {**one, "global_batch": other["global_batch"]}))
    assert first == steps_of(samplers(dataset, other))
    order = row_order(len(dataset), seed=0, epoch=0).tolist()
    global_batch = other["global_batch"]
    if (other["balance"] or 1) == 1:
        assert first == [sorted(order[at : at + global_batch]) for at in range(0, len(order), global_batch)]
    assert sorted(joined(first)) == sorted(order)


# ---- the sampler: epochs ----


def test_another_pass_is_the_next_epoch_and_set_epoch_says_otherwise():
    def passes(*epochs):
        sampler = packer.BatchSampler(Rows([1] * 20), global_batch=3)
        found = []
        for epoch in epochs:
            if epoch is not None:
                sampler.set_epoch(epoch)
            found.append(list(sampler))
        return found

    expected = [list(sampler_at(epoch, Rows([1] * 20), global_batch=3)) for epoch in range(3)]
    assert passes(None, None, None) == expected
    assert passes(0, 1, 2) == expected
    assert passes(2, 0, 0, None) == [expected[2], expected[0], expected[0], expected[1]]


def test_a_pass_that_was_broken_off_begins_again():
    sampler = packer.BatchSampler(Rows([1] * 20), global_batch=3)
    expected = list(packer.BatchSampler(Rows([1] * 20), global_batch=3))
    assert next(iter(sampler)) == expected[0]
    assert list(sampler) == expected


# ---- the sampler: state ----


@given(datasets(), layouts(), st.data())
def test_a_resumed_epoch_equals_an_uninterrupted_one(dataset, layout, data):
    expected = [list(rank) for rank in samplers(dataset, layout, epoch=4)]
    stop = data.draw(st.integers(0, len(expected[0])))
    for rank, sampler in enumerate(samplers(dataset, layout, epoch=4)):
        batches = iter(sampler)
        before = [next(batches) for _ in range(stop)]
        resumed = samplers(dataset, layout)[rank]
        resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        assert resumed.state_dict() == sampler.state_dict()
        if stop < len(expected[rank]):
            assert before + list(resumed) == expected[rank]
            assert resumed.epoch == 4
        elif expected[rank]:
            assert list(resumed) == list(sampler), "a state from the end of an epoch begins the next"
            assert resumed.epoch == sampler.epoch == 5


@given(datasets(), layouts(), st.booleans(), st.booleans())
def test_a_loop_over_epochs_that_resumes_at_the_end_of_one_sees_every_epoch_once(dataset, layout, exhausted, again):
    """Epochs are set as a trainer does; the last batches of an epoch may be empty."""
    expected = [[list(rank) for rank in samplers(dataset, layout, epoch=epoch)] for epoch in range(2, 5)]
    for rank, sampler in enumerate(samplers(dataset, layout, epoch=2)):
        if not (first := expected[0][rank]):
            continue
        batches = iter(sampler)
        assert [next(batches) for _ in first] == first
        if exhausted:
            assert not list(batches)
        resumed = sampler if again else samplers(dataset, layout)[rank]
        state = json.loads(json.dumps(sampler.state_dict()))
        resumed.load_state_dict(state)
        passes = []
        for epoch in range(state["epoch"], 5):
            resumed.set_epoch(epoch)
            passes.append(list(resumed))
        assert passes == [[], expected[1][rank], expected[2][rank]]


def test_a_pass_of_an_epoch_that_is_over_is_followed_by_the_next_epoch():
    sampler = packer.BatchSampler(Rows([1] * 20), global_batch=4)
    assert len(list(sampler)) == 5
    sampler.load_state_dict(sampler.state_dict())
    sampler.set_epoch(0)
    assert list(sampler) == []
    assert list(sampler) == list(sampler_at(1, Rows([1] * 20), global_batch=4))


def stopped(ranks, steps):
    """The rows that the ranks have shown after so many steps, and their state, which is the same on all."""
    iterators = [iter(rank) for rank in ranks]
    shown = [number for batches in iterators for _ in range(steps * ranks[0].accumulation) for number in next(batches)]
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    return sorted(shown), states[0]


def resumed_steps(ranks, state):
    for rank in ranks:
        rank.load_state_dict(state)
    return steps_of(ranks)


@given(datasets(), st.data())
def test_resumed_on_other_ranks_each_row_is_seen_once(dataset, data):
    one = data.draw(layouts().filter(lambda layout: "lanes" not in layout))
    other = data.draw(layouts(one))
    old = samplers(dataset, {**one, "global_batch": other["global_batch"]}, epoch=1)
    expected = steps_of(samplers(dataset, other, epoch=1))
    steps = data.draw(st.integers(0, max(old[0].steps - 1, 0)))
    if expected:
        shown, state = stopped(old, steps)
        assert shown == sorted(joined(expected[:steps]))
        assert resumed_steps(samplers(dataset, other, epoch=1), state) == expected[steps:]


@pytest.mark.parametrize("lanes", [{}, {"lanes": 4}])
def test_in_the_middle_of_a_step_other_ranks_go_on_where_they_can(lanes):
    """In lanes: where every lane gave as many rows."""
    dataset, layout = Rows([1] * 64, (20, 30)), {"global_batch": 16, **lanes}
    old = packer.BatchSampler(dataset, rows=2, **layout)
    batches = iter(old)
    shown = [number for _ in range(4) for number in next(batches)]
    state = old.state_dict()
    assert state["rows_done"] == 8
    new = samplers(dataset, {**layout, "world_size": 2, "rows": 4})
    assert sorted(shown + joined(resumed_steps(new, state))) == list(range(64))
    message = "ends 8 rows into a global batch of 16, whose remaining rows cannot be divided into batches of 16 rows"
    with pytest.raises(PackerError, match=message):
        packer.BatchSampler(dataset, rows=16, **layout).load_state_dict(state)
    if lanes:
        next(batches)
        with pytest.raises(PackerError, match="ends 10 rows into a global batch of 16"):
            samplers(dataset, {**layout, "world_size": 2, "rows": 1})[0].load_state_dict(old.state_dict())
    else:
        with pytest.raises(PackerError, match="ends 8 rows into a global batch of 16"):
            packer.BatchSampler(dataset, rows=2, balance=1, **layout).load_state_dict(state)


@pytest.mark.parametrize("batches", [5, 6])
def test_a_state_from_rows_that_are_left_out_here_begins_the_next_epoch(batches):
    old = packer.BatchSampler(Rows([1] * 11), global_batch=4, rows=2)
    assert len(old) == 6
    sampler = packer.BatchSampler(Rows([1] * 11), global_batch=4, rows=2, drop_last=True)
    sampler.load_state_dict(old.state_dict(batches))
    assert list(sampler) == list(sampler_at(1, Rows([1] * 11), global_batch=4, rows=2, drop_last=True))
    assert sampler.epoch == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "the sampler's state has version 2, this package reads version 1: resume with the version"),
        ({"version": None}, "the sampler's state has version None, this package reads version 1: resume with the"),
        ({"dataset": "ffff"}, "the sampler's state has dataset ffff, this sampler 0123456789abcdef: resume with the"),
        ({"seed": 1}, "the sampler's state has seed 1, this sampler 0: resume with the same seed"),
        ({"step": -1}, "step of the sampler's state is -1: it must be a whole number from 0"),
        ({"epoch": 1.5}, "epoch of the sampler's state is 1.5: it must be a whole number from 0"),
        ({"turn": "x"}, "turn of the sampler's state is 'x': it must be a whole number from 0"),
        ({"turn": 10**6}, "the sampler's state is at step 0, batch 1000000, and an epoch has 5 steps: load one"),
        ({"step": 10**6}, "the sampler's state is at step 1000000, batch 0, and an epoch has 5 steps: load one"),
        ({"global_batch": 5}, "the sampler's state has global_batch 5, this sampler 4: resume with the same global_b"),
    ],
)
def test_a_state_that_cannot_be_resumed_is_refused_in_one_line(change, message):
    sampler = packer.BatchSampler(Rows([1] * 20), global_batch=4)
    state = {**sampler.state_dict(), **change}
    with pytest.raises(PackerError) as raised:
        sampler.load_state_dict(state)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert len(list(sampler)) == 5, "as if nothing had been loaded"


def test_a_state_that_lacks_a_field_is_refused():
    state = packer.BatchSampler(Rows([1] * 20), global_batch=4).state_dict()
    del state["step"]
    with pytest.raises(PackerError, match="the sampler's state has no step: load one that state_dict returned"):
        packer.BatchSampler(Rows([1] * 20), global_batch=4).load_state_dict(state)


def test_a_state_of_more_batches_than_an_epoch_has_is_refused():
    """As if the batches were counted over all epochs: resuming would leave out the rest of this one."""
    sampler = sampler_at(1, Rows([1] * 20), global_batch=4)
    with pytest.raises(PackerError, match="batches is 7, and an epoch has 5 on this rank: count the"):
        sampler.state_dict(batches=7)


def test_a_state_holds_plain_values_whatever_numbers_the_sampler_was_given():
    batch, rows = np.int64(4), np.int32(2)
    assert json.dumps(packer.BatchSampler(Rows([1] * 20), global_batch=batch, rows=rows).state_dict())


def test_another_packing_of_the_same_source_is_another_dataset(tmp_path):
    one = packer.load(make(tmp_path / "one"))
    other = packer.load(make(tmp_path / "other", seed=1))
    assert one.fingerprint == packer.load(one.path).fingerprint != other.fingerprint
    state = packer.BatchSampler(one, global_batch=2).state_dict()
    with pytest.raises(PackerError, match=f"has dataset {one.fingerprint}, this sampler {other.fingerprint}"):
        packer.BatchSampler(other, global_batch=2).load_state_dict(state)


def test_set_epoch_keeps_what_was_resumed_and_refuses_to_leave_it():
    sampler = sampler_at(3, Rows([1] * 20), global_batch=4)
    expected = list(sampler)
    sampler.load_state_dict(sampler.state_dict(batches=2))
    message = "resumes epoch 3 at batch 2 of 5, but set_epoch was called with 0: start with 3"
    with pytest.raises(PackerError, match=message):
        sampler.set_epoch(0)
    sampler.set_epoch(3)
    assert list(sampler) == expected[2:]
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(PackerError, match="resumes epoch 3 at batch 5 of 5, but set_epoch was called with 0"):
        sampler.set_epoch(0)
    sampler.set_epoch(4)
    assert list(sampler) == list(sampler_at(4, Rows([1] * 20), global_batch=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 6, "rows": 4}, "global_batch is 6, for 1 ranks and batches of 4 rows: it must be a multiple"),
        ({"global_batch": 5, "world_size": 2}, "global_batch is 5, for 2 ranks and batches of 2 rows: it must"),
        ({"global_batch": 0}, "global_batch is 0, for 1 ranks"),
        ({"global_batch": 4, "rows": 0}, "global_batch is 4, for 1 ranks and batches of 0 rows"),
        ({"global_batch": 4, "rank": 2, "world_size": 2}, "rank is 2 of 2: it must be from 0"),
        ({"global_batch": 4, "world_size": 0}, "rank is 0 of 0"),
        ({"global_batch": "4"}, "global_batch is '4': it must be a whole number"),
        ({"global_batch": 4.0}, "global_batch is 4.0: it must be a whole number"),
        ({"global_batch": 4, "seed": 0.5}, "seed is 0.5: it must be a whole number from 0 to"),
        ({"global_batch": 4, "balance": "attention"}, "balance is 'attention': it must be a whole number"),
        ({"global_batch": 4, "balance": 0}, "balance is 0: choose 1 to balance each step, more to balance several"),
    ],
)
def test_numbers_out_of_range_are_refused_in_one_line(options, message):
    with pytest.raises(PackerError) as raised:
        packer.BatchSampler(Rows([1] * 20), **options)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


# ---- balance ----


def dealt(costs, sizes):
    """Rows of each slot."""
    return np.split(deal_by_cost(np.array(costs, np.int64), sizes), np.cumsum(sizes)[:-1])


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 9))
def test_rows_dealt_by_cost_fill_the_slots(costs, slots):
    sizes = slot_sizes(len(costs), slots)
    found = dealt(costs, sizes)
    assert [len(slot) for slot in found] == sizes.tolist()
    assert sorted(number for slot in found for number in slot) == list(range(len(costs)))
    assert all(slot.tolist() == sorted(slot) for slot in found)
    loads = [sum(costs[number] for number in slot) for slot in found]
    for size in set(sizes.tolist()):
        alike = [load for load, one in zip(loads, sizes, strict=True) if one == size]
        assert alike == sorted(alike, reverse=True)


def test_dealing_by_cost_comes_within_a_few_percent_of_even():
    random = np.random.default_rng(0)
    uneven = []
    for _ in range(50):
        costs = random.lognormal(10, 1, 64).astype(np.int64)
        loads = np.array([costs[slot].sum() for slot in dealt(costs, slot_sizes(64, 4))])
        uneven.append(max(loads.max(), costs.max()) / max(loads.mean(), costs.max()))
    assert np.mean(uneven) < 1.005
    assert [slot.tolist() for slot in dealt([9, 1, 8, 2], slot_sizes(4, 2))] == [[0, 1], [2, 3]]


def test_swaps_mend_what_longest_first_leaves_uneven():
    costs = np.array([8, 7, 6, 5, 4])  # longest first gives 8 + 5 + 4 and 7 + 6
    assert sorted(costs[slot].sum() for slot in dealt(costs, np.array([3, 2]))) == [15, 15]


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 7), st.integers(1, 4))
def test_steps_of_like_work_divide_the_rows_of_their_windows_by_cost(costs, size, window):
    rows, costs = np.arange(100, 100 + len(costs)), np.array(costs, np.int64)
    found = steps_of_like_work(rows, costs, size=size, window=window) - 100
    whole = len(costs) // size * size
    assert found[whole:].tolist() == list(range(whole, len(costs)))
    first = 0
    for steps in np.array_split(found[:whole].reshape(-1, size), max(-(-(whole // size) // window), 1)):
        assert len(steps) <= window
        assert sorted(steps.ravel()) == list(range(first, first + steps.size))
        assert [step.tolist() for step in steps] == sorted(sorted(step) for step in steps)
        ranges = sorted((costs[step].min(), costs[step].max()) for step in steps)
        assert all(highest <= lowest for (_, highest), (lowest, _) in pairwise(ranges))
        first += steps.size


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=90), min_size=1, max_size=4), st.integers(2, 7))
def test_rows_for_readers_in_order_are_in_groups_of_like_work_across_shards(shards, ranks):
    first, groups = 0, []
    for costs in map(np.array, shards):
        order = order_for_readers(costs, first=first, ranks=ranks)
        assert sorted(order.tolist()) == list(range(len(costs)))
        groups += [(first + place) // ranks for place in range(len(costs))]
        inside = np.bincount(groups[-len(costs) :])[groups[-len(costs) :]] == ranks
        whole, shared = order[inside], order[~inside]
        alike = np.sort(whole)
        assert whole.tolist() == steps_of_like_work(alike, costs[alike], size=ranks, window=WINDOW).tolist()
        cheaper, dearer = np.split(np.sort(costs[whole]), [len(whole) // 2])
        if len(shared):  # with a group of another shard
            assert cheaper.max(initial=0) <= costs[shared].min()
            assert costs[shared].max() <= dearer.min(initial=9)
        first += len(costs)


def test_rows_left_out_at_the_end_of_an_epoch_do_not_depend_on_their_work():
    rows = Rows(np.random.default_rng(0).integers(1, 100, 50).tolist())
    kept = list(packer.BatchSampler(rows, global_batch=8, balance=4, drop_last=True))
    assert kept == list(packer.BatchSampler(rows, global_batch=8, balance=4))[:6]
    assert sorted(joined(kept)) == sorted(row_order(50, seed=0, epoch=0)[:48].tolist())


def test_costs_are_the_squared_lengths_without_padding(dataset):
    expected = [sum(length**2 for _, _, length in segments_of(row)) for row in dataset]
    assert attention_costs(dataset).tolist() == expected


def test_the_imbalance_is_that_of_the_batches_that_are_handed_out():
    lengths = np.random.default_rng(1).integers(1000, 4096, 1000).tolist()
    layout = {"world_size": 8, "rows": 2, "global_batch": 32}
    costs = np.array(lengths) ** 2

    def imbalance(balance):
        turns = turns_of(samplers(Rows(lengths), layout, balance=balance))
        work = np.array([[costs[batch].sum() for batch in turn] for turn in turns])
        return work.max(axis=1).sum() / work.mean(axis=1).sum(), work.sum(axis=0)

    for balance, most in ((None, 9), (1, 1.1), (8, 1.02)):
        found = samplers(Rows(lengths), layout, balance=balance)[0].imbalance()
        expected, ranks = imbalance(balance)
        assert found == pytest.approx(expected)
        assert found < most
        assert balance or found > 1.6
    assert ranks.max() / ranks.mean() < 1.03, "no rank is always the one with more"


def test_one_rank_is_never_out_of_balance():
    for lengths in ([5, 1, 9], []):
        assert packer.BatchSampler(Rows(lengths), global_batch=2).imbalance() == 1.0
