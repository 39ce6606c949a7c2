"""Passes over sources that check every document: for lengths and identity, and in the order of files to verify rows."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import FileIdentity, MixturePart, SourceIdentity, TakenDocuments
from packer.gather import lengths_of
from packer.inputs.column_types import cast_to_common_type
from packer.inputs.documents import DocumentError
from packer.inputs.token_tables import TokenTable
from packer.options import PackOptions
from packer.plan.mixture_shares import Take, mixture_targets, refuse_too_many, take_documents
from packer.plan.permute import key_of
from packer.progress import Progress, silent
from packer.random_purposes import MIXTURE
from packer.sources.content_hashes import KeptTokens
from packer.sources.corpus import (
    Corpus,
    Documents,
    LengthsOf,
    SourceSurvey,
    count_rejected,
    overall_progress,
    prefix_errors,
)
from packer.sources.pairs import sides_in_turn
from packer.sources.segment_index import own_documents
from packer.sources.source import Order, Source

_TOGETHER = 1 << 18  # documents whose lengths are looked up at once


def survey_source(
    source: Source,
    progress: Progress = silent,
    *,
    with_extra: bool = False,
    on_table: Callable[[TokenTable], None] = lambda table: None,
) -> SourceSurvey:
    """Check every document of a source in one pass, and call `on_table` with every table, in order.

    Nothing is held per document of a mapped source, unless its documents are not in the order of its files. Lengths of
    a source that must be decoded are held, and so are its extra columns, if they are requested. A SourceError is raised
    if the source has no documents, a document or file is invalid, or no type holds all values of an extra column.
    """
    seen = IdentityCounter(source)
    held: list[NDArray[np.int32]] = []
    columns: defaultdict[str, list[pa.Array]] = defaultdict(list)
    for table in source.tables(progress):
        seen.add(table.lengths)
        on_table(table)
        if not source.mapped:
            held.append(table.lengths)
            for name, column in table.extra.items() if with_extra else ():
                columns[name] += column.chunks
    if not seen.documents:
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    extra = {}
    if with_extra and source.mapped:
        extra = {
            name: pa.chunked_array(list(column.chunks), column.type) for name, column in source.value_columns().items()
        }
    for name, chunks in columns.items():
        try:
            extra[name] = pa.chunked_array(cast_to_common_type([chunk for chunk in chunks if len(chunk)], name))
        except DocumentError as fault:  # with the first document that does not fit
            raise SourceError(f"{source.describe(fault.row)}: {fault.message}") from None
    look_up = _mapped_lengths(source) if source.mapped else np.concatenate(held).__getitem__
    return SourceSurvey(identity=seen.identity(), lengths_of=look_up, extra=extra)


def _mapped_lengths(source: Source) -> LengthsOf:
    """Return a function that looks up lengths in the lists of a mapped source."""
    table = source.table(np.zeros(0, np.int32))

    def look_up(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        lengths = np.empty(len(documents), np.int32)
        lengths_of(table.input_ids.addresses, table.lists_of(documents), lengths)
        return lengths

    return look_up


class IdentityCounter:
    """Collects the identity of a source while its tables are read, to its end before `identity` is called.

    Lengths are held only if the documents are not in the order of the files as manifests list them.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_held = source.pairs or source.indices is not None
        self._digest = xxhash.xxh3_128()
        self._ends, self._tokens = [0], [0]  # up to the end of each table, which never crosses files
        self._held: list[NDArray[np.int32]] = []

    @property
    def documents(self) -> int:
        """Number of documents added so far."""
        return self._ends[-1]

    def add(self, lengths: NDArray[np.int32]) -> None:
        """Add the lengths of the documents of the next table."""
        self._digest.update(lengths.astype("<i4", copy=False).data)
        self._ends.append(self._ends[-1] + len(lengths))
        self._tokens.append(self._tokens[-1] + int(lengths.sum(dtype=np.int64)))
        if self._is_held:
            self._held.append(lengths)

    def identity(self) -> SourceIdentity:
        """Return the identity of the source."""
        source, order_digest = self._source, None
        rows, order = [count or 0 for count in source.rows], source.indices
        if source.pairs and not source.mapped:  # listed as mapped ones are: all chosen answers, then all rejected ones
            order = sides_in_turn(sum(rows) // 2)
            rows = [count // 2 for count in rows] * 2
        if order is None:
            at_end = np.searchsorted(self._ends, np.cumsum(rows, dtype=np.int64), side="right") - 1
            tokens = np.diff(np.array(self._tokens)[at_end], prepend=0).tolist()
        else:  # equal lengths in another order are other documents
            rows, tokens = _per_file(rows, order, np.concatenate([np.empty(0, np.int32), *self._held]))
            hashed = xxhash.xxh3_128()
            for start in range(0, len(order), _TOGETHER):
                hashed.update(order[start : start + _TOGETHER].astype("<i8").data)
            order_digest = hashed.hexdigest()
        return SourceIdentity(
            files=tuple(
                FileIdentity(name=file.name, bytes=file.bytes, rows=of_file, tokens=count)
                for file, of_file, count in zip(source.files, rows, tokens, strict=True)
            ),
            documents=sum(rows),
            tokens=sum(tokens),
            labels=source.has_labels,
            lengths_xxh3_128=self._digest.hexdigest(),
            columns=source.columns.extra,
            widths=source.columns.widths or None,
            text=source.text,
            indices_xxh3_128=order_digest,
        )


def _per_file(listed: list[int], order: Order, lengths: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Return the documents and the tokens of each file, given its number of lists."""
    ends = np.cumsum(listed, dtype=np.int64)
    rows, tokens = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for start in range(0, len(lengths), _TOGETHER):
        files = np.searchsorted(ends, order[start : start + _TOGETHER].astype(np.int64), side="right")
        rows += np.bincount(files, minlength=len(ends))
        np.add.at(tokens, files, lengths[start : start + _TOGETHER])
    return rows.tolist(), tokens.tolist()


def survey_corpus(corpus: Corpus, progress: Progress = silent, *, with_extra: bool = False) -> Documents:
    """Check all sources, and decide how often each document of a mixture is taken.

    Extra columns are kept for `Documents.column` if they are requested. A SourceError is raised if a source has no
    documents, or no tokens to take, and a PackerError if the mixture has more documents than can be numbered.
    """
    if corpus.mix is None:
        survey = survey_source(corpus.parts[0], progress, with_extra=with_extra)
        take = Take.whole(survey.identity.documents)
        return Documents(corpus=corpus, surveys=(survey,), takes=(take,), identity=survey.identity)
    return _draw_mixture(corpus, corpus.mix, progress, with_extra=with_extra)


def read_documents(
    opened: Corpus, progress: Progress = silent, *, hold_lengths: bool = False, interleaved: bool = False
) -> Documents:
    """Check every document, and decide which documents of a mixture are taken how often.

    The length of every document is held if that is requested, and so is the order that interleaves the sources of a
    mixture evenly. Errors are those of `survey_corpus`.
    """
    documents = survey_corpus(opened, progress)
    interleaved = interleaved and documents.is_mixture
    lengths = documents.all_lengths() if hold_lengths or interleaved else None
    order = documents.interleaved(lengths) if lengths is not None and interleaved else None
    if lengths is not None and order is not None:
        lengths = lengths[order]
    return replace(documents, surveys=(), lengths=lengths if hold_lengths else None, order=order)


def _draw_mixture(corpus: Corpus, options: PackOptions, progress: Progress, *, with_extra: bool) -> Documents:
    """Check the sources of a mixture, and decide how often each document is taken.

    The lengths that are hashed are those of the documents that are taken, source by source and in the order of the
    source, as int32. A document counts once if its source is taken whole at least once, and once more if it is in the
    sample.
    """
    surveys, kept = [], []
    in_turn = overall_progress(progress, corpus.parts)
    for number, part in enumerate(corpus.parts):
        with prefix_errors(corpus.names[number]):
            counter = KeptTokens(part, options, key_of(options.seed, MIXTURE, number))
            overall = next(in_turn)
            surveys.append(survey_source(part, overall, with_extra=with_extra, on_table=counter.add_table))
            kept.append(counter)
            if not counter.total and not options.is_holdout:
                what = "empty, rejected or dropped" if len(part.rejections.lists) else "empty or dropped"
                raise SourceError(f"there is nothing to take: all {counter.population:,} documents are {what}")
    totals = [counter.total for counter in kept]
    targets = mixture_targets(totals, options.weights, unit=options.mix_unit, total=options.mix_tokens)
    digest = xxhash.xxh3_128()
    takes, facts = [], []
    for number, (survey, counter, target) in enumerate(zip(surveys, kept, targets, strict=True)):
        take, tokens_kept = Take.whole(counter.population), counter.total
        if not options.is_holdout:  # which has each document once
            take, tokens_kept = take_documents(counter, target, partial(counter.kept_of, survey.lengths_of))
        takes.append(take)
        tokens = _count_taken(survey, take, digest)
        taken = TakenDocuments(copies=take.copies, documents=take.documents, tokens=tokens, tokens_kept=tokens_kept)
        name, weight = corpus.names[number], options.weights[number]
        values = survey.identity.values() | {"files": len(survey.identity.files)}
        del values["mixture"]
        facts.append(MixturePart(**values, name=name, weight=weight, tokens_kept=counter.total, taken=taken))
    if not any(take.documents for take in takes):
        raise SourceError("nothing to pack: no source's share is half a document; raise --mix-tokens or the weights")
    refuse_too_many(takes, corpus.names, options.mix_unit)
    identity = SourceIdentity(
        files=tuple(file for survey in surveys for file in survey.identity.files),
        documents=sum(part.taken.documents for part in facts),
        tokens=sum(part.taken.tokens for part in facts),
        labels=any(part.has_labels for part in corpus.parts),
        lengths_xxh3_128=digest.hexdigest(),
        columns=surveys[0].identity.columns,  # the same in all sources
        widths=surveys[0].identity.widths,
        mixture=tuple(facts),
    )
    return Documents(corpus=corpus, surveys=tuple(surveys), takes=tuple(takes), identity=identity)


def _count_taken(survey: SourceSurvey, take: Take, out_digest: xxhash.xxh3_128) -> int:
    """Return the tokens taken of a source, and add lengths to the digest as `_draw_mixture` says."""
    if not take.documents:
        return 0
    sampled, once = 0, min(take.copies, 1)
    for first, lengths in survey.chunks():
        is_sampled = take.is_sampled(first, first + len(lengths))
        sampled += int(lengths[is_sampled].sum(dtype=np.int64))
        out_digest.update(np.repeat(lengths, once + is_sampled).astype("<i4", copy=False).data)
    return take.copies * survey.identity.tokens + sampled


_COPIED = 1 << 20  # documents of a table, copies included


class SourceOrder:
    """Documents that are packed, numbered in the order of their sources, with the copies of a document together.

    Example: source 0 has documents a and b, and b is taken twice; source 1 has c, which is not taken, and d. Then a, b,
    b, d are documents 0 to 3, and one pass over the sources yields them in this order. Nothing is held per document. A
    mixture is read once before, to know what is taken.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._taken = None if corpus.mix is None else survey_corpus(corpus)  # of a mixture
        self.mixture = () if self._taken is None else self._taken.identity.mixture
        """Sources of a mixture, and counts of what is taken of each; empty for a single source."""
        self._seen = IdentityCounter(corpus.parts[0])  # of a single source

    @property
    def documents(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        if self._taken is not None:
            return self._taken.identity.documents
        [source] = self._corpus.parts
        if source.indices is not None:
            return len(source.indices)
        rows = [count for count in source.rows if count is not None]
        return sum(rows) if len(rows) == len(source.rows) else None

    def tables(self) -> Iterator[TokenTable]:
        """Yield all documents in order, in tables of bounded memory that list a document once per copy."""
        if self._taken is None:
            for table in self._corpus.parts[0].tables():
                yield table
                self._seen.add(table.lengths)
            return
        for part, take, first_of_source in zip(
            self._corpus.parts, self._taken.takes, self._taken.firsts[:-1], strict=True
        ):
            step = max(1, _COPIED // (take.copies + 1))
            done = int(first_of_source)
            for table in part.tables():
                for first in range(0, len(table.lengths), step):
                    last = min(first + step, len(table.lengths))
                    times = take.times(table.first_document + first, table.first_document + last)
                    lists = table.lists_of(np.arange(first, last))
                    if times.any():
                        yield replace(
                            table,
                            lengths=np.repeat(table.lengths[first:last], times),
                            lists=np.repeat(lists, times),
                            first_document=done,
                        )
                    done += int(times.sum())

    def numbers(self, segments: Mapping[str, NDArray[np.integer]]) -> NDArray[np.int64]:
        """Return the number of the document of each segment; one past the last for documents that are not taken."""
        if self._taken is None:
            return own_documents(segments)
        source_ids, doc_ids, copies = (segments[name] for name in ("source_ids", "doc_ids", "copy"))
        takes, firsts = self._taken.takes, self._taken.firsts
        numbers = np.full(len(doc_ids), firsts[-1])
        for source, take in enumerate(takes):
            population = take.population
            here = np.flatnonzero((source_ids == source) & (doc_ids >= 0) & (doc_ids < population) & (copies >= 0))
            documents = doc_ids[here].astype(np.int64)
            ranks, is_sampled = take.ranks(documents)
            found = firsts[source] + documents * take.copies + ranks + copies[here]
            is_taken = copies[here] < take.copies + is_sampled
            numbers[here[is_taken]] = found[is_taken]
        return numbers

    def rejected(self) -> dict[str, int]:
        """Count the rejected documents by reason, with every copy; call this after reading `tables` to the end."""
        return count_rejected(self._corpus.parts, None if self._taken is None else self._taken.takes)

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)", and " of code, copy 0"."""
        if self._taken is None:
            return self._corpus.parts[0].describe(document)
        source = int(np.searchsorted(self._taken.firsts, document, side="right")) - 1
        take, number = self._taken.takes[source], document - int(self._taken.firsts[source])

        def first_copy(of: int) -> int:
            return of * take.copies + int(take.ranks(np.array([of]))[0][0])

        at = bisect_right(range(take.population), number, key=first_copy) - 1
        copy = number - first_copy(at)
        where = self._corpus.parts[source].describe(at)
        return f"{where} of {self._corpus.names[source]}, copy {copy}"

    def identity(self) -> SourceIdentity:
        """Return the identity of the source; call this after reading `tables` to the end."""
        return self._seen.identity() if self._taken is None else self._taken.identity
