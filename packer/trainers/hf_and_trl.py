"""Arguments for the Hugging Face Trainer and for TRL's SFTTrainer: dataset, collator and settings from one call."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch, TreeBatch
from packer.loader.dataset import PackedDataset
from packer.trainers.guard import (
    READS_IN_ORDER,
    REPACKS,
    Packed,
    are_ordered,
    check_adapters,
    check_settings,
    has_trees,
    open_rows,
    warn_of_weak_noise,
)
from packer.trainers.step_loss import StepLoss, labels_twice, without_adapter

if TYPE_CHECKING:
    from datasets import Dataset
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


def hf(
    packed: Packed,
    args: TrainingArguments | None = None,
    *,
    eval: Packed | None = None,
    callbacks: Iterable[TrainerCallback] = (),
) -> dict[str, Any]:
    """Return the arguments of the Hugging Face Trainer for packed rows.

        Trainer(model, **packer.trainers.hf("dataset-packed-4096", TrainingArguments("trained")))

    Batch sizes count rows. A model with sdpa attention, the default, trains with `packer.attention.use`, and has its
    own attention back after training; other implementations that are chosen stay. Rows with trees (`--pairs`,
    `--share-prefixes`) always train with packer's attention.

    Args:
        packed: packed dataset: a path, a list of paths, or paths with weights.
        args: arguments of the trainer; the returned ones are a copy that keeps all columns.
        eval: packed dataset to evaluate on.
        callbacks: other callbacks for the trainer.

    Returns:
        `args`, `train_dataset`, `data_collator` and `callbacks`; with `eval`, also `eval_dataset`; and
        `compute_loss_func`, unless label smoothing or Liger's kernels compute the loss.

    Raises:
        PackerError: a dataset cannot be opened, the two have trees in one only, or a setting in `args` would mix
            documents, or read rows in order that were not packed for that (`--balance-ranks`). The trainer raises it
            for models with adapters that mix documents, and for those whose loss would be another.
    """
    return _arguments("Trainer", packed, args, eval=eval, callbacks=callbacks)


def _arguments(
    trainer: str,
    packed: Packed,
    args: TrainingArguments | None,
    *,
    eval: Packed | None,
    callbacks: Iterable[TrainerCallback],
) -> dict[str, Any]:
    args = copy.copy(TrainingArguments() if args is None else args)
    rows = open_rows(packed, trees=True)
    strategies = ("random", "sequential") if are_ordered(rows) else ("random",)
    check_settings("TrainingArguments", args, {**_RULES, "train_sampling_strategy": (strategies, READS_IN_ORDER)})
    args.remove_unused_columns = False  # True removes the boundaries of the documents
    datasets = {"train_dataset": rows}
    if eval is not None:
        datasets["eval_dataset"] = open_rows(eval, trees=True)
    trees = {has_trees(dataset) for dataset in datasets.values()}
    if len(trees) > 1:
        raise PackerError("one of train and eval has trees, the other none: pack both with the same options")
    if args.neftune_noise_alpha:
        warn_of_weak_noise(args.neftune_noise_alpha, rows, args.per_device_train_batch_size)
    is_function = trainer == "Trainer" and not (args.label_smoothing_factor or args.use_liger_kernel)
    loss = StepLoss(trainer, is_function=is_function)
    attention, collator = PackedAttention(always=trees == {True}), TreeBatch() if trees == {True} else HFBatch()
    found: dict[str, Any] = {
        "args": args,
        **datasets,
        "data_collator": collator,
        "callbacks": [attention, loss, *callbacks],
    }
    if is_function:
        found |= {"data_collator": partial(labels_twice, collator), "compute_loss_func": loss}
    return found


def trl(
    packed: Packed,
    args: SFTConfig | None = None,
    *,
    eval: Packed | None = None,
    callbacks: Iterable[TrainerCallback] = (),
) -> dict[str, Any]:
    """Return the arguments of TRL's SFTTrainer for packed rows, as `hf` does for the Hugging Face Trainer.

        SFTTrainer("Qwen/Qwen3-0.6B", **packer.trainers.trl("dataset-packed-4096", SFTConfig("trained")))

    Raises:
        PackerError: as `hf`; or `args` is no SFTConfig.
    """
    from trl import SFTConfig

    args = SFTConfig() if args is None else args
    if not isinstance(args, SFTConfig):
        raise PackerError(f"args is a {type(args).__name__}: SFTTrainer takes a trl.SFTConfig")
    check_settings("SFTConfig", args, _SFT_RULES)
    found = _arguments("SFTTrainer", packed, args, eval=eval, callbacks=callbacks)
    found["args"].dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    for name in {"train_dataset", "eval_dataset"} & set(found):
        found[name] = as_datasets(found[name])
    return found


def as_datasets(rows: PackedDataset) -> Dataset:
    """Return the rows as a `datasets.Dataset`, which SFTTrainer requires; rows are read when they are asked for."""
    from datasets import Dataset

    numbers = Dataset.from_dict({"row": range(len(rows))})
    return numbers.with_transform(partial(_columns_of, rows))


def _columns_of(rows: PackedDataset, numbers: dict[str, list[int]]) -> dict[str, list[Any]]:
    found = rows.__getitems__(numbers["row"])
    return {name: [row[name] for row in found] for name in found[0]}


class PackedAttention(TrainerCallback):
    """Switches a model to packer's attention while it is trained: one with sdpa, or `always`."""

    def __init__(self, *, always: bool) -> None:
        self._always = always
        self._own: tuple[PreTrainedModel, str] | None = None

    def on_init_end(self, *_: Any, **parts: Any) -> None:
        """Switch the attention."""
        from packer.attention import use

        check_adapters(parts["model"])
        model = without_adapter(parts["model"])
        own = model.config.get_text_config()._attn_implementation
        if own == "sdpa" or self._always:
            self._own = (model, own)
            use(model)

    def on_train_begin(self, *_: Any, **parts: Any) -> None:
        """Switch it again, after a training that has ended."""
        self.on_init_end(**parts)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Give the model its own attention back, for `generate`; trees need packer's in an evaluation, too."""
        if self._own is not None and not self._always:
            model, own = self._own
            model.set_attn_implementation(own)
