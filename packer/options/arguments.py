"""The further keyword arguments of `packer.pack` and `packer.stats`, for type checkers and editors.

Made from the declarations of options by `python docs/make_commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from packer.options.option import Document, OnError, SplitAt, TokenType, Untrained


class StatsArguments(TypedDict, total=False):
    """Options of `packer.stats` and `packer.pack` beside the parameters that these functions name."""

    split: str | None
    input_column: str
    labels_column: str
    document: Document
    eos_id: int | None
    dtype: TokenType | None
    on_error: OnError
    eos: bool
    pairs: bool
    share_prefixes: bool
    seed: int
    align: int
    split_at: SplitAt | None
    max_segments: int | None
    limit: Sequence[str]
    group_by: str | None
    index_only: bool


class PackArguments(StatsArguments, total=False):
    """Options of `packer.pack` alone."""

    lengths_column: str | None
    keep_tokens: Sequence[str]
    holdout: float | str | None
    untrained: Untrained
    balance_ranks: int | None
    pad_id: int | None
    add_column: str | Sequence[str]
    labels: bool
    shard_size: int | str
    sync: bool
    engine: str
    ranks: str | None
