"""Check the documents that an input yields, and make tables of them; errors name the first invalid document."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.gather import TokenColumn
from packer.sources.columns.value_column import ValueColumn
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.documents import Batch, Columns, DocumentError, Input, TokenTable, reading_input
from packer.sources.lengths import document_error, document_lengths


def checked(
    input_: Input, columns: Columns, pool: DecodePool | None = None
) -> Iterator[tuple[Batch, NDArray[np.int32]]]:
    """Yield the batches of an input, each with the lengths of its documents, shape (documents,).

    Raises:
        DocumentError: a document is invalid. The error has its place, and the documents before it have been yielded.
        SourceError: the file is truncated or corrupt.
    """
    row = 0
    batches = input_.batches(pool)
    try:
        while True:
            with reading_input(input_):
                batch = next(batches, None)
                if batch is None:
                    return
                lengths = document_lengths(batch.input_ids, batch.labels, batch.per_token(columns))
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                good = int(wrong[0])
                if good:
                    yield batch.head(good), lengths[:good]
                fault = document_error(batch, good, int(lengths[good]), columns)
                raise fault.at(row + good)
            yield batch, lengths
            row += len(lengths)
    except DocumentError as fault:
        fault.place = fault.place or input_.place(fault.row)
        raise


def table_of(batch: Batch, lengths: NDArray[np.int32], first_document: int) -> TokenTable:
    """Return checked documents as a table.

    Args:
        batch: the documents.
        lengths: (documents,) tokens of each.
        first_document: index of the first one in the source.
    """
    return TokenTable(
        input_ids=TokenColumn.from_arrow(batch.input_ids),
        labels=TokenColumn.from_arrow(batch.labels) if batch.labels is not None else None,
        lengths=lengths,
        lists=None,
        extra={name: ValueColumn.of_chunks(name, chunks) for name, chunks in batch.extra.items()}
        if batch.input_ids
        else {},
        first_document=first_document,
    )
