"""Several processes, on one machine or many, that pack into the same folder: ranks 0 to N - 1 of N.

Every rank runs the same program and comes to the same stages. It runs the tasks whose number modulo N is its own, and
waits for those of the others by looking for the files that they leave. A rank that shows no sign of life is replaced:
the others share its tasks. Nothing is decided by a clock of another machine: a sign of life is a file that changes, and
every rank measures by its own clock how long it has not changed.

OUT/.packer/ranks/3     the sign of life of rank 3: who wrote it, and a number that grows

In object storage, where every look is a request, signs are written and read less often.
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

from packer.engine import Done, Threads, without
from packer.errors import PackerError, SourceError
from packer.stores import AnyPath, RemotePath

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between signs of life in a file system."""

_TIMES_IN_STORES = 2.5  # as many in object storage

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

    def present(self) -> contextlib.AbstractContextManager[None]:
        """Show signs of life; see `SignsOfLife.shown`."""
        return self.signs.shown(self.rank, self.is_complete)

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield this rank's own tasks, then, while it waits for the others, tasks of ranks that have gone.

        Raises:
            FinishedElsewhere: another rank has completed the output.
            SourceError: another rank has found the source at fault.
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
            wait = min(2 * wait, self.signs.longest_wait)

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

    folder: AnyPath
    """Folder of the files."""

    patience: float
    """Seconds without a sign after which a rank is taken for dead."""

    is_alone: bool = False
    """Whether this process was not told that there are others."""

    _looked: dict[int, float] = field(default_factory=dict)
    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _who: str = field(default_factory=lambda: uuid.uuid4().hex)
    _rank: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def interval(self) -> float:
        """Seconds between signs."""
        return INTERVAL * (_TIMES_IN_STORES if isinstance(self.folder, RemotePath) else 1)

    @property
    def longest_wait(self) -> float:
        """Seconds between two looks at what others have done, at most."""
        return self.interval if isinstance(self.folder, RemotePath) else LONGEST_WAIT

    @contextlib.contextmanager
    def shown(self, rank: int, is_complete: Callable[[], bool]) -> Iterator[None]:
        """Show signs of life of a rank; at the end, say that it has left, or why the source cannot be packed.

        Args:
            rank: number of the rank.
            is_complete: whether the output is complete, so that no sign may stay.
        """
        self.begin(rank)
        word = _LEFT
        try:
            yield
        except SourceError as error:
            word = f"{_FAILED}{error}"
            raise
        finally:
            self.end(word)
            with contextlib.suppress(OSError):
                if is_complete():
                    (self.folder / str(rank)).unlink(missing_ok=True)

    def begin(self, rank: int) -> None:
        """Show signs of life of a rank, from a thread, until `end`."""
        self._rank = rank
        if not isinstance(self.folder, RemotePath):
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
        known, since = self._seen.get(rank, ("", self._begun))
        content, now = known, time.monotonic()
        if not isinstance(self.folder, RemotePath) or now - self._looked.get(rank, -self.interval) >= self.interval:
            content, self._looked[rank] = self._read(rank), now
        if content != known:
            self._seen[rank] = known, since = content, now
            word = content.partition(" ")[2]
            if word.startswith(_FAILED):
                raise SourceError(f"rank {rank}: {word.removeprefix(_FAILED)}")
        has_left = bool(content) and _has_left(content)
        return not has_left and now - since < self.patience

    def any_changes(self) -> bool:
        """Wait for `patience`; return True as soon as the sign of any rank changes, False if all of them have left."""
        first = {rank: self._read(rank) for rank in self._all()}
        while True:
            working = [rank for rank, sign in first.items() if not _has_left(sign)]
            now = {rank: self._read(rank) for rank in (self._all() if working else ())}
            if any(first.get(rank) != sign and not _has_left(sign) for rank, sign in now.items()):
                return True
            if not working or time.monotonic() - self._begun > self.patience:
                return False
            first |= now
            time.sleep(min(self.interval, self.patience) / 2)

    def _all(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]

    def _others(self) -> list[int]:
        return [rank for rank in self._all() if rank != self._rank]

    def _read(self, rank: int) -> str:
        """Return the last sign of a rank, "" if there is none, and the one seen before if it cannot be read."""
        try:
            return (self.folder / str(rank)).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""
        except OSError:
            return self._seen.get(rank, ("", 0.0))[0]

    def _repeat(self) -> None:
        count, warned = 0, False
        while not self._ended.wait(self.interval):
            count += 1
            found = "" if warned else self._read(self._rank)
            if found and not found.startswith(self._who):
                warned = True
                who = "works on the same output" if self.is_alone else f"is rank {self._rank}"
                log.warning(
                    f"another process {who}, too, and does the same work: give every process a --rank of its own"
                )
            self._write(str(count))

    def _write(self, word: str) -> None:
        """Replace the sign of this rank; without a folder, the output is complete and nobody reads it."""
        path, content = self.folder / str(self._rank), f"{self._who} {word}".encode()
        with contextlib.suppress(OSError):
            if isinstance(path, RemotePath):
                path.write_bytes(content)
                return
            temporary = path.with_name(f".{self._rank}.{self._who}")
            temporary.write_bytes(content)
            temporary.replace(path)


def _has_left(sign: str) -> bool:
    """Whether a sign is the last word of a rank, or was removed."""
    return not sign or sign.endswith(f" {_LEFT}") or f" {_FAILED}" in sign
