"""Sections on the documents: what padding costs, how long documents are, and which max_len suffices."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, floor, log2

import numpy as np

from packer.plots import Line, histogram_plot, line_plot
from packer.report.html.section import Section, compact
from packer.report.plain_text import count_of, number, percent
from packer.report.row_length_table import length_table, recommend_length
from packer.stats.report_figures import ReportFigures, binned, weighted_median

BATCHES = (8, 64)
"""Batch sizes in the table of padding."""

_MOST_BINS = 24


def share(value: float) -> str:
    """Format a ratio for a plot or a sentence: 0.0312 -> 3.1%."""
    return percent(value, decimals=2)


def padding_section(figures: ReportFigures) -> Section:
    """Say what padding costs in tokens, by the way batches are formed."""
    padding, max_len = figures.stats.padding, figures.stats.max_len
    sizes = list(padding.batch_longest)
    lines = [
        Line(name=f"to {max_len:,} tokens", values=[padding.max_len] * len(sizes), color="gray"),
        Line(name="to longest in batch", values=list(padding.batch_longest.values()), color="orange"),
        Line(name="grouped by length", values=list(padding.group_by_length.values()), color="purple"),
        Line(name="packed", values=[padding.packed] * len(sizes), color="blue"),
    ]
    middle = BATCHES[0]
    verdict = (
        f"Padded to {max_len:,} tokens, {share(padding.max_len)} of what is computed is padding; in random batches of "
        f"{middle}, padded to their longest, {share(padding.batch_longest[middle])}; packed, {share(padding.packed)}. "
        f"Padding to max_len computes {number(padding.speedup(padding.max_len))} times the tokens that packing does, "
        f"and such batches {number(padding.speedup(padding.batch_longest[middle]))} times."
    )
    grouped, size = padding.group_by_length, BATCHES[-1]
    wins = "nearly as little" if grouped[size] < padding.packed + 0.05 else "less than random batches"
    note = (
        f"Grouping by length pads {wins}: {share(grouped[size])} in batches of {size}. It costs otherwise: a batch has "
        "documents of one length, so it is not a sample of the corpus, and each step sees another kind of documents; "
        f"and the largest batch has {number(figures.largest_grouped_batch(size))} times the tokens of the mean one, "
        "which memory must hold."
    )
    limit = "Tokens are counted, and the work of attention is left out: the factors are upper limits."
    plot = line_plot("Share of padding, by batch size", lines, list(map(str, sizes)), shown=share, name="padding")
    return Section(name="padding", question="What does padding cost?", verdict=verdict, plot=plot, notes=[note, limit])


def computed_tokens(figures: ReportFigures) -> list[tuple[str, float, int]]:
    """Return (way to form batches, padding ratio, tokens computed in an epoch) for each way."""
    padding, tokens = figures.stats.padding, figures.stats.tokens_packed
    ways = [(f"padded to {figures.stats.max_len:,} tokens", padding.max_len)]
    ways += [(f"padded to longest, batches of {size}", padding.batch_longest[size]) for size in BATCHES]
    ways += [(f"grouped by length, batches of {size}", padding.group_by_length[size]) for size in BATCHES]
    return [(name, ratio, round(tokens / (1 - ratio))) for name, ratio in [*ways, ("packed", padding.packed)]]


def lengths_section(figures: ReportFigures) -> Section:
    """Say how long documents are, on a logarithmic scale, and where the tokens are."""
    stats, (values, _) = figures.stats, figures.lengths
    edges = length_edges(int(values[0]), int(values[-1]))
    documents, tokens = binned(figures.lengths, edges)
    all_documents, all_tokens = sum(documents), sum(tokens)
    lengths = stats.lengths
    verdict = (
        f"Half of the documents have {lengths.p50:,} tokens or fewer, but half of the tokens are in documents of "
        f"{weighted_median(figures.lengths):,} tokens and more. The longest document has {lengths.max:,}. Longer "
        f"than a row: {count_of(stats.documents_over_max_len, 'document')}."
    )
    at_max_len = float(np.interp(log2(stats.max_len), [log2(max(edge, 1)) for edge in edges], range(len(edges))))
    plot = histogram_plot(
        "Document lengths",
        [f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)],
        {
            "documents": ("blue", [count / all_documents for count in documents]),
            "tokens": ("orange", [count / all_tokens for count in tokens]),
        },
        ticks=octaves(edges),
        shown=share,
        marks={f"max_len {stats.max_len:,}": at_max_len} if edges[0] < stats.max_len < edges[-1] else {},
        name="lengths",
    )
    notes = []
    if figures.is_packed and figures.totals.tokens_lost:
        notes.append("Documents are as long as what is in the rows: what was truncated or dropped is not in them.")
    return Section(name="lengths", question="How long are documents?", verdict=verdict, plot=plot, notes=notes)


def length_edges(smallest: int, largest: int) -> list[int]:
    """Return edges of at most 24 bins on a logarithmic scale: powers of 2, or of its roots if they are few.

    (100, 500) -> 64, 70, 76, ..., 512; (1, 200,000) -> 1, 2, 4, ..., 262,144.
    """
    low, high = floor(log2(smallest)), max(floor(log2(largest)) + 1, ceil(log2(largest + 1)))
    steps = next((steps for steps in (8, 4, 2) if steps * (high - low) <= _MOST_BINS), 1)
    return sorted({round(2 ** (power / steps)) for power in range(low * steps, high * steps + 1)})


def octaves(edges: list[int]) -> list[str]:
    """Return the label of each edge: those that are powers of 2."""
    return [compact(edge) if edge & (edge - 1) == 0 else "" for edge in edges]


def max_len_section(figures: ReportFigures) -> Section:
    """Compare row lengths by what decides."""
    found = figures.row_lengths
    question = "Which max_len?"
    if found is None:
        return Section(
            name="max-len",
            question=question,
            verdict="These rows do not tell: documents were truncated, dropped, grouped or split at turns. Compare "
            "lengths on the source, with `packer stats SOURCE --max-len 1024,2048,4096`.",
        )
    loses = any(length.tokens_lost for length in found.lengths)
    cut = "without context or lost" if loses else "without context"
    lines = [
        Line(name=f"tokens {cut}", values=[length.cut_share for length in found.lengths], color="orange"),
        Line(name="attention's share", values=[length.attention_share for length in found.lengths], color="blue"),
    ]
    ticks = [compact(length.max_len) for length in found.lengths]
    notes = [
        "Split: documents in several segments. No context: their tokens in all segments but the first, which do not "
        "see the beginning. Keys: those that a token attends to on average. Attention: its share of the work of a 7B "
        "model. Largest row: its work, over the mean. Rows a step: those that keep "
        f"{found.documents_per_step:,} documents in an optimizer step."
    ]
    if found.are_full:
        notes[0] += " Packed rows are full at every length, so padding does not decide."
    else:
        notes[0] += " Full: share of the rows that holds tokens."
    plot = line_plot("Tokens cut and work of attention, by max_len", lines, ticks, shown=share, name="max-len")
    return Section(
        name="max-len",
        question=question,
        verdict=recommend_length(found),
        plot=plot,
        table=length_table(found),
        notes=notes,
    )
