"""The keyword arguments of `packer.pack`, for type checkers and editors.

Made from the declarations of options by `python docs/make_commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from packer.options import choices

if TYPE_CHECKING:
    from typing_extensions import Required

    from packer.progress import Progress


class RunArguments(TypedDict, total=False):
    """Options of all functions that write a packed dataset."""

    workers: int | None
    sync: bool
    overwrite: bool
    engine: str
    ranks: str | None
    progress: Progress


class PackArguments(RunArguments, total=False):
    """Options of `packer.pack`."""

    split: str | None
    input_column: str
    labels_column: str
    lengths_column: str | None
    on_error: choices.OnError
    keep: Sequence[str]
    keep_tokens: Sequence[str]
    tokenizer: str | Path | None
    text_column: str | None
    train_on: choices.TrainOn | None
    chat_template: str | None
    eos: bool
    pairs: bool
    share_prefixes: bool
    holdout: float | str | None
    seed: int
    max_len: Required[int | str]
    align: int
    untrained: choices.Untrained
    long: choices.LongPolicy
    split_at: choices.SplitAt
    algorithm: str
    max_segments: int | None
    limit: Sequence[str]
    group_by: str | None
    pad_id: int | None
    add_column: str | Sequence[str]
    labels: bool
    index_only: bool
    shard_size: int | str
