"""ms-swift: a plugin with which `swift sft` and `swift pt` train packed rows.

    swift sft --external_plugins .../packer/trainers/ms_swift/__init__.py --cached_dataset dataset-packed-4096

`packer pack --for ms-swift` prints the path of this file. The file has its own folder, because ms-swift puts the folder
of a plugin first in `sys.path`. `--cached_dataset` and, for evaluation, `--cached_val_dataset` are a path, several
paths, or paths with weights as JSON. `--loss_scale` is token (the default), document or weight: what the loss is the
mean of.
"""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch
from packer.loader.row_tokens import LossWeights
from packer.trainers.guard import READS_IN_ORDER, REPACKS, Rules, are_ordered, check_loss, check_settings, open_rows
from packer.trainers.hf_and_trl import WEIGHTED, WEIGHTED_RULES, PackedAttention, as_datasets, weighted_labels

try:
    from swift.arguments import RLHFArguments, SftArguments
    from swift.loss_scale import loss_scale_map
    from swift.pipelines.train import sft
    from swift.trainers import Seq2SeqTrainer, TrainerFactory
except ImportError:  # this module can be imported without ms-swift
    Seq2SeqTrainer = object

_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3")
_IGNORES = "it may ignore the boundaries of documents"
_ELSEWHERE = "packed rows train with swift sft and swift pt only"
_BESIDE = "documents would be trained beside the rows"
_RULES: Rules = {
    "packing": ((False,), REPACKS),
    "dataset": ((None, []), _BESIDE),
    "val_dataset": ((None, []), _BESIDE),
    "group_by_length": ((False,), READS_IN_ORDER),
    "task_type": (("causal_lm",), "it does not read packed rows"),
    "tuner_type": (("full", "lora", "adalora", "vera", "boft", "fourierft"), _IGNORES),
    "attn_impl": (("sdpa", "eager", "flex_attention", *_FLASH), _IGNORES),
}
_PARALLEL_RULES: Rules = {
    "attn_impl": (_FLASH, _IGNORES),
    "padding_free": ((False,), "it allows ring attention, whose gradients are wrong in ms-swift 4.6"),
}
"""Rules for sequence parallelism, which uses ring attention if the number of key heads is no multiple of its size."""

_WEIGHTED_RULES: Rules = {
    "sequence_parallel_size": ((1,), "it would divide the tokens of a row, but not their weights"),
    "loss_type": ((None,), "it is a loss of its own"),
    "enable_dft_loss": ((False,), "it is a loss of its own"),
}
"""Rules for a loss by weights."""


def check_args(args: Any) -> None:
    """Refuse settings that would mix documents, or that read rows in order if they were packed for shuffling."""
    if isinstance(args, RLHFArguments):
        raise PackerError(_ELSEWHERE)
    check_settings("ms-swift", args, _RULES)
    is_ordered = are_ordered(open_rows(_paths(args.cached_dataset), weights=True))
    shuffle = {"train_dataloader_shuffle": ((True, False) if is_ordered else (True,), READS_IN_ORDER)}
    check_settings("ms-swift", args, shuffle)
    if _loss(args.loss_scale) in WEIGHTED:
        check_settings("ms-swift", args, {**WEIGHTED_RULES, **_WEIGHTED_RULES})
    if args.sequence_parallel_size > 1:
        found = {"attn_impl": args.attn_impl or "sdpa", "padding_free": args.padding_free}
        check_settings("ms-swift with sequence_parallel_size", found, _PARALLEL_RULES)


def cached_rows(args: Any) -> tuple[list[Any], list[Any]]:
    """Return the rows for training and evaluation, instead of ms-swift's own cached datasets.

    Raises a PackerError if a dataset cannot be opened, or if a command other than sft and pt trains.
    """
    if not isinstance(args, SftArguments):
        raise PackerError(_ELSEWHERE)
    args.truncation_strategy = "split"  # rows are not encoded again
    args.lazy_tokenize = True  # rows have no column of lengths
    rows = [
        [open_rows(_paths(each), weights=True)] if each else []
        for each in (args.cached_dataset, args.cached_val_dataset)
    ]
    check_loss(_loss(args.loss_scale), *rows[0], *rows[1])
    train, evaluate = (list(map(as_datasets, each)) for each in rows)
    return train, evaluate


def _paths(names: list[str]) -> Any:
    return names[0] if len(names) == 1 else names


def _loss(loss_scale: str) -> LossWeights | None:
    """Return the loss in a value of --loss_scale, to which ms-swift appends scales of its own."""
    return next((each for each in get_args(LossWeights) if each in loss_scale.split("+")), None)


def _collate_weighted(collate: HFBatch, rows: Any) -> dict[str, Any]:
    """Return the batch of rows with weights in its labels, which are counted, and beside them, for the loss."""
    batch = weighted_labels(collate(rows))
    return {"loss_scale": batch["labels"].weights, **batch}


class PackedTrainer(Seq2SeqTrainer):
    """ms-swift's trainer with packer's batches. A model with sdpa uses packer's attention during training."""

    def _get_data_collator(self, args: Any, template: Any) -> Any:
        self._loss = _loss(template._loss_scale)
        collate = HFBatch(loss_weights=self._loss)
        return partial(_collate_weighted, collate) if self._loss in WEIGHTED else collate

    def get_batch_samples(self, *args: Any) -> Any:
        """Return the batches of a step, and their items. ms-swift divides by these if the model takes them."""
        self.model_accepts_loss_kwargs |= self._loss in WEIGHTED
        return super().get_batch_samples(*args)

    def _get_callbacks(self, args: Any) -> list[Any]:
        return [*super()._get_callbacks(args), PackedAttention(always=False)]


def _plug_in() -> None:
    own_training_args = TrainerFactory.get_training_args

    def training_args(args: Any) -> Any:
        """Check all arguments when they are parsed, before a model is loaded."""
        check_args(args)
        return own_training_args(args)

    TrainerFactory.get_training_args = training_args
    TrainerFactory.TRAINER_MAPPING["causal_lm"] = f"{__name__}.PackedTrainer"
    sft.get_cached_dataset = cached_rows
    loss_scale_map.update(dict.fromkeys(get_args(LossWeights), loss_scale_map["base"]))  # values of --loss_scale


if Seq2SeqTrainer is not object:
    _plug_in()
