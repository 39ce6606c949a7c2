"""Progress and log lines on stderr."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from packer.progress import STATUS, silent

if TYPE_CHECKING:
    from tqdm import tqdm

    from packer.progress import Progress

INTERVAL = 15.0
"""Seconds between lines of progress where stderr is not a terminal."""

DELAY = 1.0
"""Seconds of a stage before a bar is drawn on a terminal."""

_UNITS = {
    "decode": "doc",
    "tokenize": "doc",
    "lengths": "doc",
    "write": "tok",
    "export": "tok",
    "compare": "tok",
    "sort": "seg",
    "plan": "part",
    "length": "plan",
    "solve": "alg",
}  # of other stages: bytes
_WORDS = {
    "doc": "documents",
    "tok": "tokens",
    "seg": "segments",
    "part": "partitions",
    "plan": "plans",
    "alg": "algorithms",
}


@contextmanager
def progress_bars(*, silently: bool = False) -> Iterator[Progress]:
    """Show the progress of each stage on stderr, and print log messages there.

    A terminal gets a bar for each stage that takes more than a second, and messages about work whose progress cannot be
    measured, such as compiling. Anything else, such as the log of a cluster, gets a line every 15 seconds. A process
    that works silently, because another one shows all this, prints only messages about itself.
    """
    log, handler = logging.getLogger("packer.ranks" if silently else "packer"), _LinesOnStderr()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        if silently:
            yield silent
        else:
            with _bars() if sys.stderr.isatty() else _lines() as progress:
                yield progress
    finally:
        log.removeHandler(handler)


@contextmanager
def _bars() -> Iterator[Progress]:
    """Draw bars.

    "solve auto" and "solve bfd" belong to one stage, "solve", and the bar shows which of them is running. It appears
    immediately, because algorithms report no progress while they run.
    """
    kind, begun, bar = "", 0.0, None

    def draw(stage: str, done: int, total: int) -> None:
        nonlocal kind, begun, bar
        now = time.monotonic()
        if stage.split()[0] != kind:  # a stage may come back: sources of a mixture are decoded and tokenized in turn
            if bar is not None:
                bar.close()
            kind, begun, bar = stage.split()[0], now, None
        if bar is None:
            if kind != "solve" and now - begun < DELAY:
                return
            bar = _new_bar(stage, done, total)
        bar.total = total  # how many documents there are is an estimate at first
        bar.update(done - bar.n)
        if bar.desc != f"{stage}: ":
            bar.set_description(stage)

    try:
        yield draw
    finally:
        if bar is not None:
            bar.close()


def _new_bar(stage: str, done: int, total: int) -> tqdm[Any]:
    """Draw a bar; tqdm is imported here, because most commands on little data show none."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread: where none can be started, tqdm would print a warning
    unit = _UNITS.get(stage.split()[0], "B")
    width = shutil.get_terminal_size().columns  # 80 if the terminal reports 0, with which tqdm would draw nothing
    return tqdm(
        initial=done, total=total, desc=stage, unit=unit, unit_scale=unit != "alg", file=sys.stderr, ncols=width
    )


@contextmanager
def _lines() -> Iterator[Progress]:
    """Print lines at intervals: "packer: write 45%, 1.20G of 2.67G tokens, 118M a second"."""
    kind, begun, last = "", 0.0, 0.0

    def draw(stage: str, done: int, total: int) -> None:
        nonlocal kind, begun, last
        now = time.monotonic()
        if stage.split()[0] != kind:
            kind, begun, last = stage.split()[0], now, now
        if now - last < INTERVAL:
            return
        from tqdm import tqdm

        last = now
        unit = _UNITS.get(kind, "B")
        if unit == "alg":  # it has no rate
            click.echo(f"packer: {stage}, {done} of {total} {_WORDS[unit]} done", err=True)
            return
        amounts = [tqdm.format_sizeof(amount) for amount in (done, total, done / max(now - begun, 1e-3))]
        line = "{} {:.0%}, {} of {} {}, {} a second".format(
            stage, done / max(total, 1), *amounts[:2], _WORDS.get(unit, "bytes"), amounts[2]
        )
        click.echo(f"packer: {line}", err=True)

    yield draw


class _LinesOnStderr(logging.Handler):
    """Prints every log message as a line on stderr; messages about the status only on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != STATUS.name or sys.stderr.isatty():
            click.echo(f"packer: {record.getMessage()}", err=True)
