"""Report on a comparison of algorithms: packing, costs, and advice for small datasets."""

from collections.abc import Iterable

from packer.report.dataset_report import render_advice
from packer.report.plain_text import count_of, folded, number, percent, render_table
from packer.stats.algorithm_comparison import Comparison, Outcome

_DONE = {"split": "split", "truncate": "truncated", "drop": "dropped"}
"""Participles of the long-document policies."""


def render_comparison(comparison: Comparison) -> str:
    """Show the rows that each algorithm makes of the same documents, the fewest first, and their costs."""
    parts = [_head(comparison), _packing_table(comparison), _cost_table(comparison), _steps(comparison)]
    return "\n\n".join(parts)


def _head(comparison: Comparison) -> str:
    corpus, bound = comparison.corpus, count_of(comparison.lower_bound, "row")
    rows = f"rows of {count_of(corpus.max_len, 'token')}"
    if comparison.max_segments is not None:
        rows += f", at most {count_of(comparison.max_segments, 'segment')} in each"
    lines = [f"{count_of(corpus.documents, 'document')}, {count_of(corpus.tokens, 'token')}; {rows}"]
    if comparison.bound_by == "bounds":
        lines.append(f"Lower bound: {bound}")
    else:
        lines.append(f"Lower bound: {bound}, proved by {comparison.bound_by}")
    if corpus.empty_documents:
        lines.append(f"Empty, left out: {count_of(corpus.empty_documents, 'document')}")
    if corpus.long_documents:
        line = f"Longer than a row: {count_of(corpus.long_documents, 'document')}, {_DONE[corpus.long]}"
        lost = corpus.tokens - corpus.tokens_packed
        lines.append(f"{line}; {count_of(lost, 'token')} left out" if lost else line)
    return "\n".join(lines)


def _packing_table(comparison: Comparison) -> str:
    """Show rows and time of each algorithm; those that could not run have dashes, and their reason below."""
    table = [["  algorithm", "rows", "full", "gap", "documents/row", "speed-up", "seconds"]]
    for outcome in comparison.outcomes:
        rows = outcome.rows
        efficiency = comparison.efficiency(rows)
        table.append(
            [
                _marked(comparison, outcome),
                f"{rows.packs:,}",
                _share(efficiency),
                _gap(comparison.gap(rows)),
                number(comparison.packing_factor(rows)),
                f"{comparison.speedup(rows):.4f}",
                f"{outcome.seconds:.4f}" if outcome.seconds >= 0.0001 else "<0.0001",
            ]
        )
    for failure in comparison.failures:
        table.append([f"  {failure.algorithm}", *"-" * (len(table[0]) - 1)])
    fewest, gap = "* the fewest rows", "gap: rows above the lower bound"
    if not all(outcome.keeps_whole for outcome in comparison.outcomes):
        fewest += " of those that keep documents whole"
        gap += "; below 0 where documents that fit a row were cut"
    notes = [
        fewest,
        gap,
        f"speed-up: rows of one segment, padded to {comparison.corpus.max_len:,} tokens, over rows; attention left out",
        "seconds: of the algorithm alone, already compiled",
    ]
    for failure in comparison.failures:
        prefix = "" if failure.error.startswith(failure.algorithm) else f"{failure.algorithm}: "
        notes.append(prefix + failure.error)
    if comparison.left_out:
        notes.append(f"left out, slow for rows this long: {', '.join(comparison.left_out)} (run by --algorithm NAME)")
    return _with_notes(table, notes)


def _cost_table(comparison: Comparison) -> str:
    table = [
        ["", "padding", "", "", "", "", "docs", "tokens"],
        ["  algorithm", "tokens", "mixed", "work", "spread", "peak", "cut", "cut off"],
    ]
    for outcome in comparison.outcomes:
        rows = outcome.rows
        table.append(
            [
                _marked(comparison, outcome),
                f"{comparison.padding_tokens(rows):,}",
                f"{rows.mixing.within_row_share:.2f}",
                percent(comparison.attention_share(rows), decimals=2),
                f"{rows.mixing.attention_spread:.2f}",
                f"{rows.mixing.attention_peak:.2f}",
                f"{rows.documents_cut:,}",
                f"{rows.tokens_without_context:,}",
            ]
        )
    notes = [
        "mixed: share of the variance of log length within rows; documents in random order have "
        f"{comparison.shuffled_share:.2f}",
        "work: attention, squared segment lengths relative to whole rows; spread and peak: its standard deviation and "
        "largest row, relative to the mean",
        "cut: in more than one segment; tokens cut off cannot attend to the beginning of their document",
    ]
    return _with_notes(table, notes)


def _steps(comparison: Comparison) -> str:
    """Recommend the rows per step, with a warning if packing leaves few optimizer steps."""
    epoch = comparison.epoch
    advice = render_advice(epoch)
    if not comparison.is_small:
        return f"A step has {count_of(epoch.documents_per_step, 'document')} now (--batch-size). {advice}"
    same_rows = count_of(comparison.steps_at_same_rows, "optimizer step")
    return folded(
        f"Warning: a small dataset. With {count_of(epoch.documents_per_step, 'packed row')} per step, as many as "
        f"there are documents now, an epoch has {same_rows} instead of {epoch.steps:,}; with "
        f"{epoch.packed_rows_per_step:,} it has {epoch.packed_steps:,}, of {number(epoch.packed_documents_per_step)} "
        f"documents each. {advice} Very small datasets are better not packed (Wang et al., arXiv 2410.08081)."
    )


def _with_notes(table: list[list[str]], notes: Iterable[str]) -> str:
    return "\n".join([render_table(table), *map(folded, notes)])


def _marked(comparison: Comparison, outcome: Outcome) -> str:
    """Return the name of an algorithm, with a star if it has the fewest rows."""
    best = comparison.best
    is_best = outcome.rows.packs == best.rows.packs and outcome.keeps_whole == best.keeps_whole
    return f"{'*' if is_best else ' '} {outcome.algorithm}"


def _share(ratio: float) -> str:
    """Format a ratio with three decimals, or more if these would be 0% or 100% only by rounding."""
    text = f"{ratio:.3%}"
    return percent(ratio) if text in ("0.000%", "100.000%") else text


def _gap(gap: float) -> str:
    if gap < 0:
        return f"-{_share(-gap)}"
    return _share(gap) if gap < 1 else f"{gap:.1%}"
