"""Shared by the trainers' modules: open packed datasets, and refuse settings and adapters that mix documents."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, get_args

from packer.column_names import NO_LOSS, TREE_INPUT_IDS
from packer.errors import PackerError
from packer.loader.dataset import PackedDataset
from packer.loader.load import CombinedDataset, load
from packer.loader.row_tokens import LossWeights
from packer.stores import AnyPath

PackedPaths: TypeAlias = "str | AnyPath | Sequence[str | AnyPath] | Mapping[Any, float]"
"""Path of a packed dataset, several paths, or paths with weights; on a command line also as JSON."""

Rules: TypeAlias = "Mapping[str, tuple[tuple[object, ...], str]]"
"""Dotted name of a setting -> (values that keep documents apart, what other values would do)."""

REPACKS = "the rows are packed already, and it would pack them again"
READS_IN_ORDER = "rows must be shuffled, because those of a shard may be alike"


def open_rows(packed: PackedPaths, *, trees: bool = False, weights: bool = False) -> PackedDataset:
    """Open a packed dataset for a trainer. `trees` and `weights` say whether it trains them.

    Raises a PackerError as `packer.load`, for rows without tokens, and for trees or weights that it does not train.
    """
    if isinstance(packed, str) and packed.lstrip()[:1] in ("[", "{"):
        packed = json.loads(packed)
    dataset = load(packed)
    if has_trees(dataset) and not trees:
        raise PackerError(
            "the rows hold trees (--pairs, --share-prefixes), which only your own loop, TRL's SFTTrainer and the "
            "Hugging Face Trainer train: pack without these options"
        )
    if dataset.has_weights and not weights:
        raise PackerError(
            "the rows have weights of the loss, which this trainer ignores: remove them from the source, or use your "
            "own loop, Lightning, the Hugging Face Trainer, TRL's SFTTrainer, Axolotl, ms-swift or verl"
        )
    if not {"input_ids", TREE_INPUT_IDS} & dataset.datasets[0].columns:
        raise PackerError("the rows have no tokens (--index-only): pack without this option")
    return dataset


def has_trees(dataset: PackedDataset) -> bool:
    """Return whether documents share tokens in the rows. Combined datasets all have the same token columns."""
    return TREE_INPUT_IDS in dataset.datasets[0].columns


def check_loss(loss: LossWeights | None, *datasets: PackedDataset) -> None:
    """Raise a PackerError if there is no such loss, or if it does not say whether the weights in the rows are used."""
    if loss not in (None, *get_args(LossWeights)):
        raise PackerError(f"loss is {loss!r}: choose {', '.join(get_args(LossWeights))}")
    has_weights = any(dataset.has_weights for dataset in datasets)
    if loss is None and has_weights:
        raise PackerError("the rows have weights of the loss: set loss to weight, or to token to ignore them")
    if loss == "weight" and not has_weights:
        raise PackerError("loss is weight, and the rows have no weights: choose token or document")


def are_ordered(dataset: PackedDataset) -> bool:
    """Return whether the rows are ordered for trainers that do not shuffle (`--balance-ranks`)."""
    return not isinstance(dataset, CombinedDataset) and dataset.manifest.options.balance_ranks is not None


def labels_as_mask(trainer: str, tokens: Any, labels: Any) -> Any:
    """Return which tokens are trained, for a trainer that takes labels from the tokens; arrays or tensors, shape (T,).

    Raises a PackerError if a label is neither its token nor -100.
    """
    trained = labels != NO_LOSS
    if not (tokens == labels)[trained].all():
        raise PackerError(f"{trainer} takes labels from the tokens, so a label must be its token or -100")
    return trained


def check_settings(trainer: str, settings: Any, rules: Rules) -> None:
    """Raise a PackerError for the first setting of a trainer whose value would mix documents.

    A setting that is None, or that the trainer does not have, is accepted. settings: an object or a mapping.
    """
    for name, (allowed, effect) in rules.items():
        found = settings
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
        if found is not None and found not in allowed:
            remedy = "leave it out" if allowed[0] is None else f"set it to {' or '.join(map(str, allowed))}"
            raise PackerError(f"{name} of {trainer} is {found}: {effect}; {remedy}")


def check_model(model: Any, *datasets: PackedDataset) -> None:
    """Raise a PackerError if a model does not fit the rows of the datasets, with which it is trained.

    A PEFT adapter may mix the documents of a row, or work only in one of them. The embedding may lack an id that the
    rows hold, or are padded with.
    """
    for config in (getattr(model, "peft_config", None) or {}).values():
        if getattr(config, "is_prompt_learning", False):
            kind = getattr(config.peft_type, "value", config.peft_type)
            effect = "its virtual tokens begin a row, not each document, and documents would see each other"
        elif getattr(config, "alora_invocation_tokens", None):
            kind = "activated LoRA (alora_invocation_tokens)"
            effect = "it is active only from the last invocation tokens of a row on"
        else:
            continue
        raise PackerError(
            f"the model has an adapter of type {kind}: {effect}; take LoRA, or train on documents that are not packed"
        )
    ids = getattr(model.get_input_embeddings(), "num_embeddings", sys.maxsize)
    for each in (one for dataset in datasets for one in dataset.datasets):
        largest = max(each.manifest.totals.largest_id or 0, each.pad_id)
        if largest >= ids:
            raise PackerError(
                f"the rows hold the id {largest:,}, and the embedding of {type(model).__name__} has {ids:,}: pack with "
                f"the model's own tokenizer, or call model.resize_token_embeddings({largest + 1}) before training"
            )


def warn_of_weak_noise(alpha: float, dataset: PackedDataset, rows: int) -> None:
    """Warn that NEFTune divides its noise by the square root of the tokens of a batch of `rows` rows."""
    totals = [each.manifest.totals for each in dataset.datasets]
    segments, count = (sum(getattr(each, name) for each in totals) for name in ("segments", "rows"))
    weaker = (rows * segments / count) ** 0.5
    warnings.warn(
        f"neftune_noise_alpha is {alpha:g}: NEFTune divides its noise by the square root of the tokens of a batch, so "
        f"it is about {weaker:.2g} times weaker than on single documents; multiply it by that",
        stacklevel=4,
    )
