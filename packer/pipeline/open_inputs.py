"""Open a source of tokens, or of text with a tokenizer, and describe it in the request for an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packer.errors import PackerError
from packer.facts import Totals
from packer.options import PackOptions
from packer.output.request import Request, RequestedFile
from packer.paths import PathList
from packer.sources.corpus import Corpus
from packer.sources.documents import TURN_STARTS
from packer.sources.source import Source
from packer.sources.tokenized_source import column_names, open_source

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def open_with(
    source: str | Path | PathList | Dataset | DatasetDict,
    options: PackOptions,
    *,
    turns_of_chats: bool = False,
    mixed: bool = False,
) -> Source:
    """Open a source without reading its documents.

    Args:
        source: a path, several of them, a glob, a Hub id, or a `datasets` object.
        options: options of the pack; those for reading are used.
        turns_of_chats: read where the turns of chats begin, even if the options do not split there.
        mixed: whether the source is part of a mixture. Then a source that has tokens is read as tokens even with a
            tokenizer, and options for text apply to the sources that they fit.

    Raises:
        PackerError: as `open_source` and `open_text`; or the options split at turns, and the source has texts.
        SourceError: the source declares that the column of a limit does not hold whole numbers.
    """
    opened = _opened(source, options, turns_of_chats=turns_of_chats, mixed=mixed)
    if not options.limit:
        return opened
    from packer.sources.columns.number_columns import with_numbers

    return with_numbers(opened, tuple(options.limits))


def _opened(
    source: str | Path | PathList | Dataset | DatasetDict, options: PackOptions, *, turns_of_chats: bool, mixed: bool
) -> Source:
    if options.lengths_column is not None:
        from packer.sources.lengths_alone import open_lengths

        keep = options.value_columns
        return open_lengths(source, options.lengths_column, keep, split=options.split)
    text_column, skips = options.text_column, options.on_error == "skip"
    is_text = options.tokenizer is not None
    if mixed and is_text:
        from packer.text.text_columns import names_in

        names = column_names(source, options.split, options.input_column if skips else None)
        if not set(names_in(text_column)) <= set(names):
            text_column = None
        is_text = text_column is not None or options.input_column not in names
    if options.tokenizer is None or not is_text:
        return open_source(
            source,
            split=options.split,
            input_column=options.input_column,
            labels_column=options.labels_column,
            keep=options.value_columns,
            keep_tokens=options.keep_tokens,
            turns=options.split_at == "turns",
            pairs=options.pairs,
            skips=skips,
        )
    from packer.sources.text_source import open_text
    from packer.text import TextOptions

    text = TextOptions(
        tokenizer=options.tokenizer,
        train_on=options.train_on,
        chat_template=options.chat_template,
        eos=options.eos,
        mixed=mixed,
    )
    keep = options.value_columns
    at_turns = options.split_at == "turns"
    opened = open_text(
        source,
        text,
        split=options.split,
        text_column=text_column,
        keep=keep,
        turns=at_turns or turns_of_chats,
        pairs=options.pairs,
        skips=skips,
    )
    if at_turns and TURN_STARTS not in opened.columns.extra:
        raise PackerError(f"--split-at is turns, and {opened.name} holds texts, not chats: leave it out")
    return opened


def request_of(opened: Corpus, options: Mapping[str, object]) -> Request:
    """Return the request for an output of this source; `options` are JSON values by name."""
    return Request(
        options=options,
        files=tuple(
            RequestedFile(
                name=input_.file.name,
                bytes=input_.file.bytes,
                mtime_ns=input_.path.stat().st_mtime_ns if input_.path is not None else None,
            )
            for input_ in opened.inputs
        ),
        texts={
            name: source.tokenized.identity for name, source in opened.sources.items() if source.tokenized is not None
        },
    )


def with_texts(totals: Totals, opened: Corpus) -> Totals:
    """Add the counts made while text was tokenized, if any source is text."""
    texts = [source.tokenized for source in opened.sources.values() if source.tokenized is not None]
    if not texts:
        return totals
    return replace(
        totals,
        documents_straddling=sum(text.counts["straddling"] for text in texts),
        documents_untrained=sum(text.counts["untrained"] for text in texts),
    )
