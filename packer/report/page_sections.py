"""Sections of the report, in the order of the page: each is a question, the answer in a sentence, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2

import numpy as np

from packer.report.charts import Plot, Series, histogram_plot, row_plot
from packer.report.dataset_figures import Figures
from packer.report.length_figures import Tally, binned, grouped_total, weighted_median
from packer.report.page_head import BATCH
from packer.report.plain_text import count_of, number, share

BATCHES = (BATCH, 64)  # batch sizes in the table of padding
_MOST_LENGTH_BINS = 24


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
    holds = f"A row holds {number(factor)} documents" if factor >= 1 else f"A document takes {number(1 / factor)} rows"
    plot = row_plot("Rows", figures.shown_rows, max_len=figures.max_len)
    notes = [_mixing_note(figures)] if figures.row_figures.within_row_share < 1 else []
    if not figures.is_packed:
        notes.append("These rows are planned. Which of their tokens are trained is known once they are packed.")
    shown = (
        f"{len(figures.shown_rows):,} of {figures.rows:,} are" if len(figures.shown_rows) < figures.rows else "All are"
    )
    verdict = f"{holds} on average. {shown} shown, with their numbers"
    verdict += "; branches of trees are lower than what they continue." if figures.options.has_trees else "."
    return Section(question="What do rows look like?", verdict=verdict, plot=plot, notes=notes)


def _mixing_note(figures: Figures) -> str:
    """Compare how mixed rows are, and how even their work is, with rows of the same segments in random order."""
    rows, random = figures.row_figures, figures.row_figures.shuffled
    within, shuffled = rows.within_row_share, random.within_row_share
    if within > 1.1 * shuffled:
        answer = "more mixed than rows"
    elif within >= 0.9 * shuffled:
        answer = "as mixed as rows"
    elif within >= 0.5 * shuffled:
        answer = "less mixed than rows"
    else:
        answer = "of similar documents, unlike rows"
    note = (
        f"These rows are {answer} of a shuffled corpus: {share(within)} of the variance of log length lies within "
        f"rows, and {share(shuffled)} if documents are in random order."
    )
    if rows.work_peak > 1.1:
        note += (
            f" In a model of 7B, the row with the most attention has {rows.work_peak:.2f} times the work of the mean; "
            "`BatchSampler(balance=8)` divides the rows of 8 steps so that ranks wait less for each other."
        )
    return note


def padding_section(figures: Figures) -> Section:
    """Say what padding costs in tokens, by the way batches are formed."""
    padding = figures.padding
    verdict = (
        f"Of the tokens that a model computes, {share(padding.max_len)} are padding if each document is padded to "
        f"{figures.max_len:,} tokens, {share(padding.batch_longest[BATCH])} in random batches of {BATCH}, padded to "
        f"their longest document, and {share(padding.packed)} in packed rows."
    )
    grouped, size, segments = padding.group_by_length, BATCHES[-1], int(figures.histogram.sum())
    largest = int(np.flatnonzero(figures.histogram)[-1]) * min(size, segments)  # tokens of a batch of the longest
    mean = grouped_total(figures.histogram, size) / -(-segments // size)
    wins = "nearly as little" if grouped[size] < padding.packed + 0.05 else "less than random batches"
    note = (
        f"Grouping by length pads {wins}: {share(grouped[size])} in batches of {size}. But then a batch has documents "
        f"of one length and is no random sample of the corpus, and memory must hold the largest batch, which has "
        f"{number(largest / mean)} times the tokens of the average one."
    )
    limit = "Time is in proportion to tokens; the work of attention is left out."
    notes = [note, limit] if padding.batch_longest[size] > padding.packed else [limit]
    return Section(question="What does padding cost?", verdict=verdict, notes=notes)


def lengths_section(figures: Figures) -> Section:
    """Say how long documents are, or the segments of packed rows, on a logarithmic scale, and where the tokens are."""
    assert figures.document_lengths is not None
    values, counts = figures.document_lengths
    filled: Tally = (values[values > 0], counts[values > 0])
    edges = length_edges(int(filled[0][0]), int(filled[0][-1]))
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
    at_max_len = float(np.interp(log2(figures.max_len), [log2(max(edge, 1)) for edge in edges], range(len(edges))))
    series = {
        f"{what}s": ("blue", [count / all_documents for count in documents]),
        "tokens": ("orange", [count / all_tokens for count in tokens]),
    }
    marks = {f"max_len {figures.max_len:,}": at_max_len} if edges[0] < figures.max_len < edges[-1] else {}
    plot = _length_plot(f"{what.capitalize()} lengths", edges, series, marks)
    return Section(question=f"How long are {what}s?", verdict=verdict, plot=plot)


def length_edges(smallest: int, largest: int) -> list[int]:
    """Return edges of at most 24 bins on a logarithmic scale: powers of 2, or of its roots if they are few.

    (100, 500) -> 64, 70, 76, ..., 512; (1, 200,000) -> 1, 2, 4, ..., 262,144.
    """
    low, high = floor(log2(smallest)), max(floor(log2(largest)) + 1, ceil(log2(largest + 1)))
    steps = next((steps for steps in (8, 4, 2) if steps * (high - low) <= _MOST_LENGTH_BINS), 1)
    return sorted({round(2 ** (power / steps)) for power in range(low * steps, high * steps + 1)})


def _length_plot(title: str, edges: list[int], series: Series, marks: Mapping[str, float] = {}) -> Plot:
    """Draw shares of lengths between edges, of which those that are powers of 2 have a label."""
    bins = [f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)]
    ticks = [compact(edge) if edge & (edge - 1) == 0 else "" for edge in edges]
    return histogram_plot(title, bins, series, ticks=ticks, marks=marks)


def compact(value: int) -> str:
    """Format a length for an axis: 512 -> 512, 4,096 -> 4,096, 16,384 -> 16k, 2,097,152 -> 2M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**4):
            return f"{value // size:,}{unit}"
    return f"{value:,}"


SECTIONS: dict[str, Callable[[Figures], Section | None]] = {
    "rows": rows_section,
    "padding": padding_section,
    "lengths": lengths_section,
}
"""Function that makes each section, in the order of the page, by name."""
