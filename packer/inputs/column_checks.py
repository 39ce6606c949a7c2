"""Checks of column names and types, in each file and across files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import ROLES
from packer.errors import OtherSourceError, PackerError, SourceError
from packer.inputs.column_types import can_be_kept, holds_numbers, join, plain_type
from packer.inputs.documents import MASKS, Columns, columns_of_side

_TEXT = {"text", "prompt", "messages", "conversations", *ROLES}  # columns of text

TOKEN_TYPES = "list, large_list or fixed_size_list of integers (int8 to int64, uint8 to uint64)"


def find_columns(schema: pa.Schema, name: str, columns: Columns) -> bool:
    """Check the columns of a file, and return whether it has labels.

    Raises an error if a column is missing, has the wrong type, occurs twice, or is a mask that the first file lacks.
    """
    require_column(schema.names, name, columns)
    has_labels = columns.labels in schema.names
    for column in columns.wanted(has_labels=has_labels):
        _require_one(schema, column, name)
    for mask in MASKS:
        if mask in schema.names and mask not in columns.extra:
            raise SourceError(
                f"{name}: has a column '{mask}', and the first file has none; give it to all files or to none"
            )
    for column in columns.extra:
        found = schema.field(column).type
        if column in columns.per_token:
            check_per_token(found, column, name)
        else:
            check_kept(found, column, name)
    for column in columns.wanted(has_labels=has_labels)[: 1 + has_labels]:
        found = schema.field(column).type
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
        if not is_list or not pa.types.is_integer(found.value_type):
            raise SourceError(f"{name}: column '{column}' holds {found}; expected {TOKEN_TYPES}")
        if pa.types.is_fixed_size_list(found) and found.list_size < 1:  # any number of them takes no bytes
            raise SourceError(f"{name}: column '{column}' holds {found}, lists of no values; there is nothing to pack")
    return has_labels


def check_kept(kind: pa.DataType, column: str, name: str) -> None:
    """Raise a `SourceError` if a column with one value per document has a type that cannot be kept, such as a union."""
    if not can_be_kept(kind):
        raise SourceError(
            f"{name}: column '{column}' holds {kind}, which is not supported; "
            "save it as strings, numbers, lists or structs"
        )


def check_per_token(kind: pa.DataType, column: str, name: str) -> None:
    """Raise a `SourceError` if a column with one value per token does not hold lists of numbers."""
    if not holds_numbers(kind) and not pa.types.is_null(kind):
        raise SourceError(f"{name}: column '{column}' holds {kind}; expected lists of numbers, one for each token")


def require_column(names: Sequence[str], name: str, columns: Columns) -> None:
    """Raise an `OtherSourceError` if the names found in a file lack the column with the tokens."""
    if columns.input_ids not in names:
        found = ", ".join(names) or "none"
        remedy = "name the tokens' column with --input-column"
        if _TEXT & set(names):
            remedy += ", or give --tokenizer to pack text"
        if columns.input_ids == columns_of_side(ROLES[0]).input_ids:  # pairs have columns of fixed names
            remedy = "give --tokenizer to pack text, or leave --pairs out"
        raise OtherSourceError(f"{name}: no column '{columns.input_ids}' (found: {found})", remedy)


def require_kept(schema: pa.Schema, columns: Sequence[str], name: str) -> None:
    """Raise an error unless a file has each column to keep exactly once, in a type that can be kept."""
    for column in columns:
        _require_one(schema, column, name)
        check_kept(schema.field(column).type, column, name)


def _require_one(schema: pa.Schema, column: str, name: str) -> None:
    """Raise an error if a file does not have a column exactly once."""
    if column not in schema.names:
        raise PackerError(f"{name}: no column '{column}' (found: {', '.join(schema.names)}); all files need it")
    refuse_twins(schema, column, name)


def refuse_twins(schema: pa.Schema, column: str, name: str) -> None:
    """Raise a `SourceError` if several columns of a file have this name."""
    if schema.names.count(column) > 1:
        raise SourceError(f"{name}: {schema.names.count(column)} columns are named '{column}'; keep one")


def check_indices(name: str, indices: NDArray[Any], lists: int) -> None:
    """Raise a SourceError unless an indices mapping, of the list of each document, stays within the data."""
    if len(indices) and (int(indices.max()) >= lists or int(indices.min()) < 0):
        raise SourceError(
            f"{name}: its indices mapping reaches from row {indices.min()} to {indices.max()}, "
            f"the data from 0 to {lists - 1}; save it again after .flatten_indices()"
        )


def check_types(owner: str, columns: Sequence[str], files: Sequence[tuple[str, Mapping[str, pa.DataType]]]) -> None:
    """Raise a SourceError if the types that files, given by name, declare for a column have no common type."""
    for column in columns:
        there, kind = "", pa.null()
        for file, types in files:
            if column not in types:
                continue
            found = plain_type(types[column])
            joined = join(kind, found)
            if joined is None:
                raise SourceError(f"{owner}: column '{column}' is {kind} in {there}, {found} in {file}; use one type")
            there, kind = file, joined


def one_type(owner: str, name: str, types: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """Return the type that all parts (files, or sources of a mixture) have for a column; null if there are no parts.

    Types are given as (name, type) of each part. A SourceError is raised if two differ.
    """
    found = {kind: part for part, kind in types}
    if len(found) > 1:
        (one, there), (other, here) = list(found.items())[:2]
        raise SourceError(f"{owner}: column '{name}' is {one} in {there}, {other} in {here}; use one type")
    return next(iter(found), pa.null())


def one_column(owner: str, name: str, parts: Sequence[tuple[str, Sequence[pa.Array]]]) -> pa.ChunkedArray:
    """Join the chunks of a column, given as (name, chunks) of each part; a SourceError is raised if types differ."""
    kind = one_type(owner, name, [(part, chunk.type) for part, chunks in parts for chunk in chunks])
    return pa.chunked_array([chunk for _, chunks in parts for chunk in chunks], kind)
