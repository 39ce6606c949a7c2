"""Attention implementations of Hugging Face models: their names, and the verdict of the probe. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

IMPLEMENTATION = "packer_varlen"
"""Name of packer's implementation in transformers. It avoids "flash", a word that transformers looks for in names."""


def installed_implementations() -> list[str]:
    """Return the names of the attention implementations that can run on this machine; imports transformers.

    Kernels from the Hub, which would be downloaded, are not among them.
    """
    from transformers.utils import import_utils

    flash = [
        f"flash_attention_{version}"
        for version in (2, 3, 4)
        if getattr(import_utils, f"is_flash_attn_{version}_available", bool)()  # bool() is False: an older transformers
    ]
    return ["eager", "sdpa", IMPLEMENTATION, *flash]


Answer = Literal["safe", "leaks", "differs", "refuses", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Result of the probe for one attention implementation."""

    implementation: str
    """Name of the implementation, as in `from_pretrained(attn_implementation=...)`."""

    answer: Answer
    """One of five words.

    - "safe": packed documents have the same outputs as single ones.
    - "leaks": changing a document changed others, or in a causal model, changing a token changed earlier ones.
    - "differs": it did not, but packed documents have other outputs than single ones.
    - "refuses": the model raised an error.
    - "unclear": the probe could not distinguish a leak from rounding, or eager and sdpa differ on single documents.
    """

    moved: float | None = None
    """Largest change of a logit of another document, relative to the largest logit. None, like the next three, if the
    answer is "refuses"."""

    logits: float | None = None
    """Norm of the difference between the logits of packed and single documents, relative to that of the latter."""

    loss: float | None = None
    """Relative difference of the loss."""

    gradients: float | None = None
    """Relative difference of the gradients of all parameters together."""

    reason: str = ""
    """Why the implementation is not safe, in one line; empty if it is."""

    remedy: str = ""
    """What to use instead, in one line; empty if the implementation is safe."""

    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Config fields, such as a sliding window, that exceed the probed lengths. The verdict holds for batches of up to
    so many tokens; if empty, for any."""

    @property
    def safe(self) -> bool:
        """Whether the answer is "safe"."""
        return self.answer == "safe"
