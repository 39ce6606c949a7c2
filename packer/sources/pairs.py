"""Preference pairs: pair i is document 2i (the chosen answer) and document 2i + 1 (the rejected one).

An input that must be decoded yields the answers in turn. Its decoded stream has a column for each side, as tokenized
files of pairs do. The lists of a mapped source are therefore all chosen answers, followed by all rejected ones:

    documents, as they are read    chosen 0, rejected 0, chosen 1, rejected 1
    columns of the stream          chosen_input_ids: [chosen 0, chosen 1], rejected_input_ids: [rejected 0, rejected 1]
    lists, as they are mapped      chosen 0, chosen 1, rejected 0, rejected 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, strings
from packer.column_names import ROLE, ROLES
from packer.errors import SourceError
from packer.inputs.decode_pool import DecodePool
from packer.inputs.decoded_streams import int32_lists
from packer.inputs.document_errors import DocumentError
from packer.inputs.documents import (
    Batch,
    Columns,
    DecodedSize,
    Input,
    Places,
    RecordPlaces,
    SourceFile,
    columns_of_side,
)
from packer.inputs.list_checks import checked, runs
from packer.inputs.token_tables import ValueColumn
from packer.stores import AnyPath

CHOSEN, REJECTED = (columns_of_side(role) for role in ROLES)

COLUMNS_OF_PAIRS = (*CHOSEN[:2], *REJECTED[:2])
"""Columns of tokens and labels of both sides, as tokenized pairs have them."""

_ROLES_TOGETHER = 1 << 16


def tokens_of_rejected(*, has_labels: bool) -> tuple[str, ...]:
    """Return the columns of tokens and labels of the rejected answers."""
    return REJECTED[:2] if has_labels else REJECTED[:1]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedInput(Input):
    """The answers of a file of tokenized pairs in turn, from an input of each side; both are read in step."""

    chosen: Input
    rejected: Input
    extra: tuple[str, ...]
    """Further columns, with one value per pair."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.chosen.file

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""
        return self.chosen.path

    @property
    def rows(self) -> int | None:
        """Number of answers; None if it is known only after reading."""
        return None if self.chosen.rows is None else 2 * self.chosen.rows

    @property
    def has_labels(self) -> bool | None:
        """Whether both sides have labels; None if there are no pairs."""
        return self.chosen.has_labels

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of both sides once decoded; None if it is known only after reading."""
        one, other = self.chosen.decoded, self.rejected.decoded
        return None if one is None or other is None else DecodedSize(*map(sum, zip(one, other, strict=True)))

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns."""
        return self.chosen.declared_types

    @property
    def places(self) -> Places:
        """Locations of the pairs."""
        return RecordPlaces(self.chosen.places, len(ROLES))

    def cut(self, size: int) -> Sequence[Input]:
        """Cut both sides at the same pairs."""
        sides = zip(self.chosen.cut(size), self.rejected.cut(size), strict=True)
        return [PairedInput(chosen=one, rejected=other, extra=self.extra) for one, other in sides]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the answers of pairs in turn, checked and as lists of int32.

        Raises:
            DocumentError: an answer is invalid.
        """
        sides = [self._checked(side, pool) for side in range(len(ROLES))]
        held = [next(side, None) for side in sides]
        while (chosen := held[0]) is not None and (rejected := held[1]) is not None:
            count = min(map(_documents_in, (chosen, rejected)))
            yield _joined(chosen.slice(0, count), rejected.slice(0, count))
            rest = [each.slice(count, _documents_in(each)) for each in (chosen, rejected)]
            held = [each if _documents_in(each) else next(side, None) for each, side in zip(rest, sides, strict=True)]
        if held != [None, None]:
            raise SourceError(f"{self.file.name}: changed while it was read; repeat the same command")

    def _checked(self, side: int, pool: DecodePool | None) -> Iterator[Batch]:
        """Yield the batches of a side that hold answers, as lists of int32; errors count the answers of both sides."""
        columns, row = (CHOSEN, REJECTED)[side]._replace(extra=self.extra), 0
        try:
            for batch, lengths in checked((self.chosen, self.rejected)[side], columns, pool):
                whole = batch.lines is not None  # a block of lines, which is small
                for run in [slice(0, len(lengths))] if whole else runs(batch.input_ids[0]):
                    yield _as_int32(batch.slice(run.start, run.stop), columns, row + run.start)
                row += len(lengths)
        except DocumentError as fault:
            raise fault.at(2 * fault.row + side) from None


def _documents_in(batch: Batch) -> int:
    return sum(map(len, batch.input_ids))


def _as_int32(batch: Batch, columns: Columns, first_row: int) -> Batch:
    """Return a batch of one chunk with lists of int32, of whatever width they were."""
    tokens = [int32_lists(batch.input_ids[0], columns.input_ids, first_row, label=False)]
    if batch.labels is None:
        return batch._replace(input_ids=tokens)
    return batch._replace(
        input_ids=tokens, labels=[int32_lists(batch.labels[0], columns.labels, first_row, label=True)]
    )


def _joined(chosen: Batch, rejected: Batch) -> Batch:
    """Join the chosen and the rejected answers of the same pairs, of one chunk each."""
    labels = None
    if chosen.labels is not None and rejected.labels is not None:
        labels = [_in_turn(chosen.labels[0], rejected.labels[0])]
    both = zip((chosen, rejected), range(len(ROLES)), strict=True)
    return chosen._replace(
        input_ids=[_in_turn(chosen.input_ids[0], rejected.input_ids[0])],
        labels=labels,
        extra={
            name: [values.take(as_arrow(np.arange(2 * len(values)) // 2))] for name, (values,) in chosen.extra.items()
        },
        rejected=tuple(sorted(one._replace(row=2 * one.row + side) for batch, side in both for one in batch.rejected)),
    )


def _in_turn(chosen: pa.Array, rejected: pa.Array) -> pa.Array:
    """Return the values of two arrays in turn: [a, b] and [c, d] -> [a, c, b, d]."""
    return pa.concat_arrays([chosen, rejected]).take(as_arrow(sides_in_turn(len(chosen))))


def each_twice(values: pa.Array) -> pa.Array:
    """Return the values of pairs as those of their answers: [a, b] -> [a, a, b, b]."""
    return values.take(as_arrow(np.arange(2 * len(values)) // 2))


def by_side(batch: Batch) -> Batch:
    """Return the pairs of a batch of answers in turn, as lists of int32, with the rejected ones in extra columns.

    An odd answer at the end, after which the next one is an error, is left out.
    """
    count = _documents_in(batch) // 2
    numbers = [as_arrow(np.arange(side, 2 * count, 2)) for side in range(len(ROLES))]
    chosen, rejected = [], {}
    for name, chunks in zip(REJECTED[:2], (batch.input_ids, batch.labels), strict=True):
        if chunks is not None:
            lists = int32_lists(pa.concat_arrays(chunks), name, 0, label=name == REJECTED.labels)
            chosen.append([lists.take(numbers[0])])
            rejected[name] = [lists.take(numbers[1])]
    extra = {name: [pa.concat_arrays(chunks).take(numbers[0])] for name, chunks in batch.extra.items()}
    labels = chosen[1] if batch.labels is not None else None
    return batch._replace(input_ids=chosen[0], labels=labels, extra={**rejected, **extra})


def sides_in_turn(pairs: int) -> NDArray[np.int64]:
    """Return the list of each document of mapped pairs: 3 chosen and 3 rejected answers -> [0, 3, 1, 4, 2, 5]."""
    order: NDArray[np.int64] = np.arange(2 * pairs).reshape(2, -1).T.reshape(-1)
    return order


def roles_of_lists(pairs: int) -> ValueColumn:
    """Return the column of roles of mapped pairs: "chosen" for the first half of the lists, then "rejected"."""
    chunks = []
    for role in ROLES:
        repeated = pa.repeat(strings([role])[0], min(pairs, _ROLES_TOGETHER))
        chunks += [repeated] * (pairs // _ROLES_TOGETHER)  # the same array each time
        chunks.append(repeated.slice(0, pairs % _ROLES_TOGETHER))
    return ValueColumn.of_chunks(ROLE, chunks, pa.string())


def roles_in_turn(first_document: int, documents: int) -> ValueColumn:
    """Return the column of roles of consecutive documents: chosen, rejected, chosen, ..."""
    sides = np.arange(first_document, first_document + documents) % 2
    return ValueColumn.of_chunks(ROLE, [strings(ROLES).take(as_arrow(sides))], pa.string())
