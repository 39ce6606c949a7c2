"""Decode what cannot be mapped, once: Arrow streams of int32 lists, each with a note of what it was made from.

00003.arrow   list<int32> `input_ids`, and `labels` where the source has them
00003.json    name, size and mtime of the original: written after the stream, so a stream without it does not count
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.gather import list_lengths
from packer.progress import Progress
from packer.sources.documents import Columns, Input, TokenTable, value_message
from packer.sources.ipc import open_ipc

if TYPE_CHECKING:
    from packer.sources.source import Source

_COLUMNS = Columns("input_ids", "labels")
_VALUES = 1 << 22  # values of a record batch: 16 MB, far from where int32 offsets end


def spill_inputs(source: Source, folder: Path, progress: Progress) -> tuple[Input, ...]:
    """Replace every input that is not mapped by a mapped copy in `folder`; see `Source.spill`."""
    total = sum(given.file.bytes for given in source.inputs if not given.mapped)
    finished = first_document = 0
    inputs: list[Input] = []
    for number, given in enumerate(source.inputs):
        if given.mapped:
            inputs.append(given)
        else:
            stream = folder / f"{number:05d}.arrow"
            note = _note(given, source)
            if not _is_made(stream, note):
                tables = _told(source.input_tables(number, first_document), progress, finished, total)
                _decode(tables, source, bool(given.has_labels), stream)
                _write(stream.with_suffix(".json"), json.dumps(note).encode())
            inputs.append(open_ipc(stream, stream.name, _COLUMNS, origin=given))
            finished += given.file.bytes
            progress("decode", finished, total)
        first_document += inputs[-1].rows or 0
    return tuple(inputs)


def _told(
    tables: Iterator[tuple[TokenTable, int]], progress: Progress, finished: int, total: int
) -> Iterator[TokenTable]:
    for table, done in tables:
        progress("decode", finished + done, total)
        yield table


def _note(given: Input, source: Source) -> dict[str, Any]:
    """What a decoded copy is made from; the copy is used again only where all of it agrees."""
    assert given.path is not None
    stat = given.path.stat()
    return {
        "name": given.file.name,
        "bytes": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "columns": list(source.columns),
        "labels": bool(given.has_labels),
    }


def _is_made(stream: Path, note: dict[str, Any]) -> bool:
    """Whether the stream is there, whole, made from what the note says."""
    try:
        return stream.exists() and bool(json.loads(stream.with_suffix(".json").read_bytes()) == note)
    except (OSError, ValueError):
        return False


def _decode(tables: Iterator[TokenTable], source: Source, has_labels: bool, stream: Path) -> None:
    """Write the tables as one Arrow stream, which appears under its name when it is whole."""
    schema = pa.schema([(column, pa.list_(pa.int32())) for column in _COLUMNS[: 1 + has_labels]])
    with (
        _appearing(stream) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_stream(file, schema) as writer,
    ):
        for table in tables:
            first = table.first_document
            labels = table.labels.owners if table.labels is not None else ()
            for number, tokens in enumerate(table.input_ids.owners):
                for start, stop in _runs(tokens):
                    pairs = zip(source.columns, (tokens, *labels[number : number + 1]), strict=False)
                    arrays = [
                        _int32_lists(array.slice(start, stop - start), source, column, first + start)
                        for column, array in pairs
                    ]
                    writer.write_batch(pa.record_batch(arrays, schema=schema))
                first += len(tokens)


def _runs(lists: pa.Array) -> Iterator[tuple[int, int]]:
    """Cut lists into runs of about `_VALUES` values, so that int32 offsets always do; a longer list is a run."""
    ends = np.cumsum(list_lengths(lists))
    start = 0
    while start < len(lists):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + _VALUES, side="right")), start + 1)
        yield start, stop
        start = stop


def _int32_lists(lists: pa.Array, source: Source, column: str, first_document: int) -> pa.Array:
    """Return the same lists as list<int32>; raises a SourceError where a value does not fit."""
    lengths = list_lengths(lists)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    is_fixed = pa.types.is_fixed_size_list(lists.type)
    first = lists.offset * lists.type.list_size if is_fixed else lists.offsets[0].as_py()
    values = lists.values.slice(first, int(offsets[-1]))
    try:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.cast(pa.int32()))
    except pa.ArrowInvalid:
        wide = values.to_numpy(zero_copy_only=False)
        position = int(np.flatnonzero((wide > np.iinfo(np.int32).max) | (wide < np.iinfo(np.int32).min))[0])
        row = int(np.searchsorted(offsets, position, side="right")) - 1
        where = source.describe(first_document + row)
        is_label = column == source.columns.labels
        message = value_message(column, int(wide[position]), position - int(offsets[row]), label=is_label)
        raise SourceError(f"{where}: {message}") from None


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; what is there at the end is synced and takes the path's name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for synced in (temporary, path.parent):
            descriptor = os.open(synced, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if synced is temporary:
                temporary.replace(path)
    except OSError as error:
        raise PackerError(
            f"{path}: cannot be written: {error.strerror or error}; free space there or choose another output"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with _appearing(path) as temporary:
        temporary.write_bytes(content)
