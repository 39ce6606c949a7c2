"""A mixture: several sources, how much is taken of each, and which document of which source each one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options.choices import MixUnit
from packer.plan.mixing import Take, interleave, mixture_targets, refuse_too_many, take_documents
from packer.progress import Progress, silent
from packer.sources.column_types import join_by_name
from packer.sources.column_values import alike
from packer.sources.documents import DocumentError, Input, Tokenized
from packer.sources.ipc import MappedLists
from packer.sources.origins import Origins
from packer.sources.scanning import Scan, scan
from packer.sources.sizing import SpillSize
from packer.sources.source import Source, one_column


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How much of each source is taken; see `packer.plan.mixing`."""

    weights: tuple[float, ...]
    """Of each source, above 0."""

    unit: MixUnit
    """What a weight is: a share of the mixture's tokens, or how often the source is seen."""

    tokens: int | None
    """Of the mixture; None for as many as there are without repeating a source. For shares only."""

    seed: int
    """Of the samples."""

    kept: Callable[[NDArray[np.int32]], NDArray[np.int32]]
    """Lengths of documents -> tokens of each that reach the rows: these are what is weighed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Several sources that have the same columns, opened and ready to be drawn from.

    Where some have labels, every token of the others is trained: their labels are their tokens.
    """

    parts: tuple[Source, ...]
    """The sources, in the order of `source_ids`."""

    names: tuple[str, ...]
    """What each is called in messages and in the manifest; no two alike."""

    recipe: Recipe
    """How much is taken of each."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Those of all sources, one source after the other."""
        return tuple(given for part in self.parts for given in part.inputs)

    @property
    def tokenized(self) -> Tokenized | None:
        """What is known of the sources of text together, the identity of each by its name; None where none is text."""
        pairs = zip(self.names, self.parts, strict=True)
        known = {name: part.tokenized for name, part in pairs if part.tokenized is not None}
        if not known:
            return None
        return Tokenized(
            identity={name: dict(each.identity) for name, each in known.items()},
            straddling=sum(each.straddling for each in known.values()),
            untrained=sum(each.untrained for each in known.values()),
        )

    @property
    def pad_id(self) -> int | None:
        """That of the first source of which it is known."""
        return next((part.pad_id for part in self.parts if part.pad_id is not None), None)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory."""
        return all(part.mapped for part in self.parts)

    def spill_size(self, folder: Path) -> SpillSize:
        """Estimate what `spill` is going to write into this folder."""
        sizes = [part.spill_size(each) for part, each in zip(self.parts, self._folders(folder), strict=True)]
        return SpillSize(
            bytes=sum(size.bytes for size in sizes),
            tokens=sum(size.tokens for size in sizes),
            sampled=any(size.sampled for size in sizes),
        )

    def spill(self, folder: Path, progress: Progress = silent, *, workers: int = 1) -> Mixture:
        """Decode what cannot be mapped, each source in a folder of its own; see `Source.spill`."""
        decoded = self._decoded(folder, progress, workers, {})
        types = [part.extra_types() for part in decoded.parts]
        kinds = join_by_name(types)
        if all(each == kinds for each in types):
            return decoded
        return self._decoded(folder, silent, workers, kinds)  # what is decoded stays, as the types that hold all values

    def _decoded(self, folder: Path, progress: Progress, workers: int, kinds: Mapping[str, pa.DataType]) -> Mixture:
        parts = list(self.parts)
        for number, (part, each) in enumerate(zip(self.parts, self._folders(folder), strict=True)):
            if not part.mapped:
                told = _shifted(progress, self.parts, number)
                with _of_source(self.names[number]):
                    parts[number] = part.spill(each, told, workers=workers, kinds=kinds)
        return replace(self, parts=tuple(parts))

    def draw(self, progress: Progress = silent, *, with_extra: bool = False) -> Drawn:
        """Take the lengths of all sources, and decide which documents come how often.

        Args:
            progress: told as by `scan`.
            with_extra: keep the other columns, too.

        Raises:
            SourceError: a source is empty, or a document or file is wrong.
            PackerError: what is taken is more documents than memory holds the order of.
        """
        scans, kept = [], []
        for number, part in enumerate(self.parts):
            with _of_source(self.names[number]):
                scans.append(scan(part, _shifted(progress, self.parts, number), with_extra=with_extra))
                kept.append(self.recipe.kept(scans[-1].lengths))
                if not kept[-1].any():
                    raise SourceError(
                        f"there is nothing to take of {len(kept[-1]):,} documents: all are empty or dropped"
                    )
        targets = mixture_targets(
            [int(each.sum(dtype=np.int64)) for each in kept],
            self.recipe.weights,
            unit=self.recipe.unit,
            total=self.recipe.tokens,
        )
        takes = tuple(
            take_documents(each, target, seed=self.recipe.seed, source=number)
            for number, (each, target) in enumerate(zip(kept, targets, strict=True))
        )
        refuse_too_many(takes, self.names, self.recipe.unit)
        return Drawn(mixture=self, scans=tuple(scans), takes=takes)

    def _folders(self, folder: Path) -> list[Path]:
        return [folder / f"{number:05d}" for number in range(len(self.parts))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What a mixture takes of its sources."""

    mixture: Mixture
    """The sources."""

    scans: tuple[Scan, ...]
    """What a pass over each has told."""

    takes: tuple[Take, ...]
    """What is taken of each."""

    @property
    def identities(self) -> list[dict[str, Any]]:
        """Of each source: its name, weight and identity, with the number of its files, and what is taken of it."""
        told = []
        for name, weight, part, take in zip(
            self.mixture.names, self.mixture.recipe.weights, self.scans, self.takes, strict=True
        ):
            kept = self.mixture.recipe.kept(part.lengths)
            told.append(
                {
                    **{"name": name, "weight": weight},
                    **part.identity,
                    "files": len(part.identity["files"]),
                    "tokens_kept": int(kept.sum(dtype=np.int64)),
                    "taken": {
                        "copies": take.copies,
                        "documents": take.documents,
                        "tokens": take.of(part.lengths),
                        "tokens_kept": take.of(kept),
                    },
                }
            )
        return told

    def order(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
        """(numbers, copies, lengths) of the documents of the mixture, in order; see `Origins`."""
        lengths = np.concatenate([part.lengths for part in self.scans])
        numbers, copies = interleave(self.mixture.recipe.kept(lengths), self.firsts, self.takes)
        return numbers, copies, lengths[numbers]

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Shape (sources + 1,): source s has the numbers firsts[s]..firsts[s + 1] - 1."""
        firsts: NDArray[np.int64] = np.cumsum([0, *(len(part.lengths) for part in self.scans)])
        return firsts

    def lists(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Which list of all sources, one after the other, each of these documents is."""
        if all(part.indices is None for part in self.mixture.parts):
            return numbers
        rows: NDArray[Any] = _rows_of(self.mixture.parts)[numbers]
        return rows

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the other columns, a value per list of all sources, one after the other.

        Raises:
            SourceError: no type holds its values in all of them.
        """
        lists = [each.extra[name].chunks for each in self.scans]
        try:
            return pa.chunked_array(alike([chunk for chunks in lists for chunk in chunks], name))
        except DocumentError:  # the sources say more than a row
            told = list(zip(self.mixture.names, lists, strict=True))
            return one_column(", ".join(self.mixture.names), name, told)

    def identity(self, taken: NDArray[np.int32]) -> dict[str, Any]:
        """Return what the manifest says of the mixture as a source.

        Args:
            taken: (documents,) tokens of its documents, in their order.
        """
        told = self.identities
        identity = {
            **self.scans[0].identity,  # what sources have in common: columns
            "files": [file for part in self.scans for file in part.identity["files"]],
            "documents": len(taken),
            "tokens": sum(part["taken"]["tokens"] for part in told),
            "labels": any(part.has_labels for part in self.mixture.parts),
            "lengths_xxh3_128": xxhash.xxh3_128_hexdigest(taken.astype("<i4", copy=False).data),
            "mixture": told,
        }
        for of_one in ("text", "indices_xxh3_128"):
            identity.pop(of_one, None)
        return identity

    def arrange(self) -> tuple[Source, Scan, Origins]:
        """Put the documents in order: a source of them, what a pass over it would tell, and where they come from."""
        parts, names = self.mixture.parts, self.mixture.names
        numbers, copies, taken = self.order()
        has_labels = any(part.has_labels for part in parts)
        inputs = tuple(_with_labels(given) if has_labels else given for given in self.mixture.inputs)
        source = Source(", ".join(names), inputs, parts[0].columns, self.lists(numbers))
        identity = self.identity(taken)
        scanned = Scan(lengths=taken, tokens=identity["tokens"], identity=identity)
        return source, scanned, Origins(parts=parts, names=names, firsts=self.firsts, numbers=numbers, copies=copies)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Tell equal names apart by their place: data, code, data -> data (1), code, data (3)."""
    return tuple(f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1))


def _with_labels(given: Input) -> Input:
    """The input with labels: its tokens, where it has none."""
    if isinstance(given, MappedLists) and given.labels is None:
        return replace(given, labels=given.input_ids)
    return given


def _rows_of(parts: Sequence[Source]) -> NDArray[Any]:
    """Which list of the inputs of all sources each of their documents is."""
    first, rows = 0, []
    for part in parts:
        lists = sum(count or 0 for count in part.rows)
        rows.append(np.arange(lists) if part.indices is None else part.indices.astype(np.int64))
        rows[-1] += first
        first += lists
    return np.concatenate(rows)


@contextmanager
def _of_source(name: str) -> Iterator[None]:
    """Say of which source an error is."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from error


def _shifted(progress: Progress, parts: Sequence[Source], number: int) -> Progress:
    """Progress in one of several sources as progress in all of them, in bytes of the files."""
    sizes = [sum(file.bytes for file in part.files) for part in parts]
    before, size, whole = sum(sizes[:number]), sizes[number], sum(sizes)

    def told(stage: str, done: int, total: int) -> None:
        progress(stage, before + size * done // max(total, 1), whole)

    return told
