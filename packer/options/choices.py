"""The values of options that are chosen from a list; the declaration of each option says what they mean."""

from __future__ import annotations

from typing import Literal

LongPolicy = Literal["split", "truncate", "drop", "error"]
SplitAt = Literal["exchanges", "tokens"]
Untrained = Literal["keep", "keep-all", "drop", "error"]
OnError = Literal["error", "skip"]
Document = Literal["document", "sequence"]
TokenType = Literal["uint8", "uint16", "uint32", "int32", "int64"]
TrainOn = Literal["all", "completion", "assistant", "each-answer"]
TokenColumn = Literal["position_ids"]
Compression = Literal["zstd", "snappy", "none"]

BUILT_IN_TEMPLATES = ("chatml", "gemma3", "glm4moe", "llama3", "qwen3")  # in packer/text/built_in_templates
