"""The values of options that are chosen from a list."""

from __future__ import annotations

from typing import Literal, get_args

LongPolicy = Literal["split", "truncate", "drop", "error"]
"""What happens to documents longer than a row."""

TruncateSide = Literal["left", "right"]
"""Which side of a truncated document is cut off."""

SplitAt = Literal["tokens", "turns"]
"""Where documents may be split: at any token, or between the turns of a chat."""

Untrained = Literal["keep", "drop", "error"]
"""What happens to segments without a trained token."""

EngineName = Literal["threads", "ray"]
"""What runs the tasks of a pack."""

OnError = Literal["error", "skip"]
"""What happens to records that cannot be used."""

GroupMode = Literal["together", "apart"]
"""Whether a row holds one group only, or no two documents of a group."""

MixUnit = Literal["tokens", "epochs"]
"""What the weights of a mixture count."""

TrainOn = Literal["all", "completion", "assistant", "each-answer"]
"""Which part of a document is trained."""

TokenColumn = Literal["position_ids"]
"""Token columns that are written on request, in addition to `input_ids` and `labels`."""

BuiltInTemplate = Literal["chatml", "gemma3", "glm4moe", "llama3", "qwen3"]
"""Chat templates that come with packer; see `packer.text.built_in_templates`."""

BUILT_IN_TEMPLATES: tuple[str, ...] = get_args(BuiltInTemplate)

ReportPlot = Literal["rows", "padding", "lengths", "max-len", "mixing", "attention", "tokens", "mixture"]
"""Plots of a report, in its order."""

Compression = Literal["zstd", "snappy", "none"]
"""Compression of exported Parquet files."""
