"""Stand-ins for the kernels of FlashAttention that rings call: blocks of queries and keys, with their log-sum-exp."""

import sys
import types
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import torch


def _blocks(q, k, cu_q, cu_k, causal, scale):
    """Yield slices of queries and keys of each document, and their scores `[heads, queries, keys]`."""
    for (first, last), (first_k, last_k) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        queries, keys = q[first:last].transpose(0, 1), k[first_k:last_k].transpose(0, 1)
        scores = queries @ keys.repeat_interleave(q.shape[1] // k.shape[1], 0).transpose(1, 2) * scale
        if causal:  # the last query sees all keys
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + scores.shape[2] - scores.shape[1])
            scores = scores.masked_fill(hidden, -torch.inf)
        yield slice(first, last), slice(first_k, last_k), scores


def varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
    block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
):  # fmt: skip
    assert (dropout_p, window_size_left, softcap) == (0, -1, 0)
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q))
    for where, where_k, scores in _blocks(q, k, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale):
        values = v[where_k].transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], 0)
        out[where] = (scores.softmax(-1) @ values).transpose(0, 1)
        lse[:, where] = scores.logsumexp(-1)
    return out, lse, None, None


def varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
    deterministic=False, rng_state=None, zero_tensors=False,
):  # fmt: skip
    """Write gradients to dq, dk and dv; `softmax_lse` may be that of more keys than these."""
    shape = (-1, k.shape[1], q.shape[1] // k.shape[1], q.shape[2])
    for where, where_k, scores in _blocks(q, k, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale):
        weights = (scores - softmax_lse[:, where, None]).exp()
        gradient, values = dout[where].transpose(0, 1), v[where_k].transpose(0, 1).repeat_interleave(shape[2], 0)
        delta = (gradient * out[where].transpose(0, 1)).sum(-1, keepdim=True)
        to_scores = weights * (gradient @ values.transpose(1, 2) - delta) * softmax_scale
        keys = k[where_k].transpose(0, 1).repeat_interleave(shape[2], 0)
        dq[where] = (to_scores @ keys).transpose(0, 1)
        of_keys = to_scores.transpose(1, 2) @ q[where].transpose(0, 1)
        dk[where_k] = of_keys.transpose(0, 1).reshape(shape).sum(2)
        dv[where_k] = (weights.transpose(1, 2) @ gradient).transpose(0, 1).reshape(shape).sum(2)


@contextmanager
def ring_kernels():
    """Let rings find the kernels where transformers finds those of `flash_attn_installed`."""
    module = types.ModuleType("flash_attn.flash_attn_interface")
    module._flash_attn_varlen_forward, module._flash_attn_varlen_backward = varlen_forward, varlen_backward
    module._flash_attn_forward = module._flash_attn_backward = None
    with mock.patch.dict(sys.modules, {module.__name__: module}):
        yield
