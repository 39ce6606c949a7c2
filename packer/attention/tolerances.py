"""Tolerances for outputs of packed documents: fixed ones, and differences that rounding alone causes in a model.

In bfloat16, rounding alone can send a token to another expert, and errors grow with the depth of a model. Differences
between packed and single documents are therefore compared with differences between runs on the same single document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from packer.attention.compare_outputs import Outputs, differences, largest_difference, outputs_alone

FACTOR = 2.0
"""A difference up to this many times the measured effect of rounding may be rounding."""

SHAPES = ({"copies": 3}, {"padding": 7}, {"copies": 2, "padding": 23})
"""Other shapes of the batch that contains a document alone, in which sums are rounded differently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """Differences up to which the rounding of a model need not be measured. A leak causes 0.1 and more."""

    moved: float
    """Largest change of other documents, as in `Outputs.moved`."""

    difference: float
    """Largest relative difference between packed and single documents."""


TOLERANCES = {
    torch.float64: Tolerance(moved=1e-10, difference=1e-6),
    torch.float32: Tolerance(moved=1e-5, difference=1e-3),
}
"""Tolerance of each dtype, except float16 and bfloat16."""

HALF_TOLERANCE = Tolerance(moved=0.02, difference=0.0)
"""Tolerance of float16 and bfloat16, for which rounding is always measured."""


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance of a dtype."""
    return TOLERANCES.get(dtype, HALF_TOLERANCE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """Effect of rounding on single documents, and the effect of packing; the largest of the relative differences."""

    seen: float
    """Difference between single documents and the same in batches of other shapes, similar to rounding by packing."""

    most: float
    """Difference to runs with random last bits in the output of every layer, larger than any rounding by packing."""

    most_moved: float
    """Largest change of a logit in these runs, relative to the largest logit."""

    packed: float
    """Difference between packed and single documents, both by the implementation that is probed."""

    alone: float
    """Difference between single documents by that implementation and by a plain one."""


def measure_rounding(model: PreTrainedModel, batch: Mapping[str, Any], packed: Outputs, plain: Outputs) -> Rounding:
    """Measure the effect of rounding on a model that uses the implementation to be probed.

    Args:
        model: model in training mode, without dropout.
        batch: batch from `make_batches`.
        packed: outputs of the model for the batch.
        plain: outputs for the single documents, by an implementation that needs no boundaries.
    """
    alone = outputs_alone(model, batch, boundaries=True)
    perturbed = []
    for seed in range(2):
        with _random_last_bits(model, seed):
            perturbed.append(outputs_alone(model, batch, boundaries=True))
    most = max(max(differences(each, alone)) for each in perturbed)
    by_shape = [max(differences(outputs_alone(model, batch, boundaries=True, **shape), alone)) for shape in SHAPES]
    return Rounding(
        # More than 2 * most is not rounding: the model is an encoder that attends to the padding.
        seen=max((each for each in by_shape if each <= 2 * most), default=0.0),
        most=most,
        most_moved=max(largest_difference(each.logits, alone.logits) for each in perturbed),
        packed=max(differences(packed, alone)),
        alone=max(differences(alone, plain)),
    )


@contextmanager
def _random_last_bits(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """Multiply the output of every layer by a random factor between 1 - eps and 1 + eps of its dtype."""

    def perturb(_module: Any, _inputs: Any, output: Any) -> Any:
        if torch.is_tensor(output) and output.is_floating_point():
            return output * (1 + torch.finfo(output.dtype).eps * (2 * torch.rand_like(output) - 1))
        return output

    torch.manual_seed(seed)
    hooks = [module.register_forward_hook(perturb) for module in model.modules() if not list(module.children())]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
