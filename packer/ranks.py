"""Several processes, on one machine or many, that pack into the same folder: ranks 0 to N - 1 of N.

Every rank runs the same program and comes to the same stages. It runs the tasks whose number modulo N is its own, and
waits for those of the others by looking for the files that they leave. A rank that shows no sign of life is replaced:
the others share its tasks. Nothing is decided by a clock of another machine: a sign of life is a file that changes, and
every rank measures by its own clock how long it has not changed.

OUT/.packer/ranks/3     the sign of life of rank 3: who wrote it, and a number that grows
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packer.engine import Threads
from packer.errors import PackerError, SourceError

log = logging.getLogger(__name__)

FOLDER = "ranks"
"""Folder of the signs of life, in the work folder of an output."""

INTERVAL = 2.0
"""Seconds between signs of life."""

FIRST_WAIT, LONGEST_WAIT = 0.02, 0.5
"""Seconds between two looks at what others have done, at first and at most."""

_LEFT = "left"
_FAILED = "failed "

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

    Args:
        rank: number of this rank; None if `ranks` is None or "env".
        ranks: number of ranks, or "env" for what torchrun, Slurm or SkyPilot set.
        environ: environment variables.

    Raises:
        PackerError: only one of the two is given, a value is out of range, or "env" finds no variables.
    """
    if ranks == "env":
        if rank is not None:
            raise PackerError(f"--ranks env reads the rank from the environment: leave --rank {rank} out")
        return _rank_in(environ)
    if rank is None and ranks is None:
        return None
    if rank is None or ranks is None:
        raise PackerError("--rank and --ranks belong together: --rank 0 --ranks 4, or --ranks env")
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
        raise PackerError(f"{rank_name} {rank} and {ranks_name} {ranks} must be whole numbers") from None
    if not 0 <= found.rank < found.ranks:
        raise PackerError(f"{rank_name} {rank} must be from 0 to {found.ranks - 1}, one less than {ranks_name} {ranks}")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks(Threads):
    """An engine for one of several ranks; `present` must be active while it is used."""

    rank: int
    """Number of this rank."""

    ranks: int
    """Number of ranks."""

    signs: SignsOfLife
    """Signs of life of all ranks."""

    is_complete: Callable[[], bool]
    """Whether the output is complete."""

    @property
    def is_shared(self) -> bool:
        """Always True."""
        return True

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Show signs of life; at the end, say that this rank has left, or why the source cannot be packed."""
        self.signs.begin(self.rank)
        word = _LEFT
        try:
            yield
        except SourceError as error:
            word = f"{_FAILED}{error}"
            raise
        finally:
            self.signs.end(word)

    def assigned(self, tasks: Sequence[int], is_done: Callable[[int], bool]) -> Iterator[list[int]]:
        """Yield this rank's own tasks, then, while it waits for the others, tasks of ranks that have gone.

        Raises:
            FinishedElsewhere: another rank has completed the output.
            SourceError: another rank has found the source at fault.
        """
        pending = [task for task in tasks if not is_done(task)]
        own = [task for task in pending if task % self.ranks == self.rank]
        if own:
            yield own
        wait = FIRST_WAIT
        while True:
            begun = time.monotonic()
            pending = [task for task in pending if not is_done(task)]
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
            wait = min(2 * wait, LONGEST_WAIT)

    def _adopted(self, pending: Sequence[int]) -> list[int]:
        """Return some of the tasks of ranks that have gone, which are dealt to those that are left."""
        owners = {task % self.ranks for task in pending} - {self.rank}
        gone = {rank for rank in owners if not self.signs.is_alive(rank)}
        if not gone:
            # Its own tasks are done, unless a file was removed since.
            return [task for task in pending if task % self.ranks == self.rank]
        left = [rank for rank in range(self.ranks) if rank == self.rank or self.signs.is_alive(rank)]
        mine = [
            task
            for task in pending
            if task % self.ranks == self.rank
            or (task % self.ranks in gone and left[task // self.ranks % len(left)] == self.rank)
        ]
        return mine[: self.workers]  # few, because one who was only late may be back


@dataclass(kw_only=True, slots=True)
class SignsOfLife:
    """The files by which ranks see each other."""

    folder: Path
    """Folder of the files."""

    patience: float
    """Seconds without a sign after which a rank is taken for dead."""

    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _who: str = field(default_factory=lambda: uuid.uuid4().hex)
    _rank: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self, rank: int) -> None:
        """Show signs of life of a rank, from a thread, until `end`."""
        self._rank = rank
        self.folder.mkdir(exist_ok=True)
        for other in self._others():  # what earlier runs have left behind
            self._seen[other] = (self._read(other), self._begun)
        self._write("0")
        self._thread = threading.Thread(target=self._repeat, daemon=True, name="signs of life")
        self._thread.start()

    def end(self, word: str) -> None:
        """Leave a last word instead."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._write(word)

    def is_alive(self, rank: int) -> bool:
        """Whether a rank has shown a sign recently; one that has never shown any has `patience` to come.

        Raises:
            SourceError: the rank has found the source at fault since this one began.
        """
        content, now = self._read(rank), time.monotonic()
        known, since = self._seen.get(rank, ("", self._begun))
        if content != known:
            self._seen[rank] = known, since = content, now
            word = content.partition(" ")[2]
            if word.startswith(_FAILED):
                raise SourceError(f"rank {rank}: {word.removeprefix(_FAILED)}")
        return not content.endswith(f" {_LEFT}") and f" {_FAILED}" not in content and now - since < self.patience

    def _others(self) -> list[int]:
        names = (path.name for path in self.folder.iterdir())
        return [int(name) for name in names if name.isdecimal() and int(name) != self._rank]

    def _read(self, rank: int) -> str:
        """Return the last sign of a rank, "" if there is none."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self.folder / str(rank)).read_text(encoding="utf-8")
        return ""

    def _repeat(self) -> None:
        count, warned = 0, False
        while not self._ended.wait(INTERVAL):
            count += 1
            if not warned and not self._read(self._rank).startswith(self._who):
                warned = True
                log.warning(
                    f"another process is rank {self._rank}, too, and does the same work: "
                    "give every process a --rank of its own"
                )
            self._write(str(count))

    def _write(self, word: str) -> None:
        """Replace the sign of this rank; without a folder, the output is complete and nobody reads it."""
        with contextlib.suppress(OSError):
            temporary = self.folder / f".{self._rank}.{self._who}"
            temporary.write_text(f"{self._who} {word}", encoding="utf-8")
            temporary.replace(self.folder / str(self._rank))
