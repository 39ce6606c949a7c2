"""What notebooks show of an object: its facts as a table, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from packer.plots.svg_elements import Plot


def notebook_facts(title: str, facts: Sequence[tuple[str, str]], plot: Plot | None = None) -> str:
    """Return HTML with a title, a table of facts (name, value) and a plot; everything but the plot is escaped."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts)
    table = f"<table>{lines}</table>"
    return f"<div><strong>{escape(title)}</strong>{table}{'' if plot is None else plot.inline()}</div>"
