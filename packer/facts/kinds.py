"""Kinds of JSON values, and the check that every known field of a manifest holds a value of its kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

_DEEPEST = 8  # levels of lists and objects in a field that this version does not know


class Kind(NamedTuple):
    """A kind of value that holds no others."""

    name: str
    """What an error message calls it."""

    fits: Callable[[Any], bool]
    """Whether a value is of this kind."""


def _whole(least: int, most: int) -> Kind:
    return Kind(f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def _number(least: float) -> Kind:
    what = "a number above 0" if least else "a number from 0"
    return Kind(what, lambda value: type(value) in (int, float) and least <= value <= sys.float_info.max)


def or_null(kind: Kind) -> Kind:
    """Return the kind that also holds null."""
    return Kind(f"{kind.name}, or null", lambda value: value is None or kind.fits(value))


TEXT = Kind("a string", lambda value: type(value) is str)
ANY = Kind("any value", lambda value: True)
FLAG = Kind("true or false", lambda value: type(value) is bool)
EVERY = "*"
"""In place of a field's name: the object may have fields of any name, all of one kind."""

Whole = Annotated[int, _whole(-(2**63), 2**63 - 1)]
Count = Annotated[int, _whole(0, 2**63 - 1)]
Positive = Annotated[int, _whole(1, 2**63 - 1)]
Ratio = Annotated[float, _number(0)]
Weight = Annotated[float, _number(sys.float_info.min)]

Kinds = Any
"""A `Kind`; a list of one kind, for lists of such values; or a dict of kinds by the name of the field, for objects. A
name that ends in "?" marks a field that may be absent."""


def check_fields(value: Any, kind: Kinds, name: str = "") -> None:
    """Check the fields of a manifest; those that this version does not know may hold anything that is not too deep.

    Args:
        value: what the field holds.
        kind: what it should hold.
        name: the field, for the message; empty for the manifest itself.

    Raises:
        KeyError: a field is missing.
        TypeError: a field holds a value of another kind, or beyond its limits.
    """
    told = name or "the manifest"
    if isinstance(kind, Kind):
        if not kind.fits(value):
            raise TypeError(f"{told} is {_short(value)}, not {kind.name}")
    elif isinstance(kind, list):
        if type(value) is not list:
            raise TypeError(f"{told} is {_short(value)}, not a list")
        for number, one in enumerate(value):
            check_fields(one, kind[0], f"{name}[{number}]")
    else:
        if type(value) is not dict:
            raise TypeError(f"{told} is {_short(value)}, not an object")
        known = dict.fromkeys(value, kind[EVERY]) if EVERY in kind else _known(kind, value)
        for key, one in value.items():
            inside = f"{name}.{key}" if name else key
            if key in known:
                check_fields(one, known[key], inside)
            elif _depth(one) > _DEEPEST:
                raise TypeError(f"{inside[:40]} is nested deeper than {_DEEPEST} levels")


def _known(kind: Mapping[str, Kinds], value: Mapping[str, Any]) -> dict[str, Kinds]:
    """The kinds of an object's fields by their names, optional or not.

    Raises:
        KeyError: one that is not optional is missing.
    """
    for name in kind:
        if not name.endswith("?") and name not in value:
            raise KeyError(name)
    return {name.removesuffix("?"): of for name, of in kind.items()}


def _depth(value: Any) -> int:
    """Levels of lists and objects, counted to one more than the deepest that is allowed."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        nested = [one for one in level if isinstance(one, (list, dict))]
        depth += bool(nested)
        level = [part for one in nested for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _short(value: Any) -> str:
    """The beginning of a value as JSON has it."""
    return "nested too deeply" if _depth(value) > _DEEPEST else json.dumps(value)[:40]
