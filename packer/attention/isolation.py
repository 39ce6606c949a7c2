"""Isolation probe: change one document of a packed batch and check that the outputs of all others stay the same.

A list of safe models would not outlive the next version of transformers, torch or a kernel, so the installed ones are
tested.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.attention.implementations import IMPLEMENTATION, installed_implementations
from packer.attention.transformers_hook import use
from packer.errors import PackerError

import torch  # isort: skip  # transformers_hook raises PackerError if it is missing
import transformers  # isort: skip

from packer.attention.compare_outputs import (
    LENGTHS,
    Outputs,
    differences,
    make_batches,
    one_line,
    packed_outputs,
    reference_outputs,
    training_without_dropout,
)
from packer.attention.rope import depends_on_longest_document
from packer.attention.thresholds import thresholds_above
from packer.attention.tolerances import FACTOR, Rounding, measure_rounding, tolerance_of
from packer.attention.verdict import Answer, Verdict


def probe(
    model: transformers.PreTrainedModel, implementations: Sequence[str] | None = None, *, position_offset: int = 0
) -> list[Verdict]:
    """Return a verdict for each attention implementation; see `packer.attention.probe`."""
    names = implementations or installed_implementations()
    thresholds = thresholds_above(model.config.get_text_config(), max(LENGTHS))
    with training_without_dropout(model):
        verdicts = _judge_all(model, names, position_offset)
        remedy = _remedy(verdicts, position_offset)
        if not any(verdict.safe for verdict in verdicts) and not position_offset:
            remedy = _remedy_by_offset(model, verdicts) or remedy
    return [replace(verdict, thresholds=thresholds, remedy="" if verdict.safe else remedy) for verdict in verdicts]


def _judge_all(model: transformers.PreTrainedModel, names: Sequence[str], position_offset: int) -> list[Verdict]:
    batch, changed = make_batches(model, position_offset)
    _use_plain_attention(model)
    alone = reference_outputs(model, batch, changed)
    return [_judge(model, name, batch, changed, alone) for name in names]


def _use_plain_attention(model: transformers.PreTrainedModel) -> None:
    """Switch a model to an implementation that needs no boundaries for single documents."""
    if _implementation(model) in ("eager", "sdpa"):
        return
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # not supported by this model
        model.set_attn_implementation("eager")


def _implementation(model: transformers.PreTrainedModel) -> str:
    """Return the attention implementation of a model, or of its language model."""
    name: str = model.config.get_text_config()._attn_implementation
    return name


def _judge(
    model: transformers.PreTrainedModel,
    name: str,
    batch: Mapping[str, Any],
    changed: Mapping[str, Any],
    alone: Outputs,
) -> Verdict:
    """Compare the outputs of one implementation for packed documents with those for single documents."""
    try:
        switched = _switched(model, name)
        packed = packed_outputs(switched, batch, changed)
        rounding = None if _within_tolerance(packed, alone) else measure_rounding(switched, batch, packed, alone)
    except Exception as error:  # an error of any type is the model's answer
        prefix = "" if isinstance(error, PackerError) else f"{type(error).__name__}: "
        return Verdict(implementation=name, answer="refuses", reason=prefix + one_line(error))
    logits, loss, gradients = differences(packed, alone)
    answer, reason = _answer(packed.moved, max(logits, loss, gradients), alone.moved, rounding, packed.logits.dtype)
    if answer == "differs" and depends_on_longest_document(model):
        reason += " (RoPE takes its frequencies from the longest document of the batch)"
    return Verdict(
        implementation=name,
        answer=answer,
        moved=packed.moved,
        logits=logits,
        loss=loss,
        gradients=gradients,
        reason=reason,
    )


def _within_tolerance(packed: Outputs, alone: Outputs) -> bool:
    """Return whether all differences are so small that rounding need not be measured; False for NaN."""
    tolerance = tolerance_of(packed.logits.dtype)
    return packed.moved <= tolerance.moved and all(
        difference <= tolerance.difference for difference in differences(packed, alone)
    )


def _answer(
    moved: float, difference: float, moved_by_leak: float, rounding: Rounding | None, dtype: torch.dtype
) -> tuple[Answer, str]:
    """Return (answer, reason). Comparisons are written so that NaN never passes.

    Args:
        moved: change of other documents.
        difference: largest relative difference between packed and single documents.
        moved_by_leak: change of other documents without boundaries.
        rounding: effect of rounding; None if both differences are within the tolerance.
        dtype: dtype of the model.
    """
    tolerance = tolerance_of(dtype)
    if rounding is not None:
        limit = max(FACTOR * rounding.most, tolerance.difference)
        differs = not max(rounding.packed, rounding.alone) <= limit
        if not moved <= tolerance.moved and (differs or not moved <= FACTOR * rounding.most_moved):
            return "leaks", f"changing one document moved others by {moved:.2g} of the largest logit"
        if differs:
            return "differs", f"no document affects another, but packed and single ones differ by {difference:.2g}"
        if not moved <= tolerance.moved or not rounding.packed <= max(FACTOR * rounding.seen, tolerance.difference):
            return "unclear", (
                f"packed and single documents differ by {rounding.packed:.2g}, and rounding in "
                f"{str(dtype).removeprefix('torch.')} alone moves them by {rounding.seen:.2g} to {rounding.most:.2g}"
            )
    if not moved_by_leak > 2 * tolerance.moved:
        return "unclear", f"even without boundaries, documents move each other by only {moved_by_leak:.2g}"
    return "safe", ""


def _switched(model: transformers.PreTrainedModel, name: str) -> transformers.PreTrainedModel:
    """Return the model with another attention implementation; a copy if it can be set only on creation."""
    if name == IMPLEMENTATION:
        return use(model)
    if _implementation(model) != name:
        model.set_attn_implementation(name)
    if _implementation(model) == name:
        return model
    config = copy.deepcopy(model.config)
    config._attn_implementation = name
    other: Any = type(model)(config)
    other.load_state_dict(model.state_dict())
    switched: transformers.PreTrainedModel = other.to(model.device, model.dtype).train()
    return switched


def _remedy(verdicts: Sequence[Verdict], position_offset: int) -> str:
    """Return what to use instead of the implementations that are not safe."""
    safe = [verdict.implementation for verdict in verdicts if verdict.safe]
    batches = f" on packer.batches(..., position_offset={position_offset})" if position_offset else ""
    if IMPLEMENTATION in safe:
        return f"train with packer.attention.use(model){batches}"
    if safe:
        return f'train with attn_implementation="{safe[0]}"{batches}'
    if any(verdict.answer == "unclear" for verdict in verdicts):
        return "none of the implementations is shown to be safe: probe the model in float32, or with trained weights"
    return (
        "no implementation here is safe: pack with --max-segments 1 and train on batches of 1 row, or check on a GPU "
        "with the kernels of its layers (flash-attn, mamba-ssm, causal-conv1d, flash-linear-attention)"
    )


def _remedy_by_offset(model: transformers.PreTrainedModel, verdicts: Sequence[Verdict]) -> str:
    """Return the remedy for a model that is safe once positions start at its padding id plus 1; "" for others."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    differ = [verdict.implementation for verdict in verdicts if verdict.answer == "differs"]
    if padding is None or not differ:
        return ""
    shifted = _judge_all(model, differ, padding + 1)
    return _remedy(shifted, padding + 1) if any(verdict.safe for verdict in shifted) else ""
