"""How far a model is from itself when the same numbers are rounded another way, in its own dtype.

In bfloat16 a token can go to another expert by rounding alone, and in a deep model errors grow. What packing may change
is therefore measured against what the model does to one and the same document alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from packer.attention.measuring import Measured, apart, largest_difference, train_alone

SHAPES = ({"copies": 3}, {"padding": 7}, {"copies": 2, "padding": 23})
"""Batches in which each document stands alone once more, with other sums in another order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What rounding alone does to documents, relative as in `apart`, and what packing does beside it."""

    seen: float
    """Distance of documents alone from the same in batches of other shapes; packing rounds about as much."""

    most: float
    """Distance from the same with the last bit of every layer's output drawn at random: more than packing rounds."""

    most_moved: float
    """The same for the logit that moves most, relative to the largest logit."""

    packed: float
    """Distance of packed documents from the same alone, both by the implementation that is judged."""

    alone: float
    """Distance of documents alone by that implementation from the same by a plain one."""


def measure_rounding(model: PreTrainedModel, batch: Mapping[str, Any], packed: Measured, plain: Measured) -> Rounding:
    """Measure a model that has the implementation to be judged.

    Args:
        model: in training mode, without dropout.
        batch: of `make_batches`.
        packed: what the model makes of the batch.
        plain: what it makes of the documents alone, by an implementation that needs no boundaries.
    """
    alone = train_alone(model, batch, boundaries=True)
    shaken = []
    for seed in range(2):
        with _last_bits_at_random(model, seed):
            shaken.append(train_alone(model, batch, boundaries=True))
    most = max(max(apart(each, alone)) for each in shaken)
    shapes = [max(apart(train_alone(model, batch, boundaries=True, **shape), alone)) for shape in SHAPES]
    return Rounding(
        seen=max((each for each in shapes if each <= 2 * most), default=0.0),  # more is an encoder that sees padding
        most=most,
        most_moved=max(largest_difference(each.logits, alone.logits) for each in shaken),
        packed=max(apart(packed, alone)),
        alone=max(apart(alone, plain)),
    )


@contextmanager
def _last_bits_at_random(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """Multiply the output of every layer by 1, give or take the dtype's precision."""

    def shake(_module: Any, _inputs: Any, output: Any) -> Any:
        if torch.is_tensor(output) and output.is_floating_point():
            return output * (1 + torch.finfo(output.dtype).eps * (2 * torch.rand_like(output) - 1))
        return output

    torch.manual_seed(seed)
    hooks = [module.register_forward_hook(shake) for module in model.modules() if not list(module.children())]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
