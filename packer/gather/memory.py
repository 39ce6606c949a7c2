"""Access to memory by address in compiled code: libc's memcpy, array views and prefetching."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import before_compiling

_FETCHED = 512  # bytes to prefetch; the hardware prefetcher continues from there
_LINE = 64  # bytes of a cache line


def array_at(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """View `count` values of `dtype` at a memory address; compiled code uses the overload below."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def copy_bytes(destination: int, source: int, count: int) -> None:
    """Copy `count` bytes between memory addresses; compiled code calls libc's memcpy."""
    ctypes.memmove(int(destination), int(source), int(count))


def prefetch(address: int, count: int) -> None:
    """Prefetch the first cache lines of `count` bytes; addresses that are not mapped are ignored."""


@before_compiling
def _teach_numba() -> None:
    """Overload the functions above for compiled code."""
    from llvmlite import ir
    from numba import carray  # type: ignore[attr-defined]  # its stub does not export it
    from numba.core import cgutils, types
    from numba.extending import intrinsic, overload

    @intrinsic
    def as_pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(types.uint64), generate

    pointer: Any = as_pointer  # called without the typing context that its signature has
    memcpy = types.ExternalFunction("memcpy", types.voidptr(types.voidptr, types.voidptr, types.uintp))

    @overload(array_at)
    def _array_at(address: Any, count: Any, dtype: Any) -> Any:
        def implementation(address: Any, count: Any, dtype: Any) -> Any:
            return carray(pointer(np.uint64(address)), count, dtype)

        return implementation

    @overload(copy_bytes)
    def _copy_bytes(destination: Any, source: Any, count: Any) -> Any:
        def implementation(destination: Any, source: Any, count: Any) -> Any:
            memcpy(pointer(np.uint64(destination)), pointer(np.uint64(source)), np.uint64(count))

        return implementation

    @intrinsic
    def prefetch_line(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(32)
            takes = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
            find: Any = cgutils.get_or_insert_function  # untyped
            call = find(builder.module, takes, "llvm.prefetch.p0")
            read, keep, data = word(0), word(3), word(1)
            builder.call(call, [builder.inttoptr(arguments[0], cgutils.voidptr_t), read, keep, data])
            return context.get_dummy_value()

        return types.void(types.uint64), generate

    fetch_line: Any = prefetch_line

    @overload(prefetch)
    def _prefetch(address: Any, count: Any) -> Any:
        def implementation(address: Any, count: Any) -> Any:
            for ahead in range(0, min(np.int64(count), _FETCHED), _LINE):
                fetch_line(np.uint64(address) + np.uint64(ahead))

        return implementation
