"""A packed dataset: how full its rows are, and what its segments would be without packing."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.stats.distribution import Distribution, distribution
from packer.stats.mixing import Mixing, RowSums, shuffled_share
from packer.stats.padding import Padding, padding_ratios, tokens_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RowArrays:
    """Consecutive rows of a packed dataset, as the list columns of its shards hold them.

    The rows [3, 1] and [2, 2 of padding], of documents 7, 8 and 9:

        RowArrays(row_offsets=[0, 2, 4], seq_lengths=[3, 1, 2, 2], doc_ids=[7, 8, 9, -1])
    """

    row_offsets: NDArray[np.integer[Any]]
    """Shape (rows + 1,): row i is seq_lengths[row_offsets[i]:row_offsets[i + 1]], at least one; may begin above 0."""

    seq_lengths: NDArray[np.int32]
    """Extents of the segments; a padding tail is a row's last one."""

    doc_ids: NDArray[np.int64]
    """Shaped like seq_lengths: each segment's document; -1 for a padding tail."""

    seq_tokens: NDArray[np.int32] | None = None
    """Shaped like seq_lengths: real tokens in each extent; None where extents are not aligned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedStats:
    """A packed dataset, and what its segments would be without packing."""

    documents: int
    """Documents in the rows."""

    tokens: int
    """Real tokens in the rows."""

    segments: int
    """Documents, and pieces of them, in the rows."""

    max_len: int
    """Tokens per row."""

    packs: int
    """Rows."""

    lower_bound: int
    """Packs that no solution can go below."""

    segments_per_row: Distribution
    """Segments in a row, padding not counted."""

    attention_share: float
    """The sum of all squared seq_lengths, a padding tail being one of them, over packs x max_len^2.

    It is the attention work of rows whose segments do not see each other, against that of rows attended as a whole.
    """

    mixing: Mixing
    """How mixed the rows are, and how evenly they share the work of attention."""

    shuffled_share: float
    """What `mixing.within_row_share` would be if the same segments followed each other in random order."""

    padding: Padding
    """Padding ratios of the segments on their own, and packed."""

    @property
    def efficiency(self) -> float:
        """Real tokens over the tokens of all packs."""
        return self.tokens / (self.packs * self.max_len)

    @property
    def packing_factor(self) -> float:
        """Documents per pack."""
        return self.documents / self.packs

    @property
    def mean_padding(self) -> float:
        """Tokens of a row that are not real, alignment included."""
        return self.max_len - self.tokens / self.packs

    def to_json(self) -> dict[str, object]:
        """All fields and ratios as JSON takes them."""
        derived = {
            "efficiency": self.efficiency,
            "packing_factor": self.packing_factor,
            "mean_padding": self.mean_padding,
        }
        return asdict(self) | derived | {"padding": self.padding.to_json()}


def packed_stats(*, documents: int, lower_bound: int, max_len: int, rows: Iterable[RowArrays]) -> PackedStats:
    """Describe a packed dataset from its rows, at least one, and from what its manifest alone knows.

    `rows` are read once and one at a time, so that a shard each keeps memory bounded.
    """
    histogram = np.zeros(max_len + 1, np.int64)
    depths = np.zeros(max_len + 1, np.int64)
    attention = 0
    sums = RowSums()
    for part in rows:
        used = slice(part.row_offsets[0], part.row_offsets[-1])
        is_segment = part.doc_ids[used] >= 0
        tokens = part.seq_lengths if part.seq_tokens is None else part.seq_tokens
        np.add.at(histogram, tokens[used][is_segment], 1)
        has_tail = part.doc_ids[part.row_offsets[1:] - 1] < 0
        np.add.at(depths, np.diff(part.row_offsets) - has_tail, 1)
        attention += int(np.square(part.seq_lengths[used], dtype=np.int64).sum())
        sums.add(tokens[used][is_segment], np.concatenate([[0], np.cumsum(np.diff(part.row_offsets) - has_tail)]))
    packs = int(depths.sum())
    return PackedStats(
        documents=documents,
        tokens=tokens_of(histogram),
        segments=int(histogram.sum()),
        max_len=max_len,
        packs=packs,
        lower_bound=lower_bound,
        segments_per_row=distribution((np.arange(max_len + 1), depths)),
        attention_share=attention / (packs * max_len**2),
        mixing=sums.finish(),
        shuffled_share=shuffled_share(histogram),
        padding=padding_ratios(histogram, packs),
    )
