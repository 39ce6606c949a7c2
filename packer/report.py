"""Tables and plots for the terminal, made from numbers: every function returns text, none prints."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from packer.stats import DatasetStats, Distribution, Epoch, PackedStats, Padding

BLOCKS = " ▏▎▍▌▋▊▉█"
"""Eighths of a character cell, from none to all."""

BAR_WIDTH = 40
"""Character cells of the longest bar."""


def can_draw_blocks(encoding: str | None) -> bool:
    """Tell whether a stream of this encoding takes Unicode blocks: utf-8 does, ascii and latin-1 do not."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def render_stats(stats: DatasetStats, *, unicode: bool = True) -> str:
    """Describe on one screen a dataset as it is and what packing makes of it; `unicode=False` keeps to ASCII."""
    rows = f"{count_of(stats.packs, 'row')} of {stats.max_len:,} tokens"
    longer = stats.documents_over_max_len
    longer_line = f"Longer than a row: {count_of(longer, 'document')}, {percent(longer / stats.documents)}"
    if stats.tokens_packed < stats.tokens:
        longer_line += f"; {count_of(stats.tokens - stats.tokens_packed, 'token')} cut off or dropped"
    return "\n".join(
        [
            f"{count_of(stats.documents, 'document')}, {count_of(stats.tokens, 'token')}",
            f"Packed: {rows}, {percent(stats.efficiency)} full (lower bound {stats.lower_bound:,})",
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


def render_manifest_summary(summary: Mapping[str, Any], *, output: str, seconds: float) -> str:
    """Say at the end of `packer pack` what became of every document and token, and where the rows are.

    Args:
        summary: The manifest.
        output: The folder as the user named it.
        seconds: What packing took.
    """
    options, totals = summary["options"], summary["totals"]
    documents = count_of(_documents_packed(totals), "document")
    rows = f"{count_of(totals['packs'], 'row')} of {options['max_len']:,} tokens"
    lines = [
        f"Packed {documents} into {rows} in {duration(seconds)}",
        render_table([*_document_facts(totals), *_token_facts(totals), *_row_facts(summary)], align="<><"),
    ]
    if not options["labels"]:
        lines += [
            "No labels were written: only packer.load is safe.",
            "Other trainers would train on padding and across the boundaries of documents.",
        ]
    return "\n".join([*lines, f"Written to {output}"])


def render_row(row: Mapping[str, Any], *, decode: Callable[[Any], str] | None = None) -> str:
    """Show the segments of one row, as `PackedDataset` gives it: where each stands, whose it is, how it begins.

    Args:
        row: `input_ids`, `seq_lengths`, `doc_ids`, `doc_starts`, and `labels` where they were written.
        decode: token ids -> text; by default the ids are shown.
    """
    lines = [["", "tokens", "document", "from", "trained", "begins"]]
    place = 0
    for number, (length, document, start) in enumerate(
        zip(row["seq_lengths"], row["doc_ids"], row["doc_starts"], strict=True)
    ):
        ids = row["input_ids"][place : place + length]
        trained = f"{(row['labels'][place : place + length] >= 0).sum():,}" if "labels" in row else "?"
        begins = repr(decode(ids[:24]))[1:-1] if decode is not None else " ".join(map(str, ids[:8]))
        if document < 0:
            lines.append([f"  {number}", f"{length:,}", "padding", "", "0", ""])
        else:
            lines.append([f"  {number}", f"{length:,}", f"{document:,}", f"{start:,}", trained, begins[:60]])
        place += length
    return render_table(lines, align="<>>>><")


def _document_facts(totals: Mapping[str, Any]) -> list[list[str]]:
    dropped = totals["documents_dropped"]
    return [
        ["documents", f"{totals['documents']:,}", f"{number(_documents_packed(totals) / totals['packs'])} per row"],
        ["  split", f"{totals['documents_split']:,}", f"{count_of(totals['segments'], 'segment')} in all"],
        ["  truncated", f"{totals['documents_truncated']:,}", ""],
        *([f"  dropped, {reason.replace('_', ' ')}", f"{count:,}", ""] for reason, count in dropped.items()),
    ]


def _token_facts(totals: Mapping[str, Any]) -> list[list[str]]:
    repeated, dropped = totals["tokens_repeated"], totals["tokens_dropped"]
    return [
        ["tokens", f"{totals['tokens']:,}", ""],
        ["  packed", f"{totals['tokens_packed']:,}", f"the rows are {percent(totals['efficiency'])} full"],
        ["  truncated", f"{totals['tokens_truncated']:,}", ""],
        *([f"  dropped, {reason.replace('_', ' ')}", f"{count:,}", ""] for reason, count in dropped.items()),
        *([["  repeated", f"{repeated:,}", ""]] if repeated else []),
    ]


def _row_facts(summary: Mapping[str, Any]) -> list[list[str]]:
    totals, shards = summary["totals"], summary["shards"]
    pool_share = percent(totals["pool_packs"] / totals["packs"])
    return [
        ["rows", f"{totals['packs']:,}", f"no packing needs fewer than {totals['lower_bound']:,}"],
        ["  pool", f"{totals['pool_packs']:,}", f"{pool_share} of the rows, filled across partitions"],
        ["shards", f"{len(shards):,}", byte_size(sum(shard["bytes"] for shard in shards))],
    ]


def _documents_packed(totals: Mapping[str, Any]) -> int:
    packed: int = totals["documents"] - sum(totals["documents_dropped"].values())
    return packed


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
    return f"{table}\n{_advice(epoch)}"


def _advice(epoch: Epoch) -> str:
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


def render_bars(labels: Sequence[str], counts: Sequence[int], *, unicode: bool = True) -> str:
    """Draw a line per label with its count, its share and a bar; the longest bar is that of the largest count.

    Whatever occurs is visible: a bar that would be shorter is an eighth of a cell, in ASCII a dot.
    """
    total, largest = sum(counts), max(counts)
    return render_table(
        [
            [f"  {label}", f"{count:,}", percent(count / total, decimals=2), _bar(count / largest, unicode=unicode)]
            for label, count in zip(labels, counts, strict=True)
        ],
        align=">>><",
    )


def render_table(rows: Sequence[Sequence[str]], *, align: str | None = None) -> str:
    """Align cells in columns two blanks apart; `align` has a `<` or `>` per column, by default `<>>>...`."""
    align = align or "<" + ">" * (len(rows[0]) - 1)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    )


def count_of(count: int, noun: str) -> str:
    """Write a count with its noun: 1 row, 3,304 rows."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def number(value: float) -> str:
    """Write a whole number in full, any other with about three digits: 1234567 -> 1,234,567, 16.702 -> 16.7."""
    if isinstance(value, int):
        return f"{value:,}"
    decimals = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{decimals}f}"


def percent(ratio: float, *, decimals: int = 4) -> str:
    """Write a ratio from 0 to 1 so that neither 0% nor 100% is claimed of what is only near: 0.9994 -> 99.94%.

    There are as many decimals as that takes, up to `decimals`; beyond them, 1e-9 -> <0.0001%.
    """
    distance = 100 * min(ratio, 1 - ratio)
    if distance <= 0:
        return f"{ratio:.0%}"
    for places in range(1, decimals + 1):
        if distance >= 10**-places:
            return f"{ratio:.{places}%}"
    return f"<{10**-decimals:.{decimals}f}%" if ratio < 0.5 else f">{100 - 10**-decimals:.{decimals}f}%"


def byte_size(size: int) -> str:
    """Write bytes in powers of 1,000, as `--shard-size 512MB` reads them: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"


def duration(seconds: float) -> str:
    """Write a time with about two significant units: 0.52 s, 12.3 s, 3 min 05 s, 2 h 14 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _bar(share: float, *, unicode: bool) -> str:
    """A bar for a share of the largest, from 0 to 1: 0.26 -> 10 blocks and 3 eighths of one."""
    if not unicode:
        return "#" * round(share * BAR_WIDTH) or ("." if share > 0 else "")
    eighths = max(round(share * BAR_WIDTH * 8), share > 0)
    return BLOCKS[-1] * (eighths // 8) + BLOCKS[eighths % 8].strip()
