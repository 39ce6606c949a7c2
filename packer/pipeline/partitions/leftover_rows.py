"""Pack the leftovers of partitions, region by region, and then the leftovers of regions.

Each public function is a task: a pure function of its arguments, the last of which is the number of a region. Any
process can run it, and running it twice does no harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.optimal import prove
from packer.algorithms.patterns import Patterns
from packer.notes import Note
from packer.options import PackOptions
from packer.pipeline.apply_options import solve_histogram
from packer.pipeline.partitions.partition_rows import LAST_RESERVE
from packer.pipeline.partitions.regions import Regions, load
from packer.plan.located_rows import extents_of_pieces
from packer.plan.rows import RowExtents, both_of_each, drawn_rows, place_rows

FEW_ROWS = 64
"""Drawing leaves LAST_RESERVE of the tokens of a region, but at least this many rows, or half of the tokens."""


def draw_rest(options: PackOptions, below: Regions, first_stream: int, region: int, *, far: bool) -> Note:
    """Draw rows from the leftovers in a region; note the rows and the pieces that are still left.

    Args:
        options: options of the pack.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
        far: whether segments from anywhere in the order may close a row.
    """
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    share = min(0.5, FEW_ROWS * options.max_len / max(1, int(extents.sum(dtype=np.int64))))
    stream = first_stream + region
    rows, _ = drawn_rows(
        extents,
        options.max_len,
        options.max_items,
        reserve=max(LAST_RESERVE, share),
        far=far,
        seed=options.seed,
        stream=stream,
    )
    return _rows_of_pieces(options, pieces, extents, rows, stream)


def solve_rest(options: PackOptions, below: Regions, first_stream: int, region: int, *, proves: bool = False) -> Note:
    """Pack all leftovers in a region by the algorithm, and note the rows.

    Args:
        options: options of the pack.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
        proves: solve with `prove`, which also tries to save a single row, instead of the algorithm in the options.
    """
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    rows = RowExtents(extents=np.zeros(0, np.int32), starts=np.zeros(1, np.int64))
    if len(extents):
        histogram = np.bincount(extents, minlength=options.max_len + 1)
        solved = prove(histogram, options.max_items) if proves else solve_histogram(options, histogram)
        rows = RowExtents.of_patterns(solved)
    return _rows_of_pieces(options, pieces, extents, rows, first_stream + region)


def fill_rest(
    options: PackOptions, patterns: Patterns, shares: str, below: Regions, first_stream: int, region: int
) -> Note:
    """Fill the packs that a region takes with its leftovers; note the rows and the pieces that are still left.

    Args:
        options: options of the pack.
        patterns: global solution.
        shares: stage that noted the packs of each region; see `share_with_regions`.
        below: stage whose tasks left pieces over.
        first_stream: random stream of region 0, after those of the stages below.
        region: number of the region.
    """
    share = load(below.notes, f"{shares}-{region}")
    pieces = _left_in(below, region)
    extents = extents_of_pieces(pieces, options.align, paired=options.pairs)
    rows = RowExtents.of_patterns(patterns, share.arrays["given"], share.arrays["packs"])
    return _rows_of_pieces(options, pieces, extents, rows, first_stream + region)


def _left_in(below: Regions, region: int) -> NDArray[Any]:
    """Return the pieces that the tasks of a region left over, task by task: an array of PIECE."""
    return np.concatenate([note.arrays["left"] for note in below.notes_of(region)])


def _rows_of_pieces(
    options: PackOptions, pieces: NDArray[Any], extents: NDArray[np.int32], rows: RowExtents, stream: int
) -> Note:
    """Deal pieces to rows, and note the rows and the pieces left over."""
    placed, left = place_rows(extents, rows, options.max_len, seed=options.seed, stream=stream)
    if options.pairs:
        placed, left = placed.of_pairs(), both_of_each(left)
    arrays = {"pieces": pieces[placed.numbers], "row_starts": placed.row_starts, "left": pieces[left]}
    return Note(facts={"rows": len(rows)}, arrays=arrays)
