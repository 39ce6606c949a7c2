"""Columns that must hold a whole number for each document, such as those of `--limit`, checked while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_scalar
from packer.arrow import compute as pc
from packer.errors import SourceError
from packer.sources.columns.column_types import plain_type
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.documents import Batch, DocumentError, Input, reading
from packer.sources.json_lines.line_faults import rejection
from packer.sources.mapped.mapped_lists import MappedLists, read_whole
from packer.sources.packed.packed_documents import PackedDocuments
from packer.sources.source import Source
from packer.sources.unusable_lists import CheckedInput, UsableLists, one_chunk_each, without_lists
from packer.sources.whole_numbers import no_number, number_fault, wrong_numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class UsableNumbers(CheckedInput):
    """An input whose documents have a whole number in some columns; other documents are an error, or are rejected."""

    numbers: tuple[str, ...]
    """Those that must hold whole numbers. Rejected documents get a 0."""

    skips: bool
    """Whether documents that cannot be used are rejected, with an empty document in the place of each."""

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, one `Batch` per chunk.

        Raises:
            DocumentError: a column holds no numbers; or one is missing or wrong, and such documents are not rejected.
        """
        row = 0
        for whole in read_whole(self.unchecked).batches(pool):
            for batch in one_chunk_each(whole):
                yield self._checked(batch, row)
                row += len(batch.input_ids[0])

    def _checked(self, batch: Batch, first_row: int) -> Batch:
        kept = np.ones(len(batch.input_ids[0]), np.bool_)
        kept[[one.row for one in batch.rejected]] = False
        found: dict[int, DocumentError] = {}
        for name in self.numbers:
            [values] = batch.extra[name]
            wrong = wrong_numbers(values)
            found |= {row: number_fault(values, row, name) for row in wrong[kept[wrong]].tolist()}
            if found and (not self.skips or found[min(found)].reason is None):
                raise found[min(found)].at(first_row + min(found))
            kept[list(found)] = False
        extra = {name: [_numbers(batch.extra[name][0], kept)] for name in self.numbers}
        batch = without_lists(batch, self.columns, found)
        own = (rejection(row, fault) for row, fault in found.items())
        return batch._replace(extra=batch.extra | extra, rejected=tuple(sorted((*batch.rejected, *own))))


def with_numbers(source: Source, numbers: tuple[str, ...]) -> Source:
    """Return a source whose columns are checked for whole numbers.

    A mapped input stays mapped, unless documents that cannot be used are rejected, and it has one.

    Args:
        source: the source.
        numbers: names of the columns, from its extra columns.

    Raises:
        SourceError: a file declares another type for a column.
    """
    for input_ in source.inputs:
        for name in numbers:
            kind = plain_type(input_.declared_types.get(name, pa.null()))
            if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
                raise SourceError(f"{input_.file.name}: column '{name}' holds {no_number(kind)}")
    inputs = tuple(_with_numbers(input_, source, numbers) for input_ in source.inputs)
    same = source.columns, source.indices, source.tokenized, source.pad_id
    return Source(source.name, inputs, *same, skips=source.skips, holds_chats=source.holds_chats)


def _with_numbers(input_: Input, source: Source, numbers: tuple[str, ...]) -> Input:
    if isinstance(input_, PackedDocuments):
        return input_  # checked when rows are planned, as are mapped inputs: nothing is decoded before that
    if isinstance(input_, MappedLists):
        if not source.skips or _is_usable(input_, numbers):
            return input_
        input_ = UsableLists(unchecked=input_, columns=source.columns)  # to be decoded
    return UsableNumbers(unchecked=input_, columns=source.columns, numbers=numbers, skips=source.skips)


def _is_usable(input_: MappedLists, numbers: tuple[str, ...]) -> bool:
    with reading(input_.file.name):
        return not any(len(wrong_numbers(chunk)) for name in numbers for (chunk,) in input_.chunks(name))


def _numbers(values: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Return values, which are whole numbers, as integers; those that are not kept may be anything and become 0."""
    kind = values.type if pa.types.is_integer(values.type) else pa.int64()
    if not (kind.equals(values.type) or pa.types.is_floating(values.type)):  # none is kept
        return pa.array(np.zeros(len(values), np.int64))
    if not kept.all():
        values = pc.if_else(as_arrow(kept), values, as_scalar(0, values.type))
    return values.cast(kind)
