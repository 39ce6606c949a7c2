"""Shards of a generation in the cache of a node: each is fetched by one process, and locked while others read it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from packer.errors import PackerError
from packer.loader.cache.cache_space import CacheSpace, beside
from packer.loader.cache.fetch_process import write_in_subprocess
from packer.loader.cache.file_locks import FileLock, try_lock
from packer.loader.cache.shard_providers import ShardProvider
from packer.shards.manifest_fields import ShardEntry
from packer.system_errors import shortage

ROOM_PATIENCE = 10.0
"""Seconds to wait until other processes no longer need the shards that take up the cache."""

FETCH_PATIENCE = 300.0
"""Seconds to wait for another process that fetches a shard, and makes no progress."""

_PAUSE = 0.02  # seconds between two looks at what another process does


class ShardCache:
    """The cache of a dataset, or of one of its generations.

    A shard is fetched by one process; others wait for it. It is written under another name, verified and renamed, so
    that a killed process leaves nothing that looks like a shard.

    Args:
        provider: fetches the shards.
        key: name of their folder in the cache.
        space: space in the cache folder.
    """

    def __init__(self, provider: ShardProvider, key: str, space: CacheSpace) -> None:
        self.provider = provider
        self.folder = space.folder / key
        self.space = space
        self._pid = os.getpid()

    def hold(self, entry: ShardEntry, *, give_up_one: Callable[[], bool]) -> tuple[FileLock, ShardEntry]:
        """Lock a shard, so that it stays in the cache; fetch it if it is not there.

        Args:
            entry: entry of the shard in the manifest.
            give_up_one: releases a shard that this process does not need any more; returns whether there was one.

        Returns:
            The lock, and the entry with the size of the file.

        Raises:
            PackerError: the shard cannot be fetched, is not what the manifest says, or does not fit into the cache.
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
        """Fetch a shard that is not needed yet, if there is room; return whether there was.

        Raises:
            PackerError: the shard cannot be fetched, or is not what the manifest says.
        """
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

    def discard_if_damaged(self, entry: ShardEntry) -> bool:
        """Remove a shard from the cache if its file does not match its hash; return whether it was removed."""
        path = self.folder / entry.file
        with contextlib.suppress(FileNotFoundError):  # a user removed the cache
            if self.provider.is_intact(path, entry):
                return False
            path.unlink()
        return True

    def _size(self, entry: ShardEntry) -> int:
        return int(self.provider.sizes([entry])[0])

    def _beside(self, entry: ShardEntry, ending: str) -> Path:
        """Return the path of a file that belongs to a shard; its folder is made if a user removed the cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return beside(self.folder / entry.file, ending)

    def _locked(self, entry: ShardEntry) -> tuple[FileLock, ShardEntry] | None:
        """Lock a shard for reading; return what `hold` does, or None if it is not in the cache."""
        path = self.folder / entry.file
        with contextlib.suppress(FileNotFoundError):
            while (lock := try_lock(path, shared=True, create=False)) is None:
                time.sleep(0.001)  # another process tries whether it can be evicted
            found = self.provider.found(path, entry)
            if found is not None:
                with contextlib.suppress(PermissionError):  # of another user
                    os.utime(path)
                return lock, found
            lock.release()
            path.unlink()  # no process writes such a file
        return None

    @contextlib.contextmanager
    def _fetching(self, entry: ShardEntry) -> Iterator[None]:
        """Wait until no other process fetches a shard, as long as it makes progress; exclude others.

        Raises:
            PackerError: another process makes no progress.
        """
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
        """Fetch a shard and lock it for reading.

        Args:
            entry: entry of the shard in the manifest.
            reserve: returns a file to write to, or None if there is no room.

        Returns:
            What `hold` does, or None if there is no room.
        """
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
                lock, found = try_lock(path, shared=True, create=False), self.provider.found(path, entry)
                assert lock is not None
                assert found is not None
                return lock, found
        finally:
            part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _local_errors(folder: Path) -> Iterator[None]:
    """Raise errors of the cache folder in one line.

    Raises:
        PackerError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{error.filename or folder}: {short}") from error
        raise PackerError(
            f"{error.filename or folder}: {error.strerror or error}; the cache of {folder} cannot be written: free "
            "some space, choose fewer cache_bytes, or another cache_dir"
        ) from error
