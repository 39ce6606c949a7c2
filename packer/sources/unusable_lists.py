"""Lists of tokens, labels and masks that cannot be used are found and emptied, chunk by chunk (`--on-error skip`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.arrow import compute as pc
from packer.facts import Reason
from packer.gather import list_lengths
from packer.labels import NO_LOSS
from packer.options import byte_size
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.documents import (
    ATTENTION,
    LONGEST,
    MASKS,
    Batch,
    Columns,
    DecodedSize,
    DocumentError,
    Input,
    SourceFile,
    reading,
    value_message,
)
from packer.sources.json_lines.line_faults import as_lists, rejection
from packer.sources.lengths import document_error, document_lengths, values_of
from packer.sources.mapped.mapped_lists import MappedLists, read_whole
from packer.sources.masks import hole_faults, mask_faults, mask_values
from packer.sources.places import Places
from packer.stores import AnyPath

_LARGE = 1 << 30  # bytes, which take seconds to read

log = logging.getLogger(__name__)

Faults = dict[int, DocumentError]
"""The error for each document that cannot be used, by its index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedInput(Input):
    """An input whose documents are checked while they are read; `batches` says how."""

    unchecked: Input
    """The input."""

    columns: Columns
    """Columns that are read from it, with the masks among `columns.extra`."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.unchecked.file

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""
        return self.unchecked.path

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return self.unchecked.rows

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if the file has no documents."""
        return self.unchecked.has_labels

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, or slightly more; None if it is known only after reading."""
        return self.unchecked.decoded

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns, masks included."""
        return self.unchecked.declared_types

    @property
    def places(self) -> Places:
        """Locations of the documents."""
        return self.unchecked.places

    def cut(self, size: int) -> Sequence[Input]:
        """Cut the input into pieces, which are checked separately; see `Input.cut`."""
        return [replace(self, unchecked=piece) for piece in self.unchecked.cut(size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class UsableLists(CheckedInput):
    """An input of tokens whose documents that cannot be used are rejected."""

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, or slightly more; None if it is known only after reading."""
        if not isinstance(self.unchecked, MappedLists):
            return self.unchecked.decoded
        with reading(self.file.name):
            chunks = self.unchecked.chunks(self.unchecked.input_ids)
            tokens = sum(int(list_lengths(chunk).sum()) for (chunk,) in chunks)
        return DecodedSize.of(tokens, self.unchecked.rows, has_labels=bool(self.has_labels))

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, one `Batch` per chunk, with an empty list instead of unusable ones."""
        for batch in read_whole(self.unchecked).batches(pool):
            yield from (_usable(part, self.columns) for part in one_chunk_each(batch))


def reject_unusable(inputs: Sequence[Input], columns: Columns) -> list[Input]:
    """Return inputs that reject documents which cannot be used.

    Mapped inputs are read once to look for such documents. They stay mapped if there are none.

    Args:
        inputs: inputs of tokens.
        columns: columns that are read from them, with the masks among `columns.extra`.
    """
    mapped = sum(each.file.bytes for each in inputs if each.mapped)
    if mapped >= _LARGE:
        log.info("reading %s once to find records that cannot be used", byte_size(mapped))

    def is_clean(each: Input) -> bool:
        return isinstance(each, MappedLists) and _is_usable(each, columns)

    return [each if is_clean(each) else UsableLists(unchecked=each, columns=columns) for each in inputs]


def one_chunk_each(batch: Batch) -> Iterator[Batch]:
    """Yield the chunks of a batch as batches; one with lines or rejections has a single chunk."""
    for number, tokens in enumerate(batch.input_ids):
        labels = None if batch.labels is None else [batch.labels[number]]
        extra = {name: [chunks[number]] for name, chunks in batch.extra.items()}
        yield batch._replace(input_ids=[tokens], labels=labels, extra=extra)


def _is_usable(input_: MappedLists, columns: Columns) -> bool:
    """Whether a mapped input has no document that cannot be used."""
    needed = columns._replace(extra=columns.per_token)
    checked = UsableLists(unchecked=replace(input_, extra=needed.extra), columns=needed)
    with reading(input_.file.name):
        return not any(batch.rejected for batch in checked.batches())


def _usable(batch: Batch, columns: Columns) -> Batch:
    """Empty the documents of a batch of one chunk that cannot be used, and add their rejections."""
    found: Faults = {}
    # Later checks rely on earlier ones: lists without nulls and of equal lengths, then values of 0 and 1 in masks.
    for faults_of in (_length_faults, _value_faults, _mask_faults, _hole_faults):
        faults = faults_of(batch, columns)
        batch = without_lists(batch, columns, faults)
        found |= faults
    own = (rejection(row, fault) for row, fault in found.items())
    return batch._replace(rejected=tuple(sorted((*batch.rejected, *own)))) if found else batch


def _length_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with nulls, or lists of unequal lengths."""
    lengths = document_lengths(batch.input_ids, batch.labels, batch.per_token(columns))
    wrong = np.flatnonzero(lengths < 0).tolist()
    return {row: document_error(batch, row, int(lengths[row]), columns) for row in wrong}


def _value_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with values that are not token ids, or not labels."""
    faults = _misfits(batch.input_ids[0], columns.input_ids, label=False)
    return faults if batch.labels is None else _misfits(batch.labels[0], columns.labels, label=True) | faults


def _misfits(lists: pa.Array, column: str, *, label: bool) -> Faults:
    values = values_of(lists)
    limits = pc.min_max(values)
    least, most = limits["min"].as_py(), limits["max"].as_py()
    if least is None or (least >= 0 and most <= LONGEST):
        return {}
    found = values.to_numpy(zero_copy_only=False)
    is_wrong = (found < 0) | (found > LONGEST)
    if label:
        is_wrong &= found != NO_LOSS
    wrong = np.flatnonzero(is_wrong)
    ends = np.cumsum(list_lengths(lists))
    reason: Reason = "invalid_labels" if label else "invalid_tokens"
    faults = {}
    for row, at in zip(*np.unique(np.searchsorted(ends, wrong, side="right"), return_index=True), strict=True):
        place = int(wrong[at])
        position = place - (int(ends[row - 1]) if row else 0)
        message = value_message(column, int(found[place]), position, label=label)
        faults[int(row)] = DocumentError(int(row), message, reason=reason)
    return faults


def _mask_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents whose masks hold values other than 0 and 1."""
    lengths = list_lengths(batch.input_ids[0])
    masks = [name for name in columns.per_token if name in MASKS]
    return {fault.row: fault for name in masks for fault in mask_faults(batch.extra[name][0], name, lengths)}


def _hole_faults(batch: Batch, columns: Columns) -> Faults:
    """Find documents with padding between their tokens."""
    if ATTENTION not in columns.per_token:
        return {}
    lengths = list_lengths(batch.input_ids[0])
    return {fault.row: fault for fault in hole_faults(mask_values(batch.extra[ATTENTION][0]), lengths)}


def without_lists(batch: Batch, columns: Columns, faults: Faults) -> Batch:
    """Empty the lists of documents of a batch of one chunk, whatever they hold."""
    if not faults:
        return batch
    kept = np.ones(len(batch.input_ids[0]), np.bool_)
    kept[list(faults)] = False
    lists = {name: [_emptied(chunks[0], kept)] for name, chunks in batch.per_token(columns).items()}
    labels = None if batch.labels is None else [_emptied(batch.labels[0], kept)]
    return batch._replace(input_ids=[_emptied(batch.input_ids[0], kept)], labels=labels, extra=batch.extra | lists)


def _emptied(lists: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Keep some lists and empty the others, which may be null or hold nulls."""
    left = lists.take(as_arrow(np.flatnonzero(kept)))
    lengths = np.zeros(len(lists), np.int64)
    lengths[kept] = list_lengths(left)
    return as_lists(values_of(left), lengths, lists.type)
