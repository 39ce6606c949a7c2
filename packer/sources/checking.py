"""Check what an input yields: every document has a length, or the first that has none is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.sources.crew import Crew
from packer.sources.documents import Batch, Columns, DocumentError, Input, document_lengths, fault_message, reading


def checked(given: Input, columns: Columns, crew: Crew | None = None) -> Iterator[tuple[Batch, NDArray[np.int32]]]:
    """Yield the batches of an input with the lengths of their documents, shape (documents,).

    Raises:
        DocumentError: a document is wrong; with its place. Those before it have been yielded.
        SourceError: the file is truncated or corrupt.
    """
    row = 0
    batches = given.batches(crew)
    try:
        while True:
            with reading(given.file.name):
                batch = next(batches, None)
                if batch is None:
                    return
                lengths = document_lengths(batch.input_ids, batch.labels)
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                good = int(wrong[0])
                if good:
                    yield _head(batch, good), lengths[:good]
                fault = document_error(batch, good, int(lengths[good]), columns)
                raise DocumentError(row + good, fault.message)
            yield batch, lengths
            row += len(lengths)
    except DocumentError as fault:
        fault.place = fault.place or given.place(fault.row)
        raise


def document_error(batch: Batch, row: int, mark: int, columns: Columns) -> DocumentError:
    """Say what is wrong with a row of a batch, given what stands in place of its length."""
    at = row
    for tokens, labels in zip(batch.input_ids, batch.labels or [None] * len(batch.input_ids), strict=True):
        if at < len(tokens):
            message = fault_message(mark, columns, tokens[at], labels[at] if labels is not None else None)
            return DocumentError(row, message)
        at -= len(tokens)
    raise AssertionError(row)


def _head(batch: Batch, rows: int) -> Batch:
    """Return the first rows of a batch."""
    before = np.cumsum([0, *map(len, batch.input_ids)])
    kept = [max(min(len(chunk), rows - int(start)), 0) for chunk, start in zip(batch.input_ids, before, strict=False)]

    def cut(chunks: list[pa.Array]) -> list[pa.Array]:
        return [chunk.slice(0, count) for chunk, count in zip(chunks, kept, strict=True) if count]

    return Batch(cut(batch.input_ids), None if batch.labels is None else cut(batch.labels), batch.done)
