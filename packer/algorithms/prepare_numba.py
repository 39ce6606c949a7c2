"""Numba, with what is added to it before the first kernel is compiled: memory access, a notice, a check of memory."""

from __future__ import annotations

import functools
import resource
import time
from pathlib import Path
from typing import Any

from packer.progress import STATUS

_ADDRESS_SPACE = 128 << 20  # bytes that must be left to compile a kernel, or to load it from the cache


def compile_seconds() -> float:
    """Return how long this process has compiled kernels."""
    return _compile_seconds


_compile_seconds = 0.0


@functools.cache
def prepared_numba() -> Any:
    """Import Numba, with what the package adds to it."""
    import numba
    from numba.core import event

    from packer.algorithms.memory import teach_numba  # NumPy, which commands that compile nothing do not need

    class CompileNotice(event.Listener):
        """Reports the first compilation of a process, and measures all; kernels in the cache are not compiled."""

        def __init__(self) -> None:
            self._is_given = False
            self._depth = 0  # compiling a kernel compiles its helpers
            self._begun = 0.0

        def on_start(self, event: object) -> None:
            """Report it, once."""
            if not self._is_given:
                self._is_given = True
                STATUS.info("compiling kernels, once")
            if self._depth == 0:
                self._begun = time.perf_counter()
            self._depth += 1

        def on_end(self, event: object) -> None:
            """Add its time."""
            global _compile_seconds
            self._depth -= 1
            if self._depth == 0:
                _compile_seconds += time.perf_counter() - self._begun

    class AddressSpaceCheck(event.Listener):
        """Raises MemoryError before LLVM runs out of address space, which would abort the process.

        The lock is taken for every kernel that is compiled or loaded from the cache.
        """

        def on_start(self, event: object) -> None:
            """Compare what is left with what a kernel may need."""
            _check_address_space()

        def on_end(self, event: object) -> None:
            """Do nothing."""

    event.register("numba:compile", CompileNotice())  # type: ignore[no-untyped-call]
    event.register("numba:compiler_lock", AddressSpaceCheck())  # type: ignore[no-untyped-call]
    teach_numba()
    return numba


def _check_address_space() -> None:
    """Raise MemoryError if little address space is left; where `ulimit -v` sets no limit, nothing is looked at.

    Other threads may take what is left in the meantime, so the limit has to be generous.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    left = limit - pages * resource.getpagesize()
    if left < _ADDRESS_SPACE:
        raise MemoryError(f"{left >> 20} MiB of address space left for a kernel")
