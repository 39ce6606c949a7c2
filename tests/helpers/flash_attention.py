"""flash-attn's own code on the CPU: its Triton kernels, or its Python over stand-ins for its compiled modules.

Triton's interpreter runs the kernels if TRITON_INTERPRET and FLASH_ATTENTION_TRITON_AMD_ENABLE are set. They have no
windows and no capped logits. A stand-in checks what the `flash_api.cpp` of its version checks, and computes plainly.
"""

import ast
import functools
import importlib.util
import os
import sys
import types
from importlib.metadata import distribution
from unittest import mock

import torch

from tests.helpers.naive_attention import attend, backward_of

IN_INTERPRETER = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE") == "TRUE"


@functools.cache
def own_modules(version: int) -> dict[str, types.ModuleType]:
    """Modules by the names under which transformers imports them, that of the attention first."""
    if version == 2:
        return _second()
    path = distribution("flash-attn").locate_file("hopper/flash_attn_interface.py" if version == 3 else "flash_attn")
    if version == 3:
        return {"flash_attn_interface": _third(path)}
    cute = _fourth(path / "cute" / "interface.py")
    return {"flash_attn.cute": cute, "flash_attn": types.ModuleType("flash_attn")}


def _second() -> dict[str, types.ModuleType]:
    """The package itself, whose operators are only for CUDA."""
    kernels = {"fwd": _fwd, "bwd": _bwd, "varlen_fwd": _varlen_fwd, "varlen_bwd": _varlen_bwd}
    sys.modules["flash_attn_2_cuda"] = _module("flash_attn_2_cuda", **kernels)
    custom_op = torch.library.custom_op
    for_cpu = functools.wraps(custom_op)(lambda *each, device_types, **options: custom_op(*each, **options))
    with mock.patch.object(torch.library, "custom_op", for_cpu):
        import flash_attn
        import flash_attn.bert_padding
    return {"flash_attn": flash_attn, "flash_attn.bert_padding": flash_attn.bert_padding}


def _third(path) -> types.ModuleType:
    """The module of FlashAttention-3, over a stand-in for its operators."""
    with mock.patch.dict(sys.modules, {name: _module(name, _C=None) for name in ("flash_attn_3", "flash_attn_3._C")}):
        spec = importlib.util.spec_from_file_location("flash_attn_interface", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    module.flash_attn_3_cuda = _module("flash_attn_3", fwd=_fwd_3, bwd=_bwd_3)
    return module


def _fourth(path) -> types.ModuleType:
    """The function of FlashAttention-4 alone, because its module compiles kernels when it is imported."""
    functions = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)]
    (function,) = (each for each in functions if each.name == "flash_attn_varlen_func")
    module = _module("flash_attn.cute", torch=torch, FlashAttnVarlenFunc=_module("FlashAttnVarlenFunc", apply=_apply_4))
    exec("from typing import Optional, Tuple\n" + ast.unparse(function), vars(module))
    module.flash_attn_func = None
    return module


def _module(name: str, **contents) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


def _check(q, k, v, cu_seqlens_q, cu_seqlens_k, *integers, value_size=None) -> None:
    """What `flash_api.cpp` checks; float32, which it does not take, shows that results are exact."""
    total, heads, size = q.shape
    assert q.dtype in (torch.float16, torch.bfloat16, torch.float32)
    assert {each.dtype for each in (k, v)} == {q.dtype}
    assert size % 8 == 0
    assert size <= 256
    assert heads % k.shape[1] == 0
    assert k.shape == (total, k.shape[1], size)
    assert v.shape == (total, k.shape[1], value_size or size)
    assert all(each.stride(-1) == 1 for each in (q, k, v))
    for cu_seqlens in (cu_seqlens_q, cu_seqlens_k):
        assert cu_seqlens.dtype == torch.int32
        assert cu_seqlens.device == q.device
        assert cu_seqlens.is_contiguous()
        assert cu_seqlens.ndim == 1
        assert len(cu_seqlens) > 1
        assert cu_seqlens[-1] == total
    assert all(type(each) is int for each in integers)


def _compute(q, k, v, cu_seqlens, scale, causal, left, right, softcap, sinks=None):
    after = 0 if causal else right
    return attend(q, k, v, cu_seqlens, before=left, after=after, scale=scale, softcap=softcap, sinks=sinks)


def _write_gradients(dout, tensors, gradients, *options) -> None:
    found = backward_of(lambda *each: _compute(*each, *options), tensors, dout)
    for gradient, each in zip(gradients, found, strict=True):
        gradient.copy_(each.reshape(gradient.shape))


def _varlen_fwd(q, k, v, out, cu_q, cu_k, used, leftpad, blocks, slopes, longest_q, longest_k, dropout, scale, *others):
    _zero_tensors, causal, left, right, softcap, _return_softmax, _generator = others
    assert (out, used, leftpad, blocks, slopes, dropout) == (None, None, None, None, None, 0.0)
    _check(q, k, v, cu_q, cu_k, longest_q, longest_k, left, right)
    found = _compute(q, k, v, cu_q, scale, causal, left, right, softcap)
    return found, torch.zeros(q.shape[1], len(q)), torch.empty(0), torch.empty(2, dtype=torch.int64)


def _varlen_bwd(dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, slopes, longest_q, longest_k, dropout, scale, *others):
    _zero_tensors, causal, left, right, softcap, _deterministic, _generator, _state = others
    assert (slopes, dropout) == (None, 0.0)
    assert lse.dtype == torch.float32
    _check(q, k, v, cu_q, cu_k, longest_q, longest_k, left, right)
    _check(dout, k, v, cu_q, cu_k)
    _write_gradients(dout, (q, k, v), (dq, dk, dv), cu_q, scale, causal, left, right, softcap)
    return dq, dk, dv, torch.zeros(q.shape[1], len(q))


def _fwd(q, k, v, out, slopes, dropout, scale, *others):
    bounds = torch.arange(len(q) + 1, dtype=torch.int32) * q.shape[1]
    flat = (each.flatten(0, 1) for each in (q, k, v))
    longest = q.shape[1], q.shape[1]
    found, *rest = _varlen_fwd(
        *flat, out, bounds, bounds, None, None, None, slopes, *longest, dropout, scale, 0, *others
    )
    return found.view(q.shape), *rest


def _bwd(dout, q, k, v, out, lse, dq, dk, dv, slopes, dropout, scale, *others):
    bounds = torch.arange(len(q) + 1, dtype=torch.int32) * q.shape[1]
    flat = (each.flatten(0, 1) for each in (dout, q, k, v, out))
    longest = q.shape[1], q.shape[1]
    return _varlen_bwd(*flat, lse, dq, dk, dv, bounds, bounds, slopes, *longest, dropout, scale, 0, *others)


def _fwd_3(q, k, v, *others):
    new, (cu_q, cu_k, *used), (longest_q, longest_k) = others[:4], others[4:9], others[9:11]
    pages, (scale, causal, left, right, chunk, softcap, *_) = others[11:20], others[20:]
    assert all(each is None for each in (*new, *used, *pages))
    assert chunk == 0
    _check(q, k, v, cu_q, cu_k, longest_q, longest_k, left, right, value_size=v.shape[-1])
    return _compute(q, k, v, cu_q, scale, causal, left, right, softcap), torch.zeros(q.shape[1], len(q))


def _bwd_3(dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, used_q, used_k, longest_q, longest_k, scale, *others):
    causal, left, right, softcap, _deterministic, _margin = others
    assert (used_q, used_k) == (None, None)
    _check(q, k, v, cu_q, cu_k, longest_q, longest_k, left, right, value_size=v.shape[-1])
    _write_gradients(dout, (q, k, v), (dq, dk, dv), cu_q, scale, causal, left, right, softcap)
    return dq, dk, dv, torch.zeros(q.shape[1], len(q))


def _apply_4(q, k, v, cu_q, cu_k, used_q, used_k, pages, scale, causal, window_size, sink, softcap, _pack):
    assert (used_q, used_k, pages) == (None, None, None)
    _check(q, k, v, cu_q, cu_k, value_size=v.shape[-1])
    left, right = (-1 if each is None else each for each in window_size)
    return _compute(q, k, v, cu_q, scale, causal, left, right, softcap, sink)
