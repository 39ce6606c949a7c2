"""Choose rows for a report, and describe them segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import extents_of
from packer.column_names import TREE, input_ids_in
from packer.loader.dataset import PackedDataset
from packer.loader.open_shards import Row
from packer.loader.tree_nodes import nodes_of
from packer.permute import hashes_of, key_of
from packer.plan.rows import LocatedRows, Plan
from packer.random_purposes import SHOWN_ROWS
from packer.report.charts import ShownRow
from packer.report.row_figures import RowProfile

SAMPLED_ROWS = 16
"""Random rows that are shown, if they have no more than SAMPLED_SEGMENTS segments."""

EXTREME_ROWS = 4
"""Further rows that are shown: the least full, and as many of the others with the most segments."""

SAMPLED_SEGMENTS = 4000
"""Segments in all rows that are shown, which bounds the size of a page."""

TRAINED_RUNS = 200
"""Ranges of trained tokens that are shown of a row."""

SHOWN_TEXT = 50_000
"""Characters of text that are shown at most, divided equally among the segments."""


def chosen_rows(profile: RowProfile) -> list[tuple[int, str]]:
    """Return the numbers of the rows to show, none of them twice, each with the reason: see `ShownRow.chosen`.

    Those at random are drawn from the rows that are not shown for another reason, and are ascending.
    """
    rows = len(profile.tokens)
    if rows <= SAMPLED_ROWS:
        return [(row, "all") for row in range(rows)]
    emptiest = np.argsort(profile.tokens, kind="stable")[:EXTREME_ROWS].tolist()
    busiest = np.argsort(-profile.segments, kind="stable")[: 2 * EXTREME_ROWS].tolist()
    busiest = [row for row in busiest if row not in emptiest][:EXTREME_ROWS]
    drawn = hashes_of(key_of(0, SHOWN_ROWS, 0), np.arange(8 * SAMPLED_ROWS)) % np.uint64(rows)
    others = [row for row in dict.fromkeys(drawn.tolist()) if row not in (*emptiest, *busiest)]
    reasons = (("at random", sorted(others[:SAMPLED_ROWS])), ("least full", emptiest), ("most segments", busiest))
    return [(row, reason) for reason, numbers in reasons for row in numbers]


def _within_limit(rows: Sequence[ShownRow]) -> tuple[ShownRow, ...]:
    """Return the first rows, with up to SAMPLED_SEGMENTS segments in total, or else a part of the first row."""
    ends = np.cumsum([len(row.lengths) for row in rows])
    within = int(np.searchsorted(ends, SAMPLED_SEGMENTS, side="right"))
    if within:
        return tuple(rows[:within])
    first = rows[0]
    columns = {name: getattr(first, name) for name in ("lengths", "extents", "documents", "starts", "trained", "nodes")}
    cut = {name: values and values[:SAMPLED_SEGMENTS] for name, values in columns.items()}
    end = sum(cut["extents"])
    runs = tuple((begin, min(last, end)) for begin, last in first.trained_runs if begin < end)
    return (replace(first, **cut, rest=sum(first.extents) - end, trained_runs=runs),)


def planned_rows(plan: Plan, chosen: Sequence[tuple[int, str]], align: int) -> tuple[ShownRow, ...]:
    """Return the chosen rows of a plan, (number, reason)."""
    found: dict[int, ShownRow] = {}
    first_row = 0
    for shard, rows in enumerate(plan.shard_rows):
        located = plan.rows(shard)
        for row in {row for row, _ in chosen if first_row <= row < first_row + rows}:
            found[row] = _planned_row(located, row, row - first_row, align)
        first_row += rows
    return _within_limit([replace(found[row], chosen=reason) for row, reason in chosen])


def _planned_row(located: LocatedRows, row: int, index: int, align: int) -> ShownRow:
    """Return row `row` of a plan, which is row `index` of a part of it."""
    segments = slice(located.row_starts[index], located.row_starts[index + 1])
    lengths, documents = located.lengths[segments], located.documents[segments]
    return ShownRow(
        row=row,
        lengths=tuple(lengths.tolist()),
        extents=tuple(extents_of(lengths, align).tolist()),
        documents=tuple(documents.tolist()),
        starts=tuple(located.starts[segments].tolist()),
    )


def packed_rows(
    dataset: PackedDataset, chosen: Sequence[tuple[int, str]], decode: Callable[[Any], str] | None
) -> tuple[ShownRow, ...]:
    """Return rows of a packed dataset, with the text of their segments if `decode` turns token ids into text."""
    rows = _within_limit([replace(_packed_row(row, dataset[row]), chosen=reason) for row, reason in chosen])
    if decode is None:
        return rows
    shown = SHOWN_TEXT // sum(len(row.lengths) for row in rows)
    return tuple(replace(row, texts=tuple(_texts(row, dataset[row.row], decode, shown))) for row in rows)


def _packed_row(number: int, row: Row) -> ShownRow:
    segments = int(np.count_nonzero(row["doc_ids"] >= 0))
    extents = row["seq_lengths"][:segments]
    starts = np.cumsum(extents) - extents
    trained: tuple[int, ...] | None = None
    trained_runs: tuple[tuple[int, int], ...] = ()
    if "labels" in row:
        is_trained = row["labels"] >= 0
        trained_before = np.concatenate([[0], np.cumsum(is_trained)])
        trained = tuple((trained_before[starts + extents] - trained_before[starts]).tolist())
        trained_runs = runs_of(is_trained, TRAINED_RUNS)
    return ShownRow(
        row=number,
        lengths=tuple(row.get("seq_tokens", row["seq_lengths"])[:segments].tolist()),
        extents=tuple(extents.tolist()),
        documents=tuple(row["doc_ids"][:segments].tolist()),
        starts=tuple(row["doc_starts"][:segments].tolist()),
        trained=trained,
        trained_runs=trained_runs,
        nodes=tuple(tuple((node.tokens, node.depth) for node in nodes_of(tree)) for tree in row[TREE][:segments])
        if TREE in row
        else (),
    )


def _texts(row: ShownRow, tokens: Row, decode: Callable[[Any], str], shown: int) -> Iterator[str]:
    """Yield the beginning of each segment as text, of up to `shown` characters."""
    place = 0
    for length, extent in zip(row.lengths, row.extents, strict=True):
        yield decode(tokens[input_ids_in(tokens)][place : place + min(length, shown)])[:shown]
        place += extent


def runs_of(mask: NDArray[np.bool_], most: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges (first, end) of consecutive true values: [0, 1, 1, 0, 1] -> (1, 3), (4, 5).

    If there are more than `most`, those that are closest to each other are joined.
    """
    borders = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    firsts, ends = borders[::2], borders[1::2]
    if len(firsts) > most:
        gaps = firsts[1:] - ends[:-1]
        widest = np.sort(np.argsort(-gaps, kind="stable")[: most - 1])
        firsts, ends = firsts[[0, *(widest + 1)]], ends[[*widest, -1]]
    return tuple(zip(firsts.tolist(), ends.tolist(), strict=True))
