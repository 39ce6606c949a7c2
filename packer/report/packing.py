"""What packing did: the account of every document and token, and single rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from packer.options import byte_size
from packer.report.text import count_of, duration, number, percent, render_table
from packer.stats import PackedStats
from packer.text.text_columns import TEMPLATE_KWARGS, TOOLS

_BEGIN = 8  # tokens of a segment that are shown
_WIDEST = 40  # characters of a value


def render_manifest_summary(
    summary: Mapping[str, Any], *, rows: PackedStats | None = None, output: str, seconds: float
) -> str:
    """Say at the end of `packer pack` what became of every document and token, and where the rows are.

    Args:
        summary: The manifest.
        rows: What they are like; None where that is not told.
        output: The folder as the user named it.
        seconds: What packing took.
    """
    options, totals = summary["options"], summary["totals"]
    documents = count_of(_documents_packed(totals), "document")
    counted = f"{count_of(totals['packs'], 'row')} of {options['max_len']:,} tokens"
    lines = [
        f"Packed {documents} into {counted} in {duration(seconds)}",
        render_table(
            [*_document_facts(totals), *_token_facts(totals, labels=options["labels"]), *_row_facts(summary, rows)],
            align="<><",
        ),
    ]
    if options.get("weights"):
        lines.append(render_mixture(summary["source"]["mixture"], unit=options.get("mix_unit", "tokens")))
    if options["algorithm"] == "wrapped":
        cut = count_of(totals["documents_split"], "document")
        lines += [f"Wrapping cut {cut}: what follows a cut has lost what came before it."]
    if options["labels"] and not totals["tokens_trained"]:
        masks = (
            "--train-on and the roles in the source" if "tokenizer" in options else "the labels or masks of the source"
        )
        lines += [f"NOTHING IS TRAINED: every label is -100, no step will learn from these rows. Check {masks}."]
    if not options["labels"]:
        lines += [
            "No labels were written: only packer.load is safe.",
            "Other trainers would train on padding and across the boundaries of documents.",
        ]
    lines += _text_lines(summary)
    return "\n".join([*lines, f"Written to {output}"])


def render_export(record: Mapping[str, Any], *, output: str, seconds: float) -> str:
    """Say at the end of `packer export` what was written.

    Args:
        record: Of the export.
        output: The folder as the user named it.
        seconds: What exporting took.
    """
    packed, files = record["packed"], record["files"]
    rows = f"{count_of(packed['rows'], 'row')} of {packed['max_len']:,} tokens"
    size = byte_size(sum(file["bytes"] for file in files))
    compression = "" if record["compression"] == "none" else f", {record['compression']}"
    lines = [
        f"Exported {rows} to {record['to']} in {duration(seconds)}",
        render_table(list(record["columns"].items()), align="<<"),
    ]
    return "\n".join([*lines, f"{count_of(len(files), 'file')}, {size}{compression}", f"Written to {output}"])


def render_tokenized(report: Mapping[str, Any], *, output: str, seconds: float) -> str:
    """Say at the end of `packer tokenize` what became of the documents.

    Args:
        report: The content of tokenized.json.
        output: The folder as the user named it.
        seconds: What tokenizing took.
    """
    source = report["source"]
    counts = f"{count_of(source['documents'], 'document')} into {count_of(source['tokens'], 'token')}"
    facts = _text_facts(report)
    return "\n".join(
        [
            f"Tokenized {counts} in {duration(seconds)}",
            *([render_table(facts, align="<><")] if facts else []),
            f"With {report['tokenizer']}, {_text_identity(report['text'])}",
            f"Written to {output}",
        ]
    )


def _text_lines(summary: Mapping[str, Any]) -> list[str]:
    """What text was tokenized with and what of it is trained; of a mixture by source, those without labels, too."""
    options, lines = summary["options"], []
    if "tokenizer" not in options and not options.get("weights"):
        return []
    source, parts = summary["source"], summary["source"].get("mixture", [])
    if "text" in source:
        lines.append(f"Tokenized with {options['tokenizer']}, {_text_identity(source['text'])}")
    for part in parts:
        if "text" in part:
            identity = _text_identity(part["text"])
            lines.append(f"{part['name']} tokenized with {options['tokenizer']}, {identity}")
    whole = [part["name"] for part in parts if source["labels"] and not part["labels"]]
    if whole:
        lines.append(f"All tokens of {', '.join(whole)} are trained")
    return lines


def _text_identity(text: Mapping[str, Any]) -> str:
    columns = "+".join(column for column in text["columns"] if column not in (TOOLS, TEMPLATE_KWARGS))
    return f"training on {text['train_on']} of {columns} (tokenizer {text['tokenizer'][:8]})"


def _text_facts(totals: Mapping[str, Any]) -> list[list[str]]:
    facts = [
        ["  nothing to train on", f"{totals.get('documents_untrained', 0):,}", ""],
        ["  straddling", f"{totals.get('documents_straddling', 0):,}", "a token across a border of what is trained"],
    ]
    return [fact for fact in facts if fact[1] != "0"]


def _document_facts(totals: Mapping[str, Any]) -> list[list[str]]:
    dropped = totals["documents_dropped"]
    return [
        ["documents", f"{totals['documents']:,}", f"{number(_documents_packed(totals) / totals['packs'])} per row"],
        ["  split", f"{totals['documents_split']:,}", f"{count_of(totals['segments'], 'segment')} in all"],
        ["  truncated", f"{totals['documents_truncated']:,}", ""],
        *([f"  dropped, {reason.replace('_', ' ')}", f"{count:,}", ""] for reason, count in dropped.items()),
        *_text_facts(totals),
    ]


def _trained_share(totals: Mapping[str, Any]) -> str:
    share = f"{percent(totals['tokens_trained'] / totals['tokens_packed'])} of the packed"
    untrained = totals["segments_untrained"]
    return f"{share}; {count_of(untrained, 'segment')} without any" if untrained else share


def _token_facts(totals: Mapping[str, Any], *, labels: bool) -> list[list[str]]:
    repeated, dropped = totals["tokens_repeated"], totals["tokens_dropped"]
    return [
        ["tokens", f"{totals['tokens']:,}", ""],
        ["  packed", f"{totals['tokens_packed']:,}", f"the rows are {percent(totals['efficiency'])} full"],
        *([["  trained", f"{totals['tokens_trained']:,}", _trained_share(totals)]] if labels else []),
        ["  truncated", f"{totals['tokens_truncated']:,}", ""],
        *([f"  dropped, {reason.replace('_', ' ')}", f"{count:,}", ""] for reason, count in dropped.items()),
        *([["  repeated", f"{repeated:,}", ""]] if repeated else []),
    ]


def _row_facts(summary: Mapping[str, Any], rows: PackedStats | None) -> list[list[str]]:
    totals, shards = summary["totals"], summary["shards"]
    pool_share = percent(totals["pool_packs"] / totals["packs"])
    bound = totals["lower_bound"]
    gap = f"; gap {percent((totals['packs'] - bound) / bound)}" if totals["packs"] > bound else ""
    return [
        ["rows", f"{totals['packs']:,}", f"no packing needs fewer than {bound:,}{gap}"],
        *_group_rows(summary),
        ["  pool", f"{totals['pool_packs']:,}", f"{pool_share} of the rows, filled across partitions"],
        *[[f"  {fact[0].strip()}", *fact[1:]] for fact in (mixing_facts(rows) if rows is not None else [])],
        ["shards", f"{len(shards):,}", byte_size(sum(shard["bytes"] for shard in shards))],
    ]


def _group_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    options, groups = summary["options"], summary["totals"].get("groups")
    if groups is None:
        return []
    extra = summary["totals"]["packs"] - groups["packs_ungrouped"]
    cost = f"{count_of(extra, 'row')} more than ungrouped, {percent(extra / groups['packs_ungrouped'])}"
    free = groups["documents_without"]
    held = f"{count_of(groups['groups'], 'group')} of {options['group_by']}"
    held += f"; {count_of(free, 'document')} of none" if free else ""
    mode = options.get("group_mode", "together")
    return [[f"  {mode}", f"{extra:+,}", f"{cost}; {held}"]]


def mixing_facts(stats: PackedStats) -> list[list[str]]:
    """Say how mixed rows are, and how evenly they share the work of attention."""
    mixing = stats.mixing
    share, spread = f"{mixing.within_row_share:.2f}", f"{mixing.attention_spread:.2f}"
    peak = f"{mixing.attention_peak:.2f}"
    return [
        ["mixed", share, f"of the variance of log length lies within rows; shuffled {stats.shuffled_share:.2f}"],
        ["  work", spread, f"standard deviation of a row's attention over the mean; the largest {peak}"],
    ]


def render_mixture(sources: Sequence[Mapping[str, Any]], *, unit: str) -> str:
    """Set what was asked of each source beside what is taken of it, in tokens that reach the rows."""
    whole = sum(source["taken"]["tokens_kept"] for source in sources)
    weights = sum(source["weight"] for source in sources)
    lines = [["source", "epochs asked" if unit == "epochs" else "asked", "documents", "tokens", "share", "epochs"]]
    for source in sources:
        taken = source["taken"]
        lines.append(
            [
                source["name"],
                f"{source['weight']:g}" if unit == "epochs" else percent(source["weight"] / weights),
                f"{taken['documents']:,}",
                f"{taken['tokens_kept']:,}",
                percent(taken["tokens_kept"] / max(whole, 1)),
                f"{taken['tokens_kept'] / source['tokens_kept']:.3g}",
            ]
        )
    return render_table(lines)


def _documents_packed(totals: Mapping[str, Any]) -> int:
    packed: int = totals["documents"] - sum(totals["documents_dropped"].values())
    return packed


def render_row(
    row: Mapping[str, Any],
    *,
    decode: Callable[[Any], str] | None = None,
    kept: Sequence[str] = (),
    kept_tokens: Sequence[str] = (),
    group_by: str | None = None,
) -> str:
    """Show the segments of one row, as `PackedDataset` gives it: where each stands, whose it is, how it begins.

    Args:
        row: `input_ids`, `seq_lengths`, `doc_ids`, `doc_starts`, `labels` where they were written, and what is kept.
        decode: token ids -> text; by default the ids are shown.
        kept: columns of a value for each segment, to be shown.
        kept_tokens: columns of a value for each token, of which the first of each segment are shown.
        group_by: which of the columns that are kept makes the groups.
    """
    named = [f"{name} (group)" if name == group_by else name for name in kept]
    lines = [["", "tokens", "document", "from", "trained", *named, "begins", *kept_tokens]]
    place = 0
    lengths = row.get("seq_tokens", row["seq_lengths"])
    for index, (extent, length, document, start) in enumerate(
        zip(row["seq_lengths"], lengths, row["doc_ids"], row["doc_starts"], strict=True)
    ):
        ids = row["input_ids"][place : place + length]
        trained = f"{(row['labels'][place : place + length] >= 0).sum():,}" if "labels" in row else "?"
        begins = repr(decode(ids[:24]))[1:-1] if decode is not None else " ".join(map(str, ids[:_BEGIN]))
        if document < 0:
            empty = [""] * (len(kept) + 1 + len(kept_tokens))
            lines.append([f"  {index}", f"{extent:,}", "padding", "", "0", *empty])
        else:
            name = f"{document:,}"
            if "source_ids" in row and "copy" in row:
                name = f"{name} of source {row['source_ids'][index]}, copy {row['copy'][index]}"
            values = [_cell(row[column][index]) for column in kept]
            begin = slice(place, place + min(length, _BEGIN))
            tokens = [" ".join(map(_cell, row[column][begin])) for column in kept_tokens]
            lines.append([f"  {index}", f"{length:,}", name, f"{start:,}", trained, *values, begins[:60], *tokens])
        place += extent
    return render_table(lines, align="<>>>>" + "<" * (len(kept) + 1 + len(kept_tokens)))


def _cell(value: Any) -> str:
    """Write a value of a column so that it stays in its cell, on one line: 0.1234567 -> 0.12346."""
    if value is None:
        return "null"
    if isinstance(value, (float, np.floating)):
        return f"{value:.5g}"
    written = repr(value)[1:-1] if isinstance(value, str) else " ".join(str(value).split())
    return written if len(written) <= _WIDEST else written[: _WIDEST - 3] + "..."
