"""Arrow types of extra columns: which can be kept, and which type holds the values of two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.arrow import compute as pc


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type for the values of two types, or None if there is none.

    int64 and double -> double; null and string -> string; list<null> and list<int64> -> list<int64>;
    struct<a> and struct<b> -> struct<a, b>; string and int64 -> None

    `cast` checks whether the type holds each value exactly: a double does not hold 2**53 + 1.
    """
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_dictionary(one) or pa.types.is_dictionary(other):
        return join(*(kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)))
    if _is_number(one) and _is_number(other):
        schemas = [pa.schema([("", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    if _is_string(one) and _is_string(other):
        return pa.large_string()
    if _is_list(one) and _is_list(other):
        values = join(one.value_type, other.value_type)
        if values is None:
            return None
        return (
            pa.large_list(values) if pa.types.is_large_list(one) or pa.types.is_large_list(other) else pa.list_(values)
        )
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _join_structs(one, other)
    return None


def _join_structs(one: pa.StructType, other: pa.StructType) -> pa.StructType | None:
    """Return a struct of the fields of both, in order of first occurrence."""
    fields = {field.name: field.type for field in one}
    for field in other:
        joined = join(fields.get(field.name, pa.null()), field.type)
        if joined is None:
            return None
        fields[field.name] = joined
    return pa.struct(list(fields.items()))


def join_by_name(tables: Iterable[Mapping[str, pa.DataType]]) -> dict[str, pa.DataType]:
    """Join the types of each column over several tables; the first type stays if there is no common one."""
    joined: dict[str, pa.DataType] = {}
    for table in tables:
        for name, kind in table.items():
            before = joined.get(name, kind)
            joined[name] = join(before, kind) or before
    return joined


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to a type that `join` returned for their type and another.

    Raises:
        ArrowInvalid: the type does not hold a value exactly.
    """
    if array.type.equals(kind):
        return array
    try:
        return array.cast(kind)
    except pa.ArrowTypeError:  # before pyarrow 20, casts cannot add fields to a struct
        return pa.array(array.to_pylist(), kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is kept: string for string_view, storage or value type for wrapped types."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = plain_type(kind.value_type)
        if not values.equals(kind.value_type):
            return pa.list_(values) if pa.types.is_list(kind) else pa.large_list(values)
    if pa.types.is_struct(kind):
        fields = [(field.name, plain_type(field.type)) for field in kind]
        if any(not plain.equals(field.type) for (_, plain), field in zip(fields, kind, strict=True)):
            return pa.struct(fields)
    return kind


def as_plain(array: pa.Array) -> pa.Array:
    """Return the values of a column in its `plain_type`."""
    kind = plain_type(array.type)
    if array.type.equals(kind):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return as_plain(array.storage)
    return as_plain(pc.run_end_decode(array)) if pa.types.is_run_end_encoded(array.type) else array.cast(kind)


def can_be_kept(kind: pa.DataType) -> bool:
    """Whether values of a type can be taken, joined and nulled, which excludes unions and list views."""
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) or _has_union(plain_type(kind)):
        return False
    try:
        values = as_plain(pa.nulls(2, kind))
        values = pa.concat_arrays([values, values]).take(as_arrow(np.zeros(1, np.int64)))
        pc.if_else(pc.is_null(values), pa.nulls(1, values.type)[0], values)
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


def _has_union(kind: pa.DataType) -> bool:
    """Whether a type is a union, which has no null, at any level of nesting."""
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_union(kind) or any(map(_has_union, inside))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
