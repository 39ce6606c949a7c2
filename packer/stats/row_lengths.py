"""The choice of max_len: costs of the same documents in rows of several lengths."""

from dataclasses import asdict, dataclass

from packer.facts import PlanTotals
from packer.stats.dataset_figures import epoch_steps
from packer.stats.model_work import RowWork, attention_share

TOLERATED = 0.01
"""Share of the tokens without context, or lost, below which a row length is long enough."""

FULL = 0.95
"""Share of tokens in all rows from which on they count as full; `--limit` and few documents leave more padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLength:
    """Figures of the rows of one length."""

    max_len: int
    """Tokens per row."""

    packs: int
    """Number of rows."""

    efficiency: float
    """Tokens in segments divided by the capacity of all rows."""

    tokens: int
    """Tokens of the source."""

    documents_split: int
    """Documents in more than one segment."""

    tokens_without_context: int
    """Tokens in segments that do not begin their document, without those that `--overlap` repeats."""

    tokens_lost: int
    """Tokens that are truncated or dropped."""

    keys_per_token: float
    """Keys that a token attends to on average."""

    work_peak: float
    """Largest work of a row for a 7B model, attention and matrices, divided by the mean."""

    packed_rows_per_step: int
    """Rows in an optimizer step with about as many documents as before packing, at least 1."""

    @property
    def cut_share(self) -> float:
        """Share of the tokens that are without context or lost."""
        return (self.tokens_without_context + self.tokens_lost) / self.tokens

    @property
    def attention_share(self) -> float:
        """Share of attention in the work of a 7B model; see `packer.stats.model_work`."""
        return attention_share(self.keys_per_token)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLengths:
    """Figures of the same documents in rows of several lengths."""

    documents: int
    """Documents of the source."""

    tokens: int
    """Tokens of the source."""

    algorithm: str
    """Name of the packing algorithm."""

    documents_per_step: int
    """Documents per optimizer step in unpacked training."""

    lengths: tuple[RowLength, ...]
    """The lengths in ascending order, at least one."""

    @property
    def smallest(self) -> RowLength | None:
        """The smallest with less than TOLERATED of the tokens without context or lost; None if there is none."""
        return next((length for length in self.lengths if length.cut_share < TOLERATED), None)

    @property
    def are_full(self) -> bool:
        """Whether the rows of every length are full, so that padding is no criterion."""
        return all(length.efficiency >= FULL for length in self.lengths)

    def to_json(self) -> dict[str, object]:
        """Return all figures as values for JSON; `smallest` is a max_len or None."""
        shares = [{"cut_share": one.cut_share, "attention_share": one.attention_share} for one in self.lengths]
        smallest = self.smallest
        return {
            **asdict(self),
            "lengths": [asdict(one) | share for one, share in zip(self.lengths, shares, strict=True)],
            "smallest": None if smallest is None else smallest.max_len,
        }


def row_length(
    totals: PlanTotals, work: RowWork, *, max_len: int, tokens_after_start: int, documents_per_step: int
) -> RowLength:
    """Return the figures of the rows of one length.

    Args:
        totals: totals of the plan.
        work: work of all rows.
        max_len: tokens per row.
        tokens_after_start: tokens in segments that do not begin their document, repeated ones included.
        documents_per_step: documents per optimizer step in unpacked training, at least 1.
    """
    epoch = epoch_steps(
        documents=totals.documents_packed,
        segments=totals.segments,
        packs=totals.packs,
        documents_per_step=documents_per_step,
    )
    return RowLength(
        max_len=max_len,
        packs=totals.packs,
        efficiency=totals.efficiency,
        tokens=totals.tokens,
        documents_split=totals.documents_split,
        # A document that is truncated on the left has a segment that does not begin it, and is not split.
        tokens_without_context=tokens_after_start - totals.tokens_repeated if totals.documents_split else 0,
        tokens_lost=totals.tokens_lost,
        keys_per_token=work.keys_per_token,
        work_peak=work.peak,
        packed_rows_per_step=epoch.packed_rows_per_step,
    )
