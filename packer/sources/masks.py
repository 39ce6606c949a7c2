"""Masks beside the tokens: padding is stripped, and what is not to be trained becomes labels of -100."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.gather import list_lengths
from packer.labels import NO_LOSS
from packer.sources.decode_pool import DecodePool
from packer.sources.documents import (
    ATTENTION,
    MASKS,
    Batch,
    Columns,
    DecodedSize,
    DocumentError,
    Input,
    Places,
    SourceFile,
)
from packer.sources.lengths import document_lengths, fault_of_row, runs, values_of
from packer.sources.mapped_lists import MappedLists


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked(Input):
    """An input whose masks are applied as it is read: it has labels, and no padding."""

    given: Input
    """The input, which reads the masks beside the tokens."""

    columns: Columns
    """What it is asked for: the masks are among `columns.extra`."""

    masks: tuple[str, ...]
    """Which of MASKS it has."""

    @property
    def file(self) -> SourceFile:
        """Of the input."""
        return self.given.file

    @property
    def path(self) -> Path | None:
        """Of the input."""
        return self.given.path

    @property
    def rows(self) -> int | None:
        """Documents: as many as the input has."""
        return self.given.rows

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels, or masks that make some."""
        if self.masks == (ATTENTION,):
            return self.given.has_labels
        return None if self.given.has_labels is None else True

    @property
    def decoded(self) -> DecodedSize | None:
        """What the input comes to, with labels."""
        size = self.given.decoded
        if size is None or not isinstance(self.given, MappedLists):
            return size
        chunks = self.given.chunks(self.given.input_ids)
        tokens = sum(int(list_lengths(chunk).sum()) for (chunk,) in chunks)
        return DecodedSize.of(tokens, self.given.rows, has_labels=bool(self.has_labels))

    def cut(self, size: int) -> Sequence[Input]:
        """Cut where the input is cut."""
        return [replace(self, given=piece) for piece in self.given.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents as the masks leave them.

        Raises:
            DocumentError: a mask is of another length than its document, holds anything but 0 and 1, or padding
                stands between tokens.
        """
        row = 0
        for batch in self.given.batches(pool):
            lengths = document_lengths(batch.input_ids, batch.labels, batch.per_token(self.columns))
            wrong = np.flatnonzero(lengths < 0)
            good = int(wrong[0]) if len(wrong) else len(lengths)
            right = batch.head(good) if len(wrong) else batch
            for number in range(len(right.input_ids)):
                yield self._applied(right, number, row)
                row += len(right.input_ids[number])
            if len(wrong):
                fault = fault_of_row(batch, good, int(lengths[good]), self.columns)
                raise DocumentError(row, fault.message)

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the other columns, masks included."""
        return self.given.declared_types

    @property
    def places(self) -> Places:
        """What names the documents."""
        return self.given.places

    def _applied(self, batch: Batch, number: int, first_row: int) -> Batch:
        """Apply the masks to one chunk of a batch."""
        parts = [self._applied_to(batch, number, run, first_row) for run in runs(batch.input_ids[number])]
        labels = [part.labels[0] for part in parts if part.labels is not None]
        kept = [name for name in batch.extra if name not in self.masks]
        extra = {name: [part.extra[name][0] for part in parts] for name in kept}
        return Batch([part.input_ids[0] for part in parts], labels if self.has_labels else None, batch.done, extra)

    def _applied_to(self, batch: Batch, number: int, run: slice, first_row: int) -> Batch:
        chunks = {name: parts[number][run.start : run.stop] for name, parts in batch.extra.items()}
        tokens = batch.input_ids[number][run.start : run.stop]
        values = values_of(tokens)
        lengths = list_lengths(tokens)
        labels = None
        if self.has_labels:
            labels = values_of(batch.labels[number][run.start : run.stop]) if batch.labels is not None else values
            if not pa.types.is_signed_integer(labels.type) or labels.type.bit_width < 32:
                labels = labels.cast(pa.int64())
        for name in self.masks:
            mask = self._mask(chunks[name], name, lengths, first_row + run.start)
            if name == ATTENTION:
                continue
            assert labels is not None
            labels = pc.if_else(as_arrow_bool(mask), labels, pa.scalar(NO_LOSS, labels.type))
        extra = {name: column for name, column in chunks.items() if name not in self.masks}
        if ATTENTION in self.masks:
            attended = self._mask(chunks[ATTENTION], ATTENTION, lengths, first_row + run.start)
            if not attended.all():
                kept = self._real_tokens(attended, lengths, first_row + run.start)
                keep = as_arrow_bool(attended)
                values = values.filter(keep)
                labels = labels.filter(keep) if labels is not None else None
                for name in self.columns.per_token:
                    if name in extra:
                        extra[name] = _lists(values_of(extra[name]).filter(keep), kept)
                lengths = kept
        arrays = [_lists(values, lengths)]
        return Batch(
            arrays,
            None if labels is None else [_lists(labels, lengths)],
            batch.done,
            {name: [column] for name, column in extra.items()},
        )

    def _mask(self, lists: pa.Array, name: str, lengths: NDArray[np.int64], first_row: int) -> NDArray[np.bool_]:
        """The values of a mask: bool, one per token."""
        values = values_of(lists)
        found = np.asarray(values.to_numpy(zero_copy_only=False))
        if found.dtype == np.bool_:
            return found
        wrong = np.flatnonzero((found != 0) & (found != 1))
        if len(wrong):
            row, position = _position(int(wrong[0]), lengths)
            raise DocumentError(
                first_row + row,
                f"'{name}' holds {found[wrong[0]]} at position {position}: a mask is 0 or 1; mend the source",
            )
        mask: NDArray[np.bool_] = found == 1
        return mask

    def _real_tokens(
        self, attended: NDArray[np.bool_], lengths: NDArray[np.int64], first_row: int
    ) -> NDArray[np.int64]:
        """How many tokens of each document are no padding.

        Raises:
            DocumentError: padding stands between tokens.
        """
        ends = np.cumsum(lengths)
        places = np.flatnonzero(attended)
        first, last = np.searchsorted(places, ends - lengths), np.searchsorted(places, ends)
        counts = last - first
        some = np.flatnonzero(counts)
        spans = places[last[some] - 1] + 1 - places[first[some]]
        holed = np.flatnonzero(spans != counts[some])
        if len(holed):
            row = int(some[holed[0]])
            begin = int(places[first[row]])
            hole = begin + int(np.argmin(attended[begin : int(ends[row])])) - int(ends[row] - lengths[row])
            raise DocumentError(
                first_row + row,
                f"'{ATTENTION}' is 0 at position {hole}, between tokens: padding is stripped at both ends only; "
                "mend the source",
            )
        return counts


def with_masks(columns: Columns, names: Sequence[str]) -> Columns:
    """Look for the masks, too, that are among the columns of the first file."""
    masks = tuple(name for name in MASKS if name in names)
    return columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))


def apply_masks(inputs: Sequence[Input], columns: Columns, read: Columns) -> tuple[Input, ...]:
    """Apply the masks of all inputs as they are read. Those that mask nothing anywhere are left out beforehand.

    Args:
        inputs: opened with `read`.
        columns: what is to be handed on.
        read: the same with masks.
    """
    masks = [name for name in read.extra if name not in columns.extra]
    mapped = [given for given in inputs if isinstance(given, MappedLists)]
    if len(mapped) == len(inputs):
        masks = [name for name in masks if not all(_is_idle(given, name) for given in mapped)]
    kept = columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))
    inputs = tuple(replace(given, extra=kept.extra) if isinstance(given, MappedLists) else given for given in inputs)
    return tuple(Masked(given=given, columns=kept, masks=tuple(masks)) for given in inputs) if masks else inputs


def _is_idle(given: MappedLists, name: str) -> bool:
    """Whether a mask of a mapped input masks nothing."""
    return all(masks_nothing([mask]) and _as_long(mask, tokens) for mask, tokens in given.chunks(name, given.input_ids))


def masks_nothing(lists: Sequence[pa.Array]) -> bool:
    """Whether a mask is 1 wherever it is, so that it need not be applied; mapped, it is read at the memory's speed."""
    for chunk in lists:
        values = chunk.values  # whatever a slice leaves out of it: 1 there, too, or it is looked at closer
        if chunk.null_count or values.null_count or not len(values):
            return False
        found = pc.min_max(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
        if found["min"].as_py() != 1 or found["max"].as_py() != 1:
            return False
    return True


def as_arrow_bool(values: NDArray[np.bool_]) -> pa.Array:
    """An Arrow array of booleans, which are bits there."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def _as_long(mask: pa.Array, tokens: pa.Array) -> bool:
    try:
        return bool(np.array_equal(list_lengths(mask), list_lengths(tokens)))
    except ValueError:
        return False


def _position(value: int, lengths: NDArray[np.int64]) -> tuple[int, int]:
    """(row, position in it) of a value in lists of these lengths, end to end."""
    ends = np.cumsum(lengths)
    row = int(np.searchsorted(ends, value, side="right"))
    return row, value - int(ends[row] - lengths[row])


def _lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(as_arrow(offsets.astype(np.int64)), values)
