"""Several processes, on one machine or many, that pack into the same folder: ranks 0 to N - 1 of N.

Every rank runs the same program, with the same stages. It runs the tasks whose number modulo N is its own, and waits
for those of the others by looking for the files that they leave. The others share the tasks of a rank without a
heartbeat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from packer.engine import Done, Engine, without
from packer.errors import OptionError, PackerError
from packer.heartbeats import Heartbeats

FIRST_WAIT = 0.02
"""Initial seconds between two checks of what others have done."""

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun; first, because it may itself be started by srun
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
)


class FinishedElsewhere(Exception):  # noqa: N818 (nothing went wrong)
    """Raised in a rank when another one has completed the output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOf:
    """Number of a rank, and how many there are."""

    rank: int
    """Number of this rank, from 0."""

    ranks: int
    """Number of ranks."""


def rank_of(rank: int | None, ranks: int | str | None, environ: Mapping[str, str] = os.environ) -> RankOf | None:
    """Return which rank this process is; None if it works alone.

    "env" stands for the numbers that torchrun, Slurm or SkyPilot set. A single number, or one out of range, is an
    OptionError.
    """
    if ranks == "env":
        if rank is not None:
            raise OptionError(f"--ranks env reads the rank from the environment: leave --rank {rank} out")
        return _rank_in(environ)
    if rank is None and ranks is None:
        return None
    if rank is None or ranks is None:
        raise OptionError("--rank and --ranks belong together: --rank 0 --ranks 4, or --ranks env")
    return _checked(str(rank), str(ranks), "--rank", "--ranks")


def _rank_in(environ: Mapping[str, str]) -> RankOf:
    for rank, ranks in _VARIABLES:
        if rank in environ and ranks in environ:
            return _checked(environ[rank], environ[ranks], rank, ranks)
    known = ", ".join("/".join(names) for names in _VARIABLES)
    raise PackerError(f"--ranks env found none of {known} in the environment: write --rank R --ranks N")


def _checked(rank: str, ranks: str, rank_name: str, ranks_name: str) -> RankOf:
    try:
        found = RankOf(rank=int(rank), ranks=int(ranks))
    except ValueError:
        raise OptionError(f"{rank_name} {rank} and {ranks_name} {ranks} must be whole numbers") from None
    if not 0 <= found.rank < found.ranks:
        raise OptionError(f"{rank_name} {rank} must be from 0 to {found.ranks - 1}, one less than {ranks_name} {ranks}")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks(Engine):
    """An engine for one of several ranks, whose heartbeat must be shown while it is used."""

    rank: int
    """Number of this rank."""

    ranks: int
    """Number of ranks."""

    heartbeats: Heartbeats
    """Heartbeats of all ranks."""

    is_complete: Callable[[], bool]
    """Whether the output is complete."""

    is_shared: ClassVar[bool] = True

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield this rank's own tasks and then, while it waits for the others, tasks of ranks that have died.

        Raises FinishedElsewhere if another rank has completed the output, and the SourceError that another rank found.
        """
        pending = without(tasks, done(tasks))
        own = [task for task in pending if task % self.ranks == self.rank]
        if own:
            yield own
        wait = FIRST_WAIT
        while True:
            begun = time.monotonic()
            pending = without(pending, done(pending))
            if not pending:
                return
            if self.is_complete():
                raise FinishedElsewhere
            adopted = self._adopted(pending)
            if adopted:
                yield adopted
                continue
            # Looking may be slow where files are far away: it must not keep others from their work.
            time.sleep(max(wait, 4 * (time.monotonic() - begun)))
            wait = min(2 * wait, self.heartbeats.longest_wait)

    def _adopted(self, pending: Sequence[int]) -> list[int]:
        """Return this rank's share of the tasks of ranks that have died."""
        owners = {task % self.ranks for task in pending} - {self.rank}
        gone = owners - self.heartbeats.alive(owners)
        if not gone:
            # Its own tasks are done, unless a file was removed since.
            return [task for task in pending if task % self.ranks == self.rank]
        left = sorted({self.rank} | self.heartbeats.alive(range(self.ranks)))
        mine = [
            task
            for task in pending
            if task % self.ranks == self.rank
            or (task % self.ranks in gone and left[task // self.ranks % len(left)] == self.rank)
        ]
        return mine[: self.workers]  # few, because one who was only late may be back
