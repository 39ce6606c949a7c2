"""Trainers by name: their configuration, and the files and columns that they read as an export.

`STEPS` has all trainers, `TARGETS` the trainers that need an export. Importing this module is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import OptionError

if TYPE_CHECKING:
    from packer.exporting.columns import ColumnArrays, Ends
    from packer.loader.dataset import PackedDataset
    from packer.loader.open_shards import Row
    from packer.options import PackOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class NextStep:
    """Configuration of one trainer. {packed} and {max_len} stand for the folder and the number of tokens in a row."""

    where: str
    """What the lines are for."""

    lines: str

    page: str
    """Page in docs/how-to/trainers, without its suffix."""

    trees: bool = False
    """Whether the trainer supports rows with trees."""

    exported: bool = False
    """Whether it reads an export instead of the packed dataset."""

    weights: str | None = None
    """Setting with which it uses weights of the loss; None if it refuses rows with weights."""

    def text(self, packed: object, max_len: int | str, *, weights: bool = False) -> str:
        """Return the configuration for a packed dataset, with or without weights of the loss, and its page."""
        lines = self.lines.format(packed=packed, max_len=max_len).splitlines()
        if weights:
            refused = "but this trainer refuses these rows, because they have weights of the loss"
            lines.append(f"with {self.weights}, for the weights of the loss" if self.weights else refused)
        return "\n  ".join([f"{self.where} (docs/how-to/trainers/{self.page}.md):", *lines])


def _export(name: str, page: str, then: str = "") -> NextStep:
    lines = f"packer export {{packed}} --to {name}\n{then}".rstrip()
    return NextStep(where="Next, export the rows", lines=lines, page=page, exported=True)


_MS_SWIFT = Path(__file__).parents[1] / "trainers" / "ms_swift" / "__init__.py"

STEPS: dict[str, NextStep] = {
    "hf": NextStep(
        where="In your script",
        lines='trainer = Trainer(model, **packer.trainers.hf("{packed}", args))',
        page="hugging-face",
        trees=True,
        weights='loss="weight" in packer.trainers.hf',
    ),
    "trl": NextStep(
        where="In your script",
        lines='trainer = SFTTrainer(model, **packer.trainers.trl("{packed}", args))',
        page="trl",
        trees=True,
        weights='loss="weight" in packer.trainers.trl',
    ),
    "axolotl": NextStep(
        where="In Axolotl's configuration",
        lines="plugins: [packer.trainers.axolotl.PackedPlugin]\npacked_dataset: {packed}",
        page="axolotl",
        weights="packed_loss: weight",
    ),
    "torchtitan": NextStep(
        where="To torchtitan's command, with the name of its configuration",
        lines="--module packer.trainers.torchtitan --config llama3_8b\n"
        "--dataloader.packed {packed} --training.seq_len {max_len}",
        page="torchtitan",
    ),
    "verl": NextStep(
        where="To the command of verl's SFT trainer",
        lines="data.custom_cls.path=pkg://packer.trainers.verl data.custom_cls.name=PackedRows\n"
        "data.train_files={packed}",
        page="verl",
        weights="+data.loss=weight",
    ),
    "automodel": NextStep(
        where="In Automodel's configuration, with NEMO_ENABLE_USER_MODULES=1 in the environment",
        lines="dataset:\n  _target_: packer.trainers.automodel.dataset\n  packed: {packed}\n"
        "packed_sequence:\n  packed_sequence_size: {max_len}\n  prepacked: true\n"
        "dataloader:\n  collate_fn: packer.trainers.automodel.collate\n"
        "  shuffle: true",
        page="automodel",
    ),
    "olmo-core": NextStep(
        where="To the command of your OLMo-core script",
        lines="--dataset._CLASS_=packer.trainers.olmo_core.Packed --dataset.packed={packed}\n"
        "--dataset.sequence_length={max_len}",
        page="olmo-core",
    ),
    "lightning": NextStep(
        where="In your module's train_dataloader, with use_distributed_sampler=False in the Trainer",
        lines='dataset = packer.load("{packed}")\n'
        "sampler = packer.BatchSampler(dataset, global_batch=32, rank=self.global_rank, "
        "world_size=self.trainer.world_size)\n"
        "return StatefulDataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate)",
        page="lightning",
        weights='loss_weights="weight" in packer.collate',
    ),
    "ms-swift": NextStep(
        where="To the command of swift sft or swift pt",
        lines=f"--external_plugins {_MS_SWIFT}\n--cached_dataset {{packed}}",
        page="ms-swift",
        weights="--loss_scale weight",
    ),
    "llama-factory": _export(
        "llama-factory",
        "llama-factory",
        "and in LLaMA-Factory's configuration:\ntokenized_path: {packed}-llama-factory\nneat_packing: true",
    ),
    "megatron": _export("megatron", "megatron"),
    "megatron-indexed": _export("megatron-indexed", "megatron"),
    **{name: _export(name, name) for name in ("maxtext", "torchtune")},
}

ALIASES = dict.fromkeys(("huggingface", "hugging-face", "transformers"), "hf") | {"llamafactory": "llama-factory"}


def as_trainer(name: str | None) -> str | None:
    """Return the name of a trainer in `STEPS`, in lower case and without aliases."""
    return None if name is None else ALIASES.get(name.lower(), name.lower())


def refuse_rows(trainer: str | None, options: PackOptions) -> None:
    """Raise an OptionError if a trainer cannot read rows that are packed with these options."""
    if trainer is None:
        return
    step = STEPS[trainer]
    if options.has_trees and not step.trees:
        having = " and ".join(name for name, other in STEPS.items() if other.trees)
        raise OptionError(f"--for {trainer} does not train trees (--pairs, --share-prefixes): only {having} do")
    if options.index_only or options.lengths_column is not None:
        raise OptionError(f"--for {trainer} needs rows with tokens: leave --index-only and --lengths out")
    if not options.labels:
        raise OptionError(f"--for {trainer} needs labels: leave --no-labels out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Format of the files that a trainer reads."""

    summary: str
    """Columns, and the trainers that read them, for `--help`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Arrow type of the values of each column. If empty, the shards' columns are written unchanged."""

    values: Callable[[Sequence[Row]], ColumnArrays] = lambda rows: {}
    """Function that makes the columns from rows."""

    files: tuple[str, ...] = ("{shard}.parquet",)
    """File names of a shard, in which {shard} is the shard's name without suffix."""

    small_files: Callable[[PackedDataset, list[str]], Mapping[str, bytes]] = lambda dataset, files: {}
    """Function that makes the contents of other files, by name, given the dataset and the names of its files."""

    keeps_shards: bool = False
    """Whether the files are the shards themselves, hard links where possible."""

    warning: str = ""
    """Line about what the user has to do next, such as a setting that keeps documents apart; {out} is the export."""

    pads_with_eos: Ends | None = None
    """Documents that must end in EOS, if padding must be EOS. For "aligned", only padding within rows must be EOS."""

    @property
    def ending(self) -> str:
        """Suffix of the first file, which determines the format."""
        return "." + self.files[0].rpartition(".")[2]


def _later(name: str) -> Callable[..., Any]:
    """Return a function of `columns.py`, which is imported when the function is first called."""
    return lambda *arguments: getattr(import_module("packer.exporting.columns"), name)(*arguments)


TARGETS: dict[str, Target] = {
    "megatron": Target(
        summary="input_ids, loss_mask, seq_start_id: packed sequences of Megatron-Bridge and NeMo",
        columns={"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32"},
        values=_later("megatron_columns"),
        files=("{shard}.idx.parquet",),  # Megatron-Bridge recognizes packed files by this suffix
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
    "hub": Target(
        summary="the packed dataset with a dataset card, for the Hugging Face Hub",
        files=("{shard}.arrow",),
        small_files=_later("hub_files"),
        keeps_shards=True,
        warning="Add the license to {out}/README.md, and put the dataset's id in place of ORG/NAME there and here: "
        "hf upload ORG/NAME {out} . --repo-type dataset",
    ),
}


def as_target(name: str) -> str:
    """Return the name of a target. Raises an OptionError that names a remedy for a trainer that needs no export."""
    step = STEPS.get(as_trainer(name) or "")
    if step is None or step.exported or name in TARGETS:
        return name
    where, *lines = step.text("PACKED", "MAX_LEN").splitlines()
    written = "; ".join(map(str.strip, lines))
    raise OptionError(f"{name} needs no export, because it reads the packed dataset itself. {where} {written}")
