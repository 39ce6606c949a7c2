"""How every kernel of the package runs: compiled by Numba, or as plain Python while there is little to do.

Importing Numba takes half a second, and compiling a kernel up to several. Little is done sooner without: a kernel
marked `jit_if_large` runs as the Python function that it is, until it is called with large arrays, or until the plain
calls of a process, those of all kernels together, have taken PLAIN_SECONDS. So a large source compiles only the kernels
that see many documents or tokens. Where Numba is imported anyway, kernels that are in its cache are loaded from there.
Both ways compute the same; the tests of kernels run both.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from packer.algorithms.prepare_numba import PREPARING, is_prepared, prepared_numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])

SMALL, FEW_TOKENS, NUMPY_VALUES = 1 << 13, 1 << 17, 1 << 22
"""Most values in the arrays of a plain call: in general, of a kernel that does little for each, and in NumPy."""

PLAIN_SECONDS = 0.3
"""Processor time that a process spends in plain calls before kernels are compiled; tests set it to 0."""

NUMPY_SECONDS = 0.1
"""Processor time that a process spends in the form in NumPy of a kernel before it is compiled, unless plain calls are
off."""

CACHE_DIR = "PACKER_CACHE_DIR"
"""Environment variable that names the folder of compiled kernels, in a folder for each state of their sources.

Any number of processes may write it, also of different versions of the package.
"""

_SOURCES = ("algorithms", "gather", "plan", "labels.py", "random_purposes.py")
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
    return cast(Kernel, _CompiledIfLarge(kernel, SMALL))


def jit_if_many_tokens(kernel: Kernel) -> Kernel:
    """Like `jit_if_large`, for kernels that copy or count tokens."""
    return cast(Kernel, _CompiledIfLarge(kernel, FEW_TOKENS))


def jit_or_numpy(in_numpy: Kernel) -> Callable[[Kernel], Kernel]:
    """Compile a kernel only after a function that computes the same by NumPy has run for NUMPY_SECONDS.

    For kernels that take longer to compile than NumPy takes for a million values.
    """
    return lambda kernel: cast(Kernel, _CompiledOrNumpy(kernel, NUMPY_VALUES, in_numpy))


def jit_helper(kernel: Kernel) -> Kernel:
    """Like `jit`, for what only kernels call: it is compiled as a part of them, without an entry for Python.

    The entry of a short function takes longer to compile than the function. Called from Python, it runs as the Python
    function that it is.
    """
    return cast(Kernel, _Helper(kernel))


def jit_helper_or_numpy(in_numpy: Kernel) -> Callable[[Kernel], Kernel]:
    """Like `jit_helper`, with a function that computes the same by NumPy, for plain calls."""
    return lambda kernel: cast(Kernel, _Helper(kernel, in_numpy))


def compile_from_now_on() -> None:
    """Run no more loops as plain Python in this process; for what measures kernels. Forms in NumPy stay as they are."""
    global _plain_seconds
    _plain_seconds = math.inf


def prepare_for(*, documents: int, tokens: int = 0) -> None:
    """Import Numba now if there is so much to do that it will be imported anyway.

    Kernels in the cache are then loaded instead of run as plain Python, which takes most of PLAIN_SECONDS, and more if
    the last of the plain calls is a long one.

    Args:
        documents: documents that will be planned.
        tokens: tokens that will be copied.
    """
    if documents > SMALL or tokens > 8 * FEW_TOKENS:
        prepared_numba()


class _Compiled:
    """A kernel that is compiled on first use. Kernels that call it find the compiled one by `_numba_type_`."""

    is_called_from_python = True

    def __init__(self, function: Callable[..., object], plain: Callable[..., object] | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.plain = plain or function
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled kernel; inside a kernel that runs as plain Python, the Python function."""
        if _plain.active:
            return self.plain(*arguments)
        return self.compiled(*arguments)

    def _run_plain(self, arguments: tuple[Any, ...]) -> Any:
        """Run the Python function, or its form in NumPy, and kernels that it calls likewise."""
        _plain.active = True
        try:
            with np.errstate(over="ignore"):  # hashes wrap around
                return self.plain(*arguments)
        finally:
            _plain.active = False

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher; with NUMBA_DISABLE_JIT, the Python function."""
        if self._compiled is None:
            with PREPARING:
                self._compiled = self._compiled or self._new_dispatcher()
        return self._compiled

    def _new_dispatcher(self) -> Any:
        numba = prepared_numba()
        usual = numba.config.CACHE_DIR
        shared = os.environ.get(CACHE_DIR)
        if shared:  # CACHE_DIR is read when the dispatcher is made
            numba.config.CACHE_DIR = str(Path(shared) / _state_of_sources())
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
        """Run the Python function, or its form in NumPy."""
        return self.plain(*arguments) if _plain.active else self._run_plain(arguments)


class _Plain(threading.local):
    """Whether this thread is in a call that runs as plain Python."""

    active = False


_plain = _Plain()
_plain_seconds = 0.0  # of this process


class _CompiledIfLarge(_Compiled):
    """A kernel that runs as plain Python while there is little to do."""

    def __init__(
        self, function: Callable[..., object], most_values: int, plain: Callable[..., object] | None = None
    ) -> None:
        super().__init__(function, plain)
        self._most_values = most_values
        self._is_worth_compiling = False

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel in one of the two ways."""
        if _plain.active:
            return self.plain(*arguments)
        if not self._is_worth_compiling:
            has_much_to_do = self._was_plain_for_long() or _values(arguments) > self._most_values
            self._is_worth_compiling = has_much_to_do or (is_prepared() and self._is_cached)
        if self._is_worth_compiling:
            return self.compiled(*arguments)
        began = time.thread_time()
        try:
            return self._run_plain(arguments)
        finally:
            self._add_plain_seconds(time.thread_time() - began)

    def _was_plain_for_long(self) -> bool:
        return _plain_seconds >= PLAIN_SECONDS

    def _add_plain_seconds(self, seconds: float) -> None:
        global _plain_seconds
        _plain_seconds += seconds

    @functools.cached_property
    def _is_cached(self) -> bool:
        """Whether a process before this one compiled it, so that it is loaded in milliseconds; looked up once."""
        stats = getattr(self.compiled, "stats", None)  # with NUMBA_DISABLE_JIT, it is a function
        if stats is None or stats.cache_path is None:
            return False
        line = self.function.__code__.co_firstlineno
        return any(Path(stats.cache_path).glob(f"*.{self.function.__qualname__}-{line}.*.nbi"))


class _CompiledOrNumpy(_CompiledIfLarge):
    """A kernel that runs by NumPy until that has taken long."""

    _numpy_seconds = 0.0  # of this process

    def _was_plain_for_long(self) -> bool:
        return self._numpy_seconds >= min(NUMPY_SECONDS, PLAIN_SECONDS)

    def _add_plain_seconds(self, seconds: float) -> None:
        self._numpy_seconds += seconds


def _values(arguments: tuple[Any, ...]) -> int:
    """Count the values of all arrays, also of those in named tuples."""
    return sum(
        argument.size if isinstance(argument, np.ndarray) else _values(argument) if isinstance(argument, tuple) else 0
        for argument in arguments
    )


@functools.cache
def _state_of_sources() -> str:
    """Return a hash of the sources that kernels are compiled from.

    Numba looks at the time and size of a kernel's own file, which may be those of another version in an image.
    """
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for name in _SOURCES:
        for source in sorted((package / name).rglob("*.py")) or [package / name]:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
