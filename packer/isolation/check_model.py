"""Check the attention implementations of a model: probe a training step with each, in rows of short documents.

The installed versions are tested, because a list of safe models would soon be out of date.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from packer.attention.transformers_hook import accepted_arguments, document_frequencies, longest_rope_modules, use
from packer.errors import PackerError, as_whole

import torch  # isort: skip  # transformers_hook raises PackerError if it is missing
from torch.nn.functional import cross_entropy  # isort: skip
from transformers import PreTrainedModel  # isort: skip
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES  # isort: skip
from transformers.utils import import_utils  # isort: skip

from packer.attention.document_attention import IMPLEMENTATION, KERNEL_DTYPES, block_mask, dense_mask
from packer.attention.load_model import one_line, seeded, thresholds_above
from packer.isolation.probe_step import Step, StepLeaks, StepProbe, StepResult, gradients_apart
from packer.loader.batch_formats import BatchFormat, batch_format

EXACT = ("eager", "sdpa", IMPLEMENTATION)
"""Implementations that run in float32 on every device."""

MASKED = ("eager", "sdpa", "flex_attention")
"""Implementations whose attention follows a given mask."""

MASK_REMEDY = (
    "train it without packing, with the arguments that its documentation names (such as token_type_ids) and an "
    "attn_implementation that uses them"
)
"""Remedy for a model that sees later tokens with some implementations only."""

ROWS = ((11, 17, 4), (12, 20))
"""Lengths in tokens of the documents in each row."""

TREE_ROWS = ((32, 8),)
"""Number of tokens of a tree (at most 20 in a path), and of an ordinary document in the same row."""

LONGEST = max(length for row in ROWS for length in row)
"""Tokens in the longest document."""

FEWEST = 12
"""Fewest tokens that are not special: two for each document or node."""

TOLERANCE = 1e-5
"""Largest difference that does not count, as in `packer.probe`. Rounding in float32 causes differences of 1e-6, and a
model in float64 may compute norms in float32."""

ROUNDED = 0.02
"""Minimum tolerance in half precision; twice the rounding error of single documents is used if it is more."""

Answer = Literal["safe", "leaks", "differs", "refuses", "unclear"]
TreeAnswer = Literal["safe", "differs", "refuses"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Result of the probe for one attention implementation."""

    implementation: str
    """Name of the implementation, as in `from_pretrained(attn_implementation=...)`."""

    answer: Answer
    """One of five words.

    - "safe": packed documents have the same losses and gradients as single ones.
    - "leaks": changing a document changed other documents or, in a causal model, changing a token changed earlier
      tokens.
    - "differs": nothing leaked, but packed documents have other losses or gradients than single ones.
    - "refuses": the model raised an error.
    - "unclear": a leak would not be visible, or eager and sdpa differ on single documents.
    """

    moved: float | None = None
    """Largest change of a loss of another document, as a share of the largest loss. None if the answer is "refuses", as
    for `loss` and `gradients`."""

    loss: float | None = None
    """Largest difference between a loss in the batch and of the document alone, as a share of the largest loss."""

    gradients: float | None = None
    """Relative difference of the gradients of all parameters together, estimated from random projections."""

    reason: str = ""
    """Why the implementation is not safe, in one line; empty if it is."""

    remedy: str = ""
    """What to use instead, in one line; empty if the implementation is safe."""

    trees: TreeAnswer = "refuses"
    """One of "safe", "differs" and "refuses".

    The answer for a batch of format "tree", in which documents share tokens. Models in half precision are compared in
    float32. Implementations other than packer's get a mask: `block_mask` for flex_attention, `dense_mask` for eager and
    sdpa. FlashAttention accepts no mask.
    """

    trees_reason: str = ""
    """Why trees are not safe, in one line; empty if they are."""

    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Config fields, such as a sliding window, that exceed the probed lengths. The verdict holds for batches with fewer
    tokens than the smallest threshold; if there are none, for any batch."""

    @property
    def safe(self) -> bool:
        """Whether the answer is "safe"."""
        return self.answer == "safe"


def installed_implementations() -> list[str]:
    """Return the names of the attention implementations that can run on this machine.

    Kernels that would be downloaded from the Hub are left out.
    """
    flash = [
        f"flash_attention_{version}"
        for version in (2, 3, 4)
        if getattr(import_utils, f"is_flash_attn_{version}_available", bool)()  # bool() is False: an older transformers
    ]
    return ["eager", "sdpa", IMPLEMENTATION, *flash]


def check(
    model: PreTrainedModel, implementations: Sequence[str] | None = None, *, position_offset: int = 0
) -> list[Verdict]:
    """Test for each attention implementation whether documents in a packed batch affect each other.

    The model is probed as a training step, like in `packer.probe`. In a batch of `packer.collate`, one document at a
    time is changed. The losses of the other documents must stay the same, and must have no gradient in its tokens.
    Losses and gradients are also compared with those of each document alone. In a causal language model, no token may
    change earlier ones, and eager and sdpa must agree on single documents. A model in half precision is also probed in
    float32, because an implementation that is not safe there is not safe. A copy of the model is probed, so the model
    itself stays as it is. Documents have up to 20 tokens: `Verdict.thresholds` lists config fields, such as a sliding
    window, above which the model may behave differently.

    Args:
        model: model to probe, on its device and in its dtype; a few layers suffice.
        implementations: values of `attn_implementation`; by default all that are installed.
        position_offset: position of the first token of every document, as in `packer.batches`.

    Returns:
        One verdict per implementation, in order.

    Raises:
        PackerError: torch or transformers is not installed, or the model fails on single documents.
    """
    if not hasattr(model, "get_input_embeddings"):
        raise PackerError(
            f"the model is {model!r:.50}: give a model of transformers, or run `packer check` with its path"
        )
    if isinstance(implementations, str) or (implementations is not None and not implementations):
        raise PackerError(f"implementations is {implementations!r}: give a list of names, or leave it out")
    position_offset = as_whole("position_offset", position_offset, least=0)
    names = implementations or installed_implementations()
    thresholds = thresholds_above(model.config.get_text_config(), LONGEST)
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the kernels lack float32 and small heads
        exact = rounded = without_dropout(model)
        if model.dtype in KERNEL_DTYPES:
            exact = copy.deepcopy(rounded)
            cast("torch.nn.Module", exact).to(torch.float32)  # in place
        checker = _Check(exact, position_offset)
        verdicts = [checker.judge(name) for name in names if exact is rounded or name in EXACT]
        if exact is not rounded:
            checker = _Check(rounded, position_offset, exact=checker)
            verdicts = _in_both(list(map(checker.judge, names)), verdicts)
        remedy = _remedy(verdicts, position_offset)
        if not any(verdict.safe for verdict in verdicts) and not position_offset:
            remedy = _remedy_by_offset(exact, verdicts) or remedy
        verdicts = _judge_trees(exact, verdicts)
    return [
        replace(verdict, thresholds=thresholds, remedy="" if verdict.safe else verdict.remedy or remedy)
        for verdict in verdicts
    ]


def _in_both(rounded: Sequence[Verdict], exact: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts: in float32 if half precision is safe or unclear and float32 is not refused, else in half."""
    by_name = {verdict.implementation: verdict for verdict in exact if verdict.answer != "refuses"}
    found = []
    for verdict in rounded:
        if verdict.answer in ("safe", "unclear") and verdict.implementation in by_name:
            verdict = by_name[verdict.implementation]
            verdict = replace(verdict, reason=verdict.reason and f"in float32, {verdict.reason}")
        found.append(verdict)
    return found


class _Check:
    """A model, and the results of single documents that its implementations are compared with."""

    def __init__(self, model: PreTrainedModel, position_offset: int = 0, *, exact: _Check | None = None) -> None:
        """Run the documents alone; `exact` is the check of the same model in float32.

        Raises:
            PackerError: the model fails on single documents, or has too few tokens.
        """
        self._model = model
        self._probe = _probe_of(model, batch_format("hf", position_offset=position_offset))
        self._alone = _run_alone(model, self._probe)
        if exact is not None:
            spread = _largest_difference(self._alone, exact._alone)
            self._probe = replace(self._probe, tolerance=max(ROUNDED, 2 * spread))
        self._doubt = self._doubt_about_reference() or self._doubt_about_leaks()

    def judge(self, name: str) -> Verdict:
        """Probe a step with one implementation."""
        try:
            step = _step_of(_switched(self._model, name))
            found = self._probe.find_leaks(step, self._alone)
            earlier = self._earlier_moved(step)
        except Exception as error:  # an error of any type is the model's answer
            return Verdict(implementation=name, answer="refuses", reason=_refusal(self._model, name, error))
        answer, reason = self._answer(found)
        remedy = ""
        if answer in ("safe", "differs") and self._doubt:
            answer, (reason, remedy) = "unclear", self._doubt
        if answer != "leaks" and earlier > self._probe.tolerance:
            answer, remedy = "leaks", MASK_REMEDY
            reason = f"changing a token moved earlier ones of its document, which predict it, by {earlier:.2g}"
        return Verdict(
            implementation=name,
            answer=answer,
            moved=found.largest,
            loss=found.difference,
            gradients=found.gradients,
            reason=reason,
            remedy=remedy,
        )

    def _answer(self, found: StepLeaks) -> tuple[Answer, str]:
        if any(found.moved.values()):
            return "leaks", f"changing one document moved others by {found.largest:.2g} of the largest loss"
        if found.reaching:
            return "leaks", "the losses of documents have gradients in the tokens of others"
        if found.is_safe:
            return "safe", ""
        difference = max(found.difference, found.gradients or 0)
        reason = f"no document affects another, but packed and single ones differ by {difference:.2g}"
        if longest_rope_modules(self._model):
            reason += " (RoPE takes its frequencies from the longest document of the batch)"
        return "differs", reason

    def _earlier_moved(self, step: Step) -> float:
        """Return the largest change of a loss when a later token of the document changes, as a share of the largest.

        0 for models other than causal language models.
        """
        name = type(self._model).__name__
        if not self._model.can_generate() or name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
            return 0.0
        _, last, _ = self._probe.changes_of(1)
        before, after = (self._probe.run(step, drawn, alone=1) for drawn in (None, last))
        return float(before.changes(after)[:-1].max())  # the last loss is that of the token itself

    def _doubt_about_reference(self) -> tuple[str, str] | None:
        """Return (reason, remedy) if eager and sdpa do not agree on single documents."""
        plain = _implementation(self._model)
        try:
            other = _run_alone(_switched(self._model, "sdpa" if plain == "eager" else "eager"), self._probe)
        except Exception:  # the model has only one of the two
            return None
        finally:
            if _implementation(self._model) != plain:
                self._model.set_attn_implementation(plain)
        difference = _largest_difference(other, self._alone)
        if difference <= self._probe.tolerance:
            return None
        reason = (
            f"eager and sdpa differ by {difference:.2g} on single documents, so it is unknown which of them is right"
        )
        return reason, MASK_REMEDY

    def _doubt_about_leaks(self) -> tuple[str, str] | None:
        """Return (reason, remedy) if documents in a row have the results of single ones even without boundaries."""
        found = self._probe.compare(_step_of(self._model, without_boundaries=True), self._alone)
        if found.largest > 2 * self._probe.tolerance:
            return None
        return f"even without boundaries, packed and single documents differ by only {found.largest:.2g}", ""


def _probe_of(
    model: PreTrainedModel, make: BatchFormat, rows: Sequence[Sequence[int]] = ROWS, *, has_tree: bool = False
) -> StepProbe:
    """Return documents in rows of a format, of tokens that are not special."""
    return StepProbe.of(
        make, max_len=sum(rows[0]), ids=_ordinary_tokens(model), tolerance=TOLERANCE, shares=rows, has_tree=has_tree
    )


def _step_of(
    model: PreTrainedModel,
    *,
    without_boundaries: bool = False,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Step:
    """Return a training step of a model: losses of the next tokens of a batch that is prepared for the model."""

    def step(batch: Mapping[str, Any]) -> torch.Tensor:
        torch.manual_seed(0)  # makes randomness in training mode the same in all runs
        batch = {name: each.to(model.device) if torch.is_tensor(each) else each for name, each in batch.items()}
        labels = batch.pop("labels")
        if without_boundaries:
            batch = {name: batch[name] for name in ("input_ids", "use_cache")}
        logits = model(**accepted_arguments(model, prepare(batch))).logits[:, :-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")

    return step


def _run_alone(model: PreTrainedModel, step_probe: StepProbe) -> list[StepResult]:
    """Run a model with plain attention on single documents. Raises PackerError if it fails."""
    if _implementation(model) not in ("eager", "sdpa"):  # others need boundaries
        try:
            model.set_attn_implementation("sdpa")
        except ValueError:  # not supported by this model
            model.set_attn_implementation("eager")
    try:
        with document_frequencies(model):
            return step_probe.run_alone(_step_of(model, without_boundaries=True))
    except Exception as error:  # models raise errors of any type
        raise PackerError(
            f"{type(model).__name__} fails on a single document, which packed ones are compared with: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error


def _largest_difference(found: Sequence[StepResult], expected: Sequence[StepResult]) -> float:
    """Return the larger of the relative differences of losses and gradients of single documents."""
    losses = [float(by.changes(each).max()) for each, by in zip(found, expected, strict=True)]
    return max(*losses, gradients_apart(found, expected))


def _judge_trees(model: PreTrainedModel, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Add verdicts for trees, made with a model that is not in half precision."""
    step_probe = _probe_of(model, batch_format("tree"), TREE_ROWS, has_tree=True)
    alone = _run_alone(model, step_probe)
    judged = []
    for verdict in verdicts:
        answer, reason = _judge_tree(model, verdict.implementation, step_probe, alone)
        judged.append(replace(verdict, trees=answer, trees_reason=reason))
    return judged


def _judge_tree(
    model: PreTrainedModel, name: str, step_probe: StepProbe, alone: Sequence[StepResult]
) -> tuple[TreeAnswer, str]:
    """Return the answer for trees of one implementation, and why it is not "safe"."""
    if name not in (*MASKED, IMPLEMENTATION):
        return "refuses", "it takes neither a tree nor a mask of one"
    try:
        switched = _switched(model, name)
        if name != IMPLEMENTATION:
            step = _step_of(switched, prepare=partial(_masked, switched, name))
        elif accepted_arguments(switched, {"tree": None}):
            step = _step_of(switched)
        else:
            return "refuses", f"the forward method of {type(model).__name__} does not accept the argument tree"
        found = step_probe.compare(step, alone)
    except Exception as error:  # an error of any type is the model's answer
        return "refuses", _refusal(model, name, error)
    if found.largest <= step_probe.tolerance:
        return "safe", ""
    return "differs", f"documents in a tree and single ones differ by {found.largest:.2g}"


def _masked(model: PreTrainedModel, name: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of trees with a mask instead of its tree, or one for each kind of layer."""
    config, tree = model.config.get_text_config(), batch["tree"]
    window = getattr(config, "sliding_window", None)
    plain = "full_attention" if window is None else "sliding_attention"
    masks: dict[str, Any] = {}
    for kind in getattr(config, "layer_types", None) or [plain]:
        width = window if kind == "sliding_attention" else None
        masks[kind] = block_mask(tree, width) if name == "flex_attention" else dense_mask(tree, width)
        if name == "eager":  # eager attention adds its mask to the scores
            unseen = torch.finfo(model.dtype).min
            masks[kind] = torch.zeros_like(masks[kind], dtype=model.dtype).masked_fill(~masks[kind], unseen)
    mask = masks if len(masks) > 1 else next(iter(masks.values()))
    return {name: value for name, value in batch.items() if name != "tree"} | {"attention_mask": mask}


def _implementation(model: PreTrainedModel) -> str:
    """Return the attention implementation of a model, or of its language model."""
    name: str = model.config.get_text_config()._attn_implementation
    return name


def _ordinary_tokens(model: PreTrainedModel) -> NDArray[np.int64]:
    """Return the token ids of a model that are neither special nor 0, which is also the id of a token type.

    Raises PackerError if there are too few.
    """
    config = model.config.get_text_config()
    fields = vars(model.config) | vars(config)
    names = [name for name in fields if name.endswith(("_token_id", "_token_index"))]
    special = {fields[name] for name in names if isinstance(fields[name], int)}
    ordinary = [token for token in range(1, config.vocab_size) if token not in special]
    if len(ordinary) < FEWEST:
        raise PackerError(
            f"only {len(ordinary)} of {config.vocab_size:,} tokens of {type(model).__name__} are not special, and the "
            f"probe needs {FEWEST}: correct vocab_size or the fields that end in _token_id in its config"
        )
    return np.array(ordinary)


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model in training mode, without gradients, dropout and other random noise.

    Some kernels use segment boundaries in training mode only.
    """
    model = copy.deepcopy(model).train()
    model.zero_grad()
    for holder in (*model.modules(), model.config, model.config.get_text_config()):
        for name, rate in list(vars(holder).items()):
            is_random = "drop" in name or "jitter" in name or (name == "p" and isinstance(holder, torch.nn.Dropout))
            if isinstance(rate, float) and is_random:
                setattr(holder, name, 0.0)
    return model


def _refusal(model: PreTrainedModel, name: str, error: Exception) -> str:
    """Return the reason for a verdict "refuses": the error of a model as one line."""
    if isinstance(error, PackerError):
        return one_line(error)
    if name == "sdpa" and not getattr(model, "_supports_sdpa", True):
        return f"{type(model).__name__} has no sdpa attention"
    reason = f"{type(error).__name__}: {one_line(error)}"
    if name == IMPLEMENTATION and "NoneType" in reason:  # the mask is the only argument that `use` removes
        return f"{type(model).__name__} computes with the attention mask, which {name} does not make ({reason})"
    return reason


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
    differ = [each.implementation for each in verdicts if each.answer == "differs" and each.implementation in EXACT]
    if padding is None or not differ:
        return ""
    shifted = list(map(_Check(model, padding + 1).judge, differ))
    return _remedy(shifted, padding + 1) if any(verdict.safe for verdict in shifted) else ""
