"""Packer's attention in several processes: right where they divide heads or rows, refused where they divide tokens."""

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
