"""Shards in the cache of a node: each is fetched by one process, ahead if possible, and locked while it is read."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packer.engines.processes import ProcessEndedError, TaskProcess
from packer.errors import PackerError, shortage
from packer.json_records import ShardEntry
from packer.loader.cache_space import CacheSpace, Part, Wait, try_lock
from packer.loader.open_shards import OpenShard
from packer.options import byte_size
from packer.shards.manifest import Manifest, dataset_key
from packer.stores import RemotePath
from packer.stores.local_files import FileLock

_RESTORE = "restore it, or pack again to another folder"

ROOM_PATIENCE = 10.0
"""Seconds to wait until other processes release shards that fill the cache."""

_PAUSE = 0.02  # seconds between two looks at what another process does


class ShardCache:
    """Shards of a dataset that is read through the cache: fetched when they are needed, or ahead.

    One process fetches a shard while others wait. It is written under a temporary name, verified and renamed, so a
    killed process leaves nothing that looks like a shard. A process hashes a shard that was there already before its
    first use, because the disk may have changed it; a damaged one is fetched again.
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
        self._process: tuple[int, TaskProcess] | None = None  # what downloads for a forked process, given its id
        self._asking = threading.Lock()
        self._ahead: ReadAhead | None = None
        self._wanted: tuple[Sequence[int], Sequence[int]] = (), ()

    def open(self, number: int, give_up_one: Callable[[], bool]) -> OpenShard:
        """Map a shard, given its number; fetch it if it is not in the cache.

        If there is no room, `give_up_one` closes a shard that this process no longer needs, and returns whether there
        was one.
        """
        entry = self._manifest.shards[number]
        path = self._folder / entry.file
        with self._local_errors():
            deadline = time.monotonic() + ROOM_PATIENCE
            while (lock := self._locked(entry)) is None:
                part = self._space.reserve(path, entry.bytes)
                if isinstance(part, Part):
                    lock = self._fetched(entry, part)
                    break
                if part is Wait.OTHER:
                    deadline = time.monotonic() + ROOM_PATIENCE
                elif give_up_one():
                    continue
                elif time.monotonic() > deadline:
                    raise self._space.shortage(path, entry.bytes)
                time.sleep(_PAUSE)
        try:
            return OpenShard(self._folder, entry, self._manifest, lock)
        except PackerError as error:
            lock.release()
            raise PackerError(str(error).replace(str(self._folder), str(self._dataset))) from error

    def fetch_ahead(self, shards: Sequence[int], upcoming: Sequence[int]) -> None:
        """Fetch shards that are read now, then upcoming ones, in the background.

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
        """Fetch a shard that is not needed yet, if there is room. Returns whether there was room."""
        entry = self._manifest.shards[number]
        with self._local_errors():
            lock = self._locked(entry)
            if lock is None:
                part = self._space.reserve(self._folder / entry.file, entry.bytes)
                if isinstance(part, Wait):
                    return part is Wait.OTHER
                lock = self._fetched(entry, part)
        lock.release()
        return True

    def _locked(self, entry: ShardEntry) -> FileLock | None:
        """Lock a shard for reading, so that it stays in the cache; return None if it is not there."""
        path = self._folder / entry.file
        with contextlib.suppress(FileNotFoundError):
            while (lock := try_lock(path, shared=True, create=False)) is None:
                time.sleep(0.001)  # another process tries whether it can be evicted
            is_checked = path in self._checked and path.stat().st_size == entry.bytes
            if is_checked or _fault(path, entry) is None:
                self._checked.add(path)
                with contextlib.suppress(PermissionError):  # of another user
                    os.utime(path)
                return lock
            lock.release()
            path.unlink()  # no process writes such a file: it was changed later
        return None

    def _fetched(self, entry: ShardEntry, part: Part) -> FileLock:
        """Fetch a shard into a file that was reserved for it, and lock it like `_locked`."""
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
        """Download a shard; after a fork, which no thread of obstore survives, in a new process."""
        request = self._dataset / entry.file, entry, to
        if self._pid == os.getpid():
            download(request)
            return
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
        """Raise errors of the cache folder as a PackerError of one line."""
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
    """Download a shard, given its path, its entry and a file to write; once more if it does not match the manifest."""
    source, entry, to = request
    for _ in range(2):
        try:
            source.download(to)
        except OSError as error:
            if error.errno is not None and error.filename != str(source):
                raise  # of the local file
            reason = f"{source}: {error.strerror}" if error.strerror else str(error)
            if isinstance(error, FileNotFoundError):
                reason = f"{source} is missing, but listed in the manifest: {_RESTORE}"
            raise PackerError(reason) from error
        fault = _fault(to, entry)
        if fault is None:
            return
    raise PackerError(f"{source} {fault}, also when fetched again: it was changed after packing; {_RESTORE}")


def _fault(path: Path, entry: ShardEntry) -> str | None:
    """Return how a file differs from its entry in the manifest, or None."""
    from packer.shards.files import hash_file  # imports xxhash, which local datasets do not need

    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, the manifest says {entry.bytes:,}"
    return None if hash_file(path) == entry.xxh3_128 else "does not match its hash in the manifest"


_RETRY_PAUSE = 0.5  # seconds until a shard that did not fit into the cache is tried again


class ReadAhead:
    """Fetches shards that are wanted soon, in a thread that ends when there is nothing to do.

    Errors are ignored here: a reader that needs the shard fetches it again, and raises them.
    """

    def __init__(self, cache: ShardCache) -> None:
        self.pid = os.getpid()
        self._cache = cache
        self._changing = threading.Lock()
        self._missing: list[int] = []  # wanted, and perhaps not in the cache yet
        self._is_running = False

    def want(self, shards: Sequence[int]) -> None:
        """Replace the shards that are wanted, the most urgent first."""
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
            except Exception:  # raised again when the shard is needed
                has_room = True
            if not has_room:
                time.sleep(_RETRY_PAUSE)
            with self._changing:
                if has_room and shard in self._missing:
                    self._missing.remove(shard)
