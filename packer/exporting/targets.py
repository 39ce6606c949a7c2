"""Targets of exports: the files and columns that each trainer reads, in one registry. Importing it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from packer.errors import OptionError
from packer.exporting.next_steps import STEPS, as_trainer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer.loader.dataset import PackedDataset
    from packer.loader.open_shards import Row


Columns: TypeAlias = "Mapping[str, Sequence[NDArray[Any]]]"
"""One array per row, by column name."""

Ends = Literal["each", "aligned"]
"""Which documents must end in their only EOS: each; or each, unless the user names EOS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Format of the files that a trainer reads."""

    summary: str
    """Columns, and the trainers that read them, for `--help`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Arrow type of the values in each row of each column. If empty, the shards' columns are written as they are."""

    values: Callable[[Sequence[Row]], Columns] = lambda rows: {}
    """Function that makes the columns from rows."""

    files: tuple[str, ...] = ("{shard}.parquet",)
    """Names of the files of a shard, from its own name without an ending."""

    small_files: Callable[[PackedDataset, list[str]], Mapping[str, bytes]] = lambda dataset, files: {}
    """Function that makes the contents of other files, by name, from the dataset and the names of its files."""

    warning: str = ""
    """What to set in the trainer so that documents of a row do not see each other, unless it needs nothing."""

    pads_with_eos: Ends | None = None
    """If padding must be EOS: which documents must end in it. For "aligned", only padding within rows."""

    @property
    def ending(self) -> str:
        """Ending of the first file, which tells the format."""
        return "." + self.files[0].rpartition(".")[2]


def _later(name: str) -> Callable[..., Any]:
    """Return a function of `columns.py`, which is imported when it is first called."""
    return lambda *arguments: getattr(import_module("packer.exporting.columns"), name)(*arguments)


TARGETS: dict[str, Target] = {
    "megatron": Target(
        summary="input_ids, loss_mask, seq_start_id: packed sequences of Megatron-Bridge and NeMo",
        columns={"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32"},
        values=_later("megatron_columns"),
        files=("{shard}.idx.parquet",),  # Megatron-Bridge recognizes packed files by this ending
        small_files=_later("megatron_metadata"),
        pads_with_eos="aligned",
    ),
    "maxtext": Target(
        summary="inputs, targets, and the _position and _segmentation of both",
        columns={
            f"{side}{part}": "int32" for side in ("inputs", "targets") for part in ("", "_position", "_segmentation")
        },
        values=_later("maxtext_columns"),
    ),
    "torchtune": Target(
        summary="tokens, labels, input_pos, seq_lens",
        columns=dict.fromkeys(("tokens", "labels", "input_pos", "seq_lens"), "int32"),
        values=_later("torchtune_columns"),
    ),
    "llama-factory": Target(
        summary="input_ids, labels, position_ids, attention_mask: tokenized_path of LLaMA-Factory with neat_packing",
        columns=dict.fromkeys(("input_ids", "labels", "position_ids", "attention_mask"), "int32"),
        values=_later("llama_factory_columns"),
        files=("{shard}.arrow",),
        small_files=_later("datasets_files"),
    ),
    "megatron-indexed": Target(
        summary=".bin and .idx: pretraining data of Megatron-LM, whose documents end in EOS",
        columns={"tokens": "int32"},
        values=_later("indexed_columns"),
        files=("{shard}.bin", "{shard}.idx"),
        warning="To keep documents apart, Megatron-LM needs --reset-position-ids --reset-attention-mask "
        "--transformer-impl local --no-masked-softmax-fusion, and no --dataloader-inter-document-masking",
        pads_with_eos="each",
    ),
    "parquet": Target(summary="all columns as they are"),
}


def as_target(name: str) -> str:
    """Return the name of a target; an OptionError says what to do for a trainer that needs no export."""
    step = STEPS.get(as_trainer(name) or "")
    if step is None or step.exported or name in TARGETS:
        return name
    where, *lines = step.text("PACKED", "MAX_LEN").splitlines()
    written = "; ".join(map(str.strip, lines))
    raise OptionError(f"{name} needs no export, because it reads the packed dataset itself. {where} {written}")
