"""Check what an input yields: every document has a length, or the first that has none is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.sources.decode_pool import DecodePool
from packer.sources.documents import Batch, Columns, DocumentError, Input, reading
from packer.sources.lengths import document_lengths, fault_of_row


def checked(
    given: Input, columns: Columns, pool: DecodePool | None = None
) -> Iterator[tuple[Batch, NDArray[np.int32]]]:
    """Yield the batches of an input with the lengths of their documents, shape (documents,).

    Raises:
        DocumentError: a document is wrong; with its place. Those before it have been yielded.
        SourceError: the file is truncated or corrupt.
    """
    row = 0
    batches = given.batches(pool)
    try:
        while True:
            with reading(given.file.name):
                batch = next(batches, None)
                if batch is None:
                    return
                lengths = document_lengths(batch.input_ids, batch.labels, batch.per_token(columns))
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                good = int(wrong[0])
                if good:
                    yield batch.head(good), lengths[:good]
                fault = fault_of_row(batch, good, int(lengths[good]), columns)
                raise DocumentError(row + good, fault.message)
            yield batch, lengths
            row += len(lengths)
    except DocumentError as fault:
        fault.place = fault.place or given.place(fault.row)
        raise
