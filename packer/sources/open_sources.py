"""Open a source of tokens, or of text with a tokenizer, or a mixture of several sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Union

from packer.errors import PackerError
from packer.inputs.hugging_face import Found
from packer.options import PackOptions
from packer.paths import PathList
from packer.plan.segments import kept_lengths_of
from packer.sources.corpus import Corpus, Recipe, distinct_names
from packer.sources.find_source import column_names, find_source
from packer.sources.number_columns import is_array_file, open_array, open_lengths, with_numbers
from packer.sources.source import Source
from packer.sources.tokenized_source import open_tokens
from packer.stores import any_path, is_remote

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SourceLike = Union[str, Path, PathList, "Dataset", "DatasetDict"]
"""A path, several of them, a glob or Hub id, or a `datasets` object."""


def split_weights(
    source: SourceLike | Sequence[str | Path] | Sequence[tuple[SourceLike, float]],
) -> tuple[SourceLike | list[SourceLike], tuple[float, ...]]:
    """Split a list of (source, weight) into (sources, weights); return a single source or paths without weights."""
    if not isinstance(source, (list, tuple)):
        return source, ()
    paths = [each for each in source if isinstance(each, (str, Path))]
    if paths and len(paths) == len(source):
        return one_source(paths), ()
    pairs = [pair for pair in source if isinstance(pair, (list, tuple)) and len(pair) == 2]
    if len(pairs) != len(source) or not pairs:
        raise PackerError(
            "a list of sources holds paths, which are one source, as in ['a.jsonl', 'b.jsonl'], or is a mixture of "
            "(source, weight), as in [('web', 0.7), ('code', 0.3)]"
        )
    weights = tuple(float(weight) if type(weight) is int else weight for _, weight in pairs)
    return [each for each, _ in pairs], weights


def one_source(paths: Sequence[str | Path]) -> str | Path | PathList:
    """Return a path as it is, and several as one source."""
    return paths[0] if len(paths) == 1 else PathList(tuple(paths))


def open_sources(source: SourceLike | Sequence[SourceLike], options: PackOptions) -> Corpus:
    """Open a source, or the sources of a mixture, which the options have as many weights for.

    A PackerError is raised if a source is missing, unreadable or lacks a column, or the number of sources is wrong.
    """
    if not isinstance(source, (list, tuple)):
        if options.weights:
            raise PackerError(f"one source is given for a mixture of {len(options.weights)}: give all, in order")
        return Corpus(parts=(open_with(source, options),))
    if len(source) != len(options.weights):
        raise PackerError(
            f"{len(source)} source(s) are given, and weights for {len(options.weights)}: give each source, in order"
        )
    _refuse_twice(source)
    parts = tuple(open_with(each, options, mixed=True) for each in source)
    _refuse_unused(parts, options)
    return Corpus(
        parts=parts,
        names=distinct_names([_name(each) for each in source]),
        recipe=Recipe(
            weights=options.weights,
            unit=options.mix_unit,
            tokens=options.mix_tokens,
            seed=options.seed,
            kept=partial(kept_lengths_of, options),
        ),
    )


def open_with(source: SourceLike, options: PackOptions, *, turns_of_chats: bool = False, mixed: bool = False) -> Source:
    """Open a source without reading its documents.

    With `turns_of_chats`, read where the turns of chats begin, even if the options do not split there. In a mixture
    (`mixed`), a source that has tokens is read as tokens even with a tokenizer, and options for text apply to the
    sources that they fit.
    """
    if options.lengths_column is not None and is_array_file(source):
        opened = open_array(any_path(str(source)), options.value_columns)
    elif options.lengths_column is not None:
        opened = open_lengths(find_source(source, options.split), options.lengths_column, options.value_columns)
    else:
        opened = _documents(find_source(source, options.split), options, turns_of_chats=turns_of_chats, mixed=mixed)
    return with_numbers(opened, tuple(options.limits)) if options.limit else opened


def _documents(found: Found, options: PackOptions, *, turns_of_chats: bool, mixed: bool) -> Source:
    if options.tokenizer is None:
        return open_tokens(found, options)
    from packer.sources.text_source import open_text
    from packer.text.text_columns import names_in

    text_column = options.text_column
    if mixed:
        names = column_names(found, options.input_column if options.on_error == "skip" else None)
        if not set(names_in(text_column)) <= set(names):
            text_column = None
        if text_column is None and options.input_column in names:
            return open_tokens(found, options)
    return open_text(found, options, text_column=text_column, turns_of_chats=turns_of_chats, mixed=mixed)


def _refuse_twice(sources: Sequence[SourceLike]) -> None:
    """Raise a PackerError if a source occurs twice."""
    seen = set()
    for source in sources:
        key: object = str(source) if is_remote(source) else id(source)
        if isinstance(source, (str, Path)) and not is_remote(source):
            key = os.path.realpath(source)
        if key in seen:
            raise PackerError(f"the source {_name(source)} is given twice: give it once, with the sum of the weights")
        seen.add(key)


def _refuse_unused(parts: Sequence[Source], options: PackOptions) -> None:
    """Raise a PackerError for options for text that apply to no source."""
    texts = [part.tokenized.identity for part in parts if part.tokenized is not None]
    if options.tokenizer is not None and not texts:
        raise PackerError(
            f"all {len(parts)} sources have the column '{options.input_column}', so they are tokenized already: "
            "leave --tokenizer out, or name the column of text with --text-column"
        )
    from packer.text.text_columns import names_in

    columns = names_in(options.text_column)
    if columns and not any(set(columns) <= set(text.columns) for text in texts):
        raise PackerError(f"--text-column is '{options.text_column}', which none of the {len(parts)} sources has")
    if options.train_on is not None and all(text.train_on != options.train_on for text in texts):
        raise PackerError(
            f"--train-on {options.train_on} fits none of the {len(parts)} sources: leave it out, or choose all"
        )


def _name(source: SourceLike) -> str:
    """Return the name of a source: the last part of its path, or its Hub id."""
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not path.exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name
