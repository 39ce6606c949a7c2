"""Plan rows within limits besides tokens (`--limit`); the whole plan is held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound, vector_bounds
from packer.arrow import as_numpy
from packer.errors import SourceError
from packer.facts import PlanTotals
from packer.facts.rejection import REMEDY
from packer.options import PackOptions
from packer.pipeline.segments.packable_segments import account_of
from packer.plan.rows import PlacedRows
from packer.plan.segments import Segments, extents_of
from packer.plan.vector_packing import pack_vectors
from packer.plan.whole_plan import WholePlan
from packer.shards.sharing import Chunks
from packer.sources.columns.number_columns import number_fault, wrong_numbers


def plan_under_limits(
    segments: Segments,
    values: Mapping[str, NDArray[np.int32]],
    options: PackOptions,
    *,
    rows_per_shard: int,
    describe: Callable[[int], str],
) -> WholePlan:
    """Plan rows in which tokens and further columns stay within their limits.

    Args:
        segments: segments of all documents, none of them split.
        values: value of each document in each limited column: (documents,), by column.
        options: options of the pack.
        rows_per_shard: largest number of rows of a shard.
        describe: function that names a document.

    Raises:
        SourceError: a document that is packed takes more than a limit.
    """
    numbers = segments.numbers()
    documents, _, lengths = segments.locate(numbers)
    taken = {name: values[name][documents] for name in options.limits}
    _refuse_above(taken, documents, options, describe)
    demands = np.stack([extents_of(lengths, segments.align), *taken.values()])
    capacities = np.array([options.max_len, *options.limits.values()], np.int64)
    demands = demands.astype(np.int32, copy=False)
    del documents, lengths, taken
    placed = pack_vectors(demands, capacities, max_segments=options.max_segments, seed=options.seed)
    totals = PlanTotals.of(
        account_of(segments, options),
        max_len=options.max_len,
        segments=len(numbers),
        rows=len(placed),
        pool_rows=0,
        lower_bound=max(
            lower_bound(segments.histogram, options.max_items), int(vector_bounds(demands, capacities).max())
        ),
    )
    placed = PlacedRows(row_starts=placed.row_starts, numbers=numbers[placed.numbers])
    return WholePlan(placed=placed, segments=segments, rows_per_shard=rows_per_shard, totals=totals)


def limit_values(
    extra: Mapping[str, Chunks],
    lists: NDArray[Any] | None,
    options: PackOptions,
    describe: Callable[[int], str],
) -> dict[str, NDArray[np.int32]]:
    """Return the value of each document in each limited column: (documents,), by column.

    Args:
        extra: columns of the source, a value per list.
        lists: (documents,) list of each document; None if document i is list i.
        options: options of the pack.
        describe: function that names a document.

    Raises:
        SourceError: a value is missing, negative, or not a whole number.
    """
    found = {}
    remedy = f"; {REMEDY}" if options.lengths_column is None else ""
    for name in options.limits:
        parts, first = [np.zeros(0, np.int32)], 0
        for chunk in extra[name].chunks:
            wrong = wrong_numbers(chunk)
            if len(wrong):
                fault, value = number_fault(chunk, int(wrong[0]), name), first + int(wrong[0])
                where = describe(value) if lists is None else f"value {value} of the column"
                raise SourceError(f"{where}: {fault.message}{remedy}")
            parts.append(as_numpy(chunk).astype(np.int32))
            first += len(chunk)
        values = np.concatenate(parts)
        found[name] = values if lists is None else values[lists]
    return found


def _refuse_above(
    taken: Mapping[str, NDArray[np.int32]],
    documents: NDArray[np.int64],
    options: PackOptions,
    describe: Callable[[int], str],
) -> None:
    """Raise a SourceError if a document exceeds a limit; `taken` has the values of `documents`, by column."""
    for name, most in options.limits.items():
        above = np.flatnonzero(taken[name] > most)
        if len(above):
            first = above[0]
            raise SourceError(
                f"{describe(int(documents[first]))} has {name} {taken[name][first]:,}, and a row may have {most:,} "
                f"(documents with more: {len(above):,}): raise --limit, or leave them out"
            )
