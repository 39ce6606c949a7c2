"""How long work tells how far it is. Imports nothing but typing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then by long work; the command line draws it as a bar."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Tell that `done` of `total` is finished.

        Args:
            stage: the word shown to the user. Sources say "decode" while they parse Parquet, JSONL or compressed
                Arrow, and "lengths" while they walk through mapped data.
            done: how far the stage is; for both stages in bytes of the source's files.
            total: where it ends, in the same unit.
        """


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
