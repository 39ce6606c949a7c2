"""What a mixture takes of its sources: a sample of each, found by counting, and the facts about it.

    survey of each source ──tokens by hash──▶ targets ──lengths of one bucket──▶ takes ──lengths──▶ facts

The lengths of a mapped source are looked up where they lie, some at a time. Those of a source that has to be decoded
are held, so that it is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import MixturePart, SourceIdentity, TakenDocuments
from packer.gather import lengths_of
from packer.plan.hash_sample import WeightCounter
from packer.plan.mixture_shares import Take, interleave, mixture_targets, refuse_too_many, take_documents
from packer.plan.permute import key_of
from packer.progress import Progress, silent
from packer.random_purposes import MIXTURE
from packer.sources.column_checks import one_column
from packer.sources.column_values import alike
from packer.sources.documents import DocumentError, Input
from packer.sources.mapped_lists import MappedLists
from packer.sources.mixture import Mixture, Recipe, of_source, progress_in
from packer.sources.origins import Origins
from packer.sources.source import Source
from packer.sources.survey import IdentityCounter, empty_source, scan

LOOKED_UP = 1 << 18
"""Documents whose lengths are looked up together."""

LengthsOf = Callable[[NDArray[np.int64]], NDArray[np.int32]]
"""Documents of a source -> tokens of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """What one pass over a source of a mixture finds."""

    identity: SourceIdentity
    """Identity of the source, for the manifest."""

    kept: WeightCounter
    """Tokens that reach the rows, by the hash of their document."""

    lengths_of: LengthsOf
    """Looks up lengths."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """The other columns, a value per list; none where they were not asked for."""

    def chunks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield (first document, lengths) of some documents at a time, in order."""
        for first in range(0, self.kept.population, LOOKED_UP):
            yield first, self.lengths_of(np.arange(first, min(first + LOOKED_UP, self.kept.population)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What a mixture takes of its sources; made by `draw_mixture`."""

    mixture: Mixture
    """The sources."""

    surveyed: tuple[Surveyed, ...]
    """What a pass over each source found."""

    takes: tuple[Take, ...]
    """What is taken of each source."""

    taken: tuple[TakenDocuments, ...]
    """The same for the manifest."""

    lengths_digest: str
    """xxh3-128 of the lengths, int32, of the documents that are taken: source by source, in the order of the source. A
    document counts once if its source comes whole at least once, and once more if it is in the sample."""

    @property
    def identities(self) -> tuple[MixturePart, ...]:
        """Name, weight and identity of each source, and what is taken of it."""
        names, weights = self.mixture.names, self.mixture.recipe.weights
        return tuple(
            MixturePart.of(part.identity, name=name, weight=weight, tokens_kept=part.kept.total, taken=taken)
            for name, weight, part, taken in zip(names, weights, self.surveyed, self.taken, strict=True)
        )

    @property
    def identity(self) -> SourceIdentity:
        """What the manifest says of the mixture as a source."""
        return SourceIdentity(
            files=tuple(file for part in self.surveyed for file in part.identity.files),
            documents=sum(taken.documents for taken in self.taken),
            tokens=sum(taken.tokens for taken in self.taken),
            labels=any(part.has_labels for part in self.mixture.parts),
            lengths_xxh3_128=self.lengths_digest,
            columns=self.surveyed[0].identity.columns,  # the same in all sources
            mixture=self.identities,
        )

    @property
    def source(self) -> Source:
        """The lists of all sources as one source, which repeats none and leaves none out."""
        parts = self.mixture.parts
        has_labels = any(part.has_labels for part in parts)
        inputs = tuple(_with_labels(given) if has_labels else given for given in self.mixture.inputs)
        return Source(", ".join(self.mixture.names), inputs, parts[0].columns)

    def origins(self, order: NDArray[Any] | None = None) -> Origins:
        """Say which document of which source each document of the mixture is.

        Args:
            order: (documents,) the documents in another order, as `order` returns it; None for their own.
        """
        return Origins.of_takes(self.mixture.parts, self.mixture.names, self.takes, order)

    def lengths(self) -> NDArray[np.int32]:
        """Lengths of the documents of the mixture: int32, shape (documents,); this is the only method that holds them.

        Raises:
            PackerError: there are more than memory holds.
        """
        refuse_too_many(self.takes, self.mixture.names, self.mixture.recipe.unit, in_order=True)
        parts = [np.zeros(0, np.int32)]
        for surveyed, take in zip(self.surveyed, self.takes, strict=True):
            whole = np.concatenate([lengths for _, lengths in surveyed.chunks()])
            parts += [whole] * take.copies
            parts.append(whole[take.sample.contains(0, len(whole))])
        return np.concatenate(parts)

    def order(self, lengths: NDArray[np.int32]) -> NDArray[Any]:
        """Interleave the sources, so that every stretch has the shares of the whole; see `interleave`.

        Args:
            lengths: (documents,) as `lengths` returns them.
        """
        return interleave(self.mixture.recipe.kept(lengths, 0), self.origins().firsts)

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the other columns, a value per list of all sources, one after the other.

        Raises:
            SourceError: no type holds its values in all of them.
        """
        lists = [each.extra[name].chunks for each in self.surveyed]
        try:
            return pa.chunked_array(alike([chunk for chunks in lists for chunk in chunks], name))
        except DocumentError:  # the sources say more than a row
            told = list(zip(self.mixture.names, lists, strict=True))
            return one_column(", ".join(self.mixture.names), name, told)


def draw_mixture(mixture: Mixture, progress: Progress = silent, *, with_extra: bool = False) -> Drawn:
    """Check all sources, and decide which documents are taken how often.

    Args:
        mixture: the open sources.
        progress: callback, called as by `Source.tables`, in bytes of the files of all sources.
        with_extra: keep the other columns, too.

    Raises:
        SourceError: a source is empty, or a document or file is wrong.
        PackerError: there are more documents than can be numbered.
    """
    recipe, surveyed = mixture.recipe, []
    for number, part in enumerate(mixture.parts):
        with of_source(mixture.names[number]):
            kept = WeightCounter(key_of(recipe.seed, MIXTURE, number))
            told = progress_in(progress, mixture.parts, number)
            surveyed.append(_surveyed(part, kept, recipe, told, with_extra=with_extra))
            if not kept.total:
                raise SourceError(
                    f"there is nothing to take of {kept.population:,} documents: all are empty or dropped"
                )
    targets = mixture_targets(
        [found.kept.total for found in surveyed], recipe.weights, unit=recipe.unit, total=recipe.tokens
    )
    digest = xxhash.xxh3_128()
    takes, taken = [], []
    for found, target in zip(surveyed, targets, strict=True):
        take, tokens_kept = take_documents(found.kept, target, _kept_of(found, recipe))
        takes.append(take)
        taken.append(
            TakenDocuments(
                copies=take.copies,
                documents=take.documents,
                tokens=_count_taken(found, take, digest),
                tokens_kept=tokens_kept,
            )
        )
    refuse_too_many(takes, mixture.names, recipe.unit)
    return Drawn(
        mixture=mixture,
        surveyed=tuple(surveyed),
        takes=tuple(takes),
        taken=tuple(taken),
        lengths_digest=digest.hexdigest(),
    )


def _surveyed(part: Source, kept: WeightCounter, recipe: Recipe, progress: Progress, *, with_extra: bool) -> Surveyed:
    """Check a source in one pass and count its tokens; what has to be decoded is held, lengths and columns."""
    if not part.mapped:
        scanned = scan(part, progress, with_extra=with_extra)
        kept.add(recipe.kept(scanned.lengths, 0))
        lengths = scanned.lengths
        return Surveyed(identity=scanned.identity, kept=kept, lengths_of=lengths.__getitem__, extra=scanned.extra)
    seen = IdentityCounter(part)
    for table in part.tables(progress):
        seen.add(table.lengths)
        kept.add(recipe.kept(table.lengths, table.first_document))
    if not seen.documents:
        raise empty_source(part)
    extra = part.extra() if with_extra else {}
    return Surveyed(identity=seen.identity(), kept=kept, lengths_of=_looked_up(part), extra=extra)


def _looked_up(part: Source) -> LengthsOf:
    """The lengths of a mapped source, where they lie."""
    table = part.table(np.zeros(0, np.int32))

    def look(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        lengths = np.empty(len(documents), np.int32)
        lists = documents if table.rows is None else table.rows[documents].astype(np.int64)
        lengths_of(table.input_ids.addresses, lists, lengths)
        return lengths

    return look


def _kept_of(part: Surveyed, recipe: Recipe) -> LengthsOf:
    """Tokens of documents that reach the rows, looked up."""

    def kept_of(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        return recipe.kept(part.lengths_of(documents), 0)

    return kept_of


def _count_taken(part: Surveyed, take: Take, out_digest: xxhash.xxh3_128) -> int:
    """Count the tokens that are taken of a source, and add their lengths to a digest; see `Drawn.lengths_digest`."""
    if not take.documents:
        return 0
    sampled, once = 0, min(take.copies, 1)
    for first, lengths in part.chunks():
        is_sampled = take.sample.contains(first, first + len(lengths))
        sampled += int(lengths[is_sampled].sum(dtype=np.int64))
        out_digest.update(np.repeat(lengths, once + is_sampled).astype("<i4", copy=False).data)
    return take.copies * part.identity.tokens + sampled


def _with_labels(given: Input) -> Input:
    """The input with labels: its tokens, where it has none."""
    if isinstance(given, MappedLists) and given.labels is None:
        return replace(given, labels=given.input_ids)
    return given
