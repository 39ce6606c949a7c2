"""LongRoPE and dynamic RoPE with the frequencies that each document of a batch has by its own length.

transformers takes them from the longest document of the batch, so that one document beyond the threshold changes all
others; with dynamic RoPE, even those of the next batch.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from packer.attention import IMPLEMENTATION
from packer.attention.thresholds import BY_LONGEST, longest_unaffected
from packer.errors import PackerError

_configs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Configs, by id, of the models whose RoPE is computed for each document."""


def compute_by_document(model: Any) -> None:
    """Give each document its own frequencies while packer's attention is in use; does nothing for other RoPE."""
    for module in _rotary_modules(model):
        _configs[id(module.config)] = module.config
        if not any(isinstance(hook, _ByDocument) for hook in module._forward_hooks.values()):
            module.register_forward_hook(_ByDocument(), with_kwargs=True)


@contextmanager
def computed_by_document(model: Any) -> Iterator[None]:
    """The same for a while, whatever attention is in use."""
    hooks = [
        module.register_forward_hook(_ByDocument(always=True), with_kwargs=True) for module in _rotary_modules(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def refuse_frequencies_of_the_longest(config: Any, longest: int) -> None:
    """Refuse a segment that would change the frequencies of others.

    Raises:
        PackerError: the model has such RoPE, a segment is long enough, and `compute_by_document` was not called.
    """
    if not hasattr(config, "rope_parameters") or torch.compiler.is_compiling():
        return
    unaffected = longest_unaffected(config)
    if unaffected is not None and longest > unaffected and id(config) not in _configs:
        raise PackerError(
            f"a segment of {longest:,} tokens is above the {unaffected:,} at which this model's RoPE changes its "
            "frequencies, for all documents of the batch: packer.attention.use(model) gives each document its own"
        )


def takes_frequencies_of_the_longest(model: Any) -> bool:
    """Whether a document can change the frequencies of others in this model."""
    return bool(_rotary_modules(model))


def _rotary_modules(model: Any) -> list[Any]:
    """Modules of the language model whose frequencies follow the longest document."""
    kind = type(model.config.get_text_config())
    found = []
    for module in model.modules():
        types = getattr(module, "rope_type", "")
        named = types.values() if isinstance(types, dict) else [types]
        by_longest = any(word in str(name) for word in BY_LONGEST for name in named)
        if by_longest and isinstance(getattr(module, "config", None), kind):
            found.append(module)
    return found


class _ByDocument:
    """Forward hook of a rotary embedding, which computes it again for documents of each length that matters."""

    def __init__(self, *, always: bool = False) -> None:
        self.always = always
        """Work with any attention, not only with packer's."""

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Any:
        if not self.always and module.config._attn_implementation != IMPLEMENTATION:
            return None
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        parameters, kind = module.config.rope_parameters, module.rope_type
        if isinstance(kind, dict):
            parameters, kind = parameters[given["layer_type"]], kind[given["layer_type"]]
        if not any(word in kind for word in BY_LONGEST):  # other layers of the same model
            return None
        positions = given["position_ids"]
        if positions.ndim != 2:
            raise PackerError(
                f"{type(module).__name__} takes its frequencies from the longest document, and position_ids of shape "
                f"{list(positions.shape)} do not tell documents apart: pack with --max-segments 1"
            )
        with torch.no_grad():
            if "dynamic" in kind:
                return _by_length(module, given, positions)
            return _by_two_sets(module, given, positions, parameters["original_max_position_embeddings"])


def _by_length(module: Any, given: dict[str, Any], positions: torch.Tensor) -> Any:
    """Dynamic RoPE: each length above the limit has its own frequencies."""
    lengths, limit = document_lengths(positions), module.original_max_seq_len
    longer = torch.unique(lengths[lengths > limit]).tolist()
    found = None
    for group in (lengths <= limit, *(lengths == length for length in longer)):
        module.forward(**{**given, "position_ids": torch.zeros_like(positions)})  # back to the first frequencies
        part = module.forward(**{**given, "position_ids": positions.where(group, 0)})
        found = part if found is None else _chosen(group, part, found)
    return found


def _by_two_sets(module: Any, given: dict[str, Any], positions: torch.Tensor, limit: int) -> Any:
    """LongRoPE: two sets of frequencies; no look at values, which would break a compiled graph."""
    long = document_lengths(positions) > limit
    of_short = module.forward(**{**given, "position_ids": positions.where(~long, 0)})
    return _chosen(long, module.forward(**{**given, "position_ids": positions.where(long, 0)}), of_short)


def document_lengths(positions: torch.Tensor) -> torch.Tensor:
    """Tokens of the document that each token is in: [[0, 1, 2, 0, 1]] -> [[3, 3, 3, 2, 2]]."""
    tokens = positions.shape[1]
    places = torch.arange(tokens, device=positions.device).expand_as(positions)
    ends = torch.ones_like(positions, dtype=torch.bool)
    ends[:, :-1] = positions.diff(dim=1) != 1
    end = places.where(ends, tokens).flip(1).cummin(dim=1).values.flip(1)  # the next end, from the right
    return positions.gather(1, end) + 1


def _chosen(group: torch.Tensor, part: Any, other: Any) -> Any:
    """`part` for the tokens of a group and `other` for the rest; both are tensors, or tuples of them (cos, sin)."""
    if isinstance(part, tuple):
        return tuple(_chosen(group, one, another) for one, another in zip(part, other, strict=True))
    return torch.where(group[..., None], part, other)
