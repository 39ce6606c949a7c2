"""One pass over a source: its lengths, and the identity that says which source it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import FileIdentity, SourceIdentity
from packer.progress import Progress, silent
from packer.sources.column_values import alike
from packer.sources.documents import DocumentError
from packer.sources.source import STEP, Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What one pass over a source tells."""

    lengths: NDArray[np.int32]
    """(documents,) tokens in each document."""

    tokens: int
    """Their sum."""

    identity: SourceIdentity
    """The source, for the manifest."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """The other columns, a value per list; none where they were not asked for."""


def scan(source: Source, progress: Progress = silent, *, with_extra: bool = False) -> Scan:
    """Take the length of every document in one pass; beyond the tables, 4 bytes a document are resident.

    Args:
        source: what is read.
        progress: told of "lengths", "decode" or "tokenize", in bytes of the files.
        with_extra: keep the other columns, too; what is not mapped is resident.

    Raises:
        SourceError: the source holds no document, or a document or file is wrong; or a column is not of one type.
    """
    mapped = [given.rows or 0 for given in source.inputs if given.mapped]  # a footer may claim any number of rows
    expected = sum(mapped) if source.indices is None else len(source.indices)
    lengths = np.empty(expected, np.int32)
    documents = 0
    seen: defaultdict[str, list[pa.Array]] = defaultdict(list)
    for table in source.tables(progress):
        end = documents + len(table.lengths)
        if end > len(lengths):  # what is decoded has not been counted; realloc moves pages, not bytes
            lengths.resize(end + end // 8, refcheck=False)
        lengths[documents:end] = table.lengths
        if with_extra and not source.mapped:
            for name, column in table.extra.items():
                seen[name] += column.chunks
        documents = end
    lengths.resize(documents, refcheck=False)
    if not documents:
        raise empty_source(source)
    extra = {}
    if with_extra:
        extra = source.extra() if source.mapped else {name: _column(source, name, seen[name]) for name in seen}
    identity = source_identity(source, lengths)
    return Scan(lengths=lengths, tokens=identity.tokens, identity=identity, extra=extra)


def source_identity(source: Source, lengths: NDArray[np.int32]) -> SourceIdentity:
    """Return what the manifest says of a source.

    Args:
        source: read to its end.
        lengths: (documents,) tokens of each document.
    """
    digest = xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data)
    return _identity(source, *_per_file(source, lengths), digest)


def identify(source: Source, progress: Progress = silent) -> SourceIdentity:
    """Return what the manifest says of a source, after a pass in which no length is held if it is in its own order.

    Args:
        source: what is read.
        progress: called with "lengths", "decode" or "tokenize", in bytes of the files.

    Raises:
        SourceError: the source holds no document, or a document or file is wrong.
    """
    if source.order is not None:
        return scan(source, progress).identity
    seen = IdentityCounter(source)
    for table in source.tables(progress):
        seen.add(table.lengths)
    if not seen.documents:
        raise empty_source(source)
    return seen.identity()


class IdentityCounter:
    """Collects the identity of a source while its tables are read; lengths are held only if it has another order.

    Args:
        source: read to its end before the identity is asked for.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._digest = xxhash.xxh3_128()
        self._ends, self._tokens = [0], [0]  # up to the end of each table; none crosses the end of a file
        self._held: list[NDArray[np.int32]] = []

    @property
    def documents(self) -> int:
        """Documents that have been added."""
        return self._ends[-1]

    def add(self, lengths: NDArray[np.int32]) -> None:
        """Add the lengths of the documents of the next table."""
        self._digest.update(lengths.astype("<i4", copy=False).data)
        self._ends.append(self._ends[-1] + len(lengths))
        self._tokens.append(self._tokens[-1] + int(lengths.sum(dtype=np.int64)))
        if self._source.order is not None:
            self._held.append(lengths)

    def identity(self) -> SourceIdentity:
        """Return what the manifest says of the source."""
        if self._source.order is not None:
            return source_identity(self._source, np.concatenate([np.empty(0, np.int32), *self._held]))
        rows = [count or 0 for count in self._source.rows]
        at_end = np.searchsorted(self._ends, np.cumsum(rows, dtype=np.int64), side="right") - 1
        tokens = np.diff(np.array(self._tokens)[at_end], prepend=0).tolist()
        return _identity(self._source, rows, tokens, self._digest.hexdigest())


def empty_source(source: Source) -> SourceError:
    """The error for a source without documents."""
    return SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")


def _identity(source: Source, rows: list[int], tokens: list[int], digest: str) -> SourceIdentity:
    """What the manifest says of a source with these documents and tokens in each file, and this hash of its lengths."""
    documents, order, order_digest = sum(rows), source.order, None
    if order is not None:  # equal lengths in another order are other documents
        hashed = xxhash.xxh3_128()
        for start in range(0, documents, STEP):
            hashed.update(order[start : start + STEP].astype("<i8").data)
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
        SourceError: no type holds all values; with the first document that does not fit.
    """
    try:
        return pa.chunked_array(alike([chunk for chunk in chunks if len(chunk)], name))
    except DocumentError as fault:
        raise SourceError(f"{source.describe(fault.row)}: {fault.message}") from None


def _per_file(source: Source, lengths: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Documents and tokens that come from each file."""
    ends, order = np.cumsum([rows or 0 for rows in source.rows], dtype=np.int64), source.order
    if order is None:
        starts = [0, *ends[:-1].tolist()]
        parts = [lengths[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
        return [len(part) for part in parts], [int(part.sum(dtype=np.int64)) for part in parts]
    rows, tokens = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for start in range(0, len(lengths), STEP):
        files = np.searchsorted(ends, order[start : start + STEP].astype(np.int64), side="right")
        rows += np.bincount(files, minlength=len(ends))
        np.add.at(tokens, files, lengths[start : start + STEP])
    return rows.tolist(), tokens.tolist()
