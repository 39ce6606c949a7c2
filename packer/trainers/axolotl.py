"""Axolotl: a plugin that trains packed rows.

    plugins: [packer.trainers.axolotl.PackedPlugin]
    packed_dataset: dataset-packed-4096

`packed_dataset` and `packed_eval_dataset` are a path, a list of paths, or a mapping of paths to weights. `packed_loss`
is token (the default), document or weight: what the loss is the mean of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError
from packer.loader.batch_formats import HFBatch
from packer.loader.dataset import PackedDataset
from packer.loader.row_tokens import LossWeights
from packer.trainers.guard import READS_IN_ORDER, REPACKS, check_loss, check_model, check_settings, open_rows

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
    **dict.fromkeys(("diffusion", "diffusion_lm"), ((None, False), "it may ignore the boundaries of documents")),
}
_CONTEXT_PARALLEL_RULES = {
    "packed_loss": ((None, "token"), "context parallelism would divide the tokens, but not their weights"),
    "deepspeed": ((None, False), "its context parallelism may ignore the boundaries of documents, unlike ringmaster"),
}


class PackedArgs(BaseModel):
    """Settings of the plugin."""

    packed_dataset: str | list[str] | dict[str, float]
    packed_eval_dataset: str | list[str] | dict[str, float] | None = None
    packed_loss: LossWeights | None = None


class Collator(HFBatch):
    """Batches of rows. Accepts the arguments of Axolotl's own collators, which have no effect."""

    accelerate_divides = False  # under context parallelism, ringmaster does, by the positions

    def __init__(self, tokenizer: object, *, loss_weights: LossWeights | None = None, **_: object) -> None:
        super().__init__(loss_weights=loss_weights)

    def __call__(self, rows: Sequence[Any], **options: Any) -> dict[str, Any]:
        """Return the batch of rows, with weights in its labels."""
        from packer.trainers.hf_and_trl import weighted_labels

        return weighted_labels(super().__call__(rows, **options))


class PackedPlugin(BasePlugin):
    """Trains rows of `packed_dataset`. Refuses settings that would mix documents."""

    _datasets: tuple[PackedDataset, ...] = ()

    def register(self, cfg: Any) -> None:
        """Check the settings before Axolotl validates them, and set the rows as `datasets`, which Axolotl requires."""
        check_settings("Axolotl", cfg, _RULES)
        if _has_context_parallelism(cfg):
            check_settings("Axolotl", cfg, _CONTEXT_PARALLEL_RULES)
            if find_spec("axolotl.integrations.context_parallel") is None:
                raise PackerError(
                    f"context parallelism of Axolotl {version('axolotl')} does not train all tokens: install Axolotl "
                    "0.21, or set context_parallel_size to 1"
                )
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
        self._datasets = (rows,) if evaluation is None else (rows, evaluation)
        check_loss(cfg.packed_loss, *self._datasets)
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
        return Collator, {"loss_weights": cfg.packed_loss}

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> Sequence[Any]:
        """Make a model with sdpa use packer's attention during training, except under context parallelism."""
        from packer.trainers.hf_and_trl import PackedAttention

        return [] if _has_context_parallelism(cfg) else [PackedAttention(always=False)]

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Refuse models that do not fit the rows. Let the trainer compute a loss by weights, over a whole step."""
        from packer.attention.transformers_hook import rope_limit
        from packer.trainers.hf_and_trl import WEIGHTED, WEIGHTED_RULES, StepLoss

        check_model(trainer.model, *self._datasets)
        if _has_context_parallelism(cfg) and rope_limit(trainer.model.config.get_text_config()) is not None:
            raise PackerError(
                "the model derives the frequencies of RoPE from the longest document, of which a process sees only "
                "parts under context parallelism: set context_parallel_size to 1"
            )
        if cfg.packed_loss in WEIGHTED:
            check_settings(
                "Axolotl", cfg, dict.fromkeys(("use_eaft", "use_dft"), ((False,), "it is a loss of its own"))
            )
            check_settings("Axolotl", trainer.args, WEIGHTED_RULES)
            trainer.compute_loss_func = StepLoss("Axolotl", is_function=True, loss=cfg.packed_loss)
            trainer.compute_loss_func.on_init_end(trainer.args, model=trainer.model)


def _has_context_parallelism(cfg: Any) -> bool:
    """Return whether processes divide the tokens of a row. Axolotl has three names for their number."""
    sizes = [cfg.get("context_parallel_size"), cfg.get("sequence_parallel_degree")]
    return max(size or 1 for size in (*sizes, (cfg.get("context_parallel") or {}).get("size"))) > 1


def _plain(value: Any) -> Any:
    """Return a setting as a plain value instead of Axolotl's own mapping class."""
    return value.to_dict() if hasattr(value, "to_dict") else value
