"""What is to be packed, without its tokens: the length of every document, and its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.grouping import document_groups
from packer.pipeline.read_documents import Given, open_sources
from packer.progress import Progress, silent
from packer.sources import scan
from packer.sources.draw_mixture import Drawn, draw_mixture
from packer.sources.mixture import Mixture
from packer.sources.pairs import Pairs, interleaved


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Documents in the order in which they are packed."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each. Those of a mixture are numbered as histogram algorithms pack them, unless there are
    groups: then its sources are interleaved."""

    groups: NDArray[np.int32] | None
    """(documents,) the group of each, NO_GROUP for none; None where nothing groups them."""

    mixture: tuple[dict[str, Any], ...] = ()
    """What is taken of each source of a mixture, as in the manifest."""

    drawn: Drawn | None = None
    """The mixture; None for one source, or if its sources are interleaved already."""

    def in_order(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Put lengths of the documents in the order in which order algorithms pack them: a mixture is interleaved."""
        return lengths if self.drawn is None else lengths[self.drawn.order(self.lengths)]


def measure(source: Given | Sequence[Given], options: PackOptions, progress: Progress = silent) -> Measured:
    """Read a source, or those of a mixture, as `pack` does, for the lengths alone; nothing is written.

    Args:
        source: what `pack` takes.
        options: what is read, how much of each source of a mixture, and what makes groups.
        progress: told of "lengths", "decode" or "tokenize", in bytes of the files.

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
    lengths, mixture = drawn.lengths(), tuple(drawn.identities)
    if options.group_by is None:
        return Measured(lengths=lengths, groups=None, mixture=mixture, drawn=drawn)
    order = drawn.order(lengths)
    lists = drawn.origins(order)[np.arange(len(order))]
    groups = document_groups({options.group_by: drawn.column(options.group_by)}, lists, options)
    return Measured(lengths=lengths[order], groups=groups, mixture=mixture)
