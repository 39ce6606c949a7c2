"""Options of commands that write a dataset.

`ReadOptions` and `PackOptions` affect its bytes: reading a source, cutting documents and making rows. `RunOptions` say
where and how the command works.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from packer.algorithms import ALGORITHMS, get_algorithm
from packer.column_names import ANSWER, LOSS_WEIGHTS, RECORD_IDS, SEGMENT_COLUMNS, TOKEN_COLUMNS, TREE
from packer.errors import OptionError, PackerError
from packer.json_records import JsonRecord, read_fields
from packer.options.option import (
    BUILT_IN_TEMPLATES,
    GENERAL,
    GROUPS,
    LONG,
    OUTPUT,
    RANKS,
    READING,
    ROWS,
    TEXT_AND_CHATS,
    AddedColumn,
    AnswerPart,
    Document,
    LongPolicy,
    OnError,
    SplitAt,
    TokenType,
    TrainOn,
    Untrained,
    WeightsPer,
    as_bytes,
    as_engine,
    as_length,
    as_names,
    as_path,
    as_ranks,
    as_share,
    as_template,
    as_token_columns,
    as_vocab_size,
    check_options,
    described,
    option,
    options_of,
    values_of,
)
from packer.progress import Progress, silent
from packer.stores import RemotePath
from packer.stores.paths import tokenizer_name

INT32 = 2**31 - 1
LONGEST_ROW = 2**24  # 16 million tokens, so that histograms, which have an entry per length, stay small
PACK = ("pack",)  # commands with options that need tokens, or that do not change the number of rows
OF_TEXT = ("pack", "stats", "tokenize")
WRITING = ("pack", "tokenize", "export")

Conflict: TypeAlias = tuple[Sequence[str], str]
"""Names of options that must have their default values, and the end of the error message: the reason and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions(JsonRecord):
    """Options for reading a source and turning text into tokens. `PackOptions` adds the options of the later stages."""

    split: str | None = option(
        None,
        "Split to read from a DatasetDict, a Hub dataset or a folder of files like train-0.parquet.",
        READING,
        commands=OF_TEXT,
    )
    input_column: str = option("input_ids", "Column of token ids.", READING)
    labels_column: str = option("labels", "Column of labels; without one, labels are made from the tokens.", READING)
    lengths_column: str | None = option(
        None,
        "Column with the number of tokens of each document, instead of tokens; any name for a .npy file.",
        READING,
        commands=PACK,
    )
    document: Document = option(
        "document",
        "What to pack as a document from an .idx file of Megatron: its documents, or each of its sequences.",
        READING,
    )
    eos_id: int | None = option(
        None, "Token that ends each document of a bare array of tokens (.npy, .bin).", READING, most=2**31 - 1
    )
    dtype: TokenType | None = option(None, "Type of the tokens in a bare array without a header.", READING)
    on_error: OnError = option(
        "error",
        "What to do with a record that cannot be used: stop, or skip it and list it in rejected.jsonl.",
        READING,
        commands=OF_TEXT,
    )
    keep: tuple[str, ...] = option(
        (), "Column to keep, with one value per segment.", READING, metavar="COLUMN", commands=("pack", "tokenize")
    )
    keep_tokens: tuple[str, ...] = option(
        (), "Column of lists to keep, with one or k values per token.", READING, metavar="COLUMN", commands=PACK
    )
    weight: str | None = option(
        None,
        "Column with the weight of each document in the loss, or lists with the weight of each token, from 0 on.",
        READING,
        metavar="COLUMN",
        commands=("pack", "tokenize"),
        default_words="the known columns of weights in docs/reference/fields.md",
    )
    vocab_size: int | None = option(
        None,
        "Number of token ids that the model's embedding has, or its config.json, or a folder with this file. Documents "
        "with higher ids cannot be used.",
        READING,
        least=1,
        most=INT32,
        metavar="N_OR_CONFIG",
        convert=as_vocab_size,
        commands=PACK,
    )
    tokenizer: str | None = option(
        None,
        "Tokenizer for a source of text: a folder, a tokenizer.json or a Hub id.",
        TEXT_AND_CHATS,
        metavar="PATH_OR_ID",
        convert=as_path,
        commands=(*OF_TEXT, "verify", "show"),
    )
    text_column: str | None = option(
        None,
        "Column of text or messages, or columns of prompt and completion, as in problem,solution: an empty line "
        "separates them, except prompt,completion, which are joined directly. With --pairs, columns of prompt and "
        "answers, as in question,good,bad. Add :json, as in messages:json, to decode JSON strings.",
        TEXT_AND_CHATS,
        default_words="text; prompt and completion, or response; question and answer; Alpaca's and Dolly's columns; "
        "messages; conversations; the columns of pairs; other names in docs/reference/fields.md",
        commands=OF_TEXT,
    )
    train_on: TrainOn | None = option(
        None,
        "Part of each document to train on; messages with weight 0 or train false are never trained.",
        TEXT_AND_CHATS,
        default_words="assistant turns of chats, the completion of a prompt, all of a plain text",
        commands=OF_TEXT,
    )
    untrained_parts: tuple[AnswerPart, ...] = option(
        (),
        "Parts of answers to leave out of the loss: thoughts with their tags, and tool calls. If the chat template "
        "does not show their exact place, packing fails.",
        TEXT_AND_CHATS,
        metavar="PARTS",
        convert=as_names,
        commands=OF_TEXT,
    )
    chat_template: str | None = option(
        None,
        "Chat template to use instead of the tokenizer's own, and for prompts and completions in strings: a Jinja "
        f"file, its text, or the name of a built-in template: {', '.join(BUILT_IN_TEMPLATES)}.",
        TEXT_AND_CHATS,
        metavar="NAME_OR_FILE",
        convert=as_template,
        commands=OF_TEXT,
    )
    eos: bool = option(
        True,
        "End texts and completions with the end-of-sequence token.",
        TEXT_AND_CHATS,
        off="Do not end texts and completions with the end-of-sequence token.",
        commands=OF_TEXT,
    )
    pairs: bool = option(
        False,
        "Read preference pairs, and store each pair as a tree: the prompt once, then both answers. Tokens are read "
        "from chosen_input_ids, rejected_input_ids, chosen_labels and rejected_labels. With --tokenizer, texts or "
        "chats are read from chosen, rejected and, if it exists, prompt. Train such rows only with format=tree.",
        GROUPS,
    )
    share_prefixes: bool = option(
        False,
        "Store each prefix that several documents of a record share only once. The documents are the answers of a "
        "chat (--train-on each-answer), or lists of token lists. Train such rows only with format=tree: their tokens "
        "are in tree_input_ids, so that trainers without support for trees fail.",
        GROUPS,
    )
    holdout: float | None = option(
        None,
        "Share of the documents to hold out for validation, such as 0.5%. They are packed to OUTPUT-holdout. A hash of "
        "their tokens selects them, so no copy of them is in OUTPUT.",
        OUTPUT,
        least=sys.float_info.min,
        metavar="SHARE",
        convert=as_share,
        commands=PACK,
    )
    is_holdout: bool = option(
        False, "Whether to pack the documents that --holdout holds out, instead of the others.", OUTPUT, commands=()
    )
    seed: int = option(0, "Seed of all permutations and samples.", GENERAL)

    def __post_init__(self) -> None:
        check_options(self)
        self._check_names()
        declared = options_of(type(self))
        for names, reason in self.conflicts():
            for one in (declared[name] for name in names):
                value = getattr(self, one.name)
                if value != one.default:
                    text = ", ".join(map(str, value)) if one.is_list else str(value)
                    is_free = one.type is str and not one.choices
                    raise OptionError(f"{one.shown} is {repr(text[:40]) if is_free else text}{reason}")

    def _check_names(self) -> None:
        """Raise an OptionError if a column to keep has the name of a column of the rows, or is named twice."""
        names = [*self.keep, *self.keep_tokens]
        made = (*self.made_columns, LOSS_WEIGHTS)
        taken = (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, self.input_column, self.labels_column, *made)
        if self.weight in (*self.value_columns, *self.keep_tokens, self.input_column, self.labels_column):
            raise OptionError(f"--weight {self.weight!r}: another option reads this column; leave one of the two out")
        for name in names:
            of = "--keep" if name in self.keep else "--keep-tokens"
            if name in taken:
                raise OptionError(f"{of} {name!r}: the rows have a column of that name; rename it in the source")
            if names.count(name) > 1:
                raise OptionError(f"{of} {name!r}: it is named {names.count(name)} times; name it once")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the options that these values exclude."""
        if self.chat_template not in (None, *BUILT_IN_TEMPLATES) and "{" not in self.chat_template:
            what = "has no '{'" if self.chat_template.strip() else "is empty"
            yield ["chat_template"], f", which {what}: give the content of a Jinja template, or leave it out"
        if self.tokenizer is None:
            text = [name for name, each in options_of(ReadOptions).items() if each.heading == TEXT_AND_CHATS]
            yield text, ", but there is no tokenizer: set --tokenizer"
        else:
            remedy = "name the text with --text-column, or leave --tokenizer out"
            yield ["input_column", "labels_column"], f", but tokens and labels come from the tokenizer: {remedy}"
            yield ["document", "eos_id", "dtype"], ", which is for tokens: leave it out, or --tokenizer"
            remedy = "leave it out, or keep a value per document with --keep"
            yield ["keep_tokens"], f", and text has no values per token: {remedy}"
        if self.holdout is not None and self.holdout >= 1:
            yield ["holdout"], ": give a share below 1, such as 0.5%"
        if self.lengths_column is not None:
            yield ["holdout"], ", and lengths have no content to choose by: leave one out"
            yield ["weight"], ", and lengths have no tokens whose loss it weights: leave one out"
            yield ["vocab_size"], ", and lengths have no tokens to check: leave one out"
        if self.holdout is None:
            yield ["is_holdout"], ", and no share is held out: set --holdout"
        if self.pairs or (self.share_prefixes and self.tokenizer is None):
            yield ["weight"], ", and only the labels of records with several documents are read: leave it out"
        if self.pairs:
            yield ["keep_tokens"], "; pairs cannot keep columns of tokens: leave it out"
            read = "chosen_input_ids and rejected_input_ids"
            yield ["input_column", "labels_column"], f"; pairs are read from {read}: leave the names of columns out"
            yield ["share_prefixes"], ", and --pairs stores prompts once already: leave it out"
        if self.train_on == "all":
            reason = "every document trains its beginning, so none is shared"
            yield ["share_prefixes", "pairs"], f": with --train-on all, {reason}: leave one out"
            yield ["untrained_parts"], ", and --train-on all trains every token: leave one out"

    @property
    def made_columns(self) -> tuple[str, ...]:
        """Columns with one value per segment that are created when the source is read."""
        made = {RECORD_IDS: self.numbers_records, ANSWER: self.numbers_records, TREE: self.has_trees}
        return tuple(name for name, is_made in made.items() if is_made)

    @property
    def has_trees(self) -> bool:
        """Whether the documents of a record are joined into trees, which store shared prefixes once."""
        return self.pairs or self.share_prefixes

    @property
    def numbers_records(self) -> bool:
        """Whether a record can become several documents, so that segments store the id of their record."""
        return self.train_on == "each-answer" or self.share_prefixes

    @property
    def hashes_records(self) -> bool:
        """Whether documents have the hash of their record, which decides whether the whole record is held out."""
        return self.numbers_records and self.holdout is not None

    @property
    def largest_id(self) -> int:
        """Maximum token id of the model."""
        return INT32 if self.vocab_size is None else self.vocab_size - 1

    # ---- needs of later stages; `PackOptions` overrides these properties ----

    @property
    def value_columns(self) -> tuple[str, ...]:
        """Columns to read with one value per document."""
        return self.keep

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Columns of `value_columns` that must contain integers."""
        return ()

    @property
    def splits_at_exchanges(self) -> bool | None:
        """Whether documents may be split where exchanges begin; None if this is not decided yet."""
        return None

    @property
    def needs_exchanges(self) -> bool:
        """Whether the beginnings of exchanges must be known."""
        return False

    @property
    def tree_len(self) -> int:
        """Maximum number of tokens in a tree."""
        return LONGEST_ROW


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions(ReadOptions):
    """Options that affect the bytes of a packed dataset. Raises a PackerError for values that cannot be combined."""

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
        1, "Pad every segment to a multiple of N; context parallelism needs twice its size.", ROWS, least=1, most=INT32
    )
    untrained: Untrained = option(
        "keep",
        "What to do with segments without trained tokens; keep-all also packs a dataset in which no token is trained.",
        ROWS,
        commands=PACK,
    )
    long: LongPolicy = option("split", "What to do with documents longer than a row.", LONG)
    split_at: SplitAt | None = option(
        None,
        "Where --long split splits chats: at any token, or only before an exchange, which begins with a user message. "
        "An exchange longer than a row is split at any token.",
        LONG,
        default_words="exchanges for chats, tokens for other documents",
    )
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
        "Maximum sum of a column over the documents of a row, such as images:16; the column is kept.",
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
        "Order rows for trainers that do not shuffle: N consecutive rows, one per rank, cost about the same.",
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
    add_column: tuple[AddedColumn, ...] = option(
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
        off="Do not write labels. Only for sources in which every token is trained, and for rows read by packer.load.",
        commands=PACK,
    )
    index_only: bool = option(
        False,
        "Write the positions of each row's tokens instead of the tokens, which packer.load reads from the source.",
        OUTPUT,
    )
    weights_per: WeightsPer | None = option(
        None, "What has a weight of its own in the loss; None if all weights are 0 or 1.", OUTPUT, commands=()
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
        """Yield the options that these values exclude."""
        yield from ReadOptions.conflicts(self)
        if self.index_only:
            yield ["vocab_size"], ", and --index-only does not read tokens: leave one out"
        if self.pad_id is not None and self.pad_id > self.largest_id:
            yield ["pad_id"], f", and the model has ids 0 to {self.largest_id} (--vocab-size): choose one of these"
        if self.long != "split":
            yield ["split_at"], f", which does not go with --long {self.long}: leave one out"
        if self.long == "truncate":
            yield ["pairs"], ", and the tree of a pair cannot be truncated: choose --long drop"
        if rest := self.max_len % self.align:
            near = " or ".join(str(size) for size in (self.max_len - rest, self.max_len - rest + self.align) if size)
            yield ["align"], f", and --max-len {self.max_len} is not a multiple of it: take {near}"
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
    def splits_at_exchanges(self) -> bool:
        """Whether documents that are too long are split where exchanges begin, if the source has exchanges."""
        is_split = self.long == "split" and self.keeps_whole and not (self.never_splits or self.has_trees)
        return is_split and self.split_at != "tokens"

    @property
    def needs_exchanges(self) -> bool:
        """Whether the options require exchanges in the source."""
        return self.split_at == "exchanges"

    @property
    def tree_len(self) -> int:
        """Maximum number of tokens in a tree."""
        return self.max_len

    @property
    def reads_to_cut(self) -> bool:
        """Whether segments depend on labels or contents of documents."""
        return self.untrained in ("drop", "error") or self.holdout is not None

    @property
    def kept(self) -> tuple[str, ...]:
        """All columns in the rows with one value per segment, including created ones such as `tree`."""
        weights = (LOSS_WEIGHTS,) if self.weights_per == "document" else ()
        return (*dict.fromkeys((*self.keep, *self.limits)), *self.made_columns, *weights)

    @property
    def kept_tokens(self) -> tuple[str, ...]:
        """All columns in the rows with one or several values per token, besides tokens, labels and positions."""
        return (*self.keep_tokens, *((LOSS_WEIGHTS,) if self.weights_per == "token" else ()))

    @property
    def limits(self) -> dict[str, int]:
        """Maximum sum in a row for each limited column. Raises an OptionError if a limit is malformed."""
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
        """Kept columns with one value per token that are stored in the shards; an index stores none."""
        return () if self.index_only else self.kept_tokens

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
        """Whether documents may not be split, because they are pairs or there are limits."""
        return self.pairs or bool(self.limit)

    @property
    def is_planned_whole(self) -> bool:
        """Whether the whole plan is held in memory, because it needs a value of each document (group or limit)."""
        return self.group_by is not None or bool(self.limit)

    @property
    def value_columns(self) -> tuple[str, ...]:
        """Columns to read with one value per document, to keep them, or to limit or group by them."""
        group = () if self.group_by is None else (self.group_by,)
        return tuple(dict.fromkeys((*self.keep, *self.limits, *group)))

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Columns with limits."""
        return tuple(self.limits)

    def to_dict(self) -> dict[str, object]:
        """Return the options as stored in a manifest: `max_len`, and all options that differ from their defaults."""
        return ReadOptions.to_dict(self.without_path())

    def without_path(self) -> PackOptions:
        """Return the options with only the name of the tokenizer, because its path differs between machines."""
        return self if self.tokenizer is None else replace(self, tokenizer=tokenizer_name(self.tokenizer))

    @classmethod
    def from_dict(cls, content: object, name: str = "") -> PackOptions:
        """Read the options of a manifest. Unknown options, which later versions added, are ignored.

        Raises:
            KeyError: `max_len` is missing.
            TypeError: a value has another type, is outside its limits, or cannot be combined with another value.
        """
        declared = options_of(cls)
        optional = frozenset(name for name, option in declared.items() if not option.is_required)
        types = {name: option.json_type for name, option in declared.items()}
        found = read_fields(content, types, optional, name=name)
        try:
            return cls(**values_of(cls, found))
        except PackerError as error:
            raise TypeError(f"the options in the manifest are damaged: {error}") from error


PackOptions.__doc__ = f"{PackOptions.__doc__}\n\nAttributes:\n{described(options_of(PackOptions).values())}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where to write an output, how to run its tasks, and whether to replace an existing output."""

    output: Path | RemotePath | str | None = option(
        None,
        "Folder to write.",
        OUTPUT,
        flags=("-o", "--output"),
        default_words="the name of the input with a suffix",
        commands=("pack", "tokenize", "export", "demo"),
    )
    workers: int | None = option(
        None,
        "Number of threads.",
        OUTPUT,
        least=1,
        default_words="the number of available cores",
        commands=(*WRITING, "verify"),
    )
    sync: bool = option(
        True,
        "Call fsync for every file and folder.",
        OUTPUT,
        off="Skip fsync: faster, but not safe against a power failure.",
        commands=WRITING,
    )
    overwrite: bool = option(
        False, "Replace an existing output as soon as the new one is complete.", OUTPUT, commands=WRITING
    )
    engine: str = option(
        "threads",
        "Where tasks run: in threads on this machine, or on a Ray cluster with the same storage. ray starts a cluster "
        "on this machine, ray:ADDRESS connects to another cluster, and ray:auto to the cluster of this machine.",
        RANKS,
        metavar="ENGINE",
        convert=as_engine,
        commands=("pack", "verify"),
    )
    ranks: str | None = option(
        None,
        "Number of this process, from 0, and number of processes that pack into one folder, as in 0/4. env reads both "
        "from variables of torchrun, Slurm or SkyPilot.",
        RANKS,
        metavar="R/N",
        convert=as_ranks,
        commands=("pack",),
    )
    progress: Progress = silent
    """Callback, called as `progress(stage, done, total)` in every stage."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def uses_ray(self) -> bool:
        """Whether tasks run on a Ray cluster."""
        return self.engine != "threads"
