"""Compare the rows of a packed dataset with its source: every document, token and label."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.errors import PackerError
from packer.pipeline.segments.packable_segments import cut_table
from packer.pipeline.verification.recounting import SourceCounts
from packer.pipeline.verification.segment_differences import ExpectedSegments, TableDifferences
from packer.plan.segments import Segments
from packer.progress import Progress
from packer.shards.manifest import Manifest
from packer.sources.documents import TokenTable
from packer.sources.packed.packed_rows import PackedRows
from packer.sources.packed.segment_index import SegmentIndex, SortedSegments, sorted_for_now
from packer.sources.source_order import SourceOrder
from packer.stores import AnyPath

_TOGETHER = 1 << 18  # segments of the source, approximately, that are compared with those of the rows


def compare_with_source(
    folder: AnyPath,
    manifest: Manifest,
    source: SourceOrder,
    progress: Progress,
) -> Generator[str, None, bool]:
    """Yield a sentence for each difference between the rows and the source; the rows should hold all of it once.

    If the rows have no faults, the totals of the manifest are counted again. Without groups, resident memory does not
    grow with the number of documents: the segments of the rows are sorted in a temporary folder (`sorted_for_now`),
    and then read for one part of the source after the other.

    Args:
        folder: packed dataset, itself verified before.
        manifest: its manifest, or that of one of its generations, whose documents are numbered from 0 here.
        source: source that was packed; of a mixture, the documents that were taken.
        progress: callback, called as `progress("compare", done, total)`, in tokens.

    Returns:
        Whether rows and totals agree with the source.

    Raises:
        PackerError: a document of the source is wrong, a file cannot be read, or the temporary files cannot be written.
    """
    options = manifest.options
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    counts = SourceCounts(options, keeps_whole=keeps_whole)
    documents = tokens = faults = 0

    def number_documents(segments: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        return source.numbers(segments) - manifest.first.document

    rows = PackedRows.of(folder, manifest, options.kept, options.stored_keep_tokens)
    index = SegmentIndex(
        packed=folder, manifest=manifest, folder=folder, number_documents=number_documents, is_source=False
    )
    with sorted_for_now(index) as index:
        tables = source.tables()
        for table in tables:
            differences = TableDifferences(options, source, rows)
            for part in _parts(table, options.max_len):
                found = index.read(part.first_document, part.first_document + len(part.lengths))
                policy = segments = cut_table(part, options, source.describe)
                if not keeps_whole:
                    segments = policy.cut_at(*_cuts(found, part.first_document, policy))
                differences.compare(ExpectedSegments.of(segments), found, part)
                if differences.in_structure:
                    break
                counts.add(part, policy, segments, found)
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
        unexpected = len(index.read(documents, np.iinfo(np.int64).max).documents)
        if unexpected:
            yield from _other_number(manifest, source, documents, tables)
            yield f"{unexpected:,} segments in the rows are not in the source"
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


def _parts(table: TokenTable, max_len: int) -> Iterator[TokenTable]:
    """Split a table into parts of even numbers of documents that have about as many segments as are read together."""
    segments = np.cumsum(table.lengths // max_len + 1, dtype=np.int64)
    first, count = 0, len(table.lengths)
    while first < count:
        before = int(segments[first - 1]) if first else 0
        last = int(np.searchsorted(segments, before + _TOGETHER, side="right"))
        last = min(max(last - (last - first) % 2, first + 2), count)
        lists = table.lists_of(np.arange(first, last))
        yield replace(
            table, lengths=table.lengths[first:last], lists=lists, first_document=table.first_document + first
        )
        first = last


def _cuts(
    found: SortedSegments, first_document: int, segments: Segments
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (documents, starts) at which the rows cut the documents of a table, as `Segments.cut_at` takes them.

    Starts are counted from the first kept token of a document. Impossible cuts are left out: the comparison reports
    such segments.

    Args:
        found: segments that the rows have of the documents.
        first_document: number of the first document.
        segments: the documents, cut by the long-document policy.
    """
    documents = found.documents - first_document
    starts = found.starts - segments.kept_starts(documents)
    is_cut = (starts > 0) & (starts < segments.kept_lengths()[documents])
    is_cut[1:] &= (documents[1:] != documents[:-1]) | (starts[1:] != starts[:-1])
    return documents[is_cut], starts[is_cut].astype(np.int32)
