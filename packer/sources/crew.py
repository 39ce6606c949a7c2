"""Threads that decode: as many at work as there are workers, whatever they work on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # results that may wait beyond one for each worker


class Crew:
    """A fixed number of permits to work, and threads that help whoever holds one while others are spare.

    Files decode side by side, a permit each. Where there are fewer of them than workers, as with one big compressed
    file, the permits that are left decode blocks ahead of the thread that reads it.
    """

    def __init__(self, workers: int) -> None:
        self._ahead = workers + _AHEAD
        self._permits = threading.Semaphore(workers)
        self._helpers = ThreadPoolExecutor(workers)

    def close(self) -> None:
        """Wait for the helpers."""
        self._helpers.shutdown()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold a permit; wait for one first."""
        with self._permits:
            yield

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield function(item) in the order of the items, which are taken in this thread; it must be `working`.

        A few results are made ahead while there are spare permits, else none. What taking or working on an item
        raises, is raised in its turn.
        """
        pending: deque[Future[Result]] = deque()
        taken = iter(items)
        more = True
        try:
            while True:
                while more and len(pending) < self._ahead and self._permits.acquire(blocking=False):
                    more = self._begin(function, taken, pending)
                if pending and (not more or len(pending) >= self._ahead or pending[0].done()):
                    yield pending.popleft().result()
                elif more:
                    more = _do(function, taken, pending)
                else:
                    return
        finally:
            for future in pending:
                future.cancel()

    def _begin(self, function: Callable[[Item], Result], taken: Iterator[Item], pending: deque[Future[Result]]) -> bool:
        """Have a helper work on the next item, with a permit that has been acquired; False where there is none."""
        try:
            item = next(taken)
        except BaseException as error:
            self._permits.release()
            return _ended(error, pending)
        future = self._helpers.submit(function, item)
        future.add_done_callback(lambda _: self._permits.release())
        pending.append(future)
        return True


def _do(function: Callable[[Item], Result], taken: Iterator[Item], pending: deque[Future[Result]]) -> bool:
    """Work on the next item here; False where there is none."""
    try:
        item = next(taken)
    except BaseException as error:
        return _ended(error, pending)
    future: Future[Result] = Future()
    try:
        future.set_result(function(item))
    except Exception as error:
        future.set_exception(error)
    pending.append(future)
    return True


def _ended(error: BaseException, pending: deque[Future[Result]]) -> bool:
    """Take note that there are no more items: the end, or an error that waits for its turn."""
    if not isinstance(error, StopIteration):
        if not isinstance(error, Exception):
            raise error
        failed: Future[Result] = Future()
        failed.set_exception(error)
        pending.append(failed)
    return False
