"""How every kernel of the package runs: compiled by Numba, or as plain Python while there is little to do.

Importing Numba takes half a second, and compiling kernels takes several. In a command with few documents and tokens,
kernels marked `jit_if_large` therefore run as the Python functions that they are. `prepare_for` decides that before
planning, and where nothing is planned, the values in all arrays are counted. Once there is much to do, all kernels of
the process are compiled. The choice never depends on timing, so a command does the same on every machine. Both ways
give the same results.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import numpy as np

from packer.errors import check_address_space
from packer.progress import STATUS

Kernel = TypeVar("Kernel", bound=Callable[..., object])

FEW_DOCUMENTS, FEW_TOKENS = 1 << 9, 1 << 17
"""Most documents and tokens of a command whose kernels run as plain Python."""

MOST_VALUES, MOST_VALUES_OF_ALL = 1 << 18, 1 << 21
"""Most values in the arrays of a plain call, and of all plain calls of a process."""

CACHE_DIR = "PACKER_CACHE_DIR"
"""Environment variable that names the folder of compiled kernels, in a folder for each state of their sources.

Any number of processes may write it, also of different versions of the package.
"""

_SOURCES = ("algorithms", "token_memory", "plan", "column_names.py")
"""Where kernels and their constants are."""

_ADDRESS_SPACE = 128 << 20  # bytes that must be left to compile a kernel, or to load it from the cache


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel with Numba on first use: cached on disk, the GIL released.

    Where no cache folder can be written (PACKER_CACHE_DIR, NUMBA_CACHE_DIR, the package's, the user's), it is compiled
    in every process.

    Subtle: the cache of a kernel is renewed when its own file changes, not when a kernel it calls from another
    file does. PACKER_CACHE_DIR and `tests/conftest.py` keep the caches of different sources apart; elsewhere, delete
    `__pycache__` after a change to a kernel.
    """
    return cast(Kernel, _Kernel(kernel, may_run_plain=False))


def jit_if_large(kernel: Kernel) -> Kernel:
    """Like `jit`, but run the Python function while there is little to do.

    For kernels of whole numbers whose work is in proportion to the sizes of their arrays, and for what only kernels
    call.
    """
    return cast(Kernel, _Kernel(kernel, may_run_plain=True))


def compile_from_now_on() -> None:
    """Run no more kernels as plain Python in this process."""
    global _is_compiling
    _is_compiling = True


def prepare_for(*, documents: int, tokens: int = 0) -> None:
    """Compile all kernels from now on if so many documents will be planned, or tokens copied, that it is worth it."""
    if documents > FEW_DOCUMENTS or tokens > FEW_TOKENS:
        compile_from_now_on()


class _Plain(threading.local):
    """Whether this thread is in a call that runs as plain Python."""

    active = False


_plain = _Plain()
_making = threading.Lock()  # held while the dispatcher of a kernel is made
_plain_values = 0  # in the arrays of the plain calls of this process
_is_compiling = False  # all kernels of this process


class _Kernel:
    """A kernel that is compiled on first use. Kernels that call it find the compiled one by `_numba_type_`."""

    def __init__(self, function: Callable[..., object], *, may_run_plain: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._may_run_plain = may_run_plain
        self._compiled: Callable[..., object] | None = None

    def __call__(self, *arguments: object) -> object:
        """Run the kernel in one of the two ways; inside a kernel that runs as plain Python, the Python function."""
        global _plain_values
        if _plain.active:
            return self.function(*arguments)
        if self._may_run_plain and not _is_compiling:
            values = _values(arguments)
            _plain_values += values
            if values <= MOST_VALUES and _plain_values <= MOST_VALUES_OF_ALL:
                _plain.active = True
                try:
                    with np.errstate(over="ignore"):  # hashes wrap around
                        return self.function(*arguments)
                finally:
                    _plain.active = False
            compile_from_now_on()
        return self.compiled(*arguments)

    @property
    def compiled(self) -> Callable[..., object]:
        """Numba's dispatcher; with NUMBA_DISABLE_JIT, the Python function."""
        if self._compiled is None:
            with _making:
                self._compiled = self._compiled or self._new_dispatcher()
        return self._compiled

    def _new_dispatcher(self) -> Callable[..., object]:
        numba = prepared_numba()
        usual = numba.config.CACHE_DIR
        shared = os.environ.get(CACHE_DIR)
        if shared:  # CACHE_DIR is read when the dispatcher is made
            numba.config.CACHE_DIR = str(Path(shared) / state_of_sources())
        try:
            made: Callable[..., object] = numba.njit(cache=True, nogil=True)(self.function)
        except RuntimeError:  # no folder for the cache
            made = numba.njit(nogil=True)(self.function)
        finally:
            numba.config.CACHE_DIR = usual
        return made

    @property
    def _numba_type_(self) -> object:
        from numba.core import types

        return types.Dispatcher(self.compiled)  # type: ignore[type-var]

    def __reduce__(self) -> str:
        return self.function.__qualname__


def _values(arguments: tuple[object, ...]) -> int:
    """Count the values of all arrays, also of those in named tuples."""
    return sum(
        argument.size if isinstance(argument, np.ndarray) else _values(argument) if isinstance(argument, tuple) else 0
        for argument in arguments
    )


@functools.cache
def state_of_sources() -> str:
    """Return a hash of the sources that kernels are compiled from.

    Numba looks at the time and size of a kernel's own file, which may be those of another version in an image.
    """
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in _SOURCES:
        for source in sorted((package / name).rglob("*.py")) or [package / name]:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


_measured: list[Callable[[], float]] = []  # the time that this process has compiled, once Numba is imported


def compile_seconds() -> float:
    """Return how long this process has compiled kernels."""
    return sum(seconds() for seconds in _measured)


@functools.cache
def prepared_numba() -> ModuleType:
    """Import Numba, with what the package adds to it: access to memory, a notice, a check of memory."""
    import numba
    from numba.core import event

    from packer.algorithms.memory import teach_numba

    class Compiling(event.TimingListener):
        """Measures all compilations, and reports the first one; kernels in the cache are not compiled."""

        def on_start(self, event: object) -> None:
            if not self.done and not self._depth:  # compiling a kernel compiles those that it calls
                STATUS.info("compiling kernels, once")
            super().on_start(event)  # type: ignore[no-untyped-call]

    class AddressSpaceCheck(event.Listener):
        """Raises MemoryError before LLVM runs out of address space, which would abort the process."""

        def on_start(self, event: object) -> None:
            check_address_space(_ADDRESS_SPACE, "a kernel")

        def on_end(self, event: object) -> None:
            pass

    compiling = Compiling()  # type: ignore[no-untyped-call]
    _measured.append(lambda: compiling.duration if compiling.done else 0.0)
    event.register("numba:compile", compiling)  # type: ignore[no-untyped-call]
    # The lock is taken to compile a kernel, and to load it from the cache.
    event.register("numba:compiler_lock", AddressSpaceCheck())  # type: ignore[no-untyped-call]
    teach_numba()
    return numba
