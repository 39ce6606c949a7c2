"""Packed rows in other trainers: datasets and plugins for each trainer, and checks of its settings.

    SFTTrainer(model, **packer.trainers.trl("dataset-packed-4096", args))     TRL
    Trainer(model, **packer.trainers.hf("dataset-packed-4096", args))         Hugging Face Trainer

Other trainers name a module of this package in their configuration; `packer pack --for TRAINER` prints how. A packed
dataset is a path, a list of paths, or paths with weights, as `packer.load` takes them.

    guard.py        opens datasets, and refuses settings and models that do not fit them
    hf_and_trl.py   the Hugging Face Trainer and TRL's SFTTrainer, and the loss of a step in both
    axolotl.py      a plugin
    torchtitan.py   its configurations, and its data loaders before and after version 0.3
    automodel.py    a dataset and a collator for NeMo Automodel
    ms_swift/       a plugin
    olmo_core.py    a dataset of its configuration
    verl.py         a dataset for its SFT trainer

A module for a trainer imports the trainer. Importing this package imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.trainers.hf_and_trl import hf, trl

__all__ = ["hf", "trl"]


def __getattr__(name: str) -> object:
    """Import a module when one of its names is first used."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.hf_and_trl"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
