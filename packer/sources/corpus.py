"""What is packed: one source, or several that are mixed, opened and ready to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import REASONS, SourceIdentity
from packer.inputs.column_types import cast_to_common_type, one_type
from packer.inputs.documents import DocumentError, Input, reading
from packer.inputs.token_tables import MappedLists, TokenTable
from packer.options import PackOptions
from packer.plan.mixture_shares import Take, interleave, refuse_too_many
from packer.plan.segments import kept_lengths_of
from packer.progress import Progress, documents_of
from packer.sources.source import Order, Source
from packer.stores import AnyPath
from packer.stores.mirror import fetch_queued


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """One source, or several with the same columns that are mixed.

    If some sources have labels, loss covers every token of the others: their tokens serve as labels.
    """

    parts: tuple[Source, ...]
    """Sources in the order of `source_ids`."""

    names: tuple[str, ...] = ("",)
    """Name of each source in messages and in the manifest; no two are equal. A source that is not mixed has none."""

    mix: PackOptions | None = None
    """Options that say how much of each source a mixture takes; None for one source, of which every document is taken
    once. Weights are shares of the tokens that reach the rows."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Inputs of all sources, one source after the other, in the order of the files of the manifest."""
        return tuple(input_ for part in self.parts for input_ in part.listed_inputs)

    @property
    def sources(self) -> dict[str, Source]:
        """Sources by name."""
        return dict(zip(self.names, self.parts, strict=True))

    @property
    def pad_id(self) -> int | None:
        """Padding token of the first source that has one; None if no source has."""
        return next((part.pad_id for part in self.parts if part.pad_id is not None), None)

    @property
    def record_starts(self) -> tuple[int, ...]:
        """Inputs at which the numbers of records begin at 0, see `Source.record_starts`."""
        firsts = accumulate((len(part.inputs) for part in self.parts), initial=0)
        return tuple(first for first, part in zip(firsts, self.parts, strict=False) if part.record_starts)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory."""
        return all(part.mapped for part in self.parts)

    def spill_folders(self, folder: AnyPath) -> list[AnyPath]:
        """Return the folder in which each source is decoded: a subfolder each if they are mixed."""
        return [folder] if self.mix is None else [folder / f"{number:05d}" for number in range(len(self.parts))]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Number equal names by their position: data, code, data -> data (1), code, data (3)."""
    return tuple(f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names, start=1))


def count_rejected(sources: Sequence[Source], takes: Sequence[Take] | None = None) -> dict[str, int]:
    """Count the rejected documents of a source, or of those of a mixture, by reason.

    With the documents that a mixture takes of each source, a document counts once per copy.
    """
    counts = np.zeros(len(REASONS), np.int64)
    for number, source in enumerate(sources):
        documents, reasons = source.rejections.documents(source.indices)
        times = np.ones(len(documents), np.int64)
        if takes is not None and len(documents):
            take = takes[number]
            times = take.copies + take.ranks(documents)[1].astype(np.int64)
        np.add.at(counts, reasons, times)
    return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Put the name of a source of a mixture before the message of every `SourceError`, once."""
    try:
        yield
    except SourceError as error:
        if not name or str(error).startswith(f"{name}: "):
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


_TOGETHER = 1 << 18  # documents whose lengths are looked up at once

LengthsOf = Callable[[NDArray[np.int64]], NDArray[np.int32]]
"""Function that returns the tokens of each of some documents of a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSurvey:
    """Result of one pass over a source."""

    identity: SourceIdentity
    lengths_of: LengthsOf
    """Function that looks up lengths: in the mapped lists, or in an array if the source must be decoded."""

    extra: Mapping[str, pa.ChunkedArray]
    """Extra columns, one value per list; empty if they were not requested."""

    def chunks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield (first document, lengths) for blocks of documents, in order."""
        for first in range(0, self.identity.documents, _TOGETHER):
            yield first, self.lengths_of(np.arange(first, min(first + _TOGETHER, self.identity.documents)))

    def lengths(self) -> NDArray[np.int32]:
        """Return the tokens of every document, shape (documents,)."""
        lengths = np.empty(self.identity.documents, np.int32)
        for first, chunk in self.chunks():
            lengths[first : first + len(chunk)] = chunk
        return lengths


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Checked documents to pack, numbered source by source, and within a source as in `Take`; made by `survey_corpus`.

    Nothing is held per document, except for lengths and another order. Can be pickled; addresses of columns are
    computed again.
    """

    corpus: Corpus
    """The sources, which have been read to their end."""

    takes: tuple[Take, ...]
    """Documents taken of each source."""

    identity: SourceIdentity
    surveys: tuple[SourceSurvey, ...]
    """Lengths and extra columns of each source; empty once documents are to be packed."""

    order: Order | None = None
    """Another order of the documents, shape (documents,); None for their own."""

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document; None if they are looked up when needed."""

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """First document of each source, shape (sources + 1,): source s has documents firsts[s]..firsts[s + 1] - 1."""
        return np.cumsum([0, *(take.documents for take in self.takes)], dtype=np.int64)

    @cached_property
    def _first_lists(self) -> NDArray[np.int64]:
        """First list of each source, shape (sources + 1,), where lists are counted across all sources."""
        return np.cumsum([0, *(sum(count or 0 for count in part.rows) for part in self.corpus.parts)], dtype=np.int64)

    @property
    def is_mixture(self) -> bool:
        """Whether sources are mixed; if not, every document of the one source is taken once, in its order."""
        return self.corpus.mix is not None

    def of(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return source_ids, doc_ids and copy of documents in any order: each int64, shape (documents,)."""
        numbers = documents if self.order is None else self.order[documents].astype(np.int64)
        sources = np.searchsorted(self.firsts, numbers, side="right") - 1
        ids, copies = np.empty_like(numbers), np.empty_like(numbers)
        for source in np.flatnonzero(np.bincount(sources, minlength=len(self.corpus.parts))):
            here = sources == source
            ids[here], copies[here] = self.takes[source].locate(numbers[here] - self.firsts[source])
        return sources, ids, copies

    def numbers(
        self, sources: NDArray[np.int64], ids: NDArray[np.int64], copies: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the documents with these source_ids, doc_ids and copy, and whether it has each of them.

        This reverses `of` where the documents have their own order.
        """
        assert self.order is None
        numbers, is_taken = np.zeros_like(ids), np.zeros(len(ids), np.bool_)
        for source, take in enumerate(self.takes):
            here = np.flatnonzero(sources == source)
            found, is_taken[here] = take.numbers(ids[here], copies[here])
            numbers[here] = self.firsts[source] + found
        return numbers, is_taken

    def __getitem__(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of each document, counted across all sources; used as `TokenTable.lists`."""
        sources, ids, _ = self.of(documents)
        return self.lists_of(sources, ids)

    def lists_of(self, sources: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of documents given by their sources and their numbers there: int64, of the same shape."""
        lists = self._first_lists[sources] + ids
        for source, part in enumerate(self.corpus.parts):
            if part.indices is not None:
                here = sources == source
                lists[here] = self._first_lists[source] + part.indices[ids[here]].astype(np.int64)
        return lists

    def describe_in(self, source: int, document: int) -> str:
        """Name a document of a source: "document 17 (rows.jsonl line 18)", with " of code" in a mixture."""
        where = self.corpus.parts[source].describe(document)
        return f"{where} of {self.corpus.names[source]}" if self.is_mixture else where

    def describe(self, document: int) -> str:
        """Name a document for a message, as `describe_in` does."""
        sources, ids, _ = self.of(np.array([document]))
        return self.describe_in(int(sources[0]), int(ids[0]))

    @cached_property
    def source(self) -> Source:
        """One source with the lists of all sources, each list once; a source that is not mixed is itself."""
        parts = self.corpus.parts
        if not self.is_mixture:
            return parts[0]
        has_labels = any(part.has_labels for part in parts)
        inputs = tuple(
            replace(input_, labels=input_.labels or input_.input_ids)
            if has_labels and isinstance(input_, MappedLists)
            else input_
            for input_ in self.corpus.inputs
        )
        name, starts = ", ".join(self.corpus.names), self.corpus.record_starts
        return Source(name=name, inputs=inputs, columns=parts[0].columns, record_starts=starts)

    @cached_property
    def table(self) -> TokenTable:
        """Columns of all documents of mapped sources, by address; `lengths` is empty."""
        with reading(self.source.name):
            fetch_queued()
        table = self.source.table(np.zeros(0, np.int32))
        return replace(table, lists=self) if self.is_mixture else table

    def all_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all documents in their own order, shape (documents,)."""
        if self.corpus.mix is None:
            return self.surveys[0].lengths()
        refuse_too_many(self.takes, self.corpus.names, self.corpus.mix.mix_unit, in_order=True)
        parts = [np.zeros(0, np.int32)]
        for survey, take in zip(self.surveys, self.takes, strict=True):
            whole = survey.lengths()
            parts += [whole] * take.copies
            parts.append(whole[take.is_sampled(0, len(whole))])
        return np.concatenate(parts)

    def interleaved(self, lengths: NDArray[np.int32]) -> Order | None:
        """Return an order in which every stretch of a mixture has the shares of the whole; see `interleave`.

        `lengths` are those of `all_lengths`. None for one source.
        """
        if self.corpus.mix is None:
            return None
        return interleave(kept_lengths_of(self.corpus.mix, lengths), self.firsts)

    def lists(self) -> Order | None:
        """Return the list of `source` that each document is, shape (documents,); None if document i is list i."""
        return self[np.arange(self.identity.documents)] if self.is_mixture else self.corpus.parts[0].indices

    def column(self, name: str) -> pa.ChunkedArray:
        """Return an extra column, one value per list of all sources; a SourceError if they have no common type."""
        lists = [survey.extra[name].chunks for survey in self.surveys]
        try:
            return pa.chunked_array(cast_to_common_type([chunk for chunks in lists for chunk in chunks], name))
        except DocumentError:  # the names of the sources help a user more than the document
            types = [(source, chunk.type) for source, of in zip(self.corpus.names, lists, strict=True) for chunk in of]
            one_type(", ".join(self.corpus.names), name, types)
            raise

    def __getstate__(self) -> dict[str, object]:
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "surveys": ()}
