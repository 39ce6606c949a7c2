"""Histogram algorithms: how many segments of each extent there are -> patterns. Order algorithms: lengths -> rows.

`ALGORITHMS` is the one registry. A new algorithm is a file with a function `solve(histogram, max_segments)` or
`arrange(lengths, max_len, max_segments)` and a line here. Importing this module is cheap: the file of an algorithm, and
Numba with it, is imported when it packs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from packer.errors import PackerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer.algorithms.patterns import Patterns
    from packer.algorithms.sequential import OpenRow, OrderedRows


class Solver(Protocol):
    """What packs a histogram."""

    def __call__(self, histogram: NDArray[np.int64], max_segments: int | None = None, **limits: float) -> Patterns:
        """Pack `histogram[l]` segments of every extent l into packs of `len(histogram) - 1` tokens.

        The histogram is int64, shape (max_len + 1,), with histogram[0] == 0. No pack holds more than
        `max_segments` segments; None sets no limit. Where the algorithm is `limited`: `gap`, packs above the lower
        bound as a share of it, and `seconds` end it with the best so far.
        """
        ...


class Arranger(Protocol):
    """What packs documents in their order."""

    def __call__(
        self,
        lengths: NDArray[np.int32],
        max_len: int,
        max_segments: int | None = None,
        open_row: OpenRow | None = None,
    ) -> OrderedRows:
        """Arrange documents of `lengths` tokens, 0 where none are placed, in rows of `max_len` tokens.

        Lengths are int32, shape (documents,), and may be above max_len. No row holds more than `max_segments` pieces;
        None sets no limit. `open_row` is the row that earlier documents left open; None where these are the first.
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

    draws: bool = False
    """Whether rows are drawn at random from the documents, where there are documents, and it packs only the rest."""

    always_draws: bool = False
    """Whether that is so even where it takes more rows than packing all documents by `solve`."""

    proves: bool = False
    """Whether it may prove a lower bound above those of `packer.algorithms.bounds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderAlgorithm:
    """An order algorithm: `get_algorithm("sequential").arrange(lengths, 4096).packs`."""

    name: str
    """The name on the command line and in the manifest."""

    summary: str
    """One sentence for `--help`."""

    arrange: Arranger
    """The function that packs; the same lengths give the same rows."""

    keeps_whole: bool = True
    """Whether documents are cut only where max_len demands it. Where not, bounds on whole ones do not hold."""


AnyAlgorithm: TypeAlias = "Algorithm | OrderAlgorithm"


def _in_file(module: str, function: str) -> Solver:
    """Name a solver that is imported on its first use."""

    def solve(histogram: NDArray[np.int64], max_segments: int | None = None, **limits: float) -> Patterns:
        solver: Solver = getattr(import_module(f"packer.algorithms.{module}"), function)
        return solver(histogram, max_segments, **limits)

    return solve


def _in_order(module: str, function: str) -> Arranger:
    """Name an arranger that is imported on its first use."""

    def arrange(
        lengths: NDArray[np.int32], max_len: int, max_segments: int | None = None, open_row: OpenRow | None = None
    ) -> OrderedRows:
        arranger: Arranger = getattr(import_module(f"packer.algorithms.{module}"), function)
        return arranger(lengths, max_len, max_segments, open_row)

    return arrange


ALGORITHMS: dict[str, AnyAlgorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            name="auto",
            summary="As few rows as a solver needs, and of such packings one that is mixed like the corpus.",
            solve=_in_file("auto", "auto"),
            proves=True,
            draws=True,
        ),
        Algorithm(
            name="mixed",
            summary="Rows drawn at random, mixed like the corpus, even where that takes a few more rows than auto.",
            solve=_in_file("auto", "auto"),
            proves=True,
            draws=True,
            always_draws=True,
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
            proves=True,
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
        OrderAlgorithm(
            name="sequential",
            summary="Next fit in source order: a document that does not fit the open row begins the next one.",
            arrange=_in_order("sequential", "sequential"),
        ),
        OrderAlgorithm(
            name="wrapped",
            summary="Concatenate and cut: no padding, but documents are cut wherever a row ends.",
            arrange=_in_order("sequential", "wrapped"),
            keeps_whole=False,
        ),
    )
}
"""Every algorithm by its name."""

ALIASES: dict[str, str] = {"lpfhp": "bfd"}
"""Other names that people know an algorithm by."""


def get_algorithm(name: str) -> AnyAlgorithm:
    """Look an algorithm up by its name or alias; a `PackerError` lists the names when there is none such."""
    algorithm = ALGORITHMS.get(ALIASES.get(name, name))
    if algorithm is None:
        known = ", ".join(sorted([*ALGORITHMS, *ALIASES]))
        raise PackerError(f"No algorithm is called {name!r}; choose one of: {known}")
    return algorithm
