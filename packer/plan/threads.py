"""Kernels side by side: they release the interpreter's lock."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Call a function for every item, `threads` at a time; return what it gave, in order."""
    return list(each_in_threads(function, items, threads))


def each_in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """As `in_threads`, one result after the other."""
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, items)
