"""Axolotl: a plugin that trains packed rows.

    plugins: [packer.trainers.axolotl.PackedPlugin]
    packed_dataset: dataset-packed-4096

`packed_dataset` and `packed_eval_dataset` are a path, a list of paths, or a mapping of paths to weights. `packed_loss`
is token (the default), document or weight: what the loss is the mean of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packer.loader.batch_formats import HFBatch, HFRows
from packer.loader.row_tokens import LossWeights
from packer.trainers.guard import READS_IN_ORDER, REPACKS, check_loss, check_settings, open_rows

if TYPE_CHECKING:
    from axolotl.common.datasets import TrainDatasetMeta

try:
    from axolotl.integrations.base import BasePlugin
    from pydantic import BaseModel
except ImportError:  # this module can be imported without Axolotl
    BasePlugin = BaseModel = object

_NOT_READ = "packed_dataset takes the place of all other data, so it would not be used"
_RULES = {
    "sample_packing": ((False,), REPACKS),
    "eval_sample_packing": ((False,), REPACKS),
    "batch_flattening": ((False,), "it would take every row for one document"),
    "curriculum_sampling": ((False,), READS_IN_ORDER),
    "group_by_length": ((False,), READS_IN_ORDER),
    "accelerator_config.dispatch_batches": ((False,), "it would divide a batch, but not its boundaries"),
    "attn_implementation": (
        ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"),
        "it may ignore the boundaries of documents",
    ),
    **dict.fromkeys(("datasets", "test_datasets", "pretraining_dataset", "streaming"), ((None, False), _NOT_READ)),
    "val_set_size": ((0,), f"{_NOT_READ}: name packed_eval_dataset instead"),
    **dict.fromkeys(("rl", "reward_model", "process_reward_model"), ((None, False), "it does not read packed rows")),
}
_RING_RULES = {
    "ring_attn_func": (("varlen_llama3",), "it ignores the boundaries of documents"),
    "micro_batch_size": ((1,), "with context parallelism, Axolotl finds boundaries in a single row only"),
    "packed_loss": ((None, "token"), "context parallelism would divide the tokens, but not their weights"),
}
"""Rules for context parallelism. Without sample_packing, Axolotl chooses batch_ring."""


class PackedArgs(BaseModel):
    """Settings of the plugin."""

    packed_dataset: str | list[str] | dict[str, float]
    packed_eval_dataset: str | list[str] | dict[str, float] | None = None
    packed_loss: LossWeights | None = None


class Collator(HFBatch):
    """Batches of rows. Accepts the arguments of Axolotl's own collators, which have no effect."""

    def __init__(self, tokenizer: object, *, loss_weights: LossWeights | None = None, **_: object) -> None:
        super().__init__(loss_weights=loss_weights)

    def __call__(self, rows: Sequence[Any], **options: Any) -> dict[str, Any]:
        """Return the batch of rows, with weights in its labels."""
        from packer.trainers.hf_and_trl import weighted_labels

        return weighted_labels(super().__call__(rows, **options))


class RowCollator(HFRows):
    """Batches of whole rows, whose tokens the processes of context parallelism divide."""

    def __init__(self, tokenizer: object, **_: object) -> None:
        super().__init__()


class PackedPlugin(BasePlugin):
    """Trains rows of `packed_dataset`. Refuses settings that would mix documents."""

    def register(self, cfg: Any) -> None:
        """Check the settings before Axolotl validates them, and set the rows as `datasets`, which Axolotl requires."""
        check_settings("Axolotl", cfg, _RULES)
        if max(cfg.get(name) or 1 for name in ("context_parallel_size", "sequence_parallel_degree")) > 1:
            check_settings("Axolotl", cfg, _RING_RULES)
            cfg["ring_attn_func"] = "varlen_llama3"
        path = cfg.get("packed_dataset")
        first = path if isinstance(path, str) else next(iter(path or ()), "packed_dataset")
        cfg["datasets"] = [{"path": str(first), "type": None}]
        cfg["skip_prepare_dataset"] = True

    def get_input_args(self) -> str:
        """Return the name of the class of the settings."""
        return f"{__name__}.{PackedArgs.__name__}"

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> TrainDatasetMeta:
        """Return the rows and the number of steps."""
        from axolotl.common.datasets import TrainDatasetMeta

        from packer.trainers.hf_and_trl import as_datasets

        check_settings("Axolotl", cfg, {"attn_implementation": _RULES["attn_implementation"]})  # of older names, too
        rows, path = open_rows(_plain(cfg.packed_dataset), weights=True), _plain(cfg.packed_eval_dataset)
        evaluation = open_rows(path, weights=True) if path else None
        check_loss(cfg.packed_loss, *(each for each in (rows, evaluation) if each is not None))
        steps = math.ceil(len(rows) * cfg.num_epochs / cfg.batch_size)
        return TrainDatasetMeta(
            train_dataset=as_datasets(rows),
            eval_dataset=as_datasets(evaluation) if evaluation is not None else None,
            total_num_steps=min(steps, cfg.max_steps or steps),
        )

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Keep all columns, because they include the boundaries."""
        return {"remove_unused_columns": False}

    def get_collator_cls_and_kwargs(self, cfg: Any, is_eval: bool = False) -> tuple[type[Any], dict[str, Any]]:
        """Return the collator, and the weights of the loss."""
        if (cfg.context_parallel_size or 1) > 1:
            return RowCollator, {}
        return Collator, {"loss_weights": cfg.packed_loss}

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> Sequence[Any]:
        """Make a model with sdpa use packer's attention during training."""
        from packer.trainers.hf_and_trl import PackedAttention

        return [PackedAttention(always=False)]

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Let the trainer compute a loss by weights, over all batches of a step."""
        from packer.trainers.hf_and_trl import WEIGHTED, WEIGHTED_RULES, StepLoss

        if cfg.packed_loss in WEIGHTED:
            check_settings("Axolotl", cfg, {"use_eaft": ((False,), "it is a loss of its own")})
            check_settings("Axolotl", trainer.args, WEIGHTED_RULES)
            trainer.compute_loss_func = StepLoss("Axolotl", is_function=True, loss=cfg.packed_loss)
            trainer.compute_loss_func.on_init_end(trainer.args, model=trainer.model)


def _plain(value: Any) -> Any:
    """Return a setting as a plain value instead of Axolotl's own mapping class."""
    return value.to_dict() if hasattr(value, "to_dict") else value
