"""Text for people: aligned columns, bars, formatted numbers, and tables for notebooks."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from textwrap import fill

WIDTH = 80  # columns of a terminal
BAR_WIDTH = 40  # characters of the longest bar


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and line feeds, characters that reorder text, and bytes of names not in UTF-8."""


def visible(text: str) -> str:
    r"""Replace control characters by their names: "\x1b[2J" -> "\\x1b[2J"."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_DOWNLOADED = re.compile(r"(?<![\w./~-])[/~][^\s'\"]*/datasets--([^/\s]+)--([^/\s]+)/snapshots/[^/\s:;,'\"]+")


def with_hub_ids(text: str) -> str:
    """Name downloads by their ids on the Hub: "~/.cache/.../datasets--org--name/snapshots/1f2e/a" -> "org/name/a"."""
    return _DOWNLOADED.sub(r"\1/\2", text)


def render_table(rows: Sequence[Sequence[str]], *, align: str | None = None) -> str:
    """Align cells in columns two spaces apart. align: a `<` or `>` per column, by default `<>>>...`."""
    align = align or "<" + ">" * (len(rows[0]) - 1)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    )


def html_table(title: str, lines: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> str:
    """Return a title and a table of cells for a notebook, with a header line if there is a `head`."""
    cells = [("th", head), *(("td", line) for line in lines)] if head else [("td", line) for line in lines]
    rows = "".join(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in line)}</tr>" for tag, line in cells)
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"


def render_bars(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Draw a line per label: its count, its share and a bar proportional to the count, if the count is above 0."""
    total, largest = sum(counts), max(counts)
    lines = []
    for label, count in zip(labels, counts, strict=True):
        bar = "#" * max(round(count / largest * BAR_WIDTH), count > 0)
        lines.append([f"  {label}", f"{count:,}", percent(count / total, decimals=2), bar])
    return render_table(lines, align=">>><")


def folded(text: str) -> str:
    """Fold a sentence to lines of at most `WIDTH` columns, except for longer words."""
    return fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def count_of(count: int, noun: str) -> str:
    """Format a count with its noun: 1 row, 3,304 rows."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def fewest(rows: int, lower_bound: int) -> str:
    """Return "the fewest possible", or a phrase with the number of rows that every packing needs at least."""
    return f"no packing has fewer than {lower_bound:,}" if rows > lower_bound else "the fewest possible"


def rounded(value: float) -> str:
    """Format an integer in full and a float with about three digits: 1234567 -> 1,234,567, 16.702 -> 16.7."""
    if isinstance(value, int):
        return f"{value:,}"
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def percent(ratio: float, *, decimals: int = 4) -> str:
    """Format a ratio from 0 to 1 without rounding it to 0% or 100%: 0.9994 -> 99.94%.

    Uses as many decimals as necessary, up to `decimals`; beyond that, 1e-9 -> <0.0001%.
    """
    distance = 100 * min(ratio, 1 - ratio)
    if distance <= 0:
        return f"{ratio:.0%}"
    for places in range(1, decimals + 1):
        if distance >= 10**-places:
            return f"{ratio:.{places}%}"
    return f"<{10**-decimals:.{decimals}f}%" if ratio < 0.5 else f">{100 - 10**-decimals:.{decimals}f}%"


def share(ratio: float) -> str:
    """Format a ratio for a plot, a narrow column or a sentence: 0.0312 -> 3.1%."""
    return percent(ratio, decimals=2)


def duration_and_compiling(seconds: float, compiling: float) -> str:
    """Format a time and the share of it spent compiling kernels: 23.1 s, 20.2 s of it compiling."""
    share = f", {duration(compiling)} of it compiling" if compiling > 0.05 * seconds else ""
    return duration(seconds) + share


def duration(seconds: float) -> str:
    """Format a time with about two significant units: 0.52 s, 12.3 s, 3 min 05 s, 2 h 14 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
