"""Measure a source without its tokens: the length of every document, and its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.grouping import document_groups
from packer.pipeline.mixing import Given, open_sources
from packer.progress import Progress, silent
from packer.sources import scan
from packer.sources.mixture import Mixture
from packer.sources.pairs import Pairs, interleaved


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Lengths and groups of documents, in the order in which they are packed."""

    lengths: NDArray[np.int32]
    """(documents,) number of tokens of each document."""

    groups: NDArray[np.int32] | None
    """(documents,) group of each document, NO_GROUP for none; None without groups."""

    mixture: tuple[dict[str, Any], ...] = ()
    """Share taken of each source of a mixture, as in the manifest; empty for a single source."""


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
        drawn = opened.draw(progress, with_extra=is_grouped)
        numbers, _, lengths = drawn.order()
        extra = {name: drawn.column(name) for name in (options.group_by,) if name is not None}
        groups = document_groups(extra, drawn.lists(numbers), options)
        return Measured(lengths=lengths, groups=groups, mixture=tuple(drawn.identities))
    if isinstance(opened, Pairs) and not opened.mapped:
        sides = [scan(side, progress, with_extra=is_grouped) for side in opened.sides]
        lists = interleaved(*opened.sides)
        lengths = np.concatenate([side.lengths for side in sides])[lists]
        return Measured(lengths=lengths, groups=document_groups(sides[0].extra, np.repeat(lists[::2], 2), options))
    scanned = scan(opened, progress, with_extra=is_grouped)
    return Measured(lengths=scanned.lengths, groups=document_groups(scanned.extra, opened.indices, options))
