"""Reports on a dataset, before packing or packed: lengths, padding, optimizer steps, mixing."""

from collections.abc import Sequence
from itertools import pairwise

from packer.facts import MixturePart
from packer.report.plain_text import count_of, number, percent, render_bars, render_table
from packer.stats.dataset_figures import DatasetStats, Epoch
from packer.stats.distribution import Distribution
from packer.stats.packed_figures import PackedStats
from packer.stats.padding import Padding
from packer.stats.row_limits import LimitUse
from packer.stats.row_mixing import Mixing


def render_stats(stats: DatasetStats, *, unicode: bool = True, mix_unit: str = "tokens") -> str:
    """Describe a dataset and the effect of packing it, on one screen of 80 columns.

    Args:
        stats: figures of the dataset.
        unicode: whether to draw bars with block characters; False uses ASCII only.
        mix_unit: unit of the weights of a mixture, "tokens" or "epochs".
    """
    lines = [
        f"{count_of(stats.documents, 'document')}, {count_of(stats.tokens, 'token')}",
        f"Packed: {count_of(stats.packs, 'row')} of {stats.max_len:,} tokens, {percent(stats.efficiency)} full "
        f"(lower bound {stats.lower_bound:,})",
    ]
    lines += [f"{use.column}: {number(use.mean)} {_of_limit(use)}" for use in stats.limits]
    if stats.mixture:
        lines.append(render_mixture(stats.mixture, unit=mix_unit))
    lines += ["", render_distribution(stats.lengths, "Tokens per document", unicode=unicode)]
    longer = stats.documents_over_max_len
    lost = stats.tokens - stats.tokens_packed
    lines.append(
        f"Longer than a row: {count_of(longer, 'document')}, {percent(longer / stats.documents)}"
        + (f"; {count_of(lost, 'token')} cut off or dropped" if lost > 0 else "")
    )
    lines += ["", render_padding(stats.padding, max_len=stats.max_len, packed=f"packed ({stats.algorithm})")]
    return "\n".join([*lines, "", render_epoch(stats.epoch)])


def render_packed_stats(stats: PackedStats, *, unicode: bool = True) -> str:
    """Describe the rows of a packed dataset on one screen of 80 columns; `unicode=False` uses ASCII only."""
    facts = [
        ["documents", f"{stats.documents:,}", f"{number(stats.packing_factor)} per row"],
        ["segments", f"{stats.segments:,}", "documents, and pieces of split ones"],
        ["tokens", f"{stats.tokens:,}", f"the rows are {percent(stats.efficiency)} full"],
        *([use.column, number(use.mean), _of_limit(use)] for use in stats.limits),
        ["padding", percent(stats.padding.packed), f"{number(stats.mean_padding)} tokens per row"],
        ["lower bound", f"{stats.lower_bound:,}", f"rows that any packing needs; here {stats.packs:,}"],
        ["attention", percent(stats.attention_share), "of the work if a row were one document"],
        *mixing_facts(stats.mixing, stats.shuffled_share),
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


def _of_limit(use: LimitUse) -> str:
    share = percent(use.mean / use.limit)
    return f"per row, {share} of the limit {use.limit:,}; the fullest row has {use.largest:,}"


def mixing_facts(mixing: Mixing, shuffled_share: float) -> list[list[str]]:
    """Return table lines (name, value, note) on how mixed rows are, and how evenly attention is divided among them."""
    share, shuffled = f"{mixing.within_row_share:.2f}", f"{shuffled_share:.2f}"
    spread, peak = f"{mixing.attention_spread:.2f}", f"{mixing.attention_peak:.2f}"
    return [
        ["mixed", share, f"length variance within rows; shuffled {shuffled}"],
        ["  work", spread, f"attention: std / mean; max / mean {peak}"],
    ]


def render_mixture(sources: Sequence[MixturePart], *, unit: str) -> str:
    """Compare the requested share or epochs of each source of a mixture with the tokens that reach the rows.

    Args:
        sources: sources of the mixture.
        unit: unit of their weights, "tokens" or "epochs".
    """
    all_tokens = sum(source.taken.tokens_kept for source in sources)
    all_weights = sum(source.weight for source in sources)
    asked = "epochs asked" if unit == "epochs" else "asked"
    table = [["source", asked, "documents", "tokens", "share", "epochs"]]
    for source in sources:
        weight, taken = source.weight, source.taken
        tokens = taken.tokens_kept
        table.append(
            [
                source.name,
                f"{weight:g}" if unit == "epochs" else percent(weight / all_weights),
                f"{taken.documents:,}",
                f"{tokens:,}",
                percent(tokens / max(all_tokens, 1)),
                _epochs(tokens / source.tokens_kept),
            ]
        )
    return render_table(table)


def _epochs(value: float) -> str:
    """0.498, 64.3 or 3,000; not 3e+03."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def render_padding(padding: Padding, *, max_len: int, packed: str = "packed") -> str:
    """Show padding ratios by batch size, and how many times fewer tokens packing computes.

    Args:
        padding: the ratios.
        max_len: tokens per row.
        packed: name of the line for packed rows.
    """
    sizes = list(padding.batch_longest)
    ratios = {
        f"  to {max_len:,} tokens": [padding.max_len] * len(sizes),
        "  to longest in batch": list(padding.batch_longest.values()),
        "  same, sorted by length": list(padding.group_by_length.values()),
    }
    table = [["Padding by batch size", *map(str, sizes)]]
    for name, values in [*ratios.items(), (f"  {packed}", [padding.packed] * len(sizes))]:
        table.append([name, *(percent(ratio, decimals=2) for ratio in values)])
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
    return f"{table}\n{render_advice(epoch)}"


def render_advice(epoch: Epoch) -> str:
    """Return a sentence that recommends a number of packed rows per step."""
    if epoch.packed_documents_per_step > 1.5 * epoch.documents_per_step:
        return "A single row holds more: adapt the learning rate, or pack into shorter rows."
    rows = count_of(epoch.packed_rows_per_step, "packed row")
    return f"Train with {rows} per step to keep the documents per step."


def render_distribution(numbers: Distribution, title: str, *, unicode: bool = True) -> str:
    """Show the quantiles of a distribution and a bar for each bin."""
    header = [title, "min", "1%", "25%", "50%", "mean", "75%", "99%", "max"]
    quantiles = [numbers.min, numbers.p1, numbers.p25, numbers.p50, numbers.mean, numbers.p75, numbers.p99, numbers.max]
    table = render_table([header, ["", *map(number, quantiles)]])
    labels = [f"{low:,}" if high == low + 1 else f"{low:,} - {high - 1:,}" for low, high in pairwise(numbers.bin_edges)]
    return f"{table}\n{render_bars(labels, numbers.bin_counts, unicode=unicode)}"
