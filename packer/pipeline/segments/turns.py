"""Split long chats between turns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.errors import SourceError
from packer.gather import list_lengths
from packer.options import PackOptions
from packer.plan.cutting import cuts_between
from packer.plan.segments import Segments
from packer.shards.kept_columns import KeptValues
from packer.sources.documents import TURN_STARTS, TokenTable


def split_at_turns(
    segments: Segments, table: TokenTable, options: PackOptions, describe: Callable[[int], str]
) -> Segments:
    """Split long documents where turns begin, each piece as long as possible, if `split_at` in the options is "turns".

    Args:
        segments: segments that the long-document policy makes of the documents.
        table: documents; the column `turn_starts` has the positions where turns begin.
        options: options of the pack.
        describe: function that names a document in messages.

    Raises:
        SourceError: a turn is longer than max_len, or positions are not in order inside their document.
    """
    documents = np.flatnonzero(table.lengths > options.max_len)
    if options.split_at != "turns" or not len(documents):
        return segments
    offsets, starts = _turn_starts(table, documents)
    counts, cuts, wrong = cuts_between(table.lengths[documents], offsets, starts, options.max_len)
    if wrong >= 0:
        document = int(documents[wrong])
        turns = starts[offsets[wrong] : offsets[wrong + 1]]
        bounds = np.concatenate([[0], turns, table.lengths[document : document + 1]])
        where = describe(document + table.first_document)
        if (np.diff(bounds) < 0).any():
            raise SourceError(f"{where}: its '{TURN_STARTS}' are not in order inside its {bounds[-1]:,} tokens")
        note = " (turns that the chat template does not separate count as one)" if options.tokenizer is not None else ""
        raise SourceError(
            f"{where} has a turn of {np.diff(bounds).max():,} tokens{note} and max_len is {options.max_len:,}: "
            "choose a larger --max-len, --split-at tokens, or --long drop or truncate"
        )
    return segments.cut_at(np.repeat(documents, counts), cuts)


def _turn_starts(table: TokenTable, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (offsets, starts): the turns of documents[i] begin at starts[offsets[i]:offsets[i + 1]].

    Raises:
        SourceError: a list is null or contains a null.
    """
    lists = documents if table.lists is None else table.lists[documents].astype(np.int64)
    kept = KeptValues.of({TURN_STARTS: table.extra[TURN_STARTS]}, lists)
    found = kept.column(TURN_STARTS, lists, np.zeros(len(lists), bool))
    if found.null_count or found.values.null_count:
        raise SourceError(f"'{TURN_STARTS}' holds a null; give every chat the positions where its turns begin")
    offsets = np.concatenate([[0], np.cumsum(list_lengths(found))]).astype(np.int64)
    return offsets, as_numpy(found.flatten().cast(pa.int32()))
