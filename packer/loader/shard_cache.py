"""Shards of a generation in the cache of a node: each is fetched by one process, and locked while others read it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.facts import ShardEntry
from packer.loader.cache_space import CacheSpace, sidecar_path, try_lock
from packer.shards.shard_table import ShardTable
from packer.stores import AnyPath
from packer.stores.file_locks import FileLock
from packer.system_errors import shortage

ROOM_PATIENCE = 10.0
"""Seconds to wait until other processes no longer need the shards that take up the cache."""

FETCH_PATIENCE = 300.0
"""Seconds to wait for another process that fetches a shard, and makes no progress."""

_PAUSE = 0.02  # seconds between two looks at what another process does


class ShardProvider(Protocol):
    """Writes shards into a cache, and recognizes complete ones there. Can be pickled."""

    @property
    def folder(self) -> AnyPath:
        """Folder of the dataset, for messages."""

    def sizes(self, shards: ShardTable) -> NDArray[np.int64]:
        """Return an upper bound of the bytes of each shard's file: shape (entries,)."""

    def write(self, entry: ShardEntry, to: Path) -> None:
        """Write a shard to a file in the cache, and check it.

        A source that cannot be read, or is not what the manifest says, is a PackerError; a file that cannot be written
        is an OSError.
        """

    def found(self, path: Path, entry: ShardEntry, *, intact: bool) -> ShardEntry | None:
        """Return the entry of a shard in the cache, with the size of its file; None if the file is incomplete.

        With `intact`, also None if it does not match its hash. A file that does not exist is a FileNotFoundError.
        """


class ShardCache:
    """The cache of a dataset, or of one of its generations.

    A shard is fetched by one process; others wait for it. It is written under another name, verified and renamed, so
    that a killed process leaves nothing that looks like a shard. A shard that was already there is hashed before its
    first use, because the disk of the cache may have changed it since; a damaged one is fetched again. `key` is the
    name of their folder in the cache.
    """

    def __init__(self, provider: ShardProvider, key: str, space: CacheSpace) -> None:
        self.provider = provider
        self.folder = space.folder / key
        self.space = space
        self._pid = os.getpid()
        self._checked: set[str] = set()  # names of shards that this process has fetched or hashed

    def hold(self, entry: ShardEntry, *, give_up_one: Callable[[], bool]) -> tuple[FileLock, ShardEntry]:
        """Return a lock, with which a shard stays in the cache, and its entry with the size of the file.

        A shard that is not there is fetched. If there is no room, `give_up_one` releases a shard that this process does
        not need any more, and returns whether there was one.
        """

        def reserve() -> Path:
            deadline = time.monotonic() + ROOM_PATIENCE
            path, size = self.folder / entry.file, self._size(entry)
            while (part := self.space.reserve(path, size, displace=True)) is None:
                if give_up_one():
                    continue
                if time.monotonic() > deadline:
                    raise self.space.shortage(path, size)
                time.sleep(_PAUSE)
            return part

        with _local_errors(self.space.folder):
            held = self._locked(entry)
            if held is None:
                with self._fetching(entry):
                    held = self._locked(entry) or self._fetched(entry, reserve)  # another process may have fetched it
            assert held is not None
            return held

    def fetch_ahead(self, entry: ShardEntry) -> bool:
        """Fetch a shard that is not needed yet, if there is room; return whether there was."""
        with _local_errors(self.space.folder):
            held = self._locked(entry)
            if held is None:
                fetching = try_lock(self._beside(entry, "lock"), shared=False, create=True)
                if fetching is None:
                    return True  # another process fetches it
                with fetching:
                    held = self._fetched(
                        entry, lambda: self.space.reserve(self.folder / entry.file, self._size(entry), displace=False)
                    )
        if held is None:
            return False
        held[0].release()
        return True

    def announce(self, entry: ShardEntry) -> FileLock | None:
        """Return a lock that keeps a shard in the cache, as long as no other needs its room at once.

        None is returned in the moment in which the shard is evicted.
        """
        with _local_errors(self.space.folder):
            return try_lock(self._beside(entry, "soon"), shared=True, create=True)

    def _size(self, entry: ShardEntry) -> int:
        return int(self.provider.sizes(ShardTable.of([entry]))[0])

    def _beside(self, entry: ShardEntry, ending: str) -> Path:
        """Return the path of a file that belongs to a shard; its folder is made if a user removed the cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return sidecar_path(self.folder / entry.file, ending)

    def _locked(self, entry: ShardEntry) -> tuple[FileLock, ShardEntry] | None:
        """Lock a shard for reading; return what `hold` does, or None if it is not in the cache."""
        path = self.folder / entry.file
        with contextlib.suppress(FileNotFoundError):
            while (lock := try_lock(path, shared=True, create=False)) is None:
                time.sleep(0.001)  # another process tries whether it can be evicted
            found = self.provider.found(path, entry, intact=entry.file not in self._checked)
            if found is not None:
                self._checked.add(entry.file)
                with contextlib.suppress(PermissionError):  # of another user
                    os.utime(path)
                return lock, found
            lock.release()
            path.unlink()  # no process writes such a file: it was changed later
        return None

    @contextlib.contextmanager
    def _fetching(self, entry: ShardEntry) -> Iterator[None]:
        """Wait until no other process fetches a shard, as long as it makes progress; exclude others."""
        lock_file = self._beside(entry, "lock")
        seen, deadline = self._written(entry), time.monotonic() + FETCH_PATIENCE
        looked = time.monotonic()
        while (lock := try_lock(lock_file, shared=False, create=True)) is None:
            time.sleep(_PAUSE)
            if time.monotonic() > looked + FETCH_PATIENCE / 20:
                looked, written = time.monotonic(), self._written(entry)
                if written != seen:
                    seen, deadline = written, looked + FETCH_PATIENCE
                elif looked > deadline:
                    raise PackerError(
                        f"{self.provider.folder / entry.file}: another process of this node has been fetching it for "
                        f"{FETCH_PATIENCE:.0f} s without progress: end that process (`fuser {lock_file}` names it), "
                        "and start again"
                    )
        with lock:
            yield

    def _written(self, entry: ShardEntry) -> list[tuple[int, int]]:
        """Return blocks of the disk, and time of the last write, of a shard that is being fetched."""
        found = []
        for part in self.folder.glob(f"{entry.file}.*.part"):
            with contextlib.suppress(FileNotFoundError):
                state = part.stat()
                found.append((state.st_blocks, state.st_mtime_ns))
        return found

    def _fetched(self, entry: ShardEntry, reserve: Callable[[], Path | None]) -> tuple[FileLock, ShardEntry] | None:
        """Fetch a shard into a file that `reserve` returns; return what `hold` does, or None if there is no room."""
        path, part = self.folder / entry.file, reserve()
        if part is None:
            return None
        try:
            if self._pid == os.getpid():
                self.provider.write(entry, part)
            else:  # the threads that make requests do not survive a fork
                write_in_subprocess(self.provider, entry, part)
            _sync(part)
            with self.space.mutex():  # nothing is evicted before it is locked
                part.rename(path)
                lock, found = try_lock(path, shared=True, create=False), self.provider.found(path, entry, intact=False)
                assert lock is not None
                assert found is not None
                self._checked.add(entry.file)
                return lock, found
        finally:
            part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _local_errors(folder: Path) -> Iterator[None]:
    """Raise errors of the cache folder as a PackerError of one line."""
    try:
        yield
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{error.filename or folder}: {short}") from error
        raise PackerError(
            f"{error.filename or folder}: {error.strerror or error}; the cache of {folder} cannot be written: free "
            "some space, choose fewer cache_bytes, or another cache_dir"
        ) from error


_COMMAND = "from packer.loader.shard_cache import main; main()"


def write_in_subprocess(provider: ShardProvider, entry: ShardEntry, to: Path) -> None:
    """Write a shard as `ShardProvider.write` does, in another process; if this ends, that is a PackerError, too."""
    global _process
    with _starting:
        process = _process
        if process is None or not process.is_usable:
            process = _process = _FetchProcess()
    process.write(provider, entry, to)


class _FetchProcess:
    """The process that writes shards for this one, one after the other."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._sent: list[ShardProvider] = []
        self._asking = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether it is a process of this one, and runs."""
        return self._pid == os.getpid() and self._process.poll() is None

    def write(self, provider: ShardProvider, entry: ShardEntry, to: Path) -> None:
        with self._asking:
            number = next((number for number, sent in enumerate(self._sent) if sent is provider), len(self._sent))
            is_new = number == len(self._sent)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                pickle.dump((number, provider if is_new else None, entry, to), self._process.stdin)
                self._process.stdin.flush()
                failure = pickle.load(self._process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                raise PackerError(f"{provider.folder / entry.file}: {self._end()}") from None
            if is_new:
                self._sent.append(provider)
        if failure is not None:
            raise failure

    def _end(self) -> str:
        """Wait until the process has ended; return how it did."""
        status = self._process.wait()
        self._errors.seek(0)
        text = " ".join(self._errors.read().decode(errors="replace").split())[-300:]
        return f"the process that fetches it ended with {status} ({text})"


_process: _FetchProcess | None = None
_starting = threading.Lock()


def main() -> None:
    """Answer the requests on the standard input with None or an error, until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    providers: list[ShardProvider] = []
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while True:
            try:
                number, provider, entry, to = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            if provider is not None:
                providers[number:] = [provider]
            pickle.dump(_failure(providers[number], entry, to), answers)
            answers.flush()


def _failure(provider: ShardProvider, entry: ShardEntry, to: Path) -> Exception | None:
    """Write a shard; return the error if that fails, in a form that can be pickled."""
    try:
        provider.write(entry, to)
    except PackerError as error:
        return PackerError(str(error))
    except OSError as error:
        return OSError(error.errno, error.strerror or str(error), error.filename)
    return None
