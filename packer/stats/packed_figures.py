"""Figures of a packed dataset: efficiency and mixing of its rows, and the padding of its segments without packing."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.stats.distribution import Distribution, distribution
from packer.stats.padding import Padding, padding_ratios, tokens_of
from packer.stats.row_limits import LimitSums, LimitUse
from packer.stats.row_mixing import Mixing, MixingSums


@dataclass(frozen=True, kw_only=True, slots=True)
class RowArrays:
    """Consecutive rows of a packed dataset, in the layout of the list columns of its shards.

    The rows [3, 1] and [2, 2 tokens of padding], of documents 7, 8 and 9:

        RowArrays(row_offsets=[0, 2, 4], seq_lengths=[3, 1, 2, 2], doc_ids=[7, 8, 9, -1])
    """

    row_offsets: NDArray[np.integer[Any]]
    """Shape (rows + 1,): row i has the segments row_offsets[i]:row_offsets[i + 1], at least one; may start above 0."""

    seq_lengths: NDArray[np.int32]
    """Shape (segments,): extent of each segment; a padding tail is the last segment of its row."""

    doc_ids: NDArray[np.int64]
    """Shape (segments,): document of each segment; -1 for a padding tail."""

    seq_tokens: NDArray[np.int32] | None = None
    """Shape (segments,): real tokens in each extent; None without alignment."""

    limited: Mapping[str, NDArray[np.integer[Any]]] = field(default_factory=dict)
    """Shape (segments,): values of each column that is limited, by column."""

    def without_padding(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return (lengths, row_starts): real tokens of the segments, and row r has row_starts[r]:row_starts[r + 1]."""
        used = slice(self.row_offsets[0], self.row_offsets[-1])
        tokens = self.seq_lengths if self.seq_tokens is None else self.seq_tokens
        has_tail = self.doc_ids[self.row_offsets[1:] - 1] < 0
        row_segments = np.diff(self.row_offsets) - has_tail
        return tokens[used][self.doc_ids[used] >= 0], np.concatenate([[0], np.cumsum(row_segments)])


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedStats:
    """Figures of a packed dataset, and of its segments without packing."""

    documents: int
    """Documents in the rows."""

    tokens: int
    """Real tokens in the rows."""

    segments: int
    """Segments in the rows, padding not counted."""

    max_len: int
    """Tokens per row."""

    packs: int
    """Number of rows."""

    lower_bound: int
    """Rows that no packing can go below."""

    segments_per_row: Distribution
    """Segments in a row, padding not counted."""

    attention_share: float
    """Work of attention within segments, divided by that of attention over whole rows.

    It is the sum of all squared seq_lengths, including padding tails, over packs x max_len^2.
    """

    mixing: Mixing
    """How mixed the rows are, and how evenly attention is divided among them."""

    shuffled_share: float
    """Value of `mixing.within_row_share` for the same segments in random order."""

    padding: Padding
    """Padding ratios of the segments, unpacked and packed."""

    limits: tuple[LimitUse, ...] = ()
    """What the rows hold of each column that is limited."""

    @property
    def efficiency(self) -> float:
        """Real tokens divided by all tokens of the rows."""
        return self.tokens / (self.packs * self.max_len)

    @property
    def packing_factor(self) -> float:
        """Documents per row."""
        return self.documents / self.packs

    @property
    def mean_padding(self) -> float:
        """Tokens of padding per row on average, including those for alignment."""
        return self.max_len - self.tokens / self.packs

    def __repr__(self) -> str:
        return (
            f"PackedStats(documents={self.documents}, tokens={self.tokens}, packs={self.packs}, "
            f"max_len={self.max_len}, efficiency={self.efficiency:.6f})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from packer.plots.notebook_facts import notebook_facts

        facts = [
            ("documents", f"{self.documents:,}"),
            ("tokens", f"{self.tokens:,}"),
            ("rows", f"{self.packs:,} of {self.max_len:,} tokens, {self.efficiency:.2%} full"),
            ("segments per row", f"{self.segments_per_row.mean:.1f}, up to {self.segments_per_row.max:,}"),
            ("padding to max_len", f"{self.padding.max_len:.1%}"),
            ("padding in batches of 8", f"{self.padding.batch_longest[8]:.1%}"),
        ]
        return notebook_facts("Statistics of a packed dataset", facts)

    def to_json(self) -> dict[str, object]:
        """Return all fields and ratios as values for JSON."""
        content = asdict(self)
        content.update(
            padding=self.padding.to_json(),
            efficiency=self.efficiency,
            packing_factor=self.packing_factor,
            mean_padding=self.mean_padding,
        )
        return content


def packed_stats(
    *, documents: int, lower_bound: int, max_len: int, rows: Iterable[RowArrays], limits: Mapping[str, int] = {}
) -> PackedStats:
    """Return the figures of a packed dataset.

    Args:
        documents: documents in the rows.
        lower_bound: rows that no packing can go below.
        max_len: tokens per row.
        rows: all rows, at least one, in parts that are read one at a time.
        limits: most that a row may hold, by column.
    """
    depths = np.zeros(max_len + 1, np.int64)  # rows by segments
    attention = 0
    mixing, limited = MixingSums(max_len), LimitSums(limits)
    for part in rows:
        used = slice(part.row_offsets[0], part.row_offsets[-1])
        lengths, row_starts = part.without_padding()
        np.add.at(depths, np.diff(row_starts), 1)
        attention += int(np.square(part.seq_lengths[used], dtype=np.int64).sum())
        mixing.add(lengths, row_starts)
        limited.add(part.limited, part.row_offsets)
    mixed, histogram = mixing.finish(), mixing.histogram
    return PackedStats(
        documents=documents,
        tokens=tokens_of(histogram),
        segments=int(histogram.sum()),
        max_len=max_len,
        packs=mixed.rows,
        lower_bound=lower_bound,
        segments_per_row=distribution((np.arange(max_len + 1), depths)),
        attention_share=attention / (mixed.rows * max_len**2),
        mixing=mixed.mixing,
        shuffled_share=mixed.shuffled_share,
        padding=padding_ratios(histogram, mixed.rows),
        limits=limited.finish(),
    )
