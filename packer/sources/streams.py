"""Write decoded documents as Arrow streams of int32 lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.errors import PackerError
from packer.gather import list_lengths
from packer.shards.files import HashingFile
from packer.sources.documents import Batch, Columns, DocumentError, value_message
from packer.sources.lengths import runs, values_of

COLUMNS = Columns("input_ids", "labels")
"""The columns of a stream; labels where the source has them."""


def write_stream(path: Path, batches: Iterable[Batch], columns: Columns, *, has_labels: bool) -> str:
    """Write one input's checked batches, `columns` in its messages; the stream takes its name when it is whole.

    It is not synced: it need not outlive the system.

    Returns:
        Hash of the stream: xxh3-128, hexadecimal.

    Raises:
        DocumentError: a value does not fit int32.
        PackerError: the file cannot be written.
    """
    fields = [(column, pa.list_(pa.int32())) for column in COLUMNS[: 1 + has_labels]]
    row = 0
    with appearing(path) as temporary, closing(HashingFile(temporary)) as file, ExitStack() as stack:
        writer = None
        names = columns.input_ids, columns.labels
        for batch in batches:
            if writer is None:  # the types of the other columns are those that come
                schema = pa.schema([*fields, *((name, chunks[0].type) for name, chunks in batch.extra.items())])
                writer = stack.enter_context(pa.ipc.new_stream(file, schema))
            for number, tokens in enumerate(batch.input_ids):
                lists = [tokens] if batch.labels is None else [tokens, batch.labels[number]]
                for run in runs(tokens):
                    arrays = [
                        _int32_lists(array[run], column, row + run.start, label=column != columns.input_ids)
                        for array, column in zip(lists, names, strict=False)
                    ]
                    arrays += [chunks[number][run] for chunks in batch.extra.values()]
                    writer.write_batch(pa.record_batch(arrays, schema=schema))
                row += len(tokens)
        if writer is None:  # no documents, of which a column's type could be known
            pa.ipc.new_stream(file, pa.schema([*fields, *((name, pa.null()) for name in columns.extra)])).close()
    return file.hexdigest()


def _int32_lists(lists: pa.Array, column: str, first_row: int, *, label: bool) -> pa.Array:
    """Return the same lists as list<int32>; raises a DocumentError where a value does not fit."""
    lengths = list_lengths(lists)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = values_of(lists)
    try:
        return pa.ListArray.from_arrays(as_arrow(offsets.astype(np.int32)), values.cast(pa.int32()))
    except pa.ArrowInvalid:
        wide = values.to_numpy(zero_copy_only=False)
        position = int(np.flatnonzero((wide > np.iinfo(np.int32).max) | (wide < np.iinfo(np.int32).min))[0])
        row = int(np.searchsorted(offsets, position, side="right")) - 1
        message = value_message(column, int(wide[position]), position - int(offsets[row]), label=label)
        raise DocumentError(first_row + row, message) from None


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; what is there at the end takes the path's name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise PackerError(
            f"{path}: cannot be written: {error.strerror or error}; free space there or choose another output"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
