"""Open a source or a mixture of several, and read it as one sequence of documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.facts import SourceIdentity
from packer.options import PackOptions
from packer.paths import PathList
from packer.pipeline.apply_options import kept_lengths_of
from packer.pipeline.open_inputs import open_with
from packer.progress import Progress, silent
from packer.sources.corpus import Corpus, Recipe, distinct_names
from packer.sources.documents import TokenTable, reading
from packer.sources.origins import Origins
from packer.sources.source import Source
from packer.sources.survey_corpus import survey_corpus
from packer.stores import is_remote
from packer.stores.mirror import fetch_queued

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SourceLike = Union[str, Path, PathList, "Dataset", "DatasetDict"]
"""A path, several of them, a glob or Hub id, or a `datasets` object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Documents to be packed, in order."""

    source: Source
    """Source of all lists; for a mixture, its sources one after the other."""

    identity: SourceIdentity
    """Identity of the source or mixture, for the manifest."""

    lengths: NDArray[np.int32] | None
    """(documents,) tokens of each document; None if they are looked up when needed."""

    origins: Origins
    """Source, document and copy that each document comes from."""

    def table(self) -> TokenTable:
        """Return the columns of all documents of a mapped source, by address; `lengths` is empty."""
        with reading(self.source.name):
            fetch_queued()
        table = self.source.table(np.zeros(0, np.int32))
        return replace(table, lists=self.origins) if self.origins.is_mixture else table

    def describe(self, document: int) -> str:
        """Name a document for a message: "document 17 (rows.jsonl line 18)", with " of code" in a mixture."""
        sources, ids, _ = self.origins.of(np.array([document]))
        return self.origins.describe(int(sources[0]), int(ids[0]))


def split_weights(
    source: SourceLike | Sequence[str | Path] | Sequence[tuple[SourceLike, float]],
) -> tuple[SourceLike | list[SourceLike], tuple[float, ...]]:
    """Split a list of (source, weight) into (sources, weights); return a single source or paths without weights.

    Raises:
        PackerError: the list is empty, or its elements are neither paths nor pairs.
    """
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
    """Open a source, or the sources of a mixture.

    Args:
        source: a source, or a list of as many sources as the options have weights.
        options: options of the pack; those for reading and mixing are used.

    Raises:
        PackerError: a source is missing, unreadable or lacks a column; or the number of sources is wrong.
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


def read_documents(
    opened: Corpus, progress: Progress = silent, *, hold_lengths: bool = False, interleaved: bool = False
) -> Documents:
    """Check every document, and decide which documents of a mixture are taken how often.

    Args:
        opened: source or mixture.
        progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.
        hold_lengths: hold the length of every document in memory.
        interleaved: interleave the sources of a mixture evenly; the order is held in memory.

    Raises:
        SourceError: a source holds no document, or a document or file is wrong.
        PackerError: a mixture has more documents than can be numbered, or held.
    """
    survey = survey_corpus(opened, progress)
    lengths = survey.lengths() if hold_lengths else None
    order = survey.order(lengths) if interleaved else None
    if lengths is not None and order is not None:
        lengths = lengths[order]
    return Documents(source=survey.source, identity=survey.identity, lengths=lengths, origins=survey.origins(order))


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
