"""The isolation probe: change one document of a packed batch, and no other may move.

No list of models survives the versions of transformers, torch and kernels; what is installed has to be asked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from packer.attention import IMPLEMENTATION
from packer.attention.hugging_face import use
from packer.errors import PackerError

import torch  # isort: skip  # hugging_face.py has said so if it is missing
import transformers  # isort: skip

from packer.attention.measuring import (
    Measured,
    as_trained,
    difference,
    make_batches,
    measure_alone,
    measure_packed,
    one_line,
)

TOLERANCES = {torch.float64: (1e-10, 1e-6), torch.float32: (1e-5, 1e-3)}
"""By dtype: (how far another document may move, how far packed may be from alone). A leak is 0.1 and more."""

HALF_TOLERANCE = (0.02, 0.2)
"""The same in float16 and bfloat16, where rounding alone sends a token to another expert."""

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

    @property
    def safe(self) -> bool:
        """Whether to train with it."""
        return self.answer == "safe"


def installed() -> list[str]:
    """Names of the attention implementations that can run here."""
    flash = ["flash_attention_2"] if transformers.utils.import_utils.is_flash_attn_2_available() else []
    return ["eager", "sdpa", IMPLEMENTATION, *flash]


def probe(model: transformers.PreTrainedModel, implementations: Sequence[str] | None = None) -> list[Verdict]:
    """See `packer.attention.probe`."""
    batch, changed = make_batches(model)
    with as_trained(model):
        _make_plain(model)
        alone = measure_alone(model, batch, changed)
        verdicts = [_judge(model, name, batch, changed, alone) for name in implementations or installed()]
    return [verdict if verdict.safe else replace(verdict, remedy=_remedy(verdicts)) for verdict in verdicts]


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
        packed = measure_packed(_switched(model, name), batch, changed)
    except Exception as error:  # whatever a model raises is its answer
        kind = "" if isinstance(error, PackerError) else f"{type(error).__name__}: "
        return Verdict(implementation=name, answer="refuses", reason=kind + one_line(error))
    logits = difference({"": packed.logits}, {"": alone.logits})
    loss = abs(packed.loss - alone.loss) / abs(alone.loss)
    gradients = difference(packed.gradients, alone.gradients)
    answer, reason = _answer(packed.moved, max(logits, loss, gradients), alone.moved, packed.logits.dtype)
    return Verdict(
        implementation=name,
        answer=answer,
        moved=packed.moved,
        logits=logits,
        loss=loss,
        gradients=gradients,
        reason=reason,
    )


def _answer(moved: float, apart: float, visible: float, dtype: torch.dtype) -> tuple[Answer, str]:
    """(answer, reason) for what was measured; `visible` is how far others move where nothing is between documents."""
    most_moved, most_apart = TOLERANCES.get(dtype, HALF_TOLERANCE)
    if not moved <= most_moved:  # so that NaN is no pass
        return "leaks", f"changing one document moved others by {moved:.2g} of the largest logit"
    if not apart <= most_apart:
        return "differs", f"no document sees another, yet packed they are {apart:.2g} away from alone"
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


def _remedy(verdicts: Sequence[Verdict]) -> str:
    """The implementation to train with instead, or what else there is."""
    safe = [verdict.implementation for verdict in verdicts if verdict.safe]
    if IMPLEMENTATION in safe:
        return "train with packer.attention.use(model)"
    if safe:
        return f'train with attn_implementation="{safe[0]}"'
    return (
        "no implementation here is safe: pack with --max-segments 1 and train on batches of 1 row, or check on a GPU "
        "with the kernels of its layers (flash-attn, mamba-ssm, causal-conv1d, flash-linear-attention)"
    )
