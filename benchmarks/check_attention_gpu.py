"""Check torch's varlen kernel on a CUDA GPU, as packer.attention calls it: right, and how fast.

    python benchmarks/check_attention_gpu.py

Needs a GPU of compute capability 8.0, torch 2.10 or later, and no other package. In float16 and bfloat16, outputs and
gradients of the kernel are compared with those of float32 SDPA, segment by segment: their distance must not exceed
twice that of SDPA in the same half precision and half a rounding step, which is what rounding costs. Then one segment
is changed, and no bit of the others may. Last, times of a row as one document, as many, and by SDPA. Exits with 1 when
anything is wrong.
"""

import itertools
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from packer.attention import document_attention

LENGTHS = [1, 700, 33, 128, 5, 64, 1, 1000, 257, 16]
SHAPES = {  # heads, key heads, head size, value size
    "multi-head 64": (8, 8, 64, 64),
    "grouped 128": (32, 8, 128, 128),
    "one key head 80": (8, 1, 80, 80),
    "odd size 100": (6, 3, 100, 100),
    "latent 192/128": (16, 16, 192, 128),
    "no backward 208": (4, 2, 208, 208),  # on GPUs of compute capability 8.6, 8.9 and 12.0
    "largest 256": (4, 2, 256, 256),
}
WINDOWS = [None, 1, 64, 5000]
SLACK = 2.0
"""How much farther than half-precision SDPA and half a rounding step the kernel may be from float32."""

DEVICE = "cuda"


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA GPU here: nothing was checked")
        return 1
    names = sorted(document_attention.PARAMETERS)
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name()}; varlen_attn has {', '.join(names) or 'no kernel'}"
    )
    cu_seqlens = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32, device=DEVICE)
    failures = 0
    print(
        f"\n{'shape':16} {'dtype':9} {'causal':6} {'window':>6}  {'output':>9} {'sdpa':>9}  {'gradient':>9} {'sdpa':>9}"
    )
    cases = itertools.product(SHAPES.items(), [torch.bfloat16, torch.float16], [True, False], WINDOWS, [None, 0.3])
    for (name, shape), dtype, causal, window, scale in cases:
        options = {"causal": causal, "window": window, "scale": scale}
        failures += not agrees(name, heads(shape, dtype), cu_seqlens, options)
    failures += not grouped_heads_without_copies(cu_seqlens)
    print(f"\n{failures} wrong" if failures else "\nall right")
    time_rows()
    return min(failures, 1)


def heads(shape, dtype, lengths=LENGTHS):
    """Query, key and value that want gradients, with the strides that models hand over."""
    query_heads, key_heads, size, value_size = shape
    random = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(query_heads, size), (key_heads, size), (key_heads, value_size)]
    tokens = sum(lengths)
    made = [torch.randn(n, tokens, size, generator=random, device=DEVICE, dtype=dtype) for n, size in shapes]
    return [tensor.transpose(0, 1).requires_grad_() for tensor in made]


def with_gradients(function, tensors):
    """Output and gradients of the tensors, for a loss in which no two outputs weigh the same."""
    output = function(*tensors)
    return output.detach(), *torch.autograd.grad((output.float() * output_weights(output.shape)).sum(), tensors)


def output_weights(shape):
    return torch.randn(shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)


def by_sdpa(cu_seqlens, options):
    def attend(query, key, value):
        scale = options["scale"] or query.shape[-1] ** -0.5
        return document_attention._by_sdpa(
            (query, key, value), cu_seqlens, causal=options["causal"], window=options["window"], scale=scale
        )

    return attend


def agrees(name, tensors, cu_seqlens, options):
    """Whether the kernel is as near to float32 as SDPA in half precision, and segments stay to themselves."""

    def by_kernel(*each):
        return document_attention.segment_attention(*each, cu_seqlens, max(LENGTHS), **options)

    window = options["window"] if options["window"] is not None and options["window"] < max(LENGTHS) else None
    obstacle = document_attention.kernel_obstacle(tensors[0], tensors[2], window)
    if obstacle is not None:
        print(f"{name}: not checked, {obstacle}")
        return "window" in obstacle  # which torch 2.10 has not
    found = with_gradients(by_kernel, tensors)
    half = with_gradients(by_sdpa(cu_seqlens, options), tensors)
    exact = with_gradients(
        by_sdpa(cu_seqlens, options), [tensor.detach().float().requires_grad_() for tensor in tensors]
    )
    sizes = norms(exact, tensors, options)
    distances = [
        [float((one.float() - other).norm() / size) for one, other, size in zip(each, exact, sizes, strict=True)]
        for each in (found, half)
    ]
    rounding = torch.finfo(tensors[0].dtype).eps / 2
    right = all(kernel <= SLACK * (sdpa + rounding) for kernel, sdpa in zip(*distances, strict=True))
    isolated = stays_to_itself(by_kernel, tensors, found[0])
    note = "" if right and isolated else "  WRONG" if isolated else "  LEAKS"
    kernel, sdpa = distances
    print(
        f"{name:16} {str(tensors[0].dtype)[6:]:9} {options['causal']!s:6} {options['window'] or '-':>6}  "
        f"{kernel[0]:9.1e} {sdpa[0]:9.1e}  {max(kernel[1:]):9.1e} {max(sdpa[1:]):9.1e}{note}"
    )
    return right and isolated


def norms(exact, tensors, options):
    """What errors in the output and the three gradients are relative to: the norms of the exact ones.

    With a window of 1 a token sees itself alone, whatever its query and key: their exact gradients are 0, and what any
    kernel computes is the rounding of two equal terms, one less the other. There it is the norm of such a term.
    """
    found = [float(tensor.norm()) for tensor in exact]
    if options["window"] == 1:
        query, key, value = (tensor.detach().float() for tensor in tensors)
        key, value = (document_attention.repeat_heads(query, tensor) for tensor in (key, value))
        term = (output_weights(value.shape) * value).sum(-1, keepdim=True) * (
            options["scale"] or query.shape[-1] ** -0.5
        )
        found[1], found[2] = float((term * key).norm()), float((term * query).norm())
    return found


def stays_to_itself(by_kernel, tensors, before):
    """Whether no bit of other segments changes when one segment does."""
    first, last = sum(LENGTHS[:3]), sum(LENGTHS[:4])
    changed = [tensor.detach().clone() for tensor in tensors]
    for tensor in changed:
        tensor[first:last] = torch.randn_like(tensor[first:last])
    after = by_kernel(*changed)
    same = [torch.equal(after[:first], before[:first]), torch.equal(after[last:], before[last:])]
    return all(same) and not torch.equal(after[first:last], before[first:last])


def grouped_heads_without_copies(cu_seqlens):
    """Tell whether a kernel without `enable_gqa` takes fewer key heads as they are; then keys need no copies."""
    if "enable_gqa" in document_attention.PARAMETERS or "window_size" not in document_attention.PARAMETERS:
        return True
    tensors = heads(SHAPES["grouped 128"], torch.bfloat16)

    def as_they_are(*each):
        return document_attention.varlen_attn(
            *each, cu_seqlens, cu_seqlens, max(LENGTHS), max(LENGTHS), window_size=(-1, 0)
        )

    try:
        found = with_gradients(as_they_are, tensors)
    except (RuntimeError, ValueError) as error:
        print(f"\ngrouped heads as they are: refused ({str(error).splitlines()[0]}); keys and values are repeated")
        return True
    expected = with_gradients(
        lambda *each: document_attention.segment_attention(*each, cu_seqlens, max(LENGTHS)), tensors
    )
    apart = max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))
    print(f"\ngrouped heads as they are: {apart:.1e} from repeated ones (below 1e-2: the copies could be spared)")
    return True


def time_rows():
    """Forward and backward of 16,384 tokens, 32 heads, 8 of keys, 128 wide, in bfloat16."""
    tokens = 16_384
    print(f"\n{'segments':>16} {'kernel ms':>10} {'sdpa ms':>9} {'kernel, window 1024':>20}")
    for length in (tokens, 4096, 1024, 256):
        lengths = [length] * (tokens // length)
        cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
        tensors = heads(SHAPES["grouped 128"], torch.bfloat16, lengths)
        options = {"causal": True, "window": None, "scale": None}
        ways = [
            lambda *each, cu=cu_seqlens, n=length: document_attention.segment_attention(*each, cu, n),
            by_sdpa(cu_seqlens, options),
            lambda *each, cu=cu_seqlens, n=length: document_attention.segment_attention(*each, cu, n, window=1024),
        ]
        times = [milliseconds(way, tensors) for way in ways]
        print(f"{len(lengths):>7} x {length:>6} {times[0]:>10.2f} {times[1]:>9.2f} {times[2]:>20.2f}")


def milliseconds(way, tensors, repeats=5):
    """Median time of a forward and backward pass; the first is thrown away."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with_gradients(way, tensors)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begun))
    return sorted(times[1:])[repeats // 2]


if __name__ == "__main__":
    sys.exit(main())
