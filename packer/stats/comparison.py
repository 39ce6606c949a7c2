"""Algorithms side by side on the same documents: rows, ratios, the best bound, and the steps of an epoch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from packer.stats.dataset import Epoch, epoch_steps
from packer.stats.mixing import shuffled_share
from packer.stats.rows import Corpus, Rows

FEW_STEPS = 100
"""Optimizer steps per epoch below which a data set is called small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an algorithm made of a corpus."""

    algorithm: str
    """Its name."""

    rows: Rows
    """The rows."""

    seconds: float
    """What the algorithm took."""

    proved_bound: int = 0
    """Packs that it proved no solution can go below; 0 where it proved nothing."""

    keeps_whole: bool = True
    """Whether it cuts documents only where max_len demands it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An algorithm that could not run."""

    algorithm: str
    """Its name."""

    error: str
    """Why, in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Algorithms side by side; made by `compare_outcomes`."""

    corpus: Corpus
    """What they packed."""

    max_segments: int | None
    """The most segments in a row; None for no limit."""

    lower_bound: int
    """Packs that no solution that keeps documents whole can go below: the best bound that anything proved."""

    bound_by: str
    """The algorithm that proved it; "bounds" where it is known without solving."""

    outcomes: tuple[Outcome, ...]
    """What ran, at least one: the fewest packs first, then the fewest seconds."""

    failures: tuple[Failure, ...]
    """What could not run, in the order of the registry."""

    documents_per_step: int
    """Documents per optimizer step in unpacked training."""

    @property
    def shuffled_share(self) -> float:
        """Within-row share of the variance of log length where documents follow each other in random order."""
        return shuffled_share(self.corpus.histogram)

    @property
    def best(self) -> Outcome:
        """The first of those that keep documents whole, where there is one."""
        return min(self.outcomes, key=lambda outcome: not outcome.keeps_whole)

    def efficiency(self, rows: Rows) -> float:
        """Real tokens over the tokens of all packs."""
        return self.corpus.tokens_packed / (rows.packs * self.corpus.max_len)

    def padding_tokens(self, rows: Rows) -> int:
        """Tokens of the rows that are not real."""
        return rows.packs * self.corpus.max_len - self.corpus.tokens_packed

    def gap(self, rows: Rows) -> float:
        """Packs above the lower bound, as a share of it; below 0 where documents were cut to get under it."""
        return rows.packs / self.lower_bound - 1

    def packing_factor(self, rows: Rows) -> float:
        """Documents per pack."""
        return self.corpus.documents_packed / rows.packs

    def speedup(self, rows: Rows) -> float:
        """Rows of one segment each, padded to max_len, over packs: an upper limit that leaves attention out."""
        return self.corpus.segments / rows.packs

    def attention_share(self, rows: Rows) -> float:
        """Attention work over that of rows attended as a whole."""
        return rows.mixing.attention / (rows.packs * self.corpus.max_len**2)

    @property
    def epoch(self) -> Epoch:
        """Rows and steps now and with the packs of the best, as many documents per step."""
        return epoch_steps(
            documents=self.corpus.documents_packed,
            segments=self.corpus.segments,
            packs=self.best.rows.packs,
            documents_per_step=self.documents_per_step,
        )

    @property
    def steps_at_same_rows(self) -> int:
        """Optimizer steps of an epoch where a step takes as many packs as it took documents."""
        return -(-self.best.rows.packs // self.documents_per_step)

    @property
    def is_small(self) -> bool:
        """Whether packing leaves few optimizer steps unless rows per step are reduced."""
        return self.steps_at_same_rows < min(FEW_STEPS, self.epoch.steps)

    def to_json(self) -> dict[str, object]:
        """All numbers as JSON takes them."""
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
            "rows": [*map(self._row, self.outcomes), *map(asdict, self.failures)],
            "epoch": asdict(self.epoch) | {"steps_at_same_rows": self.steps_at_same_rows, "is_small": self.is_small},
        }

    def _row(self, outcome: Outcome) -> dict[str, object]:
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
) -> Comparison:
    """Set outcomes side by side; `known_bound` is what was proved without solving."""
    prover = max(outcomes, key=lambda outcome: outcome.proved_bound)
    proved = prover.proved_bound > known_bound
    return Comparison(
        corpus=corpus,
        max_segments=max_segments,
        lower_bound=prover.proved_bound if proved else known_bound,
        bound_by=prover.algorithm if proved else "bounds",
        outcomes=tuple(sorted(outcomes, key=lambda outcome: (outcome.rows.packs, outcome.seconds))),
        failures=tuple(failures),
        documents_per_step=documents_per_step,
    )
