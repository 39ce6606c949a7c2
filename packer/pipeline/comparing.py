"""Compare algorithms on the same lengths: the rows that each makes, and the time it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import ALGORITHMS, Algorithm, AnyAlgorithm, OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import compile_from_now_on, compile_seconds
from packer.errors import PackerError, SourceError
from packer.manifest_fields import Account, PlanTotals
from packer.options import RowOptions
from packer.paths import expanded, is_histogram
from packer.pipeline.collect_figures import Measured, measure
from packer.plan.groups import least_rows
from packer.plan.make_plan import needs_documents
from packer.plan.segment_reader import SegmentReader
from packer.progress import Progress, silent
from packer.report.comparison import Comparison
from packer.report.dataset_figures import Figures
from packer.report.length_figures import tokens_of
from packer.report.row_figures import RowSums
from packer.sources.number_columns import read_length_counts
from packer.sources.open_sources import SourceLike

QUICK = 2.0
"""Seconds; an algorithm that takes less is timed again, and the second time counts."""

Result = TypeVar("Result")


def compare(
    source: SourceLike,
    *,
    options: RowOptions,
    algorithms: Sequence[str] = (),
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> Comparison:
    """Run algorithms on a dataset, or a histogram: a file `*.csv` with the header `length,count`.

    Pairs and groups are planned as by `pack`; then the time is that of the whole plan. By default, all algorithms run
    that are quick at this row length, instead of that of the options. Progress is in bytes while files are read, and
    "solve NAME" before each algorithm. A PackerError is raised if the source cannot be read, there is nothing in it to
    pack, or no algorithm could run.
    """
    corpus = _read_corpus(expanded(source), options, progress)
    slow = [
        name for name, known in ALGORITHMS.items() if isinstance(known, Algorithm) and known.is_slow(options.max_len)
    ]
    left_out = [] if algorithms else slow
    chosen = list(dict.fromkeys(get_algorithm(name).name for name in algorithms or ALGORITHMS if name not in left_out))
    outcomes: list[Figures] = []
    failures: dict[str, str] = {}
    compile_from_now_on()
    for done, name in enumerate(chosen):
        progress(f"solve {name}", done, len(chosen))
        try:
            figures = _figures_of(get_algorithm(name), corpus, options)
            outcomes.append(replace(figures, documents_per_step=documents_per_step))
        except (PackerError, MemoryError) as error:
            reason = str(error) if isinstance(error, PackerError) else f"out of memory ({error})"
            failures[name] = " ".join(reason.split())
    progress("solve", len(chosen), len(chosen))
    if not outcomes:
        reasons = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise PackerError(f"no algorithm could run; {reasons}")
    return Comparison(
        by="algorithm",
        outcomes=tuple(sorted(outcomes, key=lambda figures: (figures.rows, figures.seconds))),
        failures=failures,
        left_out=tuple(left_out),
    )


class _Corpus(NamedTuple):
    """Documents to pack, cut only if they are longer than max_len."""

    account: Account  # what becomes of every document and token
    histogram: NDArray[np.int64]  # (max_len + 1,) segments by length
    lower_bound: int  # rows that no packing of whole documents can go below, known without solving
    measured: Measured | None = None  # the documents; None if only a histogram is known


def _read_corpus(source: SourceLike, options: RowOptions, progress: Progress) -> _Corpus:
    """Read a dataset or a histogram."""
    if is_histogram(source, options.tokenizer):
        if options.group_by is not None:
            raise PackerError(f"{source} is a histogram, which has no groups: give the dataset")
        return _corpus_of_counts(Path(str(source)), options)
    measured = measure(source, options, progress)
    lengths = measured.lengths
    segments = SegmentReader(options=options, documents=len(lengths), lengths=lengths).all_segments()
    return _Corpus(
        account=segments.account,
        histogram=segments.histogram,
        lower_bound=least_rows(segments, measured.values.groups, options),
        measured=measured,
    )


def _corpus_of_counts(path: Path, options: RowOptions) -> _Corpus:
    """Apply the long-document policy to a histogram: with max_len 4, 2 documents of 9 tokens -> 4 of 4 and 2 of 1."""
    max_len, long = options.max_len, options.long
    lengths, counts = read_length_counts(path)
    is_long = lengths > max_len
    long_documents, long_tokens = int(counts[is_long].sum()), int(lengths[is_long] @ counts[is_long])
    if long == "error" and long_documents:
        raise SourceError(
            f"{path} has {long_documents:,} documents longer than max_len {max_len:,} "
            f"(up to {lengths[is_long & (counts > 0)].max():,}); choose --long split, truncate or drop"
        )
    histogram = np.zeros(max_len + 1, np.int64)
    np.add.at(histogram, lengths[~is_long], counts[~is_long])
    if long == "truncate":
        histogram[max_len] += long_documents
    elif long == "split":
        histogram[max_len] += (lengths[is_long] - 1) // max_len @ counts[is_long]
        np.add.at(histogram, (lengths[is_long] - 1) % max_len + 1, counts[is_long])
    empty_documents, histogram[0] = int(histogram[0]), 0
    if not histogram.any():
        raise SourceError(
            f"nothing to pack: of {counts.sum():,} documents in {path}, {empty_documents:,} are empty and "
            f"{long_documents:,} longer than max_len {max_len:,} (--long {long})"
        )
    account = Account(
        documents=int(counts.sum()),
        documents_split=long_documents if long == "split" else 0,
        documents_truncated=long_documents if long == "truncate" else 0,
        documents_dropped={"empty": empty_documents, "too_long": long_documents if long == "drop" else 0},
        tokens=int(lengths @ counts),
        tokens_packed=tokens_of(histogram),
        tokens_truncated=long_tokens - long_documents * max_len if long == "truncate" else 0,
        tokens_dropped={"too_long": long_tokens if long == "drop" else 0},
    )
    return _Corpus(
        account=account,
        histogram=histogram,
        lower_bound=lower_bound(histogram, options.max_segments),
    )


def _figures_of(algorithm: AnyAlgorithm, corpus: _Corpus, options: RowOptions) -> Figures:
    """Plan the documents if the algorithm needs more than their histogram, or else pack the histogram.

    An algorithm that does not support the options, or needs documents of which only a histogram is known, is a
    PackerError.
    """
    options = replace(options, algorithm=algorithm.name)
    totals: PlanTotals
    if corpus.measured is not None and needs_documents(algorithm, options):
        plan, seconds = _timed(partial(corpus.measured.plan, options))
        totals, rows = plan.totals, corpus.measured.follow(plan, options)
    else:
        if isinstance(algorithm, OrderAlgorithm):
            raise PackerError("needs a dataset: it packs documents in their order, and a histogram has none")
        if algorithm.always_draws:
            raise PackerError("needs a dataset: it draws rows from documents, and a histogram has none")
        patterns, seconds = _timed(partial(algorithm.solve, corpus.histogram, options.max_segments))
        sums = RowSums(options.max_len)
        sums.add(patterns.extents, patterns.offsets, patterns.counts)
        rows = sums.finish()
        totals = PlanTotals.of(
            corpus.account,
            max_len=options.max_len,
            segments=rows.segments,
            rows=patterns.packs,
            pool_rows=0,
            lower_bound=max(patterns.lower_bound, corpus.lower_bound),
        )
    return Figures(options=options, totals=totals, histogram=corpus.histogram, measured_rows=rows, seconds=seconds)


def _timed(run: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result and the seconds it took without compiling, in a second run if the first was quick."""
    for _ in range(2):
        result = None  # do not hold two results
        begun, compiled = time.perf_counter(), compile_seconds()
        result = run()
        seconds = time.perf_counter() - begun - (compile_seconds() - compiled)
        if seconds >= QUICK:
            break
    assert result is not None
    return result, seconds
