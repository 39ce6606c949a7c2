"""One pass over a source: its lengths, and the identity that says which source it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
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

    identity: dict[str, Any]
    """Files (name, bytes, rows, tokens), documents, tokens, labels, and a hash of the lengths; for the manifest.

    Where an indices mapping selects documents, a file's rows and tokens are those selected from it, and the mapping
    is hashed, too. Of text, what shapes its tokens is under "text".
    """

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
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    extra = {}
    if with_extra:
        extra = source.extra() if source.mapped else {name: _column(source, name, seen[name]) for name in seen}
    identity = source_identity(source, lengths)
    return Scan(lengths=lengths, tokens=identity["tokens"], identity=identity, extra=extra)


def source_identity(source: Source, lengths: NDArray[np.int32]) -> dict[str, Any]:
    """Return what the manifest says of a source; see `Scan.identity`.

    Args:
        source: read to its end.
        lengths: (documents,) tokens of each document.
    """
    rows, tokens = _per_file(source, lengths)
    documents, order = len(lengths), source.order
    identity: dict[str, Any] = {
        "files": [
            {"name": file.name, "bytes": file.bytes, "rows": rows[number], "tokens": tokens[number]}
            for number, file in enumerate(source.files)
        ],
        "documents": documents,
        "tokens": sum(tokens),
        "labels": source.has_labels,
        "lengths_xxh3_128": xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data),
    }
    if source.columns.extra:
        identity["columns"] = list(source.columns.extra)
    if source.tokenized is not None:
        identity["text"] = dict(source.tokenized.identity)
    if order is not None:
        # equal lengths in another order are other documents
        digest = xxhash.xxh3_128()
        for start in range(0, documents, STEP):
            digest.update(order[start : start + STEP].astype("<i8").data)
        identity["indices_xxh3_128"] = digest.hexdigest()
    return identity


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
