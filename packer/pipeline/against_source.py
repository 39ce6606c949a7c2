"""Compare the rows of a packed dataset with its source: every document, every token, every label, by content."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.pipeline.apply_options import cut_lengths_of
from packer.pipeline.packed_segments import PackedSegments, read_segments
from packer.pipeline.recounting import SourceCounts
from packer.pipeline.segment_differences import ExpectedSegments, TableDifferences
from packer.pipeline.segment_reader import lists_of
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import Segments
from packer.progress import Progress
from packer.shards.manifest import Manifest
from packer.sources import SourceOrder, TokenTable

_CUT_TOGETHER = 1 << 17  # documents; even, so that pairs are not separated


def compare_with_source(
    folder: Path,
    manifest: Manifest,
    source: SourceOrder,
    progress: Progress,
) -> Generator[str, None, bool]:
    """Yield in what the rows differ from the source, a sentence each; nothing where they hold all of it, once.

    Where they do, the totals of the manifest are counted again. Resident memory does not grow with the documents, but
    for groups: the segments of the rows are read in buckets of about half a million, from a temporary file
    where there are more (`read_segments`).

    Args:
        folder: the packed dataset, whose shards are as the manifest says.
        manifest: of it.
        source: what was packed; of a mixture, what was taken of it.
        progress: told of "compare" in tokens.

    Returns:
        Whether the rows and the totals are those of the source.

    Raises:
        PackerError: a document of the source is wrong, a file cannot be read, or the temporary file not be written.
    """
    options = manifest.options
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    counts = SourceCounts(options, keeps_whole=keeps_whole)
    seen = tokens = faults = 0
    with read_segments(folder, manifest, source) as buckets:
        for table in source.tables():
            differences = TableDifferences(options, source)
            for bucket, part in _parts(table, buckets.borders):
                packed = buckets.at(bucket)
                first = seen - buckets.passed  # below 0 where the buckets before have more than the source
                policy = cut_lengths_of(options, part.lengths, first_document=part.first_document)
                policy = split_at_turns(policy, part, options, source.describe)
                policy = segments = without_untrained(policy, part, options, source.describe)
                if not keeps_whole:
                    segments = policy.cut_at(*_cuts(packed, max(first, 0), part.first_document, policy))
                expected = ExpectedSegments.of(segments)
                differences.compare(expected, packed, first, part)
                if differences.in_documents:  # from here on, nothing stands where it should
                    break
                counts.add(part, policy, segments, packed, slice(first, first + len(expected)))
                seen += len(expected)
            for fault in differences.faults():
                faults += 1
                yield fault
            if differences.in_structure:
                return False
            tokens += int(table.lengths.sum(dtype=np.int64))
            progress("compare", tokens, manifest.totals.tokens)
        if seen != buckets.count:
            yield f"{buckets.count - seen:,} segments in the rows are not in the source"
            return False
    if not faults:
        for fault in counts.faults(manifest, source.describe):
            faults += 1
            yield fault
    return not faults


def _parts(table: TokenTable, borders: NDArray[np.int64]) -> Iterator[tuple[int, TokenTable]]:
    """Cut a table into parts that belong to one bucket each: (bucket, part).

    Args:
        table: some documents; if there are none, it is one part.
        borders: (buckets - 1,) the first document of every bucket but the first.
    """
    first, count = 0, len(table.lengths)
    while True:
        bucket = int(np.searchsorted(borders, table.first_document + first, side="right"))
        last = min(count, first + _CUT_TOGETHER)
        if bucket < len(borders):
            last = min(last, int(borders[bucket]) - table.first_document)
        if last - first == count:
            yield bucket, table
        else:
            yield (
                bucket,
                replace(
                    table,
                    lengths=table.lengths[first:last],
                    lists=lists_of(table, np.arange(first, last)),
                    first_document=table.first_document + first,
                ),
            )
        if last == count:
            return
        first = last


def _cuts(
    packed: PackedSegments, seen: int, first_document: int, segments: Segments
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the documents of a table, whose segments begin at number `seen`, are cut in the rows: (documents, starts).

    Starts are counted from the first token that is kept of a document, as `Segments.cut_at` takes them. Only what can
    be a cut is returned: whatever else the rows hold will not be found as the source has it.
    """
    end = np.searchsorted(packed.documents, first_document + segments.documents)
    documents = packed.documents[seen:end] - first_document
    starts = packed.starts[seen:end] - segments.kept_starts(documents)
    is_cut = (documents >= 0) & (starts > 0) & (starts < segments.kept_lengths(0, segments.documents)[documents])
    is_cut[1:] &= (documents[1:] != documents[:-1]) | (starts[1:] != starts[:-1])
    return documents[is_cut], starts[is_cut]
