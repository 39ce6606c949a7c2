"""A small model of megatron-core for packed batches, and stand-ins for Transformer Engine, which needs a GPU."""

from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as distributed
from torch.distributed.nn.functional import all_gather

from tests.helpers.models import VOCABULARY
from tests.helpers.naive_attention import attend


def indices_of(cu_seqlens, cp_size, cp_rank):
    """Places of the tokens of a rank: of each document's 2 * cp_size equal parts, part `cp_rank` from either end.

    Example: cu_seqlens [0, 4, 12], 2 ranks -> [0, 3, 4, 5, 10, 11] and [1, 2, 6, 7, 8, 9].
    """
    parts = []
    for start, end in pairwise(cu_seqlens.tolist()):
        assert (end - start) % (2 * cp_size) == 0
        places = torch.arange(start, end).chunk(2 * cp_size)
        parts += [places[cp_rank], places[2 * cp_size - 1 - cp_rank]] if end > start else []
    return torch.cat(parts)


def transformer_engine_torch():
    """The function of Transformer Engine that divides packed documents across ranks."""
    return SimpleNamespace(
        thd_get_partitioned_indices=lambda cu_seqlens, total, cp_size, cp_rank: indices_of(cu_seqlens, cp_size, cp_rank)
    )


class Attention(torch.nn.Module):
    """Attention within documents, for tokens of all context-parallel ranks."""

    def __init__(self, **_):
        super().__init__()

    def forward(self, query, key, value, _mask, *, packed_seq_params, **_):
        from megatron.core import parallel_state

        assert packed_seq_params.qkv_format == "thd"
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = packed_seq_params.cu_seqlens_q if bounds is None else bounds
        group = parallel_state.get_context_parallel_group()
        if group.size() == 1:
            return attend(query, key, value, bounds).flatten(1)
        places = torch.cat([indices_of(bounds, group.size(), rank) for rank in range(group.size())])
        whole = [torch.cat(all_gather(each.contiguous(), group))[places.argsort()] for each in (query, key, value)]
        return attend(*whole, bounds)[indices_of(bounds, group.size(), group.rank())].flatten(1)


@contextmanager
def tiny_gpt(*, context_parallel_size=1):
    """A GPTModel in processes that have joined a job of torch.distributed."""
    from megatron.core import parallel_state
    from megatron.core.models import gpt
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
        parallel_state.initialize_model_parallel(context_parallel_size=context_parallel_size)
        layers = get_gpt_layer_local_spec()
        layers.submodules.self_attention.submodules.core_attention = Attention
        config = TransformerConfig(
            num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=64,
            hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.2, use_cpu_initialization=True,
            context_parallel_size=context_parallel_size,
        )  # fmt: skip
        torch.manual_seed(0)
        yield gpt.GPTModel(config, layers, VOCABULARY, max_sequence_length=64, position_embedding_type="rope")
        parallel_state.destroy_model_parallel()


def packed_seq_params(bounds, longest):
    """Boundaries of the documents of a batch, for GPTModel."""
    from megatron.core.packed_seq_params import PackedSeqParams

    lengths = {"max_seqlen_q": int(longest), "max_seqlen_kv": int(longest)}
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, **lengths)


def run_alone(model, tokens):
    """Logits of a document, `[T, vocabulary]`."""
    bounds = torch.tensor([0, len(tokens)], dtype=torch.int32)
    params = packed_seq_params(bounds, len(tokens))
    return model(tokens[None], torch.arange(len(tokens))[None], None, packed_seq_params=params)[0]


def reduced(loss, model):
    """(loss, gradients by name), summed over all processes."""
    from tests.helpers.models import gradients

    loss.backward()
    found = gradients(model)
    values = [loss.detach(), *found.values()]
    for each in values:
        distributed.all_reduce(each)
    return values[0].item(), dict(zip(found, values[1:], strict=True))
