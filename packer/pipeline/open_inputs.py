"""Open a source as the options say: tokens, or text with a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError
from packer.options import PackOptions
from packer.sources import TURN_STARTS, Source, open_source, open_text
from packer.sources.mixture import Mixture
from packer.sources.opening import column_names
from packer.text import TextOptions

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def open_with(
    source: str | Path | Dataset | DatasetDict,
    options: PackOptions,
    *,
    turns_of_chats: bool = False,
    mixed: bool = False,
) -> Source:
    """Open a source as the options say, without reading its documents.

    Args:
        source: a path, glob, Hub id, or a `datasets` object.
        options: options that say what is read, and how.
        turns_of_chats: return where the turns of chats begin even if the options do not split there.
        mixed: whether the source is one of a mixture. Then a source that has tokens is read as tokens even with a
            tokenizer, and options for text apply to the sources that they fit.

    Raises:
        PackerError: as `open_source` and `open_text`; or documents are to be split at turns and have none.
    """
    text_column = options.text_column
    is_text = options.tokenizer is not None
    if mixed and is_text:
        names = column_names(source, options.split)
        if text_column is not None and not set(text_column.split(",")) <= set(names):
            text_column = None
        is_text = text_column is not None or options.input_column not in names
    if options.tokenizer is None or not is_text:
        return open_source(
            source,
            split=options.split,
            input_column=options.input_column,
            labels_column=options.labels_column,
            keep=(*options.keep, *options.group_columns),
            keep_tokens=options.keep_tokens,
            turns=options.split_at == "turns",
            pairs=options.pairs,
        )
    text = TextOptions(
        tokenizer=options.tokenizer,
        train_on=options.train_on,
        chat_template=options.chat_template,
        eos=options.eos,
        mixed=mixed,
    )
    keep = (*options.keep, *options.group_columns)
    at_turns = options.split_at == "turns"
    opened = open_text(
        source,
        text,
        split=options.split,
        text_column=text_column,
        keep=keep,
        turns=at_turns or turns_of_chats,
    )
    if at_turns and TURN_STARTS not in opened.columns.extra:
        raise PackerError(f"--split-at is turns, and {opened.name} holds texts, not chats: leave it out")
    return opened


def text_identity(source: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what shaped the tokens of a packed text, from the manifest's `source`.

    Of a mixture the result is by source name. It is None if no source is text.
    """
    identity: dict[str, Any] | None = source.get("text")
    of_parts = {part["name"]: part["text"] for part in source.get("mixture", []) if "text" in part}
    return identity or of_parts or None


def text_totals(opened: Source | Mixture) -> dict[str, int]:
    """Return counts made while text was tokenized, for the manifest's totals; empty for a source of tokens."""
    if opened.tokenized is None:
        return {}
    return {"documents_straddling": opened.tokenized.straddling, "documents_untrained": opened.tokenized.untrained}


def source_files(opened: Source | Mixture) -> list[dict[str, Any]]:
    """Return name, size and time of each file, by which a source that has changed since is recognised."""
    return [
        {
            "name": each.file.name,
            "bytes": each.file.bytes,
            "mtime_ns": each.path.stat().st_mtime_ns if each.path is not None else None,
        }
        for each in opened.inputs
    ]


def names_and_sizes(files: Any) -> list[dict[str, Any]]:
    """Return name and size of each file, by which a file is recognised wherever it lies."""
    return [{"name": file["name"], "bytes": file["bytes"]} for file in files]
