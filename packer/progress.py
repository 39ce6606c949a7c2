"""Progress of long work. Imports nothing but the standard library."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

STATUS = logging.getLogger("packer.status")
"""Logger for work whose progress cannot be measured, such as compiling; the command shows it on terminals."""


class Interrupted(KeyboardInterrupt):
    """Raised in any thread by `raise_if_interrupted`; `number` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interruption:
    """The signal that is to end the command, if one has arrived."""

    number: int | None = None


INTERRUPTION = Interruption()


class Stopped(Exception):  # noqa: N818 (nothing went wrong in the task)
    """Raised in a task by `raise_if_interrupted` because its result is no longer needed."""


class CurrentTask(threading.local):
    """The task that runs in this thread."""

    stopping: threading.Event | None = None
    """Set once no result of its stage is needed any more; None outside of tasks."""

    report: Callable[..., None] = staticmethod(lambda *_: None)
    """Function to call while the task runs, with the amounts that it has done so far, in the units of its stage."""


CURRENT_TASK = CurrentTask()


def raise_if_interrupted() -> None:
    """Raise `Interrupted` if a signal is to end the command, or `Stopped` if another task of the same stage failed.

    It is called between tasks, where progress is reported, and in loops that wait, because an exception that a signal
    handler raises may strike inside a compiled kernel, or an import.
    """
    if INTERRUPTION.number is not None:
        raise Interrupted(INTERRUPTION.number)
    if CURRENT_TASK.stopping is not None and CURRENT_TASK.stopping.is_set():
        raise Stopped


class Progress(Protocol):
    """Callback of long work; the command line draws a bar from it."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` is finished; one thread at a time calls it, but not always the same one.

        Args:
            stage: word for the work that is going on. Sources report "decode" while they parse Parquet, JSONL or
                compressed Arrow, "tokenize" while they tokenize text, and "lengths" while they walk through mapped
                data.
            done: amount that is finished. Sources count documents.
            total: amount at which the stage ends, in the same unit. How many documents a source has is an estimate
                that improves while the source is read.
        """


class TaskSums:
    """Sums of the amounts that the tasks of a stage have done, as several threads report them while the tasks run.

    Args:
        tell: function that is called with the sums, by one thread at a time.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._sums, self._done = list[int](), dict[int, tuple[int, ...]]()

    def __call__(self, task: int, *done: int) -> None:
        """Report the amounts that a task, given by its number, has done so far."""
        with self._lock:
            before = self._done.get(task, (0,) * len(done))
            sums = self._sums or (0,) * len(done)
            self._sums = [all_ + now - then for all_, now, then in zip(sums, done, before, strict=True)]
            self._done[task] = done
            self._tell(*self._sums)


def documents_of(documents: int, read: float, size: int) -> tuple[int, int]:
    """Return the documents read so far, and an estimate of all from the bytes read of `size`, compressed or not."""
    return documents, documents if read >= size else max(documents, int(documents * size / max(read, 1)))


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""
