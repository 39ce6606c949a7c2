"""Measure a source without its tokens, and plan its rows: the length, group and limited values of every document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.facts import MixturePart
from packer.figures.row_figures import RowFigures, RowSums
from packer.options import PackOptions
from packer.paths import expanded
from packer.pipeline.source_warnings import warn_of_linked_files, warn_of_rejected, warn_of_unused_sources
from packer.plan.rows import Plan, rows_of_plan
from packer.planning.make_plan import plan_lengths
from packer.planning.whole_plan import DocumentValues, document_values
from packer.progress import Progress, silent
from packer.sources.corpus import Documents, Origins
from packer.sources.open_sources import SourceLike, open_sources
from packer.sources.survey import CorpusSurvey, survey_corpus


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Lengths of documents, and values by which they may share rows."""

    lengths: NDArray[np.int32]
    """(documents,) tokens of each document; of a mixture, one source after the other. See `lengths_for`."""

    values: DocumentValues = field(default_factory=DocumentValues)
    """Groups of documents, or what they take of limits, in packing order."""

    mixture: tuple[MixturePart, ...] = ()
    """Sources of a mixture and what is taken of each; empty for a single source."""

    survey: CorpusSurvey | None = None
    """Survey of the source; None if the lengths are from packed rows."""

    @cached_property
    def interleaved(self) -> NDArray[Any] | None:
        """(documents,) order of a mixture in which every stretch has the shares of the whole; None for one source."""
        return None if self.survey is None else self.survey.order(self.lengths)

    def order_for(self, options: PackOptions) -> NDArray[Any] | None:
        """Return the order in which `pack` takes documents; None if it is that of `lengths`."""
        return None if options.makes_own_rows else self.interleaved

    def lengths_for(self, options: PackOptions) -> NDArray[np.int32]:
        """Return the lengths in packing order."""
        order = self.order_for(options)
        return self.lengths if order is None else self.lengths[order]

    def origins_for(self, options: PackOptions) -> Origins | None:
        """Return the source behind each document in packing order; None if it is not known."""
        return None if self.survey is None else self.survey.origins(self.order_for(options))

    def plan(self, options: PackOptions, progress: Progress = silent) -> Plan:
        """Plan the rows that `pack` makes with these options; arguments and errors are those of `plan_lengths`."""
        return plan_lengths(self.lengths_for(options), options, values=self.values, progress=progress)

    def follow(self, plan: Plan, options: PackOptions, *, keeps_rows: bool = False) -> RowFigures:
        """Return the figures of all planned rows; `keeps_rows` is that of `RowSums`."""
        sums = RowSums(options.max_len, limits=options.limits, keeps_rows=keeps_rows)
        for rows in rows_of_plan(plan):
            limited = {name: self.values.limits[name][rows.documents] for name in options.limits}
            sums.add(rows.lengths, rows.row_starts, starts=rows.starts, limited=limited)
        return sums.finish()


def measure(source: SourceLike | Sequence[SourceLike], options: PackOptions, progress: Progress = silent) -> Measured:
    """Read the lengths of a source, or of the sources of a mixture, as `pack` does; nothing is written.

    Of the options, those for reading, mixing, grouping and limits are used. Progress is "lengths", "decode" or
    "tokenize", in bytes of the files.
    """
    opened = open_sources(expanded(source), options)
    warn_of_linked_files(opened)
    survey = survey_corpus(opened, progress, with_extra=options.is_planned_whole)
    warn_of_rejected(opened)
    measured = Measured(lengths=survey.lengths(), mixture=survey.identity.mixture, survey=survey)
    warn_of_unused_sources(measured.mixture)
    if not options.is_planned_whole:
        return measured
    documents = Documents(
        source=survey.source,
        identity=survey.identity,
        lengths=measured.lengths_for(options),
        origins=survey.origins(measured.order_for(options)),
    )
    columns = {name: survey.column(name) for name in options.value_columns}
    lists = survey.lists(measured.order_for(options))
    return replace(measured, values=document_values(columns, lists, options, documents.describe))


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
