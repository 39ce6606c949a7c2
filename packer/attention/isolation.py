"""Isolation probe: change one document of a packed batch and check that the outputs of all others stay the same.

The installed versions are tested, because a list of safe models would soon be out of date.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, cast

from packer.attention.transformers_hook import accepted_arguments, use
from packer.errors import PackerError

import torch  # isort: skip  # transformers_hook raises PackerError if it is missing
from transformers import PreTrainedModel  # isort: skip
from transformers.utils import import_utils  # isort: skip

from packer.attention.compare_outputs import (
    FACTOR,
    LARGEST_SAFE,
    LENGTHS,
    PATHS,
    TOLERANCES,
    Outputs,
    Reference,
    Rounding,
    batch_outputs,
    differences,
    document_outputs,
    earlier_moved,
    is_rounding,
    make_reference,
    make_tree_batch,
    measure_rounding,
    one_line,
    others_moved,
    outputs_alone,
    seeded,
    without_dropout,
)
from packer.attention.load_model import thresholds_above
from packer.attention.rope import longest_rope_modules
from packer.attention.trees import block_mask, dense_mask
from packer.attention.varlen import IMPLEMENTATION, KERNEL_DTYPES

EXACT = ("eager", "sdpa", IMPLEMENTATION)
"""Implementations that run in float32 on every device."""

MASKED = ("eager", "sdpa", "flex_attention")
"""Implementations that attend by the mask that they are given."""

MASK_REMEDY = (
    "train it without packing, with the arguments that its documentation names (such as token_type_ids) and an "
    "attn_implementation that uses them"
)
"""Remedy for a model whose attention sees later tokens, or not, depending on the implementation."""


Answer = Literal["safe", "leaks", "differs", "refuses", "unclear"]
TreeAnswer = Literal["safe", "differs", "refuses"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Result of the probe for one attention implementation."""

    implementation: str
    """Name of the implementation, as in `from_pretrained(attn_implementation=...)`."""

    answer: Answer
    """One of five words.

    - "safe": packed documents have the same outputs as single ones.
    - "leaks": changing a document changed others, or in a causal model, changing a token changed earlier ones.
    - "differs": it did not, but packed documents have other outputs than single ones.
    - "refuses": the model raised an error.
    - "unclear": the probe could not distinguish a leak from rounding, or eager and sdpa differ on single documents.
    """

    moved: float | None = None
    """Largest change of a logit of another document, relative to the largest logit. None, like the next three, if the
    answer is "refuses"."""

    logits: float | None = None
    """Norm of the difference between the logits of packed and single documents, relative to the norm for single
    documents."""

    loss: float | None = None
    """Relative difference of the loss."""

    gradients: float | None = None
    """Relative difference of the gradients of all parameters together."""

    reason: str = ""
    """Why the implementation is not safe, in one line; empty if it is."""

    remedy: str = ""
    """What to use instead, in one line; empty if the implementation is safe."""

    trees: TreeAnswer = "refuses"
    """One of "safe", "differs" and "refuses".

    This is for a batch of format "tree", in which documents share tokens. Models in half precision are compared in
    float32. Implementations other than packer's get a mask, which is `block_mask` for flex_attention and `dense_mask`
    for eager and sdpa. FlashAttention takes none.
    """

    trees_reason: str = ""
    """Why trees are not safe, in one line; empty if they are."""

    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Config fields, such as a sliding window, that exceed the probed lengths. The verdict holds for batches of up to
    so many tokens; if empty, for any."""

    @property
    def safe(self) -> bool:
        """Whether the answer is "safe"."""
        return self.answer == "safe"


def installed_implementations() -> list[str]:
    """Return the names of the attention implementations that can run on this machine.

    Kernels from the Hub, which would be downloaded, are not among them.
    """
    flash = [
        f"flash_attention_{version}"
        for version in (2, 3, 4)
        if getattr(import_utils, f"is_flash_attn_{version}_available", bool)()  # bool() is False: an older transformers
    ]
    return ["eager", "sdpa", IMPLEMENTATION, *flash]


def probe(
    model: PreTrainedModel,
    implementations: Sequence[str] | None = None,
    *,
    position_offset: int = 0,
    also_in_float32: bool = False,
) -> list[Verdict]:
    """Test for each attention implementation whether documents in a packed batch affect each other.

    The model runs on a batch of `packer.collate`, then on the same batch with one document changed; the outputs of all
    other documents must stay the same. Logits, loss and gradients are also compared with those of each document alone;
    where they differ, the difference is compared with the effect of rounding on the model. In a causal language
    model, no token may change earlier ones, and eager and sdpa must agree on single documents. A copy of the model is
    probed, so the model itself stays as it is. Documents have up to 20 tokens: `Verdict.thresholds` lists config
    fields, such as a sliding window, above which the model may behave differently.

    Args:
        model: model to probe, on its device and in its dtype; a few layers suffice.
        implementations: values of `attn_implementation`; by default all that are installed.
        position_offset: position of the first token of every document, as in `packer.batches`.
        also_in_float32: whether a model in half precision is probed in float32 as well: what is not safe in float32 is
            not safe, and float32 decides what is unclear in half precision.

    Returns:
        One verdict per implementation, in order.

    Raises:
        PackerError: torch or transformers is not installed, or the model fails on single documents.
    """
    names = implementations or installed_implementations()
    thresholds = thresholds_above(model.config.get_text_config(), max(LENGTHS))
    with seeded():
        model = without_dropout(model)
        verdicts = _judge_all(model, names, position_offset)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the kernels lack float32 and small heads
            exact = model
            if model.dtype in KERNEL_DTYPES:
                exact = copy.deepcopy(model)
                cast("torch.nn.Module", exact).to(torch.float32)  # in place
                if also_in_float32:
                    verdicts = _confirm_in_float32(exact, verdicts, position_offset)
            verdicts = _judge_trees(exact, verdicts)
        remedy = _remedy(verdicts, position_offset)
        if not any(verdict.safe for verdict in verdicts) and not position_offset:
            remedy = _remedy_by_offset(model, verdicts) or remedy
    return [
        replace(verdict, thresholds=thresholds, remedy="" if verdict.safe else verdict.remedy or remedy)
        for verdict in verdicts
    ]


def _confirm_in_float32(model: PreTrainedModel, verdicts: Sequence[Verdict], position_offset: int) -> list[Verdict]:
    """Replace verdicts that are unclear or safe in half precision by the verdicts of the model in float32."""
    names = [verdict.implementation for verdict in verdicts if verdict.implementation in EXACT]
    exact = {each.implementation: each for each in _judge_all(model, names, position_offset)}
    confirmed = []
    for verdict in verdicts:
        found = exact.get(verdict.implementation, verdict)
        if verdict.answer == "unclear" or (verdict.safe and found.answer in ("leaks", "differs", "unclear")):
            reason = f"in float32, {found.reason}" if found is not verdict and found.reason else found.reason
            verdict = replace(found, reason=reason)
        confirmed.append(verdict)
    return confirmed


def _judge_trees(model: PreTrainedModel, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Add verdicts for trees, from a model that is not in half precision."""
    batch, documents = make_tree_batch(model)
    _use_plain_attention(model)
    alone = document_outputs(model, documents)
    judged = []
    for verdict in verdicts:
        answer, reason = _judge_tree(model, verdict.implementation, batch, alone)
        judged.append(replace(verdict, trees=answer, trees_reason=reason))
    return judged


def _judge_tree(model: PreTrainedModel, name: str, batch: Mapping[str, Any], alone: Outputs) -> tuple[TreeAnswer, str]:
    """Return the answer for trees of one implementation, and why it is not "safe"."""
    if name not in (*MASKED, IMPLEMENTATION):
        return "refuses", "it takes neither a tree nor a mask of one"
    try:
        switched = _switched(model, name)
        arguments = accepted_arguments(switched, batch if name == IMPLEMENTATION else _masked(switched, name, batch))
        if name == IMPLEMENTATION and "tree" not in arguments:
            return "refuses", f"the forward method of {type(model).__name__} does not accept the argument tree"
        run = partial(batch_outputs, switched, arguments, places=[*chain(*PATHS)])
        found = run()
        if is_rounding(switched, run, found, alone):
            return "safe", ""
    except Exception as error:  # an error of any type is the model's answer
        return "refuses", _refusal(model, name, error)
    return "differs", f"documents in a tree and single ones differ by {max(differences(found, alone)):.2g}"


def _masked(model: PreTrainedModel, name: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of trees with a mask instead of its tree, or one for each kind of layer."""
    config, tree = model.config.get_text_config(), batch["tree"]
    window = getattr(config, "sliding_window", None)
    plain = "full_attention" if window is None else "sliding_attention"
    masks: dict[str, Any] = {}
    for kind in getattr(config, "layer_types", None) or [plain]:
        width = window if kind == "sliding_attention" else None
        masks[kind] = block_mask(tree, width) if name == "flex_attention" else dense_mask(tree, width)
        if name == "eager":  # adds its mask to the scores
            unseen = torch.finfo(model.dtype).min
            masks[kind] = torch.zeros_like(masks[kind], dtype=model.dtype).masked_fill(~masks[kind], unseen)
    mask = masks if len(masks) > 1 else next(iter(masks.values()))
    return {name: value for name, value in batch.items() if name != "tree"} | {"attention_mask": mask}


def _judge_all(model: PreTrainedModel, names: Sequence[str], position_offset: int) -> list[Verdict]:
    _use_plain_attention(model)
    reference = make_reference(model, position_offset)
    doubt = _doubt_about_reference(model, reference)
    verdicts = [_judge(model, name, reference) for name in names]
    return [
        replace(verdict, answer="unclear", reason=doubt, remedy=MASK_REMEDY)
        if doubt and verdict.answer in ("safe", "differs")
        else verdict
        for verdict in verdicts
    ]


def _doubt_about_reference(model: PreTrainedModel, reference: Reference) -> str:
    """Return why a reference may be wrong: eager and sdpa do not agree on single documents; "" if they do."""
    batch, _, alone, _ = reference
    plain = _implementation(model)
    try:
        other = outputs_alone(_switched(model, "sdpa" if plain == "eager" else "eager"), batch, boundaries=False)
    except Exception:  # the model has only one of the two
        return ""
    finally:
        if _implementation(model) != plain:
            model.set_attn_implementation(plain)
    if is_rounding(model, partial(outputs_alone, model, batch, boundaries=False), other, alone):
        return ""
    difference = max(differences(other, alone))
    return f"eager and sdpa differ by {difference:.2g} on single documents, so it is unknown which of them is right"


def _use_plain_attention(model: PreTrainedModel) -> None:
    """Switch a model to an implementation that needs no boundaries for single documents."""
    if _implementation(model) in ("eager", "sdpa"):
        return
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # not supported by this model
        model.set_attn_implementation("eager")


def _implementation(model: PreTrainedModel) -> str:
    """Return the attention implementation of a model, or of its language model."""
    name: str = model.config.get_text_config()._attn_implementation
    return name


def _judge(model: PreTrainedModel, name: str, reference: Reference) -> Verdict:
    """Compare the outputs of one implementation for packed documents with its outputs for single documents."""
    batch, changed, alone, moved_by_leak = reference
    try:
        switched = _switched(model, name)
        packed = batch_outputs(switched, batch)
        moved, earlier = others_moved(switched, packed.logits, changed), earlier_moved(switched, batch)
        compared, tolerance = differences(packed, alone), TOLERANCES[packed.logits.dtype]
        rounding = None
        if not (moved <= tolerance.moved and all(difference <= tolerance.difference for difference in compared)):
            rounding = measure_rounding(switched, reference, packed)
    except Exception as error:  # an error of any type is the model's answer
        return Verdict(implementation=name, answer="refuses", reason=_refusal(model, name, error))
    remedy = ""
    answer, reason = _answer(moved, max(compared), moved_by_leak, rounding, packed.logits.dtype)
    if answer != "leaks" and not earlier <= tolerance.moved:
        may_be_rounding = rounding is not None and earlier <= FACTOR * rounding.most_moved
        answer, remedy = "unclear" if may_be_rounding else "leaks", MASK_REMEDY
        reason = f"changing a token moved earlier ones of its document, which predict it, by {earlier:.2g}"
    if answer == "differs" and longest_rope_modules(model):
        reason += " (RoPE takes its frequencies from the longest document of the batch)"
    logits, loss, gradients = compared
    return Verdict(
        implementation=name,
        answer=answer,
        moved=moved,
        logits=logits,
        loss=loss,
        gradients=gradients,
        reason=reason,
        remedy=remedy,
    )


def _refusal(model: PreTrainedModel, name: str, error: Exception) -> str:
    """Return the reason for a verdict "refuses": the error of a model as one line."""
    if isinstance(error, PackerError):
        return one_line(error)
    if name == "sdpa" and not getattr(model, "_supports_sdpa", True):
        return f"{type(model).__name__} has no sdpa attention"
    reason = f"{type(error).__name__}: {one_line(error)}"
    if name == IMPLEMENTATION and "NoneType" in reason:  # the only argument of a model that use() takes away
        return f"{type(model).__name__} computes with the attention mask, which {name} does not make ({reason})"
    return reason


def _answer(
    moved: float, difference: float, moved_by_leak: float, rounding: Rounding | None, dtype: torch.dtype
) -> tuple[Answer, str]:
    """Return (answer, reason). Comparisons are written so that NaN never passes.

    `moved` is the change of other documents, `moved_by_leak` that without boundaries, `difference` the largest between
    packed and single documents, `rounding` None if both are within the tolerance.
    """
    tolerance = TOLERANCES[dtype]
    if rounding is not None:
        limit = max(FACTOR * rounding.most, tolerance.difference)
        differs = not max(rounding.packed, rounding.alone) <= limit
        if not moved <= tolerance.moved and (differs or not moved <= FACTOR * rounding.most_moved):
            return "leaks", f"changing one document moved others by {moved:.2g} of the largest logit"
        if differs:
            return "differs", f"no document affects another, but packed and single ones differ by {difference:.2g}"
        if (
            not moved <= tolerance.moved
            or not rounding.packed <= max(FACTOR * rounding.seen, tolerance.difference)
            or not rounding.packed <= LARGEST_SAFE
        ):
            return "unclear", (
                f"packed and single documents differ by {rounding.packed:.2g}, and rounding in "
                f"{str(dtype).removeprefix('torch.')} alone moves them by {rounding.seen:.2g} to {rounding.most:.2g}"
            )
    if not moved_by_leak > 2 * tolerance.moved:
        return "unclear", f"even without boundaries, documents move each other by only {moved_by_leak:.2g}"
    return "safe", ""


def _switched(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Return the model with another attention implementation; a copy if it can be set only on creation."""
    if name == IMPLEMENTATION:
        return use(model)
    if _implementation(model) != name:
        model.set_attn_implementation(name)
    if _implementation(model) == name:
        return model
    config = copy.deepcopy(model.config)
    config._attn_implementation = name
    other = type(model)(config)
    other.load_state_dict(model.state_dict())
    cast("torch.nn.Module", other).to(model.device, model.dtype).train()  # in place
    return other


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


def _remedy_by_offset(model: PreTrainedModel, verdicts: Sequence[Verdict]) -> str:
    """Return the remedy for a model that is safe once positions start at its padding id plus 1; "" for others."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    differ = [verdict.implementation for verdict in verdicts if verdict.answer == "differs"]
    if padding is None or not differ:
        return ""
    shifted = _judge_all(model, differ, padding + 1)
    return _remedy(shifted, padding + 1) if any(verdict.safe for verdict in shifted) else ""
