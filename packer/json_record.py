"""Dataclasses that are written as JSON objects, and checked against their declarations when they are read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

SomeRecord = TypeVar("SomeRecord", bound="JsonRecord")

Collected = TypeVar("Collected", dict[str, object], list[object])


class ValueKind(NamedTuple):
    """A kind of values other than lists and objects: its name in messages, and whether a value is of this kind."""

    name: str
    fits: Callable[[Any], bool]


def whole_number(least: int, most: int) -> ValueKind:
    """Return the kind of whole numbers from `least` to `most`."""
    return ValueKind(
        f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most
    )


def number(least: float, most: float = sys.float_info.max) -> ValueKind:
    """Return the kind of numbers from `least` to `most`, whole or not; NaN is none of them."""
    limits = "above 0" if least == sys.float_info.min else f"from {least}"
    limits += "" if most == sys.float_info.max else f" to {most}"
    return ValueKind(f"a number {limits}", lambda value: type(value) in (int, float) and least <= value <= most)


def or_null(kind: ValueKind) -> ValueKind:
    """Return the kind that also holds null."""
    return ValueKind(f"{kind.name}, or null", lambda value: value is None or kind.fits(value))


TEXT = ValueKind("a string", lambda value: type(value) is str)
FLAG = ValueKind("true or false", lambda value: type(value) is bool)
_WHOLE = whole_number(-(2**63), 2**63 - 1)
_SIMPLE: dict[Any, ValueKind] = {str: TEXT, bool: FLAG, int: _WHOLE, object: ValueKind("any value", lambda value: True)}

Count = Annotated[int, whole_number(0, 2**63 - 1)]
DocumentCount = Annotated[int, whole_number(0, 2**40)]  # a trillion: their lengths alone take 4 TB
Positive = Annotated[int, whole_number(1, 2**63 - 1)]
Ratio = Annotated[float, number(0)]


class JsonRecord:
    """Base of frozen dataclasses that are written as JSON objects.

    A field holds a string, a bool, an integer, a number of an annotated type (such as `Count`), another record, a tuple
    of these, or a mapping from names to these. A field that equals its default is left out of the object, as is one
    that records are not compared by, such as a path.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class File(JsonRecord):
    ...     name: str
    ...     rows: Count
    ...     columns: tuple[str, ...] = ()
    >>> File(name="a.arrow", rows=3).to_dict()
    {'name': 'a.arrow', 'rows': 3}
    >>> File.from_dict({"name": "a.arrow", "rows": -3})
    TypeError: rows is -3, not a whole number from 0 to 9223372036854775807
    """

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        """Return the values of the fields by name, not converted to JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with keys in the order of the fields."""
        defaults = {field.name: field.default for field in fields(self) if field.compare}  # type: ignore[arg-type]
        return {
            name: _to_json(value)
            for name, value in self.values().items()
            if name in defaults and (defaults[name] is MISSING or value != defaults[name])
        }

    @classmethod
    def from_dict(cls: type[SomeRecord], content: object, name: str = "") -> SomeRecord:
        """Read the record of a JSON object; see `read_fields` for the name and errors."""
        types, optional = _declared(cls)  # type: ignore[arg-type]
        return cls(**read_fields(content, types, optional, name=name))


def read_fields(
    content: object, types: Mapping[str, object], optional: frozenset[str] = frozenset(), *, name: str = ""
) -> dict[str, Any]:
    """Check the fields of a JSON object and return their values.

    Unknown fields, which later versions may add, are ignored. A type is a `ValueKind`, or one that a field of a
    `JsonRecord` may have; `name` stands for the object in messages, and is empty for the manifest. Raises a KeyError
    for missing fields, and a TypeError for values of another kind or outside their limits.
    """
    found = _typed(content, dict, name)
    for field in types:
        if field not in found and field not in optional:
            raise KeyError(field)
    inside = f"{name}." if name else ""
    return {field: _read(types[field], value, inside + field) for field, value in found.items() if field in types}


def _read(hint: object, value: object, name: str) -> object:
    """Return a JSON value as a value of the type `hint`."""
    if isinstance(hint, type) and issubclass(hint, JsonRecord):
        return hint.from_dict(value, name)
    if get_origin(hint) is tuple:
        ones = enumerate(_typed(value, list, name))
        return tuple(_read(get_args(hint)[0], one, f"{name}[{number}]") for number, one in ones)
    if get_origin(hint) is Mapping:
        found = _typed(value, dict, name)
        return {key: _read(get_args(hint)[1], one, f"{name}.{key}") for key, one in found.items()}
    kind: ValueKind = hint if isinstance(hint, ValueKind) else _SIMPLE.get(hint) or get_args(hint)[1]
    if not kind.fits(value):
        raise TypeError(f"{name} is {_short(value)}, not {kind.name}")
    return value


def _typed(value: object, expected: type[Collected], name: str) -> Collected:
    if type(value) is expected:
        return value
    words = "an object" if expected is dict else "a list"
    raise TypeError(f"{name or 'the manifest'} is {_short(value)}, not {words}")


@cache
def _declared(record: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the type of every field, without the None of optional ones, and the names of the optional ones."""
    types, hints = {}, get_type_hints(record, include_extras=True)
    for name in (field.name for field in fields(record) if field.compare):
        hint = hints[name]
        others = [each for each in get_args(hint) if each is not type(None)]
        types[name] = others[0] if type(None) in get_args(hint) else hint
    return types, frozenset(field.name for field in fields(record) if field.default is not MISSING)


def _to_json(value: object) -> object:
    if isinstance(value, JsonRecord):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _to_json(one) for name, one in value.items()}
    return value


def _short(value: object) -> str:
    """Return the first 40 characters of a value as JSON."""
    return json.dumps(value)[:40]
