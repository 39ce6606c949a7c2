"""Dataclasses that are written as JSON objects and checked when they are read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from packer.facts.kinds import ANY, EVERY, FLAG, TEXT, Kind, Kinds

SomeFacts = TypeVar("SomeFacts", bound="Facts")


class Facts:
    """Base of frozen dataclasses that are written as JSON objects.

    A field holds a string, a bool, a number of a type in `kinds` (such as `Count`), other facts, a tuple of these, or a
    mapping from names to these. A field that equals its default is left out of the object.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class File(Facts):
    ...     name: str
    ...     rows: Count
    ...     columns: tuple[str, ...] = ()
    >>> File(name="a.arrow", rows=3).to_dict()
    {'name': 'a.arrow', 'rows': 3}
    >>> check_fields({"name": "a.arrow", "rows": -3}, kinds_of(File))
    TypeError: rows is -3, not a whole number from 0 to 9223372036854775807
    """

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        """Return the values of the fields by name, not converted to JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with keys in the order of the fields."""
        values = self.values()
        return {
            field.name: _to_json(values[field.name])
            for field in fields(self)  # type: ignore[arg-type]
            if field.default is MISSING or values[field.name] != field.default
        }

    @classmethod
    def from_dict(cls: type[SomeFacts], content: Mapping[str, Any]) -> SomeFacts:
        """Build the facts from an object that passed `check_fields`, ignoring unknown fields of later versions."""
        hints = _hints(cls)  # type: ignore[arg-type]
        return cls(**{name: _from_json(hint, content[name]) for name, hint in hints.items() if name in content})


def kinds_of(facts: type[Facts]) -> dict[str, Kinds]:
    """Return the kind of every field, for `check_fields`."""
    kinds = {name: _kind_of(hint) for name, hint in _hints(facts).items()}  # type: ignore[arg-type]
    is_optional = {field.name: field.default is not MISSING for field in fields(facts)}  # type: ignore[arg-type]
    return {f"{name}?" if is_optional[name] else name: kind for name, kind in kinds.items()}


@cache
def _hints(facts: type[Any]) -> dict[str, Any]:
    """Return the type of every field, without the None of optional ones."""
    hints = {}
    for name, hint in get_type_hints(facts, include_extras=True).items():
        kinds = [each for each in get_args(hint) if each is not type(None)]
        hints[name] = kinds[0] if type(None) in get_args(hint) else hint
    return hints


def _kind_of(hint: Any) -> Kinds:
    simple: dict[Any, Kind] = {str: TEXT, bool: FLAG, object: ANY}
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and issubclass(hint, Facts):
        return kinds_of(hint)
    if get_origin(hint) is tuple:
        return [_kind_of(get_args(hint)[0])]
    if get_origin(hint) is Mapping:
        return {EVERY: _kind_of(get_args(hint)[1])}
    kind: Kind = hint.__metadata__[0]
    return kind


def _from_json(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Facts):
        return hint.from_dict(value)
    if get_origin(hint) is tuple:
        return tuple(_from_json(get_args(hint)[0], one) for one in value)
    if get_origin(hint) is Mapping:
        return {name: _from_json(get_args(hint)[1], one) for name, one in value.items()}
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, Facts):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _to_json(one) for name, one in value.items()}
    return value
