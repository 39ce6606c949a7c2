"""Comparison of algorithms on the same documents: the rows of each, the best lower bound and the steps per epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

from packer.facts import Account
from packer.figures.dataset_figures import Figures
from packer.figures.row_figures import shuffled

FEW_STEPS = 100
"""Optimizer steps per epoch below which a dataset is called small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of an algorithm on a corpus."""

    figures: Figures
    """Figures of its rows."""

    seconds: float
    """Time that the algorithm took."""

    proved_bound: int = 0
    """Number of rows that the algorithm proved to be necessary; 0 if it proved nothing."""

    keeps_whole: bool = True
    """Whether the algorithm cuts only documents that are longer than max_len."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.figures.algorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An algorithm that could not run."""

    algorithm: str
    """Name of the algorithm."""

    error: str
    """The reason, in one line."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results of several algorithms on one corpus."""

    account: Account
    """What becomes of the documents if only those longer than max_len are cut."""

    known_bound: int
    """Lower bound on the rows that is known without solving."""

    outcomes: tuple[Outcome, ...]
    """Results, at least one, sorted by rows and then by seconds."""

    failures: tuple[Failure, ...] = ()
    """Algorithms that could not run, in the order of the registry."""

    left_out: tuple[str, ...] = ()
    """Algorithms that were not run because they are slow at this row length, in the order of the registry."""

    @property
    def prover(self) -> Outcome | None:
        """Outcome that proved the lower bound; None if the bound is known without solving."""
        prover = max(self.outcomes, key=lambda outcome: outcome.proved_bound)
        return prover if prover.proved_bound > self.known_bound else None

    @property
    def lower_bound(self) -> int:
        """Rows that no packing of whole documents can go below: the best bound that is known."""
        return self.known_bound if self.prover is None else self.prover.proved_bound

    @property
    def documents_over_max_len(self) -> int:
        """Documents longer than a row."""
        account = self.account
        return account.documents_split + account.documents_truncated + account.documents_dropped["too_long"]

    @cached_property
    def shuffled_share(self) -> float:
        """Within-row share of the variance of log length for documents in random order."""
        return shuffled(self.best.histogram).within_row_share

    @property
    def best_outcome(self) -> Outcome:
        """First outcome that keeps documents whole; the first of all if none does."""
        return min(self.outcomes, key=lambda outcome: not outcome.keeps_whole)

    @property
    def best(self) -> Figures:
        """Figures of the best outcome."""
        return self.best_outcome.figures

    def gap(self, figures: Figures) -> float:
        """Return the rows above the lower bound as a share of it; negative if cut documents made fewer possible."""
        return figures.rows / self.lower_bound - 1

    @property
    def steps_at_same_rows(self) -> int:
        """Optimizer steps per epoch if a step has as many packed rows as it had documents."""
        return -(-self.best.rows // self.best.documents_per_step)

    @property
    def is_small(self) -> bool:
        """Whether packing leaves few optimizer steps unless the rows per step are reduced."""
        return self.steps_at_same_rows < min(FEW_STEPS, self.best.epoch.steps)

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON."""
        account, best, prover = self.account, self.best, self.prover
        return {
            "documents": account.documents,
            "tokens": account.tokens,
            "max_len": best.max_len,
            "max_segments": best.options.max_segments,
            "long": best.options.long,
            "documents_over_max_len": self.documents_over_max_len,
            "documents_empty": account.documents_dropped["empty"],
            "shuffled_share": self.shuffled_share,
            "documents_packed": account.documents_packed,
            "tokens_packed": account.tokens_packed,
            "segments": best.segments,
            "lower_bound": self.lower_bound,
            "lower_bound_by": "bounds" if prover is None else prover.algorithm,
            "best": self.best_outcome.algorithm,
            "rows": [*map(self._outcome_to_json, self.outcomes), *map(asdict, self.failures)],
            "left_out": list(self.left_out),
            "epoch": asdict(best.epoch) | {"steps_at_same_rows": self.steps_at_same_rows, "is_small": self.is_small},
        }

    def _outcome_to_json(self, outcome: Outcome) -> dict[str, object]:
        figures, rows = outcome.figures, outcome.figures.row_figures
        return {
            "algorithm": outcome.algorithm,
            "rows": figures.rows,
            "efficiency": figures.efficiency,
            "padding_ratio": 1 - figures.efficiency,
            "padding_tokens": figures.padding_tokens,
            "gap": self.gap(figures),
            "packing_factor": figures.packing_factor,
            "speedup": figures.speedup,
            "segments": rows.segments,
            "segments_per_row": rows.segments / figures.rows,
            "max_segments": rows.segments_per_row.max,
            "attention": rows.attention,
            "attention_share": rows.attention_share,
            "attention_spread": rows.attention_spread,
            "attention_peak": rows.attention_peak,
            "within_row_share": rows.within_row_share,
            "documents_cut": figures.totals.documents_split,
            "tokens_without_context": figures.tokens_without_context,
            "keeps_whole": outcome.keeps_whole,
            "proved_bound": outcome.proved_bound,
            "seconds": outcome.seconds,
        }
