"""Attention written out, and stand-ins for the kernels that need a GPU; they keep what they were called with."""

import importlib.machinery
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest import mock

import torch


def attend(query, key, value, cu_seqlens, *, before=-1, after=0, scale=None, softcap=0.0):
    """Attention `[tokens, heads, size]` of every segment by itself: token i sees those from i - before to i + after.

    -1 is no limit. Scores, softmax, weighted sum: no kernel is called.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    outputs = []
    bounds = cu_seqlens.tolist()
    for first, last in pairwise(bounds):
        q, k, v = (tensor[first:last].transpose(0, 1) for tensor in (query, key, value))
        k, v = (torch.stack([tensor[head // groups] for head in range(len(q))]) for tensor in (k, v))
        scores = (q @ k.transpose(1, 2)) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        places = torch.arange(last - first)
        distance = places[:, None] - places[None, :]
        unseen = torch.zeros_like(distance, dtype=torch.bool)
        if before >= 0:
            unseen |= distance > before
        if after >= 0:
            unseen |= -distance > after
        outputs.append((scores.masked_fill(unseen, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


def varlen_attn_2_10(calls):
    """The kernel of torch 2.10, without window and scale."""

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        assert query.shape[1] == key.shape[1]
        calls.append((query, cu_seq_q, max_q))
        return attend(query, key, value, cu_seq_q, after=0 if is_causal else -1)

    return varlen_attn


def varlen_attn_2_11(calls):
    """That of 2.11, which says causal by its window."""

    def varlen_attn(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
    ):
        assert query.shape[1] == key.shape[1]
        calls.append((query, cu_seq_q, max_q))
        return attend(query, key, value, cu_seq_q, before=window_size[0], after=window_size[1], scale=scale)

    return varlen_attn


def varlen_attn_2_12(calls):
    """That of 2.12 and later, which wants to be told that heads are grouped."""

    def varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        return_aux=None,
        scale=None,
        window_size=(-1, -1),
        enable_gqa=False,
    ):
        assert enable_gqa or query.shape[1] == key.shape[1]
        calls.append((query, cu_seq_q, max_q))
        return attend(query, key, value, cu_seq_q, before=window_size[0], after=window_size[1], scale=scale)

    return varlen_attn


@contextmanager
def flash_attn_installed() -> Iterator[list[tuple[torch.Tensor, torch.Tensor, int]]]:
    """Let transformers find a flash_attn that computes on the CPU; yield (cu_seqlens_q, cu_seqlens_k, max) per call."""
    from transformers import PreTrainedModel, modeling_flash_attention_utils
    from transformers.models.falcon import modeling_falcon
    from transformers.models.gpt_neo import modeling_gpt_neo
    from transformers.models.gptj import modeling_gptj
    from transformers.utils import import_utils

    calls = []

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        assert dropout_p == 0
        calls.append((cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q)))
        after = 0 if causal else window_size[1]
        return attend(q, k, v, cu_seqlens_q, before=window_size[0], after=after, scale=softmax_scale, softcap=softcap)

    def flash_attn_func(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
    ):
        rows, tokens = q.shape[:2]
        bounds = torch.arange(rows + 1) * tokens
        out = attend(
            *(tensor.flatten(0, 1) for tensor in (q, k, v)),
            bounds,
            before=window_size[0],
            after=0 if causal else window_size[1],
            scale=softmax_scale,
            softcap=softcap,
        )
        return out.unflatten(0, (rows, tokens))

    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    package.flash_attn_with_kvcache = padding.pad_input = padding.unpad_input = None
    found = {"return_value": True}
    forward = modeling_flash_attention_utils._flash_attention_forward
    with (
        ExitStack() as stack,
        mock.patch.dict(sys.modules, {"flash_attn": package, "flash_attn.bert_padding": padding}),
        mock.patch.object(import_utils, "is_flash_attn_2_available", **found),
        mock.patch.object(modeling_flash_attention_utils, "is_flash_attn_2_available", **found),
        mock.patch.object(modeling_flash_attention_utils, "_loaded_implementation", None),
        mock.patch.dict(
            modeling_flash_attention_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2],
            {"general_availability_check": lambda: True},
        ),
        mock.patch.object(PreTrainedModel, "_flash_attn_can_dispatch", **found),
    ):
        for module in (modeling_falcon, modeling_gpt_neo, modeling_gptj):  # they import it if flash_attn is there
            stack.enter_context(mock.patch.object(module, "_flash_attention_forward", forward, create=True))
        yield calls
