"""Survey the documents chunk by chunk: counts, the histogram of extents, and blocks of documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.facts import Account
from packer.options import PackOptions
from packer.pipeline.segments.packable_segments import account_of, require_segments
from packer.pipeline.segments.segment_reader import SegmentReader, chunks, read_chunk
from packer.plan.cutting import items_of
from packer.plan.partitions import BLOCK_PLACE, BLOCKS_PER_PARTITION, BlockMarker, Blocks
from packer.plan.threads import each_in_threads


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Counts of all documents, with nothing for each of them."""

    account: Account
    """Counts of documents and tokens by what becomes of them."""

    segments: int
    """Number of segments, which are all placed in rows."""

    histogram: NDArray[np.int64]
    """(max_len + 1,) items, segments or pairs of segments, of every extent."""

    blocks: Blocks
    """Runs of consecutive documents that take about the same number of places in rows."""


class _Chunk(NamedTuple):
    """Counts of a chunk of documents."""

    account: Account
    """Counts of documents and tokens by what becomes of them."""

    segments: int
    """Number of segments."""

    histogram: NDArray[np.int64]
    """(max_len + 1,) items of every extent."""

    places: NDArray[np.int64]
    """(items,) tokens that each document, or pair, takes in rows; 0 for those without a segment."""


def _survey_chunk(reader: SegmentReader, options: PackOptions, first: int) -> _Chunk:
    """Survey the chunk that begins with document `first`."""
    segments = read_chunk(reader, first)
    items = items_of(segments, pairs=options.pairs)
    account = account_of(segments, options)
    return _Chunk(account, int(segments.histogram.sum()), items.histogram, items.places_of_documents())


def survey(reader: SegmentReader, options: PackOptions, *, rows_per_shard: int, threads: int = 1) -> Survey:
    """Survey all documents.

    Args:
        reader: reader of the documents.
        options: options of the pack.
        rows_per_shard: largest number of rows of a shard; a block takes a fraction of a shard.
        threads: number of chunks surveyed at a time; the survey does not depend on it.

    Raises:
        SourceError: there is nothing to pack; or as `reader.segments`.
    """
    target = max(1, min(BLOCK_PLACE, rows_per_shard * options.max_len // BLOCKS_PER_PARTITION))
    marker = BlockMarker(target)
    histogram = np.zeros(options.max_len + 1, np.int64)
    account, segments = None, 0
    for chunk in each_in_threads(partial(_survey_chunk, reader, options), chunks(reader), threads):
        account = chunk.account if account is None else account + chunk.account
        segments += chunk.segments
        histogram += chunk.histogram
        marker.add(chunk.places, documents_each=2 if options.pairs else 1)
    account = require_segments(account, segments, options)
    return Survey(account=account, segments=segments, histogram=histogram, blocks=marker.finish())
