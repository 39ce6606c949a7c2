"""Attention within the documents of packed rows for Hugging Face models, and probes that show what leaks.

    packer.attention.use(model)      run a loaded model on torch's varlen attention, without a flash-attn build
    packer.attention.dense_mask(tree), block_mask(tree)   masks of a batch of trees, for other attention
    packer.attention.probe(model)    test whether documents affect each other, for each attention implementation

The modules, in the order in which a batch passes through them:

    document_attention.py  segment boundaries of a batch; attention by torch's varlen kernel or SDPA, and in trees
    transformers_hook.py   the interface to transformers, the cases it refuses, and RoPE frequencies per document

and those that probe whether it keeps documents apart:

    probe_step.py          `packer.probe`: which documents leak into others in any training step
    isolation.py           a step for each implementation of a model, probed, and its verdict
    load_model.py          path, Hub id or config file -> a small model with random weights and short windows

Importing this package imports neither torch nor transformers; its functions do when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.attention.document_attention import IMPLEMENTATION, block_mask, dense_mask
    from packer.attention.isolation import probe
    from packer.attention.transformers_hook import use

__all__ = ["IMPLEMENTATION", "block_mask", "dense_mask", "probe", "use"]

_HOMES = {
    "IMPLEMENTATION": "document_attention",
    "block_mask": "document_attention",
    "dense_mask": "document_attention",
    "probe": "isolation",
    "use": "transformers_hook",
}


def __getattr__(name: str) -> object:
    """Import the module of a function when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
