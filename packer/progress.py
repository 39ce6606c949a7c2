"""Progress of long work: the callback that reports it, bars on terminals and in notebooks, and lines elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from packer.errors import PackerError, python_names
from packer.plain_text import visible
from packer.signals import raise_if_interrupted

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger(__name__)

STATUS = logging.getLogger("packer.status")
"""Logger for work whose progress cannot be measured, such as compiling; shown only on terminals."""

OF_RANK = logging.getLogger("packer.rank")
"""Logger for messages about one rank. The rank's own process shows them, even if another shows the progress."""

INTERVAL = 15.0  # seconds between lines of progress if stderr is not a terminal
DELAY = 1.0  # seconds of a stage before a bar is drawn on a terminal
TICK = 1.0  # seconds without reports after which the clock of a bar is updated anyway

_UNITS = {
    "decode": ("doc", "documents"),
    "tokenize": ("doc", "documents"),
    "lengths": ("doc", "documents"),
    "write": ("tok", "tokens"),
    "export": ("tok", "tokens"),
    "compare": ("tok", "tokens"),
    "plan": ("part", "partitions"),
    "solve": ("alg", "plans"),
}
"""Unit of each stage, short for a bar, and as a word. Other stages count bytes."""


class Progress(Protocol):
    """Callback that long work reports its progress to. The command line draws a bar from it."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` is finished. Called by one thread at a time, but not always by the same thread.

        Args:
            stage: word for the current work. Sources report "decode" while they parse Parquet, JSONL or compressed
                Arrow, "tokenize" while they tokenize text, and "lengths" while they walk through mapped data.
            done: amount that is finished. Sources count documents.
            total: amount at which the stage ends, in the same unit. For sources, it is an estimate that improves while
                the source is read.
        """


class TaskSums:
    """Sums of the work that the tasks of a stage have done. Several threads may report it while tasks run.

    Args:
        tell: function to call with the sums, by one thread at a time.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._sums, self._done = list[int](), dict[int, tuple[int, ...]]()

    def __call__(self, task: int, *done: int) -> None:
        """Report the amount of work that task `task` has done so far."""
        with self._lock:
            before = self._done.get(task, (0,) * len(done))
            sums = self._sums or (0,) * len(done)
            self._sums = [all_ + now - then for all_, now, then in zip(sums, done, before, strict=True)]
            self._done[task] = done
            self._tell(*self._sums)


def documents_of(documents: int, read: float, size: int) -> tuple[int, int]:
    """Return (documents read so far, estimated total), given that `read` of `size` bytes have been read."""
    return documents, documents if read >= size else max(documents, int(documents * size / max(read, 1)))


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


@contextmanager
def progress_bars(*, silently: bool = False) -> Iterator[Progress]:
    """Show the progress of each stage on stderr, and print log messages there.

    A terminal shows a bar for each stage that takes more than a second, and messages about work whose progress cannot
    be measured, such as compiling. Anything else, such as the log of a cluster, gets a line every 15 seconds. With
    `silently`, only messages about this process are printed, because another process shows the progress of both.
    """
    shown, handler = OF_RANK if silently else logging.getLogger("packer"), logging.StreamHandler()
    handler.setFormatter(_Lines("packer: %(message)s"))
    handler.addFilter(lambda record: record.name != STATUS.name or sys.stderr.isatty())
    level = shown.level
    shown.setLevel(logging.INFO)
    shown.addHandler(handler)
    try:
        if silently:
            yield lambda *_: raise_if_interrupted()
        else:
            with _drawn() as progress:
                yield progress
    finally:
        shown.removeHandler(handler)
        shown.setLevel(level)


@contextmanager
def python_call(progress: Progress | bool) -> Iterator[Progress]:
    """Name options in errors as in Python, and yield the progress callback of a Python function of packer.

    It is the user's callback or, for True, a callback that draws bars only on terminals and in notebooks.
    """
    with python_names():
        if not isinstance(progress, bool):
            if not callable(progress):
                raise PackerError(f"progress is {progress!r}: give True, False or a function")
            yield progress
        elif progress and _has_bars():
            with _drawn() as draw:
                yield draw
        else:
            yield silent


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


def _has_bars() -> bool:
    return sys.stderr.isatty() or _in_notebook()


@contextmanager
def _drawn() -> Iterator[Progress]:
    """Draw a bar on a terminal or in a notebook; print lines elsewhere.

    "solve auto" and "solve bfd" belong to one stage, "solve", and the bar shows which of them is running. The bar of
    "solve" appears immediately, because algorithms report no progress while they run. Without reports, the clock of a
    bar is still updated, and lines are repeated.
    """
    has_bars, kind, begun, last, bar = _has_bars(), "", 0.0, 0.0, None
    lock, ended, step = threading.Lock(), threading.Event(), ("", 0, 0)
    clock: threading.Thread | None = None

    def tick() -> None:
        while not ended.wait(TICK):
            with lock:
                if not ended.is_set():
                    show(*step)
                    if bar is not None:
                        bar.refresh()

    def draw(stage: str, done: int, total: int) -> None:
        nonlocal step, clock
        raise_if_interrupted()
        with lock:
            if not step[0]:
                with suppress(RuntimeError):  # no thread can be started
                    (started := threading.Thread(target=tick, daemon=True, name="progress")).start()
                    clock = started
            step = stage, done, total
            show(*step)

    def show(stage: str, done: int, total: int) -> None:
        nonlocal kind, begun, last, bar
        now = time.monotonic()
        if stage.split()[0] != kind:
            if bar is not None:
                bar.close()
            kind, begun, last, bar = stage.split()[0], now, now, None
        if not has_bars:
            if now - last >= INTERVAL:
                last = now
                log.info(_line(stage, done, total, now - begun))
            return
        if bar is None:
            if kind != "solve" and now - begun < DELAY:
                return
            bar = _new_bar(stage, done, total)
        bar.total = total  # only an estimate at first
        bar.update(done - bar.n)
        if bar.desc != f"{stage}: ":
            bar.set_description(stage)

    try:
        yield draw
    finally:
        ended.set()
        if clock is not None:
            clock.join()
        if bar is not None:
            bar.close()


def _new_bar(stage: str, done: int, total: int) -> tqdm[Any]:
    """Draw a bar. tqdm is imported here, because most commands on small data show no bar."""
    from tqdm.auto import tqdm

    tqdm.monitor_interval = 0  # no monitor thread: tqdm would print a warning if none can be started
    unit, _ = _UNITS.get(stage.split()[0], ("B", "bytes"))
    width = (
        None if _in_notebook() else shutil.get_terminal_size().columns
    )  # 80 if the terminal reports 0, because tqdm would draw nothing
    return tqdm(
        initial=done, total=total, desc=stage, unit=unit, unit_scale=unit != "alg", file=sys.stderr, ncols=width
    )


def _line(stage: str, done: int, total: int, seconds: float) -> str:
    """Return a line of progress: "write 45%, 1.20G of 2.67G tokens, 118M a second"."""
    from tqdm import tqdm

    unit, words = _UNITS.get(stage.split()[0], ("B", "bytes"))
    if unit == "alg":  # plans have no rate
        return f"{stage}, {done} of {total} {words} done"
    so_far, all_, rate = map(tqdm.format_sizeof, (done, total, done / max(seconds, 1e-3)))
    return f"{stage} {done / max(total, 1):.0%}, {so_far} of {all_} {words}, {rate} a second"
