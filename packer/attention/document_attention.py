"""Attention within the documents of a batch: in segments, and in rows with trees.

Segments run torch's varlen kernel if it is available, otherwise SDPA. In trees, documents with the same beginning store
their common tokens once. A tree consists of nodes, each a run of consecutive tokens in the batch. The nodes of a
subtree are consecutive, each after its parent. A token attends to itself and to earlier tokens in its node and in the
nodes above it. An ordinary document is a tree of one node. Example, with the answers b and c to the prompt a:

    place           0   1   2   3   4   5   6   7
    token           a0  a1  b0  b1  b2  c0  c1  d0     d is a separate document
    visible_until   7   7   5   5   5   7   7   8      tokens from this place on do not attend to the token
    position        0   1   2   3   4   2   3   0

Requires torch only.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, MutableMapping
from functools import cache
from itertools import chain, pairwise
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
"""Maximum position of a document's first token: RoBERTa starts at 2."""

LARGEST_HEAD = 256
"""Maximum head size that the kernel supports. It requires multiples of 8; other sizes are padded."""

BLOCK = 128
"""Number of tokens in a block of FlexAttention's mask."""

SMALLEST_HEAD = 16
"""Minimum head size that FlexAttention supports on a GPU."""

ATTENTION_KINDS = frozenset({"attention", "full_attention", "hybrid", "sliding_attention"})
"""Values of `layer_types` for layers that can be exact, because a token depends only on tokens that it attends to."""

MIXERS = re.compile("Mamba|Recurrent|DeltaNet|LinearAttention|LightningAttention|ShortConv|RWKV|LSTM|Indexer")
"""Names of modules that mix or select tokens outside attention."""


class Boundaries(NamedTuple):
    """Segments of a batch whose rows are concatenated."""

    cu_seqlens: torch.Tensor
    """int32 `[segments + 1]`: index of each segment's first token, then the number of tokens. Example: segments of 3, 2
    and 4 tokens -> [0, 3, 5, 9]."""

    longest: int
    """Number of tokens in the longest segment."""


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
    `cu_seq_lens`, a segment starts wherever `position_ids`, `[rows, row_tokens]` or `[1, row_tokens]`, do not increase
    by one. Each segment must then start at the first position of a document: parts of documents are refused.
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
        # Copied, because the result is kept as long as the tensor and must not keep the tensor alive.
        found = Boundaries(cu_seqlens=starts.to(device, torch.int32, copy=True), longest=int(longest))
        if not torch.compiler.is_compiling():
            _check(found, rows * row_tokens)
        elif cu_seq_lens is not None:
            _check_compiled(found, rows * row_tokens)
        return found

    return kept(source, (rows, row_tokens, device, cu_seq_lens is None), find)


_kept: MutableMapping[torch.Tensor, tuple[int, dict[object, Any]]] = WeakIdKeyDictionary()
"""Results computed from each tensor in use, with the tensor's version at that time."""


def kept(tensor: torch.Tensor, key: object, make: Callable[[], Made]) -> Made:
    """Return `make()`, computed once for all layers of a forward pass, and for its recomputation in the backward pass.

    Compiled code shares results without this. Results of tensors in inference mode are not kept: such tensors have no
    version, so changes would go unnoticed.
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
    """Return `[segments + 1]`: where positions do not increase by one, then the end. [[0, 1, 2, 0, 1]] -> [0, 3, 5].

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
    """Check like `_check`, but in compiled code and without synchronizing. Raises torch's RuntimeError."""
    cu_seqlens = found.cu_seqlens
    lengths = cu_seqlens.diff()
    covers = (cu_seqlens[0] == 0) & (cu_seqlens[-1] == tokens) & (lengths.min() >= 0)
    torch._assert_async(covers, "cu_seq_lens_q does not cover the tokens of the batch: pass it whole")
    torch._assert_async(lengths.max() <= found.longest, "max_length_q is below the longest segment: pass packer's")


def _check(found: Boundaries, tokens: int) -> None:
    """Check that the segments cover the batch. Runs once per batch, because it synchronizes with the device."""
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
    """Compute attention in which each token attends only to its own segment: `[tokens, heads, value_size]`.

    Queries are `[tokens, heads, head_size]`, of any floating dtype; keys and values are `[tokens, key_heads, size]`.
    Query head h uses key head `h // (heads // key_heads)`. The segments are `Boundaries` on the same device. With a
    window, tokens attend only to tokens less than this many positions away. The default scale of the logits is
    `head_size ** -0.5`. On a GPU, a UserWarning is issued if the varlen kernel does not support the tensors.
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
    """Return why torch's varlen kernel does not support these tensors, and the remedy; None if it supports them."""
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
    """Compute `segment_attention` with torch's varlen kernel, of torch 2.10 to 2.13."""
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
    # Padding with zeros does not change the products of queries and keys; the padding of values is cut off below.
    query, key, value = (_pad_heads(tensor, width) for tensor in (query, key, value))
    attended = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, **options)
    assert isinstance(attended, torch.Tensor)
    return attended[..., :value_size]


def _kernel_width(query: torch.Tensor, value_size: int) -> int:
    """Return the head size to pad to: a multiple of 8 for which the GPU has a backward pass."""
    width = -(-max(query.shape[-1], value_size) // 8) * 8
    if 192 < width <= 224 and query.requires_grad and query.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(query.device)
        if major == 12 or (major == 8 and minor > 0):
            return LARGEST_HEAD
    return width


def _by_sdpa(heads: Heads, cu_seqlens: torch.Tensor, *, causal: bool, window: int | None, scale: float) -> torch.Tensor:
    """Compute `segment_attention` with SDPA, in one call for all segments of the same length."""
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
    """Pad heads with zeros to the size `width`. A tensor of that size is not copied."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def _window_mask(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """Return the mask of a segment, bool `[length, length]`: True where a query (row) attends to a key (column)."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    return (distance < window) & (distance >= 0 if causal else distance > -window)


def dense_mask(tree: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the attention mask of a batch of trees, for models with sdpa attention.

    Args:
        tree: int32 `[2, tokens]`, as in batches of format "tree": for each token, the first later place whose token
            does not attend to it, and its position in its document.
        window: number of tokens that a token attends to, including itself; None for all visible tokens.

    Returns:
        bool `[1, 1, tokens, tokens]`: True where a query (row) attends to a key (column).

    Raises:
        PackerError: `tree` is not the tree of a batch.
    """
    check_tree(tree, tree.shape[-1])
    visible_until, position = tree[0], tree[1]
    places = torch.arange(tree.shape[1], device=tree.device)
    query, key = places[:, None], places[None, :]
    mask = (key <= query) & (query < visible_until)
    if window is not None:
        mask = mask & (position[:, None] - position < window)
    return mask[None, None]


def block_mask(tree: torch.Tensor, window: int | None = None) -> Any:
    """Return the attention mask of a batch of trees as the BlockMask of FlexAttention.

    Memory grows with pairs of blocks of 128 tokens, not with pairs of tokens.

    Args:
        tree: int32 `[2, tokens]`, as for `dense_mask`.
        window: number of tokens that a token attends to, including itself; None for all visible tokens.

    Returns:
        `torch.nn.attention.flex_attention.BlockMask` of shape `(1, 1, tokens, tokens)`.

    Raises:
        PackerError: `tree` is not the tree of a batch.
    """
    from torch.nn.attention.flex_attention import BlockMask

    check_tree(tree, tree.shape[-1])
    tokens = tree.shape[1]
    # Cloned, because the mask is kept as long as `tree` and must not keep it alive. Everything that differs between
    # masks is a tensor, because FlexAttention is compiled again for each new number.
    visible_until, position = tree[0].clone(), tree[1].clone()
    end = position + (tokens if window is None else min(window, tokens))

    def sees(_row: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < visible_until[key]) & (position[query] < end[key])

    some, every = _blocks(visible_until, position, end)
    partial, full = _listed(some & ~every), _listed(every)
    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(tokens, tokens))


def _blocks(
    visible_until: torch.Tensor, position: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two bool tensors `[blocks, blocks]`, by query and key: whether any pair, and every pair, is visible.

    Tokens before position `end[k]` see token k; `end` has the shape `[tokens]`. In a block with padding, not every pair
    is visible.
    """
    tokens = len(position)
    blocks = -(-tokens // BLOCK)
    starts = torch.arange(blocks, device=position.device) * BLOCK
    query, key = starts[:, None], starts[None, :]
    padding = blocks * BLOCK - tokens
    seen_until = torch.nn.functional.pad(visible_until, (0, padding)).view(blocks, BLOCK)
    positions, ends = (
        torch.cat([each, each[-1:].expand(padding)]).view(blocks, BLOCK)  # padded with the last value
        for each in (position, end)
    )
    some = (
        (key <= query) & ((key == query) | (query < seen_until.amax(1))) & (positions.amin(1)[:, None] < ends.amax(1))
    )
    every = (key < query) & (query + BLOCK <= seen_until.amin(1)) & (positions.amax(1)[:, None] < ends.amin(1))
    return some, every


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return number of True blocks, int32 `[1, 1, blocks]`, and all blocks, True first, `[1, 1, blocks, blocks]`."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], indices.int()[None, None].contiguous()


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: torch.Tensor,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Compute attention in a batch of trees: with FlexAttention on a GPU, otherwise with SDPA and a dense mask.

    Takes the tensors, window and scale of `segment_attention`, and warns in the same cases. The masks of a tree are
    computed once and kept as long as the tree exists. Raises PackerError if `tree` is not the tree of the batch.
    """
    obstacle, device = flex_obstacle(query, value), query.device
    make: Callable[[torch.Tensor, int | None], Any] = dense_mask if obstacle else block_mask
    mask = kept(tree, (make, window, device), lambda: make(tree.to(device), window))
    if obstacle is not None:
        if device.type == "cuda":
            warnings.warn(f"attention in trees falls back to slower SDPA: {obstacle}", stacklevel=2)
        key, value = repeat_heads(query, key), repeat_heads(query, value)
    is_grouped = key.shape[1] != query.shape[1]
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))  # [1, heads, tokens, size]
    if obstacle is not None:
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    else:
        from torch.nn.attention.flex_attention import flex_attention

        # In a compiled model, FlexAttention is compiled with the model.
        attend: Any = flex_attention if torch.compiler.is_compiling() else _compiled()
        attended = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=is_grouped)
    return attended[0].transpose(0, 1)


def flex_obstacle(query: torch.Tensor, value: torch.Tensor) -> str | None:
    """Return why FlexAttention does not support these tensors, and the remedy; None if it supports them."""
    head_size = min(query.shape[-1], value.shape[-1])
    if query.device.type != "cuda":
        return f"FlexAttention trains on a GPU only, but the tensors are on {query.device.type}"
    if query.dtype == torch.float64:
        return "FlexAttention does not support torch.float64; load the model in bfloat16"
    if head_size < SMALLEST_HEAD:
        return f"the head size is {head_size}, and FlexAttention needs {SMALLEST_HEAD} or more"
    return None


@cache
def _compiled() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return cast("Callable[..., torch.Tensor]", torch.compile(flex_attention))


def check_tree(tree: torch.Tensor, tokens: int) -> None:
    """Raise PackerError unless `tree` may be the tree of a batch of `tokens` tokens.

    Its values are checked once per batch, because checking synchronizes with the device.
    """
    if tree.ndim != 2 or tree.shape != (2, tokens) or tree.is_floating_point():
        raise PackerError(
            f"tree is {tree.dtype} of shape {list(tree.shape)}, but a batch of {tokens:,} tokens needs int32 of shape "
            f"[2, {tokens}]: pass it whole, as packer.collate returns it"
        )
    kept(tree, "checked", lambda: _check_values(tree))


def _check_values(tree: torch.Tensor) -> None:
    tokens = tree.shape[1]
    places = torch.arange(tokens, device=tree.device)
    right = (places < tree[0]) & (tree[0] <= tokens) & (tree[1] >= 0) & (tree[1] <= places)
    if torch.compiler.is_compiling():
        torch._assert_async(right.all(), "tree is not that of the batch: pass it as packer.collate returns it")
    elif not bool(right.all()):
        place = int(right.int().argmin())
        raise PackerError(
            f"tree says of the token at place {place:,} of {tokens:,} that it is visible until place "
            f"{int(tree[0, place]):,} and has position {int(tree[1, place]):,}, which no tree has: pass it as "
            "packer.collate returns it"
        )


def longest_path(tree: torch.Tensor) -> int:
    """Return the number of tokens in the longest document, or in the whole batch while a model is being compiled."""
    return tree.shape[1] if torch.compiler.is_compiling() else kept(tree, "longest", lambda: int(tree[1].max()) + 1)


def tree_obstacle(model: Any) -> str | None:
    """Return why trees cannot be exact in a model of transformers, as one line; None if no reason is found."""
    config = model.config.get_text_config()
    for name in ("layer_types", "layers_block_type", "block_types"):
        other = sorted(set(map(str, getattr(config, name, None) or ())) - ATTENTION_KINDS)
        if other:
            return f"it has layers of {', '.join(other)}, in which tokens depend on others than those they see"
    if getattr(config, "use_bidirectional_attention", False) in (True, "all"):  # "vision" is for images only
        return "its tokens attend to later ones, which differ between documents"
    parts = [part for part in model.modules() if isinstance(getattr(part, "config", None), type(config))]
    for module in chain.from_iterable(part.modules() for part in parts):  # of the language model
        is_convolution = isinstance(module, torch.nn.Conv1d) and module.kernel_size != (1,)
        if is_convolution or isinstance(module, torch.nn.RNNBase) or MIXERS.search(type(module).__name__):
            return f"its {type(module).__name__} mixes or selects tokens outside attention"
    return None
