"""LongRoPE and dynamic RoPE: packed documents have the frequencies that a fresh model has for each alone."""

import pytest

import packer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packer.attention.transformers_hook import document_frequencies, document_lengths  # noqa: E402  needs torch
from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402

LIMIT = 64
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": LIMIT,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0}
MODELS = {
    "phi3": {"original_max_position_embeddings": LIMIT, "rope_parameters": LONG},
    "phimoe": {"rope_parameters": {**LONG, "short_mscale": 1.2, "long_mscale": 1.5}},
    "llama2": {"max_position_embeddings": LIMIT, "rope_parameters": DYNAMIC},
    "gemma3_text": {
        "max_position_embeddings": LIMIT,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": DYNAMIC,
        },
    },
}
LENGTHS = (40, 100, 64, 20, 70, 100, 65)


@pytest.fixture(scope="module")
def documents():
    random = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (length,), generator=random) for length in LENGTHS]


def batch_of(documents):
    positions = torch.cat([torch.arange(len(each)) for each in documents])
    return {"input_ids": torch.cat(documents)[None], "position_ids": positions[None], "use_cache": False}


@torch.no_grad()
def alone(family, documents):
    """Logits of each document by a model that has seen nothing before."""
    models = (tiny_model(family, **MODELS[family]) for _ in documents)
    return torch.cat([model(input_ids=ids[None]).logits[0] for model, ids in zip(models, documents, strict=True)])


@torch.no_grad()
def largest_distance(model, documents, expected):
    return ((model(**batch_of(documents)).logits[0] - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("family", MODELS)
def test_documents_of_any_length_are_as_alone_and_without_use_they_are_not(family, documents):
    expected = alone(family, documents)
    assert largest_distance(tiny_model(family, **MODELS[family]), documents, expected) > 0.1
    model = packer.attention.use(tiny_model(family, **MODELS[family]))
    for _ in range(2):  # dynamic RoPE remembers the longest batch
        assert largest_distance(model, documents, expected) < 1e-5
    short = [documents[0], documents[3]]
    assert largest_distance(model, short, alone(family, short)) < 1e-5


def test_rows_are_told_apart_as_documents_are(documents):
    model = packer.attention.use(tiny_model("phi3", **MODELS["phi3"]))
    rows = [[documents[0], documents[4][:60]], [documents[1]]]
    batch = {"input_ids": torch.stack([torch.cat(row) for row in rows]), "use_cache": False}
    batch["position_ids"] = torch.stack([torch.cat([torch.arange(len(each)) for each in row]) for row in rows])
    found = model(**batch).logits.flatten(0, 1)
    expected = alone("phi3", [each for row in rows for each in row])
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_two_models_of_one_config_are_both_made_right(documents):
    config = tiny_model("phi3", **MODELS["phi3"]).config
    models = [transformers.Phi3ForCausalLM(config) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    one, other = (packer.attention.use(model)(**batch_of(documents)).logits for model in models)
    assert torch.equal(one, other)


def test_another_attention_is_left_as_transformers_has_it(documents):
    batch, plain = batch_of(documents), tiny_model("phi3", **MODELS["phi3"])
    model = packer.attention.use(tiny_model("phi3", **MODELS["phi3"]))
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(**batch).logits, plain(**batch).logits)
    with document_frequencies(plain):
        changed = plain(**batch).logits
    assert not torch.allclose(changed, model(**batch).logits)
    assert torch.equal(model(**batch).logits, plain(**batch).logits)


def test_positions_of_several_dimensions_are_refused(documents):
    model = packer.attention.use(tiny_model("phi3", **MODELS["phi3"]))
    with pytest.raises(packer.PackerError, match=r"shape \[3, 1, 4\] do not show where documents begin"):
        model.model.rotary_emb(torch.zeros(1, 4, 32), position_ids=torch.zeros(3, 1, 4, dtype=torch.long))


def test_lengths_are_told_by_positions_that_restart():
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 0, 1, 2]])
    assert document_lengths(positions).tolist() == [[3, 3, 3, 2, 2], [1, 1, 3, 3, 3]]
