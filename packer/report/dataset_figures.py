"""Figures of a dataset and its rows, and comparisons of them, for tables, JSON and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.manifest_fields import PlanTotals
from packer.options import RowOptions
from packer.report.charts import ShownRow
from packer.report.length_figures import Distribution, Padding, Tally, distribution, padding_ratios
from packer.report.row_figures import LimitUse, RowFigures

TOLERATED = 0.01
"""Share of the tokens without context, or lost, below which a row length is long enough."""

FULL = 0.95
"""Share of tokens in all rows from which on they count as full; `--limit` and few documents leave more padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Rows and optimizer steps of one epoch, unpacked and packed, with about as many documents per step."""

    documents_per_step: int
    rows: int
    """Rows with one segment each."""

    rows_per_step: float
    """Rows in a step of documents_per_step documents, on average: more than documents if some are split."""

    steps: int
    """Steps of documents_per_step documents; the last may have fewer."""

    packed_rows: int
    packed_rows_per_step: int
    """Packed rows whose documents come closest to documents_per_step, at least 1."""

    packed_documents_per_step: float
    """Documents in a step of packed_rows_per_step rows, on average."""

    packed_steps: int
    """Steps of packed_rows_per_step rows; the last may have fewer."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of documents, and of the rows that they are packed into or would be packed into."""

    options: RowOptions
    totals: PlanTotals
    """What became of every document and token; `Totals` if the rows exist."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): number of segments by tokens. For a plan, they are counted before an order algorithm cuts
    more; for packed rows, and where row lengths are compared, in the rows."""

    documents_per_step: int = 64
    """Documents per optimizer step in unpacked training."""

    is_packed: bool = False
    """Whether the rows exist; otherwise they are those that packing would make."""

    document_lengths: Tally | None = None
    """Distinct ascending document lengths, and the number of documents of each; None if they were not read."""

    measured_rows: RowFigures | None = None
    """Figures of the rows; None if the plan was not followed row by row."""

    seconds: float = 0.0
    """Time that the algorithm alone took, if algorithms are compared."""

    name: str = ""
    """Name of the dataset in a report, without its path."""

    repeated_tokens: int | None = None
    """Tokens with which documents repeat the beginning of another one of their record; None if none can."""

    saved_tokens: int | None = None
    """Tokens that storing these beginnings once saves, or has saved with `--share-prefixes`."""

    row_lengths: RowLengths | None = None
    """Rows of several lengths, for a report; None if they cannot be derived from the rows that exist."""

    shown_rows: tuple[ShownRow, ...] = ()
    """Rows for a report: some drawn at random, in their order, then the least full and those with most segments."""

    @property
    def max_len(self) -> int:
        """Tokens per row."""
        return self.options.max_len

    @property
    def algorithm(self) -> str:
        """Name of the packing algorithm."""
        return get_algorithm(self.options.algorithm).name

    @property
    def documents(self) -> int:
        """Documents of the source; of a packed dataset, those in its rows."""
        return self.totals.documents_packed if self.is_packed else self.totals.documents

    @property
    def tokens(self) -> int:
        """Tokens of the source; of a packed dataset, those in its rows."""
        return self.totals.tokens_packed if self.is_packed else self.totals.tokens

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.totals.rows

    @property
    def segments(self) -> int:
        """Segments in the rows."""
        return self.totals.segments

    @property
    def packing_factor(self) -> float:
        """Documents per row."""
        return self.totals.documents_packed / self.rows

    @property
    def speedup(self) -> float:
        """Rows without packing over packed rows, an upper limit of the speed-up of training.

        Without packing, each segment is padded to max_len; the cost of attention is not taken into account.
        """
        return self.segments / self.rows

    @property
    def padding_tokens(self) -> int:
        """Tokens of padding in all rows, including those for alignment."""
        return self.rows * self.max_len - self.totals.tokens_packed

    @property
    def documents_over_max_len(self) -> int:
        """Documents longer than a row, if the lengths of documents are known."""
        assert self.document_lengths is not None
        values, counts = self.document_lengths
        return int(counts[values > self.max_len].sum())

    @property
    def limits(self) -> tuple[LimitUse, ...]:
        """What the rows hold of each column that is limited."""
        return () if self.measured_rows is None else self.measured_rows.limits

    @cached_property
    def lengths(self) -> Distribution:
        """Tokens per document before any is split, if they are known."""
        assert self.document_lengths is not None
        return distribution(self.document_lengths)

    @cached_property
    def padding(self) -> Padding:
        """Padding ratios, unpacked and packed."""
        return padding_ratios(self.histogram, self.rows)

    @cached_property
    def epoch(self) -> Epoch:
        """Rows and steps per epoch, with as close to `documents_per_step` as whole packed rows allow."""
        documents, per_step = self.totals.documents_packed, self.documents_per_step
        packed_per_step = max(1, round(per_step / self.packing_factor))
        unpacked = int(self.histogram.sum())
        return Epoch(
            documents_per_step=per_step,
            rows=unpacked,
            rows_per_step=per_step * unpacked / documents,
            steps=-(-documents // per_step),
            packed_rows=self.rows,
            packed_rows_per_step=packed_per_step,
            packed_documents_per_step=packed_per_step * self.packing_factor,
            packed_steps=-(-self.rows // packed_per_step),
        )

    @property
    def row_figures(self) -> RowFigures:
        """Figures of the rows, if they were measured."""
        assert self.measured_rows is not None
        return self.measured_rows

    @property
    def tokens_without_context(self) -> int:
        """Tokens in segments that do not begin their document."""
        return self.row_figures.tokens_after_start

    @property
    def cut_share(self) -> float:
        """Share of the tokens that are without context or lost."""
        return (self.tokens_without_context + self.totals.tokens_lost) / self.totals.tokens

    def to_json(self) -> dict[str, object]:
        """Return all figures of `packer stats` as values for JSON."""
        content: dict[str, object] = {
            **_named(self, "documents", "tokens", "segments", "max_len", "algorithm", "rows", "packing_factor"),
            **_named(self.totals, "documents_packed", "tokens_packed", "lower_bound", "efficiency"),
            "max_segments": self.options.max_segments,
            "mean_padding": self.padding_tokens / self.rows,
            "padding": asdict(self.padding),
            "epoch": asdict(self.epoch),
            "limits": [asdict(use) for use in self.limits],
        }
        if self.repeated_tokens is not None:
            content["shared_beginnings"] = {
                **_named(self, "repeated_tokens", "saved_tokens"),
                "stored_once": self.options.has_trees,
            }
        if not self.is_packed:
            return content | {"documents_over_max_len": self.documents_over_max_len, "lengths": asdict(self.lengths)}
        rows = self.row_figures
        return content | {
            "segments_per_row": asdict(rows.segments_per_row),
            **_named(rows, "within_row_share", "keys_per_token", "attention_share", "work_peak"),
            "shuffled_share": rows.shuffled.within_row_share,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLengths:
    """The choice of max_len: figures of the same documents in rows of several lengths."""

    lengths: tuple[Figures, ...]
    """Figures of each length, in ascending order, at least one, with their rows."""

    asked: bool = True
    """Whether these lengths were asked for, rather than chosen around one."""

    @property
    def smallest(self) -> Figures | None:
        """The smallest with less than TOLERATED of the tokens without context or lost; None if there is none."""
        return next((figures for figures in self.lengths if figures.cut_share < TOLERATED), None)

    @property
    def are_full(self) -> bool:
        """Whether the rows of every length are full, so that padding is no criterion."""
        return all(figures.totals.efficiency >= FULL for figures in self.lengths)

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON; `smallest` is a max_len or None."""
        last, smallest = self.lengths[-1], self.smallest
        return {
            **_named(last, "documents", "tokens", "algorithm", "documents_per_step"),
            "lengths": [
                {
                    **_named(figures, "max_len", "rows", "tokens", "tokens_without_context"),
                    **_named(figures.totals, "efficiency", "documents_split", "tokens_lost"),
                    **_named(figures.row_figures, "keys_per_token", "attention_share", "work_peak"),
                    "packed_rows_per_step": figures.epoch.packed_rows_per_step,
                    "cut_share": figures.cut_share,
                }
                for figures in self.lengths
            ],
            "smallest": None if smallest is None else smallest.max_len,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Figures of the same documents in rows by several algorithms."""

    outcomes: tuple[Figures, ...]
    """Figures of the rows of each algorithm, at least one, sorted by rows and then by seconds."""

    failures: Mapping[str, str] = field(default_factory=dict)
    """Reason, in one line, of each algorithm that could not run, by name, in the order of the registry."""

    left_out: tuple[str, ...] = ()
    """Algorithms that were not run because they are slow at this row length, in the order of the registry."""

    @property
    def best(self) -> Figures:
        """First figures of an algorithm that keeps documents whole; the first of all if none does."""
        return min(self.outcomes, key=lambda figures: not figures.options.keeps_whole)

    @property
    def lower_bound(self) -> int:
        """Rows that no packing of whole documents can go below: the best bound that is known."""
        whole = [figures for figures in self.outcomes if figures.options.keeps_whole]
        return max(figures.totals.lower_bound for figures in whole or self.outcomes)

    def gap(self, figures: Figures) -> float:
        """Return the rows above the lower bound as a share of it; negative if cut documents made fewer possible."""
        return figures.rows / self.lower_bound - 1

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON."""
        best = self.best
        failed = [{"algorithm": name, "error": error} for name, error in self.failures.items()]
        return {
            **_named(best.totals, "documents", "tokens", "documents_packed", "tokens_packed"),
            **_named(best.options, "max_len", "max_segments", "long"),
            **_named(self, "lower_bound"),
            "best": best.algorithm,
            "shuffled_share": best.row_figures.shuffled.within_row_share,
            "rows": [*map(self._outcome_to_json, self.outcomes), *failed],
            "left_out": list(self.left_out),
        }

    def _outcome_to_json(self, figures: Figures) -> dict[str, object]:
        return {
            **_named(figures, "algorithm", "rows", "segments", "padding_tokens", "packing_factor", "speedup"),
            "efficiency": figures.totals.efficiency,
            "gap": self.gap(figures),
            "max_segments": figures.row_figures.segments_per_row.max,
            "within_row_share": figures.row_figures.within_row_share,
            "documents_cut": figures.totals.documents_split,
            "keeps_whole": figures.options.keeps_whole,
            "seconds": figures.seconds,
        }


def _named(record: object, *names: str) -> dict[str, object]:
    """Return attributes of a record by name."""
    return {name: getattr(record, name) for name in names}
