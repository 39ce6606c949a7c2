"""Deal the documents of a source, block by block, to partitions.

A block is a run of consecutive documents, read at once. A partition is a random set of blocks, and so a sample of the
corpus in whatever order the source is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.permute import permute, permuted, stream_key
from packer.random_purposes import BLOCKS

BLOCK_PLACE = 1 << 18
"""Tokens per block: 1 MiB of int32."""

BLOCKS_PER_PARTITION = 256
"""Smallest number of blocks in a partition, so that even a small one is a sample of the corpus."""

MOST_BLOCKS = 1 << 20
"""Largest number of blocks that are held; of more, neighbors are merged in pairs, and divided again when dealt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """Runs of consecutive documents, in the order of the source; made by `BlockMarker`."""

    starts: NDArray[np.int64]
    """Shape (blocks + 1,): block b has the documents starts[b] to starts[b + 1] - 1."""

    places: NDArray[np.int64]
    """Shape (blocks,): tokens that the segments of each block take in rows."""

    parts: int = 1
    """Parts of about as many documents into which each block is divided when it is dealt: as many as were merged."""

    def __len__(self) -> int:
        """Return the number of parts of all blocks."""
        return len(self.places) * self.parts

    def first_documents(self, parts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first document of each of these parts, numbered through all blocks; of the end, one more.

        With starts [0, 10, 14] and two parts, the parts begin at 0, 5, 10 and 12, and part 4 is the end at 14.
        """
        block, part = np.divmod(parts, self.parts)
        first = self.starts[block]
        count = self.starts[np.minimum(block + 1, len(self.places))] - first
        documents: NDArray[np.int64] = first + count * part // self.parts
        return documents


class BlockMarker:
    """Divides a stream of documents into at most `most` blocks, whose segments take about `target` tokens in rows.

    The target is doubled whenever blocks are merged.
    """

    def __init__(self, target: int, *, most: int = MOST_BLOCKS) -> None:
        self._target = target
        self._most = most
        self._merged = 1
        self._starts = np.zeros(most + 1, np.int64)
        self._places = np.zeros(most, np.int64)
        self._count = 0  # closed blocks
        self._documents = 0
        self._open_place = 0

    def add(self, places: NDArray[np.int64]) -> None:
        """Add documents by the tokens that each takes in rows."""
        sums = np.cumsum(places)
        done, before = 0, 0  # documents, and their sum
        while done < len(places):
            if self._count == self._most:
                self._merge()
            last = int(np.searchsorted(sums, before + self._target - self._open_place))
            if last == len(places):
                self._open_place += int(sums[-1]) - before
                break
            self._places[self._count] = self._open_place + int(sums[last]) - before
            self._count += 1
            self._starts[self._count] = self._documents + last + 1
            done, before, self._open_place = last + 1, int(sums[last]), 0
        self._documents += len(places)

    def finish(self) -> Blocks:
        """Return the blocks of all documents that were added."""
        starts = self._starts[: self._count + 1].copy()
        places = self._places[: self._count].copy()
        if starts[-1] < self._documents:
            starts, places = np.append(starts, self._documents), np.append(places, self._open_place)
        return Blocks(starts=starts, places=places, parts=self._merged)

    def _merge(self) -> None:
        """Merge blocks in pairs; later blocks are twice as large."""
        half = self._most // 2
        self._places[:half] = self._places[0::2] + self._places[1::2]
        self._starts[: half + 1] = self._starts[::2].copy()
        self._count = half
        self._target *= 2
        self._merged *= 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """Blocks, or the parts of merged blocks, dealt to partitions at random, about the same number to each."""

    blocks: Blocks

    partitions: int
    """Number of partitions; some stay empty if there are fewer blocks."""

    seed: int

    order: NDArray[np.int64] | None
    """Shape (blocks,): blocks of the first partition, ascending, then those of the second, and so on. None if they were
    merged: there are too many parts to hold, and those of a partition are computed."""

    cuts: NDArray[np.int64] | None
    """Shape (partitions + 1,): partition p has the blocks order[cuts[p]:cuts[p + 1]]; None if `order` is."""

    def __len__(self) -> int:
        return self.partitions

    def ranges(self, partition: int) -> NDArray[np.int64]:
        """Return the documents of a partition as ascending ranges (first, last + 1): int64, shape (ranges, 2).

        Adjacent blocks are one range.
        """
        if self.order is not None and self.cuts is not None:
            blocks = self.order[self.cuts[partition] : self.cuts[partition + 1]]
        else:
            dealt = np.empty(-(-len(self.blocks) // self.partitions), np.int64)
            _find_parts(partition, self.partitions, np.uint64(self.seed), dealt)
            blocks = dealt[dealt < len(self.blocks)]
        is_first = np.diff(blocks, prepend=-2) > 1
        is_last = np.diff(blocks, append=len(self.blocks) + 1) > 1
        ends = [self.blocks.first_documents(blocks[is_first]), self.blocks.first_documents(blocks[is_last] + 1)]
        ranges = np.stack(ends, axis=1)
        return ranges if self.order is not None else ranges[ranges[:, 0] < ranges[:, 1]]  # a part may have no document


def make_partitions(blocks: Blocks, partitions: int, *, seed: int) -> Partitions:
    """Deal blocks to partitions at random, so that each is a sample of the whole source.

    Of every run of as many adjacent blocks as there are partitions, each partition gets one. If the source is
    sorted by length, date or origin, this makes partitions more alike than an arbitrary permutation. Some
    partitions stay empty if there are fewer blocks.
    """
    if blocks.parts > 1:
        return Partitions(blocks=blocks, partitions=partitions, seed=seed, order=None, cuts=None)
    owners = np.empty(len(blocks), np.int64)
    _deal_blocks(np.empty(partitions, np.uint32), np.uint64(seed), owners)
    cuts = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=partitions))]).astype(np.int64)
    order = np.argsort(owners, kind="stable")
    return Partitions(blocks=blocks, partitions=partitions, seed=seed, order=order, cuts=cuts)


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


@jit_if_large
def _find_parts(partition: int, partitions: int, seed: np.uint64, out: NDArray[np.int64]) -> None:
    """Write the part that a partition gets of each run of as many parts as there are partitions, past the end too."""
    for run in range(len(out)):
        first = run * partitions
        out[run] = first + permuted(partition, partitions, stream_key(seed, BLOCKS, first))
