"""Measure a source without its tokens: the length of every document, and its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.facts import MixturePart
from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.grouping import document_groups
from packer.pipeline.make_plan import makes_own_rows
from packer.pipeline.read_documents import Given, open_sources
from packer.progress import Progress, silent
from packer.sources import scan
from packer.sources.draw_mixture import Drawn, draw_mixture
from packer.sources.mixture import Mixture
from packer.sources.pairs import Pairs, interleaved


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Lengths and groups of documents, in the order in which they are packed."""

    lengths: NDArray[np.int32]
    """(documents,) number of tokens of each document. A mixture without groups is in the order for histogram
    algorithms; see `lengths_for`."""

    groups: NDArray[np.int32] | None
    """(documents,) group of each document, NO_GROUP for none; None without groups."""

    mixture: tuple[MixturePart, ...] = ()
    """Sources of a mixture and what is taken of each; empty for a single source."""

    drawn: Drawn | None = None
    """The mixture; None for a single source, or if its sources are interleaved already."""

    def lengths_for(self, options: PackOptions) -> NDArray[np.int32]:
        """Return the lengths in the order in which `pack` takes documents: order algorithms interleave a mixture."""
        if self.drawn is None or makes_own_rows(options):
            return self.lengths
        lengths: NDArray[np.int32] = self.lengths[self.drawn.order(self.lengths)]
        return lengths


def measure(source: Given | Sequence[Given], options: PackOptions, progress: Progress = silent) -> Measured:
    """Read the lengths of a source, or of the sources of a mixture, as `pack` does; nothing is written.

    Args:
        source: a source or sources, as for `pack`.
        options: options that say what is read, the weights of a mixture, and the column of groups.
        progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.

    Raises:
        PackerError: as `pack` before it plans.
    """
    opened = open_sources(expanded(source), options)
    is_grouped = options.group_by is not None
    if isinstance(opened, Mixture):
        return _measure_mixture(draw_mixture(opened, progress, with_extra=is_grouped), options)
    if isinstance(opened, Pairs) and not opened.mapped:
        sides = [scan(side, progress, with_extra=is_grouped) for side in opened.sides]
        lists = interleaved(*opened.sides)
        lengths = np.concatenate([side.lengths for side in sides])[lists]
        return Measured(lengths=lengths, groups=document_groups(sides[0].extra, np.repeat(lists[::2], 2), options))
    scanned = scan(opened, progress, with_extra=is_grouped)
    return Measured(lengths=scanned.lengths, groups=document_groups(scanned.extra, opened.indices, options))


def _measure_mixture(drawn: Drawn, options: PackOptions) -> Measured:
    lengths, mixture = drawn.lengths(), drawn.identities
    if options.group_by is None:
        return Measured(lengths=lengths, groups=None, mixture=mixture, drawn=drawn)
    order = drawn.order(lengths)
    lists = drawn.origins(order)[np.arange(len(order))]
    groups = document_groups({options.group_by: drawn.column(options.group_by)}, lists, options)
    return Measured(lengths=lengths[order], groups=groups, mixture=mixture)
