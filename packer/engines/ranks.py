"""Ranks 0 to N - 1: processes, on one machine or many, that pack into the same folder.

Every rank runs the same program with the same stages. Rank r runs the tasks whose number modulo N is r. Then it waits
for the tasks of the other ranks by looking for the files that they write. If a rank shows no heartbeat, the other ranks
divide its tasks.

OUT/.packer/ranks/3     heartbeat of rank 3: who wrote it, and a number that grows

Clocks of different machines are never compared. A heartbeat is a file that changes, and a rank measures by its own
clock how long the file has not changed. In object storage, where every read is a request, heartbeats are written and
read less often.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from packer.engines.engine import Done, Engine, without
from packer.errors import OptionError, PackerError, SourceError
from packer.progress import OF_RANK
from packer.signals import raise_if_interrupted
from packer.stores.store import ClaimLostError, Store

INTERVAL = 2.0
"""Seconds between heartbeats in a file system."""

PATIENCE = 30.0
"""Seconds without a heartbeat after which other ranks take over."""

_TIMES_IN_STORES = 2.5  # factor of INTERVAL in object storage

_LONGEST_WAIT = 0.5  # maximum seconds between checks for the work of other ranks, in a file system

FOLDER = ".packer/ranks"
"""Name of the folder of heartbeats in the store of an output."""

_LEFT = "left"
_FAILED = "failed "

FIRST_WAIT = 0.02
"""Seconds between the first two checks for the work of other ranks."""

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun; tried first, because srun may have started torchrun
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
)


class FinishedElsewhere(Exception):  # noqa: N818 (nothing went wrong)
    """Raised in a rank if another rank has completed the output."""


class RankOf(NamedTuple):
    """Number of a rank, counted from 0, and number of ranks."""

    rank: int
    ranks: int


def rank_of(ranks: str | None, environ: Mapping[str, str] = os.environ) -> RankOf | None:
    """Return the rank of this process, given "R/N"; None if it works alone.

    "env" reads the numbers that torchrun, Slurm or SkyPilot set. Raises an OptionError if these are wrong, and a
    PackerError if there are none.
    """
    if ranks is None:
        return None
    if ranks != "env":
        number, count = map(int, ranks.split("/"))
        return RankOf(number, count)
    launchers = [pair for pair in _VARIABLES if environ.keys() >= {*pair}]
    if not launchers:
        known = ", ".join("/".join(pair) for pair in _VARIABLES)
        raise PackerError(f"--ranks env found none of {known} in the environment: write --ranks R/N")
    names = launchers[0]
    found = environ[names[0]], environ[names[1]]
    try:
        number, count = map(int, found)
    except ValueError:
        raise OptionError(f"{names[0]} {found[0]} and {names[1]} {found[1]} must be whole numbers") from None
    if not 0 <= number < count:
        raise OptionError(f"{names[0]} {number} must be from 0 to {count - 1}, one less than {names[1]} {count}")
    return RankOf(number, count)


@dataclass(kw_only=True, slots=True)
class Heartbeats:
    """Heartbeats: files that show which other ranks are alive."""

    store: Store
    patience: float = field(default_factory=lambda: PATIENCE)
    """Seconds without a heartbeat after which a rank is considered dead."""

    is_alone: bool = False
    """Whether this process was not started as one of several ranks."""

    _signs: dict[int, tuple[str, float, float]] = field(default_factory=dict)
    """For each rank: the last heartbeat read, the time of its last change, and the time when it was read."""

    _begun: float = field(default_factory=time.monotonic)
    _who: str = field(default_factory=lambda: uuid.uuid4().hex)
    _rank: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def interval(self) -> float:
        """Seconds between heartbeats."""
        return INTERVAL * (_TIMES_IN_STORES if self.store.is_remote else 1)

    @contextlib.contextmanager
    def shown(self, rank: int, is_complete: Callable[[], bool]) -> Iterator[None]:
        """Write heartbeats of a rank. At the end, write that it has left, or why the source cannot be packed.

        Removes the heartbeat if the output is complete.
        """
        self._rank = rank
        for other, content in self._read_all().items():
            if other != rank:
                self._signs[other] = content, self._begun, self._begun  # from earlier runs
        self._write("0")
        thread = threading.Thread(target=self._repeat, daemon=True, name="heartbeat")
        thread.start()
        word = _LEFT
        try:
            yield
        except SourceError as error:
            word = f"{_FAILED}{error}"
            raise
        finally:
            self._ended.set()
            thread.join()
            self._write(word)
            with contextlib.suppress(OSError, ClaimLostError):
                if is_complete():
                    self.store.delete(_name(rank))

    def alive(self, ranks: Collection[int]) -> set[int]:
        """Return the ranks with a recent heartbeat.

        A rank without a heartbeat counts as alive during the first `patience` seconds. Reads heartbeats again. In
        object storage, it reads several at a time, and only if the last read is older than `interval`. Raises a
        SourceError if another rank has found a fault in the source since this rank began.
        """
        now, pause, found = time.monotonic(), self.interval if self.store.is_remote else 0.0, set()
        due = [rank for rank in ranks if rank not in self._signs or now - self._signs[rank][2] >= pause]
        for rank, content in zip(due, self.store.each(self._read, due), strict=True):
            before, since, _ = self._signs.get(rank, ("", self._begun, now))
            self._signs[rank] = content, since if content == before else now, now
            word = content.partition(" ")[2]
            if content != before and word.startswith(_FAILED):
                raise SourceError(f"rank {rank}: {word.removeprefix(_FAILED)}")
        for rank in ranks:
            content, since, _ = self._signs[rank]
            if now - since < self.patience and not (content and _has_left(content)):
                found.add(rank)
        return found

    def any_changes(self) -> bool:
        """Wait for `patience` seconds. Returns True when any heartbeat changes, False if all ranks have left."""
        first = self._read_all()
        while any(not _has_left(sign) for sign in first.values()):
            now = self._read_all()
            if any(first.get(rank) != sign and not _has_left(sign) for rank, sign in now.items()):
                return True
            if time.monotonic() - self._begun > self.patience:
                return False
            first |= now
            raise_if_interrupted()
            time.sleep(min(self.interval, self.patience) / 2)
        return False

    def _read_all(self) -> dict[int, str]:
        ranks = [int(name) for name in self.store.sizes(FOLDER) if name.isdecimal()]
        return dict(zip(ranks, self.store.each(self._read, ranks), strict=True))

    def _read(self, rank: int) -> str:
        """Return the last heartbeat of a rank; "" if there is none. If the store fails, returns the previous one."""
        try:
            return bytes(self.store.get(_name(rank))).decode()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""
        except OSError:
            return self._signs[rank][0] if rank in self._signs else ""

    def _repeat(self) -> None:
        count, warned = 0, False
        while not self._ended.wait(self.interval):
            count += 1
            found = "" if warned else self._read(self._rank)
            if found and not found.startswith(self._who):
                warned = True
                who = "works on the same output" if self.is_alone else f"is rank {self._rank}"
                OF_RANK.warning(
                    f"another process {who} and does the same work: give every process its own number in --ranks"
                )
            self._write(str(count))

    def _write(self, word: str) -> None:
        """Replace the heartbeat of this rank. Ignores errors, because the output may just be complete or removed."""
        with contextlib.suppress(OSError, ClaimLostError):
            self.store.put(_name(self._rank), f"{self._who} {word}".encode(), lasting=False)


def _name(rank: int) -> str:
    return f"{FOLDER}/{rank}"


def _has_left(heartbeat: str) -> bool:
    """Whether a heartbeat says that its rank has left or failed. A removed heartbeat is empty, and counts as left."""
    return not heartbeat or heartbeat.endswith(f" {_LEFT}") or f" {_FAILED}" in heartbeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks(Engine):
    """An engine for one of several ranks. The rank must write heartbeats until the output is complete."""

    rank: int
    ranks: int
    heartbeats: Heartbeats
    is_complete: Callable[[], bool]

    is_shared: ClassVar[bool] = True

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield this rank's own tasks; then, while it waits for other ranks, tasks of ranks that have died.

        Raises `FinishedElsewhere` if another rank has completed the output, and a SourceError if another rank has found
        a fault in the source.
        """
        pending = without(tasks, done(tasks))
        own = [task for task in pending if task % self.ranks == self.rank]
        if own:
            yield own
        wait = FIRST_WAIT
        while True:
            raise_if_interrupted()
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
            # Reading may be slow on distant storage, and must not keep other ranks from their work.
            time.sleep(max(wait, 4 * (time.monotonic() - begun)))
            wait = min(2 * wait, self.heartbeats.interval if self.heartbeats.store.is_remote else _LONGEST_WAIT)

    def _adopted(self, pending: Sequence[int]) -> list[int]:
        """Return this rank's share of the tasks of ranks that have died."""
        owners = {task % self.ranks for task in pending} - {self.rank}
        gone = owners - self.heartbeats.alive(owners)
        if not gone:
            # This rank's own tasks are done, unless a file was removed since.
            return [task for task in pending if task % self.ranks == self.rank]
        left = sorted({self.rank} | self.heartbeats.alive(range(self.ranks)))
        mine = [
            task
            for task in pending
            if task % self.ranks == self.rank
            or (task % self.ranks in gone and left[task // self.ranks % len(left)] == self.rank)
        ]
        return mine[: self.workers]  # few, because a rank that was only slow may continue
