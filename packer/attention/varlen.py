"""Attention over the segments of a batch: torch's varlen kernel where it can, SDPA segment by segment elsewhere.

Needs torch alone.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    PARAMETERS: frozenset[str] = frozenset()
else:
    PARAMETERS = frozenset(inspect.signature(varlen_attn).parameters)
"""Names of the kernel's parameters, which differ by version of torch; none where there is no kernel."""

KERNEL_DTYPES = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
"""Head size up to which the kernel works; sizes must be a multiple of 8, for which heads are padded."""


def segment_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attend within segments: a token sees the tokens of its own segment, and no others.

    Args:
        query: `[tokens, heads, head_size]`, any floating dtype.
        key: `[tokens, key_heads, head_size]`; query head h uses key head `h // (heads // key_heads)`.
        value: `[tokens, key_heads, value_size]`.
        cu_seqlens: int32 `[segments + 1]` on the same device: where segments begin, then the number of tokens.
        longest: tokens of the longest segment.
        causal: a token sees those before it and itself, not those after it.
        window: a token sees those less than this many places away; None for all of the segment.
        scale: of the logits; None for `head_size ** -0.5`.

    Returns:
        `[tokens, heads, value_size]` in the dtype of query.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    window = None if window is None or window >= longest else window
    obstacle = kernel_obstacle(query, value, window)
    if obstacle is None:
        return _by_kernel(query, key, value, cu_seqlens, longest, causal=causal, window=window, scale=scale)
    if query.device.type == "cuda":
        warnings.warn(f"packed attention runs segment by segment, which is slower: {obstacle}", stacklevel=2)
    return _by_sdpa(query, key, value, cu_seqlens, causal=causal, window=window, scale=scale)


def kernel_obstacle(query: torch.Tensor, value: torch.Tensor, window: int | None) -> str | None:
    """Say what keeps torch's varlen kernel from these tensors, and what would help; None where it works."""
    largest = max(query.shape[-1], value.shape[-1])
    if query.device.type != "cuda" or torch.version.cuda is None:
        return f"the kernel needs an NVIDIA GPU, and the tensors are on {query.device.type}"
    if not PARAMETERS:
        return f"torch {torch.__version__} has no varlen kernel; torch 2.10 has"
    if query.dtype not in KERNEL_DTYPES:
        return f"the kernel has no {query.dtype}; load the model in bfloat16, or train under torch.autocast"
    if largest > LARGEST_HEAD:
        return f"heads of {largest} are above the kernel's {LARGEST_HEAD}"
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return f"the kernel needs compute capability 8.0, {torch.cuda.get_device_name(query.device)} is older"
    if window is not None and "window_size" not in PARAMETERS:
        return f"torch {torch.__version__} has no sliding window in its varlen kernel; torch 2.11 has"
    return None


def _by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """`segment_attention` by torch's kernel, whatever its version: 2.10 to 2.13 are known."""
    value_size = value.shape[-1]
    width = -(-max(query.shape[-1], value_size) // 8) * 8
    options: dict[str, Any] = {}
    if "scale" in PARAMETERS:
        options["scale"] = scale
    else:  # 2.10 always takes width ** -0.5
        query = query * (scale * width**0.5)
    if "window_size" in PARAMETERS:  # 2.11: places before and after, -1 for all
        reach = -1 if window is None else window - 1
        options["window_size"] = (reach, 0 if causal else reach)
    else:
        options["is_causal"] = causal
    if "enable_gqa" in PARAMETERS:  # 2.12
        options["enable_gqa"] = key.shape[1] != query.shape[1]
    else:
        key, value = _heads_as_in(query, key), _heads_as_in(query, value)
    # zeros change neither the products of queries and keys nor, cut off again, the values
    query, key, value = (_wider(tensor, width) for tensor in (query, key, value))
    attended: Any = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, **options)
    cut: torch.Tensor = attended[..., :value_size]
    return cut


def _by_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    """`segment_attention` by SDPA; segments of the same length go together."""
    lengths = cu_seqlens.diff().tolist()
    key, value = _heads_as_in(query, key), _heads_as_in(query, value)
    pieces = [torch.split(tensor.transpose(0, 1), lengths, dim=1) for tensor in (query, key, value)]
    same: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        same.setdefault(length, []).append(number)
    attended: list[torch.Tensor] = [query] * len(lengths)
    for length, numbers in same.items():
        stacked = [torch.stack([piece[number] for number in numbers]) for piece in pieces]  # [n, heads, length, size]
        mask = None if window is None or window >= length else _window_mask(length, window, causal, query.device)
        together = scaled_dot_product_attention(
            stacked[0],
            stacked[1],
            stacked[2],
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scale,
        )
        for number, piece in zip(numbers, together.unbind(), strict=True):
            attended[number] = piece
    return torch.cat(attended, dim=1).transpose(0, 1)


def _heads_as_in(query: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Repeat the heads of keys or values for the query heads that share them: [a, b] for 4 heads -> [a, a, b, b]."""
    groups = query.shape[1] // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def _wider(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Fill heads up with zeros; a tensor that has the width already is not copied."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def _window_mask(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """Bool `[length, length]`: True where a query (row) sees a key (column)."""
    places = torch.arange(length, device=device)
    before = places[:, None] - places[None, :]
    return (before < window) & (before >= 0 if causal else before > -window)
