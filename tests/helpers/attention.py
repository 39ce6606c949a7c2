"""What `tests/test_attention.py` shares with other tests."""

import itertools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402

LENGTHS = [5, 1, 12, 5, 9]


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def batch_of(lengths=LENGTHS, **changes):
    ids = torch.randint(3, VOCABULARY, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    batch = {
        "input_ids": ids,
        "position_ids": positions_of(lengths),
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "use_cache": False,
        **changes,
    }
    return {name: value for name, value in batch.items() if value is not None}


def alone(family, **options):
    batch = batch_of()
    plain = tiny_model(family, attention="sdpa", **options)
    return torch.cat([plain(input_ids=ids).logits[0] for ids in batch["input_ids"].split(LENGTHS, 1)])
