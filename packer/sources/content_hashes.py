"""Hashes of document contents. `--holdout` holds documents out by their hashes.

The hash covers only token ids, so copies of a document are always on the same side, in any file. All documents of a
record share one hash, computed over all their tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.algorithms.permute import HOLDOUT, key_of
from packer.arrow import as_arrow, as_numpy
from packer.column_names import CONTENT_HASH
from packer.errors import SourceError
from packer.json_records import REMEDY
from packer.options import ReadOptions
from packer.sources.documents import Batch, reading, value_message, wrong_values
from packer.sources.list_checks import int32_lists, runs
from packer.sources.source import TokenTable
from packer.token_memory.token_column import Spans, fetched_spans, gather

HASHES = 2**53  # number of hashes; each is exact as a float


def content_hashes(table: TokenTable, options: ReadOptions, describe: Callable[[int], str]) -> NDArray[np.int64]:
    """Return the hash of each document, from 0 to HASHES - 1; -1 for empty documents.

    The hash is xxh3-64 of the token ids of its record, as little-endian int32; the lowest bits are dropped. Raises a
    SourceError if a token id is out of range; `describe` names a document of the source.
    """
    if options.numbers_records:  # already hashed when the records were decoded
        lists = table.lists_of(np.arange(len(table.lengths)))
        return as_numpy(table.extra[CONTENT_HASH].of_lists(lists))
    seed = _seed_of(options)
    hashes = np.full(len(table.lengths), -1)
    for run in runs(table.lengths):
        content = _tokens(table, run, describe).astype("<i4", copy=False).data.cast("B")
        begin = 0
        for item, end in enumerate((4 * np.cumsum(table.lengths[run], dtype=np.int64)).tolist(), start=run.start):
            hashes[item] = _hash_of(content[begin:end], seed)
            begin = end
    return hashes


def with_record_hashes(batch: Batch, *, options: ReadOptions) -> Batch:
    """Add to each document of a batch the hash of its record."""
    assert batch.records is not None
    lists, seed = int32_lists(batch.input_ids), _seed_of(options)
    content, offsets = as_numpy(lists.values).astype("<i4", copy=False).data.cast("B"), as_numpy(lists.offsets)
    bounds = (4 * offsets[np.searchsorted(batch.records, np.arange(batch.record_count + 1))]).tolist()
    hashes = np.array([_hash_of(content[begin:end], seed) for begin, end in pairwise(bounds)], np.int64)
    return batch._replace(extra={**batch.extra, CONTENT_HASH: as_arrow(hashes[batch.records])})


def _seed_of(options: ReadOptions) -> int:
    return int(key_of(options.seed, HOLDOUT, 0))


def _hash_of(content: memoryview, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(content, seed) // (2**64 // HASHES) if content else -1


def _tokens(table: TokenTable, run: slice, describe: Callable[[int], str]) -> NDArray[np.int32]:
    """Copy the tokens of a run of documents: int32, concatenated."""
    lists, lengths = table.lists_of(np.arange(run.start, run.stop)), table.lengths[run].astype(np.int64)
    ends = np.cumsum(lengths)
    tokens = np.empty(int(ends[-1]), np.int32)
    starts = np.zeros_like(lengths)
    with reading("input_ids"):
        columns, lists = fetched_spans({"input_ids": table.input_ids}, lists, starts, lengths)
    column = columns["input_ids"]
    bad = gather(column.addresses, Spans(lists, starts, lengths, ends - lengths), 0, tokens)
    if bad >= 0:
        found = column.values_at(int(lists[bad]), 0, int(lengths[bad]))
        position = int(wrong_values(found, label=False).argmax())
        message = value_message("input_ids", int(found[position]), position, label=False)
        raise SourceError(f"{describe(run.start + bad)}: {message}; {REMEDY}")
    return tokens


def left_out(table: TokenTable, options: ReadOptions, describe: Callable[[int], str]) -> NDArray[np.bool_] | None:
    """Return which documents are on the other side of `--holdout`. Returns None if no documents are held out."""
    if options.holdout is None:
        return None
    hashes = content_hashes(table, options, describe)
    is_held_out = hashes < max(1, int(options.holdout * HASHES))
    found: NDArray[np.bool_] = (hashes >= 0) & (is_held_out != options.is_holdout)
    return found
