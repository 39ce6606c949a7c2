"""Kernels and their helpers, compiled as functions that tests can call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from packer.algorithms.prepare_numba import prepared_numba


@functools.cache
def compiled(helper: Any) -> Callable[..., Any]:
    """Compile a kernel or helper with an entry for Python; with NUMBA_DISABLE_JIT, return the Python function.

    It is not cached on disk: a helper, which has no such entry, is under its name there.
    """
    function: Callable[..., Any] = prepared_numba().njit(helper.function)
    return function
