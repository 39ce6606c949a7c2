"""What is packed: one source, or several that are mixed, opened and ready to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.engine import Engine, Threads
from packer.errors import SourceError
from packer.options.choices import MixUnit
from packer.progress import Progress, documents_of, silent
from packer.sources.columns.column_types import join_by_name
from packer.sources.decoding.decoded_pieces import SpillSize
from packer.sources.documents import Input
from packer.sources.source import Source
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How much of each source a mixture takes; see `packer.plan.mixture_shares`."""

    weights: tuple[float, ...]
    """Weight of each source, above 0."""

    unit: MixUnit
    """Unit of the weights: shares of the tokens of the mixture, or epochs of the source."""

    tokens: int | None
    """Tokens of the mixture, for shares only; None for as many as possible without repeating a source."""

    seed: int
    """Seed of the samples."""

    kept: Callable[[NDArray[np.int32], int], NDArray[np.int32]]
    """Callback, called with the lengths of consecutive documents and the number of the first; returns the tokens of
    each that reach the rows. Weights are shares of these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """One source, or several with the same columns that are mixed.

    If some sources have labels, loss covers every token of the others: their tokens serve as labels.
    """

    parts: tuple[Source, ...]
    """Sources in the order of `source_ids`."""

    names: tuple[str, ...] = ("",)
    """Name of each source in messages and in the manifest; no two are equal. A source that is not mixed has none."""

    recipe: Recipe | None = None
    """How much of each source is taken; None for one source, of which every document is taken once."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Inputs of all sources, one source after the other."""
        return tuple(input_ for part in self.parts for input_ in part.inputs)

    @property
    def sources(self) -> dict[str, Source]:
        """Sources by name."""
        return dict(zip(self.names, self.parts, strict=True))

    @property
    def pad_id(self) -> int | None:
        """Padding token of the first source that has one; None if no source has."""
        return next((part.pad_id for part in self.parts if part.pad_id is not None), None)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory."""
        return all(part.mapped for part in self.parts)

    def spill_size(self, folder: AnyPath) -> SpillSize:
        """Estimate how much `spill` will write to `folder`."""
        if self.recipe is None:
            return self.parts[0].spill_size(folder)
        sizes = [part.spill_size(each) for part, each in zip(self.parts, self._folders(folder), strict=True)]
        return SpillSize(
            bytes=sum(size.bytes for size in sizes),
            tokens=sum(size.tokens for size in sizes),
            sampled=any(size.sampled for size in sizes),
        )

    def spill(
        self,
        folder: AnyPath,
        progress: Progress = silent,
        *,
        engine: Engine = Threads(),  # noqa: B008 (immutable)
    ) -> Corpus:
        """Decode inputs that cannot be mapped; see `Source.spill`. Each source of a mixture has its own subfolder."""
        if self.recipe is None:
            return replace(self, parts=(self.parts[0].spill(folder, progress, engine=engine),))
        decoded = self._decoded(folder, progress, engine, {})
        types = [part.extra_types() for part in decoded.parts]
        kinds = join_by_name(types)
        if all(each == kinds for each in types):
            return decoded
        return self._decoded(folder, silent, engine, kinds)  # decoded streams are reused and gain wider types

    def _decoded(self, folder: AnyPath, progress: Progress, engine: Engine, kinds: Mapping[str, pa.DataType]) -> Corpus:
        parts = list(self.parts)
        in_turn = overall_progress(progress, [part for part in parts if not part.mapped])
        for number, (part, each) in enumerate(zip(self.parts, self._folders(folder), strict=True)):
            if not part.mapped:
                with prefix_errors(self.names[number]):
                    parts[number] = part.spill(each, next(in_turn), engine=engine, kinds=kinds)
        return replace(self, parts=tuple(parts))

    def _folders(self, folder: AnyPath) -> list[AnyPath]:
        return [folder / f"{number:05d}" for number in range(len(self.parts))]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Number equal names by their position: data, code, data -> data (1), code, data (3)."""
    return tuple(f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1))


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Put the name of a source before the message of every `SourceError`, once."""
    try:
        yield
    except SourceError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise SourceError(f"{name}: {error}") from error


def overall_progress(progress: Progress, parts: Sequence[Source]) -> Iterator[Progress]:
    """Yield a callback for each of the parts, which are read in turn; it reports progress in all of them."""
    sizes = [sum(file.bytes for file in part.files) for part in parts]
    number = before = documents = 0

    def overall(stage: str, done: int, total: int) -> None:
        nonlocal documents
        documents = before + done
        read = sum(sizes[:number]) + sizes[number] * done / max(total, 1)
        progress(stage, *documents_of(documents, read, sum(sizes)))

    for number in range(len(parts)):  # noqa: B007 (`overall` reads it)
        before = documents
        yield overall
