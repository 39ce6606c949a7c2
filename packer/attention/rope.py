"""LongRoPE and dynamic RoPE with separate frequencies for each document of a batch.

transformers derives the frequencies from the longest document of the batch. A document above the threshold therefore
changes all others; with dynamic RoPE, also those of the next batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from transformers import PretrainedConfig, PreTrainedModel

from packer.attention.varlen import IMPLEMENTATION
from packer.errors import PackerError

Embedding: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
"""Output of a rotary module: (cos, sin), or one tensor of complex numbers."""

BY_LONGEST = ("dynamic", "longrope")
"""Types of RoPE whose frequencies transformers derives from the longest document of a batch."""


def use_document_frequencies(model: PreTrainedModel) -> None:
    """Make a model use separate frequencies for each document while it runs packer's attention.

    Has no effect on models whose frequencies do not depend on the length of documents.
    """
    for module in longest_rope_modules(model):
        if not any(isinstance(hook, _ByDocument) for hook in module._forward_hooks.values()):
            module.register_forward_hook(_ByDocument(), with_kwargs=True)


@contextmanager
def document_frequencies(model: PreTrainedModel) -> Iterator[None]:
    """Use separate frequencies for each document within the context, with any attention implementation."""
    hooks = [
        module.register_forward_hook(_ByDocument(always=True), with_kwargs=True)
        for module in longest_rope_modules(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rope_limit(config: PretrainedConfig) -> int | None:
    """Return the length in tokens above which a document changes the RoPE frequencies of others; None if none does."""
    limits = []
    for rope in rope_parameters(config):
        if "dynamic" in rope["rope_type"]:
            limits.append(config.max_position_embeddings)
        elif depends_on_longest(rope["rope_type"]):
            limits.append(rope["original_max_position_embeddings"])
    return min(limits, default=None)


def depends_on_longest(rope_type: str) -> bool:
    """Return whether transformers derives the frequencies of a type of RoPE from the longest document of a batch."""
    return any(name in str(rope_type) for name in BY_LONGEST)


def rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the RoPE parameters of a config; several if layer types have parameters of their own."""
    parameters = vars(config).get("rope_parameters") or {}
    each = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [rope for rope in each if "rope_type" in rope]


def longest_rope_modules(model: PreTrainedModel) -> list[Any]:
    """Return the modules of the language model whose frequencies depend on the longest document."""
    config_class = type(model.config.get_text_config())
    found = []
    for module in model.modules():
        rope_type = getattr(module, "rope_type", "")
        types = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
        if any(map(depends_on_longest, types)) and isinstance(getattr(module, "config", None), config_class):
            found.append(module)
    return found


class _ByDocument:
    """Forward hook of a rotary embedding that recomputes it for each document length with frequencies of its own."""

    def __init__(self, *, always: bool = False) -> None:
        self.always = always
        """Whether the hook applies to any attention implementation, not only to packer's."""

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> Embedding | None:
        if not self.always and module.config._attn_implementation != IMPLEMENTATION:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        parameters, rope_type = module.config.rope_parameters, module.rope_type
        if isinstance(rope_type, dict):
            layer_type = arguments["layer_type"]
            parameters, rope_type = parameters[layer_type], rope_type[layer_type]
        if not depends_on_longest(rope_type):  # another layer type of the same model
            return None
        positions = arguments.pop("position_ids")
        if positions.ndim != 2:
            raise PackerError(
                f"{type(module).__name__} derives its frequencies from the longest document, and position_ids of shape "
                f"{list(positions.shape)} do not show where documents begin: pack with --max-segments 1"
            )
        with torch.no_grad():
            if "dynamic" in rope_type:
                return _dynamic_rope(module, arguments, positions)
            return _longrope(module, arguments, positions, parameters["original_max_position_embeddings"])


def _dynamic_rope(module: Any, arguments: dict[str, Any], positions: torch.Tensor) -> Embedding:
    """Return the module's output for dynamic RoPE, which has other frequencies for each length above the limit."""
    lengths, limit = document_lengths(positions), module.original_max_seq_len
    longer = torch.unique(lengths[lengths > limit]).tolist()
    found: Embedding | None = None
    for group in (lengths <= limit, *(lengths == length for length in longer)):
        module.forward(position_ids=torch.zeros_like(positions), **arguments)  # resets the frequencies
        output = module.forward(position_ids=positions.where(group, 0), **arguments)
        found = output if found is None else _where(group, output, found)
    assert found is not None
    return found


def _longrope(module: Any, arguments: dict[str, Any], positions: torch.Tensor, limit: int) -> Embedding:
    """Return the module's output for LongRoPE, which has one set of frequencies above the limit and one below.

    Does not depend on tensor values in Python, which would break a compiled graph.
    """
    is_long = document_lengths(positions) > limit
    short = module.forward(position_ids=positions.where(~is_long, 0), **arguments)
    long = module.forward(position_ids=positions.where(is_long, 0), **arguments)
    return _where(is_long, long, short)


def document_lengths(positions: torch.Tensor) -> torch.Tensor:
    """Return the length of each token's document, shaped like `positions`: [[0, 1, 2, 0, 1]] -> [[3, 3, 3, 2, 2]]."""
    tokens = positions.shape[1]
    places = torch.arange(tokens, device=positions.device).expand_as(positions)
    ends = torch.ones_like(positions, dtype=torch.bool)
    ends[:, :-1] = positions.diff(dim=1) != 1
    end = places.where(ends, tokens).flip(1).cummin(dim=1).values.flip(1)  # last token of each token's document
    return positions.gather(1, end) + 1


def _where(condition: torch.Tensor, output: Any, other: Any) -> Embedding:
    """Return `output` for the tokens that meet a condition and `other` for the rest; tensors, or tuples (cos, sin)."""
    if isinstance(output, tuple):
        return tuple(torch.where(condition[..., None], *pair) for pair in zip(output, other, strict=True))
    return torch.where(condition[..., None], output, other)
