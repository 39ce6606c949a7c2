"""Arguments for the Hugging Face Trainer and for TRL's SFTTrainer: dataset, collator and settings from one call.

The loss of a step is the mean over its trained tokens, for every class of models, or the mean by weights of tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch, TreeBatch
from packer.loader.dataset import PackedDataset
from packer.loader.row_tokens import LossWeights
from packer.loader.training_loop import causal_lm_loss, masked_lm_loss
from packer.trainers.guard import (
    READS_IN_ORDER,
    REPACKS,
    PackedPaths,
    are_ordered,
    check_loss,
    check_model,
    check_settings,
    has_trees,
    open_rows,
    warn_of_weak_noise,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from trl import SFTConfig

_RULES = {
    "accelerator_config.dispatch_batches": (
        (False,),
        "process 0 would divide a batch among all processes, but not its boundaries",
    ),
}

_LABELS_ARE_STORED = "labels are stored in the rows, and it would not change them; choose with packer pack --train-on"
_SFT_RULES = {
    "packing": ((False,), REPACKS),
    "eval_packing": ((False,), REPACKS),
    "padding_free": ((False,), "TRL would find no boundaries: packer's batches have no padding"),
    "assistant_only_loss": ((False,), _LABELS_ARE_STORED),
    "completion_only_loss": ((False,), _LABELS_ARE_STORED),
}

WEIGHTED = ("document", "weight")
WEIGHTED_RULES = {
    "use_liger_kernel": ((False,), "its loss has no weights"),
    "label_smoothing_factor": ((0,), "the Trainer does not smooth labels in a loss by weights"),
    "loss_type": (("nll",), "its loss has no weights"),
}
"""Rules for a loss by weights, which packer computes from the logits."""

_OWN_LABELS = "labels_for_the_model"
"""Key of a copy of a batch's labels: with a compute_loss_func, the Trainer does not pass `labels` to a model."""


def hf(
    packed: PackedPaths,
    args: TrainingArguments | None = None,
    *,
    eval: PackedPaths | None = None,
    loss: LossWeights | None = None,
    callbacks: Iterable[TrainerCallback] = (),
) -> dict[str, Any]:
    """Return the arguments of the Hugging Face Trainer for packed rows.

        Trainer(model, **packer.trainers.hf("dataset-packed-4096", TrainingArguments("trained")))

    Batch sizes count rows. A model with sdpa attention, the default, is trained with `packer.attention.use`, and gets
    its own attention back after training. Other attention implementations are kept. Rows with trees (`--pairs`,
    `--share-prefixes`) are always trained with packer's attention.

    Args:
        packed: packed dataset: a path, a list of paths, or paths with weights.
        args: arguments of the trainer; the returned arguments are a copy that keeps all columns.
        eval: packed dataset for evaluation.
        loss: what the loss of a step is: the mean over its trained tokens ("token", the default); the mean over
            documents of each document's mean ("document"); or the mean by the weights in the rows ("weight"), which is
            sum(weight x loss) / sum(weight). Rows with weights need one of these words.
        callbacks: other callbacks for the trainer.

    Returns:
        `args`, `train_dataset`, `data_collator` and `callbacks`; with `eval`, also `eval_dataset`; and
        `compute_loss_func`, unless label smoothing or Liger's kernels compute the loss.

    Raises:
        PackerError: a dataset cannot be opened, or only one of the two has trees; a setting in `args` would mix
            documents; or it would read rows in order that were packed without `--balance-ranks`. The trainer raises it
            for a model with adapters that mix documents, or with a loss that would differ.
    """
    return _arguments("Trainer", packed, args, eval=eval, loss=loss, callbacks=callbacks)


def _arguments(
    trainer: str,
    packed: PackedPaths,
    args: TrainingArguments | None,
    *,
    eval: PackedPaths | None,
    loss: LossWeights | None,
    callbacks: Iterable[TrainerCallback],
) -> dict[str, Any]:
    args = copy.copy(TrainingArguments() if args is None else args)
    rows = open_rows(packed, trees=True, weights=True)
    strategies = ("random", "sequential") if are_ordered(rows) else ("random",)
    check_settings("TrainingArguments", args, {**_RULES, "train_sampling_strategy": (strategies, READS_IN_ORDER)})
    args.remove_unused_columns = False  # True removes the boundaries of the documents
    datasets = {"train_dataset": rows}
    if eval is not None:
        datasets["eval_dataset"] = open_rows(eval, trees=True, weights=True)
    trees = {has_trees(dataset) for dataset in datasets.values()}
    if len(trees) > 1:
        raise PackerError("one of train and eval has trees, the other none: pack both with the same options")
    if args.neftune_noise_alpha:
        warn_of_weak_noise(args.neftune_noise_alpha, rows, args.per_device_train_batch_size)
    check_loss(loss, *datasets.values())
    collator = (TreeBatch if trees == {True} else HFBatch)(loss_weights=loss)
    is_function = trainer == "Trainer" and not (args.label_smoothing_factor or args.use_liger_kernel)
    if loss in WEIGHTED:
        check_settings(trainer, args, WEIGHTED_RULES)
        is_function = True
    step_loss = StepLoss(trainer, is_function=is_function, loss=loss)
    found: dict[str, Any] = {
        "args": args,
        **datasets,
        "data_collator": collator,
        "callbacks": [PackedAttention(*datasets.values(), always=trees == {True}), step_loss, *callbacks],
    }
    if is_function:
        found |= {"data_collator": partial(_for_step_loss, collator), "compute_loss_func": step_loss}
    return found


def trl(
    packed: PackedPaths,
    args: SFTConfig | None = None,
    *,
    eval: PackedPaths | None = None,
    loss: LossWeights | None = None,
    callbacks: Iterable[TrainerCallback] = (),
) -> dict[str, Any]:
    """Return the arguments of TRL's SFTTrainer for packed rows, as `hf` does for the Hugging Face Trainer.

        SFTTrainer("Qwen/Qwen3-0.6B", **packer.trainers.trl("dataset-packed-4096", SFTConfig("trained")))

    Raises:
        PackerError: as `hf`; or `args` is not an SFTConfig.
    """
    from trl import SFTConfig

    args = SFTConfig() if args is None else args
    if not isinstance(args, SFTConfig):
        raise PackerError(f"args is a {type(args).__name__}: SFTTrainer takes a trl.SFTConfig")
    check_settings("SFTConfig", args, _SFT_RULES)
    found = _arguments("SFTTrainer", packed, args, eval=eval, loss=loss, callbacks=callbacks)
    found["args"].dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    for name in {"train_dataset", "eval_dataset"} & set(found):
        found[name] = as_datasets(found[name])
    return found


def as_datasets(rows: PackedDataset) -> Dataset:
    """Return the rows as a `datasets.Dataset`, which SFTTrainer requires. Each row is read when it is requested."""
    from datasets import Dataset

    numbers = Dataset.from_dict({"row": range(len(rows))})
    return numbers.with_transform(partial(_columns_of, rows))


def _columns_of(rows: PackedDataset, numbers: dict[str, list[int]]) -> dict[str, list[Any]]:
    found = rows.__getitems__(numbers["row"])
    return {name: [row[name] for row in found] for name in found[0]}


class PackedAttention(TrainerCallback):
    """Switches a model with sdpa to packer's attention during training; with `always`, any model.

    Refuses a model that lacks ids in the datasets, or mixes the documents of a row.
    """

    def __init__(self, *datasets: PackedDataset, always: bool) -> None:
        self._datasets, self._always = datasets, always
        self._own: tuple[PreTrainedModel, str] | None = None

    def on_init_end(self, *_: Any, **parts: Any) -> None:
        """Switch the attention."""
        from packer.attention import use

        check_model(parts["model"], *self._datasets)
        model = _without_adapter(parts["model"])
        own = model.config.get_text_config()._attn_implementation
        if own.startswith("ringmaster"):
            raise PackerError(
                f"the attention of the model is {own}: in this trainer, ringmaster would leave out the rows of all "
                "processes but one, and change the size of the loss; use it in Axolotl 0.21"
            )
        if own == "sdpa" or self._always:
            self._own = (model, own)
            use(model)

    on_train_begin = on_init_end  # an earlier training may have ended

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Restore the model's own attention, for `generate`; not for trees, whose evaluation needs packer's."""
        if self._own is not None and not self._always:
            model, own = self._own
            model.set_attn_implementation(own)


def _for_step_loss(collate: Callable[[Any], dict[str, Any]], rows: Any) -> dict[str, Any]:
    """Return the batch of rows with weights in its labels, or with a second copy of labels without weights."""
    batch = collate(rows)
    return weighted_labels(batch) if "loss_weights" in batch else {**batch, _OWN_LABELS: batch["labels"]}


class WeightedLabels(torch.Tensor):
    """Labels of a batch with the weights of their tokens in the loss, of the same shape.

    A Trainer counts the trained tokens of a step, over its batches and ranks, as the sum of `labels[..., 1:].ne(-100)`.
    Here, this is the sum of the weights. All other operations return plain tensors.
    """

    weights: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's Parameter

    @classmethod
    def of(cls, labels: Tensor, weights: Tensor) -> WeightedLabels:
        """Return labels with weights, which are 0 where a label is -100."""
        found = labels.as_subclass(cls)
        found.weights = weights
        return found

    def ne(self, _: object) -> Tensor:
        """Return the weights."""
        return self.weights

    def __getitem__(self, index: Any) -> WeightedLabels:
        return self.of(super().__getitem__(index), self.weights[index])

    def to(self, *args: Any, **kwargs: Any) -> WeightedLabels:
        """Return labels and weights on another device."""
        return self.of(super().to(*args, **kwargs), self.weights.to(*args, **kwargs))

    def pin_memory(self, *args: Any) -> WeightedLabels:
        """Return labels and weights in pinned memory."""
        return self.of(super().pin_memory(*args), self.weights.pin_memory(*args))

    def __reduce_ex__(self, _: object) -> Any:
        """Send labels and weights of a data loader's worker as two plain tensors."""
        return WeightedLabels.of, (self.as_subclass(torch.Tensor), self.weights)


def weighted_labels(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with its `loss_weights`, if there are any, as part of its labels, multiplied by 2**30.

    Losses are divided by their sum, which transformers 5.20 rounds down to an integer.
    """
    weights = batch.pop("loss_weights", None)
    return batch if weights is None else {**batch, "labels": WeightedLabels.of(batch["labels"], weights * 2**30)}


class StepLoss(TrainerCallback):
    """The `compute_loss_func` of the Trainer, and a callback that sees the model.

    With this function, the Trainer counts the trained tokens of a step. Most models divide their loss by this number.
    They get their labels, and compute their own loss, including fused kernels and added terms. The other models
    (`accepts_loss_kwargs = False`) would average over each micro-batch; their loss is computed here, from the logits.
    So is every loss by weights: models get no labels, and the Trainer counts weights (`WeightedLabels`).
    """

    def __init__(self, trainer: str, *, is_function: bool, loss: LossWeights | None) -> None:
        self._trainer = trainer
        self._is_function = is_function
        self._loss = loss
        self._model: Any = None

    def __call__(self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Any) -> Tensor:
        """Return the contribution of a micro-batch to the mean over `num_items_in_batch`: trained tokens or weights."""
        weights = labels.weights if isinstance(labels, WeightedLabels) else None
        if weights is None and self._loss in WEIGHTED:
            raise PackerError(f"loss is {self._loss}, but a batch has no weights: keep packer's data_collator")
        if weights is None and outputs.get("loss") is not None:
            return cast("Tensor", outputs["loss"])
        logits: Tensor = outputs["logits"]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        labels = labels.as_subclass(torch.Tensor).to(logits.device)
        share = (labels != NO_LOSS) if weights is None else weights.to(logits.device)
        counted = share.sum() if num_items_in_batch is None else num_items_in_batch  # None in SFTTrainer's evaluation
        items: Any = torch.where(counted == 0, 1, counted).to(logits.device)
        compute = causal_lm_loss if _shifts_labels(self._model) else masked_lm_loss
        loss = compute(logits, labels, num_items=items, weights=None if weights is None else share)
        if outputs.get("aux_loss") is not None:  # a mean over the micro-batch: weight it by its share of the step
            coefficient = self._model.config.get_text_config().router_aux_loss_coef
            loss = loss + coefficient * outputs["aux_loss"].to(loss.device) * share.sum() / items
        return loss

    def on_init_end(self, args: TrainingArguments, *_: Any, **parts: Any) -> None:
        """Pass labels to the model if it computes the loss itself. Refuses a model whose loss would differ."""
        model = self._model = _without_adapter(parts["model"])
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

    on_train_begin = on_init_end  # `model_init` may have made another model


def _without_adapter(model: Any) -> Any:
    """Return the model inside a PEFT model."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _shifts_labels(model: Any) -> bool:
    return LOSS_MAPPING.get(str(getattr(model, "loss_type", "")), ForCausalLMLoss) is ForCausalLMLoss


def _divides_by_items(model: Any) -> bool:
    """Return whether the Trainer passes num_items_in_batch to a model, decided as the Trainer does."""
    kinds = {each.kind for each in inspect.signature(model.forward).parameters.values()}
    return bool(getattr(model, "accepts_loss_kwargs", inspect.Parameter.VAR_KEYWORD in kinds))


def _give_labels(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a forward pass, give the labels to a model that divides by num_items_in_batch."""
    labels = kwargs.pop(_OWN_LABELS, None)
    if labels is not None and _divides_by_items(_without_adapter(module)):
        kwargs["labels"] = labels
    return args, kwargs
