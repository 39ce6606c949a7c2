"""Signs of life, by which processes that write the same output see each other.

OUT/.packer/ranks/3     the sign of life of rank 3: who wrote it, and a number that grows

Nothing is decided by a clock of another machine: a sign of life is a file that changes, and whoever watches measures by
its own clock how long it has not changed. In object storage, where every look is a request, signs are written and read
less often.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from packer.errors import SourceError
from packer.stores import AnyPath, RemotePath, each_at

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between signs of life in a file system."""

_TIMES_IN_STORES = 2.5  # as many in object storage

_LONGEST_WAIT = 0.5  # seconds between two looks at what others have done, in a file system

_LEFT = "left"
_FAILED = "failed "


@dataclass(kw_only=True, slots=True)
class SignsOfLife:
    """The files by which ranks know that others are alive."""

    folder: AnyPath
    """Folder of the files."""

    patience: float
    """Seconds without a sign after which a rank is considered dead."""

    is_alone: bool = False
    """Whether this process does not know of any others."""

    _looked: dict[int, tuple[str, float]] = field(default_factory=dict)  # in object storage
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
        """Largest number of seconds between two checks of what others have done."""
        return self.interval if isinstance(self.folder, RemotePath) else _LONGEST_WAIT

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
        others = [other for other in self._all() if other != rank]
        for other, content in zip(others, each_at(self.folder, self._read, others), strict=True):
            self._seen[other] = (content, self._begun)  # what earlier runs have left behind
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
        """Whether a rank has shown a sign recently; one that has never shown any may take `patience` to appear.

        Raises:
            SourceError: since this rank began, the other has found a fault in the source.
        """
        self.look([rank])
        now = time.monotonic()
        content = self._looked[rank][0] if isinstance(self.folder, RemotePath) else self._read(rank)
        known, since = self._seen.get(rank, ("", self._begun))
        if content != known:
            self._seen[rank] = known, since = content, now
            word = content.partition(" ")[2]
            if word.startswith(_FAILED):
                raise SourceError(f"rank {rank}: {word.removeprefix(_FAILED)}")
        has_left = bool(content) and _has_left(content)
        return not has_left and now - since < self.patience

    def look(self, ranks: Sequence[int]) -> None:
        """Read the signs of ranks in object storage at the same time, unless they were read a moment ago."""
        if not isinstance(self.folder, RemotePath):
            return
        now = time.monotonic()
        due = [rank for rank in ranks if rank not in self._looked or now - self._looked[rank][1] >= self.interval]
        for rank, content in zip(due, each_at(self.folder, self._read, due), strict=True):
            self._looked[rank] = content, now

    def any_changes(self) -> bool:
        """Wait for `patience`; return True as soon as the sign of any rank changes, False if all of them have left."""
        first = self._read_all()
        while True:
            working = [rank for rank, sign in first.items() if not _has_left(sign)]
            now = self._read_all() if working else {}
            if any(first.get(rank) != sign and not _has_left(sign) for rank, sign in now.items()):
                return True
            if not working or time.monotonic() - self._begun > self.patience:
                return False
            first |= now
            time.sleep(min(self.interval, self.patience) / 2)

    def _read_all(self) -> dict[int, str]:
        ranks = self._all()
        return dict(zip(ranks, each_at(self.folder, self._read, ranks), strict=True))

    def _all(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]

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
                log.warning(f"another process {who}, too, and does the same work: give every process its own --rank")
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
