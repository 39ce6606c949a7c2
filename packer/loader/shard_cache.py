"""Shards of a dataset in object storage, fetched into a cache that all processes of a node share."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from packer.errors import PackerError
from packer.loader.cache_room import CacheRoom, beside
from packer.loader.download_process import download_in_subprocess
from packer.loader.file_locks import FileLock, try_lock
from packer.shards.manifest_fields import ShardEntry
from packer.stores import RemotePath
from packer.system_errors import shortage

ROOM_PATIENCE = 10.0
"""Seconds to wait until other processes no longer need the shards that take up the cache."""

FETCH_PATIENCE = 300.0
"""Seconds to wait for another process that fetches a shard, and makes no progress."""

_PAUSE = 0.02  # seconds between two looks at what another process does


class ShardCache:
    """The cache of a dataset.

    A shard is fetched by one process; others wait for it. It is written under another name, compared with its hash in
    the manifest and renamed, so that a killed process leaves nothing that looks like a shard.

    Args:
        source: folder of the dataset.
        key: name of its folder in the cache.
        room: room in the cache.
    """

    def __init__(self, source: RemotePath, key: str, room: CacheRoom) -> None:
        self.source = source
        self.folder = room.folder / key
        self.room = room
        self._pid = os.getpid()

    def hold(self, entry: ShardEntry, *, give_up_one: Callable[[], bool]) -> FileLock:
        """Return a lock that keeps a shard in the cache; fetch the shard if it is not there.

        Args:
            entry: entry of the shard in the manifest.
            give_up_one: releases a shard that this process does not need any more; returns whether there was one.

        Raises:
            PackerError: the shard cannot be fetched, is not what the manifest says, or does not fit into the cache.
        """

        def reserve() -> Path:
            deadline = time.monotonic() + ROOM_PATIENCE
            while (part := self.room.reserve(self.folder / entry.file, entry.bytes, displace=True)) is None:
                if give_up_one():
                    continue
                if time.monotonic() > deadline:
                    raise self.room.shortage(self.folder / entry.file, entry.bytes)
                time.sleep(_PAUSE)
            return part

        with _local_errors(self.room.folder):
            lock = self._locked(entry)
            if lock is None:
                with self._fetching(entry):
                    lock = self._locked(entry) or self._fetched(entry, reserve)  # another process may have fetched it
            assert lock is not None
            return lock

    def fetch_ahead(self, entry: ShardEntry) -> bool:
        """Fetch a shard that is not needed yet, if there is room; return whether there was.

        Raises:
            PackerError: the shard cannot be fetched, or is not what the manifest says.
        """
        with _local_errors(self.room.folder):
            lock = self._locked(entry)
            if lock is None:
                fetching = try_lock(self._beside(entry, "lock"), shared=False, create=True)
                if fetching is None:
                    return True  # another process fetches it
                with fetching:
                    lock = self._fetched(
                        entry, lambda: self.room.reserve(self.folder / entry.file, entry.bytes, displace=False)
                    )
        if lock is None:
            return False
        lock.release()
        return True

    def announce(self, entry: ShardEntry) -> FileLock | None:
        """Return a lock that keeps a shard in the cache, as long as no other needs its room at once.

        None is returned in the moment in which the shard is evicted.
        """
        with _local_errors(self.room.folder):
            return try_lock(self._beside(entry, "soon"), shared=True, create=True)

    def discard_if_damaged(self, entry: ShardEntry) -> bool:
        """Remove a shard from the cache if its file does not match its hash; return whether it was removed."""
        fault = _fault(self.folder / entry.file, entry)
        if fault is not None:
            (self.folder / entry.file).unlink(missing_ok=True)
        return fault is not None

    def _beside(self, entry: ShardEntry, ending: str) -> Path:
        """Return the path of a file that belongs to a shard; its folder is made if a user removed the cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return beside(self.folder / entry.file, ending)

    def _locked(self, entry: ShardEntry) -> FileLock | None:
        """Lock a shard for reading; return None if it is not in the cache."""
        path = self.folder / entry.file
        with contextlib.suppress(FileNotFoundError):
            while (lock := try_lock(path, shared=True, create=False)) is None:
                time.sleep(0.001)  # another process tries whether it can be evicted
            if path.stat().st_size == entry.bytes:
                with contextlib.suppress(PermissionError):  # of another user
                    os.utime(path)
                return lock
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
        seen, deadline = self._blocks(entry), time.monotonic() + FETCH_PATIENCE
        looked = time.monotonic()
        while (lock := try_lock(lock_file, shared=False, create=True)) is None:
            time.sleep(_PAUSE)
            if time.monotonic() > looked + FETCH_PATIENCE / 20:
                looked, blocks = time.monotonic(), self._blocks(entry)
                if blocks != seen:
                    seen, deadline = blocks, looked + FETCH_PATIENCE
                elif looked > deadline:
                    raise PackerError(
                        f"{self.source / entry.file}: another process of this node has been fetching it for "
                        f"{FETCH_PATIENCE:.0f} s without progress: end that process (`fuser {lock_file}` names it), "
                        "and start again"
                    )
        with lock:
            yield

    def _blocks(self, entry: ShardEntry) -> int:
        """Return how many blocks of the disk have been written of a shard that is being fetched."""
        blocks = 0
        for part in self.folder.glob(f"{entry.file}.*.part"):
            with contextlib.suppress(FileNotFoundError):
                blocks += part.stat().st_blocks
        return blocks

    def _fetched(self, entry: ShardEntry, reserve: Callable[[], Path | None]) -> FileLock | None:
        """Fetch a shard, a second time if it is not what the manifest says, and lock it for reading.

        Args:
            entry: entry of the shard in the manifest.
            reserve: returns a file to write to, or None if there is no room.

        Returns:
            The lock, or None if there is no room.
        """
        path, faults = self.folder / entry.file, []
        for _ in range(2):
            part = reserve()
            if part is None:
                return None
            try:
                self._download(self.source / entry.file, part)
                fault = _fault(part, entry)
                if fault is None:
                    _sync(part)
                    with self.room.mutex():  # nothing is evicted before it is locked
                        part.rename(path)
                        return try_lock(path, shared=True, create=False)
                faults.append(fault)
            finally:
                part.unlink(missing_ok=True)
        raise PackerError(
            f"{self.source / entry.file} {faults[-1]}, also when fetched again: it was changed after packing; restore "
            "it, or pack again to another folder"
        )

    def _download(self, source: RemotePath, to: Path) -> None:
        """Download an object.

        Raises:
            PackerError: it cannot be read.
        """
        try:
            if self._pid == os.getpid():
                source.download(to)
            else:  # the threads that make requests do not survive a fork
                download_in_subprocess(source, to)
        except OSError as error:
            if error.errno is not None and error.filename != str(source):
                raise  # of the local file
            if isinstance(error, FileNotFoundError):
                raise PackerError(
                    f"{source} is missing, the manifest lists it: restore it, or pack again to another folder"
                ) from error
            raise remote_error(source, error) from error


def remote_error(path: RemotePath, error: OSError) -> PackerError:
    """Return an error of a store as one line."""
    if error.strerror is None:
        return PackerError(str(error))
    return PackerError(f"{path}: {error.strerror}")


def cache_key(manifest: bytes) -> str:
    """Return the name of a dataset's folder in the cache: a hash of its manifest, 32 hexadecimal digits."""
    return blake2b(manifest, digest_size=16).hexdigest()


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Compare a file with its entry in the manifest; return what is wrong in words."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"


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
