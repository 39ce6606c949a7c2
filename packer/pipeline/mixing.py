"""One source or a mixture of several: opened, and read as one sequence of documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.open_inputs import open_with
from packer.progress import Progress, silent
from packer.sources import Source, identify, scan
from packer.sources.mixture import Mixture, Recipe, distinct_names
from packer.sources.origins import Origins

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Given = Union[str, Path, "Dataset", "DatasetDict"]
"""What names a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """The documents to be packed, in order."""

    source: Source
    """Where they are."""

    identity: dict[str, Any]
    """What tells the source from others; for the manifest."""

    lengths: NDArray[np.int32] | None
    """(documents,) tokens of each; None where they are looked up when they are needed."""

    origins: Origins | None
    """Which document of which source each one is; None where there is one source."""

    def describe(self, document: int) -> str:
        """Name a document for a message: "document 17 (rows.jsonl line 18)", of a mixture also " of code"."""
        if self.origins is None:
            return self.source.describe(document)
        sources, ids, _ = self.origins.of(np.array([document]))
        return self.origins.describe(int(sources[0]), int(ids[0]))


def split_weights(source: Given | Sequence[tuple[Given, float]]) -> tuple[Given | list[Given], tuple[float, ...]]:
    """(sources, weights) of pairs of them; one source is returned as it is, without weights.

    Raises:
        PackerError: it is a list of something else, or empty.
    """
    if not isinstance(source, (list, tuple)):
        return source, ()
    pairs = [pair for pair in source if isinstance(pair, (list, tuple)) and len(pair) == 2]
    if len(pairs) != len(source) or not pairs:
        raise PackerError("a mixture is a list of (source, weight), as in [('web', 0.7), ('code', 0.3)]")
    weights = tuple(float(weight) if type(weight) is int else weight for _, weight in pairs)
    return [given for given, _ in pairs], weights


def open_sources(source: Given | Sequence[Given], options: PackOptions) -> Source | Mixture:
    """Open a source, or those of a mixture, as the options say.

    Raises:
        PackerError: one is not there, not readable, or lacks a column; or there are not as many as weights.
    """
    if not isinstance(source, (list, tuple)):
        if options.weights:
            raise PackerError(f"one source is given for a mixture of {len(options.weights)}: give all, in order")
        return open_with(source, options)
    if len(source) != len(options.weights):
        raise PackerError(
            f"{len(source)} source(s) are given, and weights for {len(options.weights)}: give each source, in order"
        )
    _refuse_twice(source)
    parts = tuple(open_with(each, options, mixed=True) for each in source)
    _refuse_unused(parts, options)
    return Mixture(
        parts=parts,
        names=distinct_names([_name(each) for each in source]),
        recipe=Recipe(
            weights=options.weights,
            unit=options.mix_unit,
            tokens=options.mix_tokens,
            seed=options.seed,
            kept=options.kept_lengths,
        ),
    )


def read_documents(opened: Source | Mixture, progress: Progress = silent, *, hold_lengths: bool = False) -> Documents:
    """Check every document and, of a mixture, decide which come how often and in which order.

    Args:
        opened: a source or a mixture.
        progress: called with "lengths", "decode" or "tokenize", in bytes of the files.
        hold_lengths: keep the length of every document; those of a mixture are held in any case.

    Raises:
        SourceError: a source holds no document, or a document or file is wrong.
    """
    if isinstance(opened, Source):
        if not hold_lengths:
            return Documents(source=opened, identity=identify(opened, progress), lengths=None, origins=None)
        scanned = scan(opened, progress)
        return Documents(source=opened, identity=scanned.identity, lengths=scanned.lengths, origins=None)
    source, scanned, origins = opened.draw(progress).arrange()
    return Documents(source=source, identity=scanned.identity, lengths=scanned.lengths, origins=origins)


def _refuse_twice(sources: Sequence[Given]) -> None:
    seen = set()
    for source in sources:
        key = os.path.realpath(source) if isinstance(source, (str, Path)) else id(source)
        if key in seen:
            raise PackerError(f"the source {_name(source)} is given twice: give it once, with the sum of the weights")
        seen.add(key)


def _refuse_unused(parts: Sequence[Source], options: PackOptions) -> None:
    """Refuse options of text that fit no source."""
    texts = [part.tokenized.identity for part in parts if part.tokenized is not None]
    if options.tokenizer is not None and not texts:
        raise PackerError(
            f"all {len(parts)} sources have the column '{options.input_column}', so that they are tokenized already: "
            "leave --tokenizer out, or name the column of text with --text-column"
        )
    columns = options.text_column.split(",") if options.text_column is not None else []
    if columns and not any(set(columns) <= set(text["columns"]) for text in texts):
        raise PackerError(f"--text-column is '{options.text_column}', which none of the {len(parts)} sources has")
    if options.train_on is not None and all(text["train_on"] != options.train_on for text in texts):
        raise PackerError(
            f"--train-on {options.train_on} fits none of the {len(parts)} sources: leave it out, or choose all"
        )


def _name(source: Given) -> str:
    """The last part of a path; a Hub id as it is."""
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not path.exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name
