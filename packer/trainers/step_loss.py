"""Loss of a step in the Hugging Face Trainer and TRL: the mean over its trained tokens, for all classes of models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from transformers import TrainerCallback, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.training_loop import causal_lm_loss, masked_lm_loss

if TYPE_CHECKING:
    from torch import Tensor

_OWN_LABELS = "labels_for_the_model"
"""Key of a batch: its labels once more, because the Trainer keeps `labels` from the model for a compute_loss_func."""


def labels_twice(collate: Callable[[Any], dict[str, Any]], rows: Any) -> dict[str, Any]:
    """Return the batch of rows, with a second name for its labels."""
    batch = collate(rows)
    return {**batch, _OWN_LABELS: batch["labels"]}


class StepLoss(TrainerCallback):
    """The `compute_loss_func` of the Trainer, and a callback that sees the model.

    With this function, the Trainer counts the trained tokens of a step. Most models divide by their number, so they get
    their labels back, and their own loss is taken, with all that they fuse or add. The others (`accepts_loss_kwargs =
    False`) would average over each micro-batch: their loss is computed here, from the logits.
    """

    def __init__(self, trainer: str, *, is_function: bool) -> None:
        self._trainer = trainer
        self._is_function = is_function
        self._model: Any = None

    def __call__(self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any) -> Tensor:
        """Return the part of a micro-batch in the mean over `num_items_in_batch` trained tokens."""
        if outputs.get("loss") is not None:
            return cast("Tensor", outputs["loss"])
        logits = outputs["logits"].float()
        labels, items = labels.to(logits.device), num_items_in_batch.to(logits.device).clamp(min=1)
        loss = (causal_lm_loss if _shifts_labels(self._model) else masked_lm_loss)(logits, labels, num_items=items)
        if outputs.get("aux_loss") is not None:  # a mean over the micro-batch: weigh it by its share of the step
            coefficient = self._model.config.get_text_config().router_aux_loss_coef
            loss = loss + coefficient * outputs["aux_loss"].to(loss.device) * (labels != NO_LOSS).sum() / items
        return loss

    def on_init_end(self, args: TrainingArguments, *_: Any, **parts: Any) -> None:
        """Give the model its labels if it needs them; refuse it if its loss would be another."""
        model = self._model = without_adapter(parts["model"])
        name, steps, smoothing = type(model).__name__, args.gradient_accumulation_steps, args.label_smoothing_factor
        copies = smoothing and _shifts_labels(model) and name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        if copies and self._trainer == "Trainer":
            raise PackerError(
                f"label_smoothing_factor of TrainingArguments is {smoothing}: the Trainer would not shift labels of "
                f"{name}, which would learn to copy its input; set it to 0"
            )
        if self._is_function and _give_labels not in parts["model"]._forward_pre_hooks.values():
            parts["model"].register_forward_pre_hook(_give_labels, with_kwargs=True)
        if not (self._is_function or _divides_by_items(model)) and steps * args.world_size > 1:
            raise PackerError(
                f"accepts_loss_kwargs of {name} is False: with {steps} accumulation steps on {args.world_size} ranks, "
                "the loss would be the mean of the batches' means, not the mean over trained tokens; set "
                f"model.accepts_loss_kwargs = True before {self._trainer}(model, ...)"
            )

    on_train_begin = on_init_end  # the model may be another (`model_init`)


def without_adapter(model: Any) -> Any:
    """Return the model inside that of PEFT."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _shifts_labels(model: Any) -> bool:
    return LOSS_MAPPING.get(str(getattr(model, "loss_type", "")), ForCausalLMLoss) is ForCausalLMLoss


def _divides_by_items(model: Any) -> bool:
    """Return whether the Trainer passes num_items_in_batch to a model, as it decides that."""
    kinds = {each.kind for each in inspect.signature(model.forward).parameters.values()}
    return bool(getattr(model, "accepts_loss_kwargs", inspect.Parameter.VAR_KEYWORD in kinds))


def _give_labels(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a forward pass, give its labels to a model that divides by num_items_in_batch."""
    labels = kwargs.pop(_OWN_LABELS, None)
    if labels is not None and _divides_by_items(without_adapter(module)):
        kwargs["labels"] = labels
    return args, kwargs
