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
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from packer.engine import Engine, result_of, run_once
from packer.errors import SourceError
from packer.inputs.column_types import join_by_name, join_with
from packer.inputs.decode_pool import DecodePool
from packer.inputs.decoded_streams import COLUMNS, atomic_write, rewrite, write_stream
from packer.inputs.document_errors import DocumentError
from packer.inputs.documents import Batch, Columns, Input, RecordPlaces
from packer.inputs.list_checks import checked
from packer.inputs.mapped_lists import MappedLists
from packer.processes import Processes
from packer.progress import Progress, documents_of, silent
from packer.sources.corpus import Corpus, overall_progress, prefix_errors
from packer.sources.decoded_pieces import Piece, cut_source, open_all
from packer.sources.packed_documents import PackedDocuments
from packer.sources.pairs import CHOSEN, REJECTED, by_side, sides_in_turn, tokens_of_rejected
from packer.sources.rejections import RejectedPart, RejectionCollector, Rejections, rejected_file
from packer.sources.source import Source
from packer.stores import AnyPath, each_at

Result = TypeVar("Result")

WORTH_PROCESSES = 1 << 27  # bytes of files with chats from which on processes tokenize them


def spill_corpus(
    corpus: Corpus,
    folder: AnyPath,
    progress: Progress = silent,
    *,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
) -> Corpus:
    """Decode inputs that cannot be mapped; see `spill_source`. Each source of a mixture has its own subfolder."""

    def decoded(progress: Progress, kinds: Mapping[str, pa.DataType]) -> Corpus:
        parts = list(corpus.parts)
        in_turn = overall_progress(progress, [part for part in parts if not part.mapped])
        for number, (part, of_part) in enumerate(zip(corpus.parts, corpus.spill_folders(folder), strict=True)):
            if not part.mapped:
                with prefix_errors(corpus.names[number]):
                    parts[number] = spill_source(part, of_part, next(in_turn), engine=engine, kinds=kinds)
        return replace(corpus, parts=tuple(parts))

    spilled = decoded(progress, {})
    types = [part.extra_types() for part in spilled.parts]
    kinds = join_by_name(types)
    if all(each == kinds for each in types):
        return spilled
    return decoded(silent, kinds)  # decoded streams are reused and gain wider types


def spill_source(
    source: Source,
    folder: AnyPath,
    progress: Progress = silent,
    *,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
    kinds: Mapping[str, pa.DataType] = {},
) -> Source:
    """Decode inputs that cannot be mapped to Arrow streams in `folder`, reusing complete ones from earlier.

    The returned source is mapped. It keeps the names and sizes of the original files, and the names of documents.
    Neither the streams nor the errors of one process depend on the engine. Progress is reported as "decode" or
    "tokenize", in documents.

    The types in `kinds` are those that other sources of a mixture have for extra columns, which must be able to hold
    them. A SourceError is raised if a document is invalid, or no type holds all values of an extra column.
    """
    pairs = source.pairs and not source.mapped
    if pairs:  # a stream without documents has no types of its own
        names = tokens_of_rejected(has_labels=source.has_labels)
        kinds = {**kinds, **dict.fromkeys(names, pa.list_(pa.int32()))}
    pieces = _decode(source, folder, progress, engine, kinds)
    extra, indices = source.columns.extra, source.indices
    columns = [CHOSEN, REJECTED] if pairs else [COLUMNS]
    inputs = tuple(chain(*(_open_pieces(source, pieces, each._replace(extra=extra)) for each in columns)))
    rows = sum(input_.rows or 0 for input_ in inputs)
    if pairs:
        order = sides_in_turn(rows // 2)
        indices = order if indices is None else order[indices]
    tokenized = source.tokenized and replace(source.tokenized, counts=_sum_counts(pieces))
    return replace(
        source,
        inputs=inputs,
        columns=columns[0]._replace(extra=extra),
        indices=indices,
        tokenized=tokenized,
        rejections=_rejections_of(inputs, pieces, rows // 2 if pairs else None) if source.skips else Rejections(),
    )


def _decode(
    source: Source, folder: AnyPath, progress: Progress, engine: Engine, kinds: Mapping[str, pa.DataType]
) -> list[Piece]:
    """Decode every input that is not mapped into streams in `folder`; see `spill_source`. Return the streams."""
    inputs = tuple(
        input_.sorted(folder, engine, progress) if isinstance(input_, PackedDocuments) else input_
        for input_ in source.inputs
    )
    source = replace(source, inputs=inputs)
    pieces = cut_source(source, folder)
    if isinstance(folder, Path) and not engine.is_shared:
        for path in folder.glob(".*"):  # temporary files of a process that died
            path.unlink(missing_ok=True)
    decoding = _Decoding(pieces, source, progress, sync=engine.is_shared or not engine.is_local)
    decoding.run_all(engine)
    if source.tokenized is not None:
        counts = _sum_counts(pieces)
        differs = counts["differing"] or (source.tokenized.encoder.differs and not engine.is_shared)
        if differs and counts["fast"]:  # what was tokenized until then may be wrong, too
            decoding.stop_fast()
            decoding.run_all(engine)
    if engine.is_shared:
        mark = _mark(folder, kinds)

        def is_marked() -> bool:
            return mark.is_file() and mark.read_text() == _digests(pieces)

        def unify() -> None:
            decoding.unify_types(kinds)
            with atomic_write(mark) as temporary:
                temporary.write_text(_digests(pieces))

        run_once(engine, unify, is_marked)
    else:
        decoding.unify_types(kinds)
    return pieces


def _open_pieces(source: Source, pieces: list[Piece], columns: Columns) -> tuple[Input, ...]:
    """Return the inputs of a source, with these columns of streams instead of those that were decoded."""
    inputs, opened = list(source.inputs), zip(pieces, open_all(pieces, columns), strict=True)
    for number, parts in groupby(opened, key=lambda pair: pair[0].number):
        inputs[number] = _joined(inputs[number], [part for _, part in parts])
    return tuple(inputs)


def _rejections_of(inputs: Sequence[Input], pieces: Sequence[Piece], pairs: int | None) -> Rejections:
    """Return the rejected documents of decoded pieces, given the inputs that these were joined to."""
    first_lists = np.cumsum([0, *(input_.rows or 0 for input_ in inputs)])
    collector, parts = RejectionCollector(), []
    for number, of_input in groupby(pieces, key=lambda piece: piece.number):
        first_list, lines = int(first_lists[number]), 0
        for piece in of_input:
            note = piece.note().get("rejected")
            in_piece = None if note is None else note["lines"]
            parts.append(
                RejectedPart(
                    path=piece.rejected_path,
                    file=piece.input.file.name,
                    first_list=first_list,
                    lines_before=None if in_piece is None else lines,
                    pairs=pairs,
                )
            )
            collector.add(0, ((record.document, record.reason) for record in parts[-1].records()))
            first_list += piece.open().rows
            lines += in_piece or 0
    return collector.finish(parts)


def _sum_counts(pieces: list[Piece]) -> Counter[str]:
    """Return the sums of `Batch.counts` over a source."""
    total: Counter[str] = Counter()
    for note in _of_each(Piece.note, pieces):
        total.update(note["counts"])
    return total


def _mark(folder: AnyPath, kinds: Mapping[str, pa.DataType]) -> AnyPath:
    """Return the path of the file that says that extra columns have one type, which also holds these."""
    names = json.dumps({name: str(kind) for name, kind in sorted(kinds.items())})
    return folder / f"{xxhash.xxh3_64_hexdigest(names.encode())}.unified"


def _digests(pieces: Sequence[Piece]) -> str:
    return "\n".join(note["xxh3_128"] for note in _of_each(Piece.note, pieces))


def _decoded(pieces: Sequence[Piece], by_library: bool, numbers: Sequence[int]) -> list[int]:
    """Return which of these pieces have been decoded; see `Piece.has_tokens`."""
    found = _of_each(partial(Piece.has_tokens, by_library=by_library), [pieces[number] for number in numbers])
    return [number for number, has_note in zip(numbers, found, strict=True) if has_note]


def _of_each(read: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """Read the note of each piece."""
    return each_at(pieces[0].path, read, pieces) if pieces else []


def _joined(origin: Input, parts: list[MappedLists]) -> MappedLists:
    """Join the decoded pieces of an input, or one side of them."""
    labels = next((part.labels for part in parts if part.labels is not None), None)
    return MappedLists(
        file=origin.file,
        path=origin.path,
        stores=tuple(store for part in parts for store in part.stores if len(store.ends)),
        input_ids=parts[0].input_ids,
        labels=labels,
        extra=parts[0].extra,
        origin=origin.places.records if isinstance(origin.places, RecordPlaces) else origin.places,
    )


class _Abandoned(Exception):  # noqa: N818 (never reaches a caller)
    """Raised to give up a piece because an earlier one is invalid."""


@dataclass(frozen=True, slots=True)
class _DecodeTask:
    """Decodes single pieces. Can be pickled."""

    pieces: list[Piece]
    """All pieces of the source."""

    source: Source
    """The source."""

    by_library: bool
    """Whether the library alone tokenizes."""

    sync: bool
    """Whether streams are synced."""

    def __call__(self, number: int) -> int:
        """Decode a piece; return its number."""
        decoding = _Decoding(self.pieces, self.source, silent, sync=self.sync)
        if self.by_library:
            decoding.stop_fast()
        decoding.run([number], 1)
        return number


class _Decoding:
    """Decodes pieces in parallel; raises the first error in the order of the source, as decoding one by one would."""

    def __init__(self, pieces: list[Piece], source: Source, progress: Progress, *, sync: bool) -> None:
        self._pieces = pieces
        self._sync = sync
        self._source = source
        self._each = 2 if source.pairs else 1  # documents for each list of a stream
        self._by_library = False
        self._stage = "tokenize" if source.tokenized is not None else "decode"
        self._progress = progress
        self._lock = threading.Lock()
        self._first_fault = len(pieces)
        self._read = [0] * len(pieces)  # bytes of the files
        self._documents = [0] * len(pieces)
        self._total = sum(piece.input.file.bytes for piece in pieces)

    def stop_fast(self) -> None:
        """Tokenize by the library alone from now on, again what was not tokenized by it."""
        assert self._source.tokenized is not None
        self._source.tokenized.encoder.stop_fast()
        self._by_library = True

    def run_all(self, engine: Engine) -> None:
        """Decode all pieces that are not decoded."""
        numbers = range(len(self._pieces))
        if engine.is_shared:
            for assigned in engine.assigned(numbers, partial(_decoded, self._pieces, self._by_library)):
                self.run(assigned, engine.workers)
        elif not engine.is_local:
            self._run_elsewhere(engine)
        elif engine.workers > 1 and self._is_worth_processes():
            self._run_elsewhere(Processes(workers=engine.workers))
        else:
            self.run(numbers, engine.workers)

    def _is_worth_processes(self) -> bool:
        """Whether so many chats are left that processes are done earlier: templates hold the interpreter's lock."""
        is_rendered = self._source.tokenized is not None and self._source.holds_chats
        if not is_rendered or any(piece.input.path is None for piece in self._pieces):
            return False
        return sum(piece.input.file.bytes for piece in self._pieces if not piece.is_written()) >= WORTH_PROCESSES

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

    def _run_elsewhere(self, engine: Engine) -> None:
        """Decode all pieces by other processes, which reuse what is intact."""
        numbers = range(len(self._pieces))
        task = _DecodeTask(self._pieces, self._source, self._by_library, self._sync)
        try:
            for number in engine.run(task, numbers):
                piece = self._pieces[number]
                self._report(number, piece.input.file.bytes, self._each * piece.open().rows)
        except SourceError:
            self.run(numbers, engine.workers)  # raises the first error in the order of the source
            raise

    def unify_types(self, kinds: Mapping[str, pa.DataType]) -> None:
        """Rewrite streams so that each extra column has one type, which holds all of its values in the source.

        Types are joined in the order of the source, so that they depend on its values alone, beginning with those in
        other sources. A SourceError names the first document that does not fit.
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
        for number, (piece, part) in enumerate(zip(self._pieces, opened, strict=True)):
            types = {name: part.stores[0].type_of(name) for name in part.extra}  # a stream is one store
            if any(kind != joined.get(name, kind) for name, kind in types.items()):
                note = piece.note()
                with self._naming(number), atomic_write(piece.path) as temporary:
                    digest = rewrite([piece.path], temporary, joined)
                # Until then, the stream does not match its note.
                piece.write_note(note["counts"], digest, note.get("rejected"))

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the document in errors of a piece; those of a mapped input (-1) are left to `one_type`."""
        try:
            yield
        except DocumentError as fault:
            if number >= 0:
                fault = fault.at(self._each * fault.row)
                fault.place = self._pieces[number].input.place(fault.row)
                raise self._described(fault, number) from None

    def _decode(self, number: int, pool: DecodePool) -> None:
        piece = self._pieces[number]
        try:
            if piece.is_intact() and piece.has_tokens(by_library=self._by_library):
                self._report(number, piece.input.file.bytes, self._each * piece.open().rows)
                return
            counts = Counter(differing=1) if self._by_library else Counter[str]()  # so that later runs know
            batches = self._counted(number, pool, counts)
            has_labels = bool(piece.input.has_labels)
            columns, skips = self._source.columns, self._source.skips
            listed = rejected_file(piece.rejected_path, piece.input.places, skips=skips, sync=self._sync)
            with closing(batches), listed as rejected:
                path, stored = piece.path, piece.columns
                listing = rejected.pass_on(batches)
                if self._source.pairs:
                    listing, columns = map(by_side, listing), stored
                digest = write_stream(path, listing, columns, has_labels=has_labels, stored=stored, sync=self._sync)
            piece.write_note(counts, digest, rejected.note)
            self._report(number, piece.input.file.bytes, self._documents[number])
        except BaseException as error:
            if isinstance(error, DocumentError) and error.place is None:  # in a column of the stream
                error.row *= self._each
                error.place = piece.input.place(error.row)
            self._stop(number)
            raise

    def _counted(self, number: int, pool: DecodePool, counts: Counter[str]) -> Generator[Batch, None, None]:
        """Yield the checked batches of a piece; add to `counts` and report progress."""
        piece = self._pieces[number]
        documents = 0
        for batch, lengths in checked(piece.input, self._source.columns, pool):
            if number > self._first_fault:
                raise _Abandoned
            counts.update(batch.counts)
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

    def _described(self, fault: DocumentError, number: int) -> SourceError:
        """Return the error for users about a document of a piece."""
        if all(piece.has_note() for piece in self._pieces[:number]):
            return fault.in_source(self._document(number, fault.row))
        return SourceError(f"{fault.place}: {fault.message}")  # another process is still decoding those before

    def _document(self, number: int, row: int) -> int:
        """Return the index in the source of a document of a piece; all earlier pieces must be decoded."""
        decoded = self._each * sum(piece.open().rows for piece in self._pieces[:number])
        before = self._source.inputs[: self._pieces[number].number]
        return decoded + sum(input_.rows or 0 for input_ in before if isinstance(input_, MappedLists)) + row
