"""Engines, which run the tasks of a stage.

A stage is a number of tasks, each of which leaves a file when it is done: a note, a decoded stream or a shard. Any
process may run any task, even a second time, and leaves the same file. Therefore one process or several can work
through a stage, and any later process can do what an interrupted one has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from packer.executors import run_tasks

Result = TypeVar("Result")

Watched: TypeAlias = Callable[[int, Callable[[], None]], Result]
"""A task that runs in a thread of this process, called as `watched(number, raise_if_cancelled)`; see `run_tasks`."""


Done: TypeAlias = Callable[[Sequence[int]], Collection[int]]
"""Function from numbers of tasks to those whose files exist. It is called with many numbers, because each call takes a
request in object storage."""


class Engine(Protocol):
    """Divides the tasks of stages among threads, processes or machines."""

    @property
    def workers(self) -> int:
        """Largest number of tasks that this process runs at the same time."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes work on the same output; files that they finished are then not checked again."""

    @property
    def is_local(self) -> bool:
        """Whether tasks run in threads of this process; if not, they are pickled."""

    def run(
        self, task: Callable[[int], Result], numbers: Sequence[int], watched: Watched[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks; yield their results as they arrive, in any order. The first error ends all tasks.

        Args:
            task: function of a number.
            numbers: numbers of the tasks.
            watched: the same for threads of this process, which can report progress and be stopped.
        """

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield tasks for this process to run, until all tasks are done.

        Args:
            tasks: numbers of the tasks of a stage.
            done: returns which of some tasks have left their file; called repeatedly if processes share the work.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """An engine that does all the work, in threads of this process."""

    workers: int = 1
    """Largest number of tasks at the same time."""

    @property
    def is_shared(self) -> bool:
        """Always False."""
        return False

    @property
    def is_local(self) -> bool:
        """Always True."""
        return True

    def run(
        self, task: Callable[[int], Result], numbers: Sequence[int], watched: Watched[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks in threads."""

        def unwatched(number: int, raise_if_cancelled: Callable[[], None]) -> Result:
            raise_if_cancelled()
            return task(number)

        return run_tasks(watched or unwatched, numbers, self.workers)

    def assigned(self, tasks: Sequence[int], done: Done) -> Iterator[list[int]]:
        """Yield the tasks that are not done, once."""
        missing = without(tasks, done(tasks))
        if missing:
            yield missing


def run_once(engine: Engine, task: Callable[[], Result], is_done: Callable[[], bool]) -> Result | None:
    """Do what exactly one process must do, and wait until it is done; another does it if that process dies.

    Args:
        engine: decides which process does it.
        task: function that does it.
        is_done: whether it is done, by any process.

    Returns:
        The result of the task; None in processes that did not run it.
    """
    result = None
    for _ in engine.assigned([0], lambda only: only if is_done() else ()):
        result = task()
    return result


def without(tasks: Sequence[int], done: Collection[int]) -> list[int]:
    """Return the tasks that are not done, in order."""
    left_out = frozenset(done)
    return [task for task in tasks if task not in left_out]
