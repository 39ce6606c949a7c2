"""Summaries that commands print when they are done: of packing, tokenizing and exporting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packer.facts import REJECTED, TextIdentity, Totals
from packer.figures.figure_tables import mixing_facts, render_mixture
from packer.figures.plain_text import count_of, folded, number, percent, render_table
from packer.figures.row_figures import RowFigures
from packer.options import PackOptions, byte_size
from packer.shards.manifest import Manifest, parts_of
from packer.stores import AnyPath, any_path

if TYPE_CHECKING:
    from packer.exporting.write_export import Export
    from packer.pipeline.job import Written
    from packer.pipeline.tokenizing import TokenizeReport

Fact = tuple[str, int | str | None, str]
"""A line of a summary: name, number and note. It is left out without a number, and, if it is indented, at 0."""


_EXPLAINED = (
    "pool: rows of documents that were left over in their partitions of the source.",
    "mixed: share of the variance of lengths that is within rows; 0 if the documents of a row are equal in length.",
    "work: how unevenly rows share the work of attention; 0 if all rows take the same.",
)
"""What `--verbose` says about the figures that are in no other summary."""


def pack_summary(written: Written[Manifest], took: str, *, verbose: bool) -> str:
    """Return the summary of `packer pack` and `packer materialize`; with `verbose`, also how mixed the rows are."""
    rows = None
    if verbose and isinstance(written.output, Path):  # in object storage, `packer stats` reads the boundaries
        from packer.pipeline.collect_figures import sampled_rows

        rows = sampled_rows(written.output, written.record)
    return render_manifest_summary(written.record, output=str(written.output), took=took, rows=rows, verbose=verbose)


def render_manifest_summary(
    manifest: Manifest, *, output: str, took: str, rows: RowFigures | None = None, verbose: bool = False
) -> str:
    """Return the number of rows, and what happened to every document and token.

    `rows` says how mixed all rows or some of them are. With `verbose`, every figure is shown, and what it means;
    otherwise zeros are left out.
    """
    options = manifest.options
    lines = _rows_summary("Packed", manifest, output, took, rows=rows, verbose=verbose)
    lines.append(f"Written to {output}")
    if options.lengths_column is not None:
        lines[-1] += f"; packer.rows({output!r}) has the documents of each row"
    elif options.index_only:
        lines[-1] += f" without tokens; packer.load({output!r}, source=...) reads them from the dataset"
    return "\n".join(lines)


def append_summary(written: Written[Manifest], took: str, *, verbose: bool) -> str:
    """Return what happened to the documents that `packer append` added, and what the dataset has now."""
    manifest, output = written.record, str(written.output)
    documents, packed_rows = count_of(manifest.totals.documents_packed, "document"), count_of(manifest.rows, "row")
    lines = _rows_summary("Appended", parts_of(manifest)[-1], output, took, verbose=verbose)
    lines.append(f"{output} has {len(manifest.generations)} generations now: {documents} in {packed_rows}")
    return "\n".join(lines)


def _rows_summary(
    done: str, manifest: Manifest, output: str, took: str, *, rows: RowFigures | None = None, verbose: bool
) -> list[str]:
    options, totals = manifest.options, manifest.totals
    documents, packed_rows = count_of(totals.documents_packed, "document"), count_of(totals.rows, "row")
    facts = [
        *_document_facts(totals),
        *_token_facts(totals, labels=options.labels and options.lengths_column is None, verbose=verbose),
        *_row_facts(manifest, rows, verbose=verbose),
    ]
    lines = [
        f"{done} {documents} {'into' if done == 'Packed' else 'in'} {packed_rows} of {options.max_len:,} tokens "
        f"in {took}",
        *_table(facts, verbose=verbose),
    ]
    if verbose:
        lines += [folded(sentence) for sentence in (_EXPLAINED if rows is not None else _EXPLAINED[:1])]
    if options.weights:
        lines.append(render_mixture(manifest.source.mixture, unit=options.mix_unit))
    rejected = _rejected_lines(totals.documents_rejected, any_path(output) / manifest.rejected_name)
    return [*lines, *_warnings(options, totals), *_text_lines(manifest), *rejected]


def export_summary(written: Written[Export], took: str) -> str:
    """Return the summary of `packer export`."""
    export = written.record
    rows, max_len = sum(file.rows or 0 for file in export.files), export.packed["max_len"]
    compression = "" if export.compression == "none" else f", {export.compression}"
    return "\n".join(
        [
            f"Exported {count_of(rows, 'row')} of {max_len:,} tokens to {export.to} in {took}",
            render_table(list(export.columns.items()), align="<<"),
            f"{count_of(len(export.files), 'file')}, {byte_size(export.bytes)}{compression}",
            f"Written to {written.output}",
        ]
    )


def tokenize_summary(written: Written[TokenizeReport], took: str) -> str:
    """Return the summary of `packer tokenize`."""
    report, source = written.record, written.record.source
    counts = f"{count_of(source.documents, 'document')} into {count_of(source.tokens, 'token')}"
    return "\n".join(
        [
            f"Tokenized {counts} in {took}",
            *_table(_text_facts(report)),
            f"With {report.tokenizer}, {_text_identity(report.text)}",
            *_rejected_lines(report.documents_rejected, written.output / REJECTED),
            f"Written to {written.output}",
        ]
    )


def _warnings(options: PackOptions, totals: Totals) -> list[str]:
    """Return what a user of the rows should know before training."""
    lines = []
    if options.algorithm == "wrapped":
        cut = count_of(totals.documents_split, "document")
        lines.append(f"Wrapping cut {cut}: tokens after a cut do not see those before it.")
    if options.labels and not totals.tokens_trained:
        masks = "the labels or masks of the source"
        if options.tokenizer is not None:
            masks = "--train-on and the roles in the source"
        lines.append(f"NOTHING IS TRAINED: every label is -100, so no step will learn from these rows. Check {masks}.")
    if not options.labels:
        lines += [
            "No labels were written: only packer.load is safe.",
            "Other trainers would train on padding and across the boundaries of documents.",
        ]
    return lines


def _text_lines(manifest: Manifest) -> list[str]:
    """Return how text was tokenized and which of its tokens are trained, for each source of a mixture."""
    tokenizer, source = manifest.options.tokenizer, manifest.source
    lines = [
        f"{f'{name} tokenized' if name else 'Tokenized'} with {tokenizer}, {_text_identity(text)}"
        for name, text in source.texts.items()
    ]
    unlabeled = [part.name for part in source.mixture if source.labels and not part.labels]
    if unlabeled:
        lines.append(f"All tokens of {', '.join(unlabeled)} are trained")
    return lines


def _text_identity(text: TextIdentity) -> str:
    from packer.text.text_columns import OF_CHATS

    first, *others = text.columns
    # at most two columns are in every source: others, such as a prompt's, are read where they exist
    columns = "+".join([first, *(column for column in others if column not in OF_CHATS)][:2])
    return f"training on {text.train_on} of {columns} (tokenizer {text.tokenizer[:8]})"


def _table(facts: Sequence[Fact], *, verbose: bool = False) -> list[str]:
    """Align the facts that have a number; with `verbose`, also those about a part that is empty."""
    shown = [
        (name, value if isinstance(value, str) else f"{value:,}", note)
        for name, value, note in facts
        if value is not None and (value or verbose or not name.startswith(" "))
    ]
    return [render_table(shown, align="<><")] if shown else []


def _document_facts(totals: Totals) -> list[Fact]:
    dropped = {name: count for name, count in totals.documents_dropped.items() if name != "rejected"}
    return [
        ("documents", totals.documents, f"{number(totals.documents_packed / totals.rows)} per row"),
        ("  split", totals.documents_split, f"{count_of(totals.segments, 'segment')} in all"),
        ("  truncated", totals.documents_truncated, ""),
        *_dropped_facts(dropped),
        *_text_facts(totals),
    ]


def _text_facts(counted: Totals | TokenizeReport) -> list[Fact]:
    """Return what tokenizing counts; nothing about records that cannot be used if one would have been an error."""
    rejected = counted.documents_rejected
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in (rejected or {}).items())
    return [
        ("  rejected", None if rejected is None else sum(rejected.values()), reasons),
        ("  nothing to train on", counted.documents_untrained, ""),
        ("  straddling", counted.documents_straddling, "a token is partly inside what is trained"),
    ]


def _token_facts(totals: Totals, *, labels: bool, verbose: bool) -> list[Fact]:
    share = percent(totals.tokens_trained / totals.tokens_packed)
    untrained = count_of(totals.segments_untrained, "segment")
    return [
        ("tokens", totals.tokens, ""),
        ("  packed", totals.tokens_packed if verbose or totals.tokens_packed != totals.tokens else None, ""),
        ("  truncated", totals.tokens_truncated, ""),
        *_dropped_facts(totals.tokens_dropped),
        ("  repeated", totals.tokens_repeated, ""),
        ("  shared", totals.tokens_shared, "left out: beginnings of documents are stored once"),
        (
            "trained",
            totals.tokens_trained if labels else None,
            f"{share} of packed{f'; none in {untrained}' if totals.segments_untrained else ''}",
        ),
    ]


def _dropped_facts(dropped: Mapping[str, int]) -> list[Fact]:
    return [(f"  dropped, {reason.replace('_', ' ')}", count, "") for reason, count in dropped.items()]


def _rejected_lines(rejected: Mapping[str, int] | None, path: AnyPath) -> list[str]:
    return [f"Rejected records are listed in {path}"] if rejected else []


def _row_facts(manifest: Manifest, rows: RowFigures | None, *, verbose: bool) -> list[Fact]:
    totals, shards = manifest.totals, manifest.shards
    packed, bound, pool = totals.rows, totals.lower_bound, totals.pool_rows
    gap = f"; gap {percent((packed - bound) / bound)}" if packed > bound else ""
    facts: list[Fact] = [
        ("rows", packed, f"{percent(totals.efficiency)} full; lower bound {bound:,}{gap}"),
        *_group_facts(manifest),
        ("  pool", pool if verbose else None, f"{percent(pool / packed)} of the rows"),
    ]
    if rows is not None:
        facts += [(f"  {name.strip()}", value, note) for name, value, note in mixing_facts(rows)]
        facts.append(("  sampled", rows.rows if rows.rows < packed else None, "rows, for the two lines above"))
    return [*facts, ("shards", len(shards), byte_size(sum(shard.bytes for shard in shards)))]


def _group_facts(manifest: Manifest) -> list[Fact]:
    """Return what grouping costs in rows, and the number of groups; nothing if documents were not grouped."""
    options, groups = manifest.options, manifest.totals.groups
    if groups is None:
        return []
    extra, without = manifest.rows - groups.rows_ungrouped, groups.documents_without
    share = percent(extra / groups.rows_ungrouped)
    none = f"; {count_of(without, 'document')} in none" if without else ""
    return [
        (f"  {options.group_mode}", f"{extra:+,}", f"rows more than ungrouped, {share}"),
        ("  groups", groups.groups, f"of {options.group_by}{none}"),
    ]
