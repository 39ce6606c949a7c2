"""What a user writes to train on a packed dataset, for each trainer: `STEPS`. Importing it is cheap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import OptionError

if TYPE_CHECKING:
    from packer.options import PackOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class NextStep:
    """What to write for one trainer; {packed} and {max_len} stand for the folder and the tokens of a row."""

    where: str
    """What the lines are for."""

    lines: str

    page: str
    """Page in docs/how-to/trainers, without its ending."""

    trees: bool = False
    """Whether it trains rows of trees."""

    exported: bool = False
    """Whether it reads an export instead of the packed dataset."""

    def text(self, packed: object, max_len: int | str) -> str:
        """Return what to write for a packed dataset, and the page that explains it."""
        lines = self.lines.format(packed=packed, max_len=max_len).splitlines()
        return "\n  ".join([f"{self.where} (docs/how-to/trainers/{self.page}.md):", *lines])


def _export(name: str, page: str, then: str = "") -> NextStep:
    lines = f"packer export {{packed}} --to {name}\n{then}".rstrip()
    return NextStep(where="Next, export the rows", lines=lines, page=page, exported=True)


_HF = NextStep(
    where="In your script",
    lines='trainer = Trainer(model, **packer.trainers.hf("{packed}", args))',
    page="hugging-face",
    trees=True,
)

_MS_SWIFT = Path(__file__).parents[1] / "trainers" / "ms_swift" / "__init__.py"

STEPS: dict[str, NextStep] = {
    "hf": _HF,
    "trl": NextStep(
        where="In your script",
        lines='trainer = SFTTrainer(model, **packer.trainers.trl("{packed}", args))',
        page="trl",
        trees=True,
    ),
    "axolotl": NextStep(
        where="In Axolotl's configuration",
        lines="plugins: [packer.trainers.axolotl.Packed]\npacked_dataset: {packed}",
        page="axolotl",
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
    ),
    "ms-swift": NextStep(
        where="To the command of swift sft or swift pt",
        lines=f"--external_plugins {_MS_SWIFT}\n--cached_dataset {{packed}}",
        page="ms-swift",
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
