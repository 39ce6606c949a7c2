"""How every kernel of the package is compiled."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
from numba.core import event

from packer.progress import STATUS

Kernel = TypeVar("Kernel", bound=Callable[..., object])

_ADDRESS_SPACE = 128 << 20  # bytes that must be left to compile a kernel, or to load it from the cache


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel with Numba: cached on disk, the GIL released; the type stays that of the Python function.

    Where no cache folder can be written (the package's, the user's, NUMBA_CACHE_DIR), it is compiled in every process.

    Subtle: the cache of a kernel is renewed when its own file changes, not when a helper it calls from another
    file does. `tests/conftest.py` keeps the caches of different sources apart; elsewhere, delete `__pycache__`
    after a change to a kernel.
    """
    try:
        return cast(Kernel, numba.njit(cache=True, nogil=True)(kernel))
    except RuntimeError:
        return cast(Kernel, numba.njit(nogil=True)(kernel))


class _CompileNotice(event.Listener):
    """Reports the first compilation of a process; a kernel that is in the cache is not compiled."""

    def __init__(self) -> None:
        self._is_given = False

    def on_start(self, event: object) -> None:
        """Report it, once."""
        if not self._is_given:
            self._is_given = True
            STATUS.info("compiling kernels, once")

    def on_end(self, event: object) -> None:
        """Do nothing."""


event.register("numba:compile", _CompileNotice())  # type: ignore[no-untyped-call]


class _AddressSpaceCheck(event.Listener):
    """Raises MemoryError before LLVM runs out of address space, which would abort the process.

    The lock is taken for every kernel that is compiled or loaded from the cache. Where `ulimit -v` sets no limit,
    nothing is looked at. Other threads may take what is left in the meantime, so the limit has to be generous.
    """

    def on_start(self, event: object) -> None:
        """Compare what is left with what a kernel may need."""
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
        left = limit - pages * resource.getpagesize()
        if left < _ADDRESS_SPACE:
            raise MemoryError(f"{left >> 20} MiB of address space left for a kernel")

    def on_end(self, event: object) -> None:
        """Do nothing."""


event.register("numba:compiler_lock", _AddressSpaceCheck())  # type: ignore[no-untyped-call]
