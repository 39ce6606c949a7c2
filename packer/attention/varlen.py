"""Segments of a batch, and attention within them: by torch's varlen kernel if available, otherwise by SDPA.

Requires torch only.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, MutableMapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.weak import WeakIdKeyDictionary

from packer.errors import PackerError

Made = TypeVar("Made")
Heads: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(queries, keys, values)."""

IMPLEMENTATION = "packer_varlen"
"""Name of packer's implementation in transformers. It avoids "flash", a word that transformers looks for in names."""

PARAMETERS: frozenset[str] = frozenset()
"""Names of the kernel's parameters, which differ between versions of torch; empty without a kernel."""

try:
    from torch.nn.attention.varlen import varlen_attn

    PARAMETERS = frozenset(inspect.signature(varlen_attn).parameters)
except (ImportError, TypeError):  # before torch 2.10, or while documentation is built without torch
    pass

KERNEL_DTYPES = (torch.float16, torch.bfloat16)
LARGEST_OFFSET = 2
"""Largest position of the first token of a document: that of RoBERTa."""

LARGEST_HEAD = 256
"""Largest head size that the kernel supports. It requires multiples of 8, to which other sizes are padded."""


class Boundaries(NamedTuple):
    """Segments of a batch whose rows are laid end to end."""

    cu_seqlens: torch.Tensor
    """int32 `[segments + 1]`: index of each segment's first token, then the number of tokens. Segments of 3, 2 and 4
    tokens -> [0, 3, 5, 9]."""

    longest: int
    """Tokens in the longest segment."""


def find_boundaries(
    rows: int,
    row_tokens: int,
    cu_seq_lens: torch.Tensor | None,
    max_length: int | torch.Tensor | None,
    position_ids: torch.Tensor | None,
    device: torch.device,
) -> Boundaries:
    """Return the segments of a batch `[rows, row_tokens]`; the layers of a forward pass share one result.

    Segments come from `cu_seq_lens`, `[segments + 1]` over all rows, with `max_length` tokens in the longest. Without
    `cu_seq_lens`, a segment starts where `position_ids`, `[rows, row_tokens]` or `[1, row_tokens]`, do not increase by
    one, and has to start at the first position, unlike a part of a document.
    """
    source = cu_seq_lens if cu_seq_lens is not None else position_ids
    if source is None:
        raise PackerError(
            "neither cu_seq_lens_q nor position_ids reached attention, because this model does not pass them on: "
            "documents would attend to each other; `packer check` lists the attn_implementation that is safe for it; "
            "M-RoPE needs the position in the document as the first of 4 rows of position_ids"
        )

    def find() -> Boundaries:
        if cu_seq_lens is None:
            starts, longest = _restarts(source, rows, row_tokens), None
        else:
            starts, longest = cu_seq_lens, max_length
        if longest is None:
            longest = starts.diff().max()
        # A copy, because the result is kept as long as the tensor, and must not keep it alive.
        found = Boundaries(cu_seqlens=starts.to(device, torch.int32, copy=True), longest=int(longest))
        if not torch.compiler.is_compiling():
            _check(found, rows * row_tokens)
        elif cu_seq_lens is not None:
            _check_compiled(found, rows * row_tokens)
        return found

    return kept(source, (rows, row_tokens, device, cu_seq_lens is None), find)


_kept: MutableMapping[torch.Tensor, tuple[int, dict[object, Any]]] = WeakIdKeyDictionary()
"""Results made from each tensor in use, and its version at that time."""


def kept(tensor: torch.Tensor, key: object, make: Callable[[], Made]) -> Made:
    """Return `make()`, computed once for all layers of a forward pass and its recomputation in the backward pass.

    Compiled code shares results by itself. A tensor in inference mode has no version, so a change would not show.
    """
    if torch.compiler.is_compiling() or tensor.is_inference():
        return make()
    version, made = _kept.get(tensor, (None, {}))
    if version != tensor._version:
        made = {}
        _kept[tensor] = (tensor._version, made)
    if key not in made:
        made[key] = make()
    return cast("Made", made[key])


def _restarts(position_ids: torch.Tensor, rows: int, row_tokens: int) -> torch.Tensor:
    """Return `[segments + 1]`: where positions do not increase by one, then the end: [[0, 1, 2, 0, 1]] -> [0, 3, 5].

    Every row starts a segment.
    """
    if position_ids.ndim != 2 or position_ids.shape[-1] != row_tokens or position_ids.shape[0] not in (1, rows):
        raise PackerError(
            f"position_ids of shape {list(position_ids.shape)} do not contain the segment boundaries of "
            f"[{rows}, {row_tokens}] tokens: pass cu_seq_lens_q and max_length_q, as packer.collate returns them"
        )
    positions = position_ids.expand(rows, row_tokens)
    is_start = torch.ones_like(positions, dtype=torch.bool)
    is_start[:, 1:] = positions.diff(dim=1) != 1
    starts = is_start.flatten().nonzero().flatten()
    if not torch.compiler.is_compiling():
        lowest, highest = map(int, positions.flatten()[starts].aminmax())
        if lowest != highest or highest > LARGEST_OFFSET:
            raise PackerError(
                f"a segment begins at position {highest:,}, so it is a part of its document, as under context or "
                "sequence parallelism: train with tensor or data parallelism; if it is a document, pass cu_seq_lens_q "
                "and max_length_q"
            )
    return torch.cat([starts, starts.new_tensor([rows * row_tokens])])


def _check_compiled(found: Boundaries, tokens: int) -> None:
    """Check as `_check` does, but in compiled code and without synchronizing; raises torch's RuntimeError."""
    cu_seqlens = found.cu_seqlens
    lengths = cu_seqlens.diff()
    covers = (cu_seqlens[0] == 0) & (cu_seqlens[-1] == tokens) & (lengths.min() >= 0)
    torch._assert_async(covers, "cu_seq_lens_q does not cover the tokens of the batch: pass it whole")
    torch._assert_async(lengths.max() <= found.longest, "max_length_q is below the longest segment: pass packer's")


def _check(found: Boundaries, tokens: int) -> None:
    """Check that the segments cover the batch; done once per batch, because it synchronizes with the device."""
    values = found.cu_seqlens.tolist()
    lengths = [end - start for start, end in pairwise(values)]
    if not lengths or values[0] != 0 or values[-1] != tokens or min(lengths) < 0:
        raise PackerError(
            f"cu_seq_lens_q runs from {values[0]} to {values[-1]}, but the batch has {tokens:,} tokens: pass it whole "
            "(accelerate slices it for an IterableDataset: use a map-style dataset, or dispatch_batches=False; prompt "
            "tuning adds tokens: take LoRA)"
        )
    if found.longest < max(lengths):
        raise PackerError(
            f"max_length_q is {found.longest:,}, but the longest segment has {max(lengths):,} tokens: pass the value "
            "that packer.collate returns"
        )


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
    """Compute attention in which each token attends to tokens of its own segment only: `[tokens, heads, value_size]`.

    Queries are `[tokens, heads, head_size]`, of any floating dtype, and keys and values `[tokens, key_heads, size]`.
    Query head h uses key head `h // (heads // key_heads)`. The segments are `Boundaries` on the same device. With a
    window, tokens attend only to tokens less than this many positions away. The scale of the logits is by default
    `head_size ** -0.5`. On a GPU, there is a UserWarning if the varlen kernel does not support the tensors.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    window = None if window is None or window >= longest else window
    obstacle = kernel_obstacle(query, value, window)
    if obstacle is None:
        return _by_kernel((query, key, value), cu_seqlens, longest, causal=causal, window=window, scale=scale)
    if query.device.type == "cuda":
        warnings.warn(f"packed attention falls back to slower SDPA per segment: {obstacle}", stacklevel=2)
    return _by_sdpa((query, key, value), cu_seqlens, causal=causal, window=window, scale=scale)


def kernel_obstacle(query: torch.Tensor, value: torch.Tensor, window: int | None) -> str | None:
    """Return why torch's varlen kernel does not support these tensors, and the remedy; None if it does."""
    head_size = max(query.shape[-1], value.shape[-1])
    if query.device.type != "cuda" or torch.version.cuda is None:
        return f"the varlen kernel needs an NVIDIA GPU, but the tensors are on {query.device.type}"
    if not PARAMETERS:
        return f"torch {torch.__version__} has no varlen kernel; install torch 2.10 or later"
    if query.dtype not in KERNEL_DTYPES:
        return (
            f"the varlen kernel does not support {query.dtype}; load the model in bfloat16, or train under "
            "torch.autocast"
        )
    if head_size > LARGEST_HEAD:
        return f"the head size is {head_size}, and the varlen kernel supports up to {LARGEST_HEAD}"
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        gpu = torch.cuda.get_device_name(query.device)
        return f"the varlen kernel needs a GPU of compute capability 8.0 or higher, unlike {gpu}"
    if window is not None and "window_size" not in PARAMETERS:
        return f"the varlen kernel of torch {torch.__version__} has no sliding window; install torch 2.11 or later"
    return None


def _by_kernel(
    heads: Heads, cu_seqlens: torch.Tensor, longest: int, *, causal: bool, window: int | None, scale: float
) -> torch.Tensor:
    """Compute `segment_attention` by torch's varlen kernel, of torch 2.10 to 2.13."""
    query, key, value = heads
    value_size = value.shape[-1]
    width = _kernel_width(query, value_size)
    options: dict[str, Any] = {}
    if "scale" in PARAMETERS:
        options["scale"] = scale
    else:  # torch 2.10 always scales by width ** -0.5
        query = query * (scale * width**0.5)
    if "window_size" in PARAMETERS:  # torch 2.11: tokens before and after, -1 for all
        reach = -1 if window is None else window - 1
        options["window_size"] = (reach, 0 if causal else reach)
    else:
        options["is_causal"] = causal
    if "enable_gqa" in PARAMETERS:  # torch 2.12
        options["enable_gqa"] = key.shape[1] != query.shape[1]
    else:
        key, value = repeat_heads(query, key), repeat_heads(query, value)
    # Padding with zeros changes neither the products of queries and keys nor the values, whose padding is cut off.
    query, key, value = (_pad_heads(tensor, width) for tensor in (query, key, value))
    attended = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, **options)
    assert isinstance(attended, torch.Tensor)
    return attended[..., :value_size]


def _kernel_width(query: torch.Tensor, value_size: int) -> int:
    """Return the head size to pad to: a multiple of 8, and one for which the GPU has a backward pass."""
    width = -(-max(query.shape[-1], value_size) // 8) * 8
    if 192 < width <= 224 and query.requires_grad and query.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(query.device)
        if major == 12 or (major == 8 and minor > 0):
            return LARGEST_HEAD
    return width


def _by_sdpa(heads: Heads, cu_seqlens: torch.Tensor, *, causal: bool, window: int | None, scale: float) -> torch.Tensor:
    """Compute `segment_attention` by SDPA, with one call for all segments of the same length."""
    query, key, value = heads
    lengths = cu_seqlens.diff().tolist()
    key, value = repeat_heads(query, key), repeat_heads(query, value)
    segments = [torch.split(tensor.transpose(0, 1), lengths, dim=1) for tensor in (query, key, value)]
    numbers_by_length: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        numbers_by_length.setdefault(length, []).append(number)
    attended: list[torch.Tensor] = [query] * len(lengths)
    for length, numbers in numbers_by_length.items():
        stacked = (torch.stack([each[number] for number in numbers]) for each in segments)
        queries, keys, values = stacked  # [n, heads, length, size]
        mask = None if window is None or window >= length else _window_mask(length, window, causal, query.device)
        outputs = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal and mask is None, scale=scale
        )
        for number, output in zip(numbers, outputs.unbind(), strict=True):
            attended[number] = output
    return torch.cat(attended, dim=1).transpose(0, 1)


def repeat_heads(query: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Repeat heads of keys or values for the query heads that share them: [a, b] for 4 query heads -> [a, a, b, b]."""
    groups = query.shape[1] // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def _pad_heads(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Pad heads with zeros to a size of `width`; a tensor of that size is not copied."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def _window_mask(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """Return the mask of a segment, bool `[length, length]`: True where a query (row) attends to a key (column)."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    return (distance < window) & (distance >= 0 if causal else distance > -window)
