"""SIGINT and SIGTERM end the command with one line and exit code 130 or 143, whenever they arrive."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from packer.progress import INTERRUPTED

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_AGAIN = 0.01  # seconds


class Signalled(KeyboardInterrupt):
    """Raised in the main thread by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_at_once(number: int, _: FrameType | None) -> None:
    """Handle a signal before work begins or after it ends: print a line and exit as a shell would report it."""
    os.write(2, f"packer: {WORDS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def handle_from_the_start() -> None:
    """Install `end_at_once` for signals that are neither ignored nor handled; called before the slow imports."""
    for number in _unhandled():
        signal.signal(number, end_at_once)


@contextmanager
def raising() -> Iterator[None]:
    """Raise `Signalled` in the main thread for SIGINT and SIGTERM, unless they are ignored or handled elsewhere.

    A second signal ends the process at once, without waiting for a shard to be synced. Python swallows an exception
    that is raised in a callback from C code (LLVM has some) or in a destructor; such an exception is raised again until
    it gets through.
    """
    ours = _unhandled()
    usual = {number: signal.getsignal(number) for number in (*ours, signal.SIGALRM)}
    usual_hook = sys.unraisablehook

    def stop(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        INTERRUPTED.set()
        raise Signalled(number)

    def raise_again(unraisable: sys.UnraisableHookArgs) -> None:
        swallowed = unraisable.exc_value
        if not isinstance(swallowed, Signalled):
            usual_hook(unraisable)
            return
        number = swallowed.number
        signal.signal(signal.SIGALRM, lambda *_: stop(number, None))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    for number in ours:
        signal.signal(number, stop)
    if ours:
        sys.unraisablehook = raise_again
    try:
        yield
    finally:
        INTERRUPTED.clear()
        if ours:
            sys.unraisablehook = usual_hook
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in usual.items():
                signal.signal(number, handler)


def _unhandled() -> list[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread can handle signals
    free = (signal.SIG_DFL, signal.default_int_handler, end_at_once)
    return [number for number in WORDS if signal.getsignal(number) in free]
