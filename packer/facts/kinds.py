"""Kinds of JSON values, and a check that every known field of a manifest has a value of its kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

_DEEPEST = 8  # levels of lists and objects in a field that this version does not know


class Kind(NamedTuple):
    """A kind of JSON value other than lists and objects."""

    name: str
    """Name of the kind in error messages."""

    fits: Callable[[Any], bool]
    """Whether a value is of this kind."""


def whole_number(least: int, most: int) -> Kind:
    """Return the kind of whole numbers from `least` to `most`."""
    return Kind(f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def _number(least: float) -> Kind:
    name = "a number above 0" if least else "a number from 0"
    return Kind(name, lambda value: type(value) in (int, float) and least <= value <= sys.float_info.max)


def or_null(kind: Kind) -> Kind:
    """Return the kind that also holds null."""
    return Kind(f"{kind.name}, or null", lambda value: value is None or kind.fits(value))


TEXT = Kind("a string", lambda value: type(value) is str)
ANY = Kind("any value", lambda value: True)
FLAG = Kind("true or false", lambda value: type(value) is bool)
EVERY = "*"
"""Key that stands for any field name, in objects whose fields are all of one kind."""

Whole = Annotated[int, whole_number(-(2**63), 2**63 - 1)]
Count = Annotated[int, whole_number(0, 2**63 - 1)]
Documents = Annotated[int, whole_number(0, 2**40)]  # a trillion: their lengths alone take 4 TB
Positive = Annotated[int, whole_number(1, 2**63 - 1)]
Ratio = Annotated[float, _number(0)]
Weight = Annotated[float, _number(sys.float_info.min)]

Kinds = Any
"""A `Kind`; a list of one kind, for lists of such values; or a dict of kinds by the name of the field, for objects. A
name that ends in "?" marks a field that may be absent."""


def check_fields(value: Any, kind: Kinds, name: str = "") -> None:
    """Check the fields of a manifest. Unknown fields may hold any value that is not nested too deeply.

    Args:
        value: value to check.
        kind: expected kind of the value.
        name: name of the field in messages; empty for the manifest itself.

    Raises:
        KeyError: a field is missing.
        TypeError: the value of a field has another kind or is outside its limits.
    """
    label = name or "the manifest"
    if isinstance(kind, Kind):
        if not kind.fits(value):
            raise TypeError(f"{label} is {_short(value)}, not {kind.name}")
    elif isinstance(kind, list):
        if type(value) is not list:
            raise TypeError(f"{label} is {_short(value)}, not a list")
        for number, one in enumerate(value):
            check_fields(one, kind[0], f"{name}[{number}]")
    else:
        if type(value) is not dict:
            raise TypeError(f"{label} is {_short(value)}, not an object")
        known = dict.fromkeys(value, kind[EVERY]) if EVERY in kind else _known(kind, value)
        for key, one in value.items():
            inside = f"{name}.{key}" if name else key
            if key in known:
                check_fields(one, known[key], inside)
            elif _depth(one) > _DEEPEST:
                raise TypeError(f"{inside[:40]} is nested deeper than {_DEEPEST} levels")


def _known(kind: Mapping[str, Kinds], value: Mapping[str, Any]) -> dict[str, Kinds]:
    """Return the kinds of the fields of an object by name, without the "?" of optional ones.

    Raises:
        KeyError: a required field is missing.
    """
    for name in kind:
        if not name.endswith("?") and name not in value:
            raise KeyError(name)
    return {name.removesuffix("?"): of for name, of in kind.items()}


def _depth(value: Any) -> int:
    """Return how deeply lists and objects are nested, counting up to one level above the limit."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        nested = [one for one in level if isinstance(one, (list, dict))]
        depth += bool(nested)
        level = [part for one in nested for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _short(value: Any) -> str:
    """Return the first 40 characters of a value as JSON."""
    return "nested too deeply" if _depth(value) > _DEEPEST else json.dumps(value)[:40]
