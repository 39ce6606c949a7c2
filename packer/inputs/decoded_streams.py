"""Write decoded documents as Arrow streams of int32 lists."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
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
from packer.stores.temporary_files import local_copy, temporary_file

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
    with atomic_write(path, sync=sync) as temporary:
        parts = _Parts(temporary, columns, has_labels=has_labels)
        try:
            for batch in batches:
                parts.write(batch)
            return parts.join()
        finally:
            parts.remove()


class _Parts:
    """A stream being written, with one file per run of batches whose extra columns have the same types."""

    def __init__(self, path: Path, columns: Columns, *, has_labels: bool) -> None:
        self._path = path
        self._extra = columns.extra
        self._tokens = [(column, pa.list_(pa.int32())) for column in columns[: 1 + has_labels]]
        self._files: list[Path] = []
        self._file: HashingFile | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._digest = ""  # of the last file closed
        self._last_kinds: dict[str, pa.DataType] = {}  # of the extra columns, in the last file
        self._kinds: dict[str, pa.DataType] = {}  # that hold the values of all files
        self.rows = 0

    def write(self, batch: Batch) -> None:
        """Append a batch; raises a DocumentError if no type holds its values and those before."""
        for number, tokens in enumerate(batch.input_ids):
            extra = {name: chunks[number] for name, chunks in batch.extra.items()}
            self._open(extra)
            assert self._writer is not None
            lists = [tokens] if batch.labels is None else [tokens, batch.labels[number]]
            for run in runs(tokens):
                arrays = [*(int32_lists(array[run]) for array in lists), *(values[run] for values in extra.values())]
                self._writer.write_batch(pa.record_batch(arrays, schema=self._schema(self._last_kinds)))
            self.rows += len(tokens)

    def _open(self, extra: dict[str, pa.Array]) -> None:
        """Begin a file unless the last one has the same types."""
        found = {name: values.type for name, values in extra.items()}
        if self._writer is not None and found == self._last_kinds:
            return
        for name, values in extra.items():
            kind = self._kinds.get(name, pa.null())
            self._kinds[name] = join_with(kind, values, name, first_row=self.rows)
        self._begin(found)

    def _begin(self, kinds: dict[str, pa.DataType]) -> None:
        self._close()
        self._last_kinds = kinds
        self._files.append(self._path.with_name(f"{self._path.name}.{len(self._files)}"))
        self._file = HashingFile(self._files[-1])
        self._writer = pa.ipc.new_stream(self._file, self._schema(kinds))

    def join(self) -> str:
        """Join all files into one stream and return its hash; a DocumentError if a value does not fit its column."""
        if not self._files:  # no documents, so that no column has a type
            self._kinds = dict.fromkeys(self._extra, pa.null())
            self._begin(self._kinds)
        self._close()
        if self._last_kinds == self._kinds and len(self._files) == 1:
            self._files[0].replace(self._path)
            return self._digest
        return rewrite(self._files, self._path, self._kinds)

    def remove(self) -> None:
        """Remove the files, even if a full disk makes closing them fail."""
        try:
            self._close()
        finally:
            for file in self._files:
                file.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._writer is not None and self._file is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
                self._digest = self._file.hexdigest()
            finally:
                self._file.close()

    def _schema(self, kinds: Mapping[str, pa.DataType]) -> pa.Schema:
        return pa.schema([*self._tokens, *kinds.items()])


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
