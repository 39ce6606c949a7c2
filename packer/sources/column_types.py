"""Columns: names, types, values as Python objects, and the columns that control training (masks, weights).

The module also finds the types that can be kept, and the common type of a column in several files. Columns of Arrow's
JSON type (`arrow.json`, strings of JSON) are decoded. `datasets` uses that type if types or keys differ between
records, and DuckDB writes it to Parquet. Errors name the first value that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, as_scalar, is_numeric, of_one_type
from packer.arrow import compute as pc
from packer.column_names import ROLES
from packer.errors import OtherSourceError, PackerError, SourceError
from packer.sources.documents import LONGEST, Columns, DocumentError, columns_of_side
from packer.sources.meanings import FIELDS, MASKS, ONLY_LISTS, SAYING, WEIGHTS, names

Fields: TypeAlias = pa.Schema | Mapping[str, object]
"""Columns of a file: its schema, or one of its records."""


def loss_columns(fields: Fields, names: Iterable[str] = SAYING, *, depth: int = 1) -> dict[str, bool]:
    """Return the columns among `names` that a file has, and whether each has a list for each document.

    Columns without meaning for training are left out: weights that are null, and columns that must hold lists but are
    not nested `depth` levels deep like the tokens.
    """
    types = dict(zip(fields.names, fields.types, strict=True)) if isinstance(fields, pa.Schema) else fields
    levels = {name: _levels(types[name]) for name in names if name in types}
    return {
        name: name in MASKS or (name in WEIGHTS and level > 0)
        for name, level in levels.items()
        if (level == depth or name not in ONLY_LISTS) and (level >= 0 or name not in WEIGHTS)
    }


def holds_lists(fields: Fields, name: str, file: str) -> bool:
    """Whether a column has a list for each document. Raises a SourceError if it is missing, or has lists of lists."""
    if name not in names_of(fields):
        raise SourceError(f"{file}: no column '{name}' (found: {', '.join(names_of(fields))})")
    level = _levels(fields.field(name).type if isinstance(fields, pa.Schema) else fields[name])
    if level > 1:
        raise SourceError(f"{file}: '{name}' holds lists of lists; expected a number per document or per token")
    return level == 1


def names_of(fields: Fields) -> list[str]:
    """Return the names of the columns."""
    return [*(fields.names if isinstance(fields, pa.Schema) else fields)]


def _levels(found: object) -> int:
    """Return the number of list levels in a type or value; -1 for null."""
    if isinstance(found, pa.BaseExtensionType):
        return _levels(found.storage_type)
    if isinstance(found, (list, pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        inside = found.value_type if isinstance(found, pa.DataType) else next(iter(found), None)
        return 1 + max(_levels(inside), 0)
    return -1 if found is None or (isinstance(found, pa.DataType) and pa.types.is_null(found)) else 0


_DEEPEST = 50  # an Arrow stream supports up to 64 levels, including its own
_REASONS = (pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError)  # raised by pyarrow


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type for the values of both types, or None if there is none.

    int64 and double -> double; null and string -> string; list<null> and list<int64> -> list<int64>;
    struct<a> and struct<b> -> struct<a, b>; string and int64 -> None

    `cast` checks whether the type holds each value exactly: a double does not hold 2**53 + 1.
    """
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    one, other = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other))
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    try:
        joined = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None
    is_binary = pa.types.is_binary(joined) or pa.types.is_large_binary(joined)
    becomes_bytes = is_binary and is_string(one) != is_string(other)
    return None if becomes_bytes or _rounds(one, joined) or _rounds(other, joined) else joined


def _rounds(kind: pa.DataType, joined: pa.DataType) -> bool:
    """Whether a joined type turns decimals of a type, at any level, into floats."""
    if pa.types.is_decimal(kind):
        return not pa.types.is_decimal(joined)
    inside = ((kind.field(number), number) for number in range(kind.num_fields))
    by_name = pa.types.is_struct(kind)
    return any(_rounds(field.type, joined.field(field.name if by_name else at).type) for field, at in inside)


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to a type from `join`. Raises ArrowInvalid if the type does not represent a value exactly."""
    if array.type.equals(kind):
        return array
    try:
        return array.cast(kind)
    except pa.ArrowTypeError:  # before pyarrow 20, casts cannot add fields to a struct
        return pa.array(array.to_pylist(), kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is kept: string for string_view, the storage or value type for wrapped types.

    JSON keeps its type, because its storage is text rather than values; see `python_values`.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind if is_json(kind) else plain_type(kind.storage_type)
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


def _can_be_kept(kind: pa.DataType) -> bool:
    """Whether values of a type support `take`, type joins and nulls; unions and list views do not."""
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) or has_type(kind, pa.types.is_union):
        return False
    try:
        values = as_plain(pa.nulls(2, kind))
        values = pa.concat_arrays([values, values]).take(as_arrow(np.zeros(1, np.int64)))
        pc.if_else(pc.is_null(values), pa.nulls(1, values.type)[0], values)
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


def has_type(kind: pa.DataType, is_sought: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or a type nested in it, satisfies a function such as `pa.types.is_union`."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_sought(kind) or has_type(kind.storage_type, is_sought)
    inside = (kind.field(number).type for number in range(kind.num_fields))
    return is_sought(kind) or any(has_type(each, is_sought) for each in inside)


def is_json(kind: pa.DataType) -> bool:
    """Whether a type is Arrow's JSON: strings of JSON."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def holds_json(kind: pa.DataType) -> bool:
    """Whether a type is JSON, or contains it at any level."""
    return has_type(kind, is_json)


def is_string(kind: pa.DataType) -> bool:
    """Whether a type is a string, large or not."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list, including large and fixed-size lists, but not list views."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _holds_numbers(kind: pa.DataType, column: str) -> bool:
    """Whether a type is a list of numbers, or a list of such lists. Null types count: a later file may give their type.

    Masks and weights may not be lists of lists.
    """
    if not is_list(kind):
        return False
    value = kind.value_type
    if is_list(value) and column not in (*MASKS, *WEIGHTS):
        value = value.value_type
    return any(is_kind(value) for is_kind in (is_numeric, pa.types.is_boolean, pa.types.is_null))


def infer(values: Sequence[object], column: str) -> pa.Array:
    """Return values from JSON as an array of the narrowest type that represents each value exactly.

    Raises a DocumentError with the index of the first value that does not fit.
    """
    plain = of_one_type(values)
    if plain is not None:
        return plain
    try:
        array = pa.array(values)
        if not _is_deep(array.type) and not any(_has_odd_bool(value, array.type) for value in values):
            return array
    except _REASONS:
        pass
    kind = pa.null()
    arrays = []
    for row, value in enumerate(values):
        try:
            arrays.append(pa.array([value]))
        except _REASONS as error:
            raise _unfit(row, column, value, _reason(error)) from None
        if _is_deep(arrays[-1].type):
            raise _unfit(row, column, value, f"nested more than {_DEEPEST} deep; flatten it")
        if _has_odd_bool(value, arrays[-1].type):
            raise _unfit(row, column, value, "a mix of numbers and booleans; use one type")
        kind = join_with(kind, arrays[-1], column, first_row=row)
    return pa.concat_arrays([widen(array, kind, column, first_row=row) for row, array in enumerate(arrays)])


def widen(array: pa.Array, kind: pa.DataType, column: str, *, first_row: int = 0) -> pa.Array:
    """Cast values to a type that was joined from their type and others.

    Raises a DocumentError if the type does not represent a value exactly. Its index counts from `first_row`.
    """
    try:
        return cast(array, kind)
    except pa.ArrowInvalid:
        row = next(row for row in range(len(array)) if not _fits(array.slice(row, 1), kind))
        message = f"'{column}' holds {shown(array[row].as_py())}, and other documents make the column {kind}, which"
        raise DocumentError(first_row + row, f"{message} cannot hold it exactly; use one type") from None


def join_with(kind: pa.DataType, array: pa.Array, column: str, *, first_row: int = 0) -> pa.DataType:
    """Return the narrowest type for values of `kind` and of an array.

    Raises a DocumentError if there is none. The index of the first value that does not fit counts from `first_row`.
    """
    joined = join(kind, array.type)
    if joined is not None:
        return joined
    filled = [row for row in range(len(array)) if array[row].is_valid]
    if not filled:
        return kind
    row = next((row for row in filled if not _joins(array[row], kind)), filled[0])
    message = f"'{column}' holds {shown(array[row].as_py())}, where documents before it hold {kind}; use one type"
    raise DocumentError(first_row + row, message)


def cast_to_common_type(arrays: Sequence[pa.Array], column: str) -> list[pa.Array]:
    """Cast arrays to their common type. The index in a DocumentError counts across all arrays."""
    kind, rows = pa.null(), [0, *accumulate(map(len, arrays))]
    for array, row in zip(arrays, rows, strict=False):
        kind = join_with(kind, array, column, first_row=row)
    return [widen(array, kind, column, first_row=row) for array, row in zip(arrays, rows, strict=False)]


def require_lists(array: pa.Array, column: str) -> pa.Array:
    """Return lists of numbers from JSON; null lists if all are null. Raises a DocumentError for other values."""
    if pa.types.is_null(array.type):
        return array.cast(pa.list_(pa.null()))
    if _holds_numbers(array.type, column):
        return array
    row = next(row for row, value in enumerate(array) if value.is_valid and not _holds_numbers(_type_of(value), column))
    expected = "where a list of numbers is expected, one for each token"
    raise DocumentError(row, f"'{column}' holds {shown(array[row].as_py())} {expected}", reason="invalid_value")


def shown(value: object) -> str:
    """Return a value as JSON, cut to 40 characters, for a message."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "[...]"
    return text if len(text) <= 40 else text[:37] + "..."


def _unfit(row: int, column: str, value: object, why: str) -> DocumentError:
    """Return the error for a value that no type can represent."""
    return DocumentError(row, f"'{column}' holds {shown(value)}: {why}", reason="invalid_value")


def _reason(error: BaseException) -> str:
    """Return why pyarrow rejects a value, with the remedy."""
    if isinstance(error, OverflowError) or "too large" in str(error):
        return f"integers are from {-(2**63)} to {2**63 - 1}; write it as a float or a string"
    if isinstance(error, UnicodeError):
        return "a lone surrogate, which UTF-8 cannot hold; fix the source"
    return "a list, or a list inside it, has values of several types; use one type"


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        cast(array, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _joins(value: pa.Scalar, kind: pa.DataType) -> bool:
    """Whether a type can be joined with the type of a value. A list of nulls can be joined with any list."""
    try:
        return join(kind, _type_of(value)) is not None
    except _REASONS:
        return False


def _type_of(value: pa.Scalar) -> pa.DataType:
    return pa.array([value.as_py()]).type


def _is_deep(kind: pa.DataType, levels: int = _DEEPEST) -> bool:
    """Whether lists and structs are nested more than `levels` deep."""
    if pa.types.is_struct(kind):
        return levels == 0 or any(_is_deep(field.type, levels - 1) for field in kind)
    return pa.types.is_list(kind) and (levels == 0 or _is_deep(kind.value_type, levels - 1))


def _has_odd_bool(value: object, kind: pa.DataType) -> bool:
    """Whether there is a bool among floats; pyarrow would convert it to 0.0 or 1.0."""
    if isinstance(value, bool):
        return bool(pa.types.is_floating(kind))
    if isinstance(value, list):
        return any(_has_odd_bool(item, kind.value_type) for item in value)
    if isinstance(value, dict):
        return any(_has_odd_bool(item, kind.field(name).type) for name, item in value.items())
    return False


TOKEN_TYPES = "list, large_list or fixed_size_list of integers (int8 to int64, uint8 to uint64)"


def find_columns(schema: pa.Schema, name: str, columns: Columns) -> bool:
    """Check the columns of a file, and return whether it has labels.

    Raises an error if a column is missing, occurs twice, or has the wrong type, or if the file has a mask that the
    first file lacks.
    """
    require_column(schema, name, columns)
    has_labels = columns.labels in schema.names
    for column in columns.wanted(has_labels=has_labels):
        _require_one(schema, column, name)
    for column in loss_columns(schema, columns.absent):
        raise SourceError(
            f"{name}: has a column '{column}', and the first file has none; give it to all files or to none"
        )
    for column in columns.extra:
        found = schema.field(column).type
        if column in columns.per_token and not (_holds_numbers(plain_type(found), column) or pa.types.is_null(found)):
            raise SourceError(f"{name}: column '{column}' holds {found}; expected lists of numbers, one for each token")
        if column not in columns.per_token:
            _check_kept(found, column, name)
    for column in columns.wanted(has_labels=has_labels)[: 1 + has_labels]:
        found = schema.field(column).type
        if not is_list(found) or not pa.types.is_integer(found.value_type):
            is_view = pa.types.is_list_view(found) or pa.types.is_large_list_view(found)
            remedy = "; cast it with .cast(pyarrow.list_(pyarrow.int32()))" if is_view else ""
            raise SourceError(f"{name}: column '{column}' holds {found}; expected {TOKEN_TYPES}{remedy}")
        if pa.types.is_fixed_size_list(found) and found.list_size < 1:  # lists of size 0 take no bytes
            raise SourceError(f"{name}: column '{column}' holds {found}, lists of no values; there is nothing to pack")
    return has_labels


def _check_kept(kind: pa.DataType, column: str, name: str) -> None:
    """Raise a `SourceError` if a column with one value per document has a type that cannot be kept, such as a union."""
    if not holds_json(kind) and not _can_be_kept(kind):  # types inside JSON are known only after reading all values
        raise SourceError(
            f"{name}: column '{column}' holds {kind}, which is not supported; "
            "save it as strings, numbers, lists or structs"
        )


def require_column(fields: pa.Schema | Mapping[str, object], name: str, columns: Columns) -> None:
    """Raise an `OtherSourceError` if the schema or first record of a file lacks the token column."""
    names = names_of(fields)
    if columns.input_ids not in names:
        found = ", ".join(names) or "none"
        others = {field.name for field in FIELDS["tokens"] if field.means != "token_ids"}
        kinds = [(each.name, each.type) for each in fields] if isinstance(fields, pa.Schema) else fields.items()
        lists = [each for each, kind in kinds if each not in others and _holds_ids(kind)]
        remedy = f"name the tokens' column with --input-column {lists[0]}" if lists else ""
        if {*names} - others - {*lists} or not lists:
            remedy = f"give --tokenizer to pack text or chats{', or ' if lists else ''}{remedy}"
        if columns.input_ids == columns_of_side(ROLES[0]).input_ids:  # columns of pairs have fixed names
            remedy = "give --tokenizer to pack text, or leave --pairs out"
        raise OtherSourceError(f"{name}: no column '{columns.input_ids}' (found: {found})", remedy)


def _holds_ids(found: object) -> bool:
    """Whether a type or a value is a list of integers."""
    if isinstance(found, pa.DataType):
        return is_list(found) and bool(pa.types.is_integer(found.value_type))
    return isinstance(found, list) and bool(found) and all(type(value) is int for value in found)


def require_kept(schema: pa.Schema, columns: Sequence[str], name: str) -> None:
    """Raise an error unless a file has each column to keep exactly once, with a type that can be kept."""
    for column in columns:
        _require_one(schema, column, name)
        _check_kept(schema.field(column).type, column, name)


def _require_one(schema: pa.Schema, column: str, name: str) -> None:
    """Raise an error unless a file has the column exactly once."""
    if column not in schema.names:
        raise PackerError(f"{name}: no column '{column}' (found: {', '.join(schema.names)}); all files need it")
    refuse_twins(schema, column, name)


def refuse_twins(schema: pa.Schema, column: str, name: str) -> None:
    """Raise a `SourceError` if several columns of a file have this name."""
    if schema.names.count(column) > 1:
        raise SourceError(f"{name}: {schema.names.count(column)} columns are named '{column}'; keep one")


def one_type(owner: str, name: str, types: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """Return the common type of a column in all files; null if there are no parts.

    `types` has (name, type) of each part. Raises a SourceError if two types differ.
    """
    first, kind = types[0] if types else ("", pa.null())
    for part, other in types:
        if not other.equals(kind):  # hashes differ for equal lists whose fields Parquet and JSON name differently
            raise SourceError(f"{owner}: column '{name}' is {kind} in {first}, {other} in {part}; use one type")
    return kind


def wrong_numbers(values: pa.Array) -> NDArray[np.int64]:
    """Return the indices of values that are missing, fractional, negative or too large.

    Floats may be whole numbers: a JSON column with 1 and 2.5 has floats.
    """
    if not is_numeric(values.type):
        return np.arange(len(values))
    numbers = as_numpy(values.fill_null(as_scalar(0, values.type)))
    is_good = (numbers >= 0) & (numbers <= LONGEST) & (numbers == np.floor(numbers))
    return np.flatnonzero(~is_good | as_numpy(values.is_null()))


def number_fault(values: pa.Array, row: int, column: str) -> DocumentError:
    """Return the error for a value that `wrong_numbers` found."""
    value = values[row]
    found = value.as_py()
    if found is None:
        message = f"'{column}' is missing; give it a number"
    elif not is_numeric(value.type):
        return DocumentError(row, f"'{column}' holds {no_number(value.type)}")  # no value of the column is a number
    elif isinstance(found, float) and not found.is_integer():
        message = f"'{column}' is {found}; expected a whole number"
    else:
        message = f"'{column}' is {found}; expected 0 to {LONGEST}"
    return DocumentError(row, message, reason="invalid_value")


def no_number(kind: pa.DataType) -> str:
    """Describe a column without whole numbers by its type, for a message: "bool; expected whole numbers"."""
    remedy = "; CSV has text only, so convert it to Parquet or JSON lines" if is_string(kind) else ""
    return f"{kind}; expected whole numbers{remedy}"


_TEXTS = {
    *names("record", "text", "prompt", "input", "completion", "answer", "system"),
    *names("message", "content", "reasoning"),
    *names("part", "content"),
}
"""Fields that hold text, or lists of messages or parts."""


def python_values(array: pa.Array, column: str, *, of_text: bool = False) -> list[Any]:
    """Return the values of a column. Structs become dicts without null fields, and maps become dicts.

    Raises a DocumentError if JSON is invalid. With `of_text`, also raises it if a field of text holds JSON of another
    type.
    """
    decode = _decoder(array.type, column, f"'{column}'", of_text)
    values: list[Any] = array.to_pylist()
    for row, value in enumerate(values) if decode is not _same else ():
        try:
            values[row] = decode(value)
        except DocumentError as fault:
            raise fault.at(row) from None
    return values


def _decoder(kind: pa.DataType, name: str, where: str, of_text: bool) -> Callable[[Any], Any]:
    """Return the function that decodes values of a type, or null. `name` and `where` locate the field in errors."""
    if is_json(kind):
        is_text = of_text and name in _TEXTS
        return lambda text: None if text is None else _parsed(text, where, is_text)
    if pa.types.is_struct(kind):
        of = {one.name: _decoder(one.type, one.name, f"'{one.name}' in {where}", of_text) for one in kind}
        return lambda value: value and {key: v for key, one in value.items() if (v := of[key](one)) is not None}
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _decoder(kind.value_type, name, where, of_text)
    if pa.types.is_map(kind):
        item = _decoder(kind.item_type, "", where, of_text)
        return lambda value: value and {key: item(one) for key, one in value}
    item = _decoder(kind.value_type, "", where, of_text) if hasattr(kind, "value_type") else _same
    return _same if item is _same else lambda value: value and [item(one) for one in value]


def _same(value: Any) -> Any:
    return value


def _parsed(text: str, where: str, is_text: bool) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(0, f"{where} is not the JSON that its type says: {error}", reason="unreadable") from None
    if is_text and type(value) is not str and not (value and isinstance(value, list)):  # null and [] are dropped
        as_json = "datasets stores a text that is itself JSON as its value; pack the JSON lines it was loaded from"
        raise DocumentError(0, f"{where} is {text[:40]} where text is expected: {as_json}", reason="wrong_type")
    return value
