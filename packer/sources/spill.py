"""Decode inputs that cannot be mapped: once, in parallel pieces, each to an Arrow stream with a checkpoint.

00003-00000.arrow     list<int32> `input_ids`, `labels` if the source has them, and the extra columns; LOSS_WEIGHTS if a
                      weight in any stream is neither 0 nor 1
00003-00000.rejected  rejected documents, if unusable ones are rejected; see `RejectedFile`
00003-00000.json      checkpoint with the origin of the stream and its hash; written last, so it marks the stream as
                      complete

types.unified         hashes of all streams whose extra columns have one type each; only if processes share the work

Nothing is synced. After a kill or a power failure, a stream is reused only if it matches its hash. If processes share
the work, streams are synced instead, and reused without a check.
"""

from __future__ import annotations

import errno
import json
import uuid
from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer.column_names import LOSS_WEIGHTS
from packer.engines.checkpoints import Checkpoint, checkpoint_of
from packer.engines.engine import DecodePool, Engine, run_once, without
from packer.engines.processes import Processes
from packer.errors import SourceError
from packer.json_records import REASONS, RejectedRecord
from packer.progress import Progress, TaskSums, documents_of, silent
from packer.shards.files import HashingFile, matches
from packer.signals import CURRENT_TASK, raise_if_interrupted
from packer.sources.arrow_files import ArrowReader
from packer.sources.column_types import join_with, widen
from packer.sources.documents import COLUMNS, Batch, Columns, DocumentError, SourceFile, reading_copy
from packer.sources.inputs import DecodedInput, Input, MappedLists, open_lists
from packer.sources.json_files import filled_line_numbers
from packer.sources.list_checks import int32_lists, runs, stored_weights
from packer.sources.source import Rejections, Source
from packer.stores import AnyPath, RemotePath
from packer.stores.buckets import opened_in_parallel
from packer.stores.local_files import local_copy
from packer.stores.store import store_at
from packer.token_memory.token_column import list_lengths

TEXT_PER_PROCESS = 1 << 25  # bytes of text files that are worth starting a process, which takes two seconds


def spill_source(
    source: Source,
    folder: AnyPath,
    progress: Progress = silent,
    *,
    engine: Engine = Engine(),  # noqa: B008 (immutable)
) -> Source:
    """Decode inputs that cannot be mapped to Arrow streams in `folder`; reuse complete streams from earlier runs.

    The returned source is mapped. It keeps the names and sizes of the original files, and the names of documents.
    Neither the streams nor the errors of a process depend on the engine. Progress is reported as "decode" or
    "tokenize", in documents. Raises a SourceError if a document is invalid, or if no type holds all values of an extra
    column.
    """
    if source.mapped:
        return source
    import pyarrow.compute  # noqa: F401 (importing it when threads have used up the memory would end the process)

    pieces = cut_source(source, folder)
    decoding = _Decoding(pieces=pieces, source=source, sync=engine.is_shared or not engine.is_local)
    decoding.run(engine, progress)
    _unify_types(decoding, folder, engine)
    inputs = _open_pieces(source, pieces)
    mapped = [input_ for input_ in inputs if isinstance(input_, MappedLists)]
    extra = dict.fromkeys(chain(source.columns.extra, *(input_.columns.extra for input_ in mapped)))
    counts = Counter[str]()
    for checkpoint in _notes_of(pieces):
        counts.update(checkpoint["counts"])
    return replace(
        source,
        inputs=inputs,
        columns=COLUMNS._replace(extra=(*extra,), widths=source.columns.widths),
        counts=counts,
        rejections=_rejections_of(inputs, pieces) if source.skips else Rejections(),
    )


def _unify_types(decoding: _Decoding, folder: AnyPath, engine: Engine) -> None:
    """Give each extra column one type in all streams. Only one of the processes that share the work does this."""
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
    """Return the inputs of a source, with decoded streams in place of inputs that were decoded."""
    inputs, opened = list(source.inputs), zip(pieces, _open_all(pieces), strict=True)
    for number, of_input in groupby(opened, key=lambda pair: pair[0].input_number):
        origin, parts = inputs[number], [part for _, part in of_input]
        inputs[number] = MappedLists(
            reader=origin.reader,
            stores=tuple(store for part in parts for store in part.stores if len(store.ends)),
            columns=parts[0].columns,
            labels=any(part.labels for part in parts),
            is_copy=True,
            numbers_documents=origin.numbers_documents,
        )
    return tuple(inputs)


def _rejections_of(inputs: Sequence[Input], pieces: Sequence[Piece]) -> Rejections:
    """Return the rejected documents of decoded pieces; `inputs` are the inputs made of these pieces."""
    first_lists = np.cumsum([0, *(input_.rows or 0 for input_ in inputs)])
    numbers, parts = array("q"), []
    for number, of_input in groupby(pieces, key=lambda piece: piece.input_number):
        first_list, lines = int(first_lists[number]), 0
        for piece in of_input:
            of_piece = piece.checkpoint()["rejected"]["lines"]
            before = None if of_piece is None else lines
            path, name = piece.rejected_path, piece.input.file.name
            parts.append(partial(_rejections_in, path, name, first_list=first_list, lines_before=before))
            for one in parts[-1]():
                numbers.extend((one.document, REASONS.index(one.reason)))
            first_list += piece.open().rows
            lines += of_piece or 0
    return Rejections.of(numbers, parts)


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
    """Number of threads that decode a piece in another process; more than one if workers outnumber processes."""

    def __call__(self, number: int) -> int:
        """Decode a piece in another process, and return its number."""
        with closing(DecodePool(self.threads)) as pool:
            return self.decode(number, pool)

    def run(self, engine: Engine, progress: Progress) -> None:
        """Decode all pieces that are not decoded yet.

        Raises the first error in source order. If processes share the work, raises only errors of the pieces of this
        process.
        """
        numbers = range(len(self.pieces))
        runner, task, threads = engine, self, engine.workers
        if (processes := self._processes(engine)) > 1:
            threads = engine.workers // processes
            runner, task = Processes(workers=processes, threads=threads), replace(self, threads=threads)
        stage = "decode" if self.source.encoder is None else "tokenize"
        total, assigned = sum(piece.input.file.bytes for piece in self.pieces), list[int]()
        report = TaskSums(lambda read, documents: progress(stage, *documents_of(documents, read, total)))
        report(-1, 0, 0)  # shows the stage while processes start, which takes seconds
        with closing(DecodePool(threads)) as pool:
            try:
                for assigned in engine.assigned(numbers, self.decoded if engine.is_shared else lambda asked: ()):
                    for number in runner.run(task, assigned, report, local=partial(self.decode, pool=pool)):
                        if not runner.is_local:
                            report(number, self.pieces[number].input.file.bytes, self.documents_of(number))
            except SourceError:
                for number in without(assigned, self.decoded(assigned)):
                    self.decode(number, pool)
                raise

    def _processes(self, engine: Engine) -> int:
        """Return how many processes tokenize; 1 if threads do, although these wait for the interpreter's lock."""
        is_text = self.source.encoder is not None and engine.is_local and not engine.is_shared
        if not is_text or any(piece.input.file.path is None for piece in self.pieces):
            return 1
        left = sum(piece.input.file.bytes for piece in self.pieces if not piece.is_written())
        return min(engine.workers, len(self.pieces), -(-left // TEXT_PER_PROCESS))

    def decoded(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers of the given pieces that have been decoded."""
        pieces = [self.pieces[number] for number in numbers]
        found = store_at(pieces[0].path.parent).each(Piece.is_written, pieces) if pieces else []
        return [number for number, is_decoded in zip(numbers, found, strict=True) if is_decoded]

    def unify_types(self) -> None:
        """Rewrite streams so that each extra column has one type, which holds all of its values in the source.

        If a stream has weights, all streams get that column. Types are joined in source order, so they depend only on
        the values. Raises a SourceError that names the first document that does not fit.
        """
        opened = _open_all(self.pieces)
        streams = [
            (piece.input_number, number, part)
            for number, (piece, part) in enumerate(zip(self.pieces, opened, strict=True))
        ]
        mapped = [(at, -1, input_) for at, input_ in enumerate(self.source.inputs) if isinstance(input_, MappedLists)]
        joined: dict[str, pa.DataType] = {}
        for _, number, part in sorted([*streams, *mapped], key=itemgetter(0, 1)):
            for name in part.columns.extra:
                row = 0
                for (chunk,) in part.arrays(name):
                    kind = joined.get(name, pa.null())
                    with self._naming(number):
                        joined[name] = join_with(kind, chunk, name, first_row=row)
                    row += len(chunk)
        for number, (piece, part) in enumerate(zip(self.pieces, opened, strict=True)):
            schema = part.stores[0].schema  # a stream is a single store
            types = {name: schema.field(name).type for name in part.columns.extra}
            is_unweighted = LOSS_WEIGHTS in joined and LOSS_WEIGHTS not in types
            if is_unweighted or any(kind != joined.get(name, kind) for name, kind in types.items()):
                checkpoint = piece.checkpoint()
                with self._naming(number), _atomic_write(piece.path) as temporary:
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
        """Decode a piece unless its stream is intact; return its number. Raises SourceError for an invalid document.

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
                    temporary = stack.enter_context(_atomic_write(piece.rejected_path, sync=self.sync))
                    rejected = stack.enter_context(closing(RejectedFile(temporary, piece.input.reader.first_row)))
                    listing = rejected.pass_on(batches)
                has_labels = bool(piece.input.has_labels)
                digest = write_stream(piece.path, listing, piece.columns, has_labels=has_labels, sync=self.sync)
        except DocumentError as fault:
            if fault.place is None:  # the fault is in a column of the stream
                fault.place = piece.input.place(fault.row)
            raise self._described(fault, number) from None
        listed = None if rejected is None else rejected.checkpoint
        piece.write_checkpoint({"counts": counts, "xxh3_128": digest, "rejected": listed})
        return number

    def documents_of(self, number: int) -> int:
        """Return the number of documents of a decoded piece."""
        return self.pieces[number].open().rows

    def _described(self, fault: DocumentError, number: int) -> SourceError:
        """Return an error about a document of a piece, for users."""
        if not all(piece.is_written() for piece in self.pieces[:number]):  # other tasks are still decoding
            return fault.in_source(None)
        before = self.source.inputs[: self.pieces[number].input_number]
        mapped = sum(input_.rows or 0 for input_ in before if isinstance(input_, MappedLists))
        return fault.in_source(sum(map(self.documents_of, range(number))) + mapped + fault.row)


_PIECE = 8 << 20  # bytes per piece; small enough that all cores finish together, large enough that files are few
_PIECES = 1 << 12  # maximum number of pieces besides one per file: a process may map 65,530 files


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of an input, and the stream to which it is decoded; a checkpoint marks the stream as complete."""

    path: AnyPath
    made_from: str
    """Size of pieces and, for a dataset in memory, its content.

    A stream is reused if its checkpoint has the same value. Options and files are the same, because the folder of
    streams belongs to one request.
    """
    input_number: int
    """Index of the input in the source."""
    input: DecodedInput
    """The piece, readable like any input."""
    columns: Columns
    """Columns of the stream."""

    def checkpoint(self) -> Mapping[str, Any]:
        """Return the facts of the checkpoint. Raises a FileNotFoundError if it is missing or from another input."""
        checkpoint = checkpoint_of(store_at(self.path.parent).get(self.checkpoint_path.name))
        if checkpoint is None or checkpoint.facts["made_from"] != self.made_from:
            raise FileNotFoundError(errno.ENOENT, "there is no such checkpoint", str(self.checkpoint_path))
        return checkpoint.facts

    def is_written(self) -> bool:
        """Whether the file exists and was made from the same input. Its content is not compared."""
        try:
            return bool(self.checkpoint()) and self.path.is_file()
        except FileNotFoundError:
            return False

    def is_intact(self) -> bool:
        """Whether the stream, and the list of rejected documents if any, exist and match their hashes."""
        try:
            checkpoint = self.checkpoint()
        except FileNotFoundError:
            return False
        rejected = checkpoint.get("rejected")
        is_listed = rejected is None or matches(self.rejected_path, rejected["xxh3_128"])
        return is_listed and matches(self.path, checkpoint["xxh3_128"])

    def write_checkpoint(self, facts: Mapping[str, object]) -> None:
        """Mark the file as complete.

        `facts` has the hash of the file, "xxh3_128". For a stream, it also has "counts", the sums of `Batch.counts`,
        and "rejected", from `RejectedFile.checkpoint`.
        """
        with _atomic_write(self.checkpoint_path) as temporary:
            temporary.write_bytes(Checkpoint(facts={**facts, "made_from": self.made_from}).to_bytes())

    @property
    def checkpoint_path(self) -> AnyPath:
        """Path of the checkpoint."""
        return self.path.with_suffix(".json")

    @property
    def rejected_path(self) -> AnyPath:
        """Path of the list of rejected documents."""
        return self.path.with_suffix(".rejected")

    def open(self) -> MappedLists:
        """Map the stream."""
        with reading_copy(self.path.parent, self.input.file.name):
            reader, columns = ArrowReader.open(SourceFile.of(self.path, str(self.path))), self.columns
            if LOSS_WEIGHTS in reader.names:
                columns = columns._replace(extra=(*columns.extra, LOSS_WEIGHTS))
            opened = open_lists(reader.for_lists(columns), columns, in_place=True, skips=False)
            assert isinstance(opened, MappedLists)
            return opened


def write_stream(
    path: AnyPath, batches: Iterable[Batch], columns: Columns, *, has_labels: bool, sync: bool = False
) -> str:
    """Write the checked batches of an input as a stream, which is renamed when complete. Returns its hash.

    `columns` are the columns of the stream. Raises a DocumentError if values of an extra column have no common type.
    Without `sync`, the stream need not survive a crash of the system.
    """
    kinds: dict[str, pa.DataType] = {}  # types that hold the values of all batches so far
    made = _record_batches(batches, columns, kinds, has_labels=has_labels)
    files: list[Path] = []
    with _atomic_write(path, sync=sync) as temporary:
        try:
            for schema, run in groupby(made, key=attrgetter("schema")):
                files.append(temporary.with_name(f"{temporary.name}.{len(files)}"))
                with closing(HashingFile(files[-1])) as file:
                    with pa.ipc.new_stream(file, schema) as writer:
                        for batch in run:
                            writer.write_batch(batch)
                    digest = file.hexdigest()
            if len(files) > 1:
                return rewrite(files, temporary, kinds)
            files[0].replace(temporary)
            return digest
        finally:
            for part in files:
                part.unlink(missing_ok=True)


def _record_batches(
    batches: Iterable[Batch], columns: Columns, kinds: dict[str, pa.DataType], *, has_labels: bool
) -> Iterator[pa.RecordBatch]:
    """Yield documents as record batches, an empty one if there are none. Extra columns have the types of their batch.

    `kinds` is updated to types that hold all values. Raises a DocumentError if there is no such type.
    """
    rows = 0
    for batch in batches:
        for name, values in batch.extra.items():
            kinds[name] = join_with(kinds.get(name, pa.null()), values, name, first_row=rows)
        lists = [batch.input_ids] if batch.labels is None else [batch.input_ids, batch.labels]
        for run in runs(list_lengths(batch.input_ids)):
            arrays = [int32_lists(array[run]) for array in lists] + [values[run] for values in batch.extra.values()]
            yield pa.record_batch(arrays, names=[*columns[: 1 + has_labels], *batch.extra])
        rows += len(batch.input_ids)
    if not rows:
        types = dict.fromkeys(columns.wanted(has_labels=has_labels), pa.list_(pa.int32()))
        types |= dict.fromkeys(columns.extra, pa.null()) | kinds
        yield pa.RecordBatch.from_pylist([], schema=pa.schema(types))


def rewrite(files: Sequence[AnyPath], path: Path, kinds: Mapping[str, pa.DataType]) -> str:
    """Write the documents of several streams as one, with extra columns converted to these types. Returns its hash.

    If there are weights, streams without their column get it. Raises a DocumentError if a type does not represent a
    value exactly.
    """
    row = 0
    with closing(HashingFile(path)) as file, ExitStack() as stack:
        copies = [stack.enter_context(local_copy(part)) for part in files]
        maps = [stack.enter_context(pa.memory_map(str(copy))) for copy in copies]
        streams = [pa.ipc.open_stream(each) for each in maps]
        fields = {field.name: kinds.get(field.name, field.type) for field in streams[0].schema}
        fields |= {LOSS_WEIGHTS: kinds[LOSS_WEIGHTS]} if LOSS_WEIGHTS in kinds else {}
        schema = pa.schema([*fields.items()])
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in chain.from_iterable(streams):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                if LOSS_WEIGHTS in fields and LOSS_WEIGHTS not in columns:
                    columns[LOSS_WEIGHTS] = stored_weights(Batch(columns["input_ids"], columns.get("labels"), 0))
                arrays = [widen(columns[name], kind, name, first_row=row) for name, kind in fields.items()]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                row += len(batch)
    return file.hexdigest()


class RejectedFile(HashingFile):
    """File that lists the rejected documents of a piece; it is written while the batches pass.

    Each has a line of JSON: [row in the piece, line in the piece or row in the file, reason, message].
    """

    def __init__(self, path: Path, first_row: int) -> None:
        super().__init__(path)
        self._first_row = first_row
        self._lines: int | None = None

    @property
    def checkpoint(self) -> dict[str, object]:
        """Facts for the checkpoint: hash of the file, and lines in the piece (None if records are located by row)."""
        return {"lines": self._lines, "xxh3_128": self.hexdigest()}

    def pass_on(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a piece unchanged, and list the rejected documents of each."""
        first_row = first_record = 0
        for batch in batches:
            rows = np.array([one.row for one in batch.rejected], np.int64)
            records = (rows if batch.records is None else batch.records[rows]).tolist()
            places = [self._first_row + first_record + record for record in records]
            if batch.lines is not None:
                self._lines = self._lines or 0
                if batch.rejected:
                    numbers = filled_line_numbers(batch.lines)
                    places = [self._lines + numbers[record] for record in records]
                self._lines += batch.lines.count(b"\n")
            for one, place in zip(batch.rejected, places, strict=True):
                self.write(json.dumps([first_row + one.row, place, one.reason, one.message]).encode() + b"\n")
            first_row += len(batch.input_ids)
            first_record += batch.record_count
            yield batch


def _rejections_in(path: AnyPath, file: str, *, first_list: int, lines_before: int | None) -> Iterator[RejectedRecord]:
    """Yield the entries of a `RejectedFile`; `document` is the number of a list of the source.

    The piece begins after `first_list` lists of the source, and after `lines_before` lines of its file (None if records
    are located by row).
    """
    with path.open("rb") as lines:
        for content in lines:
            row, place, reason, message = json.loads(content)
            line = None if lines_before is None else lines_before + place
            yield RejectedRecord(
                document=first_list + row,
                file=file,
                line=line,
                row=place if line is None else None,
                reason=reason,
                message=message,
            )


@contextmanager
def _atomic_write(path: AnyPath, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to. At the end, the file is moved into place; it is synced if `sync`."""
    store = store_at(path.parent, sync=sync)
    if isinstance(path, Path):
        path.parent.mkdir(exist_ok=True)  # without parents: the output may have been removed in the meantime
    with store.temporary(f".{path.name}") as temporary:  # hidden, so that it is removed if this process dies
        yield temporary
        store.put_files({path.name: temporary})


def cut_source(source: Source, folder: AnyPath) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces. The cuts depend only on the files and the columns."""
    size = max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)
    stored = COLUMNS._replace(extra=source.columns.extra)
    pieces = []
    for number, input_ in enumerate(source.inputs):
        if not isinstance(input_, DecodedInput):
            continue
        content = "" if input_.file.path is not None else source.fingerprint or uuid.uuid4().hex  # unique
        for part, piece in enumerate(input_.cut(size)):
            path = folder / f"{number:05d}-{part:05d}.arrow"
            made_from = f"{size} {content}"
            pieces.append(Piece(path=path, made_from=made_from, input_number=number, input=piece, columns=stored))
    return pieces


def _open_all(pieces: Sequence[Piece]) -> list[MappedLists]:
    """Map the streams of all pieces; in object storage, several at the same time."""
    is_remote = any(isinstance(piece.path, RemotePath) for piece in pieces)
    return opened_in_parallel(Piece.open, pieces) if is_remote else [piece.open() for piece in pieces]
