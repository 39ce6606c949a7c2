"""Figures of a dataset and its rows, and of the same documents in rows of several lengths or by several algorithms.

They are shown as text, as a table in a notebook and as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.json_records import PlanTotals, Totals
from packer.options import PackOptions
from packer.plain_text import count_of, fewest, folded, html_table, percent, render_bars, render_table, rounded, share
from packer.report.charts import ShownRow
from packer.report.measures import (
    Distribution,
    Epoch,
    Padding,
    RowFigures,
    Tally,
    Waiting,
    distribution,
    padding_ratios,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Figures:
    """Figures of documents, and of the rows that they are packed into or would be packed into.

    Its text is the output of `packer stats`. Notebooks show a table.
    """

    options: PackOptions
    totals: PlanTotals
    """Number of documents and tokens packed, split, dropped and so on; `Totals` if the rows exist."""

    histogram: NDArray[np.int64]
    """Number of segments by tokens, shape (max_len + 1,).

    For a plan, segments are counted before an order algorithm cuts documents further. For packed rows, and if row
    lengths are compared, they are counted in the rows.
    """

    documents_per_step: int = 64
    """Number of documents per optimizer step in unpacked training."""

    is_packed: bool = False
    """Whether the rows exist; otherwise they are planned."""

    document_lengths: Tally | None = None
    """Distinct ascending document lengths, and the number of documents of each length; None if they were not read.

    For a packed dataset, these are lengths of segments.
    """

    measured_rows: RowFigures | None = None
    """Figures of the rows; None if the planned rows were not counted."""

    seconds: float = 0.0
    """Time of the algorithm itself, if algorithms are compared."""

    name: str = ""
    """Name of the dataset in a report, without its path."""

    repeated_tokens: int | None = None
    """Tokens at the beginning of documents that repeat another document of their record; None if there are none."""

    saved_tokens: int | None = None
    """Tokens saved by storing these beginnings once, now or with `--share-prefixes`; None if not counted."""

    rows_before: Mapping[str, Any] | None = None
    """Figures, by name, of the source's rows if they were packed before; see `collect_figures.rows_before`."""

    waiting: Waiting | None = None
    """How long ranks wait for each other, if the number of ranks is known."""

    shown_rows: tuple[ShownRow, ...] = ()
    """Randomly drawn rows for a report, in their order."""

    @property
    def max_len(self) -> int:
        """Number of tokens per row."""
        return self.options.max_len

    @property
    def algorithm(self) -> str:
        """Name of the packing algorithm."""
        return self.options.algorithm

    @property
    def documents(self) -> int:
        """Number of documents of the source, or in the rows of a packed dataset."""
        return self.totals.documents_packed if self.is_packed else self.totals.documents

    @property
    def tokens(self) -> int:
        """Number of tokens of the source, or in the rows of a packed dataset."""
        return self.totals.tokens_packed if self.is_packed else self.totals.tokens

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.totals.rows

    @property
    def segments(self) -> int:
        """Number of segments in the rows."""
        return self.totals.segments

    @property
    def packing_factor(self) -> float:
        """Documents per row."""
        return self.totals.documents_packed / self.rows

    @property
    def speedup(self) -> float:
        """Rows without packing divided by packed rows, an upper limit of the speed-up of training.

        Without packing, each segment is padded to max_len. The cost of attention is not included.
        """
        return self.segments / self.rows

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens in all rows, including padding for alignment."""
        return self.rows * self.max_len - self.totals.tokens_packed

    @property
    def align_padding_tokens(self) -> int:
        """Number of padding tokens that `--align` adds after the segments."""
        return int(self.histogram @ (-np.arange(len(self.histogram)) % self.options.align))

    @property
    def documents_over_max_len(self) -> int:
        """Number of documents longer than a row, if the lengths of documents are known."""
        assert self.document_lengths is not None
        values, counts = self.document_lengths
        return int(counts[values > self.max_len].sum())

    @cached_property
    def lengths(self) -> Distribution:
        """Tokens per document before any document is split, if they are known."""
        assert self.document_lengths is not None
        return distribution(self.document_lengths)

    @cached_property
    def padding(self) -> Padding:
        """Padding ratios, unpacked and packed."""
        return padding_ratios(self.histogram, self.rows)

    @cached_property
    def epoch(self) -> Epoch:
        """Rows and steps per epoch, as close to `documents_per_step` as whole packed rows allow."""
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
        """Number of tokens in segments that do not begin their document."""
        return self.row_figures.tokens_after_start

    @property
    def cut_share(self) -> float:
        """Share of the tokens that have no context or are lost."""
        return (self.tokens_without_context + self.totals.tokens_lost) / self.totals.tokens

    def to_dict(self) -> dict[str, object]:
        """Return all counts as values for JSON, as `packer stats --json` prints them."""
        content: dict[str, object] = {
            **named(self, "documents", "tokens", "segments", "max_len", "algorithm", "rows"),
            **named(self, "packing_factor", "padding_tokens", "align_padding_tokens", "speedup"),
            **named(self.totals, "documents_packed", "tokens_packed", "documents_split", "tokens_lost"),
            **named(self.totals, "lower_bound", "efficiency"),
            **named(self.options, "max_segments", "long", "keeps_whole"),
            "mean_padding": self.padding_tokens / self.rows,
            "padding": asdict(self.padding),
            "epoch": asdict(self.epoch),
        }
        if self.repeated_tokens is not None:
            content["shared_beginnings"] = {
                **named(self, "repeated_tokens", "saved_tokens"),
                "stored_once": self.options.has_trees,
            }
        if self.rows_before is not None:
            content["packed_before"] = self.rows_before
        if self.document_lengths is not None and not self.is_packed:
            content |= {"documents_over_max_len": self.documents_over_max_len, "lengths": asdict(self.lengths)}
        if isinstance(self.totals, Totals):
            content["largest_id"] = self.totals.largest_id
        if self.waiting is not None:
            content["waiting"] = asdict(self.waiting)
        if (rows := self.measured_rows) is not None:
            names = ("within_row_share", "keys_per_token", "attention_share", "work_peak")
            content |= {"segments_per_row": asdict(rows.segments_per_row), **named(rows, *names)}
        return content

    def __repr__(self) -> str:
        """Describe a dataset and the effect of packing it, or packed rows, in up to 80 columns."""
        lines = [*(self._packed_lines() if self.is_packed else self._planned_lines())]
        return "\n".join(lines if self.waiting is None else [*lines, "", render_waiting(self.waiting)])

    def _repr_html_(self) -> str:
        padding = self.padding
        facts = [
            ("documents", f"{self.documents:,}, {count_of(self.tokens, 'token')}"),
            ("rows", f"{self.rows:,} of {self.max_len:,} tokens, {percent(self.totals.efficiency)} full"),
            ("padding", share(padding.packed)),
            (f"padding, without packing, to {self.max_len:,} tokens", share(padding.max_len)),
            ("padding, without packing, to the longest of 8 documents", share(padding.batch_longest[8])),
        ]
        if self.totals.tokens_lost:
            facts.append(("lost", f"{count_of(self.totals.tokens_lost, 'token')} truncated or dropped"))
        return html_table("Packed rows" if self.is_packed else "Rows, if packed", facts)

    def _planned_lines(self) -> Iterator[str]:
        totals, options = self.totals, self.options
        yield f"{count_of(self.documents, 'document')}, {count_of(self.tokens, 'token')}"
        full = f"{percent(totals.efficiency)} full{self._aligned()}; {fewest(self.rows, totals.lower_bound)}"
        if (before := self.rows_before) is not None:
            by, rows = " and ".join(map(repr, before["by"])), count_of(before["rows"], "row")
            held = f"{before['documents_per_row']:.3g} documents each, {before['most_documents']:,} at most"
            cut = f"{before['begin_rows']:,} begin a row and {before['end_rows']:,} end a full one"
            size = f"{before['tokens_per_row']:,} tokens, {percent(before['efficiency'])} full"
            text = f"Packed before, by {by}: {rows} of up to {size}, with {held}; {cut}, where they may have been cut"
            yield folded(text)
        yield f"Packed: {count_of(self.rows, 'row')} of {self.max_len:,} tokens, {full}"
        yield ""
        yield render_distribution(self.lengths, "Tokens per document")
        repeated, saved = self.repeated_tokens, self.saved_tokens
        if repeated and saved:
            whole = self.tokens + saved * options.has_trees
            does = "storing them once saves" if options.has_trees else "--share-prefixes stores them once and saves"
            also = "are in other documents, too"
            yield f"Shared beginnings: {count_of(repeated, 'token')} ({percent(repeated / whole)}) {also};"
            yield f"  {does} {count_of(saved, 'token')} ({percent(saved / whole)})"
        longer, lost = self.documents_over_max_len, self.tokens - totals.tokens_packed
        cut = f"; {count_of(lost, 'token')} cut off or dropped" if lost > 0 else ""
        yield f"Longer than a row: {count_of(longer, 'document')}, {percent(longer / self.documents)}{cut}"
        yield ""
        yield render_padding(self.padding, max_len=self.max_len, packed=f"packed ({self.algorithm})")
        yield ""
        yield render_epoch(self.epoch)

    def _aligned(self) -> str:
        """Return the share of the rows that `--align` costs, for the end of a phrase."""
        ratio = self.align_padding_tokens / (self.rows * self.max_len)
        return f" ({percent(ratio)} is padding by --align {self.options.align})" if ratio else ""

    def _packed_lines(self) -> Iterator[str]:
        rows, padding = self.row_figures, f"{rounded(self.padding_tokens / self.rows)} tokens per row{self._aligned()}"
        facts = [
            ["documents", f"{self.documents:,}", f"{rounded(self.packing_factor)} per row"],
            ["segments", f"{self.segments:,}", "documents, and segments of split ones"],
            ["tokens", f"{self.tokens:,}", f"the rows are {percent(self.totals.efficiency)} full"],
            ["padding", percent(self.padding.packed), padding],
            ["mixed", f"{rows.within_row_share:.2f}", MIXED],
            ["attention", percent(rows.attention_share), "of the work of a 7B model"],
            ["largest", f"{rows.work_peak:.2f}", "times the mean: the work of the row that has most"],
        ]
        if isinstance(self.totals, Totals):
            largest = self.totals.largest_id
            need = f"the model needs at least {largest + 1:,} ids" if largest is not None else "an index has no tokens"
            facts.insert(3, ["largest id", "unknown" if largest is None else f"{largest:,}", need])
        few = fewest(self.rows, self.totals.lower_bound)
        yield f"{count_of(self.rows, 'row')} of {self.max_len:,} tokens; {few}"
        yield render_table(facts, align="<><")
        yield ""
        yield render_distribution(rows.segments_per_row, "Segments per row")
        yield ""
        yield render_padding(self.padding, max_len=self.max_len, packed="packed")


def named(record: object, *names: str) -> dict[str, object]:
    """Return attributes of a record by name."""
    return {name: getattr(record, name) for name in names}


MIXED = "0 if a row has documents of one length, 1 if of all lengths"
"""Legend of `RowFigures.within_row_share`."""


def render_padding(padding: Padding, *, max_len: int, packed: str) -> str:
    """Show padding ratios by batch size, and the computed tokens divided by those of packed rows."""
    sizes = list(padding.batch_longest)
    ratios = {
        f"  to {max_len:,} tokens": [padding.max_len] * len(sizes),
        "  to longest in batch": list(padding.batch_longest.values()),
        "  same, sorted by length": list(padding.group_by_length.values()),
    }
    table = [["Padding by batch size", *map(str, sizes)]]
    for name, values in [*ratios.items(), (f"  {packed}", [padding.packed] * len(sizes))]:
        table.append([name, *(share(ratio) for ratio in values)])
    table.append(["Speed-up over padding", *[""] * len(sizes)])
    for name, values in ratios.items():
        table.append([name, *(f"{rounded(padding.speedup(ratio))}x" for ratio in values)])
    return f"{render_table(table)}\n(tokens computed padded / packed: an upper limit that leaves attention cost out)"


def render_epoch(epoch: Epoch) -> str:
    """Show the rows and steps of an epoch, unpacked and packed, and recommend packed rows per step."""
    table = render_table(
        [
            ["One epoch", "now", "packed"],
            ["  rows", f"{epoch.rows:,}", f"{epoch.packed_rows:,}"],
            ["  rows per step", rounded(epoch.rows_per_step), f"{epoch.packed_rows_per_step:,}"],
            ["  documents per step", f"{epoch.documents_per_step:,}", rounded(epoch.packed_documents_per_step)],
            ["  optimizer steps", f"{epoch.steps:,}", f"{epoch.packed_steps:,}"],
        ]
    )
    rows = count_of(epoch.packed_rows_per_step, "packed row")
    advice = f"Train with {rows} per step to keep the documents per step."
    if epoch.packed_documents_per_step > 1.5 * epoch.documents_per_step:
        advice = "A single row holds more: adapt the learning rate, or pack into shorter rows."
    return f"{table}\n{advice}"


def render_waiting(waiting: Waiting) -> str:
    """Show how long ranks wait for each other, with rows in order and balanced."""
    shares = waiting.shares
    header = ["Ranks wait", "in order", *(f"balance={steps}" for steps in shares if steps)]
    rows = count_of(waiting.accumulation, "row")
    table = render_table([header, [f"  {waiting.ranks} ranks, {rows} a step", *map(percent, shares.values())]])
    return f"{table}\n(share of the time of a {waiting.model} model; balance is that of packer.BatchSampler)"


def render_distribution(numbers: Distribution, title: str) -> str:
    """Show the quantiles of a distribution and a bar for each bin."""
    header = [title, "min", "1%", "25%", "50%", "mean", "75%", "99%", "max"]
    quantiles = [numbers.min, numbers.p1, numbers.p25, numbers.p50, numbers.mean, numbers.p75, numbers.p99, numbers.max]
    table = render_table([header, ["", *map(rounded, quantiles)]])
    labels = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in pairwise(numbers.bin_edges)]
    return f"{table}\n{render_bars(labels, numbers.bin_counts)}"


TOLERATED = 0.01
"""Share of tokens without context, or lost, below which a row length is long enough."""

FULL = 0.95
"""Share of tokens in all rows above which the rows are full. `--limit` or few documents leave more padding."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Figures of the same documents in rows of several lengths, or by several algorithms.

    Its text is the table that `packer stats` prints. Notebooks show a table too.
    """

    by: Literal["max_len", "algorithm"]
    """The option that differs."""

    outcomes: tuple[Figures, ...]
    """Figures for each length, in ascending order, or for each algorithm, sorted by rows and then by seconds."""

    failures: Mapping[str, str] = field(default_factory=dict)
    """Reason, in one line, for each algorithm that could not run, by name in the order of the registry."""

    @property
    def smallest(self) -> Figures | None:
        """The smallest length with less than TOLERATED of the tokens without context or lost; None if there is none."""
        return next((figures for figures in self.outcomes if figures.cut_share < TOLERATED), None)

    @property
    def best(self) -> Figures:
        """The smallest sufficient length, or else the length that cuts the fewest tokens.

        For algorithms: the first that keeps documents whole, or else the first.
        """
        if self.by == "max_len":
            return self.smallest or min(self.outcomes, key=lambda figures: figures.cut_share)
        return min(self.outcomes, key=lambda figures: not figures.options.keeps_whole)

    @property
    def are_full(self) -> bool:
        """Whether all rows are full, so that padding does not distinguish them."""
        return all(figures.totals.efficiency >= FULL for figures in self.outcomes)

    @property
    def lower_bound(self) -> int:
        """Highest known lower bound on the number of rows, for packings of one length that keep documents whole."""
        whole = [figures for figures in self.outcomes if figures.options.keeps_whole]
        return max(figures.totals.lower_bound for figures in whole or self.outcomes)

    def gap(self, figures: Figures) -> float | None:
        """Return the relative distance of the rows from the lower bound.

        Returns None if documents are cut, because the bound does not hold then.
        """
        return figures.rows / self.lower_bound - 1 if figures.options.keeps_whole else None

    def to_dict(self) -> dict[str, object]:
        """Return all figures, and which are best, as values for JSON, as `packer stats --json` prints them."""
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
        """Show the costs of each length or algorithm, in 80 columns, and which is best."""
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
        head, *lines = self.table()
        return html_table(self.notes()[-1 if self.by == "max_len" else 0], lines, head=head)

    # ---- parts of both representations ----

    def table(self) -> list[list[str]]:
        """Return a header, and a line for each length or algorithm."""
        columns = self._length_columns() if self.by == "max_len" else self._algorithm_columns()
        return [list(line) for line in zip(*([name, *cells] for name, cells in columns.items()), strict=True)]

    def _length_columns(self) -> dict[str, list[str]]:
        """Return columns by name, without `full` if all rows are full, and without `lost` if no token is lost."""
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
            "keys": [rounded(length.row_figures.keys_per_token) for length in found],
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
        """Return sentences that explain the columns of the table; the last one names the best length."""
        return [*self._length_notes(), self.recommendation()] if self.by == "max_len" else self._algorithm_notes()

    def _length_notes(self) -> list[str]:
        documents = count_of(self.outcomes[-1].documents_per_step, "document")
        notes = {
            "full": "full: share of the rows that holds tokens",
            "split": "split: documents in several segments; no context: tokens that do not see the beginning of their "
            "document",
            "lost": "lost: tokens that are truncated or dropped",
            "keys": "keys: average number that a token attends to; attention: its share of the work of a 7B model",
            "largest": f"largest: work of the largest row, relative to the mean; rows/step: rows that hold {documents}",
        }
        return [note for column, note in notes.items() if column in self._length_columns()]

    def _algorithm_notes(self) -> list[str]:
        fewest, gap = "*: the fewest rows", "gap: rows above the lower bound"
        if not all(figures.options.keeps_whole for figures in self.outcomes):
            fewest += " without cutting documents that fit into a row"
            gap += "; - if documents that fit into a row are cut"
        notes = [
            fewest,
            gap,
            f"mixed: {MIXED}",
            "split: documents in several segments; seconds: of planning, without compiling",
        ]
        return notes + [e if e.startswith(name) else f"{name}: {e}" for name, e in self.failures.items()]

    def recommendation(self) -> str:
        """Return a sentence that names the smallest length that cuts few tokens, or the one that cuts fewest."""
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
    """Format a ratio with three decimals, or more if it would round to 0% or 100%; above 1, with one decimal."""
    text = f"{ratio:.3%}" if ratio <= 1 else f"{ratio:.1%}"
    return percent(ratio) if text in ("0.000%", "100.000%") else text
