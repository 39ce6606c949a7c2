"""Surveys: one pass over a source that checks every document and collects lengths and the identity of the source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import FileIdentity, SourceIdentity
from packer.gather import lengths_of
from packer.progress import Progress, silent
from packer.sources.columns.column_types import cast_to_common_type
from packer.sources.documents import DocumentError, TokenTable

if TYPE_CHECKING:
    from packer.sources.source import Source

_TOGETHER = 1 << 18  # documents whose lengths are looked up at once

LengthsOf = Callable[[NDArray[np.int64]], NDArray[np.int32]]
"""Function that returns the tokens of each of some documents of a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSurvey:
    """Result of one pass over a source."""

    source: Source
    """The source that was read."""

    identity: SourceIdentity
    """Identity of the source, for the manifest."""

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


def survey_source(
    source: Source,
    progress: Progress = silent,
    *,
    with_extra: bool = False,
    on_table: Callable[[TokenTable], None] = lambda table: None,
) -> SourceSurvey:
    """Check every document of a source in one pass.

    Nothing is held per document of a mapped source, unless its documents are not in the order of its files. Lengths of
    a source that must be decoded are held.

    Args:
        source: the source to read.
        progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.
        with_extra: keep the extra columns; those of a source that must be decoded are held in memory.
        on_table: callback, called with every table, in order.

    Raises:
        SourceError: the source has no documents, a document or file is invalid, or no type holds all values of an extra
            column.
    """
    seen = IdentityCounter(source)
    held: list[NDArray[np.int32]] = []
    columns: defaultdict[str, list[pa.Array]] = defaultdict(list)
    for table in source.tables(progress):
        seen.add(table.lengths)
        on_table(table)
        if source.mapped:
            continue
        held.append(table.lengths)
        if with_extra:
            for name, column in table.extra.items():
                columns[name] += column.chunks
    if not seen.documents:
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    extra = {}
    if with_extra:
        extra = source.extra() if source.mapped else {name: _column(source, name, columns[name]) for name in columns}
    look_up = _mapped_lengths(source) if source.mapped else np.concatenate(held).__getitem__
    return SourceSurvey(source=source, identity=seen.identity(), lengths_of=look_up, extra=extra)


def _mapped_lengths(source: Source) -> LengthsOf:
    """Return a function that looks up lengths in the lists of a mapped source."""
    table = source.table(np.zeros(0, np.int32))

    def look_up(documents: NDArray[np.int64]) -> NDArray[np.int32]:
        lengths = np.empty(len(documents), np.int32)
        lengths_of(table.input_ids.addresses, table.lists_of(documents), lengths)
        return lengths

    return look_up


def source_identity(source: Source, lengths: NDArray[np.int32]) -> SourceIdentity:
    """Return the identity of a source.

    Args:
        source: the source, read to its end.
        lengths: (documents,) tokens of each document.
    """
    digest = xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data)
    return _identity(source, *_per_file(source, lengths), digest)


class IdentityCounter:
    """Collects the identity of a source while its tables are read.

    Lengths are held only if the documents are not in the order of the files.

    Args:
        source: the source, which must be read to its end before `identity` is called.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
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
        if self._source.order is not None:
            self._held.append(lengths)

    def identity(self) -> SourceIdentity:
        """Return the identity of the source."""
        if self._source.order is not None:
            return source_identity(self._source, np.concatenate([np.empty(0, np.int32), *self._held]))
        rows = [count or 0 for count in self._source.rows]
        at_end = np.searchsorted(self._ends, np.cumsum(rows, dtype=np.int64), side="right") - 1
        tokens = np.diff(np.array(self._tokens)[at_end], prepend=0).tolist()
        return _identity(self._source, rows, tokens, self._digest.hexdigest())


def _identity(source: Source, rows: list[int], tokens: list[int], digest: str) -> SourceIdentity:
    """Return the identity of a source with these documents and tokens per file, and this hash of its lengths."""
    documents, order, order_digest = sum(rows), source.order, None
    if order is not None:  # equal lengths in another order are other documents
        hashed = xxhash.xxh3_128()
        for start in range(0, documents, _TOGETHER):
            hashed.update(order[start : start + _TOGETHER].astype("<i8").data)
        order_digest = hashed.hexdigest()
    return SourceIdentity(
        files=tuple(
            FileIdentity(name=file.name, bytes=file.bytes, rows=rows[number], tokens=tokens[number])
            for number, file in enumerate(source.files)
        ),
        documents=documents,
        tokens=sum(tokens),
        labels=source.has_labels,
        lengths_xxh3_128=digest,
        columns=tuple(source.columns.extra),
        text=None if source.tokenized is None else source.tokenized.identity,
        indices_xxh3_128=order_digest,
    )


def _column(source: Source, name: str, chunks: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Join the chunks of a column that was read as a stream.

    Raises:
        SourceError: no type holds all values; the message names the first document that does not fit.
    """
    try:
        return pa.chunked_array(cast_to_common_type([chunk for chunk in chunks if len(chunk)], name))
    except DocumentError as fault:
        raise SourceError(f"{source.describe(fault.row)}: {fault.message}") from None


def _per_file(source: Source, lengths: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Return the documents and the tokens of each file."""
    ends, order = np.cumsum([rows or 0 for rows in source.rows], dtype=np.int64), source.order
    if order is None:
        starts = [0, *ends[:-1].tolist()]
        parts = [lengths[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
        return [len(part) for part in parts], [int(part.sum(dtype=np.int64)) for part in parts]
    rows, tokens = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for start in range(0, len(lengths), _TOGETHER):
        files = np.searchsorted(ends, order[start : start + _TOGETHER].astype(np.int64), side="right")
        rows += np.bincount(files, minlength=len(ends))
        np.add.at(tokens, files, lengths[start : start + _TOGETHER])
    return rows.tolist(), tokens.tolist()
