"""Which tasks of a stage this process runs.

A stage is a number of tasks, each of which leaves a file when it is done: a note, a decoded stream or a shard. Any
process may run any task, even a second time, and leaves the same file. So one process or several can work through a
stage, and what is left of an interrupted one is done by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Engine(Protocol):
    """Divides the tasks of stages among processes."""

    @property
    def workers(self) -> int:
        """Largest number of tasks that this process runs at the same time."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes work on the same output. Files that they finished are then taken as they are."""

    def assigned(self, tasks: Sequence[int], is_done: Callable[[int], bool]) -> Iterator[list[int]]:
        """Yield tasks for this process to run, until all tasks are done.

        Args:
            tasks: numbers of the tasks of a stage.
            is_done: whether a task has left its file; called again and again if processes share the work.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """An engine for a process that does all the work."""

    workers: int = 1
    """Largest number of tasks at the same time."""

    @property
    def is_shared(self) -> bool:
        """Always False."""
        return False

    def assigned(self, tasks: Sequence[int], is_done: Callable[[int], bool]) -> Iterator[list[int]]:
        """Yield the tasks that are not done, once."""
        missing = [task for task in tasks if not is_done(task)]
        if missing:
            yield missing
