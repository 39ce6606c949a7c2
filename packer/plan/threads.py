"""Run kernels, which release the interpreter's lock, in threads, and wait for them so that signals may interrupt.

A signal handler may raise an exception anywhere in the Python code of the main thread. `Future.result`, `as_completed`
and `Executor.map` wait in `threading.Condition`, where such an exception can release a lock that a worker holds; the
worker then fails with a traceback. `queue.SimpleQueue` waits in C, where no exception can be raised in between.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Calls that are submitted per thread before their results are taken, the running one included."""


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Call a function for every item, `threads` at a time, and return the results in order."""
    return list(each_in_threads(function, items, threads))


def each_in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Like `in_threads`, but yield the results; only a few results are held, however many items there are."""
    if threads == 1:
        yield from map(function, items)
        return
    coming = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        futures = deque(pool.submit(function, item) for item in islice(coming, AHEAD * threads))
        try:
            while futures:
                yield result_of(futures.popleft())
                futures.extend(pool.submit(function, item) for item in islice(coming, 1))
        finally:
            for future in futures:
                future.cancel()


def as_completed(futures: Iterable[Future[Result]], *, ahead: int | None = None) -> Iterator[Future[Result]]:
    """Yield futures as they finish, in any order.

    Args:
        futures: futures; those of an iterator may be submitted when they are taken from it.
        ahead: number of futures that are taken before the first one has finished; None for all. Later ones are taken
            one by one, so that a million tasks are not a million futures.
    """
    ended: SimpleQueue[Future[Result]] = SimpleQueue()
    coming = iter(futures)
    count = 0
    for future in islice(coming, ahead):
        future.add_done_callback(ended.put)
        count += 1
    while count:
        done = ended.get()
        count -= 1
        for future in islice(coming, 1):
            future.add_done_callback(ended.put)
            count += 1
        yield done


def result_of(future: Future[Result]) -> Result:
    """Wait for a future, and return its result or raise its exception."""
    return next(as_completed([future])).result()
