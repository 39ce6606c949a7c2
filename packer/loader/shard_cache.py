"""Cache of a node for shards: one process fetches a shard, ahead if possible; readers lock it.

Files in a cache folder, where each dataset has a folder KEY, a hash:

    .packer-cache                          marks the folder as a cache made by `CacheSpace`; other folders are refused
    mutex                                  locked while space is freed, and while a shard gets its name
    KEY/data-00000-of-00012.arrow          a shard; its readers hold a shared lock
    KEY/data-00000-of-00012.arrow.SIZE.part     a shard that is being fetched, locked by the fetching process;
                                           counts as SIZE bytes

No other file is counted or removed. There is no server: processes coordinate by file locks, which the system releases
when a process ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import PackerError, shortage
from packer.json_records import ShardEntry
from packer.loader.open_shards import OpenShard
from packer.options import as_bytes, byte_size
from packer.shards.manifest import Manifest, dataset_key
from packer.stores import RemotePath
from packer.stores.local_files import FileLock, try_lock
from packer.stores.paths import expanded

if TYPE_CHECKING:
    from packer.engines.processes import TaskProcess

_MARK = ".packer-cache"
_KEY = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow(?:\.(\d+)\.part)?")
_PATIENCE = 60  # seconds to wait for the mutex, which is held for milliseconds


class _Cached(NamedTuple):
    """A shard in the cache, or a part of one."""

    path: Path
    size: int
    used_ns: int


class ReservedFile(NamedTuple):
    """File for a shard that this process fetches."""

    path: Path
    lock: FileLock


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
    """Maximum number of bytes of all shards in the folder; None: half of the space available to them."""

    @classmethod
    def of(cls, cache_dir: str | Path | None, cache_bytes: int | str | None) -> CacheSpace:
        """Return the space for arguments of `packer.load`. Raises PackerError if `cache_bytes` is not a size."""
        limit = None if cache_bytes is None else as_bytes(cache_bytes)
        if limit is not None and limit < 1:
            raise PackerError(f"cache_bytes is {limit}: it must be at least 1, such as 200GB")
        if cache_dir is None:
            cache_dir = os.environ.get("PACKER_SHARD_CACHE") or Path(
                os.environ.get("XDG_CACHE_HOME") or "~/.cache", "packer", "shards"
            )
        return cls(folder=Path(expanded(Path(cache_dir))).absolute(), limit=limit)

    def make_folder(self) -> None:
        """Create the folder.

        Raises PackerError if it cannot be used, holds other files, or its disk has less space than the limit.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_foreign = any(self.folder.iterdir())
            if is_foreign and not (self.folder / _MARK).exists():  # tested last: another process may be making it
                raise PackerError(
                    f"cache_dir is {self.folder}, which holds other files than a cache of packer: name a new folder, "
                    f"such as {self.folder / 'packer'}"
                )
            (self.folder / _MARK).touch()
            with self._mutex():
                used = sum(cached.size for cached in self._cached())
        except OSError as error:
            raise PackerError(
                f"{self.folder} cannot be used as a cache ({error.strerror or error}): take a cache_dir on a local disk"
            ) from error
        most = used + shutil.disk_usage(self.folder).free
        if self.limit is not None and self.limit > most:
            raise PackerError(
                f"cache_bytes is {byte_size(self.limit)}, and the disk of {self.folder} has {byte_size(most)} for a "
                "cache: choose fewer bytes, or another cache_dir"
            )

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        """Exclude all other processes and threads that free space or name a shard."""
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

    def reserve(self, path: Path, size: int) -> ReservedFile | Wait:
        """Free space for a missing shard, and return a new, locked file for it; a `Wait` if that is not possible.

        The least recently used shards are evicted if necessary, but no shard that a process is reading.
        """
        path.parent.mkdir(parents=True, exist_ok=True)  # a user may have deleted the cache
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
            return Wait.ROOM if lock is None else ReservedFile(part, lock)

    def publish(self, part: ReservedFile, path: Path) -> None:
        """Rename a written shard to its final name. Its lock becomes shared before another process could evict it."""
        with self._mutex():
            part.path.rename(path)
            part.lock.change(shared=True)

    def shortage(self, path: Path, size: int) -> PackerError:
        """Return an error that explains why a shard does not fit."""
        with self._mutex():
            used = sum(cached.size for cached in self._cached())
        named = "half of the free disk" if self.limit is None else "cache_bytes"
        return PackerError(
            f"{self.folder} has no room for {path.name} ({byte_size(size)}): processes of this node use "
            f"{byte_size(used)} at once, the limit is {byte_size(self._allowed(used))} ({named}); raise cache_bytes, "
            "or choose fewer lanes or a smaller window"
        )

    def _allowed(self, used: int) -> int:
        """Return the number of bytes that all shards may take; they take `used` bytes now."""
        return (used + shutil.disk_usage(self.folder).free) // 2 if self.limit is None else self.limit

    def _cached(self) -> list[_Cached]:
        """Return all shards and partial shards; remove partial ones that a killed process left."""
        found = []
        for folder in os.scandir(self.folder):
            if not _KEY.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                shard = _SHARD.fullmatch(file.name)
                if shard is None:
                    continue
                part_size = shard[1]
                # A free lock means that no process fetches the shard: a killed process left the part.
                if part_size is not None and (lock := try_lock(Path(file), shared=False, create=False)) is not None:
                    with lock:
                        Path(file).unlink()
                else:
                    with contextlib.suppress(FileNotFoundError):
                        state = file.stat(follow_symlinks=False)
                        size = state.st_size if part_size is None else int(part_size)
                        found.append(_Cached(Path(file), size, state.st_mtime_ns))
        return found


def _evicted(path: Path) -> bool:
    """Remove a shard from the cache if no process reads or fetches it. Returns whether it was removed."""
    try:
        lock = try_lock(path, shared=False, create=False)
    except FileNotFoundError:
        return False  # removed by a user
    if lock is None:
        return False
    with lock:
        path.unlink()
    return True


_RESTORE = "restore it, or pack again to another folder"

ROOM_PATIENCE = 10.0
"""Seconds to wait for other processes to release shards that fill the cache."""

_PAUSE = 0.02  # polling interval in seconds while another process works


class ShardCache:
    """Shards of a dataset that is read through the cache; they are fetched when needed, or ahead.

    One process fetches a shard while others wait. It writes the shard under a temporary name, verifies it and renames
    it, so a killed process leaves nothing that looks like a shard. A shard that already existed is hashed once per
    process before its first use, because the disk may have changed it; a damaged shard is fetched again.
    """

    def __init__(self, dataset: RemotePath, manifest: Manifest, space: CacheSpace) -> None:
        space.make_folder()
        self._dataset, self._manifest = dataset, manifest
        self._folder = space.folder / dataset_key(manifest)
        self._space = space
        self._sizes = manifest.shards.column("bytes")
        largest = int(self._sizes.max())
        if space.limit is not None and space.limit < largest:
            raise PackerError(
                f"cache_bytes is {byte_size(space.limit)}, and {dataset} has shards of "
                f"{byte_size(largest)}: raise cache_bytes"
            )
        self._pid = os.getpid()
        self._checked: set[Path] = set()  # shards that this process has fetched or hashed
        self._process: tuple[int, TaskProcess] | None = None  # (pid, process that downloads for it)
        self._asking = threading.Lock()
        self._ahead: ReadAhead | None = None
        self._wanted: tuple[Sequence[int], Sequence[int]] = (), ()

    def open(self, number: int, give_up_one: Callable[[], bool]) -> OpenShard:
        """Map a shard by its number; fetch it if it is not in the cache.

        If there is no space, `give_up_one` closes a shard that this process no longer needs, and returns whether there
        was one.
        """
        entry = self._manifest.shards[number]
        with self._local_errors():
            deadline = time.monotonic() + ROOM_PATIENCE
            while isinstance(lock := self._locked_or_fetched(entry), Wait):
                if lock is Wait.OTHER:
                    deadline = time.monotonic() + ROOM_PATIENCE
                elif give_up_one():
                    continue
                elif time.monotonic() > deadline:
                    raise self._space.shortage(self._folder / entry.file, entry.bytes)
                time.sleep(_PAUSE)
        try:
            return OpenShard(self._folder, entry, self._manifest, lock)
        except PackerError as error:
            lock.release()
            raise PackerError(str(error).replace(str(self._folder), str(self._dataset))) from error

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards in the background: first `shards`, which are read now, then `upcoming`.

        Raises PackerError if the shards that are read now do not fit into the cache together.
        """
        if (shards, upcoming) == self._wanted:
            return
        size, limit = int(self._sizes[list(shards)].sum()), self._space.limit
        if limit is not None and size > limit:
            raise PackerError(
                f"cache_bytes is {byte_size(limit)}, and the {len(shards)} shards that this rank reads together "
                f"have {byte_size(size)}: raise cache_bytes, or choose fewer lanes or a smaller window"
            )
        if self._ahead is None or self._ahead.pid != os.getpid():  # a thread does not survive a fork
            self._ahead = ReadAhead(self)
        self._ahead.want([*shards, *upcoming])
        self._wanted = shards, upcoming

    def fetch(self, number: int) -> bool:
        """Fetch a shard ahead of its use. Returns False if there was no space, otherwise True."""
        with self._local_errors():
            lock = self._locked_or_fetched(self._manifest.shards[number])
        if isinstance(lock, Wait):
            return lock is Wait.OTHER
        lock.release()
        return True

    def _locked_or_fetched(self, entry: ShardEntry) -> FileLock | Wait:
        """Lock a shard for reading, and fetch it first if necessary. Returns a `Wait` if that is not possible now."""
        if (lock := self._locked(entry)) is not None:
            return lock
        part = self._space.reserve(self._folder / entry.file, entry.bytes)
        return part if isinstance(part, Wait) else self._fetched(entry, part)

    def _locked(self, entry: ShardEntry) -> FileLock | None:
        """Lock a shard for reading, so that it stays in the cache. Returns None if it is not there."""
        path = self._folder / entry.file
        with contextlib.suppress(FileNotFoundError):
            while (lock := try_lock(path, shared=True, create=False)) is None:
                time.sleep(0.001)  # another process briefly holds the lock to test for eviction
            is_checked = path in self._checked and path.stat().st_size == entry.bytes
            if is_checked or _fault(path, entry) is None:
                self._checked.add(path)
                with contextlib.suppress(PermissionError):  # the file belongs to another user
                    os.utime(path)
                return lock
            lock.release()
            path.unlink()  # damaged after it was written: processes verify shards before naming them
        return None

    def _fetched(self, entry: ShardEntry, part: ReservedFile) -> FileLock:
        """Fetch a shard into its reserved file, and lock it like `_locked`."""
        path = self._folder / entry.file
        try:
            self._download(entry, part.path)
            with part.path.open("rb") as file:
                os.fsync(file.fileno())
            self._space.publish(part, path)
        except BaseException:
            part.path.unlink(missing_ok=True)
            part.lock.release()
            raise
        self._checked.add(path)
        return part.lock

    def _download(self, entry: ShardEntry, to: Path) -> None:
        """Download a shard. After a fork, use a new process, because obstore's threads do not survive forks."""
        request = self._dataset / entry.file, entry, to
        if self._pid == os.getpid():
            download(request)
            return
        from packer.engines.processes import ProcessEndedError, TaskProcess  # imports multiprocessing

        with self._asking:
            if self._process is None or self._process[0] != os.getpid():
                self._process = os.getpid(), TaskProcess(pickle.dumps(download))
            try:
                self._process[1].call(request)
            except ProcessEndedError as error:
                self._process = None
                raise PackerError(f"{request[0]}: the process that fetches it ended ({error})") from None

    @contextlib.contextmanager
    def _local_errors(self) -> Iterator[None]:
        """Convert errors of the cache folder to a PackerError of one line."""
        try:
            yield
        except OSError as error:
            name = error.filename or self._space.folder
            if (short := shortage(error)) is not None:
                raise PackerError(f"{name}: {short}") from error
            raise PackerError(
                f"{name}: {error.strerror or error}; the cache of {self._space.folder} cannot be written: free some "
                "space, choose fewer cache_bytes, or another cache_dir"
            ) from error


def download(request: tuple[RemotePath, ShardEntry, Path]) -> None:
    """Download a shard: `request` is (path, entry, file to write). Retry once if it does not match the manifest."""
    source, entry, to = request
    for _ in range(2):
        try:
            source.download(to)
        except OSError as error:
            if error.errno is not None and error.filename != str(source):
                raise  # error of the local file
            reason = f"{source}: {error.strerror}" if error.strerror else str(error)
            if isinstance(error, FileNotFoundError):
                reason = f"{source} is missing, but listed in the manifest: {_RESTORE}"
            raise PackerError(reason) from error
        fault = _fault(to, entry)
        if fault is None:
            return
    raise PackerError(f"{source} {fault}, also when fetched again: it was changed after packing; {_RESTORE}")


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Describe how a file differs from its entry in the manifest. Returns None if they match."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"


_RETRY_PAUSE = 0.5  # seconds before fetching a shard again that did not fit into the cache


class ReadAhead:
    """Fetches shards that are needed soon, in a thread that ends when there is nothing to do.

    Errors are ignored: a reader that needs the shard fetches it again, and raises the error.
    """

    def __init__(self, cache: ShardCache) -> None:
        self.pid = os.getpid()
        self._cache = cache
        self._changing = threading.Lock()
        self._missing: list[int] = []  # shards to fetch; some may already be in the cache
        self._is_running = False

    def want(self, shards: Sequence[int]) -> None:
        """Set the shards to fetch, most urgent first; they replace the previous ones."""
        with self._changing:
            self._missing = [*shards]
            if self._missing and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="packer read ahead", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changing:
                self._is_running = bool(self._missing)
                if not self._missing:
                    return
                shard = self._missing[0]
            try:
                has_room = self._cache.fetch(shard)
            except Exception:  # raised again by the reader that needs the shard
                has_room = True
            if not has_room:
                time.sleep(_RETRY_PAUSE)
            with self._changing:
                if has_room and shard in self._missing:
                    self._missing.remove(shard)
