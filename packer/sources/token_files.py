"""Mapped files that hold only token ids: flat arrays, datatrove's `.ds`, and Megatron's `.idx`.

In arrays, documents end with EOS. Arrays of llm.c begin with a header of 1,024 bytes. OLMo's arrays have the ending
`.npy` and no header. Next to OLMo's `part.npy` there may be `part.csv.gz`, whose lines begin with "start,end" of each
document; next to `token_ids_part.npy`, an array of booleans, `labels_mask_part.npy`.

In `.ds`, tokens are unsigned integers of 2 or 4 bytes. `.ds.index` has the number of tokens up to each document's end,
8 bytes each, and `.ds.loss` may have one byte per token, as `TokenizedFile` in datatrove writes them.

Megatron's `.bin` holds the tokens of all sequences, and `.idx` locates each sequence, as `IndexedDatasetBuilder` in
megatron-core writes it. For n sequences and d documents, three arrays follow a header: length of each sequence in
tokens (n int32), its first byte in `.bin` (n int64), and the first sequence of each document followed by n (d + 1
int64).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError, SourceError
from packer.sources.arrow_files import ArrowReader, FileState, mirrored
from packer.sources.column_types import find_columns
from packer.sources.documents import COLUMNS, Columns, SourceFile, reading
from packer.sources.format_reader import BIN, OLMO_MASKS, OLMO_TOKENS, Block, Lists, Reader, opened
from packer.stores import AnyPath, RemotePath, pinned
from packer.stores.mirror import map_whole, read_array
from packer.token_memory.token_column import VALUE_TYPES, Addresses, TokenColumn

ARRAY_COLUMN = "lengths"
"""Column name for the array in a .npy file of lengths."""

_LINES = ".csv.gz"
_NUMPY = b"\x93NUMPY"
_LLM_C = {struct.pack("<ii", 20240520, 1): "uint16", struct.pack("<ii", 20240801, 7): "uint32"}
_LLM_C_HEADER = 1024  # size in bytes
_TOGETHER = 1 << 24  # number of tokens that are searched together
_DATATROVE_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_MASK_COLUMN = "loss_mask"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile(Reader):
    """A token file. A file next to it may hold one byte per token: 1 if it is trained, otherwise 0."""

    file: SourceFile

    @classmethod
    def open(cls, file: SourceFile) -> TokenFile:
        """Open a file, without reading it."""
        return cls(file=file)

    @property
    def mask(self) -> AnyPath | None:
        """Path of the mask file; None if the format has no masks, or the file does not exist."""
        return None

    @property
    def fields(self) -> Mapping[str, object]:
        """A record whose fields are packer's names of the token column and the mask column."""
        return dict.fromkeys([COLUMNS.input_ids, *([_MASK_COLUMN] if self.mask is not None else ())])

    def for_records(self) -> Reader:
        """Refuse to read token ids as records of text or numbers."""
        raise PackerError(
            f"{self.file.name} holds token ids alone: pack it without --tokenizer, --lengths, --pairs and "
            "--share-prefixes"
        )

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[Block, int]]:
        """Refuse to read token ids as records."""
        self.for_records()
        yield from ()

    def mapped(
        self,
        columns: Columns,
        *,
        tokens: MappedColumn,
        bounds: Bounds,
        index: tuple[FileState, pa.Buffer] | None = None,
        beside: Sequence[AnyPath] = (),
    ) -> Lists:
        """Return the lists of the file; see `MappedArrays.of`. `beside` has further files to read, except the mask."""
        path, name, found = self.path, self.file.name, {COLUMNS.input_ids: tokens}
        if (mask := self.mask) is not None:
            beside = [*beside, mask]
            with reading(mask.name):
                found[_MASK_COLUMN] = MappedColumn.of(mask, mask.name, np.dtype(np.uint8))
            if (count := found[_MASK_COLUMN].owner.size) != bounds.end:
                raise SourceError(
                    f"{mask.name}: {count:,} values, and {name} has {bounds.end:,} tokens: copy both again"
                )
        store = MappedArrays.of(found, bounds, index)
        find_columns(store.schema, name, columns)
        size = sum(each.stat().st_size for each in (path, *beside))
        return ArrowReader.of_lists(replace(self.file, bytes=size, beside=tuple(beside)), store, has_labels=False)


class DatatroveReader(TokenFile):
    """A `.ds` file with its `.ds.index`."""

    @property
    def mask(self) -> AnyPath | None:
        """Path of the mask file."""
        mask = self.path.parent / f"{self.path.name}.loss"
        return mask if mask.is_file() else None

    def for_lists(self, columns: Columns) -> Lists:
        """Map the files, and check that documents are consecutive and fill the token file."""
        path, name = self.path, self.file.name
        ends_path, ends_name = path.parent / f"{path.name}.index", f"{name}.index"
        with reading(ends_name):
            if not ends_path.is_file():
                raise SourceError(f"{name}: there is no {ends_name}, which says where documents end; put it beside it")
            ends_path = pinned(ends_path)
            owner = _map_index(ends_path)
        if owner.size % 8:
            raise SourceError(f"{ends_name}: {owner.size:,} bytes, and an end takes 8; it was cut short: copy it again")
        ends = np.frombuffer(owner, "<i8", owner.size // 8)
        if (at := _first_descent(ends)) is not None:
            found = f"document {at:,} ends at token {ends[at]:,}, before its beginning"
            raise SourceError(f"{ends_name}: {found}: copy it again")
        count = int(ends[-1]) if len(ends) else 0
        size = path.stat().st_size
        dtype = _DATATROVE_TYPES.get(size // count if count else 2)
        if dtype is None or size != count * dtype.itemsize:
            raise SourceError(
                f"{name} has {size:,} bytes, and by {ends_name} {count:,} tokens, of 2 or 4 bytes each; one of the "
                "two was cut short, or belongs to another file: copy both again"
            )
        with reading(name):
            tokens = MappedColumn.of(path, name, dtype)
        index = FileState(ends_path.absolute(), ends_name, owner.size), owner
        bounds = Bounds(len(ends), ends[:-1], 0, count)
        return self.mapped(columns, tokens=tokens, bounds=bounds, index=index, beside=[ends_path])


class BareArrayReader(TokenFile):
    """An array of tokens with mapped documents."""

    @property
    def mask(self) -> AnyPath | None:
        """Path of the mask of an array, by OLMo's naming."""
        path = self.path
        mask = path.parent / path.name.replace(OLMO_TOKENS, OLMO_MASKS, 1)
        return mask if path.name.startswith(OLMO_TOKENS) and mask.is_file() else None

    def for_lists(self, columns: Columns) -> Lists:
        """Map the array, and find the ends of documents. All tokens are searched for EOS."""
        path, name = self.path, self.file.name
        lines = path.parent / f"{PurePosixPath(path.name).stem}{_LINES}"
        with reading(name):
            column = _tokens(path, name, columns)
            tokens = column.values
            if has_lines := columns.eos_id is None and lines.is_file():
                inner = _bounds_in_lines(lines, f"{name} ({lines.name})", len(tokens))
            else:
                inner = _bounds_by_eos(tokens, name, columns.eos_id)
        bounds = Bounds(len(inner) + (len(tokens) > 0), inner, 0, len(tokens))
        return self.mapped(columns, tokens=column, bounds=bounds, beside=[lines] if has_lines else [])


def _tokens(path: AnyPath, name: str, columns: Columns) -> MappedColumn:
    """Map the tokens of a file. If it has a header, the header defines their type and first byte."""
    with path.open("rb") as file:
        start = file.read(8)
        dtype, skipped = _LLM_C.get(start), _LLM_C_HEADER
        if start.startswith(_NUMPY):
            file.seek(0)
            shape, kind = read_header(file)
            dtype, skipped = kind.name, file.tell()
            if len(shape) != 1 or kind.kind not in "iu" or not kind.isnative:
                remedy = "" if kind.isnative else ", not big-endian: save it again by .astype('<i4')"
                raise SourceError(f"{name}: {kind} of shape {[*shape]}; expected token ids in one dimension{remedy}")
    if dtype is None and columns.dtype is None:
        raise _undescribed(name, "--dtype and --eos-id")
    if None not in (dtype, columns.dtype) and dtype != columns.dtype:
        raise PackerError(f"--dtype {columns.dtype}: by its header, {name} holds {dtype}: leave --dtype out")
    column = MappedColumn.of(path, name, np.dtype(columns.dtype or dtype), 0 if dtype is None else skipped)
    size, width = column.owner.size - column.skipped, column.dtype.itemsize
    if size < 0 or size % width:
        raise SourceError(
            f"{name}: {column.owner.size:,} bytes, which are no {column.dtype} of {width} bytes: correct "
            "--dtype, or copy the file again"
        )
    return column


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Read the header of a .npy file. Returns (shape, type) of its array. Raises a ValueError if it is damaged."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"a .npy file of version {'.'.join(map(str, version))}; expected 1.0 or 2.0")
    try:
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy evaluates the header as Python: TokenError, OverflowError ... are possible
        raise ValueError(f"the header does not describe an array ({type(error).__name__})") from error
    return shape, dtype


def _undescribed(name: str, needed: str) -> PackerError:
    return PackerError(
        f"{name} is a bare array, in which no document begins or ends: give {needed} for tokens, as in --dtype uint16 "
        f"--eos-id 50256; if it holds lengths of documents, pack it with `packer pack --lengths {name}` (in Python: "
        f"lengths_column='{ARRAY_COLUMN}')"
    )


def _bounds_by_eos(tokens: pa.Array, name: str, eos_id: int | None) -> NDArray[np.int64]:
    """Return the number of tokens before each document but the first. A document begins after each EOS but the last."""
    if eos_id is None:
        raise _undescribed(name, "--eos-id")
    values, parts = as_numpy(tokens), [np.zeros(0, np.int64)]
    for first in range(0, len(values), _TOGETHER):
        some = read_array(values[first : first + _TOGETHER])
        parts.append(np.flatnonzero(some == eos_id) + (first + 1))
    ends = np.concatenate(parts)
    if not len(ends) and len(values):
        raise SourceError(
            f"{name}: --eos-id {eos_id} is none of its {len(values):,} tokens, so that it would be one document: "
            "correct it, or --dtype"
        )
    if rest := len(values) - int(ends[-1]) if len(ends) else 0:
        log.info("%s: %s tokens after the last EOS are a document, too", name, f"{rest:,}")
    log.info("%s: %s documents end in EOS (%d)", name, f"{len(ends):,}", eos_id)
    return ends if rest else ends[:-1]


def _bounds_in_lines(path: AnyPath, name: str, count: int) -> NDArray[np.int64]:
    """Read the bounds of documents. Returns the number of tokens before each document but the first."""
    columns = {"f0": pa.int64(), "f1": pa.int64()}
    with opened(path) as (_, stream):
        read = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(autogenerate_column_names=True),
            convert_options=csv.ConvertOptions(check_utf8=False, include_columns=[*columns], column_types=columns),
        )
        spans = [np.stack([as_numpy(column) for column in batch.columns]) for batch in read]
    starts, ends = np.concatenate([np.zeros((2, 0), np.int64), *spans], axis=1)
    before = np.concatenate([[0], ends[:-1]])
    for at in np.flatnonzero((starts != before) | (ends < starts))[:1].tolist():
        raise SourceError(
            f"{name}: document {at:,} has the tokens {starts[at]:,} to {ends[at] - 1:,}, where token {before[at]:,} "
            "follows the one before it: correct the lines, or give --eos-id"
        )
    if (end := int(ends[-1]) if len(ends) else 0) != count:
        raise SourceError(f"{name}: its documents have {end:,} tokens, and the array has {count:,}: copy both again")
    return np.asarray(ends[:-1], np.int64)


_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of the tokens, sequences, entries of documents
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_SEQUENCES_TOGETHER = 1 << 20  # number of sequences that are checked together: 12 MB
_REMEDY = "write both files again, as megatron-core's IndexedDatasetBuilder does"


class _Index(NamedTuple):
    """Content of an `.idx` file, as arrays in its memory."""

    dtype: np.dtype[np.integer]
    lengths: NDArray[np.int32]  # (sequences,) number of tokens
    pointers: NDArray[np.int64]  # (sequences,) first byte in the token file
    documents: NDArray[np.int64]  # (documents + 1,) first sequence of each document, then the number of sequences


class IndexedReader(TokenFile):
    """An `.idx` file with its `.bin`; documents are mapped."""

    def for_lists(self, columns: Columns) -> Lists:
        """Map both files, and check that the sequences are consecutive and fill the token file."""
        path, name = self.path, self.file.name
        tokens, tokens_name = path.with_suffix(BIN), name.removesuffix(path.suffix) + BIN
        with reading(name):
            if not tokens.is_file():
                raise SourceError(f"{name}: there is no {tokens_name}, which holds its tokens; put it beside it")
            owner = _map_index(path)
            index = _read(owner, name)
        with reading(tokens_name):
            column = MappedColumn.of(tokens, tokens_name, index.dtype)
        _check_sequences(index, name)
        size = int(index.pointers[-1]) + int(index.lengths[-1]) * index.dtype.itemsize if len(index.lengths) else 0
        if column.owner.size != size:
            raise SourceError(
                f"{tokens_name} has {column.owner.size:,} bytes, and the sequences in {name} take {size:,}; one of the "
                "two was cut short, or belongs to another file: copy both again"
            )
        by_document = not columns.by_sequence and _groups_sequences(index, name)
        bounds = _bounds(index, size, by_document=by_document)
        place = None if by_document else (FileState(path.absolute(), name, owner.size), owner)
        return self.mapped(columns, tokens=column, bounds=bounds, index=place, beside=[tokens])


def _read(owner: pa.Buffer, name: str) -> _Index:
    """Read the header, and locate the arrays. Raises a SourceError if they do not fill the file."""
    if owner.size < _HEADER.size:
        raise SourceError(f"{name}: {owner.size} bytes, and the header of an .idx takes {_HEADER.size}; {_REMEDY}")
    magic, version, code, sequences, entries = _HEADER.unpack_from(owner)
    if magic != _MAGIC or version != 1:
        found = f"begins with {magic!r}" if magic != _MAGIC else f"has version {version}"
        raise SourceError(f"{name}: {found}; an .idx of Megatron begins with {_MAGIC!r} and version 1: {_REMEDY}")
    dtype = np.dtype(_TYPES.get(code, "V"))
    if dtype.kind not in "iu":
        found = dtype.name if code in _TYPES else "unknown"
        raise SourceError(f"{name}: type {code} of its tokens is {found}, and token ids are integers; {_REMEDY}")
    size = _HEADER.size + 12 * sequences + 8 * entries
    if owner.size == size + sequences > size:
        raise SourceError(f"{name}: has a mode for each sequence, as multimodal data, and rows have none; {_REMEDY}")
    if owner.size != size or not entries:
        raise SourceError(
            f"{name}: {owner.size:,} bytes, and by its header {sequences:,} sequences and {entries - 1:,} documents "
            f"take {size:,}; it was cut short: copy it again"
        )
    return _Index(
        dtype,
        np.frombuffer(owner, "<i4", sequences, _HEADER.size),
        np.frombuffer(owner, "<i8", sequences, _HEADER.size + 4 * sequences),
        np.frombuffer(owner, "<i8", entries, _HEADER.size + 12 * sequences),
    )


def _check_sequences(index: _Index, name: str) -> None:
    """Raise a SourceError unless each sequence begins where the previous one ends."""
    end = 0
    for first in range(0, len(index.lengths), _SEQUENCES_TOGETHER):
        pointers = index.pointers[first : first + _SEQUENCES_TOGETHER]
        sizes = index.lengths[first : first + _SEQUENCES_TOGETHER].astype(np.int64) * index.dtype.itemsize
        ends = end + np.cumsum(sizes)
        wrong = (sizes < 0) | (pointers != ends - sizes)
        if wrong.any():
            at = int(wrong.argmax())
            found = f"begins at byte {pointers[at]:,}, where byte {ends[at] - sizes[at]:,} follows the one before it"
            if sizes[at] < 0:
                found = f"has {sizes[at] // index.dtype.itemsize:,} tokens"
            raise SourceError(f"{name}: sequence {first + at:,} {found}; {_REMEDY}")
        end = int(ends[-1])


def _groups_sequences(index: _Index, name: str) -> bool:
    """Whether documents differ from the sequences. Raises a SourceError if documents are not runs of all sequences."""
    starts, count = index.documents, len(index.lengths)
    if (at := _first_descent(starts)) is not None:
        raise SourceError(
            f"{name}: document {at:,} begins with sequence {starts[at]:,}, before that of the last one; {_REMEDY}"
        )
    if (starts[0], starts[-1]) != (0, count):
        found = f"its documents are the sequences {starts[0]:,} to {starts[-1] - 1:,}, and there are {count:,}"
        raise SourceError(f"{name}: {found}; {_REMEDY}")
    parts = ((at, starts[at : at + _SEQUENCES_TOGETHER]) for at in range(0, len(starts), _SEQUENCES_TOGETHER))
    return len(starts) != count + 1 or any((part != np.arange(at, at + len(part))).any() for at, part in parts)


def _bounds(index: _Index, size: int, *, by_document: bool) -> Bounds:
    """Return the bounds of documents (held in memory) or of sequences (read from the mapped file)."""
    shift = index.dtype.itemsize.bit_length() - 1
    if not by_document:
        return Bounds(len(index.lengths), index.pointers[1:], shift, size >> shift)
    starts = index.documents[1:-1]
    inner = np.full(len(starts), size)  # documents after the last sequence are empty
    some = starts < len(index.lengths)
    inner[some] = index.pointers[starts[some]]
    return Bounds(len(index.documents) - 1, inner, shift, size >> shift)


_CHECKED = 1 << 20  # number of values that are checked together
_LISTS_TOGETHER = 1 << 18  # number of lists in a record batch, which has 2 MB of offsets


class Bounds(NamedTuple):
    """Boundaries of lists in an array of values, starting at value 0.

    Example: lists 3, inner [6, 10], shift 1, end 9: the lists are the values 0 to 2, 3 to 4, and 5 to 8.
    """

    lists: int
    inner: NDArray[np.int64]  # (lists - 1,) start of every list but the first, times 2**shift; may be unaligned
    shift: int
    end: int  # number of values

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the number of values before each of the lists `first` to `last` - 1, and up to their end."""
        offsets = np.empty(last - first + 1, np.int64)
        inside = self.inner[max(first - 1, 0) : last] >> self.shift
        begin = int(first == 0)
        offsets[begin : begin + len(inside)] = inside
        offsets[:begin] = 0
        offsets[begin + len(inside) :] = self.end  # sets one offset if these are the last lists, otherwise none
        return offsets


class MappedColumn(NamedTuple):
    """Values of a column in a mapped file."""

    state: FileState
    owner: pa.Buffer
    dtype: np.dtype[Any]
    skipped: int  # number of bytes before the first value

    @classmethod
    def of(cls, path: AnyPath, name: str, dtype: np.dtype[Any], skipped: int = 0) -> MappedColumn:
        """Map a file. For an object in storage, values are fetched when they are needed."""
        path = pinned(path)
        owner = _map_values(path)
        return cls(FileState(path.absolute(), name, owner.size), owner, dtype, skipped)

    @property
    def values(self) -> pa.Array:
        """All values; nothing is copied."""
        kind = pa.from_numpy_dtype(self.dtype)
        count = (self.owner.size - self.skipped) // self.dtype.itemsize
        return pa.Array.from_buffers(kind, count, [None, self.owner.slice(self.skipped)])


def _map_values(path: AnyPath) -> pa.Buffer:
    """Map a local file into memory. For an object in storage, nothing is fetched yet."""
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    return mirrored(path).buffer if isinstance(path, RemotePath) else map_whole(path)


def _map_index(path: AnyPath) -> pa.Buffer:
    """Map a file into memory. An object in storage is fetched, once for all tasks of the process."""
    buffer = _map_values(path)
    if isinstance(path, RemotePath) and buffer.size:
        mirrored(path).fetch([0], [buffer.size])
    return buffer


def _first_descent(values: NDArray[np.int64]) -> int | None:
    """Return the index of the first value that is negative or below its predecessor; None if there is none."""
    for first in range(0, len(values), _CHECKED):
        before = int(values[first - 1]) if first else 0
        wrong = np.diff(values[first : first + _CHECKED], prepend=before) < 0
        if wrong.any():
            return first + int(wrong.argmax())
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedArrays:
    """Lists of values in files of bare integers, as record batches of large lists. Pickling stores their paths."""

    columns: Mapping[str, MappedColumn]
    """Columns by name, each with one value per token."""

    bounds: Bounds
    index: tuple[FileState, pa.Buffer] | None
    """File with the bounds; None if they are in an ordinary array."""

    ends: NDArray[np.int64]
    """Cumulative lengths of the batches; shape (batches,)."""

    tokens: Mapping[str, TokenColumn]

    @classmethod
    def of(
        cls, columns: Mapping[str, MappedColumn], bounds: Bounds, index: tuple[FileState, pa.Buffer] | None = None
    ) -> MappedArrays:
        """Describe columns whose files have been checked to hold `bounds.end` values."""
        owners = (*(column.owner for column in columns.values()), bounds.inner, index)
        tokens = {
            name: TokenColumn(addresses=_addresses(column, bounds), owners=owners) for name, column in columns.items()
        }
        ends = np.minimum(np.arange(_LISTS_TOGETHER, bounds.lists + _LISTS_TOGETHER, _LISTS_TOGETHER), bounds.lists)
        return cls(columns=columns, bounds=bounds, index=index, ends=ends, tokens=tokens)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return pa.schema(
            [(name, pa.large_list(pa.from_numpy_dtype(column.dtype))) for name, column in self.columns.items()]
        )

    def whole(self) -> MappedArrays:
        """Return the same lists with all values in memory, even if the files are in object storage."""
        columns = {}
        for name, column in self.columns.items():
            with reading(column.state.name):
                path, empty = column.state.path, not column.owner.size
                columns[name] = column if empty else column._replace(owner=map_whole(path))
        return MappedArrays.of(columns, self.bounds, self.index)

    def read(self, numbers: Iterable[int], names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """Yield the named columns of each record batch, with computed offsets."""
        values = [self.columns[name].values for name in names]
        for number in numbers:
            first = int(self.ends[number - 1]) if number else 0
            offsets = as_arrow(self.bounds.offsets(first, int(self.ends[number])))
            yield [pa.LargeListArray.from_arrays(offsets, each) for each in values]

    def __reduce__(self) -> tuple[object, ...]:
        files = {name: (each.state, each.dtype, each.skipped) for name, each in self.columns.items()}
        if self.index is None:
            return _map_arrays_again, (files, self.bounds, None, 0)
        (state, owner), inner = self.index, self.bounds.inner
        return _map_arrays_again, (
            files,
            self.bounds._replace(inner=inner[:0].copy()),
            state,
            inner.ctypes.data - owner.address,
        )


def _map_arrays_again(
    files: Mapping[str, tuple[FileState, np.dtype[Any], int]], bounds: Bounds, index: FileState | None, place: int
) -> MappedArrays:
    """Unpickle `MappedArrays` by mapping the files again. `place` is the byte offset of the bounds in the index."""
    columns = {}
    for name, (state, dtype, skipped) in files.items():
        with reading(state.name):
            columns[name] = MappedColumn(state, _map_values(state.path), dtype, skipped)
    if index is None:
        return MappedArrays.of(columns, bounds)
    with reading(index.name):
        owner = _map_index(index.path)
    inner = np.frombuffer(owner, "<i8", max(bounds.lists - 1, 0), place)
    return MappedArrays.of(columns, bounds._replace(inner=inner), (index, owner))


def _addresses(column: MappedColumn, bounds: Bounds) -> Addresses:
    """Return the addresses of lists.

    The first and the last list have only one stored bound, so each of them is a separate chunk.
    """
    dtype, lists, inner, shift = column.dtype, bounds.lists, bounds.inner, bounds.shift
    chunks: list[tuple[int, ...]] = []  # (lists, address of offsets, bytes per offset, length, first value, shift)
    if lists:
        chunks.append((1, 0, 0, int(inner[0]) >> shift if lists > 1 else bounds.end, 0, 0))
    if lists > 2:
        chunks.append((lists - 2, inner.ctypes.data, 8, 0, 0, shift))
    if lists > 1:
        before = int(inner[-1]) >> shift
        chunks.append((1, 0, 0, bounds.end - before, before, 0))
    counts, offsets, offset_bytes, list_sizes, firsts, shifts = np.array(chunks, np.int64).reshape(-1, 6).T.copy()
    return Addresses(
        first_rows=np.cumsum([0, *counts], dtype=np.int64),
        offsets=offsets.astype(np.uint64),
        offset_bytes=offset_bytes,
        offset_shifts=shifts,
        list_sizes=list_sizes,
        values=(column.owner.address + column.skipped + firsts * dtype.itemsize).astype(np.uint64),
        value_codes=np.full(len(counts), VALUE_TYPES.index(dtype.type)),
        value_bytes=np.full(len(counts), dtype.itemsize),
    )
