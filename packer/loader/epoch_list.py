"""Batches as lists that know their epoch."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")


class EpochList(list[_T]):
    """A batch as a list, with its epoch if known: row numbers from a sampler, or the rows they select."""

    epoch: int | None = None
    shards: tuple[int, ...] | None = None  # of the windows that the batch belongs to, if they are fetched ahead
