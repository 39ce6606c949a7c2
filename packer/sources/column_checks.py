"""Whether the columns of files can be read: their names and types, in each file and in all of them together."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from packer.errors import OtherSourceError, PackerError, SourceError
from packer.sources.column_types import can_be_kept, join, plain_type
from packer.sources.documents import MASKS, Columns

_TEXT = {"text", "prompt", "messages", "conversations"}  # columns that a tokenizer makes documents of

TAKEN = "list, large_list or fixed_size_list of integers (int8 to int64, uint8 to uint64)"


def find_columns(schema: pa.Schema, name: str, columns: Columns) -> bool:
    """Check the types of the wanted columns of a file; whether it has labels."""
    require_column(schema.names, name, columns)
    has_labels = columns.labels in schema.names
    for column in columns.wanted(has_labels=has_labels):
        if column not in schema.names:
            raise PackerError(f"{name}: no column '{column}' (found: {', '.join(schema.names)}); all files need it")
        if schema.names.count(column) > 1:
            raise SourceError(f"{name}: {schema.names.count(column)} columns are named '{column}'; keep one")
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
            raise SourceError(f"{name}: column '{column}' holds {found}; taken are {TAKEN}")
        if pa.types.is_fixed_size_list(found) and found.list_size < 1:  # any number of rows in no bytes
            raise SourceError(f"{name}: column '{column}' holds {found}, lists of no values; there is nothing to pack")
    return has_labels


def check_kept(kind: pa.DataType, column: str, name: str) -> None:
    """Raise a SourceError where a column of values per document is of a type that cannot be kept, such as a union."""
    if not can_be_kept(kind):
        raise SourceError(
            f"{name}: column '{column}' holds {kind}, which is not taken; save it as strings, numbers, lists or structs"
        )


def check_per_token(kind: pa.DataType, column: str, name: str) -> None:
    """Raise a SourceError where a column of values per token is not of lists of numbers."""
    if not holds_numbers(kind) and not pa.types.is_null(kind):
        raise SourceError(f"{name}: column '{column}' holds {kind}; taken are lists of numbers, one for each token")


def holds_numbers(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of numbers; lists of nothing but nulls are, as far as they tell."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    values = kind.value_type
    of_numbers = pa.types.is_integer(values) or pa.types.is_floating(values) or pa.types.is_boolean(values)
    return bool(of_numbers or pa.types.is_null(values))


def require_column(names: Sequence[str], name: str, columns: Columns) -> None:
    """Raise if the column with the tokens is not among the names found in a file."""
    if columns.input_ids not in names:
        found = ", ".join(names) or "none"
        remedy = "name the tokens' column with --input-column"
        if _TEXT & set(names):
            remedy += ", or give --tokenizer to pack text"
        raise OtherSourceError(f"{name}: no column '{columns.input_ids}' (found: {found})", remedy)


def check_types(owner: str, columns: Sequence[str], schemas: Sequence[tuple[str, pa.Schema]]) -> None:
    """Check that columns have a common type in all files that have a schema, each with its name, before any is read.

    Raises:
        SourceError: they have none.
    """
    for column in columns:
        there, kind = "", pa.null()
        for file, schema in schemas:
            found = plain_type(schema.field(column).type)
            joined = join(kind, found)
            if joined is None:
                raise SourceError(
                    f"{owner}: column '{column}' is {kind} in {there}, {found} in {file}; make them alike"
                )
            there, kind = file, joined


def one_type(owner: str, name: str, types: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """The type of a column in all files, or sources, each with its name; null where there is none.

    Raises:
        SourceError: they are not of the same type.
    """
    found = {kind: part for part, kind in types}
    if len(found) > 1:
        (one, there), (other, here) = list(found.items())[:2]
        raise SourceError(f"{owner}: column '{name}' is {one} in {there}, {other} in {here}; make them alike")
    return next(iter(found), pa.null())


def one_column(owner: str, name: str, parts: Sequence[tuple[str, Sequence[pa.Array]]]) -> pa.ChunkedArray:
    """Join the chunks of a column: those of each file, or source, with its name.

    Raises:
        SourceError: they are not of the same type.
    """
    kind = one_type(owner, name, [(part, chunk.type) for part, chunks in parts for chunk in chunks])
    return pa.chunked_array([chunk for _, chunks in parts for chunk in chunks], kind)
