"""Helpers of kernels, compiled as functions that tests can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packer.algorithms.prepare_numba import prepared_numba


def compiled(helper: Any) -> Callable[..., Any]:
    """Compile a helper with an entry for Python; with NUMBA_DISABLE_JIT, return the Python function.

    It is not cached: the helper itself, which has no such entry, is under its name in the cache.
    """
    function: Callable[..., Any] = prepared_numba().njit(helper.function)
    return function
