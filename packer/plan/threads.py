"""Kernels side by side, as they release the interpreter's lock; and waiting for threads so that an interrupt may come.

What a signal raises in the main thread may strike anywhere in Python code. Inside `threading.Condition`, which
`Future.result`, `as_completed` and `Executor.map` wait on, it can release a lock that a worker holds, and the worker
dies of that with a traceback. `queue.SimpleQueue` waits in C, where nothing strikes in between.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 3
"""Calls begun for each thread before their results are taken, its own included."""


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Call a function for every item, `threads` at a time; return what it gave, in order."""
    return list(each_in_threads(function, items, threads))


def each_in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """As `in_threads`, one result after the other; those that nobody has taken yet are few, however many items."""
    if threads == 1:
        yield from map(function, items)
        return
    coming = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        futures = deque(pool.submit(function, item) for item in islice(coming, _AHEAD * threads))
        try:
            while futures:
                yield result_of(futures.popleft())
                futures.extend(pool.submit(function, item) for item in islice(coming, 1))
        finally:
            for future in futures:
                future.cancel()


def as_they_end(futures: Iterable[Future[Result]]) -> Iterator[Future[Result]]:
    """Yield futures as they are done, in any order."""
    ended: SimpleQueue[Future[Result]] = SimpleQueue()
    count = 0
    for future in futures:
        future.add_done_callback(ended.put)
        count += 1
    for _ in range(count):
        yield ended.get()


def result_of(future: Future[Result]) -> Result:
    """Wait for a future; return its result, or raise what it raised."""
    return next(as_they_end([future])).result()
