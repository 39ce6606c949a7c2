"""Names of the attention implementations of Hugging Face models."""

from __future__ import annotations

IMPLEMENTATION = "packer_varlen"
"""Name of packer's implementation in transformers. It avoids "flash", a word that transformers looks for in names."""


def installed_implementations() -> list[str]:
    """Return the names of the attention implementations that can run on this machine; imports transformers."""
    import transformers

    flash = ["flash_attention_2"] if transformers.utils.import_utils.is_flash_attn_2_available() else []
    return ["eager", "sdpa", IMPLEMENTATION, *flash]
