"""transformers' interface to attention over segments, and what it refuses rather than compute wrongly."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from packer.attention import IMPLEMENTATION
from packer.errors import PackerError

try:
    import torch
    import transformers
    from transformers import PreTrainedModel
except ImportError as error:
    raise PackerError(f'{error.name} is not installed: pip install "packer[torch]" transformers') from error

from packer.attention.boundaries import find_boundaries
from packer.attention.rope import compute_by_document, refuse_frequencies_of_the_longest
from packer.attention.varlen import KERNEL_DTYPES, segment_attention

REFUSED = {
    "softcap": "caps its attention logits, which the varlen kernel cannot",
    "s_aux": "has attention sinks, which the varlen kernel has not",
    "position_bias": "adds a position bias to its attention logits, which the varlen kernel cannot",
    "cache": "pages a KV cache, which training has not",
    "block_indices": "attends to chosen blocks of tokens only, which the varlen kernel cannot",
    "indices": "attends to chosen tokens only, which the varlen kernel cannot",
    "sinks": "has attention sinks, which the varlen kernel has not",
}
"""Arguments that change what attention computes: they are refused where a model hands one over."""

_callers: set[type[torch.nn.Module]] = set()
"""Classes of layers that have called this attention; `use` looks for those of its model."""


def register() -> str:
    """See `packer.attention.register`."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise PackerError(
            f"transformers {transformers.__version__} takes no attention from outside: pip install -U transformers"
        ) from error
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, attention_mask)
    return IMPLEMENTATION


def use(model: PreTrainedModel) -> PreTrainedModel:
    """See `packer.attention.use`."""
    name, text = register(), model.config.get_text_config()
    parts = [part for part in model.config.sub_configs if getattr(model.config, part) is text]
    model.set_attn_implementation({parts[0]: name} if parts else name)  # an image encoder keeps what it has
    if text._attn_implementation != name:
        raise PackerError(
            f"{type(model).__name__} has attention of its own, which nothing can replace: `packer check` says what is "
            "safe for it"
        )
    compute_by_document(model)
    _FirstPass(model)
    return model


def accepted(model: PreTrainedModel, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a batch what a model's forward has no argument for: some take nothing but their own."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(batch)
    return {name: value for name, value in batch.items() if name in parameters}


class _FirstPass:
    """Checks that a model's first pass called this attention, then removes itself from the model.

    Compiled passes are checked while they are traced. They keep the hooks, which leave nothing in the compiled code.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.handle = model.register_forward_hook(self.after)
        self.layers = tuple({type(module) for module in model.modules()})

    def after(self, model: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.handle.remove()
        in_use = model.config.get_text_config()._attn_implementation == IMPLEMENTATION
        if in_use and not _any_called(self.layers):
            raise PackerError(
                f"{type(model).__name__} never called {IMPLEMENTATION}: it has attention of its own, in which "
                "documents may see each other; `packer check` says what is safe for it"
            )


# Both run while a model is traced and leave nothing in the compiled code. A count kept by the code itself would be
# guarded, so that every change compiled it anew.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_call(layer: type[torch.nn.Module]) -> None:
    _callers.add(layer)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _any_called(layers: tuple[type[torch.nn.Module], ...]) -> bool:
    return not _callers.isdisjoint(layers)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' AttentionInterface asks: called by every attention layer of a model.

    Args:
        module: the layer.
        query: `[rows, heads, tokens, head_size]`.
        key: `[rows, key_heads, tokens, head_size]`.
        value: `[rows, key_heads, tokens, value_size]`.
        attention_mask: must be None: the boundaries say which token sees which.
        dropout: must be 0.
        scaling: of the logits; None for `head_size ** -0.5`.
        sliding_window: tokens that a token sees, itself included; to both sides where attention is not causal.
        is_causal: None for what the layer says.
        position_ids: `[rows, tokens]`; restart with every segment. Used where there is no cu_seq_lens_q.
        cu_seq_lens_q: int32 `[segments + 1]` over all rows.
        max_length_q: tokens of the longest segment.
        **others: what transformers hands to every implementation; some of it is refused.

    Returns:
        (`[rows, tokens, heads, value_size]`, None).

    Raises:
        PackerError: the result would not be what the model means.
    """
    _note_call(type(module))
    rows, _, tokens, _ = query.shape
    _refuse_inputs(module, query, key, attention_mask, dropout, others)
    found = find_boundaries(
        rows,
        tokens,
        cu_seq_lens=cu_seq_lens_q,
        max_length=max_length_q,
        position_ids=position_ids,
        device=query.device,
    )
    _refuse_layers(module, sliding_window, found.longest)
    flat = [_kernel_dtype(tensor, value).transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
    attended = segment_attention(
        flat[0],
        flat[1],
        flat[2],
        found.cu_seqlens,
        found.longest,
        causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        window=sliding_window,
        scale=scaling,
    )
    return attended.reshape(rows, tokens, *attended.shape[1:]).contiguous(), None


def attention_mask(
    *,
    q_length: int | None = None,
    kv_length: int | None = None,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> None:
    """Make no mask, as transformers' AttentionMaskInterface asks; refuse one that the boundaries do not say.

    Raises:
        PackerError: tokens are masked, layers are chunked, or the model sees more or less than causal attention.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        hidden = int((~attention_mask.bool()).sum())
        raise PackerError(
            f"attention_mask hides {hidden:,} tokens, packed rows hide none: leave it out of the batch, and "
            "the padding too, as packer.collate does"
        )
    if mask_function is not None and q_length == kv_length and not torch.compiler.is_compiling():
        _refuse_overlay(mask_function, kv_length or 0, device)


def _refuse_overlay(mask_function: Any, tokens: int, device: torch.device | str) -> None:
    """Refuse a mask in which some tokens see the next one and others do not, as those of an image would."""
    places = torch.arange(max(tokens - 1, 0), device=device)
    sees_next = mask_function(torch.zeros_like(places), torch.zeros_like(places), places, places + 1)
    if bool(sees_next.any()) and not bool(sees_next.all()):
        raise PackerError(
            f"this model lets {int(sees_next.sum()):,} of {tokens:,} tokens see the one after them (as in an image), "
            f"which {IMPLEMENTATION} cannot: choose another attn_implementation; `packer check` says which is safe"
        )


def _refuse_inputs(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> None:
    name = type(module).__name__
    if attention_mask is not None:
        raise PackerError(
            f"{name} has an attention mask of shape {list(attention_mask.shape)}, packed rows have none: leave "
            "attention_mask out of the batch; a model that makes one by itself needs another attn_implementation"
        )
    if key.shape[2] != query.shape[2]:
        raise PackerError(
            f"{name} has {query.shape[2]:,} queries and {key.shape[2]:,} keys, as with a KV cache: {IMPLEMENTATION} "
            'takes whole documents; generate with model.set_attn_implementation("sdpa")'
        )
    if dropout:
        raise PackerError(
            f"{name} drops out {dropout:g} of its attention, the varlen kernel cannot: load the model with attention "
            "dropout 0 (attention_dropout, attn_pdrop or attention_probs_dropout_prob, as its config calls it)"
        )
    for argument, why in REFUSED.items():
        if others.get(argument) is not None:
            raise PackerError(f'{name} {why}: choose attn_implementation="eager", after `packer check`')


def _refuse_layers(module: torch.nn.Module, sliding_window: int | None, longest: int) -> None:
    """Refuse a layer whose kind, by the model's config, asks for what has not arrived here."""
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds and layer is not None and layer < len(kinds) else None
    chunk, window = getattr(config, "attention_chunk_size", None), getattr(config, "sliding_window", None)
    name = type(module).__name__
    refuse_frequencies_of_the_longest(config, longest)
    if chunk is not None and longest > chunk and kind in (None, "chunked_attention"):
        raise PackerError(
            f"{name} is chunked to {chunk:,} tokens, {IMPLEMENTATION} has no chunks and a segment has {longest:,}: "
            f'pack with --max-len {chunk}, or choose attn_implementation="sdpa"; `packer check` says which is safe'
        )
    if kind == "sliding_attention" and sliding_window is None and window is not None and longest > window:
        raise PackerError(
            f"{name} {layer} has a window of {window:,} tokens that does not reach attention: choose another "
            "attn_implementation; `packer check` says which is safe"
        )


def _kernel_dtype(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Bring queries and keys that were normalised in float32 back to the dtype that the kernel can work in."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor.to(value.dtype) if value.dtype in KERNEL_DTYPES else tensor
