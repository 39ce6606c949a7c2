"""Decide how kernels run: compiled by Numba, or as plain Python in small commands.

Importing Numba takes half a second, and compiling kernels takes several seconds. In a command with few segments,
kernels marked `jit_if_large` therefore run as plain Python functions, as long as they take little time: a few sets are
hard to plan. `prepare_for` compiles all kernels from the start if there are many segments. Both ways give the same
results, even if a kernel that runs as plain Python calls a compiled one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import numpy as np

from packer.errors import check_address_space
from packer.progress import STATUS

Kernel = TypeVar("Kernel", bound=Callable[..., object])

FEW_SEGMENTS = 10_000
"""Maximum number of segments for which a command runs kernels as plain Python, which takes about 80 us per segment."""

PLAIN_SECONDS = 1.5
"""Processor time of plain kernels after which a process compiles all kernels."""

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

    Use it for integer kernels, and for functions that only kernels call.
    """
    return cast(Kernel, _Kernel(kernel, may_run_plain=True))


def compile_from_now_on() -> None:
    """Compile all kernels that this process runs from now on."""
    global _is_compiling
    _is_compiling = True


def prepare_for(segments: int) -> None:
    """Compile all kernels from now on if the number of segments to plan, or an upper limit of it, is large."""
    if segments > FEW_SEGMENTS:
        compile_from_now_on()


class _Plain(threading.local):
    """The outermost plain call of this thread."""

    begun: float | None = None
    """Processor time of the thread when the call began; None outside of a plain call."""


_plain = _Plain()
_making = threading.Lock()  # held while a kernel's dispatcher is created
_plain_seconds = 0.0  # processor time of all plain calls that have ended
_is_compiling = False  # whether all kernels are compiled from now on


class _Kernel:
    """A kernel, compiled on first use. Compiled kernels that call it get its dispatcher through `_numba_type_`."""

    def __init__(self, function: Callable[..., object], *, may_run_plain: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._may_run_plain = may_run_plain
        self._compiled: Callable[..., object] | None = None

    def __call__(self, *arguments: object) -> object:
        """Run the kernel compiled or as plain Python."""
        global _plain_seconds
        now = time.thread_time()
        if _plain_seconds + now - (_plain.begun or now) > PLAIN_SECONDS:
            compile_from_now_on()
        if _is_compiling or not self._may_run_plain:
            return self.compiled(*arguments)
        if _plain.begun is not None:
            return self.function(*arguments)
        _plain.begun = now
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return self.function(*arguments)
        finally:
            _plain_seconds += time.thread_time() - now
            _plain.begun = None

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
