"""Estimate the disk space that decoding a source takes, from what its files declare or from a sample."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from packer.column_names import ROLES
from packer.errors import PackerError
from packer.gather import list_lengths
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.decoding.decoded_pieces import cut_source
from packer.sources.documents import DecodedSize, DocumentError, Input, columns_of_side, reading
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.sources.source import Source

_REJECTED = columns_of_side(ROLES[1]).input_ids  # the second lists of preference pairs of text
_SAMPLED = 4  # files per ending whose first block is decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class SpillSize:
    """Estimated size of the decoded documents of a source."""

    bytes: int
    """Bytes of decoded documents still to be written."""

    tokens: int
    """Tokens of all decoded documents, including those decoded before."""

    sampled: bool
    """Whether the estimate rests on the first blocks of some files; if not, it is an upper bound."""


def spill_size(source: Source, folder: AnyPath) -> SpillSize:
    """Estimate what `Source.spill` is going to write into `folder`."""
    source = source.records
    pieces = cut_source(source, folder)
    sizes = [piece.input.decoded for piece in pieces]
    unknown: defaultdict[str, list[Input]] = defaultdict(list)
    for input_ in source.inputs:
        if input_.decoded is None:
            unknown[PurePath(input_.file.name).suffix].append(input_)
    samples = {suffix: _sample(inputs) for suffix, inputs in unknown.items()}
    tokens = missing = 0
    for piece, known in zip(pieces, sizes, strict=True):
        size = known or _scaled(samples[PurePath(piece.input.file.name).suffix], piece.input.file.bytes)
        tokens += size.tokens
        missing += 0 if piece.is_written() else size.bytes
    return SpillSize(bytes=missing, tokens=tokens, sampled=bool(unknown))


def _sample(inputs: list[Input]) -> tuple[DecodedSize, int]:
    """Decode the first block of a few inputs; return its size and the bytes of the files that it takes."""
    tokens = rows = read = 0
    pool = DecodePool(1)
    for input_ in inputs[:: -(-len(inputs) // _SAMPLED)]:
        try:
            with pool.working(), reading(input_.file.name):
                batch = next(input_.batches(pool), None)
                lists = [*batch.input_ids, *batch.extra.get(_REJECTED, ())] if batch is not None else []
                found = sum(int(list_lengths(chunk).sum()) for chunk in lists)
        except (PackerError, DocumentError):  # raised again when it is decoded, with its location
            continue
        if batch is not None:
            rows += sum(map(len, lists))
            tokens += found
            read += batch.done
    pool.close()
    return DecodedSize.of(tokens, rows, has_labels=any(input_.has_labels for input_ in inputs)), read


def _scaled(sample: tuple[DecodedSize, int], size: int) -> DecodedSize:
    """Scale a sample to `size` bytes of the files."""
    decoded, read = sample
    return DecodedSize(*(part * size // max(read, 1) for part in decoded))
