"""End running work on signals, and on errors of other tasks.

SIGINT and SIGTERM end the command at any time, with one line and exit code 130 or 143. A second signal ends the process
even if its main thread is stuck in a library, because the system resets the handler (SA_RESETHAND) when it delivers the
first signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interrupted(KeyboardInterrupt):
    """Raised in any thread by `raise_if_interrupted`. number: number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interruption:
    """Number of the signal that is to end the command; None if none has arrived."""

    number: int | None = None


INTERRUPTION = Interruption()


class Stopped(Exception):  # noqa: N818 (no error of the task)
    """Raised in a task by `raise_if_interrupted` if its result is no longer needed."""


class CurrentTask(threading.local):
    """The task that runs in this thread."""

    stopping: threading.Event | None = None
    """Event that is set when the results of the task's stage are no longer needed; None outside tasks."""

    report: Callable[..., None] = staticmethod(lambda *_: None)
    """Function that the running task calls with the amount of work done so far, in the units of its stage."""


CURRENT_TASK = CurrentTask()


def raise_if_interrupted() -> None:
    """Raise `Interrupted` if a signal is to end the command, or `Stopped` if another task of the same stage failed.

    It is called between tasks, where progress is reported, and in loops that wait. If a signal handler itself raised an
    exception, it could occur inside a compiled kernel or an import.
    """
    if INTERRUPTION.number is not None:
        raise Interrupted(INTERRUPTION.number)
    if CURRENT_TASK.stopping is not None and CURRENT_TASK.stopping.is_set():
        raise Stopped


def end_at_once(number: int, _: FrameType | None) -> None:
    """Handle a signal before work begins or after it ends: print a line, and exit with the usual code."""
    os.write(2, f"packer: {WORDS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def handle_from_the_start() -> None:
    """Install `end_at_once` for signals that are neither ignored nor handled. Called before the slow imports."""
    for number in _unhandled():
        _handle_once(number, end_at_once)


@contextmanager
def noted() -> Iterator[None]:
    """Remember SIGINT and SIGTERM for `raise_if_interrupted`, unless they are ignored or handled elsewhere.

    No exception is raised in the running code. A second signal ends the process immediately.
    """
    ours = _unhandled()
    usual = {number: signal.getsignal(number) for number in ours}

    def remember(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        INTERRUPTION.number = number
        if os.isatty(2):
            os.write(2, f"packer: {WORDS[signal.Signals(number)]}: ending; again ends at once\n".encode())

    for number in ours:
        _handle_once(number, remember)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if ours:
            INTERRUPTION.number = None


class _SigAction(ctypes.Structure):
    """`struct sigaction` of Linux on 64-bit machines, in glibc and musl."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


_RESET = -0x80000000  # SA_RESETHAND, as an int


def _handle_once(number: int, handler: Callable[[int, FrameType | None], None]) -> None:
    """Install a handler for a signal. The second such signal ends the process."""
    signal.signal(number, handler)
    if sys.platform == "linux" and sys.maxsize > 2**32:
        libc, action = ctypes.CDLL(None), _SigAction()
        libc.sigaction(number, None, ctypes.byref(action))
        action.flags |= _RESET
        libc.sigaction(number, ctypes.byref(action), None)


def _unhandled() -> list[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread can handle signals
    free = (signal.SIG_DFL, signal.default_int_handler, end_at_once)
    return [number for number in WORDS if signal.getsignal(number) in free]
