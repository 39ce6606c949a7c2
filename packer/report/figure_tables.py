"""Parts of the figures as text: distributions, padding, epochs, and what rows are like."""

from itertools import pairwise

from packer.report.length_figures import Distribution, Epoch, Padding
from packer.report.plain_text import count_of, number, percent, render_bars, render_table, share
from packer.report.row_figures import LimitUse, RowFigures, Waiting

MIXED = "0 if a row has documents of one length, 1 if of all lengths"
"""Legend of `RowFigures.within_row_share`."""


def of_limit(use: LimitUse) -> str:
    """Return how much of a limit the rows use."""
    return f"per row, {percent(use.mean / use.limit)} of the limit {use.limit:,}; the fullest row has {use.largest:,}"


def row_facts(rows: RowFigures) -> list[list[str]]:
    """Return table lines (name, value, note) on how mixed rows are, and on the work of attention in them."""
    return [
        ["mixed", f"{rows.within_row_share:.2f}", MIXED],
        ["  shuffled", f"{rows.shuffled.within_row_share:.2f}", "the same for documents in random order"],
        ["attention", percent(rows.attention_share), "of the work of a 7B model"],
        ["largest", f"{rows.work_peak:.2f}", "times the mean: the work of the row that has most"],
    ]


def render_padding(padding: Padding, *, max_len: int, packed: str) -> str:
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


def render_epoch(epoch: Epoch) -> str:
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


def render_waiting(waiting: Waiting) -> str:
    """Show the time that ranks wait for each other, in order and balanced."""
    shares = waiting.shares
    header = ["Ranks wait", "in order", *(f"balance={steps}" for steps in shares if steps)]
    rows = count_of(waiting.accumulation, "row")
    table = render_table([header, [f"  {waiting.ranks} ranks, {rows} a step", *map(percent, shares.values())]])
    return f"{table}\n(share of the time of a {waiting.model} model; balance is that of packer.BatchSampler)"


def render_distribution(numbers: Distribution, title: str) -> str:
    """Show the quantiles of a distribution and a bar for each bin."""
    header = [title, "min", "1%", "25%", "50%", "mean", "75%", "99%", "max"]
    quantiles = [numbers.min, numbers.p1, numbers.p25, numbers.p50, numbers.mean, numbers.p75, numbers.p99, numbers.max]
    table = render_table([header, ["", *map(number, quantiles)]])
    labels = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in pairwise(numbers.bin_edges)]
    return f"{table}\n{render_bars(labels, numbers.bin_counts)}"
