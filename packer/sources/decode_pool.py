"""Threads that decode: as many at work as there are workers, whatever they work on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from packer.plan.threads import result_of

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # results that may wait beyond one for each worker


class DecodePool:
    """A fixed number of permits to work, and threads that help whoever holds one while others are spare.

    Files decode side by side, a permit each. Where there are fewer of them than workers, as with one big compressed
    file, helpers with the permits that are left decode blocks ahead of the thread that reads it. They find the next
    block waiting for them; what they have not begun, the reader does itself rather than wait.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._permits = threading.Semaphore(workers)
        self._helpers = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._readers = 0  # that work, or wait for a permit: they go before helpers
        self._helping = 0
        self._open: deque[_Task[Any]] = deque()  # nobody has begun them

    def close(self) -> None:
        """Wait for the helpers."""
        self._helpers.shutdown()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold a permit; wait for one first."""
        with self._lock:
            self._readers += 1
        try:
            with self._permits:
                yield
        finally:
            with self._lock:
                self._readers -= 1

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield function(item) in the order of the items, which are taken in this thread; it must be `working`.

        A few results are made ahead while there are spare permits, else none. What taking or working on an item
        raises, is raised in its turn.
        """
        pending: deque[_Task[Result]] = deque()
        taken = iter(items)
        more = True
        try:
            while True:
                while more and len(pending) < self._most_pending():
                    more = self._offer(function, taken, pending)
                if not pending:
                    return
                if not pending[0].done() and (mine := self._take_back(pending)):
                    mine.run()
                    continue
                yield result_of(pending.popleft())
        finally:
            while self._take_back(pending):
                pass

    def _most_pending(self) -> int:
        return self._workers + _AHEAD if self._readers < self._workers else 1

    def _offer(self, function: Callable[[Item], Result], taken: Iterator[Item], pending: deque[_Task[Result]]) -> bool:
        """Take the next item for whoever comes first to work on it; False where there is none."""
        try:
            task = _Task(function, next(taken))
        except StopIteration:
            return False
        except Exception as error:  # waits for its turn
            task = _Task(function, None)
            task.set_exception(error)
            pending.append(task)
            return False
        pending.append(task)
        with self._lock:
            self._open.append(task)
            missing = self._readers + self._helping < self._workers
            self._helping += missing
        if missing:
            self._helpers.submit(self._help)
        return True

    def _take_back(self, pending: Iterable[_Task[Result]]) -> _Task[Result] | None:
        """The first of these that nobody has begun, to be done here."""
        with self._lock:
            for task in pending:
                if task in self._open:
                    self._open.remove(task)
                    return task
        return None

    def _help(self) -> None:
        """Work on what is open, while there is anything and no reader needs the permit."""
        with self._permits:
            while True:
                with self._lock:
                    if not self._open or self._readers + self._helping > self._workers:
                        self._helping -= 1
                        return
                    task = self._open.popleft()
                task.run()


class _Task(Future[Result]):
    """A call that somebody makes, once."""

    def __init__(self, function: Callable[[Any], Result], item: Any) -> None:
        super().__init__()
        self._function, self._item = function, item

    def run(self) -> None:
        try:
            self.set_result(self._function(self._item))
        except Exception as error:
            self.set_exception(error)
