"""A pool of threads that decode blocks of files ahead of the threads that read them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

from packer.engine import result_of

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 2  # of a pool for a single reader
_AHEAD = 1  # results that may wait, beyond one per worker


class DecodePool:
    """A fixed number of workers, shared by threads that read files.

    Every reader has one block in work. Blocks decoded ahead are limited for all readers together, so that memory
    does not grow with their number: a single reader, as of one big compressed file, keeps all workers busy.
    """

    def __init__(self, workers: int) -> None:
        self._workers = ThreadPoolExecutor(workers)
        self._ahead = threading.Semaphore(workers + _AHEAD if workers > 1 else 0)

    def close(self) -> None:
        """Wait until the workers have finished."""
        self._workers.shutdown()

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yield `function(item)` for every item, in order.

        Items are drawn in the calling thread. What `items` or `function` raises is raised after the results before it.
        """
        pending: deque[Future[Result]] = deque()
        coming, more = iter(items), True
        try:
            while True:
                while more and (not pending or self._ahead.acquire(blocking=False)):
                    try:
                        future = self._workers.submit(function, next(coming))
                    except StopIteration:
                        more = False
                        self._let_go(pending)
                        break
                    except Exception as error:  # raised in its turn
                        more, future = False, Future()
                        future.set_exception(error)
                    pending.append(future)
                if not pending:
                    return
                done = pending.popleft()
                self._let_go(pending)
                yield result_of(done)
        finally:
            while pending:
                pending.popleft().cancel()
                self._let_go(pending)

    def _let_go(self, pending: deque[Future[Result]]) -> None:
        """Let another result be computed ahead, unless a reader had one alone, which is not ahead."""
        if pending:
            self._ahead.release()


@contextmanager
def pool_or_new(pool: DecodePool | None) -> Iterator[DecodePool]:
    """Yield the given pool, or a small new one if it is None."""
    if pool is not None:
        yield pool
        return
    with closing(DecodePool(_THREADS)) as new:
        yield new
