"""A dataset before packing: lengths, padding, and what packing makes of both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.stats.distribution import Distribution, Tally, distribution, tally
from packer.stats.padding import Padding, padding_ratios, tokens_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Rows and optimizer steps of one epoch, unpacked and packed, with about as many documents in a step."""

    documents_per_step: int
    """Documents per optimizer step in unpacked training."""

    rows: int
    """Rows when each holds one segment."""

    rows_per_step: float
    """Rows in a step of documents_per_step documents, on average; as many, where none is split."""

    steps: int
    """Steps of documents_per_step documents; the last may have fewer."""

    packed_rows: int
    """Packs."""

    packed_rows_per_step: int
    """Packs per step that come closest to documents_per_step, at least 1."""

    packed_documents_per_step: float
    """Documents in a step of packed_rows_per_step packs, on average."""

    packed_steps: int
    """Steps of packed_rows_per_step packs; the last may have fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetStats:
    """A dataset as it is, and what packing makes of it."""

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
    """Tokens per pack."""

    max_segments: int | None
    """Segments that a pack may hold; None for no limit."""

    algorithm: str
    """The name of the algorithm that packed."""

    packs: int
    """Rows of max_len tokens after packing."""

    lower_bound: int
    """Packs that no solution can go below."""

    lengths: Distribution
    """Tokens per document of the source, before any is split."""

    padding: Padding
    """Padding ratios now and packed."""

    epoch: Epoch
    """Rows and steps now and packed."""

    mixture: tuple[Mapping[str, Any], ...] = ()
    """Of a mixture, what is taken of each source: as in the manifest."""

    @property
    def efficiency(self) -> float:
        """Real tokens over the tokens of all packs."""
        return self.tokens_packed / (self.packs * self.max_len)

    @property
    def packing_factor(self) -> float:
        """Documents per pack."""
        return self.documents_packed / self.packs

    def to_json(self) -> dict[str, object]:
        """All fields and ratios as JSON takes them."""
        derived = {"efficiency": self.efficiency, "packing_factor": self.packing_factor}
        told = asdict(self) | derived | {"padding": self.padding.to_json()}
        if not self.mixture:
            del told["mixture"]
        return told


def dataset_stats(
    *,
    lengths: NDArray[np.integer[Any]] | Tally,
    histogram: NDArray[np.int64],
    packs: int,
    lower_bound: int,
    algorithm: str,
    max_segments: int | None = None,
    documents_per_step: int = 64,
    mixture: Sequence[Mapping[str, Any]] = (),
) -> DatasetStats:
    """Describe a dataset and what packing makes of it.

    Args:
        lengths: Tokens of every document of the source, the empty and the long ones too; or distinct ascending
            values and how many documents have each.
        histogram: Real tokens of every segment after the long-document policy, at least one segment. Where extents
            are aligned, `packs` and `lower_bound` come from the extents; this still counts tokens.
        packs: What the algorithm packed the segments into.
        lower_bound: Packs that no solution can go below.
        algorithm: Its name.
        max_segments: The limit it packed with.
        documents_per_step: Documents per optimizer step in unpacked training, at least 1.
        mixture: What is taken of each source, where there are several.
    """
    values, counts = tally(lengths)
    max_len = len(histogram) - 1
    segments = int(histogram.sum())
    # Split or truncated, all but the empty documents are packed, each as one segment or more. Where long ones are
    # dropped, every segment is a document.
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
    )


def epoch_steps(*, documents: int, segments: int, packs: int, documents_per_step: int) -> Epoch:
    """Count the steps of an epoch before packing and after, with as many documents per step as whole rows allow."""
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
