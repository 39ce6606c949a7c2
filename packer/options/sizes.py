"""Sizes in bytes, read and written."""

from __future__ import annotations

import re
from decimal import Decimal

from packer.errors import PackerError

_DECIMAL = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = _DECIMAL | {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Bytes of a size like 512MB, 2GiB or 1000000.

    Raises:
        PackerError: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", text.upper())
    unit = match[2] if match else "?"
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or (unit not in _UNITS and unit != "B"):
        raise PackerError(f"{text!r} is not a size: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(Decimal(match[1]) * _UNITS.get(unit, 1))


def byte_size(size: int) -> str:
    """Write bytes in powers of 1,000, as `--shard-size 512MB` reads them: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"
