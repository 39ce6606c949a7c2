"""The report's page: a sentence, cards, and sections with plots, in one file.

A content security policy allows only the page's own style and script. Each section is a question, the answer in a
sentence, and a plot.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from packer.json_records import PlanTotals, Totals
from packer.plain_text import count_of, fewest, rounded, share
from packer.report.charts import STEP, Plot, histogram_plot, row_plot, style_sheet
from packer.report.figures import Figures
from packer.report.measures import Tally, binned, distribution, weighted_median

_LISTED = 40  # maximum number of segments in the table below the rows


def render_page(figures: Figures, *, made_by: str = "") -> str:
    """Return the report as an HTML page. The same arguments give the same text.

    made_by: lines that can be copied: the command, the version and the date.
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
        listed=_listed(figures),
        data=_row_data(figures),
    )
    return page + "\n"


def _row_data(figures: Figures) -> str:
    """Return the values of segments that the script shows, as JSON: for each row, lists with one value per segment."""
    rows = [asdict(row) for row in figures.shown_rows]
    for row in rows:
        del row["trained_runs"], row["nodes"]  # only the plot shows them
    content = {"maxLen": figures.max_len, "step": STEP, "rows": rows}
    # < is written as an escape, so that no value can end the HTML element.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _listed(figures: Figures) -> list[list[str]]:
    """Return a table of the first segments of the plot, with a header line, for readers without scripts."""
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


BATCH = 8
"""Number of documents in a batch padded to its longest document, with which packing is compared."""

ARROW = "\u2192"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A figure with its name above it, and lines that explain it."""

    name: str
    value: str
    lines: tuple[str, ...]


def opening(figures: Figures) -> str:
    """Return the first sentence of the page, which says how much packing saves."""
    mean, vary = round(figures.tokens / figures.documents), figures.lengths.min < figures.lengths.max
    packed = "packed into" if figures.is_packed else "which would be packed into"
    times = figures.padding.speedup(figures.padding.batch_longest[BATCH])
    if _differ(times):
        compared = (
            f"{rounded(times)} times fewer tokens to compute than" if times > 1 else "more tokens to compute than"
        )
    else:
        compared = "about as many tokens to compute as"
    return (
        f"{count_of(figures.documents, 'document')} of {count_of(mean, 'token')}{' on average' * vary}, {packed} "
        f"{count_of(figures.rows, 'row')} of {figures.max_len:,}: {compared} with padding in random batches of {BATCH}."
    )


def cards(figures: Figures) -> list[Card]:
    """Return cards about the effect of packing on rows, on tokens, and on the compute of an epoch."""
    padding, bound = figures.padding, fewest(figures.rows, figures.totals.lower_bound)
    rows = Card(
        name=f"Rows of {figures.max_len:,} tokens",
        value=f"{figures.epoch.rows:,} {ARROW} {figures.rows:,}",
        lines=(
            f"One document a row leaves {share(padding.max_len)} padding, packed rows {share(padding.packed)}.",
            f"{bound[0].upper()}{bound[1:]}.",
        ),
    )
    shared = (figures.saved_tokens or 0) * figures.options.has_trees
    tokens = _tokens_card(figures.totals, shared, has_labels=figures.options.labels)
    return [rows, tokens, _compute_card(figures)]


def _compute_card(figures: Figures) -> Card:
    padding, before = figures.padding, figures.epoch.rows
    longest = padding.batch_longest[BATCH]
    times = padding.speedup(longest)
    named = f"{rounded(max(times, 1 / times))} times {'less' if times > 1 else 'more'}"
    return Card(
        name="Compute of an epoch",
        value=named if _differ(times) else "about the same",
        lines=(
            f"Random batches of {BATCH}, padded to their longest document, have {share(longest)} padding.",
            f"Steps of {BATCH} rows: {-(-before // BATCH):,} {ARROW} {-(-figures.rows // BATCH):,}.",
        ),
    )


def _differ(times: float) -> bool:
    """Whether two numbers of tokens differ by at least 5%. times: the first divided by the second."""
    return max(times, 1 / times) >= 1.05


def _tokens_card(totals: PlanTotals, shared: int, *, has_labels: bool) -> Card:
    """Return a card about what happened to every token. shared: number of tokens that trees save."""
    lines = ["Beginnings that documents share are stored once."] if shared else []
    if not totals.tokens_lost:
        lines.append("None is lost.")
    if totals.tokens_truncated:
        cut = count_of(totals.tokens_truncated, "token")
        lines.append(f"{cut} of {count_of(totals.documents_truncated, 'document')} truncated.")
    for reason, count in totals.documents_dropped.items():
        if count:
            tokens = totals.tokens_dropped.get(reason, 0)
            of = f"{count_of(tokens, 'token')} of " * bool(tokens)
            lines.append(f"{of}{count_of(count, 'document')} left out: {reason.replace('_', ' ')}.")
    if totals.documents_split:
        lines.append(f"{count_of(totals.documents_split, 'document')} in several segments.")
    if isinstance(totals, Totals) and totals.tokens_stripped:
        lines.append(f"{totals.tokens_stripped:,} more were padding, which was removed.")
    if isinstance(totals, Totals) and has_labels:
        lines.append(f"{share(totals.tokens_trained / totals.tokens_packed)} are trained.")
    value = f"{totals.tokens + shared:,} {ARROW} {totals.tokens:,}" if shared else f"{totals.tokens:,}"
    return Card(name="Tokens", value=value, lines=tuple(lines))


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section: a question as heading, the answer, a plot if there is one, and paragraphs below."""

    question: str
    verdict: str
    plot: Plot | None = None
    notes: Sequence[str] = ()


def rows_section(figures: Figures) -> Section:
    """Draw the rows of the sample."""
    factor = figures.packing_factor
    holds = (
        f"A row holds {rounded(factor)} documents" if factor >= 1 else f"A document takes {rounded(1 / factor)} rows"
    )
    plot = row_plot(figures.shown_rows, max_len=figures.max_len)
    planned = ["These rows are planned. Which of their tokens are trained is known once they are packed."]
    notes = [] if figures.is_packed else planned
    shown = (
        f"{len(figures.shown_rows):,} of {figures.rows:,} are" if len(figures.shown_rows) < figures.rows else "All are"
    )
    verdict = f"{holds} on average. {shown} shown, with their numbers"
    verdict += "; branches of trees are lower than what they continue." if figures.options.has_trees else "."
    return Section(question="What do rows look like?", verdict=verdict, plot=plot, notes=notes)


def lengths_section(figures: Figures) -> Section:
    """Describe the lengths of documents, or of segments of packed rows, and the lengths with most tokens."""
    assert figures.document_lengths is not None
    values, counts = figures.document_lengths
    filled: Tally = (values[values > 0], counts[values > 0])
    edges = [*distribution(filled).bin_edges]
    documents, tokens = binned(filled, edges)
    all_documents, all_tokens = sum(documents), sum(tokens)
    lengths, longer = figures.lengths, figures.documents_over_max_len
    what = "segment" if figures.is_packed else "document"
    verdict = f"Every {what} has {count_of(lengths.max, 'token')}."
    if lengths.min < lengths.max:
        verdict = (
            f"Half of the {what}s have at most {lengths.p50:,} tokens, while half of the tokens are in {what}s of "
            f"at least {weighted_median(filled):,}. The longest {what} has {lengths.max:,} tokens."
        )
    if longer:
        verdict += f" Longer than a row: {count_of(longer, 'document')}."
    at_max_len = float(np.interp(figures.max_len, edges, range(len(edges))))
    series = {
        f"{what}s": ("blue", [count / all_documents for count in documents]),
        "tokens": ("orange", [count / all_tokens for count in tokens]),
    }
    marks = {f"max_len {figures.max_len:,}": at_max_len} if edges[0] < figures.max_len < edges[-1] else {}
    bins = [f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)]
    ticks = [compact(edge) for edge in edges]
    plot = histogram_plot(f"{what.capitalize()} lengths", bins, series, ticks=ticks, marks=marks)
    return Section(question=f"How long are {what}s?", verdict=verdict, plot=plot)


def compact(value: int) -> str:
    """Format a length for an axis: 512 -> 512, 4,096 -> 4,096, 16,384 -> 16k, 2,097,152 -> 2M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**4):
            return f"{value // size:,}{unit}"
    return f"{value:,}"


SECTIONS: dict[str, Callable[[Figures], Section | None]] = {"rows": rows_section, "lengths": lengths_section}
"""Functions that make the sections, by name, in the order of the page."""
