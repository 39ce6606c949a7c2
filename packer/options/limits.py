"""Limits on what a row may hold besides tokens: "images:16" as ("images", 16)."""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import PackerError

_INT32 = 2**31 - 1


def limits_of(limits: Sequence[str]) -> dict[str, int]:
    """Return the largest sum in a row by the name of the column.

    Raises:
        PackerError: a limit is not a column and a number, or a column is named twice.
    """
    found: dict[str, int] = {}
    for limit in limits:
        column, colon, most = limit.rpartition(":")
        if not colon or not column or not most.isdecimal() or not 1 <= int(most) <= _INT32:
            raise PackerError(
                f"--limit is {limit!r}: give a column and the most that a row may hold, 1 to {_INT32}, as in images:16"
            )
        if column in found:
            raise PackerError(f"--limit names {column!r} twice: give one limit for each column")
        found[column] = int(most)
    return found
