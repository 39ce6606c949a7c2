"""Decide how kernels run: compiled by Numba, or as plain Python in small commands.

Importing Numba takes half a second, and compiling kernels takes several seconds. In a command with few documents and
tokens, kernels marked `jit_if_large` therefore run as plain Python functions. `prepare_for` decides this before
planning. In commands that plan nothing, the number of values in all arrays passed to kernels decides. Above the limit,
all kernels of the process are compiled. The choice never depends on timing, so a command makes the same choice on every
machine. Both ways give the same results.
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
"""Maximum number of documents, and of tokens, for which a command runs kernels as plain Python."""

MOST_VALUES, MOST_VALUES_OF_ALL = 1 << 18, 1 << 21
"""Maximum number of array values in one plain Python call, and in all plain Python calls of a process."""

CACHE_DIR = "PACKER_CACHE_DIR"
"""Environment variable: folder for compiled kernels, with one subfolder for each version of the kernels' sources.

Any number of processes may write to it at once, even with different versions of the package.
"""

_SOURCES = ("algorithms", "token_memory", "plan", "column_names.py")
"""Folders and files of the package that contain kernels or their constants."""

_ADDRESS_SPACE = 128 << 20  # bytes that must be left to compile a kernel, or to load it from the cache


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel with Numba on first use, cached on disk, without holding the GIL.

    If no cache folder is writable (PACKER_CACHE_DIR, NUMBA_CACHE_DIR, the package's, the user's), every process
    compiles the kernel.

    Subtle: Numba renews the cache of a kernel if the kernel's own file changes, but not if it calls a kernel of another
    file that changes. PACKER_CACHE_DIR and `tests/conftest.py` keep the caches of different sources apart; elsewhere,
    delete `__pycache__` after a change to a kernel.
    """
    return cast(Kernel, _Kernel(kernel, may_run_plain=False))


def jit_if_large(kernel: Kernel) -> Kernel:
    """Compile a kernel like `jit`, but run it as plain Python while there is little to do.

    Use it for integer kernels whose running time is proportional to the size of their arrays, and for functions that
    only kernels call.
    """
    return cast(Kernel, _Kernel(kernel, may_run_plain=True))


def compile_from_now_on() -> None:
    """Compile all kernels that this process runs from now on."""
    global _is_compiling
    _is_compiling = True


def prepare_for(*, documents: int, tokens: int = 0) -> None:
    """Compile all kernels from now on if the number of documents to plan, or of tokens to copy, is large."""
    if documents > FEW_DOCUMENTS or tokens > FEW_TOKENS:
        compile_from_now_on()


class _Plain(threading.local):
    """Whether this thread is inside a call that runs as plain Python."""

    active = False


_plain = _Plain()
_making = threading.Lock()  # held while a kernel's dispatcher is created
_plain_values = 0  # values in the arrays of all plain calls of this process
_is_compiling = False  # whether all kernels are compiled from now on


class _Kernel:
    """A kernel, compiled on first use. Compiled kernels that call it get its dispatcher through `_numba_type_`."""

    def __init__(self, function: Callable[..., object], *, may_run_plain: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._may_run_plain = may_run_plain
        self._compiled: Callable[..., object] | None = None

    def __call__(self, *arguments: object) -> object:
        """Run the kernel compiled or as plain Python. A plain kernel calls other kernels as plain Python too."""
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
        """Numba's dispatcher of the kernel; the Python function if NUMBA_DISABLE_JIT is set."""
        if self._compiled is None:
            with _making:
                self._compiled = self._compiled or self._new_dispatcher()
        return self._compiled

    def _new_dispatcher(self) -> Callable[..., object]:
        numba = prepared_numba()
        usual = numba.config.CACHE_DIR
        shared = os.environ.get(CACHE_DIR)
        if shared:  # Numba reads CACHE_DIR when the dispatcher is created
            numba.config.CACHE_DIR = str(Path(shared) / state_of_sources())
        try:
            made: Callable[..., object] = numba.njit(cache=True, nogil=True)(self.function)
        except RuntimeError:  # no cache folder is writable
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
    """Count the values of all arrays, including arrays in named tuples."""
    return sum(
        argument.size if isinstance(argument, np.ndarray) else _values(argument) if isinstance(argument, tuple) else 0
        for argument in arguments
    )


@functools.cache
def state_of_sources() -> str:
    """Return a hash of the sources from which kernels are compiled.

    Numba compares only the time and size of a kernel's own file, and in a container image, another version may have the
    same.
    """
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in _SOURCES:
        for source in sorted((package / name).rglob("*.py")) or [package / name]:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


_measured: list[Callable[[], float]] = []  # return the seconds spent compiling; empty before Numba is imported


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling kernels."""
    return sum(seconds() for seconds in _measured)


@functools.cache
def prepared_numba() -> ModuleType:
    """Import Numba and extend it with memory access, a message about compiling and a check of memory."""
    import numba
    from numba.core import event

    from packer.algorithms.memory import teach_numba

    class Compiling(event.TimingListener):
        """Measure all compilations and report the first one. Loading a kernel from the cache does not count."""

        def on_start(self, event: object) -> None:
            if not self.done and not self._depth:  # compiling a kernel also compiles the kernels that it calls
                STATUS.info("compiling kernels, once")
            super().on_start(event)  # type: ignore[no-untyped-call]

    class AddressSpaceCheck(event.Listener):
        """Raise MemoryError before LLVM runs out of address space, which would abort the process."""

        def on_start(self, event: object) -> None:
            check_address_space(_ADDRESS_SPACE, "a kernel")

        def on_end(self, event: object) -> None:
            pass

    compiling = Compiling()  # type: ignore[no-untyped-call]
    _measured.append(lambda: compiling.duration if compiling.done else 0.0)
    event.register("numba:compile", compiling)  # type: ignore[no-untyped-call]
    # Numba takes this lock to compile a kernel and to load one from the cache.
    event.register("numba:compiler_lock", AddressSpaceCheck())  # type: ignore[no-untyped-call]
    teach_numba()
    return numba
