"""Packing algorithms, and the registry that names them.

A histogram algorithm turns the number of segments of each extent into patterns; an order algorithm turns lengths, in
the order of the source, into rows. `ALGORITHMS` is the only registry. A new algorithm is a file with a function
`solve(histogram, max_segments)` or `arrange(lengths, max_len, max_segments)` and a line here. Importing this module is
cheap: the file of an algorithm, and Numba with it, is imported when the algorithm first packs.
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

    def __call__(self, histogram: NDArray[np.int64], max_segments: int | None = None) -> Patterns:
        """Pack `histogram[l]` segments of every extent l into packs of `len(histogram) - 1` tokens.

        The histogram is int64, shape (max_len + 1,), with histogram[0] == 0. No pack holds more than
        `max_segments` segments; None sets no limit.
        """
        ...


class Arranger(Protocol):
    """Signature of an order algorithm."""

    def __call__(
        self,
        lengths: NDArray[np.int32],
        max_len: int,
        max_segments: int | None = None,
        open_row: OpenRow | None = None,
    ) -> OrderedRows:
        """Arrange documents of `lengths` tokens, 0 where none are placed, in rows of `max_len` tokens.

        Lengths are int32, shape (documents,), and may be above max_len. No row holds more than `max_segments` segments;
        None sets no limit. `open_row` is the row that earlier documents left open; None where these are the first.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm: `get_algorithm("bfd").solve(histogram, max_segments=3).packs`."""

    name: str
    """The name on the command line and in the manifest."""

    summary: str
    """One sentence for `--help`."""

    solve: Solver | None = None
    """The function that packs a histogram, which always gives the same patterns; None for an order algorithm."""

    arrange: Arranger | None = None
    """The function that packs lengths in order, which always give the same rows; None for a histogram algorithm."""

    draws: bool = False
    """Whether most rows are drawn at random and `solve` packs only the rest; a bare histogram is solved as a whole."""

    always_draws: bool = False
    """Whether rows are drawn even if that takes more rows than packing all documents by `solve`."""

    proves: bool = False
    """Whether it may prove a higher lower bound than those of `packer.algorithms.bounds`."""

    keeps_whole: bool = True
    """Whether only documents longer than max_len are cut. If not, lower bounds for whole documents do not hold."""


def _in_file(module: str, function: str) -> Callable[..., Any]:
    """Make a solver or arranger that imports its module on first use."""

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
"""Every algorithm by its name."""


def get_algorithm(name: str) -> Algorithm:
    """Return the algorithm with this name; if there is none, a PackerError lists all names."""
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise PackerError(f"No algorithm is called {name!r}; choose one of: {', '.join(sorted(ALGORITHMS))}")
    return algorithm
