"""Comparison of algorithms on the same documents: rows, ratios, the best lower bound and the steps per epoch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from packer.stats.dataset_figures import Epoch, epoch_steps
from packer.stats.row_figures import Corpus, RowFigures
from packer.stats.row_mixing import shuffled_share

FEW_STEPS = 100
"""Optimizer steps per epoch below which a dataset is called small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of an algorithm on a corpus."""

    algorithm: str
    """Name of the algorithm."""

    rows: RowFigures
    """Figures of its rows."""

    seconds: float
    """Time that the algorithm took."""

    proved_bound: int = 0
    """Number of rows that the algorithm proved to be necessary; 0 if it proved nothing."""

    keeps_whole: bool = True
    """Whether the algorithm cuts only documents that are longer than max_len."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An algorithm that could not run."""

    algorithm: str
    """Name of the algorithm."""

    error: str
    """The reason, in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Results of several algorithms on one corpus; `compare_outcomes` creates it."""

    corpus: Corpus
    """The corpus."""

    max_segments: int | None
    """Largest number of segments in a row; None for no limit."""

    lower_bound: int
    """Rows that no packing of whole documents can go below: the best bound that is known."""

    bound_by: str
    """Algorithm that proved the lower bound, or "bounds" if it is known without solving."""

    outcomes: tuple[Outcome, ...]
    """Results, at least one, sorted by rows and then by seconds."""

    failures: tuple[Failure, ...]
    """Algorithms that could not run, in the order of the registry."""

    left_out: tuple[str, ...]
    """Algorithms that were not run because they are slow at this row length, in the order of the registry."""

    documents_per_step: int
    """Documents per optimizer step in unpacked training."""

    @property
    def shuffled_share(self) -> float:
        """Within-row share of the variance of log length for documents in random order."""
        return shuffled_share(self.corpus.histogram)

    @property
    def best(self) -> Outcome:
        """First outcome that keeps documents whole; the first of all if none does."""
        return min(self.outcomes, key=lambda outcome: not outcome.keeps_whole)

    def efficiency(self, rows: RowFigures) -> float:
        """Return the real tokens divided by all tokens of the rows."""
        return self.corpus.tokens_packed / (rows.packs * self.corpus.max_len)

    def padding_tokens(self, rows: RowFigures) -> int:
        """Return the number of padding tokens in the rows."""
        return rows.packs * self.corpus.max_len - self.corpus.tokens_packed

    def gap(self, rows: RowFigures) -> float:
        """Return the rows above the lower bound as a share of it; negative if cut documents made fewer possible."""
        return rows.packs / self.lower_bound - 1

    def packing_factor(self, rows: RowFigures) -> float:
        """Return the documents per row."""
        return self.corpus.documents_packed / rows.packs

    def speedup(self, rows: RowFigures) -> float:
        """Return the ratio of rows without packing to packed rows, an upper limit of the speed-up of training.

        Without packing, each segment is padded to max_len; the cost of attention is not taken into account.
        """
        return self.corpus.segments / rows.packs

    def attention_share(self, rows: RowFigures) -> float:
        """Return the work of attention within segments, divided by that of attention over whole rows."""
        return rows.mixing.attention / (rows.packs * self.corpus.max_len**2)

    @property
    def epoch(self) -> Epoch:
        """Rows and steps per epoch, before packing and with the best outcome, for as many documents per step."""
        return epoch_steps(
            documents=self.corpus.documents_packed,
            segments=self.corpus.segments,
            packs=self.best.rows.packs,
            documents_per_step=self.documents_per_step,
        )

    @property
    def steps_at_same_rows(self) -> int:
        """Optimizer steps per epoch if a step has as many packed rows as it had documents."""
        return -(-self.best.rows.packs // self.documents_per_step)

    @property
    def is_small(self) -> bool:
        """Whether packing leaves few optimizer steps unless the rows per step are reduced."""
        return self.steps_at_same_rows < min(FEW_STEPS, self.epoch.steps)

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON."""
        corpus = self.corpus
        return {
            "documents": corpus.documents,
            "tokens": corpus.tokens,
            "max_len": corpus.max_len,
            "max_segments": self.max_segments,
            "long": corpus.long,
            "documents_over_max_len": corpus.long_documents,
            "documents_empty": corpus.empty_documents,
            "shuffled_share": self.shuffled_share,
            "documents_packed": corpus.documents_packed,
            "tokens_packed": corpus.tokens_packed,
            "segments": corpus.segments,
            "lower_bound": self.lower_bound,
            "lower_bound_by": self.bound_by,
            "best": self.best.algorithm,
            "rows": [*map(self._outcome_to_json, self.outcomes), *map(asdict, self.failures)],
            "left_out": list(self.left_out),
            "epoch": asdict(self.epoch) | {"steps_at_same_rows": self.steps_at_same_rows, "is_small": self.is_small},
        }

    def _outcome_to_json(self, outcome: Outcome) -> dict[str, object]:
        rows = outcome.rows
        return {
            "algorithm": outcome.algorithm,
            "packs": rows.packs,
            "efficiency": self.efficiency(rows),
            "padding_ratio": 1 - self.efficiency(rows),
            "padding_tokens": self.padding_tokens(rows),
            "gap": self.gap(rows),
            "packing_factor": self.packing_factor(rows),
            "speedup": self.speedup(rows),
            "segments": rows.segments,
            "segments_per_pack": rows.segments / rows.packs,
            "max_segments": rows.max_segments,
            "attention": rows.mixing.attention,
            "attention_share": self.attention_share(rows),
            "attention_spread": rows.mixing.attention_spread,
            "attention_peak": rows.mixing.attention_peak,
            "within_row_share": rows.mixing.within_row_share,
            "documents_cut": rows.documents_cut,
            "tokens_without_context": rows.tokens_without_context,
            "keeps_whole": outcome.keeps_whole,
            "proved_bound": outcome.proved_bound,
            "seconds": outcome.seconds,
        }


def compare_outcomes(
    corpus: Corpus,
    outcomes: Sequence[Outcome],
    failures: Sequence[Failure],
    *,
    max_segments: int | None,
    known_bound: int,
    documents_per_step: int,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Combine the outcomes of several algorithms, at least one, into a comparison.

    Args:
        corpus: corpus that the algorithms packed.
        outcomes: results, in any order.
        failures: algorithms that could not run.
        max_segments: largest number of segments in a row; None for no limit.
        known_bound: lower bound on the rows that is known without solving.
        documents_per_step: documents per optimizer step in unpacked training, at least 1.
        left_out: algorithms that were not run because they are slow at this row length.
    """
    prover = max(outcomes, key=lambda outcome: outcome.proved_bound)
    proved = prover.proved_bound > known_bound
    return Comparison(
        corpus=corpus,
        max_segments=max_segments,
        lower_bound=prover.proved_bound if proved else known_bound,
        bound_by=prover.algorithm if proved else "bounds",
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (outcome.rows.packs, outcome.seconds))),
        failures=tuple(failures),
        left_out=tuple(left_out),
        documents_per_step=documents_per_step,
    )
