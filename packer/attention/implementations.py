"""Names of the attention implementations of Hugging Face models."""

from __future__ import annotations

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
