"""Ranges of indices, one after the other, to replace loops over spans in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def joined_ranges(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the indices of all ranges, int64: starts [5, 2] and lengths [3, 2] -> [5, 6, 7, 2, 3]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    indices = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    indices += np.repeat(starts - (ends - lengths), lengths)
    return indices
