"""Pieces of inputs that cannot be mapped: their streams, checkpoints, rejected documents and size."""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer.engines.checkpoints import Checkpoint, checkpoint_of
from packer.inputs.arrow_files import ArrowReader
from packer.inputs.column_types import join_with, widen
from packer.inputs.documents import (
    COLUMNS,
    Batch,
    Columns,
    SourceFile,
    reading_copy,
)
from packer.inputs.format_reader import DecodedInput
from packer.inputs.line_blocks import filled_line_numbers
from packer.inputs.list_checks import int32_lists, runs
from packer.inputs.token_tables import MappedLists
from packer.json_records import RejectedRecord
from packer.shards.files import HashingFile, matches
from packer.sources.source import Source
from packer.stores import AnyPath, each_opened_at
from packer.stores.local_files import local_copy
from packer.stores.store import store_at

_PIECE = 32 << 20  # bytes; small enough that all cores finish together, large enough that files are few
_PIECES = 1 << 12  # of a source, beyond one per file: a process may map 65,530 files


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of an input, and the stream that it is decoded into, which a checkpoint completes."""

    path: AnyPath
    made_from: str
    """Size of pieces and, of a dataset in memory, its content: a stream is used again if its checkpoint has the same.

    The folder of the streams belongs to one request, that is, to the same options and files.
    """
    input_number: int
    """Index of the input in the source."""
    input: DecodedInput
    """The piece, which can be read like any input."""
    columns: Columns
    """Columns of the stream."""

    def checkpoint(self) -> Mapping[str, Any]:
        """Return the facts of the checkpoint. Raises a FileNotFoundError if it is missing or does not fit."""
        checkpoint = checkpoint_of(store_at(self.path.parent).get(self.checkpoint_path.name))
        if checkpoint is None or checkpoint.facts["made_from"] != self.made_from:
            raise FileNotFoundError(errno.ENOENT, "there is no such checkpoint", str(self.checkpoint_path))
        return checkpoint.facts

    def is_written(self) -> bool:
        """Whether the file exists, made from the same input; its content is not compared."""
        try:
            return bool(self.checkpoint()) and self.path.is_file()
        except FileNotFoundError:
            return False

    def is_intact(self) -> bool:
        """Whether the stream, and the list of rejected documents if there is one, exist and match their hashes."""
        try:
            checkpoint = self.checkpoint()
        except FileNotFoundError:
            return False
        rejected = checkpoint.get("rejected")
        is_listed = rejected is None or matches(self.rejected_path, rejected["xxh3_128"])
        return is_listed and matches(self.path, checkpoint["xxh3_128"])

    def write_checkpoint(self, facts: Mapping[str, object]) -> None:
        """Mark the file as complete.

        `facts` has its hash, "xxh3_128"; of a stream also "counts", the sums of `Batch.counts`, and "rejected", see
        `RejectedFile`.
        """
        with atomic_write(self.checkpoint_path) as temporary:
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
            opened = ArrowReader.open_lists(SourceFile.of(self.path, str(self.path)), self.columns)
            assert isinstance(opened, MappedLists)
            return opened


def write_stream(
    path: AnyPath,
    batches: Iterable[Batch],
    columns: Columns,
    *,
    has_labels: bool,
    sync: bool = False,
) -> str:
    """Write the checked batches of an input as a stream, which gets its name when it is complete; return its hash.

    `columns` has the names in the stream. Raises a DocumentError if values of an extra column have no common type.
    Unless `sync`, the stream need not survive a crash of the system.
    """
    kinds: dict[str, pa.DataType] = {}  # that hold the values of all batches so far
    made = _record_batches(batches, columns, kinds, has_labels=has_labels)
    files: list[Path] = []
    with atomic_write(path, sync=sync) as temporary:
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
    """Yield documents as record batches, an empty one if there are none; extra columns have the types of their batch.

    `kinds` is updated to types that hold all of their values. A DocumentError is raised if there is none.
    """
    rows = 0
    for batch in batches:
        for name, values in batch.extra.items():
            kinds[name] = join_with(kinds.get(name, pa.null()), values, name, first_row=rows)
        lists = [batch.input_ids] if batch.labels is None else [batch.input_ids, batch.labels]
        for run in runs(batch.input_ids):
            arrays = [int32_lists(array[run]) for array in lists] + [values[run] for values in batch.extra.values()]
            yield pa.record_batch(arrays, names=[*columns[: 1 + has_labels], *batch.extra])
        rows += len(batch.input_ids)
    if not rows:
        types = dict.fromkeys(columns.wanted(has_labels=has_labels), pa.list_(pa.int32()))
        types |= dict.fromkeys(columns.extra, pa.null()) | kinds
        yield pa.RecordBatch.from_pylist([], schema=pa.schema(types))


def rewrite(files: Sequence[AnyPath], path: Path, kinds: Mapping[str, pa.DataType]) -> str:
    """Write the documents of several streams as one, with the extra columns converted to these types; return its hash.

    A DocumentError is raised if a type does not hold a value exactly.
    """
    row = 0
    with closing(HashingFile(path)) as file, ExitStack() as stack:
        copies = [stack.enter_context(local_copy(part)) for part in files]
        maps = [stack.enter_context(pa.memory_map(str(copy))) for copy in copies]
        streams = [pa.ipc.open_stream(each) for each in maps]
        schema = pa.schema([(field.name, kinds.get(field.name, field.type)) for field in streams[0].schema])
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in chain.from_iterable(streams):
                arrays = [
                    widen(array, field.type, field.name, first_row=row)
                    for array, field in zip(batch.columns, schema, strict=True)
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                row += len(batch)
    return file.hexdigest()


class RejectedFile(HashingFile):
    """File that lists the rejected documents of a piece, written while its batches pass.

    It has a line of JSON for each: [row in the piece, line in the piece or row in the file, reason, message].
    """

    def __init__(self, path: Path, first_row: int) -> None:
        super().__init__(path)
        self._first_row = first_row
        self._lines: int | None = None

    @property
    def checkpoint(self) -> dict[str, object]:
        """Facts of the checkpoint: the hash of the piece, and its lines, None if records are located by row."""
        return {"lines": self._lines, "xxh3_128": self.hexdigest()}

    def pass_on(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a piece, and list the rejected documents of each."""
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


def rejections_in(path: AnyPath, file: str, *, first_list: int, lines_before: int | None) -> Iterator[RejectedRecord]:
    """Yield what a `RejectedFile` lists; `document` is the number of a list of the source.

    The piece of the file begins after `first_list` lists of the source, and after `lines_before` lines of its file,
    None if records are located by row.
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
def atomic_write(path: AnyPath, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end, the file is put in place, synced if `sync`."""
    store = store_at(path.parent, sync=sync)
    if isinstance(path, Path):
        path.parent.mkdir(exist_ok=True)  # but not that of an output that was removed meanwhile
    with store.temporary(f".{path.name}") as temporary:  # hidden, so that it is removed if this process dies
        yield temporary
        store.put_file(path.name, temporary)


def cut_source(source: Source, folder: AnyPath) -> list[Piece]:
    """Cut the inputs that are not mapped into pieces, which depend on nothing but the files and the columns."""
    size = max(_PIECE, sum(file.bytes for file in source.files) // _PIECES)
    stored = COLUMNS._replace(extra=source.columns.extra)
    pieces = []
    for number, input_ in enumerate(source.inputs):
        if not isinstance(input_, DecodedInput):
            continue
        content = "" if input_.file.path is not None else source.fingerprint or uuid.uuid4().hex  # used once
        for part, piece in enumerate(input_.cut(size)):
            path = folder / f"{number:05d}-{part:05d}.arrow"
            made_from = f"{size} {content}"
            pieces.append(Piece(path=path, made_from=made_from, input_number=number, input=piece, columns=stored))
    return pieces


def open_all(pieces: Sequence[Piece]) -> list[MappedLists]:
    """Map the streams of all pieces, in object storage several at a time."""
    return each_opened_at(pieces[0].path, Piece.open, pieces) if pieces else []
