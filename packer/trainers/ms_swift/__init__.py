"""ms-swift: a plugin with which `swift sft` and `swift pt` train packed rows.

    swift sft --external_plugins .../packer/trainers/ms_swift/__init__.py --cached_dataset dataset-packed-4096

`packer pack --for ms-swift` prints the path of this file. The file has its own folder, because ms-swift puts the folder
of a plugin first in `sys.path`. `--cached_dataset` and, for evaluation, `--cached_val_dataset` are a path, several
paths, or paths with weights as JSON.
"""

from __future__ import annotations

from typing import Any

from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch
from packer.trainers.guard import READS_IN_ORDER, REPACKS, Rules, are_ordered, check_settings, open_rows
from packer.trainers.hf_and_trl import PackedAttention, as_datasets

try:
    from swift.arguments import RLHFArguments, SftArguments
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


def check_args(args: Any) -> None:
    """Refuse settings that would mix documents, or that read rows in order if they were packed for shuffling.

    Raises:
        PackerError: with the setting, in one line; or a packed dataset cannot be opened.
    """
    if isinstance(args, RLHFArguments):
        raise PackerError(_ELSEWHERE)
    check_settings("ms-swift", args, _RULES)
    is_ordered = are_ordered(open_rows(_paths(args.cached_dataset)))
    shuffle = {"train_dataloader_shuffle": ((True, False) if is_ordered else (True,), READS_IN_ORDER)}
    check_settings("ms-swift", args, shuffle)
    if args.sequence_parallel_size > 1:
        found = {"attn_impl": args.attn_impl or "sdpa", "padding_free": args.padding_free}
        check_settings("ms-swift with sequence_parallel_size", found, _PARALLEL_RULES)


def cached_rows(args: Any) -> tuple[list[Any], list[Any]]:
    """Return the rows for training and evaluation, instead of ms-swift's own cached datasets.

    Raises:
        PackerError: a dataset cannot be opened, or a command other than sft and pt trains.
    """
    if not isinstance(args, SftArguments):
        raise PackerError(_ELSEWHERE)
    args.truncation_strategy = "split"  # rows are not encoded again
    args.lazy_tokenize = True  # rows have no column of lengths
    train, evaluate = (
        [as_datasets(open_rows(_paths(each)))] if each else []
        for each in (args.cached_dataset, args.cached_val_dataset)
    )
    return train, evaluate


def _paths(names: list[str]) -> Any:
    return names[0] if len(names) == 1 else names


class PackedTrainer(Seq2SeqTrainer):
    """ms-swift's trainer with packer's batches. A model with sdpa uses packer's attention during training."""

    def _get_data_collator(self, args: Any, template: Any) -> HFBatch:
        return HFBatch()

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


if Seq2SeqTrainer is not object:
    _plug_in()
