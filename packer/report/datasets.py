"""A dataset before packing and after: lengths, padding, steps."""

from itertools import pairwise

from packer.report.packing import mixing_facts, render_mixture
from packer.report.text import count_of, number, percent, render_bars, render_table
from packer.stats import DatasetStats, Distribution, Epoch, PackedStats, Padding


def render_stats(stats: DatasetStats, *, unicode: bool = True, mix_unit: str = "tokens") -> str:
    """Describe on one screen a dataset as it is and what packing makes of it.

    Args:
        stats: The numbers.
        unicode: Draw with block characters; False keeps to ASCII.
        mix_unit: What the weights of a mixture are.
    """
    rows = f"{count_of(stats.packs, 'row')} of {stats.max_len:,} tokens"
    longer = stats.documents_over_max_len
    longer_line = f"Longer than a row: {count_of(longer, 'document')}, {percent(longer / stats.documents)}"
    if stats.tokens_packed < stats.tokens:
        longer_line += f"; {count_of(stats.tokens - stats.tokens_packed, 'token')} cut off or dropped"
    return "\n".join(
        [
            f"{count_of(stats.documents, 'document')}, {count_of(stats.tokens, 'token')}",
            f"Packed: {rows}, {percent(stats.efficiency)} full (lower bound {stats.lower_bound:,})",
            *([render_mixture(stats.mixture, unit=mix_unit)] if stats.mixture else []),
            "",
            render_distribution(stats.lengths, "Tokens per document", unicode=unicode),
            longer_line,
            "",
            render_padding(stats.padding, max_len=stats.max_len, packed=f"packed ({stats.algorithm})"),
            "",
            render_epoch(stats.epoch),
        ]
    )


def render_packed_stats(stats: PackedStats, *, unicode: bool = True) -> str:
    """Describe on one screen the rows of a packed dataset; `unicode=False` keeps to ASCII."""
    facts = [
        ["documents", f"{stats.documents:,}", f"{number(stats.packing_factor)} per row"],
        ["segments", f"{stats.segments:,}", "documents, and pieces of split ones"],
        ["tokens", f"{stats.tokens:,}", f"the rows are {percent(stats.efficiency)} full"],
        ["padding", percent(stats.padding.packed), f"{number(stats.mean_padding)} tokens per row"],
        ["lower bound", f"{stats.lower_bound:,}", f"rows that any packing needs; here {stats.packs:,}"],
        ["attention", percent(stats.attention_share), "of the work if a row were one document"],
        *mixing_facts(stats),
    ]
    return "\n".join(
        [
            f"{count_of(stats.packs, 'row')} of {stats.max_len:,} tokens",
            render_table(facts, align="<><"),
            "",
            render_distribution(stats.segments_per_row, "Segments per row", unicode=unicode),
            "",
            render_padding(stats.padding, max_len=stats.max_len),
        ]
    )


def render_padding(padding: Padding, *, max_len: int, packed: str = "packed") -> str:
    """Show padding ratios by batch size, and how many times fewer tokens are computed when packed."""
    sizes = list(padding.batch_longest)
    ways = {
        f"  to {max_len:,} tokens": [padding.max_len] * len(sizes),
        "  to longest in batch": list(padding.batch_longest.values()),
        "  same, sorted by length": list(padding.group_by_length.values()),
        f"  {packed}": [padding.packed] * len(sizes),
    }
    ratios = [[way, *(percent(ratio, decimals=2) for ratio in row)] for way, row in ways.items()]
    speedups = [[way, *(f"{number(padding.speedup(ratio))}x" for ratio in row)] for way, row in ways.items()]
    table = render_table(
        [
            ["Padding by batch size", *map(str, sizes)],
            *ratios,
            ["Speed-up over padding", *[""] * len(sizes)],
            *speedups[:-1],
        ]
    )
    return f"{table}\n(tokens computed padded / packed: an upper limit that leaves attention cost out)"


def render_epoch(epoch: Epoch) -> str:
    """Show the rows and steps of an epoch now and packed, and the batch size that keeps the documents per step."""
    table = render_table(
        [
            ["One epoch", "now", "packed"],
            ["  rows", f"{epoch.rows:,}", f"{epoch.packed_rows:,}"],
            ["  rows per step", number(epoch.rows_per_step), f"{epoch.packed_rows_per_step:,}"],
            ["  documents per step", f"{epoch.documents_per_step:,}", number(epoch.packed_documents_per_step)],
            ["  optimizer steps", f"{epoch.steps:,}", f"{epoch.packed_steps:,}"],
        ]
    )
    return f"{table}\n{render_advice(epoch)}"


def render_advice(epoch: Epoch) -> str:
    """Say with how many packed rows per step to train."""
    if epoch.packed_documents_per_step > 1.5 * epoch.documents_per_step:
        return "A single row holds more: adapt the learning rate, or pack into shorter rows."
    rows = count_of(epoch.packed_rows_per_step, "packed row")
    return f"Train with {rows} per step to keep the documents per step."


def render_distribution(spread: Distribution, title: str, *, unicode: bool = True) -> str:
    """Show quantiles and a bar per bin."""
    header = [title, "min", "1%", "25%", "50%", "mean", "75%", "99%", "max"]
    quantiles = [spread.min, spread.p1, spread.p25, spread.p50, spread.mean, spread.p75, spread.p99, spread.max]
    table = render_table([header, ["", *map(number, quantiles)]])
    labels = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in pairwise(spread.bin_edges)]
    return f"{table}\n{render_bars(labels, spread.bin_counts, unicode=unicode)}"
