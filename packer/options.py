"""The options of a pack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.patterns import Patterns
from packer.errors import PackerError, SourceError
from packer.plan.cutting import cut_documents
from packer.plan.segments import LONG_POLICIES, TRUNCATE_SIDES, LongPolicy, Segments, TruncateSide
from packer.shards.columns import RESERVED_COLUMNS, SEGMENT_COLUMNS, TOKEN_COLUMNS, RowFormat
from packer.text import TRAIN_ON, TrainOn, tokenizer_name

SplitAt = Literal["tokens", "turns"]
SPLIT_AT: tuple[str, ...] = get_args(SplitAt)
EMITTED = ("labels", "position_ids")
Untrained = Literal["keep", "drop", "error"]
UNTRAINED: tuple[str, ...] = get_args(Untrained)
_TEXT = ("text_column", "train_on", "chat_template", "eos")
_ADDED = (
    *("gap", "time_limit", "overlap", "split_at", "truncate_side", "align", "untrained", "keep", "keep_tokens"),
    *("tokenizer", *_TEXT),
)
"""Options that a manifest has where they are used: so that packs without them stay as they were."""

TRAIN_CHOICES = tuple(dict.fromkeys(chain.from_iterable(TRAIN_ON.values())))
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_LARGEST = 2**31 - 1
_LONGEST_ROW = 2**24  # 16 million tokens: what is kept per length (histograms) stays within memory


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
    """Token id of the padding; None: 0, or that of the tokenizer once it is open."""

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
    """Column of text, or two joined by a comma, of prompt and completion; None for those with the usual names."""

    train_on: TrainOn | None = None
    """What of a text is trained; None: the assistant's turns of chats, completions of prompts, all of a text."""

    chat_template: str | None = None
    """A Jinja template in place of the tokenizer's own."""

    eos: bool = True
    """End texts and completions with the end-of-sequence token."""

    def __post_init__(self) -> None:
        self._check_text()
        if self.pad_id is None and self.tokenizer is None:
            object.__setattr__(self, "pad_id", 0)
        algorithm = get_algorithm(self.algorithm)
        for name, most in (("gap", 1.0), ("time_limit", float("inf"))):
            limit = getattr(self, name)
            if limit is None:
                continue
            if not (isinstance(algorithm, Algorithm) and algorithm.limited):
                raise PackerError(
                    f"{name} is {limit!r}, and {algorithm.name} has no use for it: choose algorithm optimal"
                )
            if type(limit) not in (int, float) or not 0 <= limit <= most:  # NaN is not, either
                raise PackerError(f"{name} is {limit!r}: it must be a number from 0" + (" to 1" if most == 1 else ""))
        if self.long not in LONG_POLICIES:
            raise PackerError(f"long is {self.long!r}: choose one of {', '.join(LONG_POLICIES)}")
        if self.untrained not in UNTRAINED:
            raise PackerError(f"untrained is {self.untrained!r}: choose one of {', '.join(UNTRAINED)}")
        if self.untrained != "keep" and not self.labels:
            raise PackerError(f"untrained is {self.untrained!r}: only labels say what is trained; leave them in")
        if self.truncate_side not in TRUNCATE_SIDES:
            raise PackerError(f"truncate_side is {self.truncate_side!r}: choose left or right")
        for name, value, least, most in (
            ("max_len", self.max_len, 1, _LONGEST_ROW),
            ("overlap", self.overlap, 0, _LARGEST),
            ("align", self.align, 1, _LARGEST),
            ("max_segments", self.max_segments, 1, _LARGEST),
            ("seed", self.seed, 0, 2**63 - 1),
            ("pad_id", self.pad_id, 0, _LARGEST),
            ("shard_size", self.shard_size, 1, 2**63 - 1),
        ):
            if value is None and name in ("max_segments", "pad_id"):
                continue
            if type(value) is not int or not least <= value <= most:
                raise PackerError(f"{name} is {value!r}: it must be a whole number from {least} to {most}")
        self._check_pieces(keeps_whole=isinstance(algorithm, Algorithm) or algorithm.keeps_whole)

    def _check_text(self) -> None:
        """Check the options of text: they need a tokenizer, which has no use for those of tokens."""
        defaults = {field.name: field.default for field in fields(self)}
        given = next((name for name in _TEXT if getattr(self, name) != defaults[name]), None)
        if given and self.tokenizer is None:
            value = str(getattr(self, given))[:40]
            raise PackerError(f"{given} is {value!r}, and there is no tokenizer: give one by --tokenizer")
        if self.train_on not in (None, *TRAIN_CHOICES):
            raise PackerError(f"train_on is {self.train_on!r}: choose one of {', '.join(TRAIN_CHOICES)}")
        if self.tokenizer is not None and (self.keep or self.keep_tokens):
            raise PackerError(f"keep {[*self.keep, *self.keep_tokens][0]!r}: of text no columns are kept; leave it out")
        for name, usual in (("input_column", "input_ids"), ("labels_column", "labels")):
            if self.tokenizer is not None and getattr(self, name) != usual:
                raise PackerError(
                    f"{name} is {getattr(self, name)}, and there is a tokenizer, which makes tokens "
                    "and labels of text: name the text with --text-column, or leave --tokenizer out"
                )

    def _check_pieces(self, *, keeps_whole: bool) -> None:
        """Check the options that shape pieces of documents against each other."""
        given = [*self.keep, *self.keep_tokens]
        for name in given:
            if name in (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, self.input_column, self.labels_column, *RESERVED_COLUMNS):
                raise PackerError(f"keep {name!r}: the rows have a column of that name; rename it in the source")
            if given.count(name) > 1:
                raise PackerError(f"keep {name!r}: it is given {given.count(name)} times; give it once")
        if self.overlap >= self.max_len:
            raise PackerError(f"overlap is {self.overlap}: it must be below max_len {self.max_len}")
        if self.overlap and self.long != "split":
            raise PackerError(
                f"overlap is {self.overlap}, and long is {self.long}: only pieces overlap; use long split"
            )
        if self.split_at not in SPLIT_AT:
            raise PackerError(f"split_at is {self.split_at!r}: choose tokens or turns")
        if self.split_at == "turns" and (self.long != "split" or self.overlap or not keeps_whole):
            other = f"long {self.long}" if self.long != "split" else f"overlap {self.overlap}" if self.overlap else ""
            raise PackerError(
                f"split_at is turns, which does not go with {other or 'algorithm ' + self.algorithm}: leave one out"
            )
        if self.truncate_side != "right" and self.long != "truncate":
            raise PackerError(f"truncate_side is left, and long is {self.long}: use long truncate")
        if self.max_len % self.align:
            lower = self.max_len - self.max_len % self.align
            near = f"{lower} or {lower + self.align}" if lower else str(self.align)
            raise PackerError(f"align is {self.align}, and max_len {self.max_len} no multiple of it: take {near}")
        if not self.labels and (self.overlap or self.align > 1):
            name = "overlap" if self.overlap else "align"
            raise PackerError(f"{name} is {getattr(self, name)}: only labels say what is not trained; leave them in")
        if not keeps_whole and (self.overlap or self.align > 1):
            name = "overlap" if self.overlap else "align"
            raise PackerError(
                f"{name} is {getattr(self, name)}, and algorithm {self.algorithm} cuts documents wherever a row ends: "
                "choose another algorithm"
            )

    @property
    def row_format(self) -> RowFormat:
        """What the rows look like."""
        return RowFormat.of(self.to_dict())

    def row_format_of(self, extra: Mapping[str, pa.ChunkedArray]) -> RowFormat:
        """What the rows look like with the columns that are kept, of these types.

        Raises:
            SourceError: a column of values per token is not of numbers of whole bytes.
        """
        kept_tokens = {name: extra[name].type.value_type for name in self.keep_tokens}
        for name, value_type in kept_tokens.items():
            if value_type.bit_width % 8:
                raise SourceError(f"column '{name}' holds lists of {value_type}: save it as int8")
        return self.row_format.keeping({name: extra[name].type for name in self.keep}, kept_tokens)

    def cut(self, lengths: NDArray[np.int32], *, threads: int = 1) -> Segments:
        """Cut documents of `lengths` tokens as these options say; see `cut_documents`."""
        return cut_documents(
            lengths,
            self.max_len,
            self.long,
            overlap=self.overlap,
            truncate_side=self.truncate_side,
            align=self.align,
            threads=threads,
        )

    def solve(self, histogram: NDArray[np.int64]) -> Patterns:
        """Pack a histogram with the histogram algorithm of these options: int64, shape (max_len + 1,)."""
        algorithm = get_algorithm(self.algorithm)
        assert isinstance(algorithm, Algorithm)
        limits = {"gap": self.gap, "seconds": self.time_limit}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return algorithm.solve(histogram, self.max_segments, **given)

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
        """Return the options that a manifest tells of; what a later version may have added is left out."""
        known: dict[str, Any] = {name: value for name, value in options.items() if name in cls.__slots__}
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**{**known, **lists})


def parse_size(text: str) -> int:
    """Bytes of a size like 512MB, 2GiB or 1000000.

    Raises:
        PackerError: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", text.upper())
    unit = match[2] if match else "?"
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or (unit not in _UNITS and unit != "B"):
        raise PackerError(f"{text!r} is not a size: write bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(Decimal(match[1]) * _UNITS.get(unit, 1))


def byte_size(size: int) -> str:
    """Write bytes in powers of 1,000, as `--shard-size 512MB` reads them: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"
