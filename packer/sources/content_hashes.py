"""Hashes of the contents of documents, by which `--holdout` decides which of them are held out.

The hash of a document is that of its token ids alone, so copies of a document always go together, in whatever file
they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.facts import REMEDY
from packer.gather import Spans, gather, held_spans
from packer.inputs.documents import reading, value_message, wrong_values
from packer.inputs.token_tables import TokenTable
from packer.options import PackOptions
from packer.options.pack_options import HASHES
from packer.plan.permute import key_of
from packer.progress import Progress
from packer.random_purposes import HOLDOUT
from packer.sources.source import Source

_TOGETHER = 4 << 20  # tokens that are copied together


def content_hashes(table: TokenTable, options: PackOptions, describe: Callable[[int], str]) -> NDArray[np.int64]:
    """Return the hash of each document, or pair of documents, from 0 to HASHES - 1; -1 for those without tokens.

    It is xxh3-64 of the token ids as little-endian int32, one document of a pair after the other, without its lowest
    bits. A token id out of range is a SourceError; `describe` names a document of the source.
    """
    each, seed = options.documents_each, int(key_of(options.seed, HOLDOUT, 0))
    ends = np.cumsum(table.lengths, dtype=np.int64)[each - 1 :: each]
    hashes = np.full(len(ends), -1)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _TOGETHER, side="right")))
        content = _tokens(table, first * each, last * each, describe).astype("<i4", copy=False).data.cast("B")
        begin = 0
        for item, end in enumerate((4 * (ends[first:last] - before)).tolist(), start=first):
            if end > begin:
                hashes[item] = xxhash.xxh3_64_intdigest(content[begin:end], seed) // (2**64 // HASHES)
            begin = end
        first = last
    return hashes


def _tokens(table: TokenTable, first: int, last: int, describe: Callable[[int], str]) -> NDArray[np.int32]:
    """Copy the tokens of documents first..last - 1 of a table: int32, one document after the other."""
    lists, lengths = table.lists_of(np.arange(first, last)), table.lengths[first:last].astype(np.int64)
    ends = np.cumsum(lengths)
    tokens = np.empty(int(ends[-1]), np.int32)
    spans = Spans(lists, np.zeros_like(lengths), lengths, ends - lengths)
    with reading("input_ids"), held_spans([table.input_ids], *spans[:3]):
        bad = gather(table.input_ids.addresses, spans, 0, tokens)
        if bad >= 0:
            found = table.input_ids.list_at(int(lists[bad])).to_numpy(zero_copy_only=False)
            position = int(wrong_values(found, label=False).argmax())
            message = value_message("input_ids", int(found[position]), position, label=False)
            raise SourceError(f"{describe(table.first_document + first + bad)}: {message}; {REMEDY}")
    return tokens


def left_out(table: TokenTable, options: PackOptions, describe: Callable[[int], str]) -> NDArray[np.bool_] | None:
    """Return which documents have tokens, but a hash that the options leave out; None if these choose by no hash."""
    if not options.content_hashes:
        return None
    hashes, (least, end) = content_hashes(table, options, describe), options.content_hashes
    return np.repeat((hashes >= 0) & ((hashes < least) | (hashes >= end)), options.documents_each)


def held_out_below(source: Source, options: PackOptions, progress: Progress) -> int:
    """Return the end of the hashes that are held out; reads all documents if `options.holdout` is a number of them.

    Of a number, so many of the smallest different hashes are held out; of a share, that share of all hashes. It is a
    SourceError if there are not as many different documents, and one more to train.
    """
    assert options.holdout is not None
    if options.holdout < 1:
        return max(1, int(options.holdout * HASHES))
    count, smallest = int(options.holdout), np.zeros(0, np.int64)
    for table in source.tables(progress):
        hashes = content_hashes(table, options, source.describe)
        smallest = np.unique(np.concatenate([smallest, hashes[hashes >= 0]]))[: count + 1]
    if len(smallest) <= count:
        found = f"there are {len(smallest):,} different documents"
        raise SourceError(f"--holdout is {count:,}, and {found}: hold out fewer of them")
    return int(smallest[count])
