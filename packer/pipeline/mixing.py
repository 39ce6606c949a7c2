"""One source or a mixture of several: opened, and read as one sequence of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.opening import open_with
from packer.progress import Progress, silent
from packer.sources import Scan, Source, scan
from packer.sources.mixture import Mixture, Origins, Recipe, distinct_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Given = Union[str, Path, "Dataset", "DatasetDict"]
"""What names a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """The documents to be packed, in order."""

    source: Source
    """Where they are."""

    scanned: Scan
    """What a pass over them tells."""

    origins: Origins | None
    """Which document of which source each one is; None where there is one source."""


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
    return Mixture(
        parts=tuple(open_with(each, options) for each in source),
        names=distinct_names([_name(each) for each in source]),
        recipe=Recipe(
            weights=options.weights,
            unit=options.mix_unit,
            tokens=options.mix_tokens,
            seed=options.seed,
            kept=options.kept_lengths,
        ),
    )


def read_documents(opened: Source | Mixture, progress: Progress = silent) -> Documents:
    """Take the length of every document and, of a mixture, decide which come how often and in which order.

    Raises:
        SourceError: a source holds no document, or a document or file is wrong.
    """
    if isinstance(opened, Source):
        return Documents(source=opened, scanned=scan(opened, progress), origins=None)
    source, scanned, origins = opened.draw(progress).arrange()
    return Documents(source=source, scanned=scanned, origins=origins)


def _refuse_twice(sources: Sequence[Given]) -> None:
    seen = set()
    for source in sources:
        key = Path(source).resolve() if isinstance(source, (str, Path)) else id(source)
        if key in seen:
            raise PackerError(f"the source {_name(source)} is given twice: give it once, with the sum of the weights")
        seen.add(key)


def _name(source: Given) -> str:
    """The last part of a path; a Hub id as it is."""
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not path.exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name
