"""Read a histogram of document lengths from a CSV file with the header `length,count`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, SourceError
from packer.sources.files.file_access import require_regular

HEADER = ["length", "count"]

_LONGEST = 2**31 - 1  # tokens in a document, as in any source
_MOST = 2**53  # tokens in all; doubles represent every integer up to it


def read_length_counts(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct lengths in ascending order and the number of documents of each: int64, shape (lengths,).

    Raises:
        PackerError: the file does not exist or cannot be read.
        SourceError: a line does not hold two whole numbers, a length is repeated, or the tokens are none or too many.
    """
    if path.exists():
        require_regular(path, str(path))
    counts: dict[int, int] = {}
    lines: dict[int, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            _check_header(path, next(reader, []))
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                length, count = _whole_numbers(f"{path} line {reader.line_num}", cells)
                if length in counts:
                    raise SourceError(f"{path} line {reader.line_num}: length {length} is in line {lines[length]} too")
                counts[length], lines[length] = count, reader.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} is not a CSV text file: {error}") from error
    except OSError as error:
        raise PackerError(f"{path}: {error.strerror or error}") from error
    _check_totals(path, counts)
    lengths = sorted(counts)
    return np.array(lengths, np.int64), np.array([counts[length] for length in lengths], np.int64)


def _check_header(path: Path, cells: list[str]) -> None:
    if [cell.strip().lower() for cell in cells] != HEADER:
        found = f"has {','.join(cells)!r}" if cells else "is empty"
        raise SourceError(f"{path} line 1 {found}; a histogram begins with the header {','.join(HEADER)!r}")


def _whole_numbers(place: str, cells: list[str]) -> tuple[int, int]:
    if len(cells) != len(HEADER):
        raise SourceError(f"{place} has {len(cells)} values, {','.join(cells)!r}; there must be a length and a count")
    for name, text, most in (("length", cells[0], _LONGEST), ("count", cells[1], _MOST)):
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and int(digits) <= most):
            raise SourceError(f"{place}: {name} {digits!r} is not a whole number from 0 to {most:,}")
    return int(cells[0]), int(cells[1])


def _check_totals(path: Path, counts: dict[int, int]) -> None:
    tokens = sum(length * count for length, count in counts.items())
    if tokens == 0:
        raise SourceError(f"{path} counts no document of 1 token or more ({len(counts):,} lengths)")
    if tokens + sum(counts.values()) > _MOST:
        raise SourceError(f"{path} counts {tokens:,} tokens; there may be {_MOST:,} at most")
