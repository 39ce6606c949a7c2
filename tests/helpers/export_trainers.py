"""What `tests/test_export_trainers.py` shares with other tests."""

from dataclasses import fields

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytest.importorskip("transformers")
from torch.nn.functional import cross_entropy  # noqa: E402  needs torch

from tests.helpers.models import VOCABULARY  # noqa: E402


def loss_of(pairs):
    """Mean over all trained tokens of (logits [T, vocabulary], labels [T] that are shifted already)."""
    pairs = list(pairs)
    total = sum(cross_entropy(logits, labels, ignore_index=-100, reduction="sum") for logits, labels in pairs)
    return total / sum((labels != -100).sum() for _, labels in pairs)


def mean_loss(pairs) -> float:
    return float(loss_of(pairs))


def following(labels):
    return torch.cat([labels[1:], torch.tensor([-100])])


def alone_pairs(run, pieces):
    for tokens, labels in pieces.values():
        yield run(torch.tensor(tokens)), following(torch.tensor(labels))


def tiny_titan(attention):
    """A model of torchtitan of the size of ours."""
    titan = pytest.importorskip("torchtitan.models.llama3")
    torch.manual_seed(0)
    longest = {field.name for field in fields(titan.ComplexRoPE.Config)} & {"max_seq_len", "max_context_length"}
    config = titan.Llama3Model.Config(
        dim=32,
        vocab_size=VOCABULARY,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=32, param_init=titan._EMBEDDING_INIT
        ),
        norm=titan.RMSNorm.Config(normalized_shape=32, param_init=titan._NORM_INIT),
        lm_head=titan.Linear.Config(
            in_features=32, out_features=VOCABULARY, param_init=titan._output_linear_init(32)
        ),
        layers=titan._build_llama3_layers(
            fuse_qkv=False, n_layers=2, dim=32, n_heads=4, hidden_dim=64, attn_backend=attention,
            rope=titan.ComplexRoPE.Config(dim=8, theta=10000, scaling="none", **dict.fromkeys(longest, 64)),
        ),
    )  # fmt: skip
    model = config.build()
    model.init_states()
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.2)  # attention has to matter
    return model
