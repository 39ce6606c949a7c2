"""Decode inputs that cannot be mapped: once, in pieces and in parallel, each into an Arrow stream with a note.

00003-00000.arrow   list<int32> `input_ids`, `labels` if the source has them, and the extra columns
00003-00000.json    note of what the stream was made from, and of its hash; written last, so that it marks the stream as
                    complete

Nothing is synced. After a kill or a power failure, a stream is used again only if it matches its hash.
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
from packer.progress import Progress, documents_of
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

_PIECE = 32 << 20  # bytes; small enough that all cores finish together, large enough that files are few
_PIECES = 1 << 12  # of a source, beyond one per file: a process may map 65,530 files
_COUNTED = ("straddling", "untrained")  # fields of `Batch` that are summed over a source of text


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of an input, and the stream that it is decoded into."""

    number: int
    """Index of the input in the source."""

    input: Input
    """The piece, which can be read like any input."""

    stream: Path
    """Path of the stream."""

    made_from: dict[str, Any]
    """Facts about the input and the columns. A stream is used again only if its note has the same."""

    def is_written(self) -> bool:
        """Whether the stream exists, made from the same input and with the size in its note; no hash is compared."""
        try:
            note = self._read_note()
            return bool(note["made_from"] == self.made_from and note["bytes"] == self.stream.stat().st_size)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False

    def is_intact(self) -> bool:
        """Whether the stream exists and matches its hash."""
        return self.is_written() and self.stream.is_file() and hash_file(self.stream) == self.digest()

    def write_note(self, counts: dict[str, int], digest: str) -> None:
        """Mark the stream as complete, with its hash and what was counted while it was written."""
        size = self.stream.stat().st_size
        note = {"made_from": self.made_from, "counts": counts, "bytes": size, "xxh3_128": digest}
        with appearing(self.note_path) as temporary:
            temporary.write_text(json.dumps({**note, "checksum": checksum(note)}))

    def counts(self) -> dict[str, int]:
        """Return what was counted while the stream was written: documents, by the names in `_COUNTED`."""
        counts: dict[str, int] = self._read_note()["counts"]
        return counts

    def digest(self) -> str:
        """Return the hash of the stream: xxh3-128, hexadecimal."""
        return str(self._read_note()["xxh3_128"])

    def open(self) -> MappedLists:
        """Map the stream."""
        extra = tuple(self.made_from["columns"][2])
        opened = open_ipc(self.stream, self.stream.name, COLUMNS._replace(extra=extra))
        assert isinstance(opened, MappedLists)
        return opened

    @property
    def note_path(self) -> Path:
        """Path of the note."""
        return self.stream.with_suffix(".json")

    def _read_note(self) -> Any:
        note = json.loads(self.note_path.read_bytes())
        if note.pop("checksum") != checksum(note):
            raise ValueError(f"{self.note_path} was changed")
        return note


def cut_source(source: Source, folder: Path) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces, which depend on nothing but the files and the columns."""
    size = max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)
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
        for part, piece in enumerate(input_.cut(size)):
            stream = folder / f"{number:05d}-{part:05d}.arrow"
            pieces.append(Piece(number=number, input=piece, stream=stream, made_from=made_from))
    return pieces


def spill_inputs(
    source: Source, folder: Path, progress: Progress, workers: int, *, kinds: Mapping[str, pa.DataType]
) -> tuple[tuple[Input, ...], dict[str, int]]:
    """Replace every input that is not mapped by mapped streams in `folder`; see `Source.spill`.

    Returns:
        The inputs, and the numbers of "straddling" and "untrained" documents.
    """
    for path in folder.glob(".*"):  # temporary files of a process that died
        path.unlink()
    pieces = cut_source(source, folder)
    decoding = _Decoding(pieces, source, progress)
    decoding.run(workers)
    decoding.unify_types(kinds)
    inputs = list(source.inputs)
    for number, parts in groupby(pieces, key=lambda piece: piece.number):
        inputs[number] = _joined(inputs[number], [part.open() for part in parts])
    counts = [piece.counts() for piece in pieces]
    return tuple(inputs), {name: sum(count[name] for count in counts) for name in _COUNTED}


def _joined(origin: Input, parts: list[MappedLists]) -> MappedLists:
    """Join the decoded pieces of an input."""
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


class _Abandoned(Exception):  # noqa: N818 (never reaches a caller)
    """Raised to give up a piece because an earlier one is invalid."""


class _Decoding:
    """Decodes pieces in parallel; raises the first error in the order of the source, as decoding one by one would."""

    def __init__(self, pieces: list[Piece], source: Source, progress: Progress) -> None:
        self._pieces = pieces
        self._source = source
        self._stage = "tokenize" if source.tokenized is not None else "decode"
        self._progress = progress
        self._lock = threading.Lock()
        self._first_fault = len(pieces)
        self._read = [0] * len(pieces)  # bytes of the files
        self._documents = [0] * len(pieces)
        self._total = sum(piece.input.file.bytes for piece in pieces)

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

    def unify_types(self, kinds: Mapping[str, pa.DataType]) -> None:
        """Rewrite streams so that each extra column has one type, which holds all of its values in the source.

        Types are joined in the order of the source, so that they depend on its values alone.

        Args:
            kinds: types of these columns in other sources, which are joined, too.

        Raises:
            SourceError: no type holds all values of a column; with the first document that does not fit.
        """
        opened = [piece.open() for piece in self._pieces]
        streams = [
            (piece.number, number, part) for number, (piece, part) in enumerate(zip(self._pieces, opened, strict=True))
        ]
        mapped = [(at, -1, input_) for at, input_ in enumerate(self._source.inputs) if isinstance(input_, MappedLists)]
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
                piece.write_note(counts, digest)  # until then, the stream does not match its note

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the document in errors of a piece; those of a mapped input (-1) are left to `one_type`."""
        try:
            yield
        except DocumentError as fault:
            if number >= 0:
                fault.place = self._pieces[number].input.place(fault.row)
                raise fault.in_source(self._document(number, fault.row)) from None

    def _decode(self, number: int, pool: DecodePool) -> None:
        piece = self._pieces[number]
        try:
            with pool.working():
                if piece.is_intact():
                    self._report(number, piece.input.file.bytes, piece.open().rows)
                    return
                counts = dict.fromkeys(_COUNTED, 0)
                batches = self._counted(number, pool, counts)
                has_labels = bool(piece.input.has_labels)
                columns = self._source.columns_of(piece.number)
                with closing(batches):
                    digest = write_stream(piece.stream, batches, columns, has_labels=has_labels)
                piece.write_note(counts, digest)
                self._report(number, piece.input.file.bytes, self._documents[number])
        except BaseException as error:
            if isinstance(error, DocumentError):
                error.place = error.place or piece.input.place(error.row)
            self._stop(number)
            raise

    def _counted(self, number: int, pool: DecodePool, counts: dict[str, int]) -> Generator[Batch, None, None]:
        """Yield the checked batches of a piece; add to `counts` and report progress."""
        piece = self._pieces[number]
        documents = 0
        for batch, lengths in checked(piece.input, self._source.columns_of(piece.number), pool):
            if number > self._first_fault:
                raise _Abandoned
            for name in _COUNTED:
                counts[name] += getattr(batch, name)
            yield batch
            documents += len(lengths)
            self._report(number, batch.done, documents)

    def _report(self, number: int, read: int, documents: int) -> None:
        with self._lock:
            self._read[number], self._documents[number] = read, documents
            self._progress(self._stage, *documents_of(sum(self._documents), sum(self._read), self._total))

    def _stop(self, number: int) -> None:
        """Give up all pieces after this one."""
        with self._lock:
            self._first_fault = min(self._first_fault, number)

    def _document(self, number: int, row: int) -> int:
        """Return the index in the source of a document of a piece; all earlier pieces must be decoded."""
        inputs, at = self._source.inputs, self._pieces[number].number
        of_side = len(inputs) // self._source.side_count
        side, first = at // of_side, at // of_side * of_side
        decoded = sum(piece.open().rows for piece in self._pieces[:number] if piece.number >= first)
        mapped = sum(input_.rows or 0 for input_ in inputs[first:at] if input_.mapped)
        return self._source.side_count * (decoded + mapped + row) + side
