"""Histogram algorithms: how many segments of each extent there are -> patterns of packs.

`ALGORITHMS` is the one registry. A new algorithm is a file with a function `solve(histogram, max_segments)` and a
line here. Importing this module is cheap: the file of an algorithm, and Numba with it, is imported when it solves.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from packer.errors import PackerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer.algorithms.patterns import Patterns


class Solver(Protocol):
    """What packs a histogram."""

    def __call__(self, histogram: NDArray[np.int64], max_segments: int | None = None, **limits: float) -> Patterns:
        """Pack `histogram[l]` segments of every extent l into packs of `len(histogram) - 1` tokens.

        The histogram is int64, shape (max_len + 1,), with histogram[0] == 0. No pack holds more than
        `max_segments` segments; None sets no limit. Where the algorithm is `limited`: `gap`, packs above the lower
        bound as a share of it, and `seconds` end it with the best so far.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A histogram algorithm: `get_algorithm("bfd").solve(histogram, max_segments=3).packs`."""

    name: str
    """The name on the command line and in the manifest."""

    summary: str
    """One sentence for `--help`."""

    solve: Solver
    """The function that packs; the same histogram gives the same patterns, in the same order (but for `seconds`)."""

    limited: bool = False
    """Whether it takes `gap` and `seconds`, and ends at these."""


def _in_file(module: str, function: str) -> Solver:
    """Name a solver that is imported on its first use."""

    def solve(histogram: NDArray[np.int64], max_segments: int | None = None, **limits: float) -> Patterns:
        solver: Solver = getattr(import_module(f"packer.algorithms.{module}"), function)
        return solver(histogram, max_segments, **limits)

    return solve


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            name="auto",
            summary="The best of best fit and exact fill, improved by `optimal` where that is worth it.",
            solve=_in_file("auto", "auto"),
        ),
        Algorithm(
            name="bfd",
            summary="Best-fit decreasing: the longest first, each into the fullest pack that takes it (LPFHP).",
            solve=_in_file("best_fit", "best_fit_decreasing"),
        ),
        Algorithm(
            name="optimal",
            summary="Column generation: within a pack or so of a proven bound; seconds where lengths are many.",
            solve=_in_file("optimal", "solve"),
            limited=True,
        ),
        Algorithm(
            name="ffd",
            summary="First-fit decreasing: the longest first, each into the first pack that takes it.",
            solve=_in_file("first_fit", "first_fit_decreasing"),
        ),
        Algorithm(
            name="nnlshp",
            summary="Non-negative least squares over full packs, the rest by best fit; never worse than spfhp.",
            solve=_in_file("nnls", "nnlshp"),
        ),
        Algorithm(
            name="nnlshp-published",
            summary="NNLSHP as Krell et al. published it: every way to fill a pack, at most 3 segments by default.",
            solve=_in_file("nnls", "nnlshp_published"),
        ),
        Algorithm(
            name="ennlshp",
            summary="NNLSHP with the extended objective of Krell et al.: the least padding; slower.",
            solve=_in_file("nnls", "ennlshp"),
        ),
        Algorithm(
            name="spfhp",
            summary="Worst-fit decreasing: the longest first, each into the emptiest pack, the best depth kept.",
            solve=_in_file("worst_fit", "spfhp"),
        ),
        Algorithm(
            name="spfhp-published",
            summary="SPFHP as Krell et al. published it: worst fit that opens a new pack for every leftover.",
            solve=_in_file("worst_fit", "spfhp_published"),
        ),
    )
}
"""Every histogram algorithm by its name."""

ALIASES: dict[str, str] = {"lpfhp": "bfd"}
"""Other names that people know an algorithm by."""


def get_algorithm(name: str) -> Algorithm:
    """Look an algorithm up by its name or alias; a `PackerError` lists the names when there is none such."""
    algorithm = ALGORITHMS.get(ALIASES.get(name, name))
    if algorithm is None:
        known = ", ".join(sorted([*ALGORITHMS, *ALIASES]))
        raise PackerError(f"No algorithm is called {name!r}; choose one of: {known}")
    return algorithm
