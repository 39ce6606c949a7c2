"""Values of segments that were copied out of their source, so that rows can be made of them elsewhere."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packer.arrow import numpy_dtype
from packer.gather import Spans, TokenColumn, gather_bytes
from packer.shards.row_format import RowFormat
from packer.shards.writer import SourceColumns, copy_labels, copy_tokens

_KEPT = "kept "  # begins the names of arrays of kept columns


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentValues:
    """Values of segments, one segment after the other, in the types that rows have."""

    input_ids: NDArray[np.int32]
    """Shape (tokens,): tokens of the segments."""

    labels: NDArray[np.int32] | None
    """Shape (tokens,): labels of the segments; None if the tokens are the labels, or rows have none."""

    kept_tokens: Mapping[str, NDArray[Any]]
    """Other values per token, by the name of the column: shape (tokens,) each."""

    @classmethod
    def empty(
        cls,
        tokens: int,
        row_format: RowFormat,
        *,
        labels: bool,
        memory: Callable[[int], bytearray | mmap.mmap] = bytearray,
    ) -> SegmentValues:
        """Return room for segments of so many tokens; `memory` returns a writable buffer of so many bytes."""

        def room(dtype: DTypeLike) -> NDArray[Any]:
            return np.frombuffer(memory(tokens * np.dtype(dtype).itemsize), dtype, tokens)

        return cls(
            input_ids=room(np.int32),
            labels=room(np.int32) if labels and "labels" in row_format.token_columns else None,
            kept_tokens={name: room(numpy_dtype(kind)) for name, kind in row_format.kept_tokens.items()},
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> SegmentValues:
        """Return what `arrays` returned."""
        kept = {name.removeprefix(_KEPT): array for name, array in arrays.items() if name.startswith(_KEPT)}
        return cls(input_ids=arrays["input_ids"], labels=arrays.get("labels"), kept_tokens=kept)

    def arrays(self, first: int, last: int) -> dict[str, NDArray[Any]]:
        """Return values first..last - 1 as arrays, by name."""
        labels = {} if self.labels is None else {"labels": self.labels}
        kept = {f"{_KEPT}{name}": array for name, array in self.kept_tokens.items()}
        return {name: array[first:last] for name, array in {"input_ids": self.input_ids, **labels, **kept}.items()}

    def fill(self, source: SourceColumns, spans: Spans) -> None:
        """Copy values of segments from their spans in the source to the indices here that the spans name.

        Raises a BadTokenError if a token is negative or above int32, or a label is neither a token id nor NO_LOSS.
        """
        copy_tokens(source.input_ids, spans, self.input_ids)
        if self.labels is not None:
            assert source.labels is not None
            copy_labels(source.labels, spans, self.labels)
        for name, values in self.kept_tokens.items():
            gather_bytes(source.kept_tokens[name].addresses, spans, values.itemsize, values.view(np.uint8))

    def columns(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> SourceColumns:
        """Return the values as columns, whose list s is the document of segment s, with only that segment.

        `starts` (first token in the document) and `lengths` have the shape (segments,).
        """

        def column(values: NDArray[Any]) -> TokenColumn:
            return TokenColumn.of_spans(values, starts, lengths)

        return SourceColumns(
            input_ids=column(self.input_ids),
            labels=None if self.labels is None else column(self.labels),
            kept_tokens={name: column(values) for name, values in self.kept_tokens.items()},
        )
