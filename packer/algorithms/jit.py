"""How every kernel of the package runs: compiled by Numba, or as plain Python while there is little to do.

Importing Numba takes half a second, and compiling kernels takes several. In a command with few documents and tokens,
kernels marked `jit_if_large` therefore run as the Python functions that they are. `prepare_for` decides that before
planning, and where nothing is planned, the values in all arrays are counted. Once there is much to do, all kernels of
the process are compiled. Time plays no part, so a command does the same on every machine. Both ways give the same
results.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from packer.algorithms.prepare_numba import prepared_numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])

FEW_DOCUMENTS, FEW_TOKENS = 1 << 9, 1 << 17
"""Most documents and tokens of a command whose kernels run as plain Python."""

MOST_VALUES, MOST_VALUES_OF_ALL = 1 << 18, 1 << 21
"""Most values in the arrays of a plain call, and of all plain calls of a process."""

CACHE_DIR = "PACKER_CACHE_DIR"
"""Environment variable that names the folder of compiled kernels, in a folder for each state of their sources.

Any number of processes may write it, also of different versions of the package.
"""

_SOURCES = ("algorithms", "gather", "plan", "column_names.py", "random_purposes.py")
"""Where kernels, their helpers and their constants are."""


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel with Numba on first use: cached on disk, the GIL released.

    Where no cache folder can be written (PACKER_CACHE_DIR, NUMBA_CACHE_DIR, the package's, the user's), it is compiled
    in every process.

    Subtle: the cache of a kernel is renewed when its own file changes, not when a helper it calls from another
    file does. PACKER_CACHE_DIR and `tests/conftest.py` keep the caches of different sources apart; elsewhere, delete
    `__pycache__` after a change to a kernel.
    """
    return cast(Kernel, _Compiled(kernel))


def jit_if_large(kernel: Kernel) -> Kernel:
    """Like `jit`, but run the Python function while there is little to do.

    For kernels of whole numbers whose work is in proportion to the sizes of their arrays.
    """
    return cast(Kernel, _CompiledIfLarge(kernel))


def jit_helper(kernel: Kernel) -> Kernel:
    """Like `jit`, for what only kernels call: it is compiled as a part of them, without an entry for Python.

    The entry of a short function takes longer to compile than the function. Called from Python, it runs as the Python
    function that it is.
    """
    return cast(Kernel, _Helper(kernel))


def compile_from_now_on() -> None:
    """Run no more kernels as plain Python in this process."""
    global _is_compiling
    _is_compiling = True


def prepare_for(*, documents: int, tokens: int = 0) -> None:
    """Compile all kernels from now on if there is much to do.

    Args:
        documents: documents that will be planned.
        tokens: tokens that will be copied.
    """
    if documents > FEW_DOCUMENTS or tokens > FEW_TOKENS:
        compile_from_now_on()


class _Compiled:
    """A kernel that is compiled on first use. Kernels that call it find the compiled one by `_numba_type_`."""

    is_called_from_python = True

    def __init__(self, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled kernel; inside a kernel that runs as plain Python, the Python function."""
        return self.function(*arguments) if _plain.active else self.compiled(*arguments)

    def _run_plain(self, arguments: tuple[Any, ...]) -> Any:
        """Run the Python function, and kernels that it calls likewise."""
        _plain.active = True
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return self.function(*arguments)
        finally:
            _plain.active = False

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher; with NUMBA_DISABLE_JIT, the Python function."""
        if self._compiled is None:
            with _making:
                self._compiled = self._compiled or self._new_dispatcher()
        return self._compiled

    def _new_dispatcher(self) -> Any:
        numba = prepared_numba()
        usual = numba.config.CACHE_DIR
        shared = os.environ.get(CACHE_DIR)
        if shared:  # CACHE_DIR is read when the dispatcher is made
            numba.config.CACHE_DIR = str(Path(shared) / state_of_sources())
        # Nothing calls kernels from C. Each entry that is left out saves a good tenth of the time to compile.
        options = {"nogil": True, "no_cfunc_wrapper": True, "no_cpython_wrapper": not self.is_called_from_python}
        try:
            made = numba.njit(cache=True, **options)(self.function)
        except RuntimeError:  # no folder for the cache
            made = numba.njit(**options)(self.function)
        finally:
            numba.config.CACHE_DIR = usual
        return made if numba.config.DISABLE_JIT else _once_for_all_constants(made)

    @property
    def _numba_type_(self) -> Any:
        from numba.core import types

        return types.Dispatcher(self.compiled)

    def __reduce__(self) -> str:
        return self.function.__qualname__


def _once_for_all_constants(dispatcher: Any) -> Any:
    """Have kernels that call this one do so with the types of constants, instead of their values.

    Numba would compile it again for each: `permute(out, 0, size, key)` for the constant 0.
    """
    from numba.core import types

    template = dispatcher.get_call_template

    def get_call_template(arguments: Any, named: Any) -> Any:
        return template(tuple(map(types.unliteral, arguments)), named)

    dispatcher.get_call_template = get_call_template
    return dispatcher


class _Helper(_Compiled):
    """A part of kernels."""

    is_called_from_python = False

    def __call__(self, *arguments: Any) -> Any:
        """Run the Python function."""
        return self.function(*arguments) if _plain.active else self._run_plain(arguments)


class _Plain(threading.local):
    """Whether this thread is in a call that runs as plain Python."""

    active = False


_plain = _Plain()
_making = threading.Lock()  # held while the dispatcher of a kernel is made
_plain_values = 0  # in the arrays of the plain calls of this process
_is_compiling = False  # all kernels of this process


class _CompiledIfLarge(_Compiled):
    """A kernel that runs as plain Python while there is little to do."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel in one of the two ways."""
        global _plain_values
        if _plain.active:
            return self.function(*arguments)
        if not _is_compiling:
            values = _values(arguments)
            _plain_values += values
            if values <= MOST_VALUES and _plain_values <= MOST_VALUES_OF_ALL:
                return self._run_plain(arguments)
            compile_from_now_on()
        return self.compiled(*arguments)


def _values(arguments: tuple[Any, ...]) -> int:
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
