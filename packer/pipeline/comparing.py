"""Compare algorithms on the same lengths: the rows that each makes, and the time it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from packer.algorithms import ALGORITHMS, Algorithm, AnyAlgorithm, OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import compile_from_now_on
from packer.algorithms.prepare_numba import compile_seconds
from packer.errors import PackerError, SourceError
from packer.options import PackOptions
from packer.options.choices import LongPolicy
from packer.paths import expanded
from packer.pipeline.measure_source import Measured, measure
from packer.pipeline.planning.make_plan import needs_documents, plan_lengths
from packer.pipeline.read_documents import SourceLike
from packer.pipeline.segments.packable_segments import cut_by_policy, items_and_groups, least_rows
from packer.plan.segments import Segments
from packer.progress import Progress, silent
from packer.sources.length_counts import read_length_counts
from packer.stats.algorithm_comparison import Comparison, Failure, Outcome, compare_outcomes
from packer.stats.row_figures import Corpus, rows_in_order, rows_of_patterns, rows_of_shards
from packer.stores import is_remote

QUICK = 2.0
"""Seconds; an algorithm that takes less is timed again, and the second time counts."""

PATIENCE = 60.0
"""Time limit in seconds of algorithms that have one."""

Result = TypeVar("Result")


def compare(
    source: SourceLike | Sequence[SourceLike],
    *,
    options: PackOptions,
    algorithms: Sequence[str] = (),
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> Comparison:
    """Run algorithms on a dataset, a mixture, or a histogram: a file `*.csv` with the header `length,count`.

    Pairs and groups are planned as by `pack`; then the time is that of the whole plan.

    Args:
        source: a source or sources, as for `pack`, or a histogram of documents.
        options: options of the pack; their algorithm is ignored.
        algorithms: names of the algorithms to run, by default all that are quick at this row length. One that cannot
            run becomes a `Failure`.
        documents_per_step: documents per optimizer step in unpacked training.
        progress: callback, called in bytes while files are read, and with "solve NAME" before each algorithm.

    Raises:
        PackerError: the source cannot be read, there is nothing in it to pack, or no algorithm could run.
    """
    source, planned = expanded(source), None
    if (
        isinstance(source, str | Path)
        and not is_remote(source)
        and Path(source).suffix.lower() == ".csv"
        and not Path(source).is_dir()
    ):
        if options.pairs or options.group_by is not None:
            raise PackerError(f"{source} is a histogram, which has no pairs or groups: give the dataset")
        corpus = _corpus_of_counts(Path(source), options.max_len, options.long)
        known_bound = lower_bound(corpus.histogram, options.max_segments)
    else:
        measured = measure(source, options, progress)
        segments = cut_by_policy(measured.lengths, options)
        corpus = _corpus_of_segments(segments)
        known_bound = least_rows(*items_and_groups(segments, measured.groups, options), options)
        planned = measured
        del segments
    slow = [
        name for name, known in ALGORITHMS.items() if isinstance(known, Algorithm) and known.is_slow(options.max_len)
    ]
    left_out = [] if algorithms else slow
    chosen = list(dict.fromkeys(get_algorithm(name).name for name in algorithms or ALGORITHMS if name not in left_out))
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    compile_from_now_on()
    for done, name in enumerate(chosen):
        progress(f"solve {name}", done, len(chosen))
        try:
            if planned is not None and needs_documents(get_algorithm(name), options):
                outcomes.append(_planned_outcome(name, corpus, planned, options))
            else:
                outcomes.append(_outcome(get_algorithm(name), corpus, options.max_segments))
        except (PackerError, MemoryError) as error:
            reason = str(error) if isinstance(error, PackerError) else f"out of memory ({error})"
            failures.append(Failure(algorithm=name, error=" ".join(reason.split())))
    progress("solve", len(chosen), len(chosen))
    if not outcomes:
        reasons = "; ".join(f"{failure.algorithm}: {failure.error}" for failure in failures)
        raise PackerError(f"no algorithm could run; {reasons}")
    return compare_outcomes(
        corpus,
        outcomes,
        failures,
        max_segments=options.max_segments,
        known_bound=known_bound,
        documents_per_step=documents_per_step,
        left_out=left_out,
    )


def _corpus_of_segments(segments: Segments) -> Corpus:
    return Corpus(
        histogram=segments.histogram,
        documents=segments.documents,
        tokens=int(segments.lengths.sum(dtype=np.int64)),
        empty_documents=segments.empty_documents,
        long=segments.long,
        long_documents=segments.long_documents,
        long_tokens=segments.long_tokens,
        unpaired_documents=segments.unpaired_documents,
    )


def _corpus_of_counts(path: Path, max_len: int, long: LongPolicy) -> Corpus:
    """Apply the long-document policy to a histogram: with max_len 4, 2 documents of 9 tokens -> 4 of 4 and 2 of 1.

    Raises:
        SourceError: `long` is "error" and a document is longer than max_len, or no document is left.
    """
    lengths, counts = read_length_counts(path)
    is_long = lengths > max_len
    long_documents = int(counts[is_long].sum())
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
    return Corpus(
        histogram=histogram,
        documents=int(counts.sum()),
        tokens=int(lengths @ counts),
        empty_documents=empty_documents,
        long=long,
        long_documents=long_documents,
        long_tokens=int(lengths[is_long] @ counts[is_long]),
    )


def _outcome(algorithm: AnyAlgorithm, corpus: Corpus, max_segments: int | None) -> Outcome:
    """Pack a histogram.

    Raises:
        PackerError: the algorithm needs the documents themselves.
    """
    if isinstance(algorithm, OrderAlgorithm):
        raise PackerError("needs a dataset: it packs documents in their order, and a histogram has none")
    if algorithm.always_draws:
        raise PackerError("needs a dataset: it draws rows from documents, and a histogram has none")
    limits = {"seconds": PATIENCE} if algorithm.limited else {}
    patterns, seconds = _timed(partial(algorithm.solve, corpus.histogram, max_segments, **limits))
    rows = rows_of_patterns(patterns, corpus)
    return Outcome(algorithm=algorithm.name, rows=rows, seconds=seconds, proved_bound=patterns.lower_bound)


def _planned_outcome(name: str, corpus: Corpus, measured: Measured, options: PackOptions) -> Outcome:
    """Plan the rows of documents, pairs or groups with an algorithm.

    Raises:
        PackerError: the algorithm does not support these options.
    """
    algorithm = get_algorithm(name)
    limited = isinstance(algorithm, Algorithm) and algorithm.limited
    options = replace(options, algorithm=name, gap=None, time_limit=PATIENCE if limited else None)
    lengths = measured.lengths_for(options)
    planned, seconds = _timed(partial(plan_lengths, lengths, options, groups=measured.groups))
    shards = (planned.shards.shard(number) for number in range(len(planned.shards.shard_rows)))
    located = (shard.located(0, len(shard)) for shard in shards)
    if isinstance(algorithm, OrderAlgorithm):
        rows, keeps_whole = rows_in_order(located), algorithm.keeps_whole
        return Outcome(algorithm=name, rows=rows, seconds=seconds, keeps_whole=keeps_whole)
    rows = rows_of_shards(located, corpus)
    return Outcome(algorithm=name, rows=rows, seconds=seconds, proved_bound=planned.lower_bound)


def _timed(run: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result and the seconds it took without compiling, in a second run if the first was quick."""
    result, seconds = _timed_once(run)
    if seconds >= QUICK:
        return result, seconds
    del result  # do not hold two results
    return _timed_once(run)


def _timed_once(run: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result and the seconds it took without compiling."""
    begun, compiled = time.perf_counter(), compile_seconds()
    result = run()
    return result, time.perf_counter() - begun - (compile_seconds() - compiled)
