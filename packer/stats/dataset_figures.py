"""Figures of a dataset before packing: lengths, padding, and the effect of packing on both."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.facts import MixturePart
from packer.stats.distribution import Distribution, Tally, distribution, tally
from packer.stats.padding import Padding, padding_ratios, tokens_of
from packer.stats.row_limits import LimitUse


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


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetStats:
    """Figures of a dataset, before packing and packed."""

    documents: int
    """Documents of the source."""

    tokens: int
    """Tokens of the source."""

    documents_packed: int
    """Documents with at least one segment: those that are neither empty nor dropped."""

    tokens_packed: int
    """Tokens in segments."""

    segments: int
    """Segments after the long-document policy."""

    documents_over_max_len: int
    """Documents longer than max_len."""

    max_len: int
    """Tokens per row."""

    max_segments: int | None
    """Largest number of segments in a row; None for no limit."""

    algorithm: str
    """Name of the packing algorithm."""

    packs: int
    """Number of packed rows."""

    lower_bound: int
    """Rows that no packing can go below."""

    lengths: Distribution
    """Tokens per document of the source, before any is split."""

    padding: Padding
    """Padding ratios, unpacked and packed."""

    epoch: Epoch
    """Rows and steps per epoch, unpacked and packed."""

    mixture: tuple[MixturePart, ...] = ()
    """Sources of a mixture and what is taken of each; empty for a single source."""

    limits: tuple[LimitUse, ...] = ()
    """What the packed rows hold of each column that is limited."""

    @property
    def efficiency(self) -> float:
        """Real tokens divided by all tokens of the rows."""
        return self.tokens_packed / (self.packs * self.max_len)

    @property
    def packing_factor(self) -> float:
        """Documents per row."""
        return self.documents_packed / self.packs

    def __repr__(self) -> str:
        return (
            f"DatasetStats(documents={self.documents}, tokens={self.tokens}, packs={self.packs}, "
            f"max_len={self.max_len}, efficiency={self.efficiency:.6f})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from packer.plots.notebook_facts import notebook_facts

        facts = [
            ("documents", f"{self.documents:,}"),
            ("tokens", f"{self.tokens:,}"),
            ("rows", f"{self.packs:,} of {self.max_len:,} tokens, {self.efficiency:.2%} full"),
            ("longer than a row", f"{self.documents_over_max_len:,} documents"),
            ("padding to max_len", f"{self.padding.max_len:.1%}"),
            ("padding in batches of 8", f"{self.padding.batch_longest[8]:.1%}"),
        ]
        return notebook_facts("Statistics of a dataset", facts)

    def to_json(self) -> dict[str, object]:
        """Return all fields and ratios as values for JSON."""
        content = asdict(self)
        content.update(padding=self.padding.to_json(), efficiency=self.efficiency, packing_factor=self.packing_factor)
        if self.mixture:
            content["mixture"] = [part.to_dict() for part in self.mixture]
        else:
            del content["mixture"]
        return content


def dataset_stats(
    *,
    lengths: NDArray[np.integer[Any]] | Tally,
    histogram: NDArray[np.int64],
    packs: int,
    lower_bound: int,
    algorithm: str,
    max_segments: int | None = None,
    documents_per_step: int = 64,
    mixture: Sequence[MixturePart] = (),
    limits: Sequence[LimitUse] = (),
) -> DatasetStats:
    """Return the figures of a dataset and of its packed rows.

    Args:
        lengths: tokens of every document of the source, including empty and long ones; or distinct ascending values,
            and how many documents have each.
        histogram: (max_len + 1,) number of segments by real tokens after the long-document policy, at least one. With
            aligned extents, `packs` and `lower_bound` refer to the extents, and this to the tokens.
        packs: number of packed rows.
        lower_bound: rows that no packing can go below.
        algorithm: name of the packing algorithm.
        max_segments: largest number of segments in a row; None for no limit.
        documents_per_step: documents per optimizer step in unpacked training, at least 1.
        mixture: sources of a mixture and what is taken of each.
        limits: what the packed rows hold of each column that is limited.
    """
    values, counts = tally(lengths)
    max_len = len(histogram) - 1
    segments = int(histogram.sum())
    # If long documents are split or truncated, all documents that are not empty are packed, each in one segment or
    # more. If they are dropped, every segment is a document.
    documents_packed = min(int(counts[values > 0].sum()), segments)
    return DatasetStats(
        documents=int(counts.sum()),
        tokens=int(values @ counts),
        documents_packed=documents_packed,
        tokens_packed=tokens_of(histogram),
        segments=segments,
        documents_over_max_len=int(counts[values > max_len].sum()),
        max_len=max_len,
        max_segments=max_segments,
        algorithm=algorithm,
        packs=packs,
        lower_bound=lower_bound,
        lengths=distribution((values, counts)),
        padding=padding_ratios(histogram, packs),
        epoch=epoch_steps(
            documents=documents_packed, segments=segments, packs=packs, documents_per_step=documents_per_step
        ),
        mixture=tuple(mixture),
        limits=tuple(limits),
    )


def epoch_steps(*, documents: int, segments: int, packs: int, documents_per_step: int) -> Epoch:
    """Return the rows and steps of an epoch, with as close to `documents_per_step` as whole packed rows allow.

    Args:
        documents: documents that are packed, at least one.
        segments: segments that they are cut into.
        packs: packed rows.
        documents_per_step: documents per optimizer step in unpacked training, at least 1.
    """
    packing_factor = documents / packs
    rows_per_step = max(1, round(documents_per_step / packing_factor))
    return Epoch(
        documents_per_step=documents_per_step,
        rows=segments,
        rows_per_step=documents_per_step * segments / documents,
        steps=-(-documents // documents_per_step),
        packed_rows=packs,
        packed_rows_per_step=rows_per_step,
        packed_documents_per_step=rows_per_step * packing_factor,
        packed_steps=-(-packs // rows_per_step),
    )
