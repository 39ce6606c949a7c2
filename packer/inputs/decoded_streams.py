"""Write decoded documents as Arrow streams of int32 lists."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.errors import PackerError
from packer.gather import list_lengths
from packer.inputs.column_types import join_with, widen
from packer.inputs.documents import Batch, Columns
from packer.inputs.list_checks import runs, values_of
from packer.shards.files import HashingFile
from packer.stores import AnyPath, RemotePath
from packer.stores.local_files import local_copy, temporary_file

COLUMNS = Columns("input_ids", "labels")
"""Columns of a stream, except for preference pairs; labels only if the source has them."""


def write_stream(
    path: AnyPath,
    batches: Iterable[Batch],
    columns: Columns,
    *,
    has_labels: bool,
    sync: bool = False,
) -> str:
    """Write the checked batches of an input as a stream, which gets its name when it is complete; return its hash.

    `columns` has the names in the stream. Extra columns get types that hold all of their values; a DocumentError is
    raised for a value that no type of its column holds. Unless `sync`, the stream need not survive a crash of the
    system.
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
        for number, tokens in enumerate(batch.input_ids):
            extra = {name: chunks[number] for name, chunks in batch.extra.items()}
            for name, values in extra.items():
                kinds[name] = join_with(kinds.get(name, pa.null()), values, name, first_row=rows)
            lists = [tokens] if batch.labels is None else [tokens, batch.labels[number]]
            for run in runs(tokens):
                arrays = [*(int32_lists(array[run]) for array in lists), *(values[run] for values in extra.values())]
                yield pa.record_batch(arrays, names=[*columns[: 1 + has_labels], *extra])
            rows += len(tokens)
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


def int32_lists(lists: pa.Array) -> pa.Array:
    """Convert checked lists of tokens or labels to list<int32>."""
    offsets = np.concatenate([[0], np.cumsum(list_lengths(lists))])
    values = values_of(lists).cast(pa.int32(), safe=False)
    return pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), values)


@contextmanager
def atomic_write(path: AnyPath, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end, it is renamed to `path` (synced before if `sync`) or uploaded."""
    if isinstance(path, RemotePath):
        with temporary_file(path.name) as temporary:
            yield temporary
            path.upload(temporary)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise PackerError(
            f"{path}: cannot be written: {error.strerror or error}; free space there or choose another output"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
