"""Run tasks in threads of this process.

Gathering, hashing and writing release the interpreter lock, so threads keep all cores busy and share one mapping of the
tokens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from packer.plan.threads import AHEAD, as_completed

Task = TypeVar("Task")
Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818 (nothing went wrong in the task)
    """Raised in a task to end it because its result is no longer needed."""


def available_workers() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task, Callable[[], None]], Result], tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Call a function for every task; yield results as they arrive, in any order.

    At the first exception, or when the caller stops iterating, tasks that have not begun are cancelled, tasks that have
    are stopped and waited for, and the exception is raised.

    Args:
        function: called as `function(task, raise_if_cancelled)`. It should call `raise_if_cancelled()` regularly, which
            raises `Stopped` if the task must end.
        tasks: arguments of the calls.
        workers: largest number of tasks that run at the same time.
    """
    stopping = threading.Event()

    def raise_if_cancelled() -> None:
        if stopping.is_set():
            raise Stopped

    workers = max(1, min(workers, len(tasks)))
    places = threading.Semaphore(workers)

    def run(task: Task) -> Result:
        with places:
            raise_if_cancelled()
            return function(task, raise_if_cancelled)

    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        submitted = (pool.submit(run, task) for task in tasks)
        for future in as_completed(submitted, ahead=AHEAD * workers):
            yield future.result()
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)
        for _ in range(workers):  # subtle: an interrupt may hide a thread from the pool as it starts
            places.acquire()
        places.release(workers)
