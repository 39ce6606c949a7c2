"""The sampler under the loaders that people use: torch's, torchdata's, and the Hugging Face Trainer."""

from functools import partial

import pytest

import packer
from tests.helpers.order import sampler_at
from tests.helpers.packed_rows import heads

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402  needs torch

WORKERS = [0, 2]


def expected_heads(dataset, *, epoch=0, **options):
    """First tokens of the segments of every batch of an epoch, read without any loader."""
    sampler = sampler_at(epoch, dataset, **options)
    return [heads(packer.collate(dataset.__getitems__(numbers))) for numbers in sampler]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataloader_gives_the_same_batches_with_any_number_of_workers(dataset, workers):
    options = {"global_batch": 8, "rows": 2, "rank": 1, "world_size": 2, "balance": 1}
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


@pytest.mark.nightly
def test_a_collate_with_options_goes_to_workers(dataset):
    static = packer.static_shape(dataset, rows=2)
    collate = partial(packer.collate, static=static, loss_weights="document")
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


def stateful(dataset, workers, *, epoch=None, **options):
    data = pytest.importorskip("torchdata.stateful_dataloader")
    sampler = sampler_at(epoch, dataset, **options)
    return data.StatefulDataLoader(
        dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=workers
    ), sampler


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_stateful_dataloader_resumes_to_the_exact_row(dataset, workers, stop):
    options = {"global_batch": 2}
    expected = [expected_heads(dataset, epoch=epoch, **options) for epoch in (5, 6)]
    loader, _ = stateful(dataset, workers, epoch=5, **options)
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


@pytest.mark.nightly(after=2)
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


@pytest.mark.parametrize("config", [{}, {"dispatch_batches": True}])
@pytest.mark.parametrize("skipped", [0, 1])
def test_a_loader_that_accelerate_prepared_is_refused(dataset, config, skipped):
    accelerate = pytest.importorskip("accelerate")
    sampler = packer.BatchSampler(dataset, global_batch=4)
    sampler.load_state_dict(sampler.state_dict(batches=1))
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)
    config = accelerate.DataLoaderConfiguration(**config)
    prepared = accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(loader)
    if skipped:
        prepared = accelerate.skip_first_batches(prepared, skipped)
    with pytest.raises(packer.PackerError, match=r"leave it out of prepare\(\), and give rank and world_size"):
        next(iter(prepared))


def test_a_loader_beside_one_that_accelerate_prepared_goes_through_epochs(dataset):
    accelerate = pytest.importorskip("accelerate")
    sampler = packer.BatchSampler(dataset, global_batch=4)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)
    for _ in accelerate.Accelerator(cpu=True).prepare(DataLoader([1, 2])):
        for _ in range(2):
            assert [heads(batch) for batch in loader] == expected_heads(dataset, epoch=sampler.epoch, global_batch=4)


# ---- the Hugging Face Trainer ----


@pytest.mark.slow
def test_the_trainer_shows_the_sampler_s_batches_and_resumes_from_a_checkpoint(dataset, tmp_path):
    pytest.importorskip("accelerate")
    from tests.helpers.trainers import train_with_trainer

    expected = [
        packer.collate(dataset.__getitems__(numbers))["input_ids"].tolist()
        for epoch in range(3)
        for numbers in sampler_at(epoch, dataset, global_batch=4, rows=2)
    ]
    steps = packer.BatchSampler(dataset, global_batch=4).steps
    assert train_with_trainer(dataset, tmp_path) == expected
    stop = steps + 1  # in the second epoch
    assert train_with_trainer(dataset, tmp_path, resume=tmp_path / f"checkpoint-{stop}") == expected[2 * stop :]
