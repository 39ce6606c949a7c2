"""The keyword arguments of `packer.pack`, for type checkers and editors, and how they become `PackOptions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from packer.options.choices import (
    GroupMode,
    LongPolicy,
    MixUnit,
    OnError,
    SplitAt,
    TokenColumn,
    TrainOn,
    TruncateSide,
    Untrained,
)
from packer.options.option import options_of
from packer.options.pack_options import PackOptions

if TYPE_CHECKING:
    from typing_extensions import Required


class PackArguments(TypedDict, total=False):
    """Names and types of the options; `PackOptions` declares their defaults and limits, and a test compares the two."""

    max_len: Required[int | str]
    split: str | None
    input_column: str
    labels_column: str
    lengths_column: str | None
    on_error: OnError
    keep: Sequence[str]
    keep_tokens: Sequence[str]
    tokenizer: str | Path | None
    text_column: str | None
    train_on: TrainOn | None
    chat_template: str | None
    eos: bool
    algorithm: str
    max_segments: int | None
    gap: float | None
    time_limit: float | None
    limit: Sequence[str]
    align: int
    untrained: Untrained
    allow_untrained: bool
    seed: int
    pad_id: int | None
    long: LongPolicy
    overlap: int | str
    split_at: SplitAt
    truncate_side: TruncateSide
    mix_unit: MixUnit
    mix_tokens: int | str | None
    group_by: str | None
    group_mode: GroupMode
    pairs: bool
    emit: str | Sequence[TokenColumn]
    labels: bool
    index_only: bool
    shard_size: int | str


def pack_options(
    arguments: Mapping[str, Any],
    *,
    weights: tuple[float, ...] = (),
    others: Iterable[str] = (),
    declaration: type[PackOptions] = PackOptions,
) -> PackOptions:
    """Make options of the keyword arguments of `packer.pack`.

    Args:
        arguments: values by name, as the caller gave them.
        weights: those of a mixture.
        others: names of other keyword arguments that the caller could have meant.
        declaration: the class that declares the options.

    Raises:
        TypeError: an argument has no such name, and the message names the nearest; or a required one is missing.
        PackerError: a value is outside its limits, or cannot be combined with another.
    """
    declared = {name: option for name, option in options_of(declaration).items() if name != "weights"}
    for name in arguments:
        if name not in declared:
            nearest = get_close_matches(name, [*declared, *others], 1, 0.5)
            raise TypeError(
                f"pack() got an unexpected keyword argument {name!r}"
                + (f": did you mean {nearest[0]}?" if nearest else "")
            )
    missing = [name for name, option in declared.items() if option.is_required and name not in arguments]
    if missing:
        raise TypeError(f"pack() is missing the keyword argument {missing[0]!r}")
    values = {name: declared[name].converted(value) for name, value in arguments.items()}
    return declaration(weights=weights, **values)
