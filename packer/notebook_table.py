"""Tables that notebooks show of an object, made by its `_repr_html_`."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, lines: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> str:
    """Return a title and a table of cells in plain text, with a line of column names if there is a `head`."""
    cells = [("th", head), *(("td", line) for line in lines)] if head else [("td", line) for line in lines]
    rows = "".join(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in line)}</tr>" for tag, line in cells)
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"
