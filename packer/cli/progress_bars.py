"""Progress bars and log lines on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packer.progress import Progress

_UNITS = {
    "write": "tok",
    "export": "tok",
    "compare": "tok",
    "plan": "part",
    "length": "plan",
    "solve": "alg",
}  # of other stages: bytes


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Draw a bar on stderr for each stage that takes more than a second, and print log messages there.

    "solve auto" and "solve bfd" belong to one stage, "solve", and the bar shows which of them is running. On a terminal
    that bar appears at once, because algorithms report no progress while they run.
    """
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread: where none can be started, tqdm would print a warning
    bars: dict[str, tqdm[Any]] = {}

    def draw(stage: str, done: int, total: int) -> None:
        kind = stage.split()[0]
        if kind not in bars:
            for bar in bars.values():
                bar.close()
            bars.clear()  # a stage may come back: sources of a mixture are decoded and tokenized in turn
            unit = _UNITS.get(kind, "B")
            delay = 0 if kind == "solve" and sys.stderr.isatty() else 1
            bars[kind] = tqdm(
                total=total, desc=stage, unit=unit, unit_scale=unit != "alg", delay=delay, file=sys.stderr
            )
        bar = bars[kind]
        bar.update(done - bar.n)
        if bar.desc != f"{stage}: ":
            bar.set_description(stage, refresh=bar.format_dict["elapsed"] >= bar.delay)

    log, handler = logging.getLogger("packer"), _LinesOnStderr()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield draw
    finally:
        log.removeHandler(handler)
        for bar in bars.values():
            bar.close()


class _LinesOnStderr(logging.Handler):
    """Prints every log message as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"packer: {record.getMessage()}", err=True)
