"""Attention in rows that hold trees: documents that begin alike store their common tokens once.

A tree is a number of nodes, each a run of tokens that lie one after another in the batch. The nodes of a subtree lie
together, each after its parent. A token sees itself and the tokens before it in its node and in the nodes above it. An
ordinary document is a tree of one node. Example, with the answers b and c to the prompt a:

    place           0   1   2   3   4   5   6   7
    token           a0  a1  b0  b1  b2  c0  c1  d0     d is a document of its own
    visible_until   7   7   5   5   5   7   7   8      the token is seen by places from its own to this one, exclusive
    position        0   1   2   3   4   2   3   0

Requires torch only.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any, cast

import torch
from torch.nn.functional import scaled_dot_product_attention

from packer.attention.varlen import kept, repeat_heads
from packer.errors import PackerError

BLOCK = 128
"""Tokens in a block of the mask of FlexAttention."""

SMALLEST_HEAD = 16
"""Smallest head size that FlexAttention supports on a GPU."""

ATTENTION_KINDS = frozenset({"attention", "full_attention", "hybrid", "sliding_attention"})
"""Values of `layer_types` in a config whose layers can be exact: a token depends on the tokens that it sees only."""

MIXERS = re.compile("Mamba|Recurrent|DeltaNet|LinearAttention|LightningAttention|ShortConv|RWKV|LSTM|Indexer")
"""Names of modules that mix or select tokens outside attention."""


def dense_mask(tree: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the attention mask of a batch of trees, for models with sdpa attention.

    Args:
        tree: int32 `[2, tokens]`, as in batches of format "tree": for each token, the place where it stops being
            visible, and its position in its document.
        window: tokens that a token attends to, itself included; None for all that it sees.

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
        window: tokens that a token attends to, itself included; None for all that it sees.

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
    """Return two bool tensors `[blocks, blocks]`, by query and key: whether some pair, and every pair, is visible.

    `end`, `[tokens]`, is the position before which a token is visible. In a block with padding, never every pair is.
    """
    tokens = len(position)
    blocks = -(-tokens // BLOCK)
    starts = torch.arange(blocks, device=position.device) * BLOCK
    query, key = starts[:, None], starts[None, :]
    padding = blocks * BLOCK - tokens
    seen_until = torch.nn.functional.pad(visible_until, (0, padding)).view(blocks, BLOCK)
    positions, ends = (
        torch.cat([each, each[-1:].expand(padding)]).view(blocks, BLOCK)  # padded with a value that is there
        for each in (position, end)
    )
    some = (
        (key <= query) & ((key == query) | (query < seen_until.amax(1))) & (positions.amin(1)[:, None] < ends.amax(1))
    )
    every = (key < query) & (query + BLOCK <= seen_until.amin(1)) & (positions.amax(1)[:, None] < ends.amin(1))
    return some, every


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 `[1, 1, blocks]` and `[1, 1, blocks, blocks]`: numbers of True blocks; blocks, True ones first."""
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
    """Compute attention in a batch of trees: by FlexAttention on a GPU, elsewhere by SDPA with a dense mask.

    Takes the tensors, window and scale of `segment_attention`, and warns as it does. Makes the masks of a tree once and
    keeps them as long as the tree exists. Raises PackerError if `tree` is not the tree of the batch.
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

        # Within a model that is compiled, it is compiled with the model.
        attend: Any = flex_attention if torch.compiler.is_compiling() else _compiled()
        attended = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=is_grouped)
    return attended[0].transpose(0, 1)


def flex_obstacle(query: torch.Tensor, value: torch.Tensor) -> str | None:
    """Return why FlexAttention does not support these tensors, and the remedy; None if it does."""
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
    """Raise PackerError unless a tensor may be the tree of a batch of so many tokens.

    Its values are checked once per batch, because that synchronizes with the device.
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
    """Return the number of tokens in the longest document; while a model is compiled, in the whole batch."""
    return tree.shape[1] if torch.compiler.is_compiling() else kept(tree, "longest", lambda: int(tree[1].max()) + 1)


def tree_obstacle(model: Any) -> str | None:
    """Return why trees cannot be exact in a model of transformers, in one line; None if no reason is found."""
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
