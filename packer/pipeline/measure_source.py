"""Measure a source without its tokens, and plan its rows: the length, group and limited values of every document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.facts import MixturePart
from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.planning.group_plan import document_groups
from packer.pipeline.planning.limit_plan import limit_values
from packer.pipeline.planning.make_plan import plan_lengths
from packer.pipeline.read_documents import Documents, SourceLike, open_sources
from packer.pipeline.source_warnings import warn_of_linked_files, warn_of_rejected, warn_of_unused_sources
from packer.plan.located_rows import Plan, rows_of_plan
from packer.progress import Progress, silent
from packer.sources.origins import Origins
from packer.sources.survey_corpus import CorpusSurvey, survey_corpus
from packer.stats.row_figures import RowFigures, RowSums


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Lengths of documents, and their groups or their values of limited columns, in packing order."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document. Without groups and limits, a mixture is in the order for histogram
    algorithms; see `lengths_for`."""

    groups: NDArray[np.int32] | None = None
    """(documents,) group of each document, NO_GROUP for none; None without groups."""

    limits: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """(documents,) what each document takes of each limit, by column."""

    describe: Callable[[int], str] = "document {:,}".format
    """Function that names a document in messages, if there are limits."""

    mixture: tuple[MixturePart, ...] = ()
    """Sources of a mixture and what is taken of each; empty for a single source."""

    survey: CorpusSurvey | None = None
    """Survey of the source; None if the lengths are from packed rows."""

    order: NDArray[Any] | None = None
    """(documents,) position of each document in the own order of a mixture; None if they are in it."""

    def lengths_for(self, options: PackOptions) -> NDArray[np.int32]:
        """Return the lengths in the order in which `pack` takes documents: order algorithms interleave a mixture."""
        if self.survey is None or options.is_planned_whole or options.makes_own_rows:
            return self.lengths
        return _in_order(self.lengths, self.survey.order(self.lengths))

    def origins_for(self, options: PackOptions) -> Origins | None:
        """Return the source behind each document, in the order of `lengths_for`; None if it is not known."""
        if self.survey is None:
            return None
        if options.is_planned_whole or options.makes_own_rows:
            return self.survey.origins(self.order)
        return self.survey.origins(self.survey.order(self.lengths))

    def plan(self, options: PackOptions, progress: Progress = silent) -> Plan:
        """Plan the rows that `pack` makes with these options; arguments and errors are those of `plan_lengths`."""
        lengths = self.lengths_for(options)
        return plan_lengths(
            lengths, options, groups=self.groups, limits=self.limits, describe=self.describe, progress=progress
        )

    def follow(self, plan: Plan, options: PackOptions, *, keeps_rows: bool = False) -> RowFigures:
        """Return the figures of all planned rows; `keeps_rows` is that of `RowSums`."""
        sums = RowSums(options.max_len, limits=options.limits, keeps_rows=keeps_rows)
        for rows in rows_of_plan(plan):
            limited = {name: self.limits[name][rows.documents] for name in options.limits}
            sums.add(rows.lengths, rows.row_starts, starts=rows.starts, limited=limited)
        return sums.finish()


def measure(source: SourceLike | Sequence[SourceLike], options: PackOptions, progress: Progress = silent) -> Measured:
    """Read the lengths of a source, or of the sources of a mixture, as `pack` does; nothing is written.

    Args:
        source: a source or sources, as for `pack`.
        options: options of the pack; those for reading, mixing, grouping and limits are used.
        progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.

    Raises:
        PackerError: the source cannot be read, or does not fit the options.
    """
    opened = open_sources(expanded(source), options)
    warn_of_linked_files(opened)
    survey = survey_corpus(opened, progress, with_extra=options.is_planned_whole)
    warn_of_rejected(opened)
    lengths, mixture = survey.lengths(), survey.identity.mixture
    warn_of_unused_sources(mixture)
    if not options.is_planned_whole:
        return Measured(lengths=lengths, mixture=mixture, survey=survey)
    order = survey.order(lengths)
    lengths = _in_order(lengths, order)
    documents = Documents(
        source=survey.source, identity=survey.identity, lengths=lengths, origins=survey.origins(order)
    )
    columns = {name: survey.column(name) for name in options.value_columns}
    lists = survey.lists(order)
    return Measured(
        lengths=lengths,
        groups=document_groups(columns, lists, options),
        limits=limit_values(columns, lists, options, documents.describe),
        describe=documents.describe,
        mixture=mixture,
        survey=survey,
        order=order,
    )


def measure_at_lengths(
    source: SourceLike | Sequence[SourceLike], progress: Progress = silent
) -> Callable[[PackOptions], Measured]:
    """Return a function that measures a source at several `max_len`, other options being the same at every call.

    The source is read once, unless documents of a mixture are truncated or dropped: then what the mixture takes of each
    source depends on max_len.
    """
    held: dict[int, Measured] = {}

    def measure_at(options: PackOptions) -> Measured:
        read_at = options.max_len if options.weights and options.long != "split" else 0
        if read_at not in held:
            held.clear()
            held[read_at] = measure(source, options, progress)
        return held[read_at]

    return measure_at


def _in_order(lengths: NDArray[np.int32], order: NDArray[Any] | None) -> NDArray[np.int32]:
    return lengths if order is None else lengths[order]
