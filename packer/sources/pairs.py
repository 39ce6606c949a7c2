"""Preference pairs: two lists a row, as documents 2i (chosen) and 2i + 1 (rejected)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.progress import Progress, silent
from packer.shards.columns import ROLE
from packer.sources.documents import Columns, TokenTable
from packer.sources.source import Source
from packer.sources.spill import spill_inputs

ROLES = ("chosen", "rejected")
"""What begins the names of the columns of each side: chosen_input_ids, chosen_labels."""


class Pairs(Source):
    """A source of pairs: the lists of all chosen answers, then those of all rejected, in the order of an index."""

    def __init__(self, chosen: Source, rejected: Source) -> None:
        self._sides = chosen, rejected
        columns = chosen.columns
        indices = interleaved(chosen, rejected) if chosen.mapped and rejected.mapped else None
        super().__init__(chosen.name, (*chosen.inputs, *rejected.inputs), columns, indices)

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order, as `Source.tables`.

        Raises:
            SourceError: as there; or the pairs are not mapped, so that only one side could be read at a time.
        """
        if not self.mapped:
            raise SourceError(
                f"{self.name}: pairs that must be decoded can be packed, but not read as a stream; save them "
                "as Arrow (datasets.save_to_disk)"
            )
        yield from super().tables(progress)

    def spill(self, folder: Path, progress: Progress = silent, *, workers: int = 1) -> Source:
        """Decode what cannot be mapped, as `Source.spill`."""
        inputs, _ = spill_inputs(self, folder, progress, workers)
        middle = len(self._sides[0].inputs)
        columns = Columns("input_ids", "labels", self.columns.extra)
        sides = (
            Source(self.name, part, columns, side.indices)
            for part, side in zip((inputs[:middle], inputs[middle:]), self._sides, strict=True)
        )
        return Pairs(*sides)

    def _extra(self) -> dict[str, pa.ChunkedArray]:
        halves = [sum(rows or 0 for rows in side.rows) for side in self._sides]
        roles = [pa.repeat(pa.scalar(role), count) for role, count in zip(ROLES, halves, strict=True)]
        return {**super()._extra(), ROLE: pa.chunked_array(roles, pa.string())}


def interleaved(chosen: Source, rejected: Source) -> NDArray[np.int64]:
    """The lists of documents in the order of pairs, where those of the rejected follow all of the chosen.

    Raises:
        SourceError: there are not as many of one as of the other.
    """
    lists = sum(rows or 0 for rows in chosen.rows), sum(rows or 0 for rows in rejected.rows)
    if lists[0] != lists[1]:
        raise SourceError(f"{chosen.name}: {lists[0]:,} chosen and {lists[1]:,} rejected answers; pairs have both")
    order = np.arange(lists[0]) if chosen.indices is None else chosen.indices.astype(np.int64)
    indices = np.empty(2 * len(order), np.int64)
    indices[::2], indices[1::2] = order, order + lists[0]
    return indices


def open_pairs(opened: Callable[[Columns], Source], extra: tuple[str, ...]) -> Pairs:
    """Open a source of pairs, once for each side.

    Args:
        opened: opens it with the columns of a side.
        extra: columns with a value for each pair, to be read beside the tokens.
    """
    return Pairs(*(opened(Columns(f"{role}_input_ids", f"{role}_labels", extra)) for role in ROLES))
