"""Between Arrow and NumPy, nothing copied. pyarrow's own conversions import pandas where it is installed, for 0.1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class _Compute:
    """The functions of `pyarrow.compute`, which takes 0.06 s to import and which few packs need."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        return getattr(pyarrow.compute, name)


compute: Any = _Compute()

_DTYPES = {
    pa.from_numpy_dtype(np.dtype(name)): np.dtype(name)
    for name in (
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    )
}


def numpy_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """The dtype of a type of whole numbers or floats."""
    return _DTYPES[arrow_type]


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Whether a type is one of whole numbers or floats."""
    return arrow_type in _DTYPES


def as_numpy(array: pa.Array) -> NDArray[Any]:
    """The values of an array of numbers that has no nulls, where they lie: read-only, of the array's own dtype."""
    assert array.null_count == 0
    dtype = numpy_dtype(array.type)
    values = array.buffers()[1]
    if values is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """An Arrow array of the numbers of a contiguous array, where they lie."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def written(value: pa.Scalar) -> str:
    """Write a value as Python does, or name its type where Python has no such value: a date beyond the year 9999."""
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):
        return f"a {value.type} beyond Python's"
