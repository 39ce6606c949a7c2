"""Attention written out, and stand-ins for the kernels that need a GPU; they keep what they were called with."""

import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest import mock

import torch


def attend(query, key, value, cu_seqlens, *, before=-1, after=0, scale=None, softcap=0.0, sinks=None):
    """Attention `[tokens, heads, size]` of every segment by itself: token i sees those from i - before to i + after.

    -1 is no limit. Scores, softmax, weighted sum: no kernel is called. `sinks`, one score of each head, take part in
    the softmax and have no value.
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
        scores = scores.masked_fill(unseen, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, last - first, 1)], dim=-1)
        outputs.append((scores.softmax(-1)[..., : last - first] @ v).transpose(0, 1))
    return torch.cat(outputs)


def backward_of(function, tensors, gradient):
    """Gradients of tensors, in a thread of its own, because autograd is off within an operator."""
    inputs = [each.detach().requires_grad_() for each in tensors]
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: torch.autograd.grad(function(*inputs), inputs, gradient)).result()


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


def varlen_attn_installed(calls):
    """That of the torch that is installed, over stand-ins for its operators."""
    from torch.nn.attention.varlen import varlen_attn

    operators_of_varlen_attn()

    def noted(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options):
        calls.append((query, cu_seq_q, max_q))
        return varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)

    return functools.wraps(varlen_attn)(noted)


@functools.cache
def operators_of_varlen_attn() -> torch.library.Library:
    """Stand-ins for torch's operators of FlashAttention, which have none for the CPU; they check as those for CUDA."""

    def compute(
        heads, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, scale=None, window_size_left=-1, window_size_right=-1
    ):
        query, key, value = heads
        assert dropout_p == 0
        assert query.shape[-1] == key.shape[-1]
        assert query.shape[-1] % 8 == 0
        assert key.shape == value.shape
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert max_q == max_k >= cu_q.diff().max()
        window = {"before": window_size_left, "after": 0 if is_causal else window_size_right}
        return lambda *each: attend(*each, cu_q, scale=scale, **window)

    def forward(
        query, key, value, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
        seqused_k=None, block_table=None, num_splits=None, **options
    ):  # fmt: skip
        found = compute((query, key, value), cu_q, cu_k, max_q, max_k, dropout_p, is_causal, **options)
        state = torch.zeros(2, dtype=torch.uint64)
        return found(query, key, value), torch.zeros(query.shape[1], len(query)), state, state, torch.zeros(0)

    def backward(
        gradient, query, key, value, out, lse, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, state, unused, **options
    ):
        found = compute((query, key, value), cu_q, cu_k, max_q, max_k, dropout_p, is_causal, **options)
        return backward_of(found, (query, key, value), gradient)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    return library


@contextmanager
def flash_attn_installed(version: int = 2) -> Iterator[list[tuple[torch.Tensor, torch.Tensor, int]]]:
    """Let transformers find a flash_attn that computes on the CPU; yield (cu_seqlens_q, cu_seqlens_k, max) per call.

    If flash-attn is installed, it is its own code; see `tests/helpers/flash_attention.py`.
    """
    from transformers import modeling_flash_attention_utils
    from transformers.models.falcon import modeling_falcon
    from transformers.models.gpt_neo import modeling_gpt_neo
    from transformers.models.gptj import modeling_gptj
    from transformers.utils import import_utils

    calls = []
    if importlib.util.find_spec("flash_attn"):
        from tests.helpers.flash_attention import own_modules

        modules = own_modules(version)
    else:
        modules = _written_out()
    package = next(iter(modules.values()))
    by_length = package.flash_attn_varlen_func

    @functools.wraps(by_length)
    def noted(q, k, v, *lengths, **options):
        options |= zip(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), lengths, strict=False)
        calls.append((options["cu_seqlens_q"], options["cu_seqlens_k"], int(options.get("max_seqlen_q", 0))))
        # Triton kernels want keys and values laid out alike
        return by_length(q.contiguous(), k.contiguous(), v.contiguous(), **options)

    found, name = {"return_value": True}, f"is_flash_attn_{version}_available"
    forward = modeling_flash_attention_utils._flash_attention_forward
    with (
        ExitStack() as stack,
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(package, "flash_attn_varlen_func", noted),
        mock.patch.object(import_utils, name, **found),
        mock.patch.object(modeling_flash_attention_utils, name, **found),
        mock.patch.object(modeling_flash_attention_utils, "_loaded_implementation", None),
        mock.patch.dict(
            modeling_flash_attention_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[version],
            {"general_availability_check": lambda: True, "supported_devices": ((lambda: True, "cpu"),)},
        ),
    ):
        for module in (modeling_falcon, modeling_gpt_neo, modeling_gptj):  # they import it if flash_attn is there
            stack.enter_context(mock.patch.object(module, "_flash_attention_forward", forward, create=True))
        yield calls


def _written_out() -> dict[str, types.ModuleType]:
    """Modules by name that stand for flash-attn where it is not installed."""

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
    ):
        assert dropout_p == 0
        after = 0 if causal else window_size[1]
        return attend(q, k, v, cu_seqlens_q, before=window_size[0], after=after, scale=softmax_scale, softcap=softcap)

    def flash_attn_func(q, k, v, **options):
        rows, tokens = q.shape[:2]
        bounds = torch.arange(rows + 1) * tokens
        flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
        return flash_attn_varlen_func(*flat, bounds, bounds, tokens, tokens, **options).unflatten(0, (rows, tokens))

    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    package.flash_attn_with_kvcache = padding.pad_input = padding.unpad_input = None
    return {"flash_attn": package, "flash_attn.bert_padding": padding}
