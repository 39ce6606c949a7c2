"""Pieces of inputs that cannot be mapped, the decoded stream and the note of each, and their size on disk."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypedDict, TypeVar, cast

import pyarrow as pa

from packer.errors import PackerError
from packer.gather import list_lengths
from packer.inputs.arrow_files import open_lists
from packer.inputs.decode_pool import DecodePool
from packer.inputs.decoded_streams import COLUMNS, atomic_write, stream_types
from packer.inputs.document_errors import DocumentError, reading, reading_copy
from packer.inputs.documents import Columns, DecodedSize, Input
from packer.inputs.mapped_lists import MappedLists
from packer.shards.files import matches
from packer.shards.manifest import checksum
from packer.sources.corpus import Corpus
from packer.sources.pairs import CHOSEN, tokens_of_rejected
from packer.sources.rejections import RejectedNote
from packer.sources.source import Source
from packer.stores import AnyPath, each_opened_at

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
_SAMPLED = 4  # files per ending whose first block is decoded


class PieceNote(TypedDict, total=False):
    """Note of a piece, which marks its stream as complete."""

    made_from: Mapping[str, object]
    counts: dict[str, int]
    bytes: int
    xxh3_128: str
    rejected: RejectedNote


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

    made_from: Mapping[str, object]
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

    def has_tokens(self, *, by_library: bool) -> bool:
        """Whether the stream exists, as by `has_note`, and if `by_library`, no other way made any of its tokens."""
        return self.has_note() and not (by_library and self.counts().get("fast"))

    def is_intact(self) -> bool:
        """Whether the stream, and the list of rejected documents if there is one, exist and match their hashes."""
        if not (self.is_written() and matches(self.stream, self.digest())):
            return False
        rejected = self.rejected()
        return rejected is None or matches(self.rejected_path, rejected["xxh3_128"])

    def write_note(self, counts: dict[str, int], digest: str, rejected: RejectedNote | None) -> None:
        """Mark the stream as complete, with its hash and what was counted while it was written.

        Args:
            counts: sums of `Batch.counts`.
            digest: hash of the stream.
            rejected: note of the list of rejected documents; None if none is ever rejected.
        """
        size = self.stream.stat().st_size
        note: PieceNote = {"made_from": self.made_from, "counts": counts, "bytes": size, "xxh3_128": digest}
        if rejected is not None:
            note["rejected"] = rejected
        with atomic_write(self.note_path) as temporary:
            temporary.write_text(json.dumps({**note, "checksum": checksum(note)}))

    def counts(self) -> dict[str, int]:
        """Return what was counted while the stream was written: the sums of `Batch.counts`."""
        return self._read_note()["counts"]

    def digest(self) -> str:
        """Return the hash of the stream: xxh3-128, hexadecimal."""
        return self._read_note()["xxh3_128"]

    def rejected(self) -> RejectedNote | None:
        """Return the note of the list of rejected documents; None if none is ever rejected."""
        return self._read_note().get("rejected")

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

    def _read_note(self) -> PieceNote:
        note: dict[str, object] = json.loads(self.note_path.read_bytes())
        if note.pop("checksum") != checksum(note):
            raise ValueError(f"{self.note_path} was changed")
        return cast(PieceNote, note)


def cut_source(source: Source, folder: AnyPath) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces, which depend on nothing but the files and the columns."""
    size = max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)
    fingerprint = source.tokenized.fingerprint if source.tokenized is not None else None
    stored = COLUMNS._replace(extra=source.columns.extra)
    if source.pairs:
        stored = CHOSEN._replace(extra=(*tokens_of_rejected(has_labels=source.has_labels), *source.columns.extra))
    pieces = []
    for number, input_ in enumerate(source.inputs):
        if isinstance(input_, MappedLists):
            continue
        stat = input_.path.stat() if input_.path is not None else None
        made_from: dict[str, object] = {
            "name": input_.file.name,
            "bytes": stat.st_size if stat is not None else input_.file.bytes,
            "mtime_ns": stat.st_mtime_ns if stat is not None else fingerprint or str(uuid.uuid4()),  # never reused
            "columns": [*source.columns[:2], *map(list, source.columns[2:])],
            "labels": bool(input_.has_labels),
            "size": size,
        }
        if source.tokenized is not None:
            made_from["text"] = source.tokenized.identity.to_dict()
        if source.skips:
            made_from["skips"] = True
        for part, piece in enumerate(input_.cut(size)):
            stream = folder / f"{number:05d}-{part:05d}.arrow"
            pieces.append(Piece(number=number, input=piece, stream=stream, columns=stored, made_from=made_from))
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


def folder_of_part(folder: AnyPath, number: int) -> AnyPath:
    """Return the folder of the streams of a source of a mixture."""
    return folder / f"{number:05d}"


def spill_size(corpus: Corpus, folder: AnyPath) -> SpillSize:
    """Estimate what `spill_corpus` is going to write into `folder`."""
    if corpus.recipe is None:
        return _spill_size(corpus.parts[0], folder)
    sizes = [_spill_size(part, folder_of_part(folder, number)) for number, part in enumerate(corpus.parts)]
    return SpillSize(
        bytes=sum(size.bytes for size in sizes),
        tokens=sum(size.tokens for size in sizes),
        sampled=any(size.sampled for size in sizes),
    )


def _spill_size(source: Source, folder: AnyPath) -> SpillSize:
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
                lists = batch.input_ids if batch is not None else []
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
