"""Access to memory by address, in Python and in compiled code: array views, libc's memcpy and prefetching."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FETCHED = 512  # bytes to prefetch; the hardware prefetcher continues from there
_LINE = 64  # bytes of a cache line


def array_at(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """View `count` values of `dtype` at a memory address."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def copy_bytes(destination: int, source: int, count: int) -> None:
    """Copy `count` bytes between memory addresses."""
    ctypes.memmove(int(destination), int(source), int(count))


def prefetch(address: int, count: int) -> None:
    """Prefetch the first cache lines of `count` bytes in compiled code; addresses that are not mapped are ignored."""


def teach_numba() -> None:
    """Have compiled code do the same as the functions above, by a few instructions."""
    from llvmlite import ir
    from numba import carray  # type: ignore[attr-defined]  # its stub does not export it
    from numba.core import cgutils, types
    from numba.extending import intrinsic, lower_builtin, overload, type_callable

    byte_pointer, word, wide = cgutils.voidptr_t, ir.IntType(32), ir.IntType(64)
    find: Any = cgutils.get_or_insert_function  # untyped
    lower: Any = lower_builtin

    def widened(context: Any, builder: Any, signature: Any, values: Any) -> list[Any]:
        return [context.cast(builder, *each, types.int64) for each in zip(values, signature.args, strict=True)]

    @type_callable(copy_bytes)
    def _type_of_copy(context: Any) -> Any:
        return lambda destination, source, count: types.none

    @lower(copy_bytes, types.Integer, types.Integer, types.Integer)  # type: ignore[untyped-decorator]
    def _copy_bytes(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        destination, source, count = widened(context, builder, signature, values)
        memcpy = find(builder.module, ir.FunctionType(byte_pointer, [byte_pointer, byte_pointer, wide]), "memcpy")
        pointers = [builder.inttoptr(address, byte_pointer) for address in (destination, source)]
        builder.call(memcpy, [*pointers, count])
        return context.get_dummy_value()

    @type_callable(prefetch)
    def _type_of_prefetch(context: Any) -> Any:
        return lambda address, count: types.none

    @lower(prefetch, types.Integer, types.Integer)  # type: ignore[untyped-decorator]
    def _prefetch(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, count = widened(context, builder, signature, values)
        takes = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        fetch_line = find(builder.module, takes, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        for ahead in range(0, _FETCHED, _LINE):
            with builder.if_then(builder.icmp_signed("<", wide(ahead), count)):
                line = builder.inttoptr(builder.add(address, wide(ahead)), byte_pointer)
                builder.call(fetch_line, [line, read, keep, data])
        return context.get_dummy_value()

    @intrinsic
    def as_pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(types.uint64), generate

    pointer: Any = as_pointer  # called without the typing context that its signature has

    @overload(array_at)
    def _array_at(address: Any, count: Any, dtype: Any) -> Any:
        def implementation(address: Any, count: Any, dtype: Any) -> Any:
            return carray(pointer(np.uint64(address)), count, dtype)

        return implementation
