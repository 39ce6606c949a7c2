"""Fetch shards ahead of their use, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from packer.loader.cache.file_locks import FileLock

_PAUSE = 0.5  # seconds until a shard that did not fit into the cache is tried again
_IDLE = 10.0  # seconds after which the thread ends; it starts again when there is something to do


class ReadAhead:
    """Shards that are wanted soon, fetched one after the other.

    Errors are not raised here: whoever needs the shard fetches it again, and raises its error then.

    Args:
        fetch: fetches a shard by its number if there is room; returns whether there was.
        announce: returns a lock that keeps a shard in the cache while it is wanted.
    """

    def __init__(self, fetch: Callable[[int], bool], announce: Callable[[int], FileLock | None]) -> None:
        self._fetch = fetch
        self._announce = announce
        self._changed = threading.Condition()
        self._missing: list[int] = []  # wanted, and perhaps not in the cache yet
        self._locks: dict[int, FileLock | None] = {}  # of all shards that are wanted
        self._is_running = False

    def want(self, shards: Sequence[int]) -> None:
        """Replace the shards that are wanted, the most urgent first."""
        with self._changed:
            for shard in [shard for shard in self._locks if shard not in shards]:
                lock = self._locks.pop(shard)
                if lock is not None:
                    lock.release()
            self._missing = [shard for shard in shards if shard in self._missing or shard not in self._locks]
            self._locks |= {shard: self._announce(shard) for shard in shards if shard not in self._locks}
            if self._missing and not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="packer read ahead", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._missing:
                    self._changed.wait(_IDLE)
                if not self._missing:
                    self._is_running = False
                    return
                shard = self._missing[0]
            try:
                has_room = self._fetch(shard)
            except Exception:  # raised again for whoever needs the shard
                has_room = True
            with self._changed:
                if not has_room:
                    self._changed.wait(_PAUSE)
                elif shard in self._missing:
                    self._missing.remove(shard)
