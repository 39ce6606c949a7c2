"""Sections on the rows: what they look like, how mixed they are, and whether attention balances."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.plots import DrawnRow, histogram_plot, row_plot
from packer.report.html.corpus_sections import length_edges, octaves, share
from packer.report.html.section import Section
from packer.report.plain_text import count_of, number
from packer.stats.model_work import KEYS_OF_MATRICES
from packer.stats.report_figures import ReportFigures, ShownRow

RANKS = 8
"""Ranks of the example in the section on attention."""

_MOST_BINS = 20


def rows_section(figures: ReportFigures) -> Section:
    """Draw the rows of the sample."""
    stats, rows = figures.stats, figures.rows
    factor = stats.packing_factor
    holds = f"A row holds {number(factor)} documents" if factor >= 1 else f"A document takes {number(1 / factor)} rows"
    count = Counter(row.chosen for row in rows)
    shown = ["all there are" if len(rows) == stats.packs else f"{count['at random']:,} drawn at random"]
    if count["least full"]:
        shown.append(f"the {count['least full']:,} least full")
    if count["most segments"]:
        shown.append(f"the {count['most segments']:,} with the most segments")
    verdict = (
        f"{holds} on average; rows are {share(stats.efficiency)} full. Of {count_of(stats.packs, 'row')}, "
        f"{', then '.join(shown)}:"
    )
    shows_trained = any(row.trained is not None for row in rows)
    shows_sources = any(row.sources is not None for row in rows)
    plot = row_plot(
        "Rows",
        [drawn_row(row) for row in rows],
        max_len=stats.max_len,
        sources=[part.name for part in stats.mixture] if shows_sources else (),
        shows_trained=shows_trained,
        name="rows",
    )
    notes = []
    if not figures.is_packed:
        notes.append("These rows are planned. Which of their tokens are trained is known once they are packed.")
    return Section(name="rows", question="What do rows look like?", verdict=verdict, plot=plot, notes=notes)


def drawn_row(row: ShownRow) -> DrawnRow:
    """Return a row as the plot takes it."""
    return DrawnRow(
        name=str(row.row), extents=row.extents, rest=row.rest, sources=row.sources, trained=row.trained_runs
    )


def mixing_section(figures: ReportFigures) -> Section:
    """Compare how mixed rows are with rows of the same segments in random order."""
    within, shuffled = figures.mixing.within_row_share, figures.shuffled_share
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
        f"{share(shuffled)}."
    )
    packed, random = figures.profile.mean_lengths, figures.profile.shuffled_mean_lengths
    means = np.concatenate([packed, random])
    edges = length_edges(max(1, int(means.min())), int(np.ceil(means.max())))
    plot = histogram_plot(
        "Mean length of the documents in a row",
        [f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)],
        {
            "packed rows": ("blue", _shares(packed, edges)),
            "rows in random order": ("gray", _shares(random, edges)),
        },
        ticks=octaves(edges),
        shown=share,
        name="mixing",
    )
    return Section(name="mixing", question="How mixed are they?", verdict=verdict, plot=plot)


def attention_section(figures: ReportFigures) -> Section:
    """Say how evenly rows share the work of attention, and what waiting for the largest costs."""
    keys, profile = figures.profile.keys, figures.profile
    relative = keys / keys.mean()
    matrices = KEYS_OF_MATRICES * figures.stats.max_len
    wait, attention = max(0.0, profile.wait(RANKS, matrices=matrices) - 1), profile.wait(RANKS)
    answer = "Attention balances" if wait < 0.05 else "Attention is not balanced"
    verdict = (
        f"{answer}: with {RANKS} ranks and a row on each, a step of a 7B model takes {share(wait)} longer than if all "
        f"rows had the same work. The row with the most attention has {number(float(relative.max()))} times the mean; "
        f"of {RANKS} random rows, the largest has {number(attention)} times the mean on average."
    )
    step = next(
        base * 10**power
        for power in range(-3, 9)
        for base in (1, 2, 5)
        if relative.max() < base * 10.0**power * _MOST_BINS
    )
    bins = int(relative.max() / step) + 1
    edges = [index * step for index in range(bins + 1)]
    plot = histogram_plot(
        "Work of attention in a row, over the mean",
        [f"{low:g} to {high:g} times the mean" for low, high in pairwise(edges)],
        {"rows": ("blue", _shares(relative, edges))},
        ticks=[f"{edge:g}x" for edge in edges],
        shown=share,
        marks={"mean": 1 / step},
        name="attention",
    )
    note = '`BatchSampler(balance="attention")` deals the rows of a step so that ranks wait less for each other.'
    return Section(name="attention", question="Does attention balance?", verdict=verdict, plot=plot, notes=[note])


def _shares(values: NDArray[np.floating], edges: list[int] | list[float]) -> list[float]:
    """Return the share of the values in each bin; those beyond the edges belong to the first and the last."""
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    shares: list[float] = (np.bincount(places, minlength=len(edges) - 1) / len(values)).tolist()
    return shares
