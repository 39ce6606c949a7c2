"""Values of Arrow columns as Python objects, with JSON decoded: text of the type `arrow.json`, which holds values.

`datasets` chooses this type where types or keys differ between records, and DuckDB writes it to Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from packer.inputs.column_types import is_json
from packer.inputs.documents import DocumentError
from packer.inputs.meanings import names

_TEXTS = {
    *names("record", "text", "prompt", "input", "completion", "answer", "system"),
    *names("message", "content", "reasoning"),
    *names("part", "content"),
}
"""Fields of text, or of lists of messages or parts."""


def python_values(array: pa.Array, column: str, *, of_text: bool = False) -> list[Any]:
    """Return the values of a column; structs are dicts without their nulls, and maps are dicts.

    A DocumentError is raised if JSON is not valid or, with `of_text`, if a field of text holds something else as JSON.
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
    """Return the function that decodes a value of a type, or null, given the name of its field and where that is."""
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
    if is_text and type(value) is not str and not (value and isinstance(value, list)):  # null and [] would be left out
        as_json = "datasets stores a text that is itself JSON as its value; pack the JSON lines it was loaded from"
        raise DocumentError(0, f"{where} is {text[:40]} where text is expected: {as_json}", reason="wrong_type")
    return value
