"""Options of `collate`, such as masking and further columns, and the formats that support them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from packer.errors import PackerError
from packer.loader.batching.batch_shape import StaticShape
from packer.loader.batching.token_masking import MaskedLM
from packer.loader.row_segments import LossWeights

SUPPORTED_BY = {
    "static": ("hf", "megatron"),
    "loss_weights": ("hf", "hf_rows", "encoder", "megatron"),
    "mlm": ("hf", "encoder"),
    "keep": ("hf", "encoder"),
    "keep_tokens": ("hf", "encoder"),
    "position_offset": ("hf", "encoder"),
    "additive_mask": ("encoder",),
}
"""Formats that support an option: the batches of the others have one shape anyway, or no key for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions:
    """Options of a batch format; `SUPPORTED_BY` lists the formats that support each."""

    static: StaticShape | None = None
    """Shape that all batches are padded to."""

    loss_weights: LossWeights | None = None
    """Whether to add the key `loss_weights`, and what each weight averages over."""

    mlm: MaskedLM | None = None
    """Masking for a masked language model."""

    epoch: int = 0
    """Epoch that the masks are drawn for."""

    keep: Sequence[str] | None = None
    """Segment columns to add under the key `segments`, which `encoder` batches always have."""

    keep_tokens: Sequence[str] = ()
    """Token columns to add."""

    position_offset: int = 0
    """Position of the first token of every segment."""

    additive_mask: bool = False
    """Whether `attention_mask` is float32, to be added to the attention logits, instead of bool."""

    def check(self, format: str) -> None:
        """Check that a format supports every option that is set.

        Raises:
            PackerError: it does not, or two options exclude each other.
        """
        for option in fields(self):
            formats = SUPPORTED_BY.get(option.name, (format,))
            if format not in formats and getattr(self, option.name) != option.default:
                raise PackerError(
                    f"format {format} does not support {option.name}: leave it out, or choose {' or '.join(formats)}"
                )
        if self.loss_weights not in (None, "sequence", "document"):
            raise PackerError(
                f"loss_weights is {self.loss_weights!r}: choose sequence or document, or None for the mean over tokens"
            )
        if self.mlm is not None and "labels" in self.keep_tokens:
            raise PackerError("keep_tokens has labels, which mlm replaces: leave one of the two out")
