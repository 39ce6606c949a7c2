"""How long work reports its progress. Imports nothing but the standard library."""

from __future__ import annotations

import logging
from typing import Protocol

STATUS = logging.getLogger("packer.status")
"""Logger for work that has no measure of progress, such as compiling; the command shows it on terminals."""


class Progress(Protocol):
    """Callback of long work; the command line draws a bar from it."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` is finished.

        Args:
            stage: word for the work that is going on. Sources report "decode" while they parse Parquet, JSONL or
                compressed Arrow, and "lengths" while they walk through mapped data.
            done: amount that is finished. Both stages of sources count bytes of the source files.
            total: amount at which the stage ends, in the same unit.
        """


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""
