"""Preference pairs: pair i is document 2i (the chosen answer) and document 2i + 1 (the rejected one).

An input that must be decoded yields the answers in turn. Its decoded stream has a column for each side, as tokenized
files of pairs do. The lists of a mapped source are therefore all chosen answers, followed by all rejected ones:

    documents, as they are read    chosen 0, rejected 0, chosen 1, rejected 1
    columns of the stream          chosen_input_ids: [chosen 0, chosen 1], rejected_input_ids: [rejected 0, rejected 1]
    lists, as they are mapped      chosen 0, chosen 1, rejected 0, rejected 1
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, strings
from packer.column_names import ROLE, ROLES
from packer.inputs.documents import Batch, DocumentError, columns_of_side
from packer.inputs.format_reader import Block, DecodedInput, ListDecoder, Step
from packer.inputs.list_checks import int32_lists
from packer.inputs.token_tables import ValueColumn

CHOSEN, REJECTED = (columns_of_side(role) for role in ROLES)

COLUMNS_OF_PAIRS = (*CHOSEN[:2], *REJECTED[:2])
"""Columns of tokens and labels of both sides, as tokenized pairs have them."""

_ROLES_TOGETHER = 1 << 16


def tokens_of_rejected(*, has_labels: bool) -> tuple[str, ...]:
    """Return the columns of tokens and labels of the rejected answers."""
    return REJECTED[:2] if has_labels else REJECTED[:1]


def paired(chosen: DecodedInput, rejected: DecodedInput, steps: tuple[Step, ...], documents_each: int) -> DecodedInput:
    """Return the answers of a file of tokenized pairs in turn, checked, from an input of each side of the file.

    After the steps, a pair makes so many documents.
    """
    needed = tuple(dict.fromkeys((*chosen.needed, *rejected.needed)))
    start = partial(_pair_decoder, chosen, rejected)
    return replace(chosen, needed=needed, start=start, steps=steps, documents_per_record=documents_each)


def _pair_decoder(chosen: DecodedInput, rejected: DecodedInput, input_: DecodedInput) -> ListDecoder:
    """Return a function that decodes both sides of a block of pairs; errors are about the first invalid answer."""
    decoders = [replace(side, reader=input_.reader).decoder() for side in (chosen, rejected)]

    def decode(block: tuple[Block, int]) -> Batch:
        sides, faults = [], []
        for side, decoder in enumerate(decoders):
            try:
                sides.append(decoder(block))
            except DocumentError as fault:
                faults.append(fault.at(len(ROLES) * fault.row + side))
        if faults:
            raise min(faults, key=attrgetter("row"))
        return _joined(*sides)

    return decode


def _joined(chosen: Batch, rejected: Batch) -> Batch:
    """Join the chosen and the rejected answers of the same pairs, of one chunk each."""
    labels = None
    if chosen.labels is not None and rejected.labels is not None:
        labels = [_in_turn(chosen.labels[0], rejected.labels[0])]
    left_out = (one.at(2 * one.row + side) for side, batch in enumerate((chosen, rejected)) for one in batch.rejected)
    records = np.arange(len(ROLES) * len(chosen.input_ids[0])) // len(ROLES)
    return chosen._replace(
        input_ids=[_in_turn(chosen.input_ids[0], rejected.input_ids[0])],
        labels=labels,
        extra={name: [values.take(as_arrow(records))] for name, (values,) in chosen.extra.items()},
        records=records,
        rejected=tuple(sorted(left_out, key=attrgetter("row"))),
    )


def _in_turn(chosen: pa.Array, rejected: pa.Array) -> pa.Array:
    """Return the lists of two arrays in turn, as lists of int32: [a, b] and [c, d] -> [a, c, b, d]."""
    return pa.concat_arrays([int32_lists(chosen), int32_lists(rejected)]).take(as_arrow(sides_in_turn(len(chosen))))


def by_side(batch: Batch) -> Batch:
    """Return the pairs of a batch of answers in turn, as lists of int32, with the rejected ones in extra columns.

    An odd answer at the end, after which the next one is an error, is left out.
    """
    count = sum(map(len, batch.input_ids)) // len(ROLES) * len(ROLES)
    numbers = [as_arrow(np.arange(side, count, len(ROLES))) for side in range(len(ROLES))]
    chosen, rejected = [], {}
    for name, chunks in zip(REJECTED[:2], (batch.input_ids, batch.labels), strict=True):
        if chunks is not None:
            lists = int32_lists(pa.concat_arrays(chunks))
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
