"""A survey of what is to be packed, chunk by chunk: counts, the histogram of extents, and blocks of documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options import PackOptions
from packer.pipeline.planning import account_of, nothing_to_pack
from packer.pipeline.reading import SegmentReader
from packer.plan import Account, items_of
from packer.plan.partitions import BLOCK_PLACE, BLOCKS_PER_PARTITION, BlockMarker, Blocks
from packer.plan.threads import each_in_threads

CHUNK = 1 << 19
"""Documents looked at together; even, so that pairs are not separated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is to be packed, without an entry per document."""

    account: Account
    """What becomes of every document and token."""

    segments: int
    """Segments that are placed in rows."""

    histogram: NDArray[np.int64]
    """(max_len + 1,) items of every extent: segments, or pairs of them."""

    blocks: Blocks
    """The documents in runs of about equal place."""


def survey(reader: SegmentReader, options: PackOptions, *, rows_per_shard: int, threads: int = 1) -> Survey:
    """Look through all documents once.

    Args:
        reader: cuts them.
        options: what is counted, and for pairs.
        rows_per_shard: the most rows of a shard; blocks are a fraction of it.
        threads: chunks looked at at a time; the survey is the same for any number.

    Raises:
        SourceError: there is nothing to pack; or as `reader.segments`.
    """
    target = max(1, min(BLOCK_PLACE, rows_per_shard * options.max_len // BLOCKS_PER_PARTITION))
    marker = BlockMarker(target)
    histogram = np.zeros(options.max_len + 1, np.int64)

    def look(first: int) -> tuple[Account, int, NDArray[np.int64], NDArray[np.int64]]:
        segments = reader.segments(np.array([[first, min(first + CHUNK, reader.documents)]]))
        items = items_of(segments) if options.pairs else segments
        return (
            account_of(segments, options),
            int(segments.histogram.sum()),
            items.histogram,
            items.places_of_documents(),
        )

    account, count = None, 0
    for one, segments, counted, places in each_in_threads(look, range(0, reader.documents, CHUNK), threads):
        account = one if account is None else account + one
        count += segments
        histogram += counted
        marker.add(places, documents_each=2 if options.pairs else 1)
    if account is None:
        raise SourceError("nothing to pack: there is no document")
    if not count:
        raise nothing_to_pack(account, options)
    return Survey(account=account, segments=count, histogram=histogram, blocks=marker.finish())
