"""What a reader sees first: a sentence on the dataset, and cards with what packing does to rows, tokens and time."""

from __future__ import annotations

from dataclasses import dataclass

from packer.manifest_fields import PlanTotals, Totals
from packer.report.dataset_figures import Figures
from packer.report.plain_text import count_of, duration, fewest, number, share

BATCH = 8
"""Documents in a batch that is padded to its longest, to which packing is compared."""

TOKENS_A_SECOND = 10_000
"""Tokens that a GPU is assumed to train in a second, until the reader enters another number."""


ARROW = "\u2192"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A figure with its name above it, and lines that explain it."""

    name: str
    value: str
    lines: tuple[str, ...]


def opening(figures: Figures) -> str:
    """Return the sentence that a reader sees first: what packing saves."""
    mean, vary = round(figures.tokens / figures.documents), figures.lengths.min < figures.lengths.max
    packed = "packed into" if figures.is_packed else "which would be packed into"
    times = figures.padding.speedup(figures.padding.batch_longest[BATCH])
    if _differ(times):
        compared = f"{number(times)} times fewer tokens to compute than" if times > 1 else "more tokens to compute than"
    else:
        compared = "about as many tokens to compute as"
    return (
        f"{count_of(figures.documents, 'document')} of {count_of(mean, 'token')}{' on average' * vary}, {packed} "
        f"{count_of(figures.rows, 'row')} of {figures.max_len:,}: {compared} with padding in random batches of {BATCH}."
    )


def cards(figures: Figures) -> list[Card]:
    """Return what packing does to rows, to tokens, and to the compute of an epoch."""
    return [
        _rows_card(figures),
        _tokens_card(figures.totals, figures.shared_tokens, has_labels=figures.options.labels),
        _compute_card(figures),
    ]


def _rows_card(figures: Figures) -> Card:
    padding, bound = figures.padding, fewest(figures.rows, figures.totals.lower_bound)
    return Card(
        name=f"Rows of {figures.max_len:,} tokens",
        value=f"{figures.epoch.rows:,} {ARROW} {figures.rows:,}",
        lines=(
            f"One document a row leaves {share(padding.max_len)} padding, packed rows {share(padding.packed)}.",
            f"{bound[0].upper()}{bound[1:]}.",
        ),
    )


def _compute_card(figures: Figures) -> Card:
    padding, before = figures.padding, figures.epoch.rows
    longest = padding.batch_longest[BATCH]
    times = padding.speedup(longest)
    hours = [
        duration(figures.totals.tokens_packed / (1 - ratio) / TOKENS_A_SECOND).replace(" ", "\u00a0")
        for ratio in (longest, padding.packed)
    ]
    return Card(
        name="Compute of an epoch",
        value=f"{_times(times)} {'less' if times > 1 else 'more'}" if _differ(times) else "about the same",
        lines=(
            f"Random batches of {BATCH}, padded to their longest document, have {share(longest)} padding.",
            f"At {TOKENS_A_SECOND:,} tokens a second: {f' {ARROW} '.join(hours)} on a GPU.",
            f"Steps of {BATCH} rows: {-(-before // BATCH):,} {ARROW} {-(-figures.rows // BATCH):,}.",
        ),
    )


def _differ(times: float) -> bool:
    """Whether two numbers of tokens, one of them `times` the other, are not about the same."""
    return max(times, 1 / times) >= 1.05


def _times(times: float) -> str:
    return f"{number(max(times, 1 / times))} times"


def _tokens_card(totals: PlanTotals, shared: int, *, has_labels: bool) -> Card:
    """Say what became of every token; `shared` are those that trees save."""
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
        lines.append(f"{totals.tokens_stripped:,} more were padding, removed by attention_mask.")
    if isinstance(totals, Totals) and has_labels:
        lines.append(f"{share(totals.tokens_trained / totals.tokens_packed)} are trained.")
    value = f"{totals.tokens + shared:,} {ARROW} {totals.tokens:,}" if shared else f"{totals.tokens:,}"
    return Card(name="Tokens", value=value, lines=tuple(lines))
