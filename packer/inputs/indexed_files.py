"""Indexed files of Megatron: `.bin` holds the tokens of all sequences, and `.idx` says where each begins.

The format is that of `IndexedDatasetBuilder` in megatron-core. A header is followed by three arrays, for n sequences
and d - 1 documents: lengths in tokens (n int32); first bytes in `.bin` (n int64); and the first sequence of each
document, then the number of all sequences (d int64).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.documents import Columns, reading
from packer.inputs.mapped_arrays import Bounds, MappedColumn, first_descent, map_index
from packer.inputs.mapped_files import FileState
from packer.inputs.token_files import TokenFile
from packer.inputs.token_tables import MappedLists
from packer.stores import AnyPath

BIN = ".bin"
"""Ending of the file of tokens beside an `.idx` file."""

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of the tokens, sequences, entries of documents
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_TOGETHER = 1 << 20  # sequences that are checked together: 12 MB
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
    def open_lists(cls, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> MappedLists:
        """Map both files, and check that the sequences follow one another and fill the file of tokens."""
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
        return cls.mapped(path, name, columns, tokens=column, bounds=bounds, index=place, beside=[tokens])


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
    for first in range(0, len(index.lengths), _TOGETHER):
        pointers = index.pointers[first : first + _TOGETHER]
        sizes = index.lengths[first : first + _TOGETHER].astype(np.int64) * index.dtype.itemsize
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
    parts = ((at, starts[at : at + _TOGETHER]) for at in range(0, len(starts), _TOGETHER))
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
