"""Survey of a corpus: every document is checked, and of a mixture, it is decided how often each document is taken.

    survey of each source ──tokens by hash──▶ targets ──lengths of one bucket──▶ takes ──lengths──▶ facts

Lengths of a mapped source are looked up in its lists, a block at a time. Lengths of a source that must be decoded are
held in memory, so that it is decoded only once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from packer.sources.columns.column_checks import one_column
from packer.sources.columns.column_types import cast_to_common_type
from packer.sources.corpus import Corpus, Recipe, overall_progress, prefix_errors
from packer.sources.documents import DocumentError, Input, TokenTable
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.origins import Origins
from packer.sources.source import Source
from packer.sources.survey import LengthsOf, SourceSurvey


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusSurvey:
    """Documents to pack, all of them checked; made by `survey_corpus`."""

    corpus: Corpus
    """The sources, and how much of each is wanted."""

    surveys: tuple[SourceSurvey, ...]
    """Survey of each source."""

    takes: tuple[Take, ...]
    """Documents taken of each source."""

    identity: SourceIdentity
    """Identity of the source or mixture, for the manifest."""

    @property
    def source(self) -> Source:
        """One source with the lists of all sources, each list once; a source that is not mixed is itself."""
        parts = self.corpus.parts
        if self.corpus.recipe is None:
            return parts[0]
        has_labels = any(part.has_labels for part in parts)
        inputs = tuple(_with_labels(input_) if has_labels else input_ for input_ in self.corpus.inputs)
        return Source(", ".join(self.corpus.names), inputs, parts[0].columns)

    def origins(self, order: NDArray[Any] | None = None) -> Origins:
        """Return the source, document and copy behind each document.

        Args:
            order: (documents,) another order of the documents, as returned by `order`; None for their own.
        """
        return Origins.of_takes(self.corpus.parts, self.corpus.names, self.takes, order)

    def lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all documents, shape (documents,).

        Raises:
            PackerError: a mixture has more documents than fit into memory.
        """
        if self.corpus.recipe is None:
            return self.surveys[0].lengths()
        refuse_too_many(self.takes, self.corpus.names, self.corpus.recipe.unit, in_order=True)
        parts = [np.zeros(0, np.int32)]
        for survey, take in zip(self.surveys, self.takes, strict=True):
            whole = survey.lengths()
            parts += [whole] * take.copies
            parts.append(whole[take.sample.contains(0, len(whole))])
        return np.concatenate(parts)

    def order(self, lengths: NDArray[np.int32] | None = None) -> NDArray[Any] | None:
        """Interleave the sources of a mixture so that every stretch has the shares of the whole; see `interleave`.

        Args:
            lengths: (documents,) the result of `lengths`, if already computed.

        Returns:
            (documents,) another order of the documents; None for one source.
        """
        if self.corpus.recipe is None:
            return None
        lengths = self.lengths() if lengths is None else lengths
        return interleave(self.corpus.recipe.kept(lengths, 0), self.origins().firsts)

    def lists(self, order: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Return the list of `source` that each document is, shape (documents,); None if document i is list i."""
        if self.corpus.recipe is None:
            return self.corpus.parts[0].order
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
            by_source = list(zip(self.corpus.names, lists, strict=True))
            return one_column(", ".join(self.corpus.names), name, by_source)


def survey_corpus(corpus: Corpus, progress: Progress = silent, *, with_extra: bool = False) -> CorpusSurvey:
    """Check all sources, and decide how often each document of a mixture is taken.

    Args:
        corpus: the sources.
        progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files of all sources.
        with_extra: keep the extra columns for `CorpusSurvey.column`.

    Raises:
        SourceError: a source has no documents, or no tokens to take, or a document or file is invalid.
        PackerError: the mixture has more documents than can be numbered.
    """
    if corpus.recipe is None:
        survey = corpus.parts[0].survey(progress, with_extra=with_extra)
        take = Take.whole(survey.identity.documents)
        return CorpusSurvey(corpus=corpus, surveys=(survey,), takes=(take,), identity=survey.identity)
    return _draw_mixture(corpus, corpus.recipe, progress, with_extra=with_extra)


def _draw_mixture(corpus: Corpus, recipe: Recipe, progress: Progress, *, with_extra: bool) -> CorpusSurvey:
    """Check the sources of a mixture, and decide how often each document is taken.

    The lengths that are hashed are those of the documents that are taken, source by source and in the order of the
    source, as int32. A document counts once if its source is taken whole at least once, and once more if it is in the
    sample.
    """
    surveys, kept = [], []
    in_turn = overall_progress(progress, corpus.parts)
    for number, part in enumerate(corpus.parts):
        with prefix_errors(corpus.names[number]):
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
    takes, facts = [], []
    for number, (survey, counter, target) in enumerate(zip(surveys, kept, targets, strict=True)):
        take, tokens_kept = take_documents(counter, target, _kept_of(survey, recipe))
        takes.append(take)
        taken = TakenDocuments(
            copies=take.copies,
            documents=take.documents,
            tokens=_count_taken(survey, take, digest),
            tokens_kept=tokens_kept,
        )
        name, weight = corpus.names[number], recipe.weights[number]
        facts.append(MixturePart.of(survey.identity, name=name, weight=weight, tokens_kept=counter.total, taken=taken))
    if not any(take.documents for take in takes):
        raise SourceError("nothing to pack: no source's share is half a document; raise --mix-tokens or the weights")
    refuse_too_many(takes, corpus.names, recipe.unit)
    identity = SourceIdentity(
        files=tuple(file for survey in surveys for file in survey.identity.files),
        documents=sum(part.taken.documents for part in facts),
        tokens=sum(part.taken.tokens for part in facts),
        labels=any(part.has_labels for part in corpus.parts),
        lengths_xxh3_128=digest.hexdigest(),
        columns=surveys[0].identity.columns,  # the same in all sources
        mixture=tuple(facts),
    )
    return CorpusSurvey(corpus=corpus, surveys=tuple(surveys), takes=tuple(takes), identity=identity)


def _count_kept(recipe: Recipe, counter: WeightCounter, table: TokenTable) -> None:
    """Count the tokens of a table that reach the rows."""
    counter.add(recipe.kept(table.lengths, table.first_document))


def _kept_of(survey: SourceSurvey, recipe: Recipe) -> LengthsOf:
    """Return a function that looks up the tokens of documents that reach the rows."""

    def kept_of(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        return recipe.kept(survey.lengths_of(documents), 0)

    return kept_of


def _count_taken(survey: SourceSurvey, take: Take, out_digest: xxhash.xxh3_128) -> int:
    """Return the tokens taken of a source, and add lengths to the digest as `_draw_mixture` says."""
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
