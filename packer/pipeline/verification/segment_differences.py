"""Find the first differences between the documents of a source and the segments of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import written
from packer.gather import Spans, gather, held_spans, mask_context
from packer.labels import NO_LOSS
from packer.options import PackOptions
from packer.pipeline.segments.segment_reader import lists_of
from packer.pipeline.verification.packed_segments import PackedSegments
from packer.plan.segments import Segments
from packer.shards.kept_columns import KeptValues, same_values, tokens_at
from packer.sources.columns.column_types import cast, join
from packer.sources.documents import TokenTable, reading
from packer.sources.open_documents import SourceOrder

_COMPARED_TOGETHER = 4 << 20  # tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedSegments:
    """Segments of consecutive documents of the source, by document and start; int64 arrays of shape (segments,)."""

    documents: NDArray[np.int64]
    """Documents of the segments, counted from the first of these documents."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    context: NDArray[np.int64]
    """Tokens at the start of the segments that have no loss."""

    @classmethod
    def of(cls, segments: Segments) -> ExpectedSegments:
        """Sort segments by document and start."""
        documents, starts, lengths = segments.locate(segments.numbers())
        order = np.lexsort((starts, documents))
        documents, starts, lengths = documents[order], starts[order], lengths[order]
        return cls(documents=documents, starts=starts, lengths=lengths, context=segments.context_of(starts))

    def __len__(self) -> int:
        return len(self.documents)


class TableDifferences:
    """First differences between a table of the source, which is compared part by part, and the rows.

    If segments differ, one is reported: the first with another document, else the first with another start, else the
    first with another length. Otherwise, the first difference in each kept column is reported, and the first in the
    tokens, or in the labels if the tokens are equal.
    """

    def __init__(self, options: PackOptions, source: SourceOrder) -> None:
        self._max_len = options.max_len
        self._kept_names = (*options.stored_keep_tokens, *options.kept)
        self._describe = source.describe
        self._structure: dict[str, str] = {}  # a sentence per attribute that differs
        self._kept: dict[str, str] = {}
        self._tokens: dict[str, str] = {}

    @property
    def in_documents(self) -> bool:
        """Whether a segment belongs to another document than it should."""
        return "documents" in self._structure

    @property
    def in_structure(self) -> bool:
        """Whether segments differ in their documents, starts or lengths."""
        return bool(self._structure)

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each difference to report."""
        if not self._structure:
            yield from (self._kept[name] for name in self._kept_names if name in self._kept)
        found = self._structure or self._tokens
        names = ("documents", "starts", "lengths") if self._structure else ("input_ids", "labels")
        yield from [found[name] for name in names if name in found][:1]

    def compare(self, expected: ExpectedSegments, packed: PackedSegments, first: int, part: TokenTable) -> None:
        """Compare the next part of the table.

        Args:
            expected: segments of the part.
            packed: bucket with all segments of the documents of the part.
            first: number in `packed` of the first expected segment; below 0 if earlier buckets have too many segments.
            part: documents of the part.
        """
        self._compare_structure(expected, packed, first, part)
        if self._structure:
            return
        ends = np.cumsum(expected.lengths)
        begin = 0
        while begin < len(expected):
            before = ends[begin] - expected.lengths[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + _COMPARED_TOGETHER, side="right")))
            here, numbers = slice(begin, end), slice(first + begin, first + end)
            rows, offsets = np.divmod(packed.places[numbers], self._max_len)
            pieces = _Pieces(
                packed=packed,
                part=part,
                documents=packed.documents[numbers],
                numbers=numbers,
                lists=lists_of(part, expected.documents[here]),
                starts=expected.starts[here],
                lengths=expected.lengths[here],
                context=expected.context[here],
                places=ends[here] - expected.lengths[here] - before,
                rows=rows,
                offsets=offsets,
            )
            columns = [column for column in (part.input_ids, part.labels) if column is not None]
            columns += [part.extra[name].addresses() for name in packed.kept_tokens]
            with reading("the source"), held_spans(columns, pieces.lists, pieces.starts, pieces.lengths):
                self._compare_kept(pieces)
                self._compare_tokens(pieces)
            begin = end

    def _compare_structure(
        self, expected: ExpectedSegments, packed: PackedSegments, first: int, part: TokenTable
    ) -> None:
        here = slice(first, first + len(expected)) if first >= 0 else slice(0)
        wanted = expected.documents + part.first_document
        pairs: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
            "documents": (wanted, packed.documents[here]),
            "starts": (expected.starts, packed.starts[here]),
            "lengths": (expected.lengths, packed.lengths[here]),
        }
        for name, (one, other) in pairs.items():
            short = min(len(one), len(other))
            differ = np.flatnonzero(one[:short] != other[:short])
            if len(differ) or len(one) != len(other):
                which = self._describe(int(wanted[differ[0] if len(differ) else short]))
                fault = f"{which} is in the source, but missing from the rows, repeated or cut elsewhere there"
                self._structure.setdefault(name, fault)
                return

    def _compare_kept(self, pieces: _Pieces) -> None:
        packed, places = pieces.packed, pieces.places
        for name in self._kept_names:
            if name in self._kept:
                continue
            expected, found = pieces.kept(name)
            at = _difference(expected, found)
            if at is not None:
                segment = int(np.searchsorted(places, at, side="right")) - 1 if name in packed.kept_tokens else at
                which = self._describe(int(pieces.documents[segment]))
                self._kept[name] = (
                    f"{which}: {name} is {written(expected[at])} in the source, {written(found[at])} in the rows"
                )

    def _compare_tokens(self, pieces: _Pieces) -> None:
        for name in pieces.packed.columns:
            if name in self._tokens:
                return
            fault = self._token_fault(pieces, name)
            if fault is not None:
                self._tokens[name] = fault
                return

    def _token_fault(self, pieces: _Pieces, name: str) -> str | None:
        part, places = pieces.part, pieces.places
        origin = part.labels if name == "labels" and part.labels is not None else part.input_ids
        expected, found = np.empty(pieces.size, np.int32), np.empty(pieces.size, np.int32)
        bad = gather(origin.addresses, pieces.in_source, NO_LOSS if name == "labels" else 0, expected)
        if bad >= 0:
            return f"{self._describe(int(pieces.documents[bad]))}: {name} of the source is out of range"
        gather(pieces.packed.columns[name].addresses, pieces.in_rows, NO_LOSS, found)
        if name == "labels":
            mask_context(places, pieces.context, NO_LOSS, expected)
        differ = np.flatnonzero(expected != found)
        if not len(differ):
            return None
        segment = int(np.searchsorted(places, differ[0], side="right")) - 1
        position = int(pieces.starts[segment] + differ[0] - places[segment])
        return (
            f"{self._describe(int(pieces.documents[segment]))}: {name} at position {position} is "
            f"{expected[differ[0]]} in the source, {found[differ[0]]} in row {pieces.rows[segment]}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """Segments whose values are compared together; arrays have the shape (segments,)."""

    packed: PackedSegments
    part: TokenTable
    documents: NDArray[np.int64]
    """Documents of the segments, numbered as in the source."""

    numbers: slice
    """Positions of the segments in `packed`."""

    lists: NDArray[np.int64]
    """Lists of the source that the segments come from."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    context: NDArray[np.int64]
    places: NDArray[np.int64]
    """Positions of the segments among the compared values."""

    rows: NDArray[np.int64]
    """Rows of the segments."""

    offsets: NDArray[np.int64]
    """Positions of the segments in their rows."""

    @property
    def size(self) -> int:
        """Number of compared values."""
        return int(self.lengths.sum())

    @property
    def in_source(self) -> Spans:
        """Spans that copy the values from columns of the source."""
        return Spans(self.lists, self.starts, self.lengths, self.places)

    @property
    def in_rows(self) -> Spans:
        """Spans that copy the values from the rows."""
        return Spans(self.rows, self.offsets, self.lengths, self.places)

    def kept(self, name: str) -> tuple[pa.Array, pa.Array]:
        """Return the values of a kept column in the source and in the rows."""
        column = self.part.extra[name]
        if name in self.packed.kept:
            values = KeptValues.of({name: column}, self.lists)
            expected = values.column(name, self.lists, np.zeros(len(self.lists), bool))
            return expected, self.packed.kept[name][self.numbers.start : self.numbers.stop]
        packed, value_type = self.packed.kept_tokens[name]
        origin = column.addresses()
        return (
            tokens_at(origin, column.type.value_type, self.in_source, self.size),
            tokens_at(packed, value_type, self.in_rows, self.size),
        )


def _difference(expected: pa.Array, found: pa.Array) -> int | None:
    """Return the first position where the values of two arrays differ, or None; 1 and 1.0 are equal.

    Types may differ: the values of a part of the source may have a narrower type than those of the whole.
    """
    kind = join(expected.type, found.type)
    if kind is not None:
        try:
            return same_values(cast(expected, kind), cast(found, kind))
        except pa.ArrowInvalid:  # some value does not fit the joint type: compare one by one
            if len(expected) == 1:
                return 0
    elif len(expected) == 1:
        return 0 if expected.null_count + found.null_count < 2 else None
    parts = ((expected.slice(at, 1), found.slice(at, 1)) for at in range(len(expected)))
    return next((at for at, pair in enumerate(parts) if _difference(*pair) is not None), None)
