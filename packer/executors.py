"""Where tasks run: in threads of this process.

Gathering, hashing and writing all release the interpreter's lock, so that threads fill the cores, and the tokens are
mapped once for all of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from packer.plan.threads import as_they_end

Task = TypeVar("Task")
Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818 (nothing went wrong in the task)
    """Ends a task whose result nobody waits for any more."""


def available_workers() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task, Callable[[], None]], Result], tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Run a function on every task; yield results as they come, in any order.

    On the first exception, or when the caller stops, tasks that have not begun are given up, those that have are
    stopped and waited for, and the exception goes on.

    Args:
        function: takes a task, and what it is to call now and then: that raises `Stopped` when the task is to end.
        tasks: one call each.
        workers: calls at a time, at most.
    """
    stopping = threading.Event()

    def go_on() -> None:
        if stopping.is_set():
            raise Stopped

    workers = max(1, min(workers, len(tasks)))
    places = threading.Semaphore(workers)

    def run(task: Task) -> Result:
        with places:
            go_on()
            return function(task, go_on)

    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for future in as_they_end([pool.submit(run, task) for task in tasks]):
            yield future.result()
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
        for _ in range(workers):  # subtle: a thread that an interrupt hid from the pool as it started
            places.acquire()
        places.release(workers)
