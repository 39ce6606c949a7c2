"""The options of a pack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from packer.algorithms import get_algorithm
from packer.errors import PackerError
from packer.options.checks import OF_TEXT, check
from packer.plan.groups import GroupMode
from packer.plan.mixing import MixUnit
from packer.plan.segments import LongPolicy, TruncateSide
from packer.shards.columns import ROLE
from packer.text import TrainOn, tokenizer_name

SplitAt = Literal["tokens", "turns"]
Untrained = Literal["keep", "drop", "error"]
_ADDED = (
    *("gap", "time_limit", "overlap", "split_at", "truncate_side", "align", "untrained"),
    *("keep", "keep_tokens", "group_by", "group_mode", "pairs", "tokenizer", *OF_TEXT),
    *("weights", "mix_unit", "mix_tokens"),
)
"""Options that a manifest has where they are used: so that packs without them stay as they were."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """Every option that shapes the bytes of a packed dataset.

    Raises:
        PackerError: a value is outside its limits.
    """

    max_len: int
    """Tokens of a row, at most 2^24."""

    algorithm: str = "auto"
    """Name in the registry of algorithms."""

    max_segments: int | None = None
    """The most segments in a row; None for no limit."""

    gap: float | None = None
    """Rows above the lower bound, as a share of it, at which `optimal` stops; None for none."""

    time_limit: float | None = None
    """Seconds after which `optimal` stops with the best so far, which differs between machines; None for no limit."""

    long: LongPolicy = "split"
    """What happens to documents longer than max_len."""

    overlap: int = 0
    """Tokens with which each piece of a document that is split repeats the piece before; no loss on them again."""

    split_at: SplitAt = "tokens"
    """Where a document is split: anywhere, or between the turns of a chat only."""

    truncate_side: TruncateSide = "right"
    """The side of a document that goes where it is truncated."""

    untrained: Untrained = "keep"
    """What happens to segments of which nothing is trained."""

    align: int = 1
    """Segments take a multiple of it; it divides max_len."""

    seed: int = 0
    """Of every permutation, 0..2^63-1."""

    pad_id: int | None = None
    """Token id of the padding; None: the tokenizer's once the source is open, or 0."""

    labels: bool = True
    """Whether the `labels` column is written."""

    position_ids: bool = False
    """Whether the `position_ids` column is written."""

    shard_size: int = 512 * 10**6
    """Bytes a shard should have at most."""

    split: str | None = None
    """Split of a DatasetDict or a Hub dataset."""

    input_column: str = "input_ids"
    """Name of the column of tokens in the source."""

    labels_column: str = "labels"
    """Name of the column of labels in the source; it need not be there."""

    keep: tuple[str, ...] = ()
    """Columns of the source that are kept, a value for each segment: that of its document."""

    keep_tokens: tuple[str, ...] = ()
    """Columns of the source that are kept, a value for each token."""

    tokenizer: str | None = None
    """Path or Hub id of the tokenizer of a source of text; None for one of tokens. Dictionaries have its name alone."""

    text_column: str | None = None
    """Column of text, or two joined by a comma, of prompt and completion, which follow each other as they are; None
    for those with the usual names."""

    train_on: TrainOn | None = None
    """What of a text is trained; None: the assistant's turns of chats, completions of prompts, all of a text."""

    chat_template: str | None = None
    """A Jinja template in place of the tokenizer's own."""

    eos: bool = True
    """End texts and completions with the end-of-sequence token."""

    group_by: str | None = None
    """Column of the source whose equal values make documents a group; null is no group."""

    group_mode: GroupMode = "together"
    """Whether a row holds documents of one group alone, or none with two of a group."""

    pairs: bool = False
    """Whether rows of the source are preference pairs, of which both answers, documents 2i and 2i + 1, are one item."""

    weights: tuple[float, ...] = ()
    """Of each source of a mixture; none where there is one source."""

    mix_unit: MixUnit = "tokens"
    """What a weight is: a share of the mixture's tokens, or how often the source is seen."""

    mix_tokens: int | None = None
    """Tokens of the mixture; None for as many as there are without repeating a source."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def kept(self) -> tuple[str, ...]:
        """All columns of a value for each segment that are kept: of pairs also which side it is."""
        return (*self.keep, ROLE) if self.pairs else self.keep

    @property
    def max_items(self) -> int | None:
        """The most items in a row: documents, or pairs of them."""
        return self.max_segments // 2 if self.pairs and self.max_segments is not None else self.max_segments

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The column that groups documents, where it is not kept as well."""
        return (self.group_by,) if self.group_by is not None and self.group_by not in self.keep else ()

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest says of the options: those that came after the first only where they are used."""
        options = {name: getattr(self, name) for name in self.__slots__}
        for field in fields(self):
            if field.name in _ADDED and options[field.name] == field.default:
                del options[field.name]
        if self.tokenizer is not None:
            options["tokenizer"] = tokenizer_name(self.tokenizer)
        lists = {name: list(value) for name, value in options.items() if isinstance(value, tuple)}  # as JSON has them
        return {**options, **lists, "algorithm": get_algorithm(self.algorithm).name}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> PackOptions:
        """Return the options that a manifest tells of; what a later version may have added is left out.

        Raises:
            PackerError: a value is outside its limits.
        """
        known: dict[str, Any] = {name: value for name, value in options.items() if name in cls.__slots__}
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        try:
            return cls(**{**known, **lists})
        except PackerError as error:
            raise PackerError(f"the options in the manifest are damaged: {error}") from error
