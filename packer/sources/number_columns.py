"""Whole numbers: document lengths without tokens, and the columns of `--limit`.

Lengths are in a column, in an array in a .npy file, or in a histogram, whose records have a length and a number of
documents. They become lists without values, so that the usual code for lists works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar
from packer.arrow import compute as pc
from packer.errors import PackerError, SourceError
from packer.options import ReadOptions
from packer.sources.arrow_files import ArrowReader, TableInMemory
from packer.sources.column_types import cast_to_common_type, is_string, number_fault, shown, wrong_numbers
from packer.sources.documents import LONGEST, Columns, DocumentError, Found, SourceFile, reading
from packer.sources.format_reader import Reader
from packer.sources.inputs import Input, check_types, open_lists
from packer.sources.list_checks import values_of_column
from packer.sources.source import Source
from packer.sources.text_files import CsvFile
from packer.sources.token_files import ARRAY_COLUMN, read_header
from packer.stores import AnyPath
from packer.stores.paths import expanded
from packer.token_memory.token_column import NO_BYTES

ARRAY = ".npy"
"""Ending of NumPy files with an array."""

HISTOGRAM = "length,count"
"""Header of a histogram in a CSV file."""

_LISTS = "input_ids"
_MOST = 1 << 28  # maximum number of documents of a histogram: 3 GB


def is_array_file(source: object) -> bool:
    """Whether a source is a .npy file, which holds lengths."""
    return isinstance(source, (str, Path)) and str(source).endswith(ARRAY)


def is_histogram(source: object) -> bool:
    """Whether a source is a CSV file with lengths and their numbers of documents."""
    if not isinstance(source, (str, Path)) or not (path := Path(expanded(source))).name.lower().endswith(".csv"):
        return False
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(100).decode("utf-8-sig", "replace").strip() == HISTOGRAM


def open_lengths(found: Found, readers: Sequence[Reader], options: ReadOptions) -> Source:
    """Open a source whose documents have lengths (from a column) and kept columns, but no tokens.

    The source takes 8 bytes of memory per document plus the kept columns. The column "length,count" stands for a
    histogram.
    """
    column, keep = options.lengths_column, options.value_columns
    assert column is not None
    if column == HISTOGRAM and keep:
        raise PackerError(f"{found.name} is a histogram, which has no {', '.join(keep)}: give the dataset")
    columns = Columns(_LISTS, "", tuple(keep))
    inputs = found.each(lambda reader: _of_reader(reader.for_records(), column, columns), readers)
    check_types(found.name, columns.extra, inputs, options.number_columns)
    return Source(name=found.name, inputs=tuple(inputs), columns=columns)


def open_array(path: AnyPath, keep: Sequence[str]) -> Source:
    """Open a .npy file with document lengths as a one-dimensional array."""
    if keep:
        raise PackerError(f"{path.name} holds lengths and no columns: leave out {', '.join(keep)}")
    if not path.is_file():
        raise PackerError(f"{path}: no such file; check the path")
    with reading(path.name), path.open("rb") as file:
        shape, dtype = read_header(file)
        if len(shape) != 1 or dtype.kind not in "iu":
            raise SourceError(f"{path.name}: {dtype} of shape {list(shape)}; expected whole numbers in one dimension")
        content = file.read()
    if len(content) != shape[0] * dtype.itemsize:
        raise SourceError(
            f"{path.name}: its header names {shape[0]:,} values of {dtype.itemsize} bytes, and {len(content):,} bytes "
            "follow; write it again with numpy.save"
        )
    native = as_arrow(np.frombuffer(content, dtype).astype(dtype.newbyteorder("=")))
    try:
        lengths = _whole_numbers(native, ARRAY_COLUMN, in_text=False)
    except DocumentError as fault:
        raise SourceError(f"{path.name} row {fault.row}: {fault.message}") from None
    documents = _input(SourceFile.of(path, path.name), [lengths], {})
    return Source(name=path.name, inputs=(documents,), columns=Columns(_LISTS, ""))


def _of_reader(reader: Reader, column: str, columns: Columns) -> Input:
    """Read the lengths and kept columns of a file."""
    counted = column == HISTOGRAM
    wanted = tuple(HISTOGRAM.split(",") if counted else dict.fromkeys((column, *columns.extra)))
    in_text = isinstance(reader, CsvFile)
    reader.require(wanted)
    lengths, row = [], 0
    kept: dict[str, list[pa.Array]] = {name: [] for name in columns.extra}
    try:
        for batch in _batches(reader, wanted):
            numbers = [_whole_numbers(batch[name], name, in_text=in_text) for name in wanted[: 2 if counted else 1]]
            documents = int(numbers[-1].sum(dtype=np.int64)) if counted else 0
            if documents > _MOST:
                raise SourceError(
                    f"{reader.file.name} counts {documents:,} documents, and a histogram may have {_MOST:,}: divide "
                    "all counts by the same number"
                )
            lengths.append(np.repeat(*numbers) if counted else numbers[0])
            for name, chunks in kept.items():
                chunks.append(batch[name])
            row += len(batch[wanted[0]])
    except DocumentError as fault:
        raise SourceError(f"{reader.place(row + fault.row)}: {fault.message}") from None
    joined = {name: pa.chunked_array(cast_to_common_type(chunks, name)) for name, chunks in kept.items() if chunks}
    extra = {name: joined.get(name, pa.nulls(0)) for name in kept}
    return _input(reader.file, lengths, extra)


def _batches(reader: Reader, wanted: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
    """Yield the wanted columns of the records of a file, block by block."""
    for block, _ in reader.blocks(wanted):
        try:
            records, faults = reader.records(block, wanted)
            if faults:
                raise faults[min(faults)]
            if not isinstance(records, pa.RecordBatch) and not isinstance(reader, CsvFile):  # CSV values are strings
                _check_lengths([record.get(wanted[0]) for record in records], wanted[0])
            yield {name: values_of_column(records, name) for name in wanted}
        except pa.ArrowException as error:
            raise SourceError(f"{reader.file.name}: {str(error).splitlines()[0]}") from error


def _check_lengths(values: Sequence[object], column: str) -> None:
    """Raise a DocumentError for the first value from JSON that is neither a length nor null."""
    for row, value in enumerate(values):
        if value is not None and type(value) is not int:  # isinstance would accept a bool
            raise DocumentError(row, f"'{column}' is {shown(value)}; expected a whole number")
        if value is not None and not 0 <= value <= LONGEST:
            raise DocumentError(row, f"'{column}' is {shown(value)}; expected 0 to {LONGEST}")


def _input(file: SourceFile, lengths: Sequence[NDArray[np.int32]], extra: Mapping[str, pa.ChunkedArray]) -> Input:
    """Return documents of these lengths as lists. Their values take no memory."""
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int32), *lengths]), dtype=np.int64)])
    values = pa.Array.from_buffers(NO_BYTES, int(offsets[-1]), [None, pa.py_buffer(b"")])
    table = pa.table({_LISTS: pa.LargeListArray.from_arrays(as_arrow(offsets), values), **extra})
    lists = ArrowReader.of_lists(file, TableInMemory.of(table, table.column_names, (_LISTS,)), has_labels=False)
    return open_lists(lists, Columns(_LISTS, "", tuple(extra)), in_place=True, skips=False)


def _whole_numbers(values: pa.Array, column: str, *, in_text: bool) -> NDArray[np.int32]:
    """Return values of a column as numbers, shape (values,). `in_text`: strings of digits are numbers, as in CSV.

    Raises a DocumentError with the index of a value that is missing, negative, too large or fractional.
    """
    if in_text and is_string(values.type):
        is_number = pc.match_substring_regex(values, r"^\d{1,18}$")
        for wrong in np.flatnonzero(~as_numpy(is_number.fill_null(as_scalar(1, pa.bool_()))))[:1].tolist():
            raise DocumentError(wrong, f"'{column}' is {str(values[wrong])[:40]!a}; expected a whole number")
        values = pc.cast(values, pa.int64())
    if not (pa.types.is_integer(values.type) or values.null_count == len(values) > 0):
        raise DocumentError(0, f"'{column}' holds {values.type}; expected whole numbers")
    for row in wrong_numbers(values)[:1].tolist():
        raise number_fault(values, row, column)
    return as_numpy(values).astype(np.int32)
