"""What the check of the GPU kernel calls right and wrong, by a stand-in for the kernel on the CPU."""

import importlib.util
import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402  needs torch, as what follows

from packer.attention import document_attention  # noqa: E402
from tests.helpers.naive_attention import attend  # noqa: E402

LENGTHS = [1, 30, 7, 16, 5]


@pytest.fixture
def check(monkeypatch):
    """Check one shape on the CPU; `wrong` are options that the stand-in takes for those it is asked for."""
    path = Path(__file__).parent.parent / "benchmarks" / "check_attention_gpu.py"
    spec = importlib.util.spec_from_file_location("check_attention_gpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "LENGTHS", LENGTHS)
    monkeypatch.setattr(document_attention, "kernel_obstacle", lambda *_: None)
    cu_seqlens = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)

    def run(dtype, *, causal=True, window=None, scale=None, wrong=None):
        options = {"causal": causal, "window": window, "scale": scale}

        def kernel(query, key, value, cu_seqlens, longest, **_):
            taken = {**options, **(wrong or {})}
            reach = -1 if taken["window"] is None else taken["window"] - 1
            tensors = [each.float() for each in (query, key, value)]
            if query.requires_grad:
                tensors[0].register_hook(lambda gradient: gradient + taken.get("noise", 0))
            after = 0 if taken["causal"] else reach
            found = attend(*tensors, cu_seqlens, before=reach, after=after, scale=taken["scale"])
            return found.to(query.dtype)

        monkeypatch.setattr(document_attention, "segment_attention", kernel)
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
