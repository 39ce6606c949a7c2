"""Options for reading a source: its columns, its text, and which documents are taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from packer.column_names import ANSWER, RECORD_IDS, SEGMENT_COLUMNS, TOKEN_COLUMNS, TREE
from packer.errors import OptionError
from packer.json_records import JsonRecord
from packer.options import choices
from packer.options.option import (
    GENERAL,
    GROUPS,
    OUTPUT,
    READING,
    TEXT_AND_CHATS,
    as_path,
    as_share,
    as_template,
    check_options,
    option,
    options_of,
)

LONGEST_ROW = 2**24  # 16 million tokens: keeps histograms, which have an entry per length, small
PACK = ("pack",)  # options that need the tokens, or do not change the number of rows
OF_TEXT = ("pack", "stats", "tokenize")

Conflict: TypeAlias = tuple[Sequence[str], str]
"""Options that must have their defaults, with the reason why others are in conflict, and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions(JsonRecord):
    """What is read from a source, and how text becomes tokens.

    `CutOptions` and `PackOptions` add the options of the stages that follow. Each of the three knows the options of
    earlier stages only.
    """

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
        commands=(),
    )
    document: choices.Document = option(
        "document",
        "What is a document in Megatron's .idx: what it calls a document, or each of its sequences.",
        READING,
    )
    eos_id: int | None = option(
        None, "Token that ends each document of a bare array of tokens (.npy, .bin).", READING, most=2**31 - 1
    )
    dtype: choices.TokenType | None = option(None, "Type of the tokens in a bare array without a header.", READING)
    on_error: choices.OnError = option(
        "error",
        "What to do with a record that cannot be used: stop, or leave it out and list it in rejected.jsonl.",
        READING,
        commands=OF_TEXT,
    )
    keep: tuple[str, ...] = option(
        (), "Column to keep, with one value per segment.", READING, metavar="COLUMN", commands=("pack", "tokenize")
    )
    keep_tokens: tuple[str, ...] = option(
        (), "Column of lists to keep, with one or k values per token.", READING, metavar="COLUMN", commands=PACK
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
        "Column of text or messages, or those of prompt and completion, as in problem,solution, between which an empty "
        "line stands (prompt,completion are joined as they are); with --pairs, those of prompt and answers, as in "
        "question,good,bad. messages:json decodes strings of JSON.",
        TEXT_AND_CHATS,
        default_words="text; prompt and completion, or response; question and answer; Alpaca's and Dolly's columns; "
        "messages; conversations; those of pairs; others that docs/reference/fields.md lists",
        commands=OF_TEXT,
    )
    train_on: choices.TrainOn | None = option(
        None,
        "Part of each document to train on; messages with weight 0 or train false are always context only.",
        TEXT_AND_CHATS,
        default_words="assistant turns of chats, the completion of a prompt, all of a plain text",
        commands=OF_TEXT,
    )
    chat_template: str | None = option(
        None,
        "Chat template to use instead of the tokenizer's own, and for prompts with completions in strings: a Jinja "
        "file, or one that comes with packer.",
        TEXT_AND_CHATS,
        choices=choices.BUILT_IN_TEMPLATES,
        metavar="NAME_OR_FILE",
        is_file=True,
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
        "Read preference pairs, and store each as a tree: the prompt once, then both answers. Tokens are read from "
        "chosen_input_ids, rejected_input_ids, chosen_labels and rejected_labels; with --tokenizer, texts or chats "
        "from chosen and rejected, and prompt if it exists. Train such rows only with format=tree.",
        GROUPS,
    )
    share_prefixes: bool = option(
        False,
        "Store each beginning that several documents of a record share once: of the answers of a chat with "
        "--train-on each-answer, or of lists of token lists. Train such rows only with "
        "format=tree: their tokens are in tree_input_ids, so that trainers that do not know trees fail.",
        GROUPS,
    )
    holdout: float | None = option(
        None,
        "Share of the documents to hold out for validation, such as 0.5%. They are packed to OUTPUT-holdout. A hash of "
        "their tokens chooses them, so no copy of them is in OUTPUT.",
        OUTPUT,
        least=sys.float_info.min,
        metavar="SHARE",
        convert=as_share,
        commands=PACK,
    )
    is_holdout: bool = option(
        False,
        "Whether the documents are packed that --holdout holds out, instead of the others.",
        OUTPUT,
        shown="is_holdout",
        commands=(),
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
                    is_free = one.type is str and not one.is_choice
                    raise OptionError(f"{one.shown} is {repr(text[:40]) if is_free else text}{reason}")

    def _check_names(self) -> None:
        """Raise an OptionError if a column to keep has the name of a column of the rows, or is named twice."""
        names = [*self.keep, *self.keep_tokens]
        taken = (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, self.input_column, self.labels_column, *self.made_columns)
        for name in names:
            of = "--keep" if name in self.keep else "--keep-tokens"
            if name in taken:
                raise OptionError(f"{of} {name!r}: the rows have a column of that name; rename it in the source")
            if names.count(name) > 1:
                raise OptionError(f"{of} {name!r}: it is named {names.count(name)} times; name it once")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what these options exclude."""
        if self.chat_template not in (None, *choices.BUILT_IN_TEMPLATES) and "{" not in self.chat_template:
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
        if self.holdout is None:
            yield ["is_holdout"], ", and no share is held out: set --holdout"
        if self.pairs:
            yield ["keep_tokens"], "; pairs cannot keep columns of tokens: leave it out"
            read = "chosen_input_ids and rejected_input_ids"
            yield ["input_column", "labels_column"], f"; pairs are read from {read}: leave the names of columns out"
            yield ["share_prefixes"], ", and --pairs stores prompts once already: leave it out"
        if self.train_on == "all":
            reason = "every document trains its beginning, so none is shared"
            yield ["share_prefixes", "pairs"], f": with --train-on all, {reason}: leave one out"

    @property
    def made_columns(self) -> tuple[str, ...]:
        """The columns with a value per segment that are made when the source is read."""
        made = {
            RECORD_IDS: self.numbers_records,
            ANSWER: self.numbers_records,
            TREE: self.has_trees,
        }
        return tuple(name for name, is_made in made.items() if is_made)

    @property
    def has_trees(self) -> bool:
        """Whether the documents of a record are joined to trees, in which the beginnings that they share stand once."""
        return self.pairs or self.share_prefixes

    @property
    def numbers_records(self) -> bool:
        """Whether a record makes any number of documents, so that segments name the record that they come from."""
        return self.train_on == "each-answer" or self.share_prefixes

    @property
    def hashes_records(self) -> bool:
        """Whether documents have the hash of their record, which decides whether all of them are held out."""
        return self.numbers_records and self.holdout is not None

    # ---- what later stages need from the source; their options override these ----

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns with a value per document that are read."""
        return self.keep

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Those of them that must hold whole numbers."""
        return ()

    @property
    def splits_at_exchanges(self) -> bool | None:
        """Whether documents may be split where exchanges begin; None if that is not decided yet."""
        return None

    @property
    def needs_exchanges(self) -> bool:
        """Whether it must be known where exchanges begin."""
        return False

    @property
    def tree_len(self) -> int:
        """Largest number of tokens of a tree."""
        return LONGEST_ROW
