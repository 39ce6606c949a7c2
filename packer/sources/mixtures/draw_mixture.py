"""Drawing a mixture: which documents of each source are taken, and the facts about them.

    survey of each source ──tokens by hash──▶ targets ──lengths of one bucket──▶ takes ──lengths──▶ facts

Lengths of a mapped source are looked up in its lists, a block at a time. Lengths of a source that must be decoded are
held in memory, so that it is decoded only once.
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
from packer.progress import Progress, documents_of, silent
from packer.random_purposes import MIXTURE
from packer.sources.columns.column_checks import one_column
from packer.sources.columns.column_values import cast_to_common_type
from packer.sources.documents import DocumentError, Input, TokenTable
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mixtures.origins import Origins
from packer.sources.source import Source
from packer.sources.survey import LengthsOf, SourceSurvey

if TYPE_CHECKING:
    from packer.sources.mixtures.mixture import Mixture, Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnMixture:
    """The documents that a mixture takes of its sources; made by `draw_mixture`."""

    mixture: Mixture
    """The sources, and how much of each is wanted."""

    surveys: tuple[SourceSurvey, ...]
    """Survey of each source."""

    kept: tuple[WeightCounter, ...]
    """Tokens of each source that reach the rows, counted by the hash of their document."""

    takes: tuple[Take, ...]
    """Documents taken of each source."""

    taken: tuple[TakenDocuments, ...]
    """Counts of what is taken of each source, for the manifest."""

    lengths_digest: str
    """xxh3-128 of the lengths, int32, of the documents that are taken, source by source and in the order of the source.
    A document counts once if its source is taken whole at least once, and once more if it is in the sample."""

    @property
    def identities(self) -> tuple[MixturePart, ...]:
        """Name, weight and identity of each source, and counts of what is taken of it."""
        names, weights = self.mixture.names, self.mixture.recipe.weights
        return tuple(
            MixturePart.of(survey.identity, name=name, weight=weight, tokens_kept=kept.total, taken=taken)
            for name, weight, survey, kept, taken in zip(
                names, weights, self.surveys, self.kept, self.taken, strict=True
            )
        )

    @property
    def identity(self) -> SourceIdentity:
        """Identity of the mixture as a source, for the manifest."""
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
        """One source with the lists of all sources, each list once."""
        parts = self.mixture.parts
        has_labels = any(part.has_labels for part in parts)
        inputs = tuple(_with_labels(input_) if has_labels else input_ for input_ in self.mixture.inputs)
        return Source(", ".join(self.mixture.names), inputs, parts[0].columns)

    def origins(self, order: NDArray[Any] | None = None) -> Origins:
        """Return the source, document and copy behind each document of the mixture.

        Args:
            order: (documents,) another order of the documents, as returned by `order`; None for their own.
        """
        return Origins.of_takes(self.mixture.parts, self.mixture.names, self.takes, order)

    def lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all documents of the mixture, shape (documents,).

        Raises:
            PackerError: there are more documents than fit into memory.
        """
        refuse_too_many(self.takes, self.mixture.names, self.mixture.recipe.unit, in_order=True)
        parts = [np.zeros(0, np.int32)]
        for survey, take in zip(self.surveys, self.takes, strict=True):
            whole = survey.lengths()
            parts += [whole] * take.copies
            parts.append(whole[take.sample.contains(0, len(whole))])
        return np.concatenate(parts)

    def order(self, lengths: NDArray[np.int32] | None = None) -> NDArray[Any]:
        """Interleave the sources so that every stretch has the shares of the whole mixture; see `interleave`.

        Args:
            lengths: (documents,) the result of `lengths`, if already computed.
        """
        lengths = self.lengths() if lengths is None else lengths
        return interleave(self.mixture.recipe.kept(lengths, 0), self.origins().firsts)

    def lists(self, order: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Return the list of each document, shape (documents,), counted across all sources."""
        return self.origins(order)[np.arange(self.identity.documents)]

    def column(self, name: str) -> pa.ChunkedArray:
        """Return an extra column, one value per list, counted across all sources.

        Raises:
            SourceError: no type holds the values of all sources.
        """
        lists = [survey.extra[name].chunks for survey in self.surveys]
        try:
            return pa.chunked_array(cast_to_common_type([chunk for chunks in lists for chunk in chunks], name))
        except DocumentError:  # the names of the sources help a user more than the document
            by_source = list(zip(self.mixture.names, lists, strict=True))
            return one_column(", ".join(self.mixture.names), name, by_source)


def draw_mixture(mixture: Mixture, progress: Progress = silent, *, with_extra: bool = False) -> DrawnMixture:
    """Check all sources and decide how often each document is taken.

    Args:
        mixture: the sources.
        progress: callback, called as in `Source.tables`, in bytes of the files of all sources.
        with_extra: keep the extra columns for `DrawnMixture.column`.

    Raises:
        SourceError: a source has no tokens to take, or a document or file is invalid.
        PackerError: the mixture has more documents than can be numbered.
    """
    recipe, surveys, kept = mixture.recipe, [], []
    in_turn = overall_progress(progress, mixture.parts)
    for number, part in enumerate(mixture.parts):
        with prefix_errors(mixture.names[number]):
            counter = WeightCounter(key_of(recipe.seed, MIXTURE, number))
            overall = next(in_turn)
            on_table = partial(_count_kept, recipe, counter)
            surveys.append(part.survey(overall, with_extra=with_extra, on_table=on_table))
            kept.append(counter)
            if not counter.total:
                what = "empty, rejected or dropped" if len(part.rejections.lists) else "empty or dropped"
                raise SourceError(f"there is nothing to take: all {counter.population:,} documents are {what}")
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
    if not any(take.documents for take in takes):
        raise SourceError("nothing to pack: no source's share is half a document; raise --mix-tokens or the weights")
    refuse_too_many(takes, mixture.names, recipe.unit)
    return DrawnMixture(
        mixture=mixture,
        surveys=tuple(surveys),
        kept=tuple(kept),
        takes=tuple(takes),
        taken=tuple(taken),
        lengths_digest=digest.hexdigest(),
    )


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


def _count_kept(recipe: Recipe, counter: WeightCounter, table: TokenTable) -> None:
    """Count the tokens of a table that reach the rows."""
    counter.add(recipe.kept(table.lengths, table.first_document))


def _kept_of(survey: SourceSurvey, recipe: Recipe) -> LengthsOf:
    """Return a function that looks up the tokens of documents that reach the rows."""

    def kept_of(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        return recipe.kept(survey.lengths_of(documents), 0)

    return kept_of


def _count_taken(survey: SourceSurvey, take: Take, out_digest: xxhash.xxh3_128) -> int:
    """Return the tokens taken of a source, and add lengths to the digest as `DrawnMixture.lengths_digest` says."""
    if not take.documents:
        return 0
    sampled, once = 0, min(take.copies, 1)
    for first, lengths in survey.chunks():
        is_sampled = take.sample.contains(first, first + len(lengths))
        sampled += int(lengths[is_sampled].sum(dtype=np.int64))
        out_digest.update(np.repeat(lengths, once + is_sampled).astype("<i4", copy=False).data)
    return take.copies * survey.identity.tokens + sampled


def _with_labels(input_: Input) -> Input:
    """Let the tokens of an input without labels serve as its labels."""
    if isinstance(input_, MappedLists) and input_.labels is None:
        return replace(input_, labels=input_.input_ids)
    return input_
