"""Decode what cannot be mapped, once: pieces of the inputs side by side, each an Arrow stream with a note.

00003-00000.arrow   list<int32> `input_ids`, and `labels` where the source has them
00003-00000.json    what it was made from, and its hash: written after the stream, so that a stream without it does not
                    count

Nothing is synced. A stream that a kill or a power failure left is used again only if it matches its hash.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from packer.plan.threads import result_of
from packer.progress import Progress
from packer.shards.files import hash_file
from packer.shards.manifest import checksum
from packer.sources.checking import checked
from packer.sources.column_values import join_with
from packer.sources.decode_pool import DecodePool
from packer.sources.decoded_streams import COLUMNS, appearing, rewrite, stream_types, write_stream
from packer.sources.documents import Batch, DocumentError, Input
from packer.sources.ipc import open_ipc
from packer.sources.mapped_lists import MappedLists

if TYPE_CHECKING:
    from packer.sources.source import Source

_PIECE = 32 << 20  # bytes; small enough that cores end together, large enough that files are few
_PIECES = 1 << 12  # of a source, beyond its files: a process may map 65,530
_COUNTED = ("straddling", "untrained")  # by batches of text


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of an input that is decoded, and where."""

    number: int
    """Of the input in the source."""

    given: Input
    """What is decoded."""

    stream: Path
    """Where to."""

    note: dict[str, Any]
    """What the stream is made from; it is used again only where all of it agrees."""

    def is_made(self) -> bool:
        """Whether the stream is there with its size, made from what the note says; its hash is not looked at."""
        try:
            note = self._read_note()
            return bool(note["made_from"] == self.note and note["bytes"] == self.stream.stat().st_size)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False

    def is_intact(self) -> bool:
        """Whether the stream is made and matches its hash."""
        return self.is_made() and self.stream.is_file() and hash_file(self.stream) == self.digest()

    def write_note(self, counts: dict[str, int], digest: str) -> None:
        """Say that the stream is whole, its hash, and what was counted while it was made."""
        size = self.stream.stat().st_size
        note = {"made_from": self.note, "counts": counts, "bytes": size, "xxh3_128": digest}
        with appearing(self.note_path) as temporary:
            temporary.write_text(json.dumps({**note, "checksum": checksum(note)}))

    def counts(self) -> dict[str, int]:
        """What was counted while the stream was made."""
        counts: dict[str, int] = self._read_note()["counts"]
        return counts

    def digest(self) -> str:
        """Hash of the stream: xxh3-128, hexadecimal."""
        return str(self._read_note()["xxh3_128"])

    def open(self) -> MappedLists:
        """Map the stream."""
        extra = tuple(self.note["columns"][2])
        opened = open_ipc(self.stream, self.stream.name, COLUMNS._replace(extra=extra))
        assert isinstance(opened, MappedLists)
        return opened

    @property
    def note_path(self) -> Path:
        """Where the note is."""
        return self.stream.with_suffix(".json")

    def _read_note(self) -> Any:
        note = json.loads(self.note_path.read_bytes())
        if note.pop("checksum") != checksum(note):
            raise ValueError(f"{self.note_path} was changed")
        return note


def cut_source(source: Source, folder: Path) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces; a function of the files alone."""
    size = max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)
    fingerprint = source.tokenized.fingerprint if source.tokenized is not None else None
    pieces = []
    for number, given in enumerate(source.inputs):
        if given.mapped:
            continue
        stat = given.path.stat() if given.path is not None else None
        columns = source.columns_of(number)
        made_from = {
            "name": given.file.name,
            "bytes": stat.st_size if stat is not None else given.file.bytes,
            "mtime_ns": stat.st_mtime_ns if stat is not None else fingerprint or str(uuid.uuid4()),  # may be anything
            "columns": [*columns[:2], *map(list, columns[2:])],
            "labels": bool(given.has_labels),
            "size": size,
        }
        if source.tokenized is not None:
            made_from["text"] = source.tokenized.identity.to_dict()
        for part, piece in enumerate(given.cut(size)):
            stream = folder / f"{number:05d}-{part:05d}.arrow"
            pieces.append(Piece(number=number, given=piece, stream=stream, note=made_from))
    return pieces


def spill_inputs(
    source: Source, folder: Path, progress: Progress, workers: int, *, kinds: Mapping[str, pa.DataType]
) -> tuple[tuple[Input, ...], dict[str, int]]:
    """Replace every input that is not mapped by mapped streams in `folder`; see `Source.spill`.

    Returns:
        The inputs, and what was counted: "straddling" and "untrained" documents.
    """
    for left in folder.glob(".*"):  # what a process was writing when it died
        left.unlink()
    pieces = cut_source(source, folder)
    decoding = _Decoding(pieces, source, progress)
    decoding.run(workers)
    decoding.make_types_alike(kinds)
    inputs = list(source.inputs)
    for number, parts in groupby(pieces, key=lambda piece: piece.number):
        inputs[number] = _joined(inputs[number], [part.open() for part in parts])
    counts = [piece.counts() for piece in pieces]
    return tuple(inputs), {name: sum(count[name] for count in counts) for name in _COUNTED}


def _joined(origin: Input, parts: list[MappedLists]) -> MappedLists:
    """Put the decoded pieces of an input in its place."""
    has_labels = any(part.labels is not None for part in parts)
    return MappedLists(
        file=origin.file,
        path=origin.path,
        stores=tuple(store for part in parts for store in part.stores if len(store.ends)),
        input_ids=COLUMNS.input_ids,
        labels=COLUMNS.labels if has_labels else None,
        extra=parts[0].extra,
        origin=origin.places,
    )


class _Abandoned(Exception):  # noqa: N818 (no error: nobody sees it)
    """A piece before this one is wrong."""


class _Decoding:
    """Pieces under way. The first fault in the order of the source ends it, after those before it are through."""

    def __init__(self, pieces: list[Piece], source: Source, progress: Progress) -> None:
        self._pieces = pieces
        self._source = source
        self._stage = "tokenize" if source.tokenized is not None else "decode"
        self._progress = progress
        self._lock = threading.Lock()
        self._first_fault = len(pieces)
        self._done = [piece.given.file.bytes if piece.is_made() else 0 for piece in pieces]
        self._total = sum(piece.given.file.bytes for piece in pieces)

    def run(self, workers: int) -> None:
        if not self._pieces:
            return
        with closing(DecodePool(workers)) as pool, ThreadPoolExecutor(min(workers, len(self._pieces))) as threads:
            futures = {number: threads.submit(self._decode, number, pool) for number in range(len(self._pieces))}
            try:
                for number, future in futures.items():
                    try:
                        result_of(future)
                    except DocumentError as fault:
                        raise fault.in_source(self._document(number, fault.row)) from None
            except BaseException:
                self._stop(-1)
                for future in futures.values():
                    future.cancel()
                raise

    def make_types_alike(self, kinds: Mapping[str, pa.DataType]) -> None:
        """Write those streams again whose other columns are not of the types that hold all values of the source.

        Types are joined in the order of the source, so that they depend on its values alone.

        Args:
            kinds: types of values elsewhere, to be held as well.

        Raises:
            SourceError: a column has no such type; with the first document that does not fit.
        """
        opened = [piece.open() for piece in self._pieces]
        streams = [
            (piece.number, number, part) for number, (piece, part) in enumerate(zip(self._pieces, opened, strict=True))
        ]
        mapped = [(at, -1, given) for at, given in enumerate(self._source.inputs) if isinstance(given, MappedLists)]
        joined = dict(kinds)
        for _, number, part in sorted([*streams, *mapped], key=itemgetter(0, 1)):
            for name in part.extra:
                row = 0
                for (chunk,) in part.chunks(name):
                    kind = joined.get(name, pa.null())
                    with self._naming(number):
                        joined[name] = join_with(kind, chunk, name, first_row=row)
                    row += len(chunk)
        for number, piece in enumerate(self._pieces):
            if any(kind != joined.get(name, kind) for name, kind in stream_types(piece.stream).items()):
                counts = piece.counts()
                with self._naming(number), appearing(piece.stream) as temporary:
                    digest = rewrite([piece.stream], temporary, joined)
                piece.write_note(counts, digest)  # until then, the stream does not match its note, and is made again

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the document of a piece in errors; -1 is an input that is mapped, of which `one_column` tells more."""
        try:
            yield
        except DocumentError as fault:
            if number >= 0:
                fault.place = self._pieces[number].given.place(fault.row)
                raise fault.in_source(self._document(number, fault.row)) from None

    def _decode(self, number: int, pool: DecodePool) -> None:
        piece = self._pieces[number]
        try:
            with pool.working():
                if piece.is_intact():
                    self._tell(number, piece.given.file.bytes)
                    return
                counts = dict.fromkeys(_COUNTED, 0)
                batches = self._told(number, pool, counts)
                has_labels = bool(piece.given.has_labels)
                columns = self._source.columns_of(piece.number)
                with closing(batches):
                    digest = write_stream(piece.stream, batches, columns, has_labels=has_labels)
                piece.write_note(counts, digest)
                self._tell(number, piece.given.file.bytes)
        except BaseException as error:
            if isinstance(error, DocumentError):
                error.place = error.place or piece.given.place(error.row)
            self._stop(number)
            raise

    def _told(self, number: int, pool: DecodePool, counts: dict[str, int]) -> Generator[Batch, None, None]:
        piece = self._pieces[number]
        for batch, _ in checked(piece.given, self._source.columns_of(piece.number), pool):
            if number > self._first_fault:
                raise _Abandoned
            for name in _COUNTED:
                counts[name] += getattr(batch, name)
            yield batch
            self._tell(number, batch.done)

    def _tell(self, number: int, done: int) -> None:
        with self._lock:
            self._done[number] = done
            self._progress(self._stage, sum(self._done), self._total)

    def _stop(self, number: int) -> None:
        """Give up the pieces after this one."""
        with self._lock:
            self._first_fault = min(self._first_fault, number)

    def _document(self, number: int, row: int) -> int:
        """Which document of the source a list of a piece is, the pieces before it decoded."""
        inputs, at = self._source.inputs, self._pieces[number].number
        of_side = len(inputs) // self._source.side_count
        side, first = at // of_side, at // of_side * of_side
        decoded = sum(piece.open().rows for piece in self._pieces[:number] if piece.number >= first)
        mapped = sum(given.rows or 0 for given in inputs[first:at] if given.mapped)
        return self._source.side_count * (decoded + mapped + row) + side
