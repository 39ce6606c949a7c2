"""Packing algorithms and the registry of their names.

A histogram algorithm gets the number of segments of each extent and returns patterns. An order algorithm gets lengths
in source order and returns rows. To add an algorithm, write a module with a function `solve(histogram, max_segments)`
or `arrange(lengths, max_len, max_segments)`, and add an entry to `ALGORITHMS`. Importing this package is cheap: the
module of an algorithm, and Numba, are imported when the algorithm is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from packer.errors import PackerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer.algorithms.patterns import Patterns
    from packer.algorithms.sequential import OpenRow, OrderedRows


class Solver(Protocol):
    """Signature of a histogram algorithm."""

    def __call__(
        self, histogram: NDArray[np.int64], max_segments: int | None = None, start: Patterns | None = None
    ) -> Patterns:
        """Pack `histogram[l]` segments of every extent l into packs of `len(histogram) - 1` tokens.

        histogram: int64, shape (max_len + 1,), with histogram[0] == 0. max_segments: maximum number of segments in a
        pack; None sets no limit. start: patterns of all documents, with which an algorithm that `proves` or `continues`
        begins to pack a part of them; never given to others.
        """
        ...


class Arranger(Protocol):
    """Signature of an order algorithm."""

    def __call__(
        self, lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
    ) -> OrderedRows:
        """Arrange documents in rows of `max_len` tokens.

        lengths: number of tokens of each document to place (0 for none), int32, shape (documents,); may be above
        max_len. max_segments: maximum number of segments in a row; None sets no limit. open_row: the row that earlier
        documents left open; None if there are no earlier documents.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm. Example: `get_algorithm("bfd").solve(histogram, max_segments=3).packs`."""

    name: str
    """Name on the command line and in the manifest."""

    summary: str
    """One sentence for `--help`."""

    solve: Solver | None = None
    """Function that packs a histogram, always into the same patterns; None for an order algorithm."""

    arrange: Arranger | None = None
    """Function that packs lengths in order, always into the same rows; None for a histogram algorithm."""

    draws: bool = False
    """Whether most rows are drawn at random and `solve` packs only the remaining segments."""

    always_draws: bool = False
    """Whether rows are drawn even if packing all documents by `solve` needs fewer rows."""

    proves: bool = False
    """Whether the algorithm may prove a higher lower bound than `packer.algorithms.bounds`."""

    continues: bool = False
    """Whether `solve` always packs a part of the documents faster if it begins with the patterns of all."""

    keeps_whole: bool = True
    """Whether only documents longer than max_len are cut. If False, lower bounds for whole documents do not hold."""


def _in_file(module: str, function: str) -> Callable[..., Any]:
    """Return a solver or arranger that imports its module on first use."""

    def run(*arguments: object) -> object:
        return getattr(import_module(f"packer.algorithms.{module}"), function)(*arguments)

    return run


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            name="auto",
            summary="As few rows as a solver needs, and of such packings one that is mixed like the corpus.",
            solve=_in_file("optimal", "auto"),
            proves=True,
            draws=True,
        ),
        Algorithm(
            name="mixed",
            summary="Rows drawn at random, mixed like the corpus, even where that takes a few more rows than auto.",
            solve=_in_file("optimal", "auto"),
            proves=True,
            draws=True,
            always_draws=True,
        ),
        Algorithm(
            name="bfd",
            summary="Best-fit decreasing: the longest first, each into the fullest pack that takes it (LPFHP).",
            solve=_in_file("open_packs", "best_fit_decreasing"),
        ),
        Algorithm(
            name="ffd",
            summary="First-fit decreasing: the longest first, each into the first pack that takes it.",
            solve=_in_file("first_fit", "first_fit_decreasing"),
        ),
        Algorithm(
            name="optimal",
            summary="Column generation: within a pack or so of a proven bound; seconds where lengths are many.",
            solve=_in_file("optimal", "solve"),
            proves=True,
        ),
        Algorithm(
            name="nnlshp",
            summary="Non-negative least squares (Krell et al.): every way to fill a pack, 3 segments by default.",
            solve=_in_file("nnls", "nnlshp"),
            continues=True,
        ),
        Algorithm(
            name="spfhp",
            summary="Shortest pack first (Krell et al.): worst fit that opens a new pack for every leftover.",
            solve=_in_file("worst_fit", "spfhp"),
        ),
        Algorithm(
            name="sequential",
            summary="Next fit in source order: a document that does not fit the open row begins the next one.",
            arrange=_in_file("sequential", "sequential"),
        ),
        Algorithm(
            name="wrapped",
            summary="Concatenate and cut: no padding, but documents are cut wherever a row ends.",
            arrange=_in_file("sequential", "wrapped"),
            keeps_whole=False,
        ),
    )
}
"""All algorithms by name."""


def get_algorithm(name: str) -> Algorithm:
    """Return the algorithm with this name. Raises a PackerError that lists all names if there is none."""
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise PackerError(f"No algorithm is called {name!r}; choose one of: {', '.join(sorted(ALGORITHMS))}")
    return algorithm
