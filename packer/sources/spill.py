"""Decode inputs that cannot be mapped: once, in pieces and in parallel, each into an Arrow stream with a checkpoint.

00003-00000.arrow     list<int32> `input_ids`, `labels` if the source has them, and the extra columns
00003-00000.rejected  rejected documents, if unusable ones are rejected; see `decoded_pieces.RejectedFile`
00003-00000.json      checkpoint of what the stream was made from, and of its hash; written last, so that it marks the
                      stream as complete

types.unified         hashes of all streams with extra columns of one type each; only if processes share the work

Nothing is synced. After a kill or a power failure, a stream is used again only if it matches its hash. If processes
share the work, streams are synced instead, and are used as they are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from packer.engines.engine import DecodePool, Engine, run_once, without
from packer.engines.processes import Processes
from packer.errors import SourceError
from packer.inputs.column_types import join_with
from packer.inputs.documents import COLUMNS, Batch, DocumentError
from packer.inputs.format_reader import Input
from packer.inputs.token_tables import MappedLists
from packer.json_records import REASONS
from packer.progress import Progress, TaskSums, documents_of, silent
from packer.signals import CURRENT_TASK, raise_if_interrupted
from packer.sources.decoded_pieces import (
    Piece,
    RejectedFile,
    atomic_write,
    cut_source,
    open_all,
    rejections_in,
    rewrite,
    write_stream,
)
from packer.sources.source import Rejections, Source
from packer.stores import AnyPath
from packer.stores.store import store_at

WORTH_PROCESSES = 1 << 28  # bytes of files with text from which on processes tokenize it


def spill_source(
    source: Source,
    folder: AnyPath,
    progress: Progress = silent,
    *,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
) -> Source:
    """Decode inputs that cannot be mapped to Arrow streams in `folder`, reusing complete ones from earlier.

    The returned source is mapped. It keeps the names and sizes of the original files, and the names of documents.
    Neither the streams nor the errors of one process depend on the engine. Progress is reported as "decode" or
    "tokenize", in documents.

    A SourceError is raised if a document is invalid, or no type holds all values of an extra column.
    """
    if source.mapped:
        return source
    import pyarrow.compute  # noqa: F401 (its first import ends the process if threads have used up the memory)

    pieces = cut_source(source, folder)
    decoding = _Decoding(pieces=pieces, source=source, sync=engine.is_shared or not engine.is_local)
    decoding.run(engine, progress)
    _unify_types(decoding, folder, engine)
    inputs = _open_pieces(source, pieces)
    return replace(
        source,
        inputs=inputs,
        columns=COLUMNS._replace(extra=source.columns.extra, widths=source.columns.widths),
        counts=_sum_counts(pieces),
        rejections=_rejections_of(inputs, pieces) if source.skips else Rejections(),
    )


def _unify_types(decoding: _Decoding, folder: AnyPath, engine: Engine) -> None:
    """Give each extra column one type in all streams, in only one of the processes that share the work."""
    if not engine.is_shared:
        decoding.unify_types()
        return
    mark = folder / "types.unified"

    def is_marked() -> bool:
        return mark.is_file() and mark.read_bytes() == _digests(decoding.pieces)

    def unify() -> None:
        decoding.unify_types()
        store_at(folder).put(mark.name, _digests(decoding.pieces))

    run_once(engine, unify, is_marked)


def _open_pieces(source: Source, pieces: list[Piece]) -> tuple[Input, ...]:
    """Return the inputs of a source, with decoded streams in place of the inputs that were decoded."""
    inputs, opened = list(source.inputs), zip(pieces, open_all(pieces), strict=True)
    for number, of_input in groupby(opened, key=lambda pair: pair[0].input_number):
        origin, parts = inputs[number], [part for _, part in of_input]
        inputs[number] = MappedLists(
            file=origin.file,
            stores=tuple(store for part in parts for store in part.stores if len(store.ends)),
            columns=parts[0].columns,
            labels=any(part.labels for part in parts),
            origin=origin.reader.place,
            numbers_documents=origin.numbers_documents,
        )
    return tuple(inputs)


def _rejections_of(inputs: Sequence[Input], pieces: Sequence[Piece]) -> Rejections:
    """Return the rejected documents of decoded pieces, given the inputs that these were joined to."""
    first_lists = np.cumsum([0, *(input_.rows or 0 for input_ in inputs)])
    numbers, parts = array("q"), []
    for number, of_input in groupby(pieces, key=lambda piece: piece.input_number):
        first_list, lines = int(first_lists[number]), 0
        for piece in of_input:
            of_piece = piece.checkpoint()["rejected"]["lines"]
            before = None if of_piece is None else lines
            path, name = piece.rejected_path, piece.input.file.name
            parts.append(partial(rejections_in, path, name, first_list=first_list, lines_before=before))
            for one in parts[-1]():
                numbers.extend((one.document, REASONS.index(one.reason)))
            first_list += piece.open().rows
            lines += of_piece or 0
    return Rejections.of(numbers, parts)


def _sum_counts(pieces: list[Piece]) -> Counter[str]:
    """Return the sums of `Batch.counts` over a source."""
    total: Counter[str] = Counter()
    for checkpoint in _notes_of(pieces):
        total.update(checkpoint["counts"])
    return total


def _digests(pieces: Sequence[Piece]) -> bytes:
    return "\n".join(checkpoint["xxh3_128"] for checkpoint in _notes_of(pieces)).encode()


def _notes_of(pieces: Sequence[Piece]) -> list[Mapping[str, Any]]:
    return store_at(pieces[0].path.parent).each(Piece.checkpoint, pieces) if pieces else []


@dataclass(frozen=True, kw_only=True, slots=True)
class _Decoding:
    """Decodes the pieces of a source. Can be pickled."""

    pieces: list[Piece]
    source: Source
    sync: bool
    """Whether streams are synced."""
    threads: int = 1
    """Threads that decode a piece in another process: more than one if there are fewer pieces than workers."""

    def __call__(self, number: int) -> int:
        """Decode a piece in another process; return its number."""
        with closing(DecodePool(self.threads)) as pool:
            return self.decode(number, pool)

    def run(self, engine: Engine, progress: Progress) -> None:
        """Decode all pieces that are not decoded.

        Raises the first error in the order of the source. If processes share the work, only pieces of this process
        count.
        """
        numbers = range(len(self.pieces))
        runner, task = engine, self
        if self._is_worth_processes(engine):
            runner = Processes(workers=engine.workers)
            task = replace(self, threads=runner.threads(len(numbers)))
        report, assigned = self._reporter(progress), list[int]()
        report(-1, 0, 0)  # processes take seconds to start
        with closing(DecodePool(engine.workers)) as pool:
            try:
                for assigned in engine.assigned(numbers, self.decoded if engine.is_shared else lambda asked: ()):
                    for number in runner.run(task, assigned, report, local=partial(self.decode, pool=pool)):
                        if not runner.is_local:
                            report(number, self.pieces[number].input.file.bytes, self.documents_of(number))
            except SourceError:
                for number in without(assigned, self.decoded(assigned)):
                    self.decode(number, pool)
                raise

    def _is_worth_processes(self, engine: Engine) -> bool:
        """Whether so much text is left that processes are done earlier: threads wait for the interpreter's lock."""
        if self.source.encoder is None or engine.is_shared or not engine.is_local or engine.workers == 1:
            return False
        if len(self.pieces) == 1 or any(piece.input.file.path is None for piece in self.pieces):
            return False
        return sum(piece.input.file.bytes for piece in self.pieces if not piece.is_written()) >= WORTH_PROCESSES

    def decoded(self, numbers: Sequence[int]) -> list[int]:
        """Return which of these pieces have been decoded."""
        pieces = [self.pieces[number] for number in numbers]
        found = store_at(pieces[0].path.parent).each(Piece.is_written, pieces) if pieces else []
        return [number for number, is_decoded in zip(numbers, found, strict=True) if is_decoded]

    def unify_types(self) -> None:
        """Rewrite streams so that each extra column has one type, which holds all of its values in the source.

        Types are joined in the order of the source, so that they depend on its values alone. Raises a SourceError that
        names the first document that does not fit.
        """
        opened = open_all(self.pieces)
        streams = [
            (piece.input_number, number, part)
            for number, (piece, part) in enumerate(zip(self.pieces, opened, strict=True))
        ]
        mapped = [(at, -1, input_) for at, input_ in enumerate(self.source.inputs) if isinstance(input_, MappedLists)]
        joined: dict[str, pa.DataType] = {}
        for _, number, part in sorted([*streams, *mapped], key=itemgetter(0, 1)):
            for name in part.columns.extra:
                row = 0
                for (chunk,) in part.chunks(name):
                    kind = joined.get(name, pa.null())
                    with self._naming(number):
                        joined[name] = join_with(kind, chunk, name, first_row=row)
                    row += len(chunk)
        for number, (piece, part) in enumerate(zip(self.pieces, opened, strict=True)):
            schema = part.stores[0].schema  # a stream is one store
            types = {name: schema.field(name).type for name in part.columns.extra}
            if any(kind != joined.get(name, kind) for name, kind in types.items()):
                checkpoint = piece.checkpoint()
                with self._naming(number), atomic_write(piece.path) as temporary:
                    digest = rewrite([piece.path], temporary, joined)
                # Until then, the stream does not match its checkpoint.
                piece.write_checkpoint({**checkpoint, "xxh3_128": digest})

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the document in errors of a piece. Errors of a mapped input (-1) are left to `one_type`."""
        try:
            yield
        except DocumentError as fault:
            if number >= 0:
                fault.place = self.pieces[number].input.place(fault.row)
                raise self._described(fault, number) from None

    def decode(self, number: int, pool: DecodePool) -> int:
        """Decode a piece, unless its stream is intact; return its number. A SourceError if a document is invalid.

        Reports the bytes and documents of the piece that were read.
        """
        piece, source = self.pieces[number], self.source
        if piece.is_intact():
            CURRENT_TASK.report(piece.input.file.bytes, self.documents_of(number))
            return number
        counts = Counter[str]()

        def counted() -> Generator[Batch, None, None]:
            documents = 0
            for batch in piece.input.batches(pool):
                raise_if_interrupted()
                counts.update(batch.counts)
                yield batch
                documents += len(batch.input_ids)
                CURRENT_TASK.report(batch.done, documents)
            CURRENT_TASK.report(piece.input.file.bytes, documents)

        rejected: RejectedFile | None = None
        try:
            with closing(counted()) as batches, ExitStack() as stack:
                listing: Iterator[Batch] = batches
                if source.skips:
                    temporary = stack.enter_context(atomic_write(piece.rejected_path, sync=self.sync))
                    rejected = stack.enter_context(closing(RejectedFile(temporary, piece.input.reader.first_row)))
                    listing = rejected.pass_on(batches)
                has_labels = bool(piece.input.has_labels)
                digest = write_stream(piece.path, listing, piece.columns, has_labels=has_labels, sync=self.sync)
        except DocumentError as fault:
            if fault.place is None:  # in a column of the stream
                fault.place = piece.input.place(fault.row)
            raise self._described(fault, number) from None
        listed = None if rejected is None else rejected.checkpoint
        piece.write_checkpoint({"counts": counts, "xxh3_128": digest, "rejected": listed})
        return number

    def _reporter(self, progress: Progress) -> TaskSums:
        """Return a function that reports the progress of all pieces, of which the bytes and documents are added up."""
        stage = "decode" if self.source.encoder is None else "tokenize"
        total = sum(piece.input.file.bytes for piece in self.pieces)
        return TaskSums(lambda read, documents: progress(stage, *documents_of(documents, read, total)))

    def documents_of(self, number: int) -> int:
        """Return the number of documents of a decoded piece."""
        return self.pieces[number].open().rows

    def _described(self, fault: DocumentError, number: int) -> SourceError:
        """Return the error for users about a document of a piece."""
        if not all(piece.is_written() for piece in self.pieces[:number]):  # another task is still decoding these
            return fault.in_source(None)
        before = self.source.inputs[: self.pieces[number].input_number]
        mapped = sum(input_.rows or 0 for input_ in before if isinstance(input_, MappedLists))
        return fault.in_source(sum(map(self.documents_of, range(number))) + mapped + fault.row)
