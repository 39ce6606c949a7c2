"""Pieces of inputs that cannot be mapped, the decoded stream and the note of each, and their size on disk."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from packer.column_names import ROLES
from packer.errors import PackerError
from packer.gather import list_lengths
from packer.shards.files import matches
from packer.shards.manifest import checksum
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.decoding.decoded_streams import atomic_write, stream_types
from packer.sources.documents import Columns, DecodedSize, DocumentError, Input, columns_of_side, reading, reading_copy
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.readers.arrow_files import open_lists
from packer.stores import AnyPath, each_opened_at

if TYPE_CHECKING:
    from packer.sources.source import Source

Result = TypeVar("Result")

_NO_NOTE = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""Exceptions raised by reading a note that is missing or damaged, but not by a store that cannot be read."""

_PIECE = 32 << 20  # bytes; small enough that all cores finish together, large enough that files are few
_PIECES = 1 << 12  # of a source, beyond one per file: a process may map 65,530 files
_REJECTED = columns_of_side(ROLES[1]).input_ids  # the second lists of preference pairs of text
_SAMPLED = 4  # files per ending whose first block is decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of an input, and the stream that it is decoded into."""

    number: int
    """Index of the input in the source."""

    input: Input
    """The piece, which can be read like any input."""

    stream: AnyPath
    """Path of the stream."""

    columns: Columns
    """Columns of the stream."""

    made_from: dict[str, Any]
    """Facts about the input and the columns. A stream is used again only if its note has the same."""

    def is_written(self) -> bool:
        """Whether the stream exists, made from the same input and with the size in its note; no hash is compared."""
        try:
            note = self._read_note()
            return bool(note["made_from"] == self.made_from and note["bytes"] == self.stream.stat().st_size)
        except _NO_NOTE:
            return False

    def has_note(self) -> bool:
        """Whether the stream exists with a note for the same input, even while its types are being changed."""
        try:
            return bool(self._read_note()["made_from"] == self.made_from) and self.stream.is_file()
        except _NO_NOTE:
            return False

    def is_intact(self) -> bool:
        """Whether the stream, and the list of rejected documents if there is one, exist and match their hashes."""
        if not (self.is_written() and matches(self.stream, self.digest())):
            return False
        rejected = self.rejected()
        return rejected is None or matches(self.rejected_path, rejected["xxh3_128"])

    def write_note(self, counts: dict[str, int], digest: str, rejected: Mapping[str, Any] | None) -> None:
        """Mark the stream as complete, with its hash and what was counted while it was written.

        Args:
            counts: sums of `Batch.counts`.
            digest: hash of the stream.
            rejected: "lines" of the piece, None if its records are located by row, and "xxh3_128" of the list of
                rejected documents; None if none is ever rejected.
        """
        size = self.stream.stat().st_size
        note = {"made_from": self.made_from, "counts": counts, "bytes": size, "xxh3_128": digest}
        note |= {} if rejected is None else {"rejected": rejected}
        with atomic_write(self.note_path) as temporary:
            temporary.write_text(json.dumps({**note, "checksum": checksum(note)}))

    def counts(self) -> dict[str, int]:
        """Return what was counted while the stream was written: the sums of `Batch.counts`."""
        counts: dict[str, int] = self._read_note()["counts"]
        return counts

    def digest(self) -> str:
        """Return the hash of the stream: xxh3-128, hexadecimal."""
        return str(self._read_note()["xxh3_128"])

    def rejected(self) -> dict[str, Any] | None:
        """Return what the note says about the list of rejected documents; see `write_note`."""
        rejected: dict[str, Any] | None = self._read_note().get("rejected")
        return rejected

    def open(self, columns: Columns | None = None) -> MappedLists:
        """Map the stream, with all of its columns or some of them."""
        with reading_copy(self.stream.parent, self.input.file.name):
            opened = open_lists(self.stream, str(self.stream), columns or self.columns)
            assert isinstance(opened, MappedLists)
            return opened

    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the columns of the stream, by name."""
        with reading_copy(self.stream.parent, self.input.file.name):
            return stream_types(self.stream)

    @property
    def rejected_path(self) -> AnyPath:
        """Path of the list of rejected documents."""
        return self.stream.with_suffix(".rejected")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """Paths of all files of the piece."""
        return self.stream, self.note_path, self.rejected_path

    @property
    def note_path(self) -> AnyPath:
        """Path of the note."""
        return self.stream.with_suffix(".json")

    def _read_note(self) -> Any:
        note = json.loads(self.note_path.read_bytes())
        if note.pop("checksum") != checksum(note):
            raise ValueError(f"{self.note_path} was changed")
        return note


def piece_size(source: Source) -> int:
    """Return the approximate size of a piece of a source, in bytes."""
    return max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)


def cut_source(source: Source, folder: AnyPath) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces, which depend on nothing but the files and the columns."""
    source = source.records
    size = piece_size(source)
    fingerprint = source.tokenized.fingerprint if source.tokenized is not None else None
    pieces = []
    for number, input_ in enumerate(source.inputs):
        if input_.mapped:
            continue
        stat = input_.path.stat() if input_.path is not None else None
        columns = source.columns_of(number)
        made_from = {
            "name": input_.file.name,
            "bytes": stat.st_size if stat is not None else input_.file.bytes,
            "mtime_ns": stat.st_mtime_ns if stat is not None else fingerprint or str(uuid.uuid4()),  # never reused
            "columns": [*columns[:2], *map(list, columns[2:])],
            "labels": bool(input_.has_labels),
            "size": size,
        }
        if source.tokenized is not None:
            made_from["text"] = source.tokenized.identity.to_dict()
        if source.skips:
            made_from["skips"] = True
        for part, piece in enumerate(input_.cut(size)):
            stream = folder / f"{number:05d}-{part:05d}.arrow"
            pieces.append(
                Piece(number=number, input=piece, stream=stream, columns=source.stored_columns, made_from=made_from)
            )
    return pieces


def open_all(pieces: Sequence[Piece], columns: Columns | None = None) -> list[MappedLists]:
    """Map the streams of all pieces, in object storage several at a time; see `Piece.open`."""
    return _of_all(lambda piece: piece.open(columns), pieces)


def types_of_all(pieces: Sequence[Piece]) -> list[dict[str, pa.DataType]]:
    """Return the types of the columns of the stream of each piece, by name."""
    return _of_all(Piece.types, pieces)


def _of_all(read: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    return each_opened_at(pieces[0].stream, read, pieces) if pieces else []


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
            with reading(input_.file.name):
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
