"""The isolation probe: change one document of a packed batch, and no other may move.

No list of models survives the versions of transformers, torch and kernels; what is installed has to be asked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from packer.attention import IMPLEMENTATION
from packer.attention.hugging_face import use
from packer.errors import PackerError

import torch  # isort: skip  # hugging_face.py has said so if it is missing
import transformers  # isort: skip

from packer.attention.measuring import (
    LENGTHS,
    Measured,
    apart,
    as_trained,
    make_batches,
    measure_alone,
    measure_packed,
    one_line,
)
from packer.attention.rope import takes_frequencies_of_the_longest
from packer.attention.rounding import Rounding, measure_rounding
from packer.attention.thresholds import uncovered

TOLERANCES = {torch.float64: (1e-10, 1e-6), torch.float32: (1e-5, 1e-3)}
"""By dtype: (how far another document may move, how far packed may be from alone) without a look at how the model
rounds. A leak is 0.1 and more."""

HALF_TOLERANCE = (0.02, 0.0)
"""The same in float16 and bfloat16, where the model's rounding is always measured."""

FACTOR = 2.0
"""Times what rounding was seen to do, up to which a difference may be rounding."""

Answer = Literal["safe", "leaks", "differs", "refuses", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one attention implementation makes of packed documents."""

    implementation: str
    """As in `from_pretrained(attn_implementation=...)`."""

    answer: Answer
    """safe: as alone. leaks: a document moved when another changed. differs: none moved, yet packed is not as alone.
    refuses: it raised an error. unclear: this model would hardly show a leak."""

    moved: float | None = None
    """How far logits of other documents moved, relative to the largest logit; None where it refuses, as below."""

    logits: float | None = None
    """Distance of packed from alone, relative to the norm of those alone; for all documents together."""

    loss: float | None = None
    """The same for the loss."""

    gradients: float | None = None
    """The same for the gradients of all parameters together."""

    reason: str = ""
    """What is wrong, in a line; empty where it is safe."""

    remedy: str = ""
    """What to do about it, in a line; empty where it is safe."""

    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Fields of the config, such as a sliding window, above the lengths that were probed: the verdict holds for batches
    of up to so many tokens. Empty where it holds for any."""

    @property
    def safe(self) -> bool:
        """Whether to train with it."""
        return self.answer == "safe"


def installed() -> list[str]:
    """Names of the attention implementations that can run here."""
    flash = ["flash_attention_2"] if transformers.utils.import_utils.is_flash_attn_2_available() else []
    return ["eager", "sdpa", IMPLEMENTATION, *flash]


def probe(
    model: transformers.PreTrainedModel, implementations: Sequence[str] | None = None, *, position_offset: int = 0
) -> list[Verdict]:
    """See `packer.attention.probe`."""
    names = implementations or installed()
    thresholds = uncovered(model.config.get_text_config(), max(LENGTHS))
    with as_trained(model):
        verdicts = _judge_all(model, names, position_offset)
        remedy = _remedy(verdicts, position_offset)
        if not any(verdict.safe for verdict in verdicts) and not position_offset:
            remedy = _remedy_by_offset(model, verdicts) or remedy
    return [replace(verdict, thresholds=thresholds, remedy="" if verdict.safe else remedy) for verdict in verdicts]


def _judge_all(model: transformers.PreTrainedModel, names: Sequence[str], position_offset: int) -> list[Verdict]:
    batch, changed = make_batches(model, position_offset)
    _make_plain(model)
    alone = measure_alone(model, batch, changed)
    return [_judge(model, name, batch, changed, alone) for name in names]


def _make_plain(model: transformers.PreTrainedModel) -> None:
    """Let a model compute documents alone without what is to be judged."""
    if _implementation(model) in ("eager", "sdpa"):
        return
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # which this model does not support
        model.set_attn_implementation("eager")


def _implementation(model: transformers.PreTrainedModel) -> str:
    """The attention implementation of a model, or of the language model in it."""
    name: str = model.config.get_text_config()._attn_implementation
    return name


def _judge(
    model: transformers.PreTrainedModel,
    name: str,
    batch: Mapping[str, Any],
    changed: Mapping[str, Any],
    alone: Measured,
) -> Verdict:
    """Compare what one implementation makes of packed documents with the documents alone."""
    try:
        switched = _switched(model, name)
        packed = measure_packed(switched, batch, changed)
        rounding = None if _within(packed, alone) else measure_rounding(switched, batch, packed, alone)
    except Exception as error:  # whatever a model raises is its answer
        kind = "" if isinstance(error, PackerError) else f"{type(error).__name__}: "
        return Verdict(implementation=name, answer="refuses", reason=kind + one_line(error))
    logits, loss, gradients = apart(packed, alone)
    answer, reason = _answer(packed.moved, max(logits, loss, gradients), alone.moved, rounding, packed.logits.dtype)
    if answer == "differs" and takes_frequencies_of_the_longest(model):
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


def _within(packed: Measured, alone: Measured) -> bool:
    """Whether no difference is large enough to ask whether it is rounding; NaN is one that is."""
    most_moved, most_apart = TOLERANCES.get(packed.logits.dtype, HALF_TOLERANCE)
    return packed.moved <= most_moved and all(each <= most_apart for each in apart(packed, alone))


def _answer(
    moved: float, distance: float, visible: float, rounding: Rounding | None, dtype: torch.dtype
) -> tuple[Answer, str]:
    """(answer, reason) for what was measured.

    Args:
        moved: how far others moved.
        distance: of packed from alone.
        visible: how far others move where nothing is between documents.
        rounding: None where both are too small to ask for it.
        dtype: of the model.
    """
    most_moved, most_apart = TOLERANCES.get(dtype, HALF_TOLERANCE)
    if rounding is not None:  # comparisons are such that NaN is never a pass
        different = not max(rounding.packed, rounding.alone) <= max(FACTOR * rounding.most, most_apart)
        if not moved <= most_moved and (different or not moved <= FACTOR * rounding.most_moved):
            return "leaks", f"changing one document moved others by {moved:.2g} of the largest logit"
        if different:
            return "differs", f"no document sees another, yet packed they are {distance:.2g} away from alone"
        if not moved <= most_moved or not rounding.packed <= max(FACTOR * rounding.seen, most_apart):
            return "unclear", (
                f"packed documents are {rounding.packed:.2g} away from alone, and rounding in "
                f"{str(dtype).removeprefix('torch.')} moves them by {rounding.seen:.2g} to {rounding.most:.2g}"
            )
    if not visible > 2 * most_moved:
        return "unclear", f"even with nothing between them, documents move each other by {visible:.2g} only"
    return "safe", ""


def _switched(model: transformers.PreTrainedModel, name: str) -> transformers.PreTrainedModel:
    """The model with another attention implementation; a copy where it takes one only when it is made."""
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
    """The implementation to train with instead, or what else there is."""
    safe = [verdict.implementation for verdict in verdicts if verdict.safe]
    batches = f" on packer.batches(..., position_offset={position_offset})" if position_offset else ""
    if IMPLEMENTATION in safe:
        return f"train with packer.attention.use(model){batches}"
    if safe:
        return f'train with attn_implementation="{safe[0]}"{batches}'
    if any(verdict.answer == "unclear" for verdict in verdicts):
        return "no implementation here was shown to be safe: probe the model in float32, and with weights that matter"
    return (
        "no implementation here is safe: pack with --max-segments 1 and train on batches of 1 row, or check on a GPU "
        "with the kernels of its layers (flash-attn, mamba-ssm, causal-conv1d, flash-linear-attention)"
    )


def _remedy_by_offset(model: transformers.PreTrainedModel, verdicts: Sequence[Verdict]) -> str:
    """What to do where a model is as alone once positions count from its padding's id plus 1; else nothing."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    differ = [verdict.implementation for verdict in verdicts if verdict.answer == "differs"]
    if padding is None or not differ:
        return ""
    shifted = _judge_all(model, differ, padding + 1)
    return _remedy(shifted, padding + 1) if any(verdict.safe for verdict in shifted) else ""
