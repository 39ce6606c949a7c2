"""Check how a global batch is divided among ranks and batches."""

from __future__ import annotations

from operator import index

from packer.errors import PackerError


def checked_division(*, global_batch: int, rows: int | None, rank: int, world_size: int) -> tuple[int, int, int, int]:
    """Return (global_batch, rows, rank, world_size) as Python's own ints, which a state can be saved with.

    Args:
        global_batch: rows per optimizer step.
        rows: rows per batch; None for all that a rank has in a step.
        rank: number of this process.
        world_size: number of processes.

    Raises:
        PackerError: a number is not whole, the rank is out of range, or the global batch is not a multiple of
            rows * world_size.
    """
    global_batch, rank = _whole("global_batch", global_batch), _whole("rank", rank)
    world_size = _whole("world_size", world_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise PackerError(f"rank is {rank} of {world_size}: it must be from 0 to world_size - 1")
    rows = max(global_batch // world_size, 1) if rows is None else _whole("rows", rows)
    if rows < 1 or global_batch < 1 or global_batch % (rows * world_size):
        raise PackerError(
            f"global_batch is {global_batch}, for {world_size} ranks and batches of {rows} rows: "
            "it must be a multiple of their product"
        )
    return global_batch, rows, rank, world_size


def _whole(name: str, value: int) -> int:
    try:
        return index(value)
    except TypeError:
        raise PackerError(f"{name} is {value!r}: it must be a whole number") from None
