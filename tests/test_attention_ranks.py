"""Packer's attention and a probe in a job of two processes.

Attention is right where they divide heads or rows, and refuses to divide tokens; a probe finds what leaks between
documents, wherever their tokens are.
"""

import pytest

from tests.helpers.torch_jobs import run_two

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers.attention import batch_of  # noqa: E402  these need torch
from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402
from tests.helpers.naive_trees import random_forest  # noqa: E402

BATCHES = {"tensor": batch_of(), "trees": random_forest(0, vocabulary=VOCABULARY).batch()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    """A model, batches, and what two processes made of them in tests/helpers/attention_ranks.py."""
    folder = tmp_path_factory.mktemp("attention")
    tiny_model("qwen3").save_pretrained(folder / "model")
    torch.save(BATCHES, folder / "batches.pt")
    run_two("tests.helpers.attention_ranks", folder, *["probe"] * request.config.getoption("nightly"))
    return folder


@pytest.fixture(scope="module")
def answers(folder):
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", BATCHES)
def test_with_tensor_parallelism_losses_and_gradients_are_those_of_one_process(folder, answers, name):
    from tests.helpers.attention_ranks import loaded, train

    expected_loss, expected = train(loaded(folder), BATCHES[name])
    for found in answers:
        loss, gradients = found[name]
        assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-12)
        assert set(gradients) == set(expected)
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[parameter], rtol=1e-10, atol=1e-10)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tensor, probed", "data, probed"])
def test_a_probe_finds_tensor_and_data_parallelism_safe(answers, name):
    for found in answers:
        assert found[name].is_safe, found[name]
        assert (found[name].largest, found[name].reaching) == (0, ())


@pytest.mark.parametrize("name", ["context", "context, positions"])
def test_context_parallelism_of_torch_is_refused(answers, name):
    for found in answers:
        assert found[name] == (
            "PackerError: Qwen3Attention runs under torch's context_parallel, as of accelerate (cp_size), but "
            "packer_varlen needs all tokens of a document in one process: train with tensor or data parallelism, or "
            "in a trainer whose context parallelism has boundaries"
        )


def test_tokens_of_a_distributed_tensor_are_refused(answers):
    for found in answers:
        assert "Qwen3Attention gets a DTensor, placed as (Shard(dim=2),), but packer_varlen needs" in found["tokens"]


def test_positions_that_begin_within_a_document_are_refused(answers):
    """The first process has whole documents and the beginning of one, as in sequence parallelism."""
    assert answers[1]["shard"] == (
        "PackerError: a segment begins at position 10, so it is a part of its document, as under context or sequence "
        "parallelism: train with tensor or data parallelism; if it is a document, pass cu_seq_lens_q and max_length_q"
    )


# ---- probes ----


@pytest.fixture(scope="module")
def probed(folder):
    """What both processes found in each of the steps of tests/helpers/probe_ranks.py."""
    both = [torch.load(folder / f"probe-{rank}.pt", weights_only=False) for rank in range(2)]
    return {name: [each[name] for each in both] for name in both[0]}


@pytest.mark.parametrize(("name", "documents"), [("ring", 8), ("data", 16)])
def test_a_job_that_keeps_documents_apart_is_safe(probed, name, documents):
    """In a ring, each process has half of the tokens of each row; otherwise it has documents of its own."""
    for found in probed[name]:
        assert found.is_safe
        assert found.moved == dict.fromkeys(range(documents), ())
        assert (found.largest, found.reaching) == (0, ())
        assert max(found.difference, found.gradients) < 1e-14
    assert str(probed[name][0]) == str(probed[name][1])


def test_a_ring_without_boundaries_leaks_into_all_later_documents_of_a_row(probed):
    for found in probed["ring without boundaries"]:
        assert not found.is_safe
        assert found.moved == {0: (1, 2, 3), 1: (2, 3), 2: (3,), 3: (), 4: (5, 6), 5: (6,), 6: (), 7: ()}
        assert found.reaching == (0, 1, 2, 4, 5)


def test_a_leak_over_the_border_of_two_processes_is_found(probed):
    """Document 0 fills the tokens of the first process in its row, and 5 begins there and ends in the second."""
    for found in probed["ring with boundaries in shards"]:
        assert found.moved == {0: (1, 2, 3), 1: (), 2: (), 3: (), 4: (5, 6), 5: (6,), 6: (), 7: ()}


def test_a_leak_between_processes_of_their_own_documents_is_found(probed):
    """Documents 0 to 7 are those of the first process."""
    for found in probed["data, mixed"]:
        assert all({*range(8, 16)} <= {*found.moved[document]} for document in range(8))
        assert "document 0 moves 8 others; 1 moves 8 others; " in str(found)


def test_a_step_that_fails_in_one_process_fails_in_all(probed):
    for found in probed["failing"]:
        assert str(found) == "the step failed in process 1 of the job: ValueError('out of luck')"


def test_ranks_that_leave_one_out_are_refused(probed):
    for found in probed["ranks"]:
        assert str(found) == (
            "the processes of this job get the batches [0, 1] of 3: pass rank and world_size as to BatchSampler"
        )
