"""Attention within the documents of packed rows for Hugging Face models.

    packer.attention.use(model)      run a loaded model on torch's varlen attention, without a flash-attn build
    packer.attention.dense_mask(tree), block_mask(tree)   masks of a batch of trees, for other attention

The modules:

    document_attention.py  segment boundaries of a batch; attention by torch's varlen kernel or SDPA, and in trees
    transformers_hook.py   the interface to transformers, the cases it refuses, and RoPE frequencies per document
    load_model.py          path, Hub id or config file -> a small model with random weights and short windows

Importing this package imports neither torch nor transformers; they are imported when its functions are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.attention.document_attention import IMPLEMENTATION, block_mask, dense_mask
    from packer.attention.transformers_hook import use

__all__ = ["IMPLEMENTATION", "block_mask", "dense_mask", "use"]

_HOMES = {
    "IMPLEMENTATION": "document_attention",
    "block_mask": "document_attention",
    "dense_mask": "document_attention",
    "use": "transformers_hook",
}


def __getattr__(name: str) -> object:
    """Import the module of a function when the function is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
