"""Mask columns: padding is stripped, and labels are -100 where a mask excludes loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar, is_numeric
from packer.arrow import compute as pc
from packer.gather import held_lists, list_lengths
from packer.labels import NO_LOSS
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.documents import (
    ATTENTION,
    MASKS,
    Batch,
    Columns,
    DecodedSize,
    DocumentError,
    Input,
    SourceFile,
    reading,
)
from packer.sources.lengths import document_error, document_lengths, runs, values_of
from packer.sources.mapped.mapped_lists import MappedLists, read_whole
from packer.sources.places import Places
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedInput(Input):
    """An input whose masks are applied while it is read: padding is stripped, and masks become labels."""

    unmasked: Input
    """The input, opened so that it also reads the masks."""

    columns: Columns
    """Columns that are read from it, with the masks among `columns.extra`."""

    masks: tuple[str, ...]
    """Names of the masks to apply, from MASKS."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.unmasked.file

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""
        return self.unmasked.path

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return self.unmasked.rows

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels, or masks that produce them; None if the file has no documents."""
        if self.masks == (ATTENTION,):
            return self.unmasked.has_labels
        return None if self.unmasked.has_labels is None else True

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, labels included; None if it is known only after reading."""
        size = self.unmasked.decoded
        if size is None or not isinstance(self.unmasked, MappedLists):
            return size
        with reading(self.file.name):
            chunks = self.unmasked.chunks(self.unmasked.input_ids)
            tokens = sum(int(list_lengths(chunk).sum()) for (chunk,) in chunks)
        return DecodedSize.of(tokens, self.unmasked.rows, has_labels=bool(self.has_labels))

    def cut(self, size: int) -> Sequence[Input]:
        """Cut the input into pieces, and apply the masks to each; see `Input.cut`."""
        return [replace(self, unmasked=piece) for piece in self.unmasked.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents with the masks applied.

        Raises:
            DocumentError: a document is invalid, its mask has another length or a value other than 0 and 1, or there is
                padding between its tokens.
        """
        row = 0
        for batch in read_whole(self.unmasked).batches(pool):
            lengths = document_lengths(batch.input_ids, batch.labels, batch.per_token(self.columns))
            wrong = np.flatnonzero(lengths < 0)
            good = int(wrong[0]) if len(wrong) else len(lengths)
            valid = batch.head(good) if len(wrong) else batch
            for number in range(len(valid.input_ids)):
                yield self._apply(valid, number, row)
                row += len(valid.input_ids[number])
            if len(wrong):
                fault = document_error(batch, good, int(lengths[good]), self.columns)
                raise fault.at(row)

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns, masks included."""
        return self.unmasked.declared_types

    @property
    def places(self) -> Places:
        """Locations of the documents."""
        return self.unmasked.places

    def _apply(self, batch: Batch, number: int, first_row: int) -> Batch:
        """Apply the masks to one chunk of a batch."""
        parts = [self._apply_to_run(batch, number, run, first_row) for run in runs(batch.input_ids[number])]
        labels = [part.labels[0] for part in parts if part.labels is not None]
        kept = [name for name in batch.extra if name not in self.masks]
        extra = {name: [part.extra[name][0] for part in parts] for name in kept}
        input_ids = [part.input_ids[0] for part in parts]
        rejected, lines = batch.rejected, batch.lines  # of a batch of one chunk
        return Batch(input_ids, labels if self.has_labels else None, batch.done, extra, rejected=rejected, lines=lines)

    def _apply_to_run(self, batch: Batch, number: int, run: slice, first_row: int) -> Batch:
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
            labels = pc.if_else(as_arrow(mask), labels, as_scalar(NO_LOSS, labels.type))
        extra = {name: column for name, column in chunks.items() if name not in self.masks}
        if ATTENTION in self.masks:
            attended = self._mask(chunks[ATTENTION], ATTENTION, lengths, first_row + run.start)
            if not attended.all():
                kept = self._real_tokens(attended, lengths, first_row + run.start)
                keep = as_arrow(attended)
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
        """Return the values of a mask as booleans, one per token.

        Raises:
            DocumentError: a value is neither 0 nor 1.
        """
        for fault in mask_faults(lists, name, lengths):
            raise fault.at(first_row + fault.row)
        return mask_values(lists)

    def _real_tokens(
        self, attended: NDArray[np.bool_], lengths: NDArray[np.int64], first_row: int
    ) -> NDArray[np.int64]:
        """Return the number of tokens of each document that are not padding.

        Raises:
            DocumentError: there is padding between tokens.
        """
        for fault in hole_faults(attended, lengths):
            raise fault.at(first_row + fault.row)
        first, last, _ = _attended(attended, lengths)
        counts: NDArray[np.int64] = last - first
        return counts


def mask_values(lists: pa.Array) -> NDArray[np.bool_]:
    """Return the values of a mask without faults as booleans, one per token."""
    found: NDArray[np.bool_] = _values(lists) == 1
    return found


def mask_faults(lists: pa.Array, name: str, lengths: NDArray[np.int64]) -> Iterator[DocumentError]:
    """Yield the error of each document whose mask has a value that is neither 0 nor 1.

    Args:
        lists: values of the mask.
        name: name of the mask.
        lengths: (documents,) tokens of each document.
    """
    found = _values(lists)
    if found.dtype == np.bool_:
        return
    wrong = np.flatnonzero((found != 0) & (found != 1))
    ends = np.cumsum(lengths)
    for row, at in zip(*np.unique(np.searchsorted(ends, wrong, side="right"), return_index=True), strict=True):
        position = int(wrong[at]) - int(ends[row] - lengths[row])
        yield DocumentError(
            int(row),
            f"'{name}' holds {found[wrong[at]]} at position {position}: a mask is 0 or 1; fix the source",
            reason="invalid_labels",
        )


def hole_faults(attended: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Iterator[DocumentError]:
    """Yield the error of each document that has padding between its tokens.

    Args:
        attended: (tokens,) whether each token is one, and not padding.
        lengths: (documents,) tokens of each document, padding included.
    """
    first, last, places = _attended(attended, lengths)
    ends, counts = np.cumsum(lengths), last - first
    some = np.flatnonzero(counts)
    spans = places[last[some] - 1] + 1 - places[first[some]]
    for row in some[np.flatnonzero(spans != counts[some])].tolist():
        begin = int(places[first[row]])
        hole = begin + int(np.argmin(attended[begin : int(ends[row])])) - int(ends[row] - lengths[row])
        yield DocumentError(
            row,
            f"'{ATTENTION}' is 0 at position {hole}, between tokens: padding is stripped at both ends only; "
            "fix the source",
            reason="invalid_labels",
        )


def _attended(
    attended: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (first, last, places): document i has the tokens places[first[i]:last[i]] that are not padding."""
    ends, places = np.cumsum(lengths), np.flatnonzero(attended)
    return np.searchsorted(places, ends - lengths), np.searchsorted(places, ends), places


def with_masks(columns: Columns, names: Sequence[str]) -> Columns:
    """Add the masks that are among the column names of the first file to the columns to read."""
    masks = tuple(name for name in MASKS if name in names)
    return columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))


def apply_masks(inputs: Sequence[Input], columns: Columns, read: Columns) -> tuple[Input, ...]:
    """Return inputs that apply their masks while they are read, except masks that mask nothing in any mapped input.

    Args:
        inputs: inputs that were opened to read `read`.
        columns: columns to yield.
        read: the same columns with the masks, as returned by `with_masks`.
    """
    masks = [name for name in read.extra if name not in columns.extra]
    mapped = [input_ for input_ in inputs if isinstance(input_, MappedLists)]
    if len(mapped) == len(inputs):
        masks = [name for name in masks if not all(_masks_nothing(input_, name) for input_ in mapped)]
    kept = columns._replace(extra=(*columns.extra, *masks), per_token=(*columns.per_token, *masks))
    opened = (replace(each, extra=kept.extra) if isinstance(each, MappedLists) else each for each in inputs)
    return tuple(MaskedInput(unmasked=each, columns=kept, masks=tuple(masks)) if masks else each for each in opened)


def _masks_nothing(input_: MappedLists, name: str) -> bool:
    """Whether a mask masks nothing in a mapped input, so that it need not be applied."""
    chunks = list(input_.chunks(name, input_.input_ids))
    with reading(input_.file.name), held_lists([mask for mask, _ in chunks]):
        return all(_is_one(mask) and _equal_lengths(mask, tokens) for mask, tokens in chunks)


def _is_one(mask: pa.Array) -> bool:
    """Whether a mask is 1 everywhere, also outside its slice."""
    values = mask.values
    if mask.null_count or values.null_count or not len(values):
        return False
    found = pc.min_max(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
    return bool(found["min"].as_py() == 1 and found["max"].as_py() == 1)


def _values(lists: pa.Array) -> NDArray[Any]:
    values = values_of(lists)
    if values.null_count or not (is_numeric(values.type) or pa.types.is_boolean(values.type)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    return as_numpy(values)


def _equal_lengths(mask: pa.Array, tokens: pa.Array) -> bool:
    try:
        return bool(np.array_equal(list_lengths(mask), list_lengths(tokens)))
    except ValueError:
        return False


def _lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(as_arrow(offsets.astype(np.int64)), values)
