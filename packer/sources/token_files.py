"""Files of token ids and nothing else, which are mapped: flat arrays, datatrove's `.ds`, and Megatron's `.idx`.

In arrays, documents end in EOS. Those of llm.c begin with a header of 1,024 bytes. OLMo's arrays have the ending `.npy`
and no header; beside `part.npy` may lie `part.csv.gz`, with lines that begin with "start,end" of each document, and
beside `token_ids_part.npy` an array of booleans, `labels_mask_part.npy`.

In `.ds`, tokens are integers of 2 or 4 bytes without a sign. `.ds.index` has the number of tokens up to each document's
end, 8 bytes each, and `.ds.loss` may have a byte for each token, as `TokenizedFile` in datatrove writes them.

Of Megatron, `.bin` holds the tokens of all sequences, and `.idx` says where each begins, as `IndexedDatasetBuilder` in
megatron-core writes it. A header is followed by three arrays, for n sequences and d - 1 documents: lengths in tokens (n
int32); first bytes in `.bin` (n int64); and the first sequence of each document, then the number of all sequences (d
int64).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from packer.arrow import as_numpy
from packer.errors import PackerError, SourceError
from packer.sources.column_types import Fields, find_columns
from packer.sources.documents import COLUMNS, Columns, SourceFile, reading
from packer.sources.format_reader import Reader, opened
from packer.sources.mapped_files import Bounds, FileState, MappedArrays, MappedColumn, first_descent, map_index
from packer.sources.token_tables import MappedLists
from packer.stores import AnyPath, pinned
from packer.stores.mirror import read_array

OLMO_TOKENS, OLMO_MASKS = "token_ids", "labels_mask"
"""Beginnings of the names of OLMo's arrays of tokens, and of those that say which of these are trained."""

ARRAY_COLUMN = "lengths"
"""Column name that stands for the array of a .npy file that holds lengths."""

_LINES = ".csv.gz"
_NUMPY = b"\x93NUMPY"
_LLM_C = {struct.pack("<ii", 20240520, 1): "uint16", struct.pack("<ii", 20240801, 7): "uint32"}
_LLM_C_HEADER = 1024  # bytes
_TOGETHER = 1 << 24  # tokens that are searched together
_DATATROVE_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_MASK_COLUMN = "loss_mask"

log = logging.getLogger(__name__)


class TokenFile(Reader, Protocol):
    """A file of tokens. A file beside it may hold a byte for each, 1 or 0, that says whether it is trained."""

    @classmethod
    def open(cls, file: SourceFile) -> Reader:
        """Refuse to read token ids as records of text or numbers."""
        raise PackerError(
            f"{file.name} holds token ids alone: pack it without --tokenizer, --lengths, --pairs and --share-prefixes"
        )

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask of a file lies; None if the format has no masks, or it does not exist."""
        return None

    @classmethod
    def first_fields(cls, file: SourceFile) -> Fields:
        """Return a record with the names that the tokens and the mask have for packer."""
        return dict.fromkeys([COLUMNS.input_ids, *([_MASK_COLUMN] if cls.mask_of(file.stored) is not None else ())])

    @classmethod
    def mapped(
        cls,
        file: SourceFile,
        columns: Columns,
        *,
        tokens: MappedColumn,
        bounds: Bounds,
        index: tuple[FileState, pa.Buffer] | None = None,
        beside: Sequence[AnyPath] = (),
    ) -> MappedLists:
        """Return the lists of a file; see `MappedArrays.of`. `beside` has other files that are read, but no mask."""
        path, name, found = file.stored, file.name, {COLUMNS.input_ids: tokens}
        if (mask := cls.mask_of(path)) is not None:
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
        return MappedLists(
            file=replace(file, bytes=size, beside=tuple(beside)),
            stores=(store,),
            columns=columns,
            labels=False,
        )


class DatatroveReader(TokenFile):
    """A `.ds` file with its `.ds.index`."""

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask lies."""
        mask = path.parent / f"{path.name}.loss"
        return mask if mask.is_file() else None

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> MappedLists:
        """Map the files, and check that documents follow one another and fill the file of tokens."""
        path, name = file.stored, file.name
        ends_path, ends_name = path.parent / f"{path.name}.index", f"{name}.index"
        with reading(ends_name):
            if not ends_path.is_file():
                raise SourceError(f"{name}: there is no {ends_name}, which says where documents end; put it beside it")
            ends_path = pinned(ends_path)
            owner = map_index(ends_path)
        if owner.size % 8:
            raise SourceError(f"{ends_name}: {owner.size:,} bytes, and an end takes 8; it was cut short: copy it again")
        ends = np.frombuffer(owner, "<i8", owner.size // 8)
        if (at := first_descent(ends)) is not None:
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
        return cls.mapped(file, columns, tokens=tokens, bounds=bounds, index=index, beside=[ends_path])


class BareArrayReader(TokenFile):
    """An array of tokens, whose documents are mapped."""

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask of an array lies by OLMo's names."""
        mask = path.parent / path.name.replace(OLMO_TOKENS, OLMO_MASKS, 1)
        return mask if path.name.startswith(OLMO_TOKENS) and mask.is_file() else None

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> MappedLists:
        """Map the array, and find where documents end. EOS is searched in all tokens."""
        path, name = file.stored, file.name
        lines = path.parent / f"{PurePosixPath(path.name).stem}{_LINES}"
        with reading(name):
            column = _tokens(path, name, columns)
            tokens = column.values
            if has_lines := columns.eos_id is None and lines.is_file():
                inner = _bounds_in_lines(lines, f"{name} ({lines.name})", len(tokens))
            else:
                inner = _bounds_by_eos(tokens, name, columns.eos_id)
        bounds = Bounds(len(inner) + (len(tokens) > 0), inner, 0, len(tokens))
        return cls.mapped(file, columns, tokens=column, bounds=bounds, beside=[lines] if has_lines else [])


def _tokens(path: AnyPath, name: str, columns: Columns) -> MappedColumn:
    """Map the tokens of a file, whose type and first byte are those in its header, if it has one."""
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
    """Read the header of a .npy file; return the shape and type of its array. A ValueError says that it is damaged."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"a .npy file of version {'.'.join(map(str, version))}; expected 1.0 or 2.0")
    try:
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy evaluates the header as Python: TokenError, OverflowError, AttributeError ...
        raise ValueError(f"the header does not describe an array ({type(error).__name__})") from error
    return shape, dtype


def _undescribed(name: str, needed: str) -> PackerError:
    return PackerError(
        f"{name} is a bare array, in which no document begins or ends: give {needed} for tokens, as in --dtype uint16 "
        f"--eos-id 50256; if it holds the lengths of documents, give it as --lengths {name} (in Python: "
        f"lengths_column='{ARRAY_COLUMN}')"
    )


def _bounds_by_eos(tokens: pa.Array, name: str, eos_id: int | None) -> NDArray[np.int64]:
    """Return the tokens before each document but the first: one of these follows each EOS but the last token."""
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
    """Read where documents begin and end; return the tokens before each but the first."""
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


BIN = ".bin"
"""Ending of the file of tokens beside an `.idx` file."""

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of the tokens, sequences, entries of documents
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_SEQUENCES_TOGETHER = 1 << 20  # sequences that are checked together: 12 MB
_REMEDY = "write both files again, as megatron-core's IndexedDatasetBuilder does"


class _Index(NamedTuple):
    """Content of an `.idx` file; the arrays lie in its memory."""

    dtype: np.dtype[np.integer]
    lengths: NDArray[np.int32]  # (sequences,) tokens
    pointers: NDArray[np.int64]  # (sequences,) first byte in the file of tokens
    documents: NDArray[np.int64]  # (documents + 1,) first sequence of each, and the number of all sequences


class IndexedReader(TokenFile):
    """An `.idx` file with its `.bin`, whose documents are mapped."""

    @classmethod
    def open_lists(cls, file: SourceFile, columns: Columns) -> MappedLists:
        """Map both files, and check that the sequences follow one another and fill the file of tokens."""
        path, name = file.stored, file.name
        tokens, tokens_name = path.with_suffix(BIN), name.removesuffix(path.suffix) + BIN
        with reading(name):
            if not tokens.is_file():
                raise SourceError(f"{name}: there is no {tokens_name}, which holds its tokens; put it beside it")
            owner = map_index(path)
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
        return cls.mapped(file, columns, tokens=column, bounds=bounds, index=place, beside=[tokens])


def _read(owner: pa.Buffer, name: str) -> _Index:
    """Read the header, and find the arrays. Raises a SourceError if they do not fill the file."""
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
    """Raise a SourceError unless each sequence begins where the one before it ends."""
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
    """Whether documents are other than the sequences. Raises a SourceError if they are not runs of all sequences."""
    starts, count = index.documents, len(index.lengths)
    if (at := first_descent(starts)) is not None:
        raise SourceError(
            f"{name}: document {at:,} begins with sequence {starts[at]:,}, before that of the last one; {_REMEDY}"
        )
    if (starts[0], starts[-1]) != (0, count):
        found = f"its documents are the sequences {starts[0]:,} to {starts[-1] - 1:,}, and there are {count:,}"
        raise SourceError(f"{name}: {found}; {_REMEDY}")
    parts = ((at, starts[at : at + _SEQUENCES_TOGETHER]) for at in range(0, len(starts), _SEQUENCES_TOGETHER))
    return len(starts) != count + 1 or any((part != np.arange(at, at + len(part))).any() for at, part in parts)


def _bounds(index: _Index, size: int, *, by_document: bool) -> Bounds:
    """Return the bounds of documents, which are held in memory, or of sequences, which stay in the file."""
    shift = index.dtype.itemsize.bit_length() - 1
    if not by_document:
        return Bounds(len(index.lengths), index.pointers[1:], shift, size >> shift)
    starts = index.documents[1:-1]
    inner = np.full(len(starts), size)  # documents after the last sequence are empty
    some = starts < len(index.lengths)
    inner[some] = index.pointers[starts[some]]
    return Bounds(len(index.documents) - 1, inner, shift, size >> shift)
