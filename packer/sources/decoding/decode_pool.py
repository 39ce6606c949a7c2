"""A pool of decoding threads, which limits how many work at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from packer.plan.threads import result_of

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 2  # of a pool for a single reader
_AHEAD = 2  # results that may wait, beyond one per worker


class DecodePool:
    """A fixed number of permits to work, shared by threads that read files and by helper threads.

    Files are decoded in parallel, with one permit each. If there are fewer files than workers, as with one big
    compressed file, helpers use the spare permits to decode blocks ahead of the thread that reads the file. The reader
    decodes a block itself rather than wait until a helper begins it.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._permits = threading.Semaphore(workers)
        self._helpers = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._readers = 0  # that work or wait for a permit; they take precedence over helpers
        self._helping = 0
        self._unstarted: deque[_Task[Any]] = deque()

    def close(self) -> None:
        """Wait until the helpers have finished."""
        self._helpers.shutdown()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Wait for a permit to work, and hold it."""
        with self._lock:
            self._readers += 1
        try:
            with self._permits:
                yield
        finally:
            with self._lock:
                self._readers -= 1

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yield `function(item)` for every item, in order; the calling thread must be `working`.

        Items are drawn in the calling thread. A few results are computed ahead while there are spare permits. An
        exception that `items` or `function` raises is raised after the results before it.
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
        """Queue the next item for any thread to work on; return False if there are no further items."""
        try:
            task = _Task(function, next(taken))
        except StopIteration:
            return False
        except Exception as error:  # raised in its turn
            task = _Task(function, None)
            task.set_exception(error)
            pending.append(task)
            return False
        pending.append(task)
        with self._lock:
            self._unstarted.append(task)
            missing = self._readers + self._helping < self._workers
            self._helping += missing
        if missing:
            self._helpers.submit(self._help)
        return True

    def _take_back(self, pending: Iterable[_Task[Result]]) -> _Task[Result] | None:
        """Take the first of these tasks that no thread has begun off the queue; None if all have begun."""
        with self._lock:
            for task in pending:
                if task in self._unstarted:
                    self._unstarted.remove(task)
                    return task
        return None

    def _help(self) -> None:
        """Work on queued tasks until there are none, or a reader needs the permit."""
        with self._permits:
            while True:
                with self._lock:
                    if not self._unstarted or self._readers + self._helping > self._workers:
                        self._helping -= 1
                        return
                    task = self._unstarted.popleft()
                task.run()


@contextmanager
def pool_or_new(pool: DecodePool | None) -> Iterator[DecodePool]:
    """Yield the pool in which the calling thread is working: the given one, or a small new one if it is None."""
    if pool is not None:
        yield pool
        return
    with closing(DecodePool(_THREADS)) as new, new.working():
        yield new


class _Task(Future[Result]):
    """A call that one of the threads makes."""

    def __init__(self, function: Callable[[Any], Result], item: Any) -> None:
        super().__init__()
        self._function, self._item = function, item

    def run(self) -> None:
        try:
            self.set_result(self._function(self._item))
        except BaseException as error:  # an interrupted template raises KeyboardInterrupt
            self.set_exception(error)
