"""What decoding a source is going to take on disk: exactly where the file says it, else by a sample."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packer.errors import PackerError
from packer.gather import list_lengths
from packer.sources.decode_pool import DecodePool
from packer.sources.documents import DecodedSize, DocumentError, Input, reading
from packer.sources.spill import cut_source

if TYPE_CHECKING:
    from packer.sources.source import Source

_SAMPLED = 4  # files of an ending of which the first block is decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class SpillSize:
    """What decoding is going to write, and what the tokens decoded come to."""

    bytes: int
    """Still to be written beside the output."""

    tokens: int
    """In everything that is decoded, what is there from before included."""

    sampled: bool
    """Whether the first blocks of some files stand for the rest; else nothing more than this is written."""


def spill_size(source: Source, folder: Path) -> SpillSize:
    """Estimate what `Source.spill` is going to write into `folder`."""
    pieces = cut_source(source, folder)
    sizes = [piece.given.decoded for piece in pieces]
    unknown: defaultdict[str, list[Input]] = defaultdict(list)
    for given in source.inputs:
        if given.decoded is None:
            unknown[PurePath(given.file.name).suffix].append(given)
    samples = {suffix: _sample(inputs) for suffix, inputs in unknown.items()}
    tokens = missing = 0
    for piece, known in zip(pieces, sizes, strict=True):
        size = known or _scaled(samples[PurePath(piece.given.file.name).suffix], piece.given.file.bytes)
        tokens += size.tokens
        missing += 0 if piece.is_made() else size.bytes
    return SpillSize(bytes=missing, tokens=tokens, sampled=bool(unknown))


def _sample(inputs: list[Input]) -> tuple[DecodedSize, int]:
    """Decode the first block of a few inputs: what came of it, and how many bytes of the files it took."""
    tokens = rows = read = 0
    pool = DecodePool(1)
    for given in inputs[:: -(-len(inputs) // _SAMPLED)]:
        try:
            with pool.working(), reading(given.file.name):
                batch = next(given.batches(pool), None)
                found = sum(int(list_lengths(chunk).sum()) for chunk in batch.input_ids) if batch is not None else 0
        except (PackerError, DocumentError):  # to be told when it is decoded, with its place
            continue
        if batch is not None:
            rows += sum(map(len, batch.input_ids))
            tokens += found
            read += batch.done
    pool.close()
    return DecodedSize.of(tokens, rows, has_labels=any(given.has_labels for given in inputs)), read


def _scaled(sample: tuple[DecodedSize, int], size: int) -> DecodedSize:
    """What `size` bytes of the files come to."""
    decoded, read = sample
    return DecodedSize(*(part * size // max(read, 1) for part in decoded))
