"""Engines, which run the tasks of a stage.

A stage is a number of tasks. Each task writes a file when it is done: a checkpoint, a decoded stream or a shard. Any
process may run any task, even a second time, and writes the same file. Therefore one process or several can work
through a stage, and a later process can finish what an interrupted one left undone.

`packer.signals.raise_if_interrupted` is called before each task, and regularly in tasks that run in threads of this
process. This call ends tasks if a signal is to end the command, or if another task failed. Tasks call
`CURRENT_TASK.report` while they run, so that progress is visible before they are done.

If packer is called as a library, Ctrl-C raises KeyboardInterrupt anywhere in the Python code of the main thread.
`Future.result`, `concurrent.futures.as_completed` and `Executor.map` wait in `threading.Condition`. There,
KeyboardInterrupt can release a lock that a worker holds, and the worker fails with a traceback. The functions of this
module wait in `queue.SimpleQueue` instead. It is written in C, so no exception can interrupt it halfway.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import ClassVar, TypeAlias, TypeVar

from packer.signals import CURRENT_TASK, raise_if_interrupted

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 3
"""Number of calls per thread in flight, including the running one."""

_DECODED_AHEAD = 1  # number of results that may wait in a `DecodePool`, in addition to one per worker

Call: TypeAlias = Callable[[int], Result]
"""Function that runs task `number` of a stage and returns its result."""

Report: TypeAlias = Callable[..., None] | None
"""Function that a running task on this machine calls with its number and the amount of work done so far."""

Done: TypeAlias = Callable[[Sequence[int]], Collection[int]]
"""Function that returns which of the given tasks have written their files.

It is called with many task numbers at a time, because each call makes a request to object storage.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Runs the tasks of stages in threads of this process; subclasses divide them among processes or machines.

    Gathering, hashing and writing release the interpreter lock, so threads keep all cores busy. They share one mapping
    of the tokens.
    """

    workers: int = 1
    """Maximum number of tasks that run at once in this process."""

    is_shared: ClassVar[bool] = False
    """Whether other processes work on the same output. Files that they have finished are then not checked again."""

    is_local: ClassVar[bool] = True
    """Whether tasks run in threads of this process; otherwise they are pickled."""

    def run(
        self, task: Call[Result], numbers: Sequence[int], report: Report = None, *, local: Call[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks; yield their results as they arrive, in any order. The first error ends all tasks.

        local: the same task for threads of this process; it may share objects that cannot be pickled.
        """
        return run_tasks(local or task, numbers, self.workers, report)

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield tasks for this process to run, until all tasks are done.

        `done` is called repeatedly if several processes share the work.
        """
        raise_if_interrupted()
        missing = without(tasks, done(tasks))
        if missing:
            yield missing

    def run_missing(
        self, task: Call[Result], numbers: Sequence[int], done: Done, report: Report = None
    ) -> Iterator[Result]:
        """Run tasks until all are done. Yields the results of the tasks that this process ran."""
        for missing in self.assigned(numbers, done):
            yield from self.run(task, missing, report)


def run_once(engine: Engine, task: Callable[[], Result], is_done: Callable[[], bool]) -> Result | None:
    """Run a task in one process while the others wait. If that process dies, another one takes over.

    is_done: function that returns whether any process has finished the task. Returns the result of the task, or None in
    processes that did not run it.
    """
    result = None
    for _ in engine.assigned([0], lambda only: only if is_done() else ()):
        result = task()
    return result


def without(tasks: Sequence[int], done: Collection[int]) -> list[int]:
    """Return the tasks that are not in `done`, in order."""
    left_out = frozenset(done)
    return [task for task in tasks if task not in left_out]


def available_workers() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int, report: Report = None
) -> Iterator[Result]:
    """Call a function for every task; yield results as they arrive, in any order.

    The function should call `raise_if_interrupted()` regularly. At the first exception, or when the caller stops
    iterating, waiting tasks are cancelled. Running tasks are stopped and waited for, and the exception is raised.
    """
    stopping = threading.Event()
    workers = max(1, min(workers, len(tasks)))
    places = threading.Semaphore(workers)

    def run(task: Task) -> Result:
        with places:
            CURRENT_TASK.stopping = stopping
            if report is not None:
                CURRENT_TASK.report = partial(report, task)
            raise_if_interrupted()
            return function(task)

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


class DecodePool:
    """A fixed number of threads that decode blocks for several readers. Each reader gets its results in order.

    Each reader always has one block being decoded. The number of blocks decoded ahead is limited for all readers
    together, so memory does not grow with the number of readers. A single reader, such as one big compressed file, can
    still keep all threads busy.
    """

    def __init__(self, workers: int) -> None:
        self._workers = ThreadPoolExecutor(workers)
        self._ahead = threading.Semaphore(workers + _DECODED_AHEAD if workers > 1 else 0)

    def close(self) -> None:
        """Wait until the workers have finished."""
        self._workers.shutdown()

    def in_order(self, function: Callable[[Task], Result], items: Iterable[Task]) -> Generator[Result, None, None]:
        """Yield `function(item)` for every item, in order.

        Items are taken in the calling thread. An exception of `items` or `function` is raised after earlier results.
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
                    except Exception as error:  # raised when its turn comes
                        more, future = False, Future()
                        future.set_exception(error)
                    pending.append(future)
                if not pending:
                    return
                done = pending.popleft()
                self._let_go(pending)
                yield next(as_completed([done])).result()
        finally:
            while pending:
                pending.popleft().cancel()
                self._let_go(pending)

    def _let_go(self, pending: deque[Future[Result]]) -> None:
        """Allow another result to be computed ahead, unless the reader was waiting for this result."""
        if pending:
            self._ahead.release()


def as_completed(futures: Iterable[Future[Result]], *, ahead: int | None = None) -> Iterator[Future[Result]]:
    """Yield futures as they finish, in any order. `futures` may be an iterator that submits each future on demand.

    At most `ahead` futures are in flight (None: all), so a million tasks do not become a million futures.
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
