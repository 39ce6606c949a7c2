"""What the check of the GPU kernel calls right and wrong, by a stand-in for the kernel on the CPU."""

import importlib.util
import itertools
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402  needs torch, as what follows

from packer.attention import varlen  # noqa: E402

LENGTHS = [1, 30, 7, 16, 5]


class Kernel(torch.autograd.Function):
    """Attention within segments and its gradients in float32, as a fused kernel computes them: by the row sums."""

    @staticmethod
    def forward(ctx, query, key, value, cu_seqlens, options):
        heads = [varlen._repeat_heads(query, each).float().transpose(0, 1) for each in (query, key, value)]
        scores = heads[0] @ heads[1].transpose(1, 2) * options["scale"]
        weights = (scores.masked_fill(~sees(cu_seqlens, options), -torch.inf)).softmax(-1)
        output = (weights @ heads[2]).to(query.dtype)
        ctx.save_for_backward(*heads, weights, output)
        ctx.options, ctx.key_heads = options, key.shape[1]
        return output.transpose(0, 1)

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, weights, output = ctx.saved_tensors
        gradient = gradient.float().transpose(0, 1)
        row_sums = (gradient * output.float()).sum(-1, keepdim=True)
        scores = weights * (gradient @ value.transpose(1, 2) - row_sums) * ctx.options["scale"]
        scores = scores + ctx.options.get("noise", 0) * gradient.abs().mean() * torch.eye(scores.shape[-1])
        found = scores @ key, scores.transpose(1, 2) @ query, weights.transpose(1, 2) @ gradient
        query, key, value = (each.transpose(0, 1) for each in found)
        key, value = (each.unflatten(1, (ctx.key_heads, -1)).sum(2) for each in (key, value))
        return query.to(output.dtype), key.to(output.dtype), value.to(output.dtype), None, None


def sees(cu_seqlens, options):
    """Bool `[tokens, tokens]`: True where a token (row) sees another."""
    lengths = [last - first for first, last in pairwise(cu_seqlens.tolist())]
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    places = torch.arange(len(segments))
    before = places[:, None] - places
    mask = (segments[:, None] == segments) & (before.abs() < (options["window"] or len(segments)))
    return mask & (before >= 0) if options["causal"] else mask


@pytest.fixture
def check(monkeypatch):
    """Check one shape on the CPU; `wrong` are options that the stand-in takes for those it is asked for."""
    path = Path(__file__).parent.parent / "benchmarks" / "check_attention_gpu.py"
    spec = importlib.util.spec_from_file_location("check_attention_gpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "LENGTHS", LENGTHS)
    monkeypatch.setattr(varlen, "kernel_obstacle", lambda *_: None)
    cu_seqlens = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)

    def run(dtype, *, causal=True, window=None, scale=None, wrong=None):
        options = {"causal": causal, "window": window, "scale": scale}

        def kernel(query, key, value, cu_seqlens, longest, **_):
            taken = {**options, "scale": scale or query.shape[-1] ** -0.5, **(wrong or {})}
            return Kernel.apply(query, key, value, cu_seqlens, taken)

        monkeypatch.setattr(varlen, "segment_attention", kernel)
        with sdpa_kernel(SDPBackend.MATH):  # whose gradients are 0 where those of attention are
            return module.agrees("", module.heads((4, 2, 80, 80), dtype, LENGTHS), cu_seqlens, options)

    return run


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize(("causal", "scale"), [(True, None), (False, 0.3)])
def test_a_right_kernel_is_called_right(check, dtype, window, causal, scale):
    assert check(dtype, window=window, causal=causal, scale=scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("window", "wrong"),
    [
        (1, {"window": 2}),
        (1, {"window": None}),
        (1, {"noise": 0.1}),
        (4, {"window": 5}),
        (4, {"noise": 0.1}),
        (None, {"scale": 0.2}),
        (None, {"causal": False}),
    ],
)
def test_a_wrong_kernel_is_called_wrong(check, dtype, window, wrong):
    assert not check(dtype, window=window, wrong=wrong)
