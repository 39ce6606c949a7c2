"""Algorithms side by side, what is published beside it, and what it means for a small data set."""

from textwrap import fill

from packer.report.datasets import render_advice
from packer.report.text import count_of, number, percent, render_table
from packer.stats.comparison import Comparison, Outcome

WIDTH = 120
"""Columns of a line at most, file names and the like left out."""

WANG = {
    "WildChat-GPT4, 69K": (2.67, 3.86),
    "TULU, 326K": (4.17, 3.69),
    "WildChat, 652K": (3.43, 3.76),
    "open-source, 1.2M": (6.12, 6.27),
}
"""Speed-up of an 8B model's training over padding, packed at random and greedily, by data set (arXiv 2410.08081)."""


def render_comparison(comparison: Comparison) -> str:
    """Show what each algorithm makes of the same documents, the fewest rows first."""
    parts = [_head(comparison), _packing_table(comparison), _cost_table(comparison), _published(comparison)]
    return "\n\n".join([*filter(None, parts), _steps(comparison)])


def _head(comparison: Comparison) -> str:
    corpus = comparison.corpus
    limit = comparison.max_segments
    depth = "" if limit is None else f", at most {count_of(limit, 'segment')} in each"
    lines = [
        f"{count_of(corpus.documents, 'document')}, {count_of(corpus.tokens, 'token')}; "
        f"rows of {count_of(corpus.max_len, 'token')}{depth}",
        f"Lower bound: {count_of(comparison.lower_bound, 'row')}"
        + ("" if comparison.bound_by == "bounds" else f", proved by {comparison.bound_by}"),
    ]
    if corpus.empty_documents:
        lines.append(f"Empty, left out: {count_of(corpus.empty_documents, 'document')}")
    if corpus.long_documents:
        done = {"split": "split", "truncate": "truncated", "drop": "dropped"}[corpus.long]
        line = f"Longer than a row: {count_of(corpus.long_documents, 'document')}, {done}"
        lost = corpus.tokens - corpus.tokens_packed
        lines.append(line + (f"; {count_of(lost, 'token')} left out" if lost else ""))
    return "\n".join(lines)


def _packing_table(comparison: Comparison) -> str:
    """Rows and time; algorithms that could not run have a dash, and their reason below."""
    table = [["  algorithm", "rows", "full", "padding", "gap", "documents/row", "speed-up", "seconds"]]
    for outcome in comparison.outcomes:
        rows = outcome.rows
        efficiency = comparison.efficiency(rows)
        table.append(
            [
                _marked(comparison, outcome),
                f"{rows.packs:,}",
                _share(efficiency),
                _share(1 - efficiency),
                _gap(comparison.gap(rows)),
                number(comparison.packing_factor(rows)),
                f"{comparison.speedup(rows):.4f}",
                f"{outcome.seconds:.4f}" if outcome.seconds >= 0.0001 else "<0.0001",
            ]
        )
    table += [[f"  {failure.algorithm}", *"-" * (len(table[0]) - 1)] for failure in comparison.failures]
    notes = ["* the fewest rows" + (" of those that keep documents whole" if _some_cut(comparison) else "")]
    notes += [
        "gap: rows above the lower bound"
        + ("; below 0 where documents that fit a row were cut" if _some_cut(comparison) else ""),
        f"speed-up: rows of one segment, padded to {comparison.corpus.max_len:,} tokens, over rows; an upper limit "
        "that leaves attention out",
        "seconds: of the algorithm alone, imported and compiled before; of a second run where the first took under 2 s",
    ]
    reasons = [
        failure.error if failure.error.startswith(failure.algorithm) else f"{failure.algorithm}: {failure.error}"
        for failure in comparison.failures
    ]
    lines = map(_fitted, [*notes, *reasons])
    return "\n".join([render_table(table), *lines])


def _cost_table(comparison: Comparison) -> str:
    table = [
        ["", "padding", "segments/row", "", "", "attention", "", "", "documents", "tokens without"],
        ["  algorithm", "tokens", "mean", "most", "mixed", "work", "spread", "peak", "cut", "their context"],
    ]
    for outcome in comparison.outcomes:
        rows = outcome.rows
        table.append(
            [
                _marked(comparison, outcome),
                f"{comparison.padding_tokens(rows):,}",
                number(rows.segments / rows.packs),
                f"{rows.max_segments:,}",
                f"{rows.mixing.within_row_share:.2f}",
                percent(comparison.attention_share(rows), decimals=2),
                f"{rows.mixing.attention_spread:.2f}",
                f"{rows.mixing.attention_peak:.2f}",
                f"{rows.documents_cut:,}",
                f"{rows.tokens_without_context:,}",
            ]
        )
    notes = [
        "mixed: share of the variance of log length that lies within rows, by tokens; documents in random order would "
        f"have {comparison.shuffled_share:.2f}",
        "attention: squared segment lengths, summed, over those of rows attended as a whole; spread: the standard "
        "deviation over rows by the mean; peak: the largest row by the mean",
        "cut: in more than one segment; tokens of all but the first do not see where their document begins",
    ]
    return "\n".join([render_table(table), *map(_fitted, notes)])


def _published(comparison: Comparison) -> str:
    """Greedy against random packing, here and in Wang et al.; nothing where either did not run."""
    speedups = {
        outcome.algorithm: f"{comparison.speedup(outcome.rows):.2f}"
        for outcome in comparison.outcomes
        if outcome.algorithm in ("bfd", "sequential", "wrapped")
    }
    if not {"bfd", "sequential"} <= speedups.keys():
        return ""
    table = [
        ["Speed-up over padding", "random", "source order", "greedy"],
        ["  here: wrapped, sequential, bfd", speedups.get("wrapped", "-"), speedups["sequential"], speedups["bfd"]],
        *([f"  Wang et al.: {name}", f"{random:.2f}", "-", f"{greedy:.2f}"] for name, (random, greedy) in WANG.items()),
    ]
    note = (
        "Wang et al., Packing Analysis (arXiv 2410.08081): training time of an 8B model; random there is concatenated "
        "and cut. Here: rows computed, an upper limit."
    )
    return f"{render_table(table)}\n{_fitted(note)}"


def _steps(comparison: Comparison) -> str:
    """What to do about the steps of an epoch, with a warning where they would become few."""
    epoch = comparison.epoch
    advice = render_advice(epoch)
    if not comparison.is_small:
        return f"A step has {count_of(epoch.documents_per_step, 'document')} now (--batch-size). {advice}"
    same_rows = count_of(comparison.steps_at_same_rows, "optimizer step")
    warning = (
        f"Warning: a small data set. With {count_of(epoch.documents_per_step, 'packed row')} per step, as many as "
        f"there are documents now, an epoch has {same_rows} instead of {epoch.steps:,}; with "
        f"{epoch.packed_rows_per_step:,} it has {epoch.packed_steps:,}, of {number(epoch.packed_documents_per_step)} "
        f"documents each. {advice} Very small sets are better not packed (Wang et al., arXiv 2410.08081)."
    )
    return _fitted(warning)


def _fitted(text: str) -> str:
    return fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _some_cut(comparison: Comparison) -> bool:
    return not all(outcome.keeps_whole for outcome in comparison.outcomes)


def _marked(comparison: Comparison, outcome: Outcome) -> str:
    best = comparison.best
    is_best = outcome.rows.packs == best.rows.packs and outcome.keeps_whole == best.keeps_whole
    return f"{'*' if is_best else ' '} {outcome.algorithm}"


def _share(ratio: float) -> str:
    """Write a ratio with three decimals, unless these would claim 0% or 100% of what is only near."""
    text = f"{ratio:.3%}"
    return percent(ratio) if text in ("0.000%", "100.000%") else text


def _gap(gap: float) -> str:
    if gap < 0:
        return f"-{_share(-gap)}"
    return _share(gap) if gap < 1 else f"{gap:.1%}"
