"""Collect figures of a dataset from its document lengths, or of a packed dataset from its segment boundaries.

To compare several row lengths or algorithms, rows are planned from the same document lengths. For a report, a few rows
are selected and described segment by segment. For a training job, the time that its ranks wait for each other is
estimated: rows of equal length do not take equal work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.jit import compile_seconds, prepare_for
from packer.algorithms.permute import SHOWN_ROWS, hashes_of, key_of
from packer.arrow import as_numpy
from packer.column_names import ROW_DOCUMENT, TREE, input_ids_in
from packer.errors import OptionError, PackerError, system_errors
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.open_shards import Row
from packer.loader.row_order import row_order, steps_of_like_work
from packer.loader.row_tokens import nodes_of
from packer.options import PackOptions
from packer.options.option import as_amount
from packer.pipeline.source_warnings import warn_of_rejected
from packer.plan.make_plan import plan_lengths
from packer.plan.partition_plan import PartitionPlan
from packer.plan.rows import Plan
from packer.plan.segments import SegmentReader
from packer.plan.whole_plan import DocumentValues, document_values
from packer.progress import Progress, silent
from packer.report.charts import ShownRow
from packer.report.figures import Comparison, Figures
from packer.report.measures import KEYS_OF_MATRICES, RowFigures, RowSums, TrainingJob, Waiting, counted, tally
from packer.shards.located_rows import LocatedRows
from packer.shards.manifest import Manifest
from packer.shards.reader import check_batch, open_shard, read_manifest
from packer.sources.arrow_files import TableInMemory
from packer.sources.find_source import SourceLike, source_name
from packer.sources.list_checks import STRIPPED
from packer.sources.meanings import EXCHANGE_STARTS
from packer.sources.record_lists import REPEATED, SAVED
from packer.sources.source import Documents, ValueColumn, read_documents
from packer.stores import AnyPath
from packer.stores.hub import called
from packer.stores.paths import expanded, packed_path
from packer.text.text_source import open_source


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Documents with their lengths, and with the values that decide which documents may share a row."""

    documents: Documents
    values: DocumentValues
    starts: ValueColumn | None
    """Starts of the exchanges of chats, if documents may be split there."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each document, shape (documents,)."""
        assert self.documents.lengths is not None
        return self.documents.lengths

    def plan(self, options: PackOptions, progress: Progress = silent) -> Plan:
        """Plan the rows that `pack` makes with these options. Arguments and errors are as in `plan_lengths`."""
        return plan_lengths(self.lengths, options, values=self.values, starts=self.starts, progress=progress)


def measure(source: SourceLike, options: PackOptions, progress: Progress = silent) -> Measured:
    """Read the lengths of a source as `pack` does; nothing is written.

    Uses only the options for reading, grouping, limits and splitting. Progress is reported as "lengths", "decode" or
    "tokenize", in bytes of the files.
    """
    opened = open_source(expanded(source), options)
    has_exchanges = EXCHANGE_STARTS in opened.columns.extra
    with_extra = options.is_planned_whole or has_exchanges or bool(opened.packed_by)
    documents = read_documents(opened, progress, hold_lengths=True, with_extra=with_extra)
    warn_of_rejected(documents.source.rejections)
    prepare_for(documents.identity.documents + documents.identity.tokens // options.max_len)
    starts = None
    if has_exchanges:
        held = pa.table({EXCHANGE_STARTS: documents.extra[EXCHANGE_STARTS]})
        starts = ValueColumn(EXCHANGE_STARTS, held[0].type, (TableInMemory.of(held, held.column_names),))
    return Measured(documents=documents, values=document_values(documents, documents.extra, options), starts=starts)


def figures_of_plan(plan: Plan, max_len: int, *, keeps_rows: bool = False) -> RowFigures:
    """Return the figures of all planned rows. With `keeps_rows`, keep the tokens and squares of every row.

    If patterns give the tokens of every row, no documents are chosen.
    """
    if isinstance(plan, PartitionPlan) and not keeps_rows and plan.gives_tokens:
        sums = RowSums(max_len)
        for patterns in plan.patterns():
            sums.add(patterns.extents, patterns.offsets, counts=patterns.counts)
        return sums.finish()
    return _summed(map(plan.rows, range(len(plan.shard_starts) - 1)), max_len, keeps_rows=keeps_rows)


def _summed(parts: Iterable[LocatedRows], max_len: int, *, keeps_rows: bool) -> RowFigures:
    sums = RowSums(max_len, keeps_rows=keeps_rows)
    for rows in parts:
        sums.add(rows.lengths, rows.row_starts, starts=rows.starts)
    return sums.finish()


def dataset_figures(
    source: SourceLike,
    *,
    options: PackOptions,
    documents_per_step: int = 64,
    for_report: bool = False,
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures:
    """Collect the figures of a dataset, and of the rows that `pack` would make; nothing is written.

    `documents_per_step` is the number of documents per optimizer step in unpacked training. Progress is reported in
    documents while files are read, and as "plan" in tasks.
    """
    measured = measure(source, options, progress)
    plan = measured.plan(options, progress)
    is_followed = for_report or job is not None
    rows = figures_of_plan(plan, options.max_len, keeps_rows=job is not None) if is_followed else None
    lengths, counts = measured.lengths, measured.documents.source.counts
    reader = SegmentReader(options=options, documents=len(lengths), lengths=lengths, starts=measured.starts)
    segments = reader.all_segments()
    histogram = segments.histogram  # by extent, which is the number of tokens if segments are not aligned
    if options.align > 1:
        histogram = np.bincount(segments.tokens[segments.numbers()], minlength=options.max_len + 1)
    figures = Figures(
        options=options,
        totals=plan.totals,
        histogram=histogram,
        documents_per_step=documents_per_step,
        document_lengths=tally(lengths),
        measured_rows=rows,
        repeated_tokens=counts.get(REPEATED),
        saved_tokens=counts.get(SAVED),
        rows_before=rows_before(measured),
        waiting=waiting_of(rows, job),
    )
    if rows is None or not for_report:
        return figures
    shown = planned_rows(plan, chosen_rows(rows.rows), options.align)
    return replace(figures, name=source_name(source), shown_rows=shown)


def rows_before(measured: Measured) -> dict[str, Any] | None:
    """Describe the rows of a source that was packed before. Returns None if each row is one whole document.

    The assumed row length is the length of the longest row or, if larger, the mean length with padding. Documents at
    the beginning of a row, and at the end of a row of that length, may have been cut.
    """
    documents, source = measured.documents, measured.documents.source
    if not source.packed_by:
        return None
    numbers, stripped = as_numpy(documents.extra[ROW_DOCUMENT].combine_chunks()), source.counts[STRIPPED]
    tokens = np.add.reduceat(measured.lengths, np.flatnonzero(numbers == 0), dtype=np.int64)
    rows, total = len(tokens), int(tokens.sum())
    if rows == len(numbers) and not stripped:
        return None
    size = max(int(tokens.max()), -(-(total + stripped) // rows), 1)
    return {
        "by": source.packed_by,
        "rows": rows,
        "tokens_per_row": size,
        "efficiency": total / (rows * size),
        "documents_per_row": len(numbers) / rows,
        "most_documents": int(numbers.max()) + 1,
        "begin_rows": int(np.count_nonzero(tokens)),
        "end_rows": int(np.count_nonzero(tokens == size)),
    }


def packed_figures(
    packed: str | AnyPath,
    *,
    documents_per_step: int = 64,
    for_report: bool = False,
    decode: Callable[[Any], str] | None = None,
    job: TrainingJob | None = None,
    progress: Progress = silent,
) -> Figures:
    """Collect the figures of a packed dataset from its manifest and segment boundaries, without reading tokens.

    For a report, the tokens of a few rows are read, and `decode` converts them to text (None: show no text).
    """
    folder = packed_path(packed)
    with system_errors(folder, resumes=False):
        dataset = load(folder) if for_report else None
        manifest = read_manifest(folder) if dataset is None else dataset.manifest
        rows = _summed(_packed_parts(folder, manifest), manifest.max_len, keeps_rows=job is not None)
        figures = Figures(
            options=manifest.options,
            totals=manifest.totals,
            histogram=rows.histogram,
            documents_per_step=documents_per_step,
            is_packed=True,
            measured_rows=rows,
            waiting=waiting_of(rows, job),
            saved_tokens=manifest.totals.tokens_shared,
        )
        if dataset is None:
            return figures
        return replace(
            figures,
            name=(called(folder.resolve()) if isinstance(folder, Path) else folder).name,
            document_lengths=counted(rows.histogram),
            shown_rows=packed_rows(dataset, chosen_rows(rows.rows), decode),
        )


def _packed_parts(folder: AnyPath, manifest: Manifest) -> Iterator[LocatedRows]:
    """Yield the checked rows of all shards, in order."""
    for entry in manifest.shards:
        for batch in open_shard(folder, entry, manifest).to_batches():
            check_batch(batch, folder / entry.file, manifest)
            yield LocatedRows.of_batch(batch)


def compare(
    source: SourceLike,
    options: PackOptions,
    by: Literal["max_len", "algorithm"],
    values: Collection[int] | Collection[str],
    documents_per_step: int = 64,
    progress: Progress = silent,
) -> Comparison:
    """Plan the rows of a dataset at several lengths or by several algorithms, and compare them.

    Progress is reported in documents while files are read, and as "solve NAME" before each plan. Raises a PackerError
    if the source cannot be read, or if every plan failed.
    """
    measured = measure(source, options, progress)
    outcomes: list[Figures] = []
    failures: dict[str, str] = {}
    for done, value in enumerate(values):
        progress(f"solve {value}", done, len(values))
        try:
            changes: dict[str, Any] = {by: value}
            changed = replace(options, **changes)
            begun, compiled = time.perf_counter(), compile_seconds()
            plan = measured.plan(changed)
            seconds = time.perf_counter() - begun - (compile_seconds() - compiled)
            rows = figures_of_plan(plan, changed.max_len)
            outcomes.append(
                Figures(
                    options=changed,
                    totals=plan.totals,
                    histogram=rows.histogram,
                    documents_per_step=documents_per_step,
                    measured_rows=rows,
                    seconds=seconds,
                )
            )
        except (PackerError, MemoryError) as error:
            if by == "max_len":
                raise
            failures[str(value)] = str(error) if isinstance(error, PackerError) else f"out of memory ({error})"
    progress("solve", len(values), len(values))
    if not outcomes:
        reasons = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise PackerError(f"no algorithm could run; {reasons}")
    if by == "algorithm":
        outcomes.sort(key=lambda figures: (figures.rows, figures.seconds))
    return Comparison(by=by, outcomes=tuple(outcomes), failures=failures)


SAMPLED_ROWS = 20
"""Number of random rows shown, if they have at most SAMPLED_SEGMENTS segments."""

SAMPLED_SEGMENTS = 4000
"""Maximum number of segments in all rows shown, which bounds the size of a page."""

TRAINED_RUNS = 200
"""Maximum number of ranges of trained tokens shown per row."""

SHOWN_TEXT = 50_000
"""Maximum number of characters of text shown, divided equally among the segments."""


def chosen_rows(rows: int) -> list[int]:
    """Return the numbers of the rows to show, ascending: all rows, or a random selection."""
    if rows <= SAMPLED_ROWS:
        return [*range(rows)]
    drawn = hashes_of(key_of(0, SHOWN_ROWS, 0), np.arange(8 * SAMPLED_ROWS)) % np.uint64(rows)
    return sorted([*dict.fromkeys(drawn.tolist())][:SAMPLED_ROWS])


def _within_limit(rows: Sequence[ShownRow]) -> tuple[ShownRow, ...]:
    """Return leading rows of at most SAMPLED_SEGMENTS segments in total. A longer first row is cut."""
    ends = np.cumsum([len(row.lengths) for row in rows])
    within = int(np.searchsorted(ends, SAMPLED_SEGMENTS, side="right"))
    if within:
        return tuple(rows[:within])
    first = rows[0]
    columns = {name: getattr(first, name) for name in ("lengths", "extents", "documents", "starts", "trained", "nodes")}
    cut = {name: values and values[:SAMPLED_SEGMENTS] for name, values in columns.items()}
    end = sum(cut["extents"])
    runs = tuple((begin, min(last, end)) for begin, last in first.trained_runs if begin < end)
    return (replace(first, **cut, rest=sum(first.extents) - end, trained_runs=runs),)


def planned_rows(plan: Plan, chosen: Sequence[int], align: int) -> tuple[ShownRow, ...]:
    """Return the chosen rows of a plan; their numbers are ascending."""
    found: list[ShownRow] = []
    first_row = 0
    for shard, rows in enumerate(np.diff(plan.shard_starts).tolist()):
        located = plan.rows(shard)
        for row in (row for row in chosen if first_row <= row < first_row + rows):
            segments = slice(*located.row_starts[row - first_row : row - first_row + 2].tolist())
            shown = ShownRow(
                row=row,
                lengths=tuple(located.lengths[segments].tolist()),
                extents=tuple(located.extents(align)[segments].tolist()),
                documents=tuple(located.documents[segments].tolist()),
                starts=tuple(located.starts[segments].tolist()),
            )
            found.append(shown)
        first_row += rows
    return _within_limit(found)


def packed_rows(
    dataset: PackedDataset, chosen: Sequence[int], decode: Callable[[Any], str] | None
) -> tuple[ShownRow, ...]:
    """Return rows of a packed dataset, with the text of their segments if `decode` is given."""
    rows = _within_limit([_packed_row(row, dataset[row]) for row in chosen])
    if decode is None:
        return rows
    shown = SHOWN_TEXT // sum(len(row.lengths) for row in rows)
    return tuple(replace(row, texts=tuple(_texts(row, dataset[row.row], decode, shown))) for row in rows)


def _packed_row(number: int, row: Row) -> ShownRow:
    segments = int(np.count_nonzero(row["doc_ids"] >= 0))
    extents = row["seq_lengths"][:segments]
    starts = np.cumsum(extents) - extents
    trained: tuple[int, ...] | None = None
    trained_runs: tuple[tuple[int, int], ...] = ()
    if "labels" in row:
        is_trained = row["labels"] >= 0
        trained_before = np.concatenate([[0], np.cumsum(is_trained)])
        trained = tuple((trained_before[starts + extents] - trained_before[starts]).tolist())
        trained_runs = runs_of(is_trained, TRAINED_RUNS)
    return ShownRow(
        row=number,
        lengths=tuple(row.get("seq_tokens", row["seq_lengths"])[:segments].tolist()),
        extents=tuple(extents.tolist()),
        documents=tuple(row["doc_ids"][:segments].tolist()),
        starts=tuple(row["doc_starts"][:segments].tolist()),
        trained=trained,
        trained_runs=trained_runs,
        nodes=tuple(tuple((node.tokens, node.depth) for node in nodes_of(tree)) for tree in row[TREE][:segments])
        if TREE in row
        else (),
    )


def _texts(row: ShownRow, tokens: Row, decode: Callable[[Any], str], shown: int) -> Iterator[str]:
    """Yield the beginning of each segment as text, at most `shown` characters."""
    place = 0
    for length, extent in zip(row.lengths, row.extents, strict=True):
        yield decode(tokens[input_ids_in(tokens)][place : place + min(length, shown)])[:shown]
        place += extent


def runs_of(mask: NDArray[np.bool_], most: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges (first, end) of consecutive true values: [0, 1, 1, 0, 1] -> (1, 3), (4, 5).

    If there are more than `most` ranges, those with the smallest gaps between them are joined.
    """
    borders = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    firsts, ends = borders[::2], borders[1::2]
    if len(firsts) > most:
        gaps = firsts[1:] - ends[:-1]
        widest = np.sort(np.argsort(-gaps, kind="stable")[: most - 1])
        firsts, ends = firsts[[0, *(widest + 1)]], ends[[*widest, -1]]
    return tuple(zip(firsts.tolist(), ends.tolist(), strict=True))


def training_job(ranks: int | None, accumulation: int | None, model: str | None) -> TrainingJob | None:
    """Return the training job, or None without `ranks`. Other values default to those of `TrainingJob`."""
    if ranks is None:
        for name, value in (("accumulation", accumulation), ("model", model)):
            if value is not None:
                raise OptionError(f"--{name} {value} is for --data-parallel: give the number of ranks, or leave it out")
        return None
    accumulation = 1 if accumulation is None else accumulation
    for name, number in (("data-parallel", ranks), ("accumulation", accumulation)):
        if not hasattr(number, "__index__") or index(number) < 1:
            raise OptionError(f"--{name} {number}: choose a whole number of at least 1")
    return TrainingJob(ranks=index(ranks), accumulation=index(accumulation), model=model or "7B")


def waiting_of(figures: RowFigures | None, job: TrainingJob | None) -> Waiting | None:
    """Return the share of time that ranks wait, for rows in random order and balanced over 1 and 8 steps.

    After each row, all ranks wait for the rank whose row has the most work. Steps are those of `packer.BatchSampler`
    with batches of one row. Rows at the end of the epoch that do not fill a step are left out. Raises a PackerError if
    there are not enough rows for a step, or if the job's model is not valid. Returns None without a job.
    """
    if job is None or figures is None or (rows := figures.profile) is None:
        return None
    keys = keys_of_matrices(job.model)
    per_step = job.ranks * job.accumulation
    work = keys * rows.tokens.astype(np.float64) + (rows.squares + rows.tokens) / 2
    order = row_order(len(work), seed=0, epoch=0)
    order = order[: len(order) // per_step * per_step]
    if not len(order):
        raise OptionError(
            f"--data-parallel {job.ranks}: a step has {per_step:,} rows, and there are {len(work):,}: choose fewer"
        )

    def lost(order: NDArray[np.int64], *, balanced: bool) -> float:
        steps = work[order].reshape(-1, per_step)
        turns = (np.sort(steps, axis=1) if balanced else steps).reshape(-1, job.ranks)
        return 1 - float(turns.mean(axis=1).sum() / turns.max(axis=1).sum())

    alike = steps_of_like_work(order, rows.squares[order], size=per_step, window=8)
    return Waiting(
        **asdict(job),
        keys_of_matrices=keys,
        shares={0: lost(order, balanced=False), 1: lost(order, balanced=True), 8: lost(alike, balanced=True)},
    )


def keys_of_matrices(model: str) -> int:
    """Return the keys per token at which attention costs as much as the matrices: N / 2Ld (see `report.row_figures`).

    For a number of weights, the value of Llama 2 7B is scaled by the width of the model, which grows with the cube root
    of its weights. For a config, N counts the weights that a token passes in attention, feed-forward layers and output.
    """
    weights = as_amount(model)
    if isinstance(weights, int) and weights > 0:
        return int(KEYS_OF_MATRICES * (weights / 7e9) ** (1 / 3))
    from packer.attention.load_model import language_config

    config: Any = language_config(model)
    try:
        hidden, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
        width = heads * (getattr(config, "head_dim", None) or hidden // heads)
        of_keys = 2 * width * (getattr(config, "num_key_value_heads", None) or heads) // heads
        experts = getattr(config, "num_experts_per_tok", None) or 1
        of_expert = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        layer = hidden * (2 * width + of_keys) + 3 * hidden * experts * of_expert
        return int((layers * layer + hidden * config.vocab_size) / (2 * layers * width))
    except (AttributeError, TypeError):
        raise OptionError(
            f"--model {model}: its config lacks hidden_size, intermediate_size or other sizes of a decoder: give its "
            "number of weights, as in 7B"
        ) from None
