"""A section of the report: a question, the answer in a sentence, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packer.plots import Plot

Table = Sequence[Sequence[str]]
"""Rows of cells, the header first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section."""

    name: str
    """Name of the section and its plot; one of `packer.options.choices.ReportPlot`."""

    question: str
    """Heading."""

    verdict: str
    """The answer."""

    plot: Plot | None = None
    """The plot; None if there is nothing to draw."""

    table: Table = ()
    """A table below the plot; empty for none."""

    notes: Sequence[str] = ()
    """Paragraphs below."""


def compact(value: int) -> str:
    """Format a length for an axis: 512 -> 512, 4,096 -> 4,096, 16,384 -> 16k, 2,097,152 -> 2M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**4):
            return f"{value // size:,}{unit}"
    return f"{value:,}"
