"""Compare the rows of a packed dataset with its source: every document, every token, every label, by content."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.gather import NO_LOSS, TokenColumn, gather, mask_context
from packer.options import PackOptions
from packer.pipeline.packed_segments import PackedSegments, read_segments
from packer.pipeline.recounting import SourceCounts
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import Segments
from packer.progress import Progress
from packer.shards.kept import KeptValues, same_values, tokens_at
from packer.shards.manifest import Manifest
from packer.sources import Source, TokenTable
from packer.sources.column_types import cast, join
from packer.sources.taken import TakenInOrder

_COMPARED_TOGETHER = 4 << 20  # tokens


def compare_with_source(
    folder: Path, manifest: Manifest, source: Source | TakenInOrder, progress: Progress
) -> Generator[str, None, NDArray[np.int32] | None]:
    """Yield in what the rows differ from the source, a sentence each; nothing where they hold all of it, once.

    Where they do, the totals of the manifest are counted again.

    Args:
        folder: the packed dataset, whose shards are as the manifest says.
        manifest: of it.
        source: what was packed; of a mixture, what was taken of it.
        progress: told of "compare" in tokens.

    Returns:
        Tokens of every document, int32, shape (documents,); None where the rows differ.

    Raises:
        PackerError: a document of the source is wrong, or a file cannot be read.
    """
    packed = read_segments(folder, manifest, source)
    options = PackOptions.from_dict(manifest.options)
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    counts = SourceCounts(options, keeps_whole=keeps_whole)
    seen = tokens = faults = 0
    for table in source.tables():
        policy = split_at_turns(options.cut(table.lengths), table, options, source.describe)
        policy = segments = without_untrained(policy, table, options, source.describe)
        if not keeps_whole:
            segments = policy.cut_at(*_cuts(packed, seen, table.first_document, policy))
        local, starts, lengths = segments.locate(segments.numbers())
        order = np.lexsort((starts, local))
        local, starts, lengths = local[order], starts[order], lengths[order]
        here = slice(seen, seen + len(local))
        expected: tuple[NDArray[Any], ...] = (local + table.first_document, starts, lengths)
        found: tuple[NDArray[Any], ...] = (packed.documents[here], packed.starts[here], packed.lengths[here])
        for one, other in zip(expected, found, strict=True):
            short = min(len(one), len(other))
            differ = np.flatnonzero(one[:short] != other[:short])
            if len(differ) or len(one) != len(other):
                at = int(differ[0]) if len(differ) else short
                which = source.describe(int(expected[0][min(at, len(local) - 1)]))
                yield f"{which} is not in the rows as the source has it: missing, doubled or cut elsewhere"
                return None
        cut = local, starts, lengths, segments.context_of(starts)
        for fault in _compare_values(packed, manifest.max_len, here, table, cut, source):
            faults += 1
            yield fault
        counts.add(table, policy, segments)
        seen += len(local)
        tokens += int(table.lengths.sum(dtype=np.int64))
        progress("compare", tokens, manifest.totals["tokens"])
    if seen != len(packed.documents):
        yield f"{len(packed.documents) - seen:,} segments in the rows are not in the source"
        return None
    if not faults:
        for fault in counts.faults(manifest, packed, source.describe):
            faults += 1
            yield fault
    return None if faults else counts.lengths


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


def _compare_values(
    packed: PackedSegments,
    max_len: int,
    here: slice,
    table: TokenTable,
    cut: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    source: Source | TakenInOrder,
) -> Iterator[str]:
    """Compare the values of a table's segments with those in the rows, a few million at a time."""
    local, starts, lengths, context = cut
    lists = _lists(table, local)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(local):
        before = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, before + _COMPARED_TOGETHER, side="right")))
        part = slice(first, last)
        places = ends[part] - lengths[part] - before
        size = int(ends[last - 1] - before)
        from_source = (lists[part], starts[part], lengths[part], places)
        rows = slice(here.start + first, here.start + last)
        from_rows = (*np.divmod(packed.places[rows], max_len), lengths[part], places)
        yield from _compare_kept(packed, table, from_source, from_rows, rows, source)
        for name, column in packed.columns.items():
            origin = table.labels if name == "labels" and table.labels is not None else table.input_ids
            expected, found = np.empty(size, np.int32), np.empty(size, np.int32)
            allowed = NO_LOSS if name == "labels" else 0
            bad = gather(origin.addresses, *from_source, allowed, expected)
            if bad >= 0:
                which = source.describe(table.first_document + int(local[first + bad]))
                yield f"{which}: {name} of the source is out of range"
                return
            gather(column.addresses, *from_rows, NO_LOSS, found)
            if name == "labels":
                mask_context(places, context[part], NO_LOSS, expected)
            differ = np.flatnonzero(expected != found)
            if len(differ):
                segment = int(np.searchsorted(places, differ[0], side="right")) - 1
                position = int(starts[first + segment] + differ[0] - places[segment])
                which = source.describe(table.first_document + int(local[first + segment]))
                yield (
                    f"{which}: {name} at position {position} is {expected[differ[0]]} in the source, "
                    f"{found[differ[0]]} in row {packed.places[here.start + first + segment] // max_len}"
                )
                return
        first = last


def _lists(table: TokenTable, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The list of the table's columns that each of these documents of it is."""
    return documents if table.rows is None else table.rows[documents].astype(np.int64)


def _compare_kept(
    packed: PackedSegments,
    table: TokenTable,
    from_source: tuple[NDArray[np.int64], ...],
    from_rows: tuple[NDArray[np.int64], ...],
    segments: slice,
    source: Source | TakenInOrder,
) -> Iterator[str]:
    """Compare the kept columns of some segments; `from_source` and `from_rows` are (lists, starts, lengths, places)."""
    lists, _, lengths, places = from_source
    size = int(lengths.sum())
    pairs = {}
    for name, (column, value_type) in packed.kept_tokens.items():
        origin, origin_type = TokenColumn.from_arrow(table.extra[name].chunks), table.extra[name].type.value_type
        expected = tokens_at(origin, origin_type, size, *from_source)
        pairs[name] = expected, tokens_at(column, value_type, size, *from_rows)
    for name, values in packed.kept.items():
        expected = KeptValues.of({name: table.extra[name]}, lists).column(name, lists, np.zeros(len(lists), bool))
        pairs[name] = expected, values[segments.start : segments.stop]
    for name, (expected, found) in pairs.items():
        at = _difference(expected, found)
        if at is not None:
            segment = int(np.searchsorted(places, at, side="right")) - 1 if name in packed.kept_tokens else at
            which = source.describe(int(packed.documents[segments.start + segment]))
            yield f"{which}: {name} is {expected[at].as_py()!r} in the source, {found[at].as_py()!r} in the rows"


def _difference(expected: pa.Array, found: pa.Array) -> int | None:
    """The first position at which the values of two arrays differ, or None; 1 and 1.0 are the same value.

    The source is read a part at a time: the values of a part may have a narrower type than those of the whole.
    """
    kind = join(expected.type, found.type)
    if kind is not None:
        try:
            return same_values(cast(expected, kind), cast(found, kind))
        except pa.ArrowInvalid:  # the type does not hold some value of one of them: find it
            if len(expected) == 1:
                return 0
    elif len(expected) == 1:
        return 0 if expected.null_count + found.null_count < 2 else None
    parts = ((expected.slice(at, 1), found.slice(at, 1)) for at in range(len(expected)))
    return next((at for at, pair in enumerate(parts) if _difference(*pair) is not None), None)
