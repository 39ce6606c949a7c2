"""What a mixture takes of its sources: a sample of each, found by counting, and the facts about it.

    survey of each source ──tokens by hash──▶ targets ──lengths of one bucket──▶ takes ──lengths──▶ facts

The lengths of a mapped source are looked up where they lie, some at a time. Those of a source that has to be decoded
are held, so that it is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import MixturePart, SourceIdentity, TakenDocuments
from packer.plan.hash_sample import WeightCounter
from packer.plan.mixture_shares import Take, interleave, mixture_targets, refuse_too_many, take_documents
from packer.plan.permute import key_of
from packer.progress import Progress, silent
from packer.random_purposes import MIXTURE
from packer.sources.column_checks import one_column
from packer.sources.column_values import alike
from packer.sources.documents import DocumentError, Input, TokenTable
from packer.sources.mapped_lists import MappedLists
from packer.sources.origins import Origins
from packer.sources.source import Source
from packer.sources.survey import LengthsOf, SourceSurvey

if TYPE_CHECKING:
    from packer.sources.mixture import Mixture, Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What a mixture takes of its sources; made by `draw_mixture`."""

    mixture: Mixture
    """The sources."""

    surveys: tuple[SourceSurvey, ...]
    """What a pass over each source found."""

    kept: tuple[WeightCounter, ...]
    """Tokens of each source that reach the rows, by the hash of their document."""

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
            MixturePart.of(survey.identity, name=name, weight=weight, tokens_kept=kept.total, taken=taken)
            for name, weight, survey, kept, taken in zip(
                names, weights, self.surveys, self.kept, self.taken, strict=True
            )
        )

    @property
    def identity(self) -> SourceIdentity:
        """What the manifest says of the mixture as a source."""
        return SourceIdentity(
            files=tuple(file for survey in self.surveys for file in survey.identity.files),
            documents=sum(taken.documents for taken in self.taken),
            tokens=sum(taken.tokens for taken in self.taken),
            labels=any(part.has_labels for part in self.mixture.parts),
            lengths_xxh3_128=self.lengths_digest,
            columns=self.surveys[0].identity.columns,  # the same in all sources
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
        for survey, take in zip(self.surveys, self.takes, strict=True):
            whole = survey.lengths()
            parts += [whole] * take.copies
            parts.append(whole[take.sample.contains(0, len(whole))])
        return np.concatenate(parts)

    def order(self, lengths: NDArray[np.int32] | None = None) -> NDArray[Any]:
        """Interleave the sources, so that every stretch has the shares of the whole; see `interleave`.

        Args:
            lengths: (documents,) as `lengths` returns them, if they are there already.
        """
        lengths = self.lengths() if lengths is None else lengths
        return interleave(self.mixture.recipe.kept(lengths, 0), self.origins().firsts)

    def lists(self, order: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Which list of all sources, one after the other, each document is: shape (documents,)."""
        return self.origins(order)[np.arange(self.identity.documents)]

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the other columns, a value per list of all sources, one after the other.

        Raises:
            SourceError: no type holds its values in all of them.
        """
        lists = [survey.extra[name].chunks for survey in self.surveys]
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
    recipe, surveys, kept = mixture.recipe, [], []
    for number, part in enumerate(mixture.parts):
        with of_source(mixture.names[number]):
            counter = WeightCounter(key_of(recipe.seed, MIXTURE, number))
            overall = progress_in(progress, mixture.parts, number)
            on_table = partial(_count_kept, recipe, counter)
            surveys.append(part.survey(overall, with_extra=with_extra, on_table=on_table))
            kept.append(counter)
            if not counter.total:
                raise SourceError(
                    f"there is nothing to take of {counter.population:,} documents: all are empty or dropped"
                )
    totals = [counter.total for counter in kept]
    targets = mixture_targets(totals, recipe.weights, unit=recipe.unit, total=recipe.tokens)
    digest = xxhash.xxh3_128()
    takes, taken = [], []
    for survey, counter, target in zip(surveys, kept, targets, strict=True):
        take, tokens_kept = take_documents(counter, target, _kept_of(survey, recipe))
        takes.append(take)
        taken.append(
            TakenDocuments(
                copies=take.copies,
                documents=take.documents,
                tokens=_count_taken(survey, take, digest),
                tokens_kept=tokens_kept,
            )
        )
    refuse_too_many(takes, mixture.names, recipe.unit)
    return Drawn(
        mixture=mixture,
        surveys=tuple(surveys),
        kept=tuple(kept),
        takes=tuple(takes),
        taken=tuple(taken),
        lengths_digest=digest.hexdigest(),
    )


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """Put the name of a source before the message of an error."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from error


def progress_in(progress: Progress, parts: Sequence[Source], number: int) -> Progress:
    """Turn progress in one of several sources into progress in all of them, in bytes of the files."""
    sizes = [sum(file.bytes for file in part.files) for part in parts]
    before, size, whole = sum(sizes[:number]), sizes[number], sum(sizes)

    def overall(stage: str, done: int, total: int) -> None:
        progress(stage, before + size * done // max(total, 1), whole)

    return overall


def _count_kept(recipe: Recipe, counter: WeightCounter, table: TokenTable) -> None:
    """Count the tokens of documents that reach the rows."""
    counter.add(recipe.kept(table.lengths, table.first_document))


def _kept_of(survey: SourceSurvey, recipe: Recipe) -> LengthsOf:
    """Tokens of documents that reach the rows, looked up."""

    def kept_of(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        return recipe.kept(survey.lengths_of(documents), 0)

    return kept_of


def _count_taken(survey: SourceSurvey, take: Take, out_digest: xxhash.xxh3_128) -> int:
    """Count the tokens that are taken of a source, and add their lengths to a digest; see `Drawn.lengths_digest`."""
    if not take.documents:
        return 0
    sampled, once = 0, min(take.copies, 1)
    for first, lengths in survey.chunks():
        is_sampled = take.sample.contains(first, first + len(lengths))
        sampled += int(lengths[is_sampled].sum(dtype=np.int64))
        out_digest.update(np.repeat(lengths, once + is_sampled).astype("<i4", copy=False).data)
    return take.copies * survey.identity.tokens + sampled


def _with_labels(given: Input) -> Input:
    """The input with labels: its tokens, where it has none."""
    if isinstance(given, MappedLists) and given.labels is None:
        return replace(given, labels=given.input_ids)
    return given
