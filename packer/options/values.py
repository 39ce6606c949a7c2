"""Values of options as users give them, such as sizes and limits, converted to those that are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from packer.errors import OptionError


def as_length(tokens: int | str) -> int | str:
    """A length in tokens, in which k stands for 1,024, as in the names of models: "4k" -> 4096, "0.5k" -> 512."""
    return _multiple(tokens, {"k": 1 << 10, "m": 1 << 20})


def as_amount(tokens: int | str) -> int | str:
    """An amount of tokens in powers of 1,000: "1.5B" -> 1,500,000,000."""
    return _multiple(tokens, {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12})


def _multiple(value: int | str, units: dict[str, int]) -> int | str:
    """A number with a unit as a whole number; anything else as it is, for `Option.check` to judge."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([a-z]?)\s*", value.lower())
    if found is not None and found[2] in units:
        number = Decimal(found[1]) * units[found[2]]
        return int(number) if number == int(number) else value
    try:
        return int(value)
    except ValueError:
        return value


def as_bytes(size: int | str) -> int:
    """A size in bytes: "512MB" -> 512,000,000."""
    return parse_size(size) if isinstance(size, str) else size


def as_path(path: str | Path | None) -> str | None:
    """A path as a string."""
    return str(path) if isinstance(path, Path) else path


def as_ranks(ranks: int | str | None) -> str | None:
    """A number of ranks, or the word env, as a string."""
    return str(ranks) if isinstance(ranks, int) else ranks


def as_token_columns(columns: str | Sequence[str]) -> tuple[str, ...]:
    """The columns to add: "labels,position_ids" -> ("position_ids",), because labels are written anyway."""
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns
    return tuple(dict.fromkeys(name for name in names if name not in ("", "labels")))


_DECIMAL = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = _DECIMAL | {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Bytes of a size like 512MB, 2GiB or 1000000.

    Raises:
        OptionError: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", text.upper())
    unit = match[2] if match else "?"
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or (unit not in _UNITS and unit != "B"):
        raise OptionError(f"{text!r} is not a size: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(Decimal(match[1]) * _UNITS.get(unit, 1))


def byte_size(size: int) -> str:
    """Write bytes in powers of 1,000, as `--shard-size 512MB` reads them: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"


_INT32 = 2**31 - 1


def limits_of(limits: Sequence[str]) -> dict[str, int]:
    """Return the largest sum in a row by the name of the column.

    Raises:
        OptionError: a limit is not a column and a number, or a column is named twice.
    """
    found: dict[str, int] = {}
    for limit in limits:
        column, colon, most = limit.rpartition(":")
        if not colon or not column or not most.isdecimal() or not 1 <= int(most) <= _INT32:
            raise OptionError(
                f"--limit is {limit!r}: give a column and the most that a row may hold, 1 to {_INT32}, as in images:16"
            )
        if column in found:
            raise OptionError(f"--limit names {column!r} twice: give one limit for each column")
        found[column] = int(most)
    return found
