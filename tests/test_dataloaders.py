"""The sampler under the loaders that people use: torch's, torchdata's, accelerate's, and the Hugging Face Trainer."""

import json
from functools import partial

import pytest

import packer
from tests.helpers.packed_rows import heads

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  needs torch

WORKERS = [0, 2]


def expected_heads(dataset, **options):
    """First tokens of the segments of every batch of an epoch, read without any loader."""
    sampler = packer.BatchSampler(dataset, **options)
    return [heads(packer.collate(dataset.__getitems__(numbers))) for numbers in sampler]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataloader_gives_the_same_batches_with_any_number_of_workers(dataset, workers):
    options = {"global_batch": 8, "rows": 2, "rank": 1, "world_size": 2, "balance": "attention"}
    loader = DataLoader(
        dataset,
        batch_sampler=packer.BatchSampler(dataset, **options),
        collate_fn=packer.collate,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        persistent_workers=workers > 0,
    )
    assert len(loader) == len(expected_heads(dataset, **options))
    for epoch in range(2):
        assert [heads(batch) for batch in loader] == expected_heads(dataset, epoch=epoch, **options)


def test_a_dataloader_without_the_sampler_collates_rows_as_they_come(dataset):
    found = [heads(batch) for batch in DataLoader(dataset, batch_size=2, collate_fn=packer.collate)]
    assert found == [heads(batch) for batch in packer.batches(dataset, rows=2, seed=None)]


def test_a_collate_with_options_goes_to_workers(dataset):
    static = packer.static_shape(dataset, rows=2)
    collate = partial(packer.collate, static=static, loss_weights="sequence")
    loader = DataLoader(dataset, batch_size=2, collate_fn=collate, num_workers=1, multiprocessing_context="spawn")
    assert {tuple(batch["loss_weights"].shape) for batch in loader} == {(1, static.tokens)}


def test_a_plain_dataloader_with_workers_resumes_where_it_is_told(dataset):
    options = {"global_batch": 2}
    sampler = packer.BatchSampler(dataset, **options)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=2, prefetch_factor=2)
    batches = iter(loader)
    before = [heads(next(batches)) for _ in range(3)]
    state = sampler.state_dict(batches=3)
    assert sampler.state_dict() != state, "it read ahead"
    resumed = packer.BatchSampler(dataset, **options)
    resumed.load_state_dict(state)
    after = [heads(batch) for batch in DataLoader(dataset, batch_sampler=resumed, collate_fn=packer.collate)]
    assert before + after == expected_heads(dataset, **options)


# ---- torchdata ----


def stateful(dataset, workers, **options):
    data = pytest.importorskip("torchdata.stateful_dataloader")
    sampler = packer.BatchSampler(dataset, **options)
    return data.StatefulDataLoader(
        dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=workers
    ), sampler


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_stateful_dataloader_resumes_to_the_exact_row(dataset, workers, stop):
    options = {"global_batch": 2, "epoch": 5}
    expected = [expected_heads(dataset, **{**options, "epoch": epoch}) for epoch in (5, 6)]
    loader, _ = stateful(dataset, workers, **options)
    batches = iter(loader)
    before = [heads(next(batches)) for _ in range(stop)]
    state = loader.state_dict()
    resumed, sampler = stateful(dataset, workers, global_batch=2)
    resumed.load_state_dict(state)
    assert before + [heads(batch) for batch in resumed] == expected[0]
    assert sampler.epoch == 5
    assert [heads(batch) for batch in resumed] == expected[1], "the next pass is the next epoch"


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_dataloader_saved_between_epochs_begins_the_next(dataset, workers):
    loader, _ = stateful(dataset, workers, global_batch=2)
    assert [heads(batch) for batch in loader] == expected_heads(dataset, global_batch=2)
    state = loader.state_dict()
    for told in (False, True):
        resumed, sampler = stateful(dataset, workers, global_batch=2)
        resumed.load_state_dict(state)
        if told:
            sampler.set_epoch(1)
        assert [heads(batch) for batch in resumed] == expected_heads(dataset, global_batch=2, epoch=1)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("kind", "ended"), [("torch", False), ("torchdata", False), ("torchdata", True)])
def test_loaders_that_are_told_epochs_resume_at_the_end_of_one(dataset, workers, kind, ended):
    """The last batches of an epoch are empty."""
    options = {"global_batch": 7, "rows": 1}
    assert 0 < len(dataset) % 7 < 7
    expected = [expected_heads(dataset, epoch=epoch, **options) for epoch in range(3)]

    def loader_of():
        if kind == "torchdata":
            return stateful(dataset, workers, **options)
        sampler = packer.BatchSampler(dataset, **options)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=workers)
        return loader, sampler

    loader, sampler = loader_of()
    batches = iter(loader)
    assert [heads(next(batches)) for _ in expected[0]] == expected[0]
    if ended:
        assert not list(batches)
    state = loader.state_dict() if kind == "torchdata" else sampler.state_dict(batches=len(expected[0]))
    resumed, sampler = loader_of()
    (resumed if kind == "torchdata" else sampler).load_state_dict(state)
    passes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        passes.append([heads(batch) for batch in resumed])
    assert passes == [[], *expected[1:]]


# ---- accelerate ----


@pytest.fixture
def prepared(dataset):
    """Make a loader that accelerate prepared, and its sampler, for the options of either."""
    accelerate = pytest.importorskip("accelerate")

    def make(*, config=None, **options):
        sampler = packer.BatchSampler(dataset, **options)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)
        config = accelerate.DataLoaderConfiguration(**(config or {}))
        return accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(loader), sampler

    return make


def test_accelerate_goes_through_epochs_and_resumes(dataset, prepared):
    options = {"global_batch": 4, "rows": 2}
    loader, sampler = prepared(**options)
    for epoch in range(2):
        assert [heads(batch) for batch in loader] == expected_heads(dataset, epoch=epoch, **options)
    batches = iter(loader)
    before = [heads(next(batches)) for _ in range(2)]
    state = json.loads(json.dumps(sampler.state_dict(batches=2)))  # accelerate reads one batch ahead

    for told in (False, True):
        loader, sampler = prepared(**options)
        sampler.load_state_dict(state)
        with pytest.raises(packer.PackerError, match=r"epoch 2 at batch 2 of \d+, but set_epoch was called with 0"):
            loader.set_epoch(0)
        if told:
            loader.set_epoch(sampler.epoch)
        after = [heads(batch) for batch in loader]
        assert before + after == expected_heads(dataset, epoch=2, **options)
        assert [heads(batch) for batch in loader] == expected_heads(dataset, epoch=3, **options)


def take_every_batch(loader):
    """Take all batches of an epoch and not ask for one more, as a loop over steps does."""
    batches = iter(loader)
    return [heads(next(batches)) for _ in range(len(loader))]


@pytest.mark.parametrize("first", [0, 5])
def test_accelerate_goes_through_epochs_of_which_no_pass_is_exhausted(dataset, prepared, first):
    options = {"global_batch": 4, "rows": 2}
    loader, _ = prepared(epoch=first, **options)
    for epoch in range(first, first + 3):
        assert take_every_batch(loader) == expected_heads(dataset, epoch=epoch, **options)


def test_accelerate_repeats_an_epoch_on_demand(dataset, prepared):
    loader, _ = prepared(global_batch=4)
    for epoch in (3, 3, 0):
        loader.set_epoch(epoch)
        assert take_every_batch(loader) == expected_heads(dataset, epoch=epoch, global_batch=4)


def test_accelerate_counts_on_after_a_pass_that_skipped_batches(dataset, prepared):
    accelerate = pytest.importorskip("accelerate")
    loader, _ = prepared(global_batch=2)
    rest = [heads(batch) for batch in accelerate.skip_first_batches(loader, 2)]
    assert rest == expected_heads(dataset, global_batch=2)[2:]
    assert [heads(batch) for batch in loader] == expected_heads(dataset, epoch=1, global_batch=2)


def test_batches_that_accelerate_would_dispatch_are_refused(prepared):
    loader, _ = prepared(global_batch=2, config={"dispatch_batches": True})
    for begin in (lambda: next(iter(loader)), lambda: loader.set_epoch(1)):
        with pytest.raises(packer.PackerError, match="a packed batch is one row: leave dispatch_batches out"):
            begin()


# ---- the Hugging Face Trainer ----


@pytest.mark.slow
def test_the_trainer_shows_the_sampler_s_batches_and_resumes_from_a_checkpoint(dataset, tmp_path):
    pytest.importorskip("accelerate")
    from tests.helpers.trainers import train_with_trainer

    expected = [
        packer.collate(dataset.__getitems__(numbers))["input_ids"].tolist()
        for epoch in range(3)
        for numbers in packer.BatchSampler(dataset, global_batch=4, rows=2, epoch=epoch)
    ]
    steps = packer.BatchSampler(dataset, global_batch=4).steps
    assert train_with_trainer(dataset, tmp_path) == expected
    stop = steps + 1  # in the second epoch
    assert train_with_trainer(dataset, tmp_path, resume=tmp_path / f"checkpoint-{stop}") == expected[2 * stop :]
