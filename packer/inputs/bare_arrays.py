"""Bare arrays of tokens: `.npy` and `.bin`, in which documents end in EOS, or as a file of lines beside says.

OLMo's arrays have the ending `.npy` and no header. Beside `part.npy` may lie `part.csv.gz`, with lines that begin with
"start,end" of each document, and beside `token_ids_part.npy` an array of booleans, `labels_mask_part.npy`. The arrays
of llm.c begin with a header of 1,024 bytes.
"""

from __future__ import annotations

import logging
import struct
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from packer.arrow import as_numpy
from packer.errors import PackerError, SourceError
from packer.inputs.array_header import ARRAY_COLUMN, read_header
from packer.inputs.documents import Columns, reading
from packer.inputs.format_reader import opened
from packer.inputs.mapped_arrays import Bounds, MappedColumn
from packer.inputs.token_file import TokenFile
from packer.inputs.token_tables import MappedLists
from packer.stores import AnyPath
from packer.stores.mirror import held

OLMO_TOKENS, OLMO_MASKS = "token_ids", "labels_mask"
"""Beginnings of the names of OLMo's arrays of tokens, and of those that say which of these are trained."""

_LINES = ".csv.gz"
_NUMPY = b"\x93NUMPY"
_LLM_C = {struct.pack("<ii", 20240520, 1): "uint16", struct.pack("<ii", 20240801, 7): "uint32"}
_LLM_C_HEADER = 1024  # bytes
_TOGETHER = 1 << 24  # tokens that are searched together

log = logging.getLogger(__name__)


class BareArrayReader(TokenFile):
    """An array of tokens, whose documents are mapped."""

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask of an array lies by OLMo's names."""
        mask = path.parent / path.name.replace(OLMO_TOKENS, OLMO_MASKS, 1)
        return mask if path.name.startswith(OLMO_TOKENS) and mask.is_file() else None

    @classmethod
    def open_lists(cls, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> MappedLists:
        """Map the array, and find where documents end. EOS is searched in all tokens."""
        lines = path.parent / f"{PurePosixPath(path.name).stem}{_LINES}"
        with reading(name):
            column = _tokens(path, name, columns)
            tokens = column.values
            if has_lines := columns.eos_id is None and lines.is_file():
                inner = _bounds_in_lines(lines, f"{name} ({lines.name})", len(tokens))
            else:
                inner = _bounds_by_eos(tokens, name, columns.eos_id)
        bounds = Bounds(len(inner) + (len(tokens) > 0), inner, 0, len(tokens))
        return cls.mapped(path, name, columns, tokens=column, bounds=bounds, beside=[lines] if has_lines else [])


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
                raise SourceError(f"{name}: {kind} of shape {[*shape]}; expected token ids in one dimension")
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
        some = values[first : first + _TOGETHER]
        with held([some.ctypes.data], [some.nbytes]):
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
    wrong = np.flatnonzero((starts != before) | (ends < starts))
    if len(wrong):
        at = int(wrong[0])
        raise SourceError(
            f"{name}: document {at:,} has the tokens {starts[at]:,} to {ends[at] - 1:,}, where token {before[at]:,} "
            "follows the one before it: correct the lines, or give --eos-id"
        )
    if (end := int(ends[-1]) if len(ends) else 0) != count:
        raise SourceError(f"{name}: its documents have {end:,} tokens, and the array has {count:,}: copy both again")
    inner: NDArray[np.int64] = ends[:-1]
    return inner
