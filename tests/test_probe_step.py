"""A probe of training steps finds what leaks into other documents, whatever the trainer's format and its losses."""

import numpy as np
import pytest

import packer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.families import VOCABULARY, tiny_model  # noqa: E402  these need torch


def of_model(model, *, without=()):
    """A step of a Hugging Face model: the losses of the next tokens, without some keys of the batch."""

    def step(batch):
        batch = {name: value for name, value in batch.items() if name not in without}
        labels = batch.pop("labels")[:, 1:]
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)

    return step


@pytest.fixture(scope="module")
def model():
    return packer.attention.use(tiny_model("qwen3").eval())


def test_a_step_that_keeps_documents_apart_is_safe(model):
    found = packer.probe(of_model(model), vocabulary=VOCABULARY)
    assert found.is_safe
    assert found.moved == dict.fromkeys(range(7), ())
    assert str(found).startswith("safe: no document moves the losses of another (largest change ")


def test_a_step_without_boundaries_leaks_into_all_later_documents_of_a_row():
    model = tiny_model("qwen3", attn_implementation="sdpa").eval()
    one_row = of_model(model, without=("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"))
    found = packer.probe(one_row, format="hf_rows", vocabulary=VOCABULARY, tolerance=1e-5)
    assert not found.is_safe
    assert found.moved == {0: (1, 2, 3), 1: (2, 3), 2: (3,), 3: (), 4: (5, 6), 5: (6,), 6: ()}
    assert str(found).startswith("leaks by up to ")
    assert "document 0 moves 1, 2, 3; 1 moves 2, 3; 2 moves 3; 4 moves 5, 6; 5 moves 6" in str(found)


@pytest.mark.parametrize("family", ["qwen3_5_text", "nemotron_h", "kimi_linear", "qwen3_next", "qwen3_5_moe_text"])
def test_layers_that_carry_state_leak_by_positions_alone_and_refuse_boundaries_without_their_kernels(family):
    step = of_model(tiny_model(family).eval())
    found = packer.probe(step, format="hf_rows", vocabulary=VOCABULARY)
    assert found.largest > 0.1
    assert all(document + 1 in found.moved[document] for document in (0, 1, 2, 4, 5))
    with pytest.raises(ValueError, match="can't keep packed sequences apart without"):
        packer.probe(step, vocabulary=VOCABULARY)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_head_further_ahead_is_safe_by_its_own_labels_and_leaks_by_a_roll(rolled):
    def step(batch):
        targets = np.roll(batch["labels"][:, None], -3, axis=2) if rolled else batch["mtp_labels"]
        return np.maximum(targets[:, -1], 0)

    found = packer.probe(step, format="hf_rows", mtp=2, tensors="numpy")
    assert found.is_safe != rolled
    if rolled:
        assert found.moved == {0: (3,), 1: (0,), 2: (1,), 3: (2,), 4: (6,), 5: (4,), 6: (5,)}


def means_of_others(batch):
    """A step whose losses hold what comes before them in the batch, with shifted labels and NumPy arrays."""
    (inputs, labels) = batch
    before = np.cumsum(inputs["input"].ravel()).reshape(inputs["input"].shape)
    return np.where(labels >= 0, before, 0)


def test_shifted_labels_and_arrays_are_read_row_by_row():
    found = packer.probe(means_of_others, format="torchtitan", tensors="numpy")
    assert found.moved[0] == (1, 2, 3, 4, 5, 6)
    assert found.moved[6] == ()
    alone = packer.probe(
        lambda batch: np.where(batch[1] >= 0, batch[0]["input"], 0.0), format="torchtitan", tensors="numpy"
    )
    assert alone.is_safe


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (lambda batch: np.zeros(3), {}, "the step returns 3 losses of 64 tokens: return one for each"),
        (lambda batch: np.full(64, np.nan), {}, "a loss that is not a number: give tokens without a label the loss 0"),
        (lambda batch: np.random.default_rng().random(64), {}, "other losses for the same batch: leave out dropout"),
        (lambda batch: np.zeros(64), {"lengths": [[3, 4], [5]]}, "give rows of equal sums"),
    ],
)
def test_a_step_that_cannot_be_probed_is_refused(step, options, message):
    with pytest.raises(packer.PackerError, match=message):
        packer.probe(step, tensors="numpy", **options)
