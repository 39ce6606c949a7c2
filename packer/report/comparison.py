"""Figures of the same documents side by side: in rows of several lengths, or by several algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packer.notebook_table import html_table
from packer.plain_text import count_of, folded, number, percent, render_table, share
from packer.report.dataset_figures import MIXED, Figures, named

TOLERATED = 0.01
"""Share of the tokens without context, or lost, below which a row length is long enough."""

FULL = 0.95
"""Share of tokens in all rows from which on they count as full; `--limit` and few documents leave more padding."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Figures of the same documents in rows of several lengths, or by several algorithms.

    Printed, they are the table that `packer stats` prints; in a notebook, a table as well.
    """

    by: Literal["max_len", "algorithm"]
    """The option that differs."""

    outcomes: tuple[Figures, ...]
    """Figures of each length, in ascending order, or of each algorithm, sorted by rows and then by seconds."""

    failures: Mapping[str, str] = field(default_factory=dict)
    """Reason, in one line, of each algorithm that could not run, by name, in the order of the registry."""

    @property
    def smallest(self) -> Figures | None:
        """The smallest length with less than TOLERATED of the tokens without context or lost; None if there is none."""
        return next((figures for figures in self.outcomes if figures.cut_share < TOLERATED), None)

    @property
    def best(self) -> Figures:
        """The smallest length that suffices, or the one that cuts the fewest tokens.

        Of algorithms, the first that keeps documents whole, or the first of all if none does.
        """
        if self.by == "max_len":
            return self.smallest or min(self.outcomes, key=lambda figures: figures.cut_share)
        return min(self.outcomes, key=lambda figures: not figures.options.keeps_whole)

    @property
    def are_full(self) -> bool:
        """Whether all rows are full, so that padding is no criterion."""
        return all(figures.totals.efficiency >= FULL for figures in self.outcomes)

    @property
    def lower_bound(self) -> int:
        """The best known bound that no packing of whole documents into rows of one length can go below."""
        whole = [figures for figures in self.outcomes if figures.options.keeps_whole]
        return max(figures.totals.lower_bound for figures in whole or self.outcomes)

    def gap(self, figures: Figures) -> float | None:
        """Return the rows above the lower bound as a share of it; None if documents are cut, so that it is no bound."""
        return figures.rows / self.lower_bound - 1 if figures.options.keeps_whole else None

    def to_dict(self) -> dict[str, object]:
        """Return what `packer stats --json` prints: the figures of each, and which is best, as values for JSON."""
        best = self.best
        content = {**named(best, "documents", "tokens"), "best": named(best, "max_len", "algorithm")}
        if self.by == "max_len":
            names = ("tokens_without_context", "cut_share")
            return content | {"outcomes": [each.to_dict() | named(each, *names) for each in self.outcomes]}
        return {
            **content,
            "lower_bound": self.lower_bound,
            "outcomes": [each.to_dict() | {"gap": self.gap(each), "seconds": each.seconds} for each in self.outcomes],
            "failures": dict(self.failures),
        }

    def __repr__(self) -> str:
        """Show what rows of each length or algorithm cost, in 80 columns, and which is best."""
        best, totals = self.best, self.best.totals
        documents, tokens = count_of(totals.documents, "document"), count_of(totals.tokens, "token")
        if self.by == "max_len":
            head = [f"{documents}, {tokens}; packed by {best.algorithm}"]
        else:
            most = best.options.max_segments
            limit = "" if most is None else f", at most {count_of(most, 'segment')} in each"
            head = [f"{documents}, {tokens}; rows of {count_of(best.max_len, 'token')}{limit}"]
            head += [f"Lower bound: {count_of(self.lower_bound, 'row')}", ""]
        table = self.table()
        align = ">" * len(table[0]) if self.by == "max_len" else None
        return "\n".join([*head, render_table(table, align=align), *map(folded, self.notes())])

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        head, *lines = self.table()
        return html_table(self.notes()[-1 if self.by == "max_len" else 0], lines, head=head)

    # ---- parts of both ----

    def table(self) -> list[list[str]]:
        """Return a head, and a line for each length or algorithm."""
        columns = self._length_columns() if self.by == "max_len" else self._algorithm_columns()
        return [list(line) for line in zip(*([name, *cells] for name, cells in columns.items()), strict=True)]

    def _length_columns(self) -> dict[str, list[str]]:
        """Return columns by name; `full` is left out if rows are, and `lost` if nothing is."""
        found = self.outcomes
        left_out = {"full"} if self.are_full else set()
        if not any(length.totals.tokens_lost for length in found):
            left_out.add("lost")
        if not (self.are_full or any(length.totals.documents_split for length in found)):  # 80 columns do not hold all
            left_out |= {"split", "no context"}
        columns = {
            "max_len": [f"{length.max_len:,}" for length in found],
            "rows": [f"{length.rows:,}" for length in found],
            "full": [percent(length.totals.efficiency) for length in found],
            "split": [f"{length.totals.documents_split:,}" for length in found],
            "no context": [share(length.tokens_without_context / length.tokens) for length in found],
            "lost": [share(length.totals.tokens_lost / length.tokens) for length in found],
            "keys": [number(length.row_figures.keys_per_token) for length in found],
            "attention": [share(length.row_figures.attention_share) for length in found],
            "largest": [f"{length.row_figures.work_peak:.2f}" for length in found],
            "rows/step": [f"{length.epoch.packed_rows_per_step:,}" for length in found],
        }
        return {name: cells for name, cells in columns.items() if name not in left_out}

    def _algorithm_columns(self) -> dict[str, list[str]]:
        found, none = self.outcomes, ["-"] * len(self.failures)
        seconds = [f"{each.seconds:.4f}" if each.seconds >= 0.0001 else "<0.0001" for each in found]
        return {
            "  algorithm": [*map(self._marked, found), *(f"  {name}" for name in self.failures)],
            "rows": [f"{each.rows:,}" for each in found] + none,
            "full": [_exact_percent(each.totals.efficiency) for each in found] + none,
            "gap": ["-" if (gap := self.gap(each)) is None else _exact_percent(gap) for each in found] + none,
            "mixed": [f"{each.row_figures.within_row_share:.2f}" for each in found] + none,
            "split": [f"{each.totals.documents_split:,}" for each in found] + none,
            "seconds": seconds + none,
        }

    def notes(self) -> list[str]:
        """Return sentences that explain the columns of the table, and the one that names the best length."""
        return [*self._length_notes(), self.recommendation()] if self.by == "max_len" else self._algorithm_notes()

    def _length_notes(self) -> list[str]:
        documents = count_of(self.outcomes[-1].documents_per_step, "document")
        notes = {
            "full": "full: share of the rows that holds tokens",
            "split": "split: documents in several segments; no context: their tokens in all but the first",
            "lost": "lost: tokens that are truncated or dropped",
            "keys": "keys: those that a token attends to, on average; attention: its share of the work of a 7B model",
            "largest": f"largest: work of the largest row over the mean; rows/step: those that keep {documents}",
        }
        return [note for column, note in notes.items() if column in self._length_columns()]

    def _algorithm_notes(self) -> list[str]:
        fewest, gap = "* the fewest rows", "gap: rows above the lower bound"
        if not all(figures.options.keeps_whole for figures in self.outcomes):
            fewest += " of those that keep documents whole"
            gap += "; none where documents that fit a row are cut"
        notes = [
            fewest,
            gap,
            f"mixed: {MIXED}",
            "split: documents in several segments; seconds: of planning, without compiling",
        ]
        return notes + [e if e.startswith(name) else f"{name}: {e}" for name, e in self.failures.items()]

    def recommendation(self) -> str:
        """Return the sentence that names the smallest length that cuts few tokens, or the one that cuts the fewest."""
        without_context = any(length.tokens_without_context for length in self.outcomes)
        lost = any(length.totals.tokens_lost for length in self.outcomes)
        cut = " or ".join(["without context"] * (without_context or not lost) + ["lost"] * lost)
        limit = f"less than {TOLERATED:.0%} of the tokens {cut}"
        if self.smallest is not None:
            return f"{self.smallest.max_len:,} is the smallest with {limit}."
        least = self.best
        return f"None of these has {limit}; {least.max_len:,} comes closest: {share(least.cut_share)}."

    def _marked(self, figures: Figures) -> str:
        """Return the name of an algorithm, with a star if it has the fewest rows."""
        best = self.best
        is_best = (figures.rows, figures.options.keeps_whole) == (best.rows, best.options.keeps_whole)
        return f"{'*' if is_best else ' '} {figures.algorithm}"


def _exact_percent(ratio: float) -> str:
    """Format a ratio with three decimals, or more if these would be 0% or 100% only by rounding; above 1 with one."""
    text = f"{ratio:.3%}" if ratio <= 1 else f"{ratio:.1%}"
    return percent(ratio) if text in ("0.000%", "100.000%") else text
