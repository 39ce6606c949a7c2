"""Tables of figures: of a dataset, of packed rows, of several row lengths, and of algorithms side by side."""

from collections.abc import Iterator
from itertools import pairwise

from packer.report.dataset_figures import TOLERATED, Comparison, Epoch, Figures, RowLengths
from packer.report.length_figures import Distribution, Padding
from packer.report.plain_text import count_of, folded, number, percent, render_bars, render_table, share
from packer.report.row_figures import LimitUse, RowFigures


def render_figures(figures: Figures) -> str:
    """Describe a dataset and the effect of packing it, or packed rows, on one screen of 80 columns."""
    return "\n".join(_packed_lines(figures) if figures.is_packed else _planned_lines(figures))


def _planned_lines(figures: Figures) -> Iterator[str]:
    max_len, tokens, totals, options = figures.max_len, figures.tokens, figures.totals, figures.options
    yield f"{count_of(figures.documents, 'document')}, {count_of(tokens, 'token')}"
    full = f"{percent(figures.totals.efficiency)} full (lower bound {totals.lower_bound:,})"
    yield f"Packed: {count_of(figures.rows, 'row')} of {max_len:,} tokens, {full}"
    for use in figures.limits:
        yield f"{use.column}: {number(use.mean)} {_of_limit(use)}"
    yield ""
    yield _render_distribution(figures.lengths, "Tokens per document")
    repeated, saved = figures.repeated_tokens, figures.saved_tokens
    if repeated and saved:
        whole = tokens + saved * options.has_trees
        does = "storing them once saves" if options.has_trees else "--share-prefixes stores them once and saves"
        also = "are in other documents, too"
        yield f"Shared beginnings: {count_of(repeated, 'token')} ({percent(repeated / whole)}) {also};"
        yield f"  {does} {count_of(saved, 'token')} ({percent(saved / whole)})"
    longer, lost = figures.documents_over_max_len, tokens - totals.tokens_packed
    cut = f"; {count_of(lost, 'token')} cut off or dropped" if lost > 0 else ""
    yield f"Longer than a row: {count_of(longer, 'document')}, {percent(longer / figures.documents)}{cut}"
    yield ""
    yield _render_padding(figures.padding, max_len=max_len, packed=f"packed ({figures.algorithm})")
    yield ""
    yield _render_epoch(figures.epoch)


def _packed_lines(figures: Figures) -> Iterator[str]:
    rows, padding = figures.row_figures, f"{number(figures.padding_tokens / figures.rows)} tokens per row"
    facts = [
        ["documents", f"{figures.documents:,}", f"{number(figures.packing_factor)} per row"],
        ["segments", f"{figures.segments:,}", "documents, and pieces of split ones"],
        ["tokens", f"{figures.tokens:,}", f"the rows are {percent(figures.totals.efficiency)} full"],
        *([use.column, number(use.mean), _of_limit(use)] for use in figures.limits),
        ["padding", percent(figures.padding.packed), padding],
        ["lower bound", f"{figures.totals.lower_bound:,}", f"rows that any packing needs; here {figures.rows:,}"],
        *row_facts(rows),
    ]
    yield f"{count_of(figures.rows, 'row')} of {figures.max_len:,} tokens"
    yield render_table(facts, align="<><")
    yield ""
    yield _render_distribution(rows.segments_per_row, "Segments per row")
    yield ""
    yield _render_padding(figures.padding, max_len=figures.max_len, packed="packed")


def _of_limit(use: LimitUse) -> str:
    return f"per row, {percent(use.mean / use.limit)} of the limit {use.limit:,}; the fullest row has {use.largest:,}"


def row_facts(rows: RowFigures) -> list[list[str]]:
    """Return table lines (name, value, note) on how mixed rows are, and on the work of attention in them."""
    shuffled, peak = f"{rows.shuffled.within_row_share:.2f}", f"{rows.work_peak:.2f}"
    return [
        ["mixed", f"{rows.within_row_share:.2f}", f"length variance within rows; shuffled {shuffled}"],
        ["attention", percent(rows.attention_share), f"of a 7B model's work; max / mean {peak}"],
    ]


def _render_padding(padding: Padding, *, max_len: int, packed: str) -> str:
    """Show padding ratios by batch size, and how many times fewer tokens packing computes."""
    sizes = list(padding.batch_longest)
    ratios = {
        f"  to {max_len:,} tokens": [padding.max_len] * len(sizes),
        "  to longest in batch": list(padding.batch_longest.values()),
        "  same, sorted by length": list(padding.group_by_length.values()),
    }
    table = [["Padding by batch size", *map(str, sizes)]]
    for name, values in [*ratios.items(), (f"  {packed}", [padding.packed] * len(sizes))]:
        table.append([name, *(share(ratio) for ratio in values)])
    table.append(["Speed-up over padding", *[""] * len(sizes)])
    for name, values in ratios.items():
        table.append([name, *(f"{number(padding.speedup(ratio))}x" for ratio in values)])
    return f"{render_table(table)}\n(tokens computed padded / packed: an upper limit that leaves attention cost out)"


def _render_epoch(epoch: Epoch) -> str:
    """Show the rows and steps of an epoch, now and packed, and the rows per step that keep the documents per step."""
    table = render_table(
        [
            ["One epoch", "now", "packed"],
            ["  rows", f"{epoch.rows:,}", f"{epoch.packed_rows:,}"],
            ["  rows per step", number(epoch.rows_per_step), f"{epoch.packed_rows_per_step:,}"],
            ["  documents per step", f"{epoch.documents_per_step:,}", number(epoch.packed_documents_per_step)],
            ["  optimizer steps", f"{epoch.steps:,}", f"{epoch.packed_steps:,}"],
        ]
    )
    return f"{table}\n{_advice(epoch)}"


def _advice(epoch: Epoch) -> str:
    """Return a sentence that recommends a number of packed rows per step."""
    if epoch.packed_documents_per_step > 1.5 * epoch.documents_per_step:
        return "A single row holds more: adapt the learning rate, or pack into shorter rows."
    rows = count_of(epoch.packed_rows_per_step, "packed row")
    return f"Train with {rows} per step to keep the documents per step."


def _render_distribution(numbers: Distribution, title: str) -> str:
    """Show the quantiles of a distribution and a bar for each bin."""
    header = [title, "min", "1%", "25%", "50%", "mean", "75%", "99%", "max"]
    quantiles = [numbers.min, numbers.p1, numbers.p25, numbers.p50, numbers.mean, numbers.p75, numbers.p99, numbers.max]
    table = render_table([header, ["", *map(number, quantiles)]])
    labels = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in pairwise(numbers.bin_edges)]
    return f"{table}\n{render_bars(labels, numbers.bin_counts)}"


def render_row_lengths(found: RowLengths) -> str:
    """Show what rows of each length cost, in 80 columns, and which is the smallest that suffices."""
    table, last = length_table(found), found.lengths[-1]
    return "\n".join(
        [
            f"{count_of(last.documents, 'document')}, {count_of(last.tokens, 'token')}; packed by {last.algorithm}",
            render_table(table, align=">" * len(table[0])),
            *map(folded, length_notes(found)),
            folded(recommend_length(found)),
        ]
    )


def length_table(found: RowLengths) -> list[list[str]]:
    """Return a head, and a line for each length; `full` is left out if rows are, and `lost` if nothing is."""
    lengths = found.lengths
    left_out = {"full"} if found.are_full else set()
    if not any(length.totals.tokens_lost for length in lengths):
        left_out.add("lost")
    if not (found.are_full or any(length.totals.documents_split for length in lengths)):  # 80 columns do not hold all
        left_out |= {"split", "no context"}
    columns = {
        "max_len": [f"{length.max_len:,}" for length in lengths],
        "rows": [f"{length.rows:,}" for length in lengths],
        "full": [percent(length.totals.efficiency) for length in lengths],
        "split": [f"{length.totals.documents_split:,}" for length in lengths],
        "no context": [share(length.tokens_without_context / length.tokens) for length in lengths],
        "lost": [share(length.totals.tokens_lost / length.tokens) for length in lengths],
        "keys": [number(length.row_figures.keys_per_token) for length in lengths],
        "attention": [share(length.row_figures.attention_share) for length in lengths],
        "largest": [f"{length.row_figures.work_peak:.2f}" for length in lengths],
        "rows/step": [f"{length.epoch.packed_rows_per_step:,}" for length in lengths],
    }
    shown = [[name, *cells] for name, cells in columns.items() if name not in left_out]
    return [list(line) for line in zip(*shown, strict=True)]


def length_notes(found: RowLengths) -> list[str]:
    """Return sentences that explain the columns of `length_table`."""
    documents = count_of(found.lengths[-1].documents_per_step, "document")
    notes = {
        "full": "full: share of the rows that holds tokens",
        "split": "split: documents in several segments; no context: their tokens in all but the first",
        "lost": "lost: tokens that are truncated or dropped",
        "keys": "keys: those that a token attends to, on average; attention: its share of the work of a 7B model",
        "largest": f"largest: work of the largest row over the mean; rows/step: those that keep {documents}",
    }
    head = length_table(found)[0]
    return [note for column, note in notes.items() if column in head]


def recommend_length(found: RowLengths) -> str:
    """Return the sentence that names the smallest length that cuts few tokens, or the one that cuts the fewest."""
    without_context = any(length.tokens_without_context for length in found.lengths)
    lost = any(length.totals.tokens_lost for length in found.lengths)
    cut = " or ".join(["without context"] * (without_context or not lost) + ["lost"] * lost)
    limit = f"less than {TOLERATED:.0%} of the tokens {cut}"
    if found.smallest is not None:
        return f"{found.smallest.max_len:,} is the smallest with {limit}."
    least = min(found.lengths, key=lambda length: length.cut_share)
    return f"None of these has {limit}; {least.max_len:,} comes closest: {share(least.cut_share)}."


def render_comparison(comparison: Comparison) -> str:
    """Show the rows that each algorithm makes of the same documents, the fewest first, and what they cost."""
    best, totals = comparison.best, comparison.best.totals
    most = ""
    if best.options.max_segments is not None:
        most = f", at most {count_of(best.options.max_segments, 'segment')} in each"
    documents, tokens = count_of(totals.documents, "document"), count_of(totals.tokens, "token")
    table = [["  algorithm", "rows", "full", "gap", "mixed", "cut", "seconds"]]
    for figures in comparison.outcomes:
        table.append(
            [
                _marked(comparison, figures),
                f"{figures.rows:,}",
                _exact_percent(figures.totals.efficiency),
                _exact_percent(comparison.gap(figures)),
                f"{figures.row_figures.within_row_share:.2f}",
                f"{figures.totals.documents_split:,}",
                f"{figures.seconds:.4f}" if figures.seconds >= 0.0001 else "<0.0001",
            ]
        )
    table += [[f"  {name}", *"-" * (len(table[0]) - 1)] for name in comparison.failures]
    fewest, gap = "* the fewest rows", "gap: rows above the lower bound"
    if not all(figures.options.keeps_whole for figures in comparison.outcomes):
        fewest += " of those that keep documents whole"
        gap += "; below 0 where documents that fit a row were cut"
    notes = [
        fewest,
        gap,
        "mixed: share of the variance of log length within rows; documents in random order have "
        f"{best.row_figures.shuffled.within_row_share:.2f}",
        "cut: documents in more than one segment; seconds: of the algorithm alone, already compiled",
    ]
    notes += [error if error.startswith(name) else f"{name}: {error}" for name, error in comparison.failures.items()]
    if comparison.left_out:
        notes.append(f"left out, slow for rows this long: {', '.join(comparison.left_out)} (run by --algorithm NAME)")
    return "\n".join(
        [
            f"{documents}, {tokens}; rows of {count_of(best.max_len, 'token')}{most}",
            f"Lower bound: {count_of(comparison.lower_bound, 'row')}",
            "",
            render_table(table),
            *map(folded, notes),
        ]
    )


def _marked(comparison: Comparison, figures: Figures) -> str:
    """Return the name of an algorithm, with a star if it has the fewest rows."""
    best = comparison.best
    is_best = (figures.rows, figures.options.keeps_whole) == (best.rows, best.options.keeps_whole)
    return f"{'*' if is_best else ' '} {figures.algorithm}"


def _exact_percent(ratio: float) -> str:
    """Format a ratio with three decimals, or more if these would be 0% or 100% only by rounding; above 1 with one."""
    if ratio < 0:
        return f"-{_exact_percent(-ratio)}"
    text = f"{ratio:.3%}" if ratio <= 1 else f"{ratio:.1%}"
    return percent(ratio) if text in ("0.000%", "100.000%") else text
