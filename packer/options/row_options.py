"""Options for cutting documents into segments, for the rows that are made of them, and all of these as one record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from packer.algorithms import ALGORITHMS, get_algorithm
from packer.errors import OptionError, PackerError
from packer.json_records import read_fields
from packer.options import choices
from packer.options.option import (
    GROUPS,
    LONG,
    OUTPUT,
    ROWS,
    as_bytes,
    as_length,
    as_token_columns,
    option,
    options_of,
    values_of,
)
from packer.options.read_options import LONGEST_ROW, PACK, Conflict, ReadOptions
from packer.stores.paths import tokenizer_name

INT32 = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CutOptions(ReadOptions):
    """How documents are cut into segments of at most `max_len` tokens."""

    max_len: int = option(
        ...,
        "Number of tokens in a row; 4k is 4,096.",
        ROWS,
        least=1,
        most=LONGEST_ROW,
        convert=as_length,
        commands=("pack", "stats", "demo"),
    )
    align: int = option(
        1,
        "Pad every segment to a multiple of N; context parallelism needs twice its size.",
        ROWS,
        least=1,
        most=INT32,
    )
    untrained: choices.Untrained = option(
        "keep",
        "What to do with segments without trained tokens; keep-all also packs a dataset in which no token is trained.",
        ROWS,
        commands=PACK,
    )
    long: choices.LongPolicy = option("split", "What to do with documents longer than a row.", LONG)
    split_at: choices.SplitAt | None = option(
        None,
        "With --long split, where to split chats: before an exchange, which begins with a message of the user and is "
        "split itself only if it is longer than a row, or at any token.",
        LONG,
        default_words="exchanges for chats, tokens for all else",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what these options exclude."""
        yield from ReadOptions.conflicts(self)
        if self.long != "split":
            yield ["split_at"], f", which does not go with --long {self.long}: leave one out"
        if self.long == "truncate":
            yield ["pairs"], ", and the tree of a pair cannot be truncated: choose --long drop"
        if rest := self.max_len % self.align:
            near = " or ".join(str(size) for size in (self.max_len - rest, self.max_len - rest + self.align) if size)
            yield ["align"], f", and --max-len {self.max_len} is not a multiple of it: take {near}"

    @property
    def splits_at_exchanges(self) -> bool:
        """Whether documents that are too long are split where exchanges begin, if that is known."""
        is_split = self.long == "split" and self.keeps_whole and not (self.never_splits or self.has_trees)
        return is_split and self.split_at != "tokens"

    @property
    def needs_exchanges(self) -> bool:
        """Whether the options name exchanges, so that a source must have them."""
        return self.split_at == "exchanges"

    @property
    def tree_len(self) -> int:
        """Largest number of tokens of a tree."""
        return self.max_len

    @property
    def reads_to_cut(self) -> bool:
        """Whether segments depend on labels or contents of documents."""
        return self.untrained in ("drop", "error") or self.holdout is not None

    @property
    def never_splits(self) -> bool:
        """Whether no document may be split."""
        return self.pairs

    @property
    def keeps_whole(self) -> bool:
        """Whether only documents longer than max_len are cut."""
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions(CutOptions):
    """Every option that affects the bytes of a packed dataset; a PackerError says which values cannot be combined."""

    algorithm: str = option(
        "auto",
        "Algorithm that decides which documents share a row; `packer stats --algorithm all` compares them.",
        ROWS,
        choices=(*ALGORITHMS,),
        metavar="NAME",
    )
    max_segments: int | None = option(None, "Maximum number of documents in a row.", ROWS, least=1, most=INT32)
    limit: tuple[str, ...] = option(
        (),
        "Largest sum of a column over the documents of a row, such as images:16; the column is kept.",
        ROWS,
        metavar="COLUMN:MAX",
    )
    group_by: str | None = option(
        None,
        "Column of groups: a row has documents of one group only; documents with null share rows with each other.",
        GROUPS,
        metavar="COLUMN",
    )
    balance_ranks: int | None = option(
        None,
        "Order rows for a trainer that does not shuffle: N consecutive rows, one for each rank, take equally long.",
        ROWS,
        least=2,
        most=INT32,
        metavar="N",
        commands=PACK,
    )
    pad_id: int | None = option(
        None,
        "Token id of the padding.",
        ROWS,
        most=INT32,
        metavar="ID",
        default_words="the tokenizer's padding or end-of-sequence token, or 0",
        commands=PACK,
    )
    add_column: tuple[choices.TokenColumn, ...] = option(
        (),
        "Token columns to write in addition to input_ids and labels.",
        OUTPUT,
        metavar="COLUMNS",
        convert=as_token_columns,
        commands=PACK,
    )
    labels: bool = option(
        True,
        "Write the labels column.",
        OUTPUT,
        off="Do not write labels. Only for sources of which every token is trained, and for packer.load.",
        commands=PACK,
    )
    index_only: bool = option(
        False,
        "Write where the tokens of each row are, but not the tokens; packer.load then reads them from the source.",
        OUTPUT,
    )
    shard_size: int = option(
        512 * 10**6,
        "Maximum size of a shard.",
        OUTPUT,
        least=1,
        metavar="SIZE",
        default_words="512MB",
        convert=as_bytes,
        commands=PACK,
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what these options exclude."""
        yield from CutOptions.conflicts(self)
        of_tokens = {*self.keep_tokens, self.input_column, self.labels_column}
        if not self.labels:
            yield ["untrained", "align"], ", which needs labels: leave them in"
        if self.keeps_order:
            yield (
                ["group_by", "balance_ranks"],
                f", and {self.algorithm} keeps the order of the source: choose another --algorithm",
            )
        if self.group_by in of_tokens:
            yield ["group_by"], ", a column of tokens: name one with a value per document"
        if self.limit:
            yield ["group_by", "split_at", "algorithm"], ", which does not go with --limit: leave one out"
        if not {*of_tokens, self.lengths_column}.isdisjoint(self.limits):
            yield ["limit"], ", a column of tokens or lengths: name one with a number for each document"
        if not self.keeps_whole:
            yield ["align"], f", and {self.algorithm} cuts documents wherever a row ends: choose another --algorithm"
            yield ["split_at"], f", which does not go with --algorithm {self.algorithm}: leave one out"
            yield ["pairs"], f"; pairs are never cut, and {self.algorithm} cuts documents: choose another --algorithm"
            yield ["share_prefixes"], f", and {self.algorithm} cuts documents: choose another --algorithm"
        if self.has_trees:
            apart = ["split_at", "keep_tokens", "labels", "add_column", "index_only"]
            yield apart, f", which does not go with {'--pairs' if self.pairs else '--share-prefixes'}: leave one out"

    @property
    def kept(self) -> tuple[str, ...]:
        """All kept columns of one value per segment, and those that are not in the source, such as `tree`."""
        return (*dict.fromkeys((*self.keep, *self.limits)), *self.made_columns)

    @property
    def limits(self) -> dict[str, int]:
        """Largest sum in a row by column, other than tokens; an OptionError says what is no limit."""
        found: dict[str, int] = {}
        for limit in self.limit:
            column, _, most = limit.rpartition(":")
            if not column or not most.isdecimal() or not 1 <= int(most) <= INT32:
                remedy = f"give a column and the most that a row may hold, 1 to {INT32}, as in images:16"
                raise OptionError(f"--limit is {limit!r}: {remedy}")
            if column in found:
                raise OptionError(f"--limit names {column!r} twice: give one limit for each column")
            found[column] = int(most)
        return found

    @property
    def stored_keep_tokens(self) -> tuple[str, ...]:
        """The kept columns with a value per token that are stored in the shards; an index has none."""
        return () if self.index_only else self.keep_tokens

    @property
    def keeps_order(self) -> bool:
        """Whether the algorithm keeps the order of the source."""
        return get_algorithm(self.algorithm).arrange is not None

    @property
    def keeps_whole(self) -> bool:
        """Whether the algorithm cuts only documents longer than max_len."""
        return get_algorithm(self.algorithm).keeps_whole

    @property
    def never_splits(self) -> bool:
        """Whether no document may be split, because it is a pair or there are limits."""
        return self.pairs or bool(self.limit)

    @property
    def is_planned_whole(self) -> bool:
        """Whether the whole plan is held in memory, because it needs a value of each document (group or limit)."""
        return self.group_by is not None or bool(self.limit)

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns with a value per document that are read, in order to keep, limit or group by them."""
        group = () if self.group_by is None else (self.group_by,)
        return tuple(dict.fromkeys((*self.keep, *self.limits, *group)))

    @property
    def number_columns(self) -> tuple[str, ...]:
        """The columns of limits."""
        return tuple(self.limits)

    def to_dict(self) -> dict[str, object]:
        """The options as stored in a manifest: `max_len`, and all others whose values are not the defaults."""
        return ReadOptions.to_dict(self.without_path())

    def without_path(self) -> PackOptions:
        """Return the options with the name of the tokenizer alone, which is the same on every machine."""
        return self if self.tokenizer is None else replace(self, tokenizer=tokenizer_name(self.tokenizer))

    @classmethod
    def from_dict(cls, content: object, name: str = "") -> PackOptions:
        """Read the options of a manifest; unknown ones, which later versions added, are left out.

        Raises:
            KeyError: `max_len` is missing.
            TypeError: a value has another type, is outside its limits, or cannot be combined with another.
        """
        declared = options_of(cls)
        optional = frozenset(name for name, option in declared.items() if not option.is_required)
        types = {name: option.json_type for name, option in declared.items()}
        found = read_fields(content, types, optional, name=name)
        try:
            return cls(**values_of(cls, found))
        except PackerError as error:
            raise TypeError(f"the options in the manifest are damaged: {error}") from error


_sentences = [f"    {name}: {option.help}" for name, option in options_of(PackOptions).items()]
PackOptions.__doc__ = "\n".join([f"{PackOptions.__doc__}\n\nAttributes:", *_sentences])
