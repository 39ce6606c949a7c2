"""Figures of a dataset and of the rows that it is packed into: one value that tables, JSON and pages show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.facts import MixturePart, PlanTotals
from packer.figures.charts import ShownRow
from packer.figures.length_figures import Distribution, Padding, Tally, distribution, grouped_total, padding_ratios
from packer.figures.row_figures import KEYS_OF_MATRICES, LimitUse, RowFigures
from packer.options import PackOptions

TOLERATED = 0.01
"""Share of the tokens without context, or lost, below which a row length is long enough."""

FULL = 0.95
"""Share of tokens in all rows from which on they count as full; `--limit` and few documents leave more padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Rows and optimizer steps of one epoch, unpacked and packed, with about as many documents per step."""

    documents_per_step: int
    """Documents per optimizer step in unpacked training."""

    rows: int
    """Rows with one segment each."""

    rows_per_step: float
    """Rows in a step of documents_per_step documents, on average: more than documents if some are split."""

    steps: int
    """Steps of documents_per_step documents; the last may have fewer."""

    packed_rows: int
    """Packed rows."""

    packed_rows_per_step: int
    """Packed rows whose documents come closest to documents_per_step, at least 1."""

    packed_documents_per_step: float
    """Documents in a step of packed_rows_per_step rows, on average."""

    packed_steps: int
    """Steps of packed_rows_per_step rows; the last may have fewer."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of documents, and of the rows that they are packed into or would be packed into."""

    options: PackOptions
    """Options of the pack."""

    totals: PlanTotals
    """What became of every document and token; `Totals` if the rows exist."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): number of segments by tokens. Of a plan, they are counted before an order algorithm cuts
    more; of a packed dataset and of one of several row lengths, in the rows."""

    documents_per_step: int = 64
    """Documents per optimizer step in unpacked training."""

    is_packed: bool = False
    """Whether the rows exist; otherwise they are those that packing would make."""

    mixture: tuple[MixturePart, ...] = ()
    """Sources of a mixture and what is taken of each; empty for a single source."""

    document_lengths: Tally | None = None
    """Distinct ascending document lengths, and the number of documents of each; None if they were not read."""

    measured_rows: RowFigures | None = None
    """Figures of the rows; None if the plan was not followed row by row."""

    name: str = ""
    """Name of the dataset in a report, without its path."""

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
        """Segments in `histogram`."""
        return int(self.histogram.sum())

    @property
    def efficiency(self) -> float:
        """Real tokens divided by all tokens of the rows."""
        return self.totals.tokens_packed / (self.rows * self.max_len)

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
        return Epoch(
            documents_per_step=per_step,
            rows=self.segments,
            rows_per_step=per_step * self.segments / documents,
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
        """Tokens in segments that do not begin their document, without those that `--overlap` repeats."""
        # A document that is truncated on the left has a segment that does not begin it, and is not split.
        totals = self.totals
        return self.row_figures.tokens_after_start - totals.tokens_repeated if totals.documents_split else 0

    @property
    def cut_share(self) -> float:
        """Share of the tokens that are without context or lost."""
        return (self.tokens_without_context + self.totals.tokens_lost) / self.totals.tokens

    @property
    def attention_share(self) -> float:
        """Share of attention in the work of a 7B model; see `packer.figures.row_figures`."""
        keys = self.row_figures.keys_per_token
        return keys / (KEYS_OF_MATRICES + keys)

    def largest_grouped_batch(self, size: int) -> float:
        """Return the tokens of the largest batch of `size` grouped by length, divided by the mean."""
        longest = int(np.flatnonzero(self.histogram)[-1])
        batches = -(-self.segments // size)
        return longest * min(size, self.segments) * batches / grouped_total(self.histogram, size)

    def __repr__(self) -> str:
        return (
            f"Figures(documents={self.documents}, tokens={self.tokens}, rows={self.rows}, max_len={self.max_len}, "
            f"efficiency={self.efficiency:.6f})"
        )

    def to_json(self) -> dict[str, object]:
        """Return all figures of `packer stats` as values for JSON."""
        content: dict[str, object] = {
            "documents": self.documents,
            "tokens": self.tokens,
            "documents_packed": self.totals.documents_packed,
            "tokens_packed": self.totals.tokens_packed,
            "segments": self.segments,
            "max_len": self.max_len,
            "max_segments": self.options.max_segments,
            "algorithm": self.algorithm,
            "rows": self.rows,
            "lower_bound": self.totals.lower_bound,
            "efficiency": self.efficiency,
            "packing_factor": self.packing_factor,
            "mean_padding": self.padding_tokens / self.rows,
            "padding": asdict(self.padding),
            "epoch": asdict(self.epoch),
            "limits": [asdict(use) for use in self.limits],
        }
        if self.mixture:
            content["mixture"] = [part.to_dict() for part in self.mixture]
        if not self.is_packed:
            return content | {"documents_over_max_len": self.documents_over_max_len, "lengths": asdict(self.lengths)}
        rows = self.row_figures
        mixing = ("within_row_share", "attention", "attention_spread", "attention_peak")
        return content | {
            "segments_per_row": asdict(rows.segments_per_row),
            "attention_share": rows.attention_share,
            "mixing": {name: getattr(rows, name) for name in mixing},
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
        return all(figures.efficiency >= FULL for figures in self.lengths)

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON; `smallest` is a max_len or None."""
        last, smallest = self.lengths[-1], self.smallest
        return {
            "documents": last.documents,
            "tokens": last.tokens,
            "algorithm": last.algorithm,
            "documents_per_step": last.documents_per_step,
            "lengths": [
                {
                    "max_len": figures.max_len,
                    "rows": figures.rows,
                    "efficiency": figures.efficiency,
                    "tokens": figures.tokens,
                    "documents_split": figures.totals.documents_split,
                    "tokens_without_context": figures.tokens_without_context,
                    "tokens_lost": figures.totals.tokens_lost,
                    "keys_per_token": figures.row_figures.keys_per_token,
                    "work_peak": figures.row_figures.work_peak,
                    "packed_rows_per_step": figures.epoch.packed_rows_per_step,
                    "cut_share": figures.cut_share,
                    "attention_share": figures.attention_share,
                }
                for figures in self.lengths
            ],
            "smallest": None if smallest is None else smallest.max_len,
        }
