"""A probe of training steps finds what leaks into other documents, whatever the trainer's format and its losses."""

import numpy as np
import pytest

import packer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402  these need torch


def of_model(model, *, without=(), **changes):
    """A step of a Hugging Face model: the losses of the next tokens, without some keys of the batch or with others."""

    def step(batch):
        batch = {name: value for name, value in (batch | changes).items() if name not in without}
        labels = batch.pop("labels")[:, 1:]
        logits = model(**batch).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)

    return step


def probe(step, **options):
    return packer.probe(step, **{"vocabulary": VOCABULARY, "max_len": 64, **options})


@pytest.fixture(scope="module")
def model():
    return packer.attention.use(tiny_model("qwen3").eval())


@pytest.mark.parametrize("format", ["hf", "tree"])
def test_a_step_that_keeps_documents_apart_is_safe(model, format):
    found = probe(of_model(model), format=format)
    assert found.is_safe
    assert found.moved == dict.fromkeys(range(8 if format == "hf" else 12), ())
    assert found.largest == 0
    assert max(found.difference, found.gradients) < 1e-5
    assert found.reaching == ()
    assert str(found).startswith("safe up to 64 tokens: no document moves the losses of another (largest change 0.0")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_without_boundaries_leaks_into_all_later_documents_of_a_row():
    model = tiny_model("qwen3", attn_implementation="sdpa").eval()
    one_row = of_model(model, without=("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"))
    found = probe(one_row, format="hf_rows", tolerance=1e-5)
    assert not found.is_safe
    assert found.moved == {0: (1, 2, 3), 1: (2, 3), 2: (3,), 3: (), 4: (5, 6), 5: (6,), 6: (), 7: ()}
    assert str(found).startswith("leaks by up to ")
    assert "document 0 moves 1, 2, 3; 1 moves 2, 3; 2 moves 3; 4 moves 5, 6; 5 moves 6" in str(found)


def test_a_step_that_drops_the_tree_computes_other_branches():
    """Branch 1 continues node 0, as 2 does, and 3 and 4 continue 2: positions alone cut off what they continue."""
    model = tiny_model("qwen3").eval()
    found = probe(of_model(model, without=["tree"]), format="tree")
    assert found.differs == (2, 3, 4)
    found = probe(of_model(model, without=["tree", "position_ids"]), format="tree", tolerance=1e-5)
    assert {2, 3, 4} < {*found.moved[1]}


def test_positions_that_run_on_are_not_those_of_the_documents_alone():
    model = packer.attention.use(tiny_model("gpt2").eval())
    assert probe(of_model(model), max_len=32).is_safe

    def running(batch):
        return of_model(model, position_ids=torch.arange(batch["labels"].shape[1])[None])(batch)

    found = probe(running, max_len=32)
    assert not any(found.moved.values())
    assert found.differs == (1, 2, 3, 4, 5, 6, 7)
    assert str(found).startswith("differs by up to ")


class LeaksBackwards(torch.autograd.Function):
    """The identity, whose gradient is a mean over the batch."""

    @staticmethod
    def forward(ctx, hidden):
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0.1 * gradient.mean(dim=-2, keepdim=True)


def test_a_leak_in_the_backward_pass_alone_is_found(model):
    step = of_model(model)
    hook = model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: LeaksBackwards.apply(output))
    found = probe(step)
    hook.remove()
    assert not any(found.moved.values())
    assert not found.differs
    assert found.gradients > 0.01
    assert str(found).startswith("leaks in the backward pass: gradients of packed and single documents differ by ")
    assert probe(step).is_safe


def test_a_leak_that_rounding_hides_from_all_losses_is_found_by_its_gradient():
    """A state that decays by 1,000 with every token changes nothing of the next document in bfloat16."""
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(VOCABULARY, 8).bfloat16(), torch.nn.Linear(8, VOCABULARY).bfloat16()

    def step(batch):
        hidden = embedding(batch["input_ids"][0])
        logits = head(hidden + torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]]) / 1000)
        return torch.nn.functional.cross_entropy(logits[:-1], batch["labels"][0, 1:], reduction="none")

    found = probe(step, tolerance=1e-2)
    assert not found.is_safe
    assert (found.largest, found.differs) == (0, ())
    assert found.reaching == (0, 1, 2, 3, 4, 5, 6)
    assert str(found) == (
        "leaks by less than rounding: losses of others have gradients in the tokens of document 0, 1, 2, 3, 4, 5, 6"
    )
    embedding.requires_grad_(False)
    unseen = probe(step, tolerance=1e-2)
    assert unseen.reaching is None
    assert str(unseen).endswith("; no embedding was seen, so leaks below the tolerance would not show")


@pytest.mark.parametrize(("max_len", "safe"), [(32, True), (64, False)])
def test_documents_are_as_long_as_the_rows_that_one_trains_on(max_len, safe):
    """A kernel that takes documents for one after the 40th token."""

    def step(batch):
        ids, positions = batch["input_ids"], batch["position_ids"]
        return np.where(batch["labels"] >= 0, ids + (positions > 40) * ids.sum(), 0)

    assert probe(step, max_len=max_len, tensors="numpy").is_safe == safe


@pytest.mark.parametrize("family", ["qwen3_5_text", "nemotron_h", "kimi_linear", "qwen3_next", "qwen3_5_moe_text"])
def test_layers_that_carry_state_leak_by_positions_alone_and_refuse_boundaries_without_their_kernels(family):
    step = of_model(tiny_model(family).eval())
    with torch.no_grad():
        found = probe(step, format="hf_rows")
    assert found.largest > 0.1
    assert found.gradients is None
    assert all(document + 1 in found.moved[document] for document in (0, 1, 2, 4, 5))
    with pytest.raises(ValueError, match="can't keep packed sequences apart without"):
        probe(step)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_head_further_ahead_is_safe_by_its_own_labels_and_leaks_by_a_roll(rolled):
    def step(batch):
        targets = np.roll(batch["labels"][:, None], -3, axis=2) if rolled else batch["mtp_labels"]
        return np.maximum(targets[:, -1], 0) * batch["input_ids"]

    found = probe(step, format="hf_rows", mtp=2, tensors="numpy")
    assert found.is_safe != rolled
    if rolled:
        assert found.moved == {0: (1,), 1: (2,), 2: (3,), 3: (0,), 4: (5,), 5: (6,), 6: (4,), 7: ()}


def means_of_others(batch):
    """A step whose losses hold what comes before them in the batch, with shifted labels and NumPy arrays."""
    (inputs, labels) = batch
    before = np.cumsum(inputs["input"].ravel()).reshape(inputs["input"].shape)
    return np.where(labels >= 0, before, 0)


def test_shifted_labels_and_arrays_are_read_row_by_row():
    found = probe(means_of_others, format="torchtitan", tensors="numpy")
    assert found.moved[0] == (1, 2, 3, 4, 5, 6, 7)
    assert found.moved[7] == ()
    alone = probe(lambda batch: np.where(batch[1] >= 0, batch[0]["input"], 0.0), format="torchtitan", tensors="numpy")
    assert alone.is_safe


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (lambda batch: np.zeros(3), {}, "the step returns 3 losses, but none of document 0: return one for"),
        (lambda batch: np.full(192, np.nan), {}, "a loss that is not a number: give tokens without a label loss 0"),
        (lambda batch: np.random.default_rng().random(192), {}, "other losses for the same batch: leave out dropout"),
        (lambda batch: np.zeros(192), {"tolerance": -1}, "tolerance is -1: it must be a number above 0"),
        (lambda batch: np.zeros(192), {"max_len": "x"}, "max_len is 'x': it must be a whole number"),
        (5, {}, "step is 5: it must be a function of a batch, which returns losses"),
        (lambda batch: np.zeros(192), {"max_len": 16}, "max_len is 16 and vocabulary 96: give at least 32 for both"),
    ],
)
def test_a_step_that_cannot_be_probed_is_refused(step, options, message):
    with pytest.raises(packer.PackerError, match=message):
        probe(step, tensors="numpy", **options)
