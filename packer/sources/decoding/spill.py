"""Decode inputs that cannot be mapped: once, in pieces and in parallel, each into an Arrow stream with a note.

00003-00000.arrow     list<int32> `input_ids`, `labels` if the source has them, and the extra columns
00003-00000.rejected  rejected documents, if unusable ones are rejected; see `rejections.py`
00003-00000.json      note of what the stream was made from, and of its hash; written last, so that it marks the
                      stream as complete

HASH.unified          hashes of all streams with extra columns of one type each; only if processes share the work

Nothing is synced. After a kill or a power failure, a stream is used again only if it matches its hash. If processes
share the work, streams are synced instead, and are used as they are.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from packer.engine import Engine, run_once
from packer.errors import SourceError
from packer.plan.threads import result_of
from packer.progress import Progress, documents_of, silent
from packer.sources.columns.column_types import join_with
from packer.sources.columns.list_checks import checked
from packer.sources.decoding.decode_pool import DecodePool
from packer.sources.decoding.decoded_pieces import Piece, cut_source, open_all, types_of_all
from packer.sources.decoding.decoded_streams import atomic_write, rewrite, write_stream
from packer.sources.documents import Batch, Columns, DocumentError, Input
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.packed.packed_documents import sort_packed
from packer.sources.rejections import Rejections, rejected_file, rejections_of
from packer.stores import AnyPath, each_at

if TYPE_CHECKING:
    from packer.sources.source import Source

Result = TypeVar("Result")


class Spilled(NamedTuple):
    """Inputs of a source, decoded."""

    inputs: tuple[Input, ...]
    """Inputs of the source, with mapped ones instead of those that were decoded."""

    counts: Counter[str]
    """Sums of `Batch.counts`."""

    rejections: Rejections
    """Rejected documents."""


def spill_inputs(
    source: Source, folder: AnyPath, progress: Progress, engine: Engine, *, kinds: Mapping[str, pa.DataType]
) -> Spilled:
    """Replace every input that is not mapped by mapped streams in `folder`; see `Source.spill`."""
    pieces = decode_inputs(source, folder, progress, engine, kinds=kinds)
    inputs = open_pieces(source, pieces)
    rejections = rejections_of(inputs, pieces) if source.skips else Rejections()
    return Spilled(inputs, sum_counts(pieces), rejections)


def decode_inputs(
    source: Source, folder: AnyPath, progress: Progress, engine: Engine, *, kinds: Mapping[str, pa.DataType]
) -> list[Piece]:
    """Decode every input that is not mapped into streams in `folder`; see `Source.spill`. Return the streams."""
    source = sort_packed(source, folder, engine, progress)
    pieces = cut_source(source, folder)
    decoding = _Decoding(pieces, source, progress, sync=engine.is_shared or not engine.is_local)
    if engine.is_shared:
        for numbers in engine.assigned(range(len(pieces)), partial(_decoded, pieces)):
            decoding.run(numbers, engine.workers)
        mark = _mark(folder, kinds)

        def is_marked() -> bool:
            return mark.is_file() and mark.read_text() == _digests(pieces)

        def unify() -> None:
            decoding.unify_types(kinds)
            with atomic_write(mark) as temporary:
                temporary.write_text(_digests(pieces))

        run_once(engine, unify, is_marked)
    else:
        if isinstance(folder, Path):
            for path in folder.glob(".*"):  # temporary files of a process that died
                path.unlink(missing_ok=True)
        if engine.is_local:
            decoding.run(range(len(pieces)), engine.workers)
        else:
            decoding.run_elsewhere(folder, engine)
        decoding.unify_types(kinds)
    return pieces


def open_pieces(source: Source, pieces: list[Piece], columns: Columns | None = None) -> tuple[Input, ...]:
    """Return the inputs of a source, with streams instead of those that were decoded; by default with all columns."""
    inputs, opened = list(source.inputs), zip(pieces, open_all(pieces, columns), strict=True)
    for number, parts in groupby(opened, key=lambda pair: pair[0].number):
        inputs[number] = _joined(inputs[number], [part for _, part in parts])
    return tuple(inputs)


def sum_counts(pieces: list[Piece]) -> Counter[str]:
    """Return the sums of `Batch.counts` over a source."""
    total: Counter[str] = Counter()
    for counts in _of_each(Piece.counts, pieces):
        total.update(counts)
    return total


def _mark(folder: AnyPath, kinds: Mapping[str, pa.DataType]) -> AnyPath:
    """Return the path of the file that says that extra columns have one type, which also holds these."""
    names = json.dumps({name: str(kind) for name, kind in sorted(kinds.items())})
    return folder / f"{xxhash.xxh3_64_hexdigest(names.encode())}.unified"


def _digests(pieces: Sequence[Piece]) -> str:
    return "\n".join(_of_each(Piece.digest, pieces))


def _decoded(pieces: Sequence[Piece], numbers: Sequence[int]) -> list[int]:
    """Return which of these pieces have been decoded."""
    found = _of_each(Piece.has_note, [pieces[number] for number in numbers])
    return [number for number, has_note in zip(numbers, found, strict=True) if has_note]


def _of_each(read: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """Read the note of each piece."""
    return each_at(pieces[0].stream, read, pieces) if pieces else []


def _joined(origin: Input, parts: list[MappedLists]) -> MappedLists:
    """Join the decoded pieces of an input."""
    labels = next((part.labels for part in parts if part.labels is not None), None)
    return MappedLists(
        file=origin.file,
        path=origin.path,
        stores=tuple(store for part in parts for store in part.stores if len(store.ends)),
        input_ids=parts[0].input_ids,
        labels=labels,
        extra=parts[0].extra,
        origin=origin.places,
    )


class _Abandoned(Exception):  # noqa: N818 (never reaches a caller)
    """Raised to give up a piece because an earlier one is invalid."""


@dataclass(frozen=True, slots=True)
class _DecodeTask:
    """Decodes single pieces. Can be pickled."""

    source: Source
    """The source."""

    folder: AnyPath
    """Folder of the streams."""

    def __call__(self, number: int) -> int:
        """Decode a piece; return its number."""
        _Decoding(cut_source(self.source, self.folder), self.source, silent, sync=True).run([number], 1)
        return number


class _Decoding:
    """Decodes pieces in parallel; raises the first error in the order of the source, as decoding one by one would."""

    def __init__(self, pieces: list[Piece], source: Source, progress: Progress, *, sync: bool) -> None:
        self._pieces = pieces
        self._sync = sync
        self._source = source
        self._stage = "tokenize" if source.tokenized is not None else "decode"
        self._progress = progress
        self._lock = threading.Lock()
        self._first_fault = len(pieces)
        self._read = [0] * len(pieces)  # bytes of the files
        self._documents = [0] * len(pieces)
        self._total = sum(piece.input.file.bytes for piece in pieces)

    def run(self, numbers: Sequence[int], workers: int) -> None:
        """Decode the pieces with these numbers."""
        if not numbers:
            return
        with closing(DecodePool(workers)) as pool, ThreadPoolExecutor(min(workers, len(numbers))) as threads:
            futures = {number: threads.submit(self._decode, number, pool) for number in numbers}
            try:
                for number, future in futures.items():
                    try:
                        result_of(future)
                    except DocumentError as fault:
                        raise self._described(fault, number) from None
            except BaseException:
                self._stop(-1)
                for future in futures.values():
                    future.cancel()
                raise

    def run_elsewhere(self, folder: AnyPath, engine: Engine) -> None:
        """Decode all pieces by other processes, which reuse what is intact."""
        for number in engine.run(_DecodeTask(self._source, folder), range(len(self._pieces))):
            piece = self._pieces[number]
            self._report(number, piece.input.file.bytes, piece.open().rows)

    def unify_types(self, kinds: Mapping[str, pa.DataType]) -> None:
        """Rewrite streams so that each extra column has one type, which holds all of its values in the source.

        Types are joined in the order of the source, so that they depend on its values alone.

        Args:
            kinds: types of these columns in other sources, which are joined, too.

        Raises:
            SourceError: no type holds all values of a column; with the first document that does not fit.
        """
        opened = open_all(self._pieces)
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
        for number, (piece, types) in enumerate(zip(self._pieces, types_of_all(self._pieces), strict=True)):
            if any(kind != joined.get(name, kind) for name, kind in types.items()):
                counts, rejected = piece.counts(), piece.rejected()
                with self._naming(number), atomic_write(piece.stream) as temporary:
                    digest = rewrite([piece.stream], temporary, joined)
                piece.write_note(counts, digest, rejected)  # until then, the stream does not match its note

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the document in errors of a piece; those of a mapped input (-1) are left to `one_type`."""
        try:
            yield
        except DocumentError as fault:
            if number >= 0:
                fault.place = self._pieces[number].input.place(fault.row)
                raise self._described(fault, number) from None

    def _decode(self, number: int, pool: DecodePool) -> None:
        piece = self._pieces[number]
        try:
            if piece.is_intact():
                self._report(number, piece.input.file.bytes, piece.open().rows)
                return
            counts: Counter[str] = Counter()
            batches = self._counted(number, pool, counts)
            has_labels = bool(piece.input.has_labels)
            columns = self._source.columns_of(piece.number)
            with closing(batches), rejected_file(piece, skips=self._source.skips, sync=self._sync) as rejected:
                stream, stored = piece.stream, piece.columns
                listing = rejected.pass_on(batches)
                digest = write_stream(stream, listing, columns, has_labels=has_labels, stored=stored, sync=self._sync)
            piece.write_note(counts, digest, rejected.note)
            self._report(number, piece.input.file.bytes, self._documents[number])
        except BaseException as error:
            if isinstance(error, DocumentError):
                error.place = error.place or piece.input.place(error.row)
            self._stop(number)
            raise

    def _counted(self, number: int, pool: DecodePool, counts: Counter[str]) -> Generator[Batch, None, None]:
        """Yield the checked batches of a piece; add to `counts` and report progress."""
        piece = self._pieces[number]
        documents = 0
        for batch, lengths in checked(piece.input, self._source.columns_of(piece.number), pool):
            if number > self._first_fault:
                raise _Abandoned
            counts.update(batch.counts)
            yield batch
            documents += len(lengths)
            self._report(number, batch.done, documents)

    def _report(self, number: int, read: int, documents: int) -> None:
        with self._lock:
            self._read[number], self._documents[number] = read, documents
            of_each = self._source.documents_per_record // self._source.side_count
            self._progress(self._stage, *documents_of(of_each * sum(self._documents), sum(self._read), self._total))

    def _stop(self, number: int) -> None:
        """Give up all pieces after this one."""
        with self._lock:
            self._first_fault = min(self._first_fault, number)

    def _described(self, fault: DocumentError, number: int) -> SourceError:
        """Return the error for users about a document of a piece."""
        if all(piece.has_note() for piece in self._pieces[:number]):
            return fault.in_source(self._document(number, fault.row))
        return SourceError(f"{fault.place}: {fault.message}")  # another process is still decoding those before

    def _document(self, number: int, row: int) -> int:
        """Return the index in the source of a document of a piece; all earlier pieces must be decoded."""
        inputs, at = self._source.inputs, self._pieces[number].number
        of_side = len(inputs) // self._source.side_count
        side, first = at // of_side, at // of_side * of_side
        decoded = sum(piece.open().rows for piece in self._pieces[:number] if piece.number >= first)
        mapped = sum(input_.rows or 0 for input_ in inputs[first:at] if input_.mapped)
        return self._source.documents_per_record * (decoded + mapped + row) + side
