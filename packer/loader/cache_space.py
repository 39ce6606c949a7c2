"""Space in the cache of a node: its limit, and which shards are evicted.

Files of a cache folder, in which each dataset has a folder KEY, a hash:

    .packer-cache                          the folder is a cache, made by `CacheSpace`; others are refused
    mutex                                  locked while room is made, and while a shard gets its name
    KEY/data-00000-of-00012.arrow          a shard; its readers hold a shared lock
    KEY/data-00000-of-00012.arrow.SIZE.part     a shard that is being fetched, locked by the process that fetches it;
                                           counts as SIZE bytes

No other file is counted or removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from packer.errors import NoLocksError, PackerError
from packer.options import as_bytes, byte_size
from packer.stores import local_files
from packer.stores.paths import expanded

_MARK = ".packer-cache"
_KEY = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow(?:\.(\d+)\.part)?")
_PATIENCE = 60  # seconds to wait for the mutex, which is held for milliseconds


class _Cached(NamedTuple):
    """A shard in the cache, or a part of one."""

    path: Path
    size: int
    used_ns: int


class Part(NamedTuple):
    """File for a shard that this process fetches."""

    path: Path
    lock: local_files.FileLock


class Wait(Enum):
    """Why a shard cannot be fetched now."""

    ROOM = "there is no room"
    OTHER = "another process fetches it, or has fetched it"


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSpace:
    """Space in a cache folder, shared by all processes of a node."""

    folder: Path
    """Absolute path of the cache folder."""

    limit: int | None
    """Bytes that all shards in the folder may take; None for half of what the disk has for them."""

    @classmethod
    def of(cls, cache_dir: str | Path | None, cache_bytes: int | str | None) -> CacheSpace:
        """Return the space for arguments of `packer.load`. Raises PackerError if `cache_bytes` is no size."""
        limit = None if cache_bytes is None else as_bytes(cache_bytes)
        if limit is not None and limit < 1:
            raise PackerError(f"cache_bytes is {limit}: it must be at least 1, such as 200GB")
        if cache_dir is None:
            cache_dir = os.environ.get("PACKER_SHARD_CACHE") or Path(
                os.environ.get("XDG_CACHE_HOME") or "~/.cache", "packer", "shards"
            )
        return cls(folder=Path(expanded(Path(cache_dir))).absolute(), limit=limit)

    def make_folder(self) -> None:
        """Make the folder.

        Raises PackerError if it cannot be used, holds other files, or its disk has less room than the limit.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_foreign = any(self.folder.iterdir())
            if is_foreign and not (self.folder / _MARK).exists():  # in this order: another process may be making it
                raise PackerError(
                    f"cache_dir is {self.folder}, which holds other files than a cache of packer: name a new folder, "
                    f"such as {self.folder / 'packer'}"
                )
            (self.folder / _MARK).touch()
            with self._mutex():
                used = sum(cached.size for cached in self._cached())
        except OSError as error:
            raise PackerError(
                f"{self.folder} cannot be used as a cache ({error.strerror or error}): choose another cache_dir"
            ) from error
        most = used + shutil.disk_usage(self.folder).free
        if self.limit is not None and self.limit > most:
            raise PackerError(
                f"cache_bytes is {byte_size(self.limit)}, and the disk of {self.folder} has {byte_size(most)} for a "
                "cache: choose fewer bytes, or another cache_dir"
            )

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        """Exclude all other processes and threads that make room or name a shard."""
        deadline = time.monotonic() + _PATIENCE
        while (lock := try_lock(self.folder / "mutex", shared=False, create=True)) is None:
            if time.monotonic() > deadline:
                raise PackerError(
                    f"{self.folder / 'mutex'} has been locked by another process for {_PATIENCE} s: end that process "
                    "(fuser names it), or choose another cache_dir"
                )
            time.sleep(0.002)
        with lock:
            yield

    def reserve(self, path: Path, size: int) -> Part | Wait:
        """Make room for a shard that is missing, and return a new, locked file to write it to.

        The least recently used shards are evicted if necessary, but none that a process reads.
        """
        path.parent.mkdir(parents=True, exist_ok=True)  # a user may have removed the cache
        (self.folder / _MARK).touch()
        with self._mutex():
            cached, part = self._cached(), path.with_name(f"{path.name}.{size}.part")
            if any(each.path in (path, part) for each in cached):
                return Wait.OTHER
            used = sum(each.size for each in cached)
            excess = used + size - self._allowed(used)
            for each in sorted(cached, key=lambda each: each.used_ns):
                if excess > 0 and _evicted(each.path):
                    excess -= each.size
            lock = try_lock(part, shared=False, create=True) if excess <= 0 else None
            return Wait.ROOM if lock is None else Part(part, lock)

    def publish(self, part: Part, path: Path) -> None:
        """Give a shard that has been written its name; its lock becomes that of a reader before it can be evicted."""
        with self._mutex():
            part.path.rename(path)
            part.lock.change(shared=True)

    def shortage(self, path: Path, size: int) -> PackerError:
        """Return an error that says why a shard does not fit."""
        with self._mutex():
            used = sum(cached.size for cached in self._cached())
        named = "half of the free disk" if self.limit is None else "cache_bytes"
        return PackerError(
            f"{self.folder} has no room for {path.name} ({byte_size(size)}): processes of this node use "
            f"{byte_size(used)} at once, the limit is {byte_size(self._allowed(used))} ({named}); raise cache_bytes, "
            "or choose fewer lanes or a smaller window"
        )

    def _allowed(self, used: int) -> int:
        """Return the bytes that all shards may take, given that they take `used` bytes now."""
        return (used + shutil.disk_usage(self.folder).free) // 2 if self.limit is None else self.limit

    def _cached(self) -> list[_Cached]:
        """Return all shards and parts of shards; remove parts that a killed process left."""
        found = []
        for folder in os.scandir(self.folder):
            if not _KEY.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                shard = _SHARD.fullmatch(file.name)
                if shard is None:
                    continue
                part_size = shard[1]
                # If the lock is free, no process fetches the shard: a killed one left the part.
                if part_size is not None and (lock := try_lock(Path(file), shared=False, create=False)) is not None:
                    with lock:
                        Path(file).unlink()
                else:
                    with contextlib.suppress(FileNotFoundError):
                        state = file.stat(follow_symlinks=False)
                        size = state.st_size if part_size is None else int(part_size)
                        found.append(_Cached(Path(file), size, state.st_mtime_ns))
        return found


def try_lock(path: Path, *, shared: bool, create: bool) -> local_files.FileLock | None:
    """Lock a file in a cache as `local_files.try_lock` does. Raises PackerError if the file system has no locks."""
    try:
        return local_files.try_lock(path, shared=shared, create=create)
    except NoLocksError as error:
        raise PackerError(
            f"{path} cannot be locked ({error.strerror}): choose a folder on a local disk as cache_dir"
        ) from error


def _evicted(path: Path) -> bool:
    """Remove a shard from the cache if no process reads or fetches it; return whether it was removed."""
    try:
        lock = try_lock(path, shared=False, create=False)
    except FileNotFoundError:
        return False  # removed by a user
    if lock is None:
        return False
    with lock:
        path.unlink()
    return True
