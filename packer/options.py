"""The options of a pack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.patterns import Patterns
from packer.errors import PackerError
from packer.plan.segments import LONG_POLICIES, LongPolicy

EMITTED = ("labels", "position_ids")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_LARGEST = 2**31 - 1
_LONGEST_ROW = 2**24  # 16 million tokens: what is kept per length (histograms) stays within memory


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """Every option that shapes the bytes of a packed dataset.

    Raises:
        PackerError: a value is outside its limits.
    """

    max_len: int
    """Tokens of a row, at most 2^24."""

    algorithm: str = "auto"
    """Name in the registry of algorithms."""

    max_segments: int | None = None
    """The most segments in a row; None for no limit."""

    gap: float | None = None
    """Rows above the lower bound, as a share of it, at which `optimal` stops; None for none."""

    time_limit: float | None = None
    """Seconds after which `optimal` stops with the best so far, which differs between machines; None for no limit."""

    long: LongPolicy = "split"
    """What happens to documents longer than max_len."""

    seed: int = 0
    """Of every permutation, 0..2^63-1."""

    pad_id: int = 0
    """Token id of the padding."""

    labels: bool = True
    """Whether the `labels` column is written."""

    position_ids: bool = False
    """Whether the `position_ids` column is written."""

    shard_size: int = 512 * 10**6
    """Bytes a shard should have at most."""

    split: str | None = None
    """Split of a DatasetDict or a Hub dataset."""

    input_column: str = "input_ids"
    """Name of the column of tokens in the source."""

    labels_column: str = "labels"
    """Name of the column of labels in the source; it need not be there."""

    def __post_init__(self) -> None:
        algorithm = get_algorithm(self.algorithm)
        for name, most in (("gap", 1.0), ("time_limit", float("inf"))):
            limit = getattr(self, name)
            if limit is None:
                continue
            if not (isinstance(algorithm, Algorithm) and algorithm.limited):
                raise PackerError(
                    f"{name} is {limit!r}, and {algorithm.name} has no use for it: choose algorithm optimal"
                )
            if type(limit) not in (int, float) or not 0 <= limit <= most:  # NaN is not, either
                raise PackerError(f"{name} is {limit!r}: it must be a number from 0" + (" to 1" if most == 1 else ""))
        if self.long not in LONG_POLICIES:
            raise PackerError(f"long is {self.long!r}: choose one of {', '.join(LONG_POLICIES)}")
        for name, value, least, most in (
            ("max_len", self.max_len, 1, _LONGEST_ROW),
            ("max_segments", self.max_segments, 1, _LARGEST),
            ("seed", self.seed, 0, 2**63 - 1),
            ("pad_id", self.pad_id, 0, _LARGEST),
            ("shard_size", self.shard_size, 1, 2**63 - 1),
        ):
            if value is None and name == "max_segments":
                continue
            if type(value) is not int or not least <= value <= most:
                raise PackerError(f"{name} is {value!r}: it must be a whole number from {least} to {most}")

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The columns of max_len values that are written, in order."""
        wanted = {"input_ids": True, "labels": self.labels, "position_ids": self.position_ids}
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def solve(self, histogram: NDArray[np.int64]) -> Patterns:
        """Pack a histogram with the histogram algorithm of these options: int64, shape (max_len + 1,)."""
        algorithm = get_algorithm(self.algorithm)
        assert isinstance(algorithm, Algorithm)
        limits = {"gap": self.gap, "seconds": self.time_limit}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return algorithm.solve(histogram, self.max_segments, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest says of the options."""
        options = {name: getattr(self, name) for name in self.__slots__}
        limits = {name: options.pop(name) for name in ("gap", "time_limit")}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return {**options, "algorithm": get_algorithm(self.algorithm).name, **given}


def parse_size(text: str) -> int:
    """Bytes of a size like 512MB, 2GiB or 1000000.

    Raises:
        PackerError: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", text.upper())
    unit = match[2] if match else "?"
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or (unit not in _UNITS and unit != "B"):
        raise PackerError(f"{text!r} is not a size: write bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(Decimal(match[1]) * _UNITS.get(unit, 1))


def byte_size(size: int) -> str:
    """Write bytes in powers of 1,000, as `--shard-size 512MB` reads them: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"
