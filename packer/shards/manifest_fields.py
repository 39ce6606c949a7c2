"""The fields of a manifest that readers rely on, and the check that each holds a value of its kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from packer.options import Option, PackOptions, options_of

_DEEPEST = 8  # levels of lists and objects in a field that this version does not know


class _Value(NamedTuple):
    """A kind of value that holds no others."""

    name: str
    """What an error message calls it."""

    fits: Callable[[Any], bool]
    """Whether a value is of this kind."""


def _whole(least: int, most: int) -> _Value:
    return _Value(f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def _number(least: float) -> _Value:
    what = "a number above 0" if least else "a number from 0"
    return _Value(what, lambda value: type(value) in (int, float) and least <= value <= sys.float_info.max)


def _or_null(kind: _Value) -> _Value:
    return _Value(f"{kind.name}, or null", lambda value: value is None or kind.fits(value))


_TEXT = _Value("a string", lambda value: type(value) is str)
_FLAG = _Value("true or false", lambda value: type(value) is bool)
_COUNT, _POSITIVE = _whole(0, 2**63 - 1), _whole(1, 2**63 - 1)
_SHARE, _WEIGHT = _number(0), _number(sys.float_info.min)
_EVERY = "*"

_TOKENIZED = {"tokenizer": _TEXT, "columns": [_TEXT], "train_on": _TEXT}
_TAKEN = {"documents": _COUNT, "tokens_kept": _COUNT}


def _kind_of(option: Option) -> Any:
    """Kind of an option: choices are any text, because a later version may have more of them."""
    kind = _TEXT if option.choices else _Value(option.expected, option.accepts)
    if option.is_list:
        return [kind]
    return _or_null(kind) if option.is_optional else kind


def option_kinds(declaration: type) -> dict[str, Any]:
    """Kinds of declared options by name; "?" marks those that may be absent, which is all but the required ones."""
    options = options_of(declaration)
    return {name if option.is_required else f"{name}?": _kind_of(option) for name, option in options.items()}


OPTIONS = option_kinds(PackOptions)
"""Kind of every option, by name; the name of one that may be absent ends in "?"."""

SHARD = {
    "file": _TEXT,
    "rows": _POSITIVE,
    "tokens": _COUNT,
    "trained": _COUNT,
    "untrained_segments": _COUNT,
    "bytes": _COUNT,
    "xxh3_128": _TEXT,
}
"""Kind of every field of a shard."""

FIELDS = {
    "options": OPTIONS,
    "source": {
        "files": [{"name": _TEXT, "bytes": _COUNT}],
        "lengths_xxh3_128": _TEXT,
        "labels": _FLAG,
        "text?": _TOKENIZED,
        "mixture?": [
            {
                "name": _TEXT,
                "weight": _WEIGHT,
                "labels": _FLAG,
                "tokens_kept": _POSITIVE,
                "taken": _TAKEN,
                "text?": _TOKENIZED,
            }
        ],
    },
    "totals": {
        "documents": _COUNT,
        "documents_split": _COUNT,
        "documents_truncated": _COUNT,
        "documents_dropped": {_EVERY: _COUNT},
        "documents_straddling?": _COUNT,
        "documents_untrained?": _COUNT,
        "packs": _POSITIVE,
        "pool_packs": _COUNT,
        "lower_bound": _POSITIVE,
        "efficiency": _SHARE,
        "segments": _COUNT,
        "segments_untrained": _COUNT,
        "tokens": _COUNT,
        "tokens_packed": _POSITIVE,
        "tokens_trained": _COUNT,
        "tokens_repeated": _COUNT,
        "tokens_truncated": _COUNT,
        "tokens_dropped": {_EVERY: _COUNT},
        "groups?": {"groups": _COUNT, "documents_without": _COUNT, "packs_ungrouped": _POSITIVE},
    },
    "shards": [SHARD],
    "files": {_EVERY: _TEXT},
}
"""Kind of every field that readers rely on: a list of one kind holds values of that kind."""


def check_fields(value: Any, kind: Any = FIELDS, name: str = "the manifest") -> None:
    """Check the fields of a manifest; those that this version does not know may hold anything that is not too deep.

    Args:
        value: what the field holds.
        kind: as in FIELDS.
        name: the field, for the message.

    Raises:
        KeyError: a field is missing.
        TypeError: a field holds a value of another kind, or beyond its limits.
    """
    if isinstance(kind, _Value):
        if not kind.fits(value):
            raise TypeError(f"{name} is {_short(value)}, not {kind.name}")
    elif isinstance(kind, list):
        if type(value) is not list:
            raise TypeError(f"{name} is {_short(value)}, not a list")
        for number, one in enumerate(value):
            check_fields(one, kind[0], f"{name}[{number}]")
    else:
        if type(value) is not dict:
            raise TypeError(f"{name} is {_short(value)}, not an object")
        known = dict.fromkeys(value, kind[_EVERY]) if _EVERY in kind else _known(kind, value)
        for key, one in value.items():
            inside = key if kind is FIELDS else f"{name}.{key}"
            if key in known:
                check_fields(one, known[key], inside)
            elif _depth(one) > _DEEPEST:
                raise TypeError(f"{inside[:40]} is nested deeper than {_DEEPEST} levels")


def _known(kind: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
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
