"""Check the documents that an input yields; the error for the first invalid one names its location."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.sources.decode_pool import DecodePool
from packer.sources.documents import Batch, Columns, DocumentError, Input, reading
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
            with reading(input_.file.name):
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
