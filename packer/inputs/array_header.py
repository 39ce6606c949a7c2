"""Headers of `.npy` files, as NumPy writes them."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

ARRAY_COLUMN = "lengths"
"""Column name that stands for the array of a .npy file that holds lengths."""


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Read the header of a .npy file; return the shape and type of its array. A ValueError says that it is damaged."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"a .npy file of version {'.'.join(map(str, version))}; expected 1.0 or 2.0")
    try:
        shape, _, dtype = read[version](file)
    except Exception as error:  # NumPy evaluates the header as Python: TokenError, OverflowError, AttributeError ...
        raise ValueError(f"the header does not describe an array ({type(error).__name__})") from error
    return shape, dtype
