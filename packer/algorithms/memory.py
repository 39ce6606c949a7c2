"""Memory access by address, in Python and in compiled code: array views, copies and prefetching."""

# The functions inside `teach_numba` are templates, which Numba calls with types and compiles.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code=call-arg

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FETCHED = 512  # bytes to prefetch; the hardware prefetcher continues from there
_LINE = 64  # bytes in a cache line


def array_at(address: int | np.uint64, count: int, dtype: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """Return an array of `count` values of `dtype` that views memory at an address."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(int(address))), dtype)


def copy_bytes(destination: int, source: int | np.uint64, count: int) -> None:
    """Copy `count` bytes between memory addresses."""
    ctypes.memmove(int(destination), int(source), int(count))


def copy_ids(values: NDArray[Any], allowed: int, largest: int, out: NDArray[np.int32]) -> bool:
    """Copy integers to `out`. Returns whether each value is in 0 to `largest`, or equal to `allowed`."""
    out[:] = values
    return not (((values < 0) & (values != allowed)) | (values > largest)).any()


def prefetch(address: int | np.uint64, count: int) -> None:
    """Prefetch the first cache lines of `count` bytes. Unmapped addresses are ignored. Plain Python does nothing."""


def teach_numba() -> None:
    """Register implementations of the functions above for compiled code."""
    from llvmlite import ir
    from numba import carray  # type: ignore[attr-defined]  # its stub does not export it
    from numba.core import cgutils, types
    from numba.extending import intrinsic, overload

    memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
    _teach_copy_ids(memcpy)

    @intrinsic
    def as_pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(types.uint64), generate

    @intrinsic
    def fetch_line(typing_context, address):
        def generate(context, builder, signature, arguments):
            word = ir.IntType(32)
            takes = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
            fetch = cgutils.get_or_insert_function(builder.module, takes, "llvm.prefetch.p0")
            line = builder.inttoptr(arguments[0], cgutils.voidptr_t)
            builder.call(fetch, [line, word(0), word(3), word(1)])  # read access, keep in cache, data
            return context.get_dummy_value()

        return types.none(types.uint64), generate

    @overload(array_at)
    def _array_at(address, count, dtype):
        return lambda address, count, dtype: carray(as_pointer(np.uint64(address)), count, dtype)

    @overload(copy_bytes)
    def _copy_bytes(destination, source, count):
        def implementation(destination, source, count):
            memcpy(np.intp(destination), np.intp(source), np.intp(count))

        return implementation

    @overload(prefetch)
    def _prefetch(address, count):
        def implementation(address, count):
            for ahead in range(0, min(count, _FETCHED), _LINE):
                fetch_line(np.uint64(address) + np.uint64(ahead))

        return implementation


def _teach_copy_ids(memcpy: Any) -> None:
    """Register the implementation of `copy_ids`; memcpy: the function of C."""
    from numba.core import types
    from numba.extending import overload

    @overload(copy_ids)
    def _copy_ids(values, allowed, largest, out):
        def copied(values, allowed, largest, out):
            memcpy(out.ctypes.data, values.ctypes.data, np.intp(4 * len(values)))
            bits, is_valid = np.int32(0), True
            for i in range(len(out)):
                bits |= out[i]
            if bits < 0 or bits > largest:  # a value may be; without --vocab-size, only if one is negative
                for i in range(len(out)):
                    is_valid &= ((out[i] >= 0) | (out[i] == allowed)) & (out[i] <= largest)
            return is_valid

        def converted(values, allowed, largest, out):
            is_valid = True
            for i in range(len(values)):  # one pass, which LLVM vectorizes, is faster than array expressions
                value = values[i]
                out[i] = value
                is_valid &= ((value >= 0) | (value == allowed)) & (value <= largest)
            return is_valid

        return copied if values.dtype == types.int32 else converted
