"""Compare the rows of a packed dataset with its source: every document, token and label."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.errors import PackerError
from packer.pipeline.apply_options import cut_lengths_of
from packer.pipeline.segments.segment_reader import lists_of
from packer.pipeline.segments.turns import split_at_turns
from packer.pipeline.segments.untrained import without_untrained
from packer.pipeline.verification.packed_segments import PackedSegments, read_segments
from packer.pipeline.verification.recounting import SourceCounts
from packer.pipeline.verification.segment_differences import ExpectedSegments, TableDifferences
from packer.plan.segments import Segments
from packer.progress import Progress
from packer.shards.manifest import Manifest
from packer.sources.documents import TokenTable
from packer.sources.open_documents import SourceOrder
from packer.stores import AnyPath

_CUT_TOGETHER = 1 << 17  # documents; even, so that pairs are not separated


def compare_with_source(
    folder: AnyPath,
    manifest: Manifest,
    source: SourceOrder,
    progress: Progress,
) -> Generator[str, None, bool]:
    """Yield a sentence for each difference between the rows and the source; the rows should hold all of it once.

    If the rows have no faults, the totals of the manifest are counted again. Without groups, resident memory does not
    grow with the number of documents: segments are read in buckets of about half a million, from a temporary file if
    there are several (`read_segments`).

    Args:
        folder: packed dataset, itself verified before.
        manifest: its manifest.
        source: source that was packed; of a mixture, the documents that were taken.
        progress: callback, called as `progress("compare", done, total)`, in tokens.

    Returns:
        Whether rows and totals agree with the source.

    Raises:
        PackerError: a document of the source is wrong, a file cannot be read, or the temporary file cannot be written.
    """
    options = manifest.options
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    counts = SourceCounts(options, keeps_whole=keeps_whole)
    seen = documents = tokens = faults = 0
    with read_segments(folder, manifest, source) as buckets:
        tables = source.tables()
        for table in tables:
            differences = TableDifferences(options, source)
            for bucket, part in _parts(table, buckets.borders):
                packed = buckets.at(bucket)
                first = seen - buckets.passed  # below 0 if earlier buckets have more segments than the source
                policy = cut_lengths_of(options, part.lengths, first_document=part.first_document)
                policy = split_at_turns(policy, part, options, source.describe)
                policy = segments = without_untrained(policy, part, options, source.describe)
                if not keeps_whole:
                    segments = policy.cut_at(*_cuts(packed, max(first, 0), part.first_document, policy))
                expected = ExpectedSegments.of(segments)
                differences.compare(expected, packed, first, part)
                if differences.in_documents:  # all later segments are out of place
                    break
                counts.add(part, policy, segments, packed, slice(first, first + len(expected)))
                seen += len(expected)
            documents += len(table.lengths)
            if differences.in_structure:
                yield from _other_number(manifest, source, documents, tables)
            for fault in differences.faults():
                faults += 1
                yield fault
            if differences.in_structure:
                return False
            tokens += int(table.lengths.sum(dtype=np.int64))
            progress("compare", tokens, manifest.totals.tokens)
        if seen != buckets.count:
            yield from _other_number(manifest, source, documents, tables)
            yield f"{buckets.count - seen:,} segments in the rows are not in the source"
            return False
    if not faults:
        for fault in counts.faults(manifest, source.rejected(), source.describe):
            faults += 1
            yield fault
    return not faults


def _other_number(manifest: Manifest, source: SourceOrder, done: int, rest: Iterator[TokenTable]) -> Iterator[str]:
    """Yield a sentence if a source does not have as many documents as were packed: it may be another source.

    Args:
        manifest: manifest of the dataset.
        source: the source.
        done: documents that have been read.
        rest: tables that follow, read only to count them; an error in them must not hide a difference that was found.
    """
    found, packed = source.documents, manifest.totals.documents
    with suppress(PackerError):
        found = done + sum(len(table.lengths) for table in rest) if found is None else found
        if found != packed:
            yield f"the source has {found:,} documents, the manifest says {packed:,}"


def _parts(table: TokenTable, borders: NDArray[np.int64]) -> Iterator[tuple[int, TokenTable]]:
    """Split a table so that each part belongs to one bucket; yield (bucket, part).

    Args:
        table: documents; an empty table is one part.
        borders: (buckets - 1,) first document of every bucket but the first.
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
    """Return (documents, starts) at which the rows cut the documents of a table, as `Segments.cut_at` takes them.

    Starts are counted from the first kept token of a document. Impossible cuts are left out: the comparison reports
    such segments.

    Args:
        packed: segments of the rows.
        seen: number in `packed` of the first segment of the table.
        first_document: number of the first document of the table.
        segments: the documents of the table, cut by the long-document policy.
    """
    end = np.searchsorted(packed.documents, first_document + segments.documents)
    documents = packed.documents[seen:end] - first_document
    starts = packed.starts[seen:end] - segments.kept_starts(documents)
    is_cut = (documents >= 0) & (starts > 0) & (starts < segments.kept_lengths(0, segments.documents)[documents])
    is_cut[1:] &= (documents[1:] != documents[:-1]) | (starts[1:] != starts[:-1])
    return documents[is_cut], starts[is_cut]
