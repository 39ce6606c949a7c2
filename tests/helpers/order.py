"""What `tests/test_order.py` shares with other tests."""

from dataclasses import dataclass

import numpy as np

import packer
from packer.loader.row_order import whole_shards


@dataclass(frozen=True)
class Rows:
    """What a sampler sees of a dataset: rows of one segment each, in shards of so many rows."""

    lengths: list[int]
    shards: tuple[int, ...] = ()
    fingerprint: str = "0123456789abcdef"
    is_remote: bool = False

    @property
    def shard_rows(self):
        return [*self.shards, len(self) - sum(self.shards)]

    def __len__(self):
        return len(self.lengths)

    def shard_ranges(self, epoch):
        return whole_shards(self.shard_rows)

    def first_number(self, epoch):
        return 0

    def used(self, epochs):
        return {self.fingerprint: [epochs * len(self), None, "rows"]}

    def stored_rows(self, numbers):
        return numbers

    def segments(self):
        yield np.arange(len(self) + 1), np.array(self.lengths, np.int32), np.zeros(len(self), np.int64)


def sampler_at(epoch, dataset, **options):
    """Make a sampler that begins with an epoch; with None, `set_epoch` is not called."""
    sampler = packer.BatchSampler(dataset, **options)
    if epoch is not None:
        sampler.set_epoch(epoch)
    return sampler


def samplers(dataset, layout, *, epoch=None, **options):
    """One sampler per rank."""
    options = {**layout, **options}
    return [sampler_at(epoch, dataset, rank=rank, **options) for rank in range(options["world_size"])]
