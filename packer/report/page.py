"""The page: sections and their style in one file, with a content security policy that allows nothing else."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from packer.report.charts import style_sheet, tops_of
from packer.report.dataset_figures import Figures
from packer.report.page_head import TOKENS_A_SECOND, cards, opening
from packer.report.page_sections import BATCHES, SECTIONS
from packer.report.plain_text import count_of, duration, share

_LISTED = 40  # segments in the table below the rows


def render_page(figures: Figures, *, made_by: str = "") -> str:
    """Return the report as a page of HTML. The same arguments give the same text.

    `made_by` are lines that can be copied: the command, the version and the date.
    """
    sections = {name: section for name, make in SECTIONS.items() if (section := make(figures)) is not None}
    style = _asset("style.css") + style_sheet()
    script = _asset("script.js")
    page: str = _template().render(
        name=figures.name,
        opening=opening(figures),
        cards=cards(figures),
        made_by=made_by,
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
            "form-action 'none'"
        ),
        style=style,
        script=script,
        sections=sections,
        ways=_ways(figures),
        rate=TOKENS_A_SECOND,
        listed=_listed(figures),
        data=_row_data(figures),
    )
    return page + "\n"


def _ways(figures: Figures) -> Iterator[tuple[str, str, float, int, str]]:
    """Yield (way to form batches, padding in words, padding, tokens, time of an epoch on a GPU in words)."""
    padding = figures.padding
    ratios = {f"padded to {figures.max_len:,} tokens": padding.max_len}
    ratios |= {f"batches of {size}, padded to the longest": padding.batch_longest[size] for size in BATCHES}
    ratios |= {f"batches of {size}, sorted by length": padding.group_by_length[size] for size in BATCHES}
    for name, ratio in {**ratios, "packed": padding.packed}.items():
        tokens = round(figures.totals.tokens_packed / (1 - ratio))
        yield name, share(ratio), ratio, tokens, duration(tokens / TOKENS_A_SECOND)


def _row_data(figures: Figures) -> str:
    """Return what the script shows of segments, as JSON: for each row, values of all segments one after the other."""
    rows = [asdict(row) for row in figures.shown_rows]
    for row in rows:
        del row["trained_runs"], row["nodes"], row["chosen"]  # which only the plot shows
    content = {"maxLen": figures.max_len, "tops": tops_of(figures.shown_rows), "rows": rows}
    # An element of HTML cannot be ended early, because < is written as an escape.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _listed(figures: Figures) -> list[list[str]]:
    """Return a table of the first segments that are drawn, the header first, for readers without script."""
    lines: list[dict[str, str]] = []
    for row in figures.shown_rows:
        for index, document in enumerate(row.documents[: _LISTED - len(lines)]):
            line = {"row": f"{row.row:,}", "document": f"{document:,}"}
            line |= {"tokens": f"{row.lengths[index]:,}", "from": f"{row.starts[index]:,}"}
            if row.trained:
                line["trained"] = f"{row.trained[index]:,}"
            if row.texts:
                line["text"] = row.texts[index]
            lines.append(line)
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return files("packer.report").joinpath(name).read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    """Return a sentence as HTML, with text between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"count_of": count_of, "code": _code}
    return environment.from_string(_asset("page.html.jinja"))
