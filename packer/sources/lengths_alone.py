"""Documents whose lengths alone are known: a column of numbers, an array in a .npy file, or a histogram in a CSV file.

Columns and arrays become lists whose values take no bytes, so they have everything except tokens: lengths and other
columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.errors import PackerError, SourceError
from packer.gather.token_column import NO_BYTES
from packer.paths import PathList
from packer.sources.columns.column_checks import check_types
from packer.sources.columns.column_types import as_plain, cast_to_common_type, infer, shown
from packer.sources.columns.number_columns import whole_numbers
from packer.sources.documents import LONGEST, Columns, DocumentError, SourceFile, reading
from packer.sources.files.file_access import require_regular
from packer.sources.formats import InputFormat
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mapped.record_batches import TableInMemory
from packer.sources.readers.csv_files import CsvFile
from packer.sources.readers.format_reader import Reader
from packer.sources.source import Source
from packer.sources.tokenized_source import find_source, for_each_file
from packer.stores import AnyPath, any_path

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

ARRAY = ".npy"
"""Ending of files of NumPy that hold an array."""

ARRAY_COLUMN = "lengths"
"""Column name that stands for the array of a .npy file."""

_LISTS = "input_ids"

HEADER = ["length", "count"]

_MOST = 2**53  # tokens in all; doubles represent every integer up to it


def is_array_file(source: object) -> bool:
    """Whether a source is a .npy file, which holds lengths."""
    return isinstance(source, (str, Path)) and str(source).endswith(ARRAY)


def open_lengths(
    source: str | Path | PathList | Dataset | DatasetDict, column: str, keep: Sequence[str], *, split: str | None = None
) -> Source:
    """Open a source of lengths: documents that have lengths and kept columns, but no tokens.

    It holds 8 bytes for each document, and its kept columns.

    Args:
        source: as for `open_source`; or the path of a .npy file with an array of one dimension.
        column: column with the number of tokens of each document.
        keep: other columns to keep, with a value for each document.
        split: as for `open_source`.

    Raises:
        PackerError: the path, the split or a column does not exist.
        SourceError: a file is damaged, or a length is missing, negative or not a whole number.
    """
    columns = Columns(_LISTS, "", tuple(keep))
    if is_array_file(source):
        path = any_path(str(source))
        return Source(path.name, (_of_array(path, columns),), columns)
    found = find_source(source, split)
    if found.table is not None:
        inputs = [_of_table(found.table.table, found.name, column, columns)]
    else:
        inputs = for_each_file(lambda kind, path, name: _of_file(kind, path, name, column, columns), found)
    check_types(found.name, columns.extra, [(input_.file.name, input_.declared_types) for input_ in inputs])
    return Source(found.name, tuple(inputs), columns, found.indices)


def _of_array(path: AnyPath, columns: Columns) -> MappedLists:
    if columns.extra:
        raise PackerError(f"{path.name} holds lengths and no columns: leave out {', '.join(columns.extra)}")
    if not path.is_file():
        raise PackerError(f"{path}: no such file; check the path")
    with reading(path.name), path.open("rb") as file:
        shape, dtype = _header(file)
        if len(shape) != 1 or dtype.kind not in "iu":
            raise SourceError(f"{path.name}: {dtype} of shape {list(shape)}; expected whole numbers in one dimension")
        content = file.read()
    if len(content) != shape[0] * dtype.itemsize:
        raise SourceError(
            f"{path.name}: its header names {shape[0]:,} values of {dtype.itemsize} bytes, and {len(content):,} bytes "
            "follow; write it again with numpy.save"
        )
    native = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
    return _input(_file(path, path.name), path, [{ARRAY_COLUMN: as_arrow(native)}], ARRAY_COLUMN, columns)


def _header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of a .npy file; return the shape and the type of its array.

    Raises:
        ValueError: the header is damaged.
    """
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"a .npy file of version {'.'.join(map(str, version))}; expected 1.0 or 2.0")
    try:
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy evaluates the header as Python: TokenError, OverflowError, AttributeError ...
        raise ValueError(f"the header does not describe an array ({type(error).__name__})") from error
    return shape, dtype


def _of_table(table: pa.Table, name: str, column: str, columns: Columns) -> MappedLists:
    wanted = (column, *columns.extra)
    for each in wanted:
        if each not in table.column_names:
            raise PackerError(f"{name}: no column '{each}' (found: {', '.join(table.column_names)})")
    chosen = table.select(dict.fromkeys(wanted))
    batches = [{each: as_plain(batch[each]) for each in wanted} for batch in chosen.to_batches()]
    return _input(SourceFile(name=name, bytes=chosen.nbytes), None, batches, column, columns)


def _of_file(kind: InputFormat, path: AnyPath, name: str, column: str, columns: Columns) -> MappedLists:
    reader = kind.open_records(path, name)
    wanted = tuple(dict.fromkeys((column, *columns.extra)))
    reader.require(wanted)
    return _input(_file(path, name), path, list(_batches(reader, wanted)), column, columns, reader)


def _batches(reader: Reader, wanted: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
    """Yield the wanted columns of the records of a file, block by block."""
    row = 0
    for block, _ in reader.blocks(wanted):
        try:
            records = reader.records(block, wanted)
            if isinstance(records, pa.RecordBatch):
                arrays = {name: as_plain(records.column(name)) for name in wanted}
            else:
                if not isinstance(reader, CsvFile):  # whose values are strings
                    _check_lengths([record.get(wanted[0]) for record in records], wanted[0])
                arrays = {name: infer([record.get(name) for record in records], name) for name in wanted}
        except DocumentError as fault:
            raise _located(fault, row, reader) from None
        except pa.ArrowException as error:
            raise SourceError(f"{reader.file.name}: {str(error).splitlines()[0]}") from error
        yield arrays
        row += len(arrays[wanted[0]])


def _check_lengths(values: Sequence[Any], column: str) -> None:
    """Raise a DocumentError for the first value from JSON that is neither a length nor null."""
    for row, value in enumerate(values):
        if value is not None and type(value) is not int:  # a bool is an int to isinstance
            raise DocumentError(row, f"'{column}' is {shown(value)}; expected a whole number")
        if value is not None and not 0 <= value <= LONGEST:
            raise DocumentError(row, f"'{column}' is {shown(value)}; expected 0 to {LONGEST}")


def _input(
    file: SourceFile,
    path: AnyPath | None,
    batches: Sequence[dict[str, pa.Array]],
    column: str,
    columns: Columns,
    reader: Reader | None = None,
) -> MappedLists:
    """Return the documents of a file, given its columns."""
    lengths, row = [np.zeros(0, np.int32)], 0
    for batch in batches:
        try:
            lengths.append(whole_numbers(batch[column], column, in_text=isinstance(reader, CsvFile)))
        except DocumentError as fault:
            raise _located(fault, row, reader, file.name) from None
        row += len(batch[column])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
    values = pa.Array.from_buffers(NO_BYTES, int(offsets[-1]), [None, pa.py_buffer(b"")])
    arrays: dict[str, Any] = {_LISTS: pa.LargeListArray.from_arrays(as_arrow(offsets), values)}
    for name in columns.extra:
        arrays[name] = (
            pa.chunked_array(cast_to_common_type([batch[name] for batch in batches], name)) if batches else pa.nulls(0)
        )
    table = pa.table(arrays)
    return MappedLists(
        file=file,
        path=path,
        stores=(TableInMemory.of(table, table.column_names, (_LISTS,)),),
        input_ids=_LISTS,
        labels=None,
        extra=columns.extra,
    )


def _located(fault: DocumentError, first_row: int, reader: Reader | None, name: str = "") -> SourceError:
    row = first_row + fault.row
    return SourceError(f"{reader.places.place(row) if reader is not None else f'{name} row {row}'}: {fault.message}")


def _file(path: AnyPath, name: str) -> SourceFile:
    return SourceFile(name=name, bytes=path.stat().st_size)


def read_length_counts(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct lengths in ascending order and the number of documents of each: int64, shape (lengths,).

    Raises:
        PackerError: the file does not exist or cannot be read.
        SourceError: a line does not hold two whole numbers, a length is repeated, or the tokens are none or too many.
    """
    if path.exists():
        require_regular(path, str(path))
    counts: dict[int, int] = {}
    lines: dict[int, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            _check_header(path, next(reader, []))
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                length, count = _whole_numbers(f"{path} line {reader.line_num}", cells)
                if length in counts:
                    raise SourceError(f"{path} line {reader.line_num}: length {length} is in line {lines[length]} too")
                counts[length], lines[length] = count, reader.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} is not a CSV text file: {error}") from error
    except OSError as error:
        raise PackerError(f"{path}: {error.strerror or error}") from error
    _check_totals(path, counts)
    lengths = sorted(counts)
    return np.array(lengths, np.int64), np.array([counts[length] for length in lengths], np.int64)


def _check_header(path: Path, cells: list[str]) -> None:
    if [cell.strip().lower() for cell in cells] != HEADER:
        found = f"has {','.join(cells)!r}" if cells else "is empty"
        raise SourceError(f"{path} line 1 {found}; a histogram begins with the header {','.join(HEADER)!r}")


def _whole_numbers(place: str, cells: list[str]) -> tuple[int, int]:
    if len(cells) != len(HEADER):
        raise SourceError(f"{place} has {len(cells)} values, {','.join(cells)!r}; there must be a length and a count")
    for name, text, most in (("length", cells[0], LONGEST), ("count", cells[1], _MOST)):
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and int(digits) <= most):
            raise SourceError(f"{place}: {name} {digits!r} is not a whole number from 0 to {most:,}")
    return int(cells[0]), int(cells[1])


def _check_totals(path: Path, counts: dict[int, int]) -> None:
    tokens = sum(length * count for length, count in counts.items())
    if tokens == 0:
        raise SourceError(f"{path} counts no document of 1 token or more ({len(counts):,} lengths)")
    if tokens + sum(counts.values()) > _MOST:
        raise SourceError(f"{path} counts {tokens:,} tokens; there may be {_MOST:,} at most")
