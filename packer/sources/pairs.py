"""Tokenized preference pairs: columns of tokens and labels for the chosen and the rejected answer, read as trees."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.column_names import ROLES
from packer.inputs.documents import LONGEST, Batch, DocumentError, columns_of_side
from packer.inputs.format_reader import Block, DecodedInput, ListDecoder
from packer.inputs.list_checks import Faults, int32_lists
from packer.sources.record_decoder import share_prefixes
from packer.token_memory import list_lengths

CHOSEN, REJECTED = (columns_of_side(role) for role in ROLES)

COLUMNS_OF_PAIRS = (*CHOSEN[:2], *REJECTED[:2])
"""Columns of tokens and labels of both sides."""


def paired(chosen: DecodedInput, rejected: DecodedInput, *, skips: bool) -> DecodedInput:
    """Return the pairs of a file as trees, checked, from an input of each side of the file."""
    needed = tuple(dict.fromkeys((*chosen.needed, *rejected.needed)))
    start = partial(_pair_decoder, chosen, rejected, skips)
    share = partial(share_prefixes, max_len=LONGEST, stored=True, numbered=False)
    return replace(chosen, needed=needed, start=start, steps=(share,))


def _pair_decoder(chosen: DecodedInput, rejected: DecodedInput, skips: bool, input_: DecodedInput) -> ListDecoder:
    """Return a function that decodes both sides of a block of pairs; errors are about the first invalid pair."""
    decoders = [replace(side, reader=input_.reader).decoder() for side in (chosen, rejected)]

    def decode(block: tuple[Block, int]) -> Batch:
        sides, faults = [], []
        for decoder in decoders:
            try:
                sides.append(decoder(block))
            except DocumentError as fault:
                faults.append(fault)
        if faults:
            raise min(faults, key=attrgetter("row"))
        return _joined(*sides, skips=skips)

    return decode


def _joined(chosen: Batch, rejected: Batch, *, skips: bool) -> Batch:
    """Join both answers of the same pairs: chosen, rejected, chosen, ...

    A pair is left out whole if one of its answers is, or is empty. Without `skips`, the latter is a DocumentError.
    """
    pairs = len(chosen.input_ids)
    lengths = np.stack([list_lengths(side.input_ids) for side in (chosen, rejected)])
    faults = Faults()
    for one in (*chosen.rejected, *rejected.rejected):
        faults.setdefault(one.row, one)
    for row in np.flatnonzero((lengths == 0).sum(axis=0) == 1).tolist():
        column = (CHOSEN, REJECTED)[int(lengths[1, row] == 0)].input_ids
        message = f"'{column}' is empty, and the other answer is not; drop the row"
        faults.setdefault(row, DocumentError(row, message, reason="missing_value"))
    if faults and not skips:
        raise faults[min(faults)]
    order = np.arange(2 * pairs).reshape(2, -1).T  # of pairs [a, b] and [c, d]: a, c, b, d
    order[[*faults]] = 2 * pairs  # the empty list behind all others

    def in_turn(one: pa.Array, other: pa.Array) -> pa.Array:
        nothing = pa.ListArray.from_arrays(as_arrow(np.zeros(2, np.int32)), as_arrow(np.empty(0, np.int32)))
        return pa.concat_arrays([int32_lists(one), int32_lists(other), nothing]).take(as_arrow(order.reshape(-1)))

    assert chosen.labels is not None, "pairs without labels are refused"
    assert rejected.labels is not None, "pairs without labels are refused"
    records = np.arange(2 * pairs) // 2
    return chosen._replace(
        input_ids=in_turn(chosen.input_ids, rejected.input_ids),
        labels=in_turn(chosen.labels, rejected.labels),
        extra={name: values.take(as_arrow(records)) for name, values in chosen.extra.items()},
        records=records,
        rejected=tuple(faults[row].at(2 * row) for row in sorted(faults)),
    )
