"""Where tasks run: in threads of this process.

Gathering, hashing and writing all release the interpreter's lock, so that threads fill the cores, and the tokens are
mapped once for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def available_workers() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Run a function on every task; yield results as they come, in any order.

    On the first exception, or when the caller stops, tasks that have not begun are given up, those that have are
    waited for, and the exception goes on.
    """
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(tasks)))) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
