"""What `tests/test_isolation.py` shares with other tests."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def answers(verdicts):
    return {verdict.implementation: verdict.answer for verdict in verdicts}


def longrope(size):
    """A little LongRoPE: documents above 12 tokens change those below."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12}
    rope |= {"short_factor": size * [1.0], "long_factor": [*(size - 1) * [1.0], 1.2]}
    return {"max_position_embeddings": 14, "original_max_position_embeddings": 12, "rope_parameters": rope}


def save_config(folder, family, **changes):
    transformers.AutoConfig.for_model(family, **changes).save_pretrained(folder)
    return folder


NARROW = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
