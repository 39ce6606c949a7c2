"""Find segments without trained tokens by their labels, and leave them out of the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.column_names import NO_LOSS
from packer.errors import SourceError
from packer.gather import Spans, any_trained, gather, held_spans, mask_context
from packer.options import PackOptions
from packer.plan.segments import Segments, context_of
from packer.sources.documents import TokenTable, reading

_CHECKED_TOGETHER = 4 << 20  # labels


def without_untrained(
    segments: Segments, table: TokenTable, options: PackOptions, describe: Callable[[int], str]
) -> Segments:
    """Leave out segments without trained tokens, if `untrained` in the options says so.

    If the algorithm cuts documents wherever a row ends, segments are not known yet, so only whole documents without
    trained tokens are left out.

    Args:
        segments: segments that the long-document policy makes of the documents.
        table: documents with their labels.
        options: options of the pack.
        describe: function that names a document in messages.

    Raises:
        SourceError: `untrained` is "error" and there are such segments.
    """
    if options.untrained == "keep":
        return segments
    algorithm = get_algorithm(options.algorithm)
    if isinstance(algorithm, OrderAlgorithm) and not algorithm.keeps_whole:
        documents = np.flatnonzero(segments.tails)
        starts = segments.kept_starts(documents).astype(np.int64)
        lengths = segments.kept_lengths()[documents].astype(np.int64)
        gone = documents[~_trained(table, documents, starts, lengths, np.ones_like(lengths))]
        heads = np.flatnonzero(np.isin(segments.head_documents, gone)) + segments.documents
        numbers = np.concatenate([gone, heads])
    else:
        numbers = segments.numbers()
        documents, starts, lengths = segments.locate(numbers)
        numbers = numbers[~_trained(table, documents, starts, lengths, context_of(starts, segments.overlap))]
    if options.untrained == "error" and len(numbers):
        where = describe(int(segments.locate(numbers[:1])[0][0]) + table.first_document)
        raise SourceError(
            f"{len(numbers):,} segments have no trained token, the first of them in {where}: "
            "correct their labels, or leave them out with --untrained drop"
        )
    return segments.without(numbers) if len(numbers) else segments


def _trained(
    table: TokenTable,
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    context: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return whether each segment has a trained token after its first `context` tokens: bool, shape (segments,)."""
    trained = lengths > context
    if table.labels is None:
        return trained
    lists = documents if table.lists is None else table.lists[documents].astype(np.int64)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lists):
        before = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, before + _CHECKED_TOGETHER, side="right")))
        part = slice(first, last)
        places = ends[part] - lengths[part] - before
        labels = np.empty(int(ends[last - 1] - before), np.int32)
        spans = Spans(lists[part], starts[part], lengths[part], places)
        with reading("labels"), held_spans([table.labels], *spans[:3]):
            bad = gather(table.labels.addresses, spans, NO_LOSS, labels)
        if bad < 0:  # labels out of range are reported when their rows are written
            mask_context(places, np.minimum(context[part], lengths[part]), NO_LOSS, labels)
            any_trained(places, lengths[part], labels, trained[part])
        first = last
    return trained
