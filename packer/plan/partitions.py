"""Deal the documents of a source, block by block, to partitions.

A block is a run of consecutive documents, read at once. A partition is a random set of blocks, and so a sample of the
corpus in whatever order the source is. A plan holds 24 bytes for each block: 24 MB for 250 billion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.algorithms.permute import BLOCKS, permute, stream_key

BLOCK_PLACE = 1 << 18
"""Tokens per block: 1 MiB of int32."""

BLOCKS_PER_PARTITION = 256
"""Smallest number of blocks in a partition, so that even a small one is a sample of the corpus."""


class BlockMarker:
    """Divides a stream of documents into blocks, whose segments take about `target` tokens in rows."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._starts = [np.zeros(1, np.int64)]
        self._documents = 0
        self._open_place = 0

    def add(self, places: NDArray[np.int64]) -> None:
        """Add documents by the tokens that each takes in rows."""
        sums = np.cumsum(places)
        starts, before = [], 0
        while (last := int(np.searchsorted(sums, before + self._target - self._open_place))) < len(places):
            starts.append(self._documents + last + 1)
            before, self._open_place = int(sums[last]), 0
        if len(places):
            self._open_place += int(sums[-1]) - before
        self._starts.append(np.array(starts, np.int64))
        self._documents += len(places)

    def finish(self) -> NDArray[np.int64]:
        """Return where blocks start, and the end: block b has the documents starts[b] to starts[b + 1] - 1."""
        starts = np.concatenate(self._starts)
        return starts if starts[-1] == self._documents else np.append(starts, self._documents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """Blocks dealt to partitions at random, about the same number to each; if there are few, some stay empty."""

    starts: NDArray[np.int64]
    """Shape (blocks + 1,): block b has the documents starts[b] to starts[b + 1] - 1."""

    order: NDArray[np.int64]
    """Shape (blocks,): blocks of the first partition, ascending, then those of the second, and so on."""

    cuts: NDArray[np.int64]
    """Shape (partitions + 1,): partition p has the blocks order[cuts[p]:cuts[p + 1]]."""

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def ranges(self, partition: int) -> NDArray[np.int64]:
        """Return the documents of a partition as ascending ranges (first, last + 1): int64, shape (ranges, 2).

        Adjacent blocks are one range.
        """
        blocks = self.order[self.cuts[partition] : self.cuts[partition + 1]]
        is_first = np.diff(blocks, prepend=-2) > 1
        is_last = np.diff(blocks, append=len(self.starts) + 1) > 1
        return np.stack([self.starts[blocks[is_first]], self.starts[blocks[is_last] + 1]], axis=1)


def make_partitions(starts: NDArray[np.int64], partitions: int, *, seed: int) -> Partitions:
    """Deal blocks to partitions at random, so that each is a sample of the whole source.

    Of every run of as many adjacent blocks as there are partitions, each partition gets one. If the source is
    sorted by length, date or origin, this makes partitions more alike than an arbitrary permutation.
    """
    owners = np.empty(len(starts) - 1, np.int64)
    _deal_blocks(np.empty(partitions, np.uint32), np.uint64(seed), owners)
    cuts = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=partitions))]).astype(np.int64)
    return Partitions(starts=starts, order=np.argsort(owners, kind="stable"), cuts=cuts)


@jit_if_large
def _deal_blocks(out_turns: NDArray[np.uint32], seed: np.uint64, out: NDArray[np.int64]) -> None:
    """Write the partition of each block: a permutation of all partitions for every run of as many blocks.

    `out_turns`, shape (partitions,), is scratch space.
    """
    turns, partitions = out_turns, len(out_turns)
    for first in range(0, len(out), partitions):
        for partition in range(partitions):
            turns[partition] = partition
        permute(turns, 0, partitions, stream_key(seed, BLOCKS, first))
        for block in range(first, min(first + partitions, len(out))):
            out[block] = turns[block - first]
