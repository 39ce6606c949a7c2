"""The options of a pack, and those of everything that writes a folder: each is declared here, and only here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from packer.algorithms import ALGORITHMS, ALIASES
from packer.json_record import JsonRecord
from packer.options import choices
from packer.options.option import (
    GROUPS,
    LONG,
    OUTPUT,
    RANKS,
    READING,
    ROWS,
    TEXT_AND_CHATS,
    as_bytes,
    as_engine,
    as_length,
    as_path,
    as_ranks,
    as_share,
    as_token_columns,
    check_options,
    option,
)
from packer.progress import Progress, silent
from packer.stores import RemotePath

LONGEST_ROW = 2**24  # 16 million tokens: keeps histograms, which have an entry per length, small
INT32 = 2**31 - 1

PACK = ("pack",)  # options that need the tokens, or do not change the number of rows
OF_TEXT = ("pack", "stats", "tokenize")
WRITING = ("pack", "tokenize", "export")
PACKING = ("pack",)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where an output is written, who does the work, and what it may replace."""

    output: Path | RemotePath | str | None = option(
        None,
        "Folder to write.",
        OUTPUT,
        flags=("-o", "--output"),
        default_words="the name of the input with an ending",
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
        "Where tasks run: in threads on this machine, or on a Ray cluster with the same storage: ray starts one on "
        "this machine, ray:ADDRESS connects to another, and ray:auto to the one that this machine belongs to.",
        RANKS,
        metavar="ENGINE",
        convert=as_engine,
        commands=(*PACKING, "verify"),
    )
    ranks: str | None = option(
        None,
        "Number of this process, from 0, and how many pack into one folder, as in 0/4; env reads both numbers from the "
        "variables of torchrun, Slurm or SkyPilot.",
        RANKS,
        metavar="R/N",
        convert=as_ranks,
        commands=PACKING,
    )
    progress: Progress = silent
    """Callback, called as `progress(stage, done, total)` in every stage."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def uses_ray(self) -> bool:
        """Whether tasks run on a Ray cluster."""
        return self.engine != "threads"

    @property
    def ray_address(self) -> str | None:
        """Address of the Ray cluster; None to start one on this machine."""
        return self.engine.partition(":")[2] or None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackFields(JsonRecord):
    """Every option that affects the bytes of a packed dataset, with its default; see `PackOptions`."""

    max_len: int = option(
        ...,
        "Number of tokens in a row; 4k is 4,096.",
        ROWS,
        least=1,
        most=LONGEST_ROW,
        convert=as_length,
        commands=("pack", "stats", "demo"),
    )

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
        "Column of text or messages, or two columns, as in question,answer, that are joined as they are; with "
        "--pairs, the columns of prompt and answers, as in question,good,bad. messages:json decodes strings of "
        "JSON.",
        TEXT_AND_CHATS,
        default_words="text; prompt and completion; Alpaca's columns; messages; conversations; those of pairs",
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
        commands=OF_TEXT,
    )
    eos: bool = option(
        True,
        "End texts and completions with the end-of-sequence token.",
        TEXT_AND_CHATS,
        off="Do not end texts and completions with the end-of-sequence token.",
        commands=OF_TEXT,
    )

    algorithm: str = option(
        "auto",
        "Algorithm that decides which documents share a row; `packer stats --algorithm all` compares them.",
        ROWS,
        choices=(*ALGORITHMS, *ALIASES),
        metavar="NAME",
    )
    max_segments: int | None = option(None, "Maximum number of documents in a row.", ROWS, least=1, most=INT32)
    limit: tuple[str, ...] = option(
        (),
        "Largest sum of a column over the documents of a row, such as images:16; the column is kept.",
        ROWS,
        metavar="COLUMN:MAX",
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
    seed: int = option(0, "Seed of all permutations and samples.", ROWS)
    pad_id: int | None = option(
        None,
        "Token id of the padding.",
        ROWS,
        most=INT32,
        metavar="ID",
        default_words="the tokenizer's padding or end-of-sequence token, or 0",
        commands=PACK,
    )

    long: choices.LongPolicy = option("split", "What to do with documents longer than a row.", LONG)
    split_at: choices.SplitAt = option(
        "tokens",
        "With --long split, where to split: at any token, or only between the turns of a chat.",
        LONG,
        commands=PACK,
    )

    group_by: str | None = option(
        None,
        "Column of groups: a row has documents of one group only; documents with null share rows with each other.",
        GROUPS,
        metavar="COLUMN",
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
