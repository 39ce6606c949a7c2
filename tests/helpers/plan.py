"""What `tests/test_plan.py` shares with other tests."""

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.patterns import Rows
from packer.plan.segments import Segments


def int32s(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def rows_of(plan: Rows) -> list[list[int]]:
    return [plan.values[a:b].tolist() for a, b in zip(plan.row_starts[:-1], plan.row_starts[1:], strict=True)]


def located(segments: Segments, numbers: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    return segments.locate(numbers).tolist()
