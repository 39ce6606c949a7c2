"""Types of the keyword arguments of Python functions that are options, for type checkers and editors.

Made from the declarations of options by `python docs/make_commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from packer.options.option import Document, LongPolicy, OnError, SplitAt, TokenType, TrainOn, Untrained


class StatsArguments(TypedDict, total=False):
    """Options of `packer.stats`."""

    split: str | None
    input_column: str
    labels_column: str
    document: Document
    eos_id: int | None
    dtype: TokenType | None
    on_error: OnError
    tokenizer: str | Path | None
    text_column: str | None
    train_on: TrainOn | None
    untrained_parts: str | Sequence[str]
    chat_template: str | Path | None
    eos: bool
    pairs: bool
    share_prefixes: bool
    seed: int
    align: int
    long: LongPolicy
    split_at: SplitAt | None
    algorithm: str
    max_segments: int | None
    limit: Sequence[str]
    group_by: str | None
    index_only: bool


class PackArguments(StatsArguments, total=False):
    """Options of `packer.pack`."""

    lengths_column: str | None
    keep: Sequence[str]
    keep_tokens: Sequence[str]
    weight: str | None
    vocab_size: int | str | Path | None
    holdout: float | str | None
    untrained: Untrained
    balance_ranks: int | None
    pad_id: int | None
    add_column: str | Sequence[str]
    labels: bool
    shard_size: int | str
    workers: int | None
    sync: bool
    overwrite: bool
    engine: str
    ranks: str | None


class TokenizeArguments(TypedDict, total=False):
    """Options of `packer.tokenize`."""

    split: str | None
    on_error: OnError
    keep: Sequence[str]
    weight: str | None
    text_column: str | None
    train_on: TrainOn | None
    untrained_parts: str | Sequence[str]
    chat_template: str | Path | None
    eos: bool
    workers: int | None
    sync: bool
    overwrite: bool
