"""Sections of the report, in the order of the page: each is a question, the answer in a sentence, and a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2

import numpy as np

from packer.manifest_fields import Totals
from packer.report.charts import (
    Bar,
    Plot,
    Series,
    bar_plot,
    histogram_plot,
    line_plot,
    row_plot,
)
from packer.report.comparison import Comparison
from packer.report.dataset_figures import Figures
from packer.report.length_figures import Tally, binned, grouped_total, weighted_median
from packer.report.plain_text import count_of, number, share

BATCHES = (8, 64)  # batch sizes in the table of padding
_MOST_LENGTH_BINS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section: a question as heading, the answer, a plot if there is one, a table, and paragraphs below."""

    question: str
    verdict: str
    plot: Plot | None = None
    table: Sequence[Sequence[str]] = ()
    """Rows of cells, the header first."""

    notes: Sequence[str] = ()


def rows_section(figures: Figures) -> Section:
    """Draw the rows of the sample."""
    rows, factor = figures.shown_rows, figures.packing_factor
    holds = f"A row holds {number(factor)} documents" if factor >= 1 else f"A document takes {number(1 / factor)} rows"
    count = Counter(row.chosen for row in rows)
    shown = ["all there are" if len(rows) == figures.rows else f"{count['at random']:,} drawn at random"]
    if count["least full"]:
        shown.append(f"the {count['least full']:,} least full")
    if count["most segments"]:
        shown.append(f"the {count['most segments']:,} with the most segments")
    verdict = (
        f"{holds} on average; rows are {share(figures.totals.efficiency)} full. Of {count_of(figures.rows, 'row')}, "
        f"{', then '.join(shown)}:"
    )
    plot = row_plot("Rows", rows, max_len=figures.max_len)
    notes = []
    if not figures.is_packed:
        notes.append("These rows are planned. Which of their tokens are trained is known once they are packed.")
    return Section(question="What do rows look like?", verdict=verdict, plot=plot, notes=notes)


def mixing_section(figures: Figures) -> Section:
    """Compare how mixed rows are, and how even their work is, with rows of the same segments in random order."""
    rows, random = figures.row_figures, figures.row_figures.shuffled
    within, shuffled = rows.within_row_share, random.within_row_share
    if within > 1.1 * shuffled:
        answer = "Rows are more mixed than a shuffled corpus"
    elif within >= 0.9 * shuffled:
        answer = "Rows are mixed like a shuffled corpus"
    elif within >= 0.5 * shuffled:
        answer = "Rows are less mixed than a shuffled corpus"
    else:
        answer = "Rows hold documents of similar lengths and are not samples of the corpus"
    verdict = (
        f"{answer}: {share(within)} of the variance of log length lies within rows; in random order it is "
        f"{share(shuffled)}. In a model of 7B, the row with the most work has {rows.work_peak:.2f} times the mean."
    )
    shares = "variance of log length within rows", "share of attention in the work of a 7B model"
    table = [
        ["", "these rows", "in random order"],
        [shares[0], share(within), share(shuffled)],
        [shares[1], share(rows.attention_share), share(random.attention_share)],
        ["largest work of a row, over the mean", f"{rows.work_peak:.2f}", f"{random.work_peak:.2f}"],
    ]
    note = "`BatchSampler(balance=8)` divides the rows of 8 steps so that ranks wait less for each other."
    return Section(question="How mixed are they?", verdict=verdict, table=table, notes=[note])


def padding_section(figures: Figures) -> Section:
    """Say what padding costs in tokens, by the way batches are formed."""
    padding, max_len = figures.padding, figures.max_len
    sizes = list(padding.batch_longest)
    ways = {
        f"to {max_len:,} tokens": ("gray", [padding.max_len] * len(sizes)),
        "to longest in batch": ("orange", list(padding.batch_longest.values())),
        "grouped by length": ("purple", list(padding.group_by_length.values())),
        "packed": ("blue", [padding.packed] * len(sizes)),
    }
    middle = BATCHES[0]
    verdict = (
        f"Padded to {max_len:,} tokens, {share(padding.max_len)} of what is computed is padding; in random batches of "
        f"{middle}, padded to their longest, {share(padding.batch_longest[middle])}; packed, {share(padding.packed)}. "
        f"Padding to max_len computes {number(padding.speedup(padding.max_len))} times the tokens that packing does, "
        f"and such batches {number(padding.speedup(padding.batch_longest[middle]))} times."
    )
    grouped, size, segments = padding.group_by_length, BATCHES[-1], int(figures.histogram.sum())
    largest = int(np.flatnonzero(figures.histogram)[-1]) * min(size, segments)  # tokens of a batch of the longest
    mean = grouped_total(figures.histogram, size) / -(-segments // size)
    wins = "nearly as little" if grouped[size] < padding.packed + 0.05 else "less than random batches"
    note = (
        f"Grouping by length pads {wins}: {share(grouped[size])} in batches of {size}. It costs otherwise: a batch has "
        "documents of one length, so it is not a sample of the corpus, and each step sees another kind of documents; "
        f"and the largest batch has {number(largest / mean)} times the tokens of the mean one, "
        "which memory must hold."
    )
    limit = "Tokens are counted, and the work of attention is left out: the factors are upper limits."
    plot = line_plot("Share of padding, by batch size", ways, list(map(str, sizes)))
    return Section(question="What does padding cost?", verdict=verdict, plot=plot, notes=[note, limit])


def lengths_section(figures: Figures) -> Section:
    """Say how long documents are, on a logarithmic scale, and where the tokens are."""
    assert figures.document_lengths is not None
    values, counts = figures.document_lengths
    filled: Tally = (values[values > 0], counts[values > 0])
    edges = length_edges(int(filled[0][0]), int(filled[0][-1]))
    documents, tokens = binned(filled, edges)
    all_documents, all_tokens = sum(documents), sum(tokens)
    lengths = figures.lengths
    verdict = (
        f"Half of the documents have {lengths.p50:,} tokens or fewer, but half of the tokens are in documents of "
        f"{weighted_median(filled):,} tokens and more. The longest document has {lengths.max:,}. Longer "
        f"than a row: {count_of(figures.documents_over_max_len, 'document')}."
    )
    at_max_len = float(np.interp(log2(figures.max_len), [log2(max(edge, 1)) for edge in edges], range(len(edges))))
    series = {
        "documents": ("blue", [count / all_documents for count in documents]),
        "tokens": ("orange", [count / all_tokens for count in tokens]),
    }
    marks = {f"max_len {figures.max_len:,}": at_max_len} if edges[0] < figures.max_len < edges[-1] else {}
    plot = _length_plot("Document lengths", edges, series, marks)
    notes = []
    if figures.is_packed and figures.totals.tokens_lost:
        notes.append("Documents are as long as what is in the rows: what was truncated or dropped is not in them.")
    return Section(question="How long are documents?", verdict=verdict, plot=plot, notes=notes)


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


def max_len_section(figures: Figures) -> Section:
    """Compare row lengths by what decides."""
    found = Comparison(by="max_len", outcomes=figures.row_lengths)
    question = "Which max_len?"
    if not found.outcomes:
        return Section(
            question=question,
            verdict="These rows do not tell: documents were truncated, dropped, grouped or split at turns. Compare "
            "lengths on the source, with `packer stats SOURCE --max-len 1024,2048,4096`.",
        )
    loses = any(length.totals.tokens_lost for length in found.outcomes)
    cut = "without context or lost" if loses else "without context"
    shares = {
        f"tokens {cut}": ("orange", [length.cut_share for length in found.outcomes]),
        "attention's share": ("blue", [length.row_figures.attention_share for length in found.outcomes]),
    }
    ticks = [compact(length.max_len) for length in found.outcomes]
    *notes, verdict = found.notes()
    note = ". ".join(f"{each[0].upper()}{each[1:]}" for each in notes) + "."
    if found.are_full:
        note += " Packed rows are full at every length, so padding does not decide."
    plot = line_plot("Tokens cut and work of attention, by max_len", shares, ticks)
    return Section(question=question, verdict=verdict, plot=plot, table=found.table(), notes=[note])


def compact(value: int) -> str:
    """Format a length for an axis: 512 -> 512, 4,096 -> 4,096, 16,384 -> 16k, 2,097,152 -> 2M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**4):
            return f"{value // size:,}{unit}"
    return f"{value:,}"


def tokens_section(figures: Figures) -> Section:
    """Say what became of every token of the source."""
    totals = figures.totals
    tokens = max(1, totals.tokens)  # a manifest that was changed may have none
    if totals.tokens_lost:
        lost = count_of(totals.tokens_lost, "token")
        verdict = f"{lost} of {totals.tokens:,}, {share(totals.tokens_lost / tokens)}, are not in the rows."
    else:
        verdict = f"All {count_of(totals.tokens, 'token')} are in the rows."
    fates = {"packed": (totals.tokens_packed, "blue")}
    if isinstance(totals, Totals) and figures.options.labels:
        verdict += f" {share(totals.tokens_trained / totals.tokens_packed)} of what is packed is trained."
        fates = {"packed and trained": (totals.tokens_trained, "orange")}
        fates["packed as context, without loss"] = (totals.tokens_packed - totals.tokens_trained, "blue")
    lost_by_reason = {f"dropped, {reason.replace('_', ' ')}": count for reason, count in totals.tokens_dropped.items()}
    for name, count in {"truncated": totals.tokens_truncated, **lost_by_reason}.items():
        fates[name] = (count, "rose")
    bars = [
        Bar(name=name, value=count, text=f"{count:,} ({share(count / tokens)})", color=color)
        for index, (name, (count, color)) in enumerate(fates.items())
        if count or index == 0
    ]
    plot = bar_plot("What became of every token", bars, largest=tokens)
    rejected = totals.documents_dropped.get("rejected", 0)
    dropped = sum(totals.documents_dropped.values()) - rejected
    unusable = f"{rejected:,} could not be used, " if rejected else ""
    notes = [
        f"Of {count_of(totals.documents, 'document')}, {totals.documents_packed:,} are packed, {unusable}"
        f"{dropped:,} dropped, {totals.documents_split:,} split and {totals.documents_truncated:,} truncated."
    ]
    return Section(question="What became of every token?", verdict=verdict, plot=plot, notes=notes)


SECTIONS: dict[str, Callable[[Figures], Section | None]] = {
    "rows": rows_section,
    "padding": padding_section,
    "lengths": lengths_section,
    "max-len": max_len_section,
    "mixing": mixing_section,
    "tokens": tokens_section,
}
"""Function that makes each section, in the order of the page, by name; a name is one of `ReportPlot`."""
