"""Attention over segments under torch.compile: from the first pass on, in every way that a model is compiled."""

from functools import partial
from math import inf

import pytest

import packer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._dynamo.utils import counters  # noqa: E402  needs torch, as all that follows

from packer.attention import IMPLEMENTATION, transformers_hook  # noqa: E402
from tests.helpers.attention import alone, batch_of  # noqa: E402
from tests.helpers.documents import assert_same_gradients, make_example, make_source  # noqa: E402
from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402
from tests.helpers.models import recorded_gradients, tiny_llama, train_alone  # noqa: E402
from tests.helpers.naive_trees import random_forest  # noqa: E402
from tests.helpers.trees_attention import distance, train_trees  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_gpu"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_was_compiled_or_called_before(monkeypatch):
    monkeypatch.setattr(transformers_hook, "_callers", set())
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_layers(model):
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return model


WAYS = {
    "torch.compile": partial(torch.compile, backend="eager"),
    "with autograd": partial(torch.compile, backend="aot_eager"),
    "in place": compiled_in_place,
    "forward": compiled_forward,
    "layers": compiled_layers,
}


ONE_LAYER = {"num_hidden_layers": 1}


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("way", "family", "changes"),
    [
        *((way, "llama3", ONE_LAYER) for way in ("torch.compile", "with autograd", "in place", "forward")),
        ("layers", "gemma3_text", {}),  # of two kinds
    ],
)
def test_the_first_pass_of_a_compiled_model_is_as_alone(way, family, changes):
    model = WAYS[way](packer.attention.use(tiny_model(family, **changes)))
    for _ in range(2):
        torch.testing.assert_close(model(**batch_of()).logits[0], alone(family, **changes), rtol=0, atol=1e-5)


@pytest.mark.nightly
def test_a_second_model_runs_on_what_was_compiled_for_the_first():
    """Both by `torch.compile(model)`, in their first passes."""
    for graphs in (True, False):
        counters.clear()
        model = torch.compile(packer.attention.use(tiny_model("qwen3", **ONE_LAYER)), backend="eager")
        torch.testing.assert_close(model(**batch_of()).logits[0], alone("qwen3", **ONE_LAYER), rtol=0, atol=1e-5)
        assert (counters["stats"]["unique_graphs"] > 0) == graphs


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("way", ["torch.compile", "in place", "forward"])
def test_a_compiled_model_that_never_calls_it_is_refused_at_its_first_pass(way):
    packer.attention.use(tiny_model("llama3"))(**batch_of())  # what other models call is no excuse
    model = WAYS[way](packer.attention.use(tiny_model("mamba", **ONE_LAYER), rows_are_documents=True))
    with pytest.raises(packer.PackerError, match=f"MambaForCausalLM never called {IMPLEMENTATION}"):
        model(input_ids=torch.tensor([[5, 6, 7]]))


def in_one_graph(query, key, value, cu_seqlens, longest, *, causal, window, scale):
    """`segment_attention` as on a GPU, where nothing asks for the values of cu_seqlens."""
    places = torch.arange(len(query))
    segment = torch.searchsorted(cu_seqlens[1:], places.int(), right=True)
    sees = (segment[:, None] == segment) & (places[:, None] >= places)
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
    heads = [each.transpose(0, 1) for each in (query, key, value)]
    return torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=sees, scale=scale).transpose(0, 1)


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_is_one_graph_that_is_compiled_once_and_refuses_wrong_boundaries(monkeypatch, checkpointing):
    monkeypatch.setattr(transformers_hook, "segment_attention", in_one_graph)
    model = packer.attention.use(tiny_model("qwen3", **ONE_LAYER))
    if checkpointing:
        model.gradient_checkpointing_enable()
    model = torch.compile(model, backend="aot_eager", fullgraph=True)
    for lengths in ([5, 1, 12, 5, 9], [12, 9, 5, 1, 5], [5, 5, 9, 1, 12]):
        model(**batch_of(lengths)).logits.sum().backward()
    torch.testing.assert_close(model(**batch_of()).logits[0], alone("qwen3", **ONE_LAYER), rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    with pytest.raises(RuntimeError, match="max_length_q is below the longest segment"):
        model(**batch_of(max_length_q=11))
    for ends in ([0, 5, 18], [0, 9, 5, 32]):
        with pytest.raises(RuntimeError, match="cu_seq_lens_q does not cover the tokens"):
            model(**batch_of(cu_seq_lens_q=torch.tensor(ends, dtype=torch.int32)))


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "checkpointing"), [("qwen3", False), ("qwen3", True), ("gemma3_text", False)])
def test_a_pass_over_trees_is_compiled_for_any_number_of_tokens(family, checkpointing):
    forests = [random_forest(seed, vocabulary=VOCABULARY) for seed in range(3)]
    plain = packer.attention.use(tiny_model(family))
    expected = [train_trees(plain, forest) for forest in forests]
    model = packer.attention.use(tiny_model(family))
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.compile(backend="aot_eager", fullgraph=True)
    graphs = []
    for forest, each in zip(forests, expected, strict=True):
        assert distance(train_trees(model, forest), each) < 1e-5
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] == graphs[2]  # compiled for the first number of tokens, then for any
    with pytest.raises(RuntimeError, match="tree is not that of the batch"):
        model(**forests[0].batch(tree=forests[0].tree * 0))


@pytest.mark.nightly
def test_a_tree_that_does_not_reach_compiled_layers_is_refused():
    model = compiled_layers(packer.attention.use(tiny_model("stablelm")))
    model(**batch_of())
    with pytest.raises(packer.PackerError, match="did not reach StableLmAttention"):
        model(**random_forest(0, vocabulary=VOCABULARY).batch())
    model(**batch_of())


@pytest.mark.nightly
@pytest.mark.slow
def test_the_trainer_with_torch_compile_trains_as_on_documents_alone(tmp_path):
    pytest.importorskip("accelerate")
    example = make_example(tmp_path / "source", make_source("first token trained"))
    expected = train_alone(tiny_llama(), example.pieces)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        remove_unused_columns=False,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=-(-example.rows // 4),
        num_train_epochs=1,
        max_grad_norm=inf,
        torch_compile=True,
        torch_compile_backend="eager",
        report_to=[],
    )
    trainer = transformers.Trainer(
        model=packer.attention.use(tiny_llama()),
        args=arguments,
        train_dataset=packer.load(example.packed),
        data_collator=packer.collate,
    )
    with recorded_gradients(trainer.model) as recorded:
        assert trainer.train().training_loss == pytest.approx(expected.loss, abs=1e-5)
    assert_same_gradients(recorded[0], expected.gradients, 1e-5)
