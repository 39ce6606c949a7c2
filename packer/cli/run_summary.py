"""Summaries that commands print when they are done, line by line: of packing, tokenizing and exporting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from packer.exporting.targets import TARGETS
from packer.json_records import REJECTED, TextIdentity, Totals
from packer.options import byte_size
from packer.plain_text import count_of, fewest, percent, render_table, rounded
from packer.shards.files import holdout_of
from packer.shards.manifest import Manifest, is_packed
from packer.stores import any_path

if TYPE_CHECKING:
    from packer.exporting.write_export import Export
    from packer.output.job import Written
    from packer.pipeline.tokenizing import TokenizeReport

Fact = tuple[str, int | str | None, str]
"""A line of a summary: name, number and note. It is left out without a number, and, if it is indented, at 0."""


def pack_summary(written: Written[Manifest], took: str) -> Iterator[str]:
    """Yield the number of rows, and what happened to every document and token; without zeros."""
    manifest, output = written.record, str(written.output)
    yield from _rows_summary(manifest, output, took)
    use = ""
    if manifest.options.lengths_column is not None:
        use = f"; packer.rows({output!r}) has the documents of each row"
    elif manifest.options.index_only:
        use = f" without tokens; packer.load({output!r}, source=...) reads them from the dataset"
    elif manifest.options.has_trees:
        use = ' with trees: train only with format="tree"; other trainers do not know them'
    yield f"Written to {output}{use}"


def _rows_summary(manifest: Manifest, output: str, took: str) -> Iterator[str]:
    options, totals, source = manifest.options, manifest.totals, manifest.source
    documents, packed_rows = count_of(totals.documents_packed, "document"), count_of(totals.rows, "row")
    yield f"Packed {documents} into {packed_rows} of {options.max_len:,} tokens in {took}"
    yield from _table(_facts(manifest))

    # What a user of the rows should know before training.
    if options.algorithm == "wrapped":
        cut = count_of(totals.documents_split, "document")
        yield f"Wrapping cut {cut}: tokens after a cut do not see those before it."
    if options.labels and not totals.tokens_trained:
        of_text = options.tokenizer is not None
        masks = "--train-on and the roles in the source" if of_text else "the labels or masks of the source"
        yield f"NOTHING IS TRAINED: every label is -100, so no step will learn from these rows. Check {masks}."
    if not options.labels:
        yield "No labels were written: only packer.load is safe."
        yield "Other trainers would train on padding and across the boundaries of documents."

    # How text was tokenized and which of its tokens are trained.
    if source.text is not None:
        yield f"Tokenized with {options.tokenizer}, {_text_identity(source.text)}"
    if options.holdout is not None and is_packed(
        held_out := holdout_of(any_path(output), is_holdout=options.is_holdout)
    ):
        yield f"Documents that are {'not ' if options.is_holdout else ''}held out are in {held_out}"
    if totals.documents_rejected:
        yield f"Rejected records are listed in {any_path(output) / REJECTED}"


def export_summary(written: Written[Export], took: str) -> Iterator[str]:
    """Yield the summary of `packer export`."""
    export = written.record
    rows, max_len = sum(file.rows or 0 for file in export.files), export.packed["max_len"]
    compression = "" if export.compression == "none" else f", {export.compression}"
    yield f"Exported {count_of(rows, 'row')} of {max_len:,} tokens to {export.to} in {took}"
    yield render_table(list(export.columns.items()), align="<<")
    if export.eos_id is not None:
        yield f"EOS is {export.eos_id}, which pads rows, too"
    yield f"{count_of(len(export.files), 'file')}, {byte_size(export.bytes)}{compression}"
    yield f"Written to {written.output}"
    if warning := TARGETS[export.to].warning:
        yield warning


def tokenize_summary(written: Written[TokenizeReport], took: str) -> Iterator[str]:
    """Yield the summary of `packer tokenize`."""
    report, source = written.record, written.record.source
    documents, tokens = count_of(source.documents, "document"), count_of(source.tokens, "token")
    yield f"Tokenized {documents} into {tokens} in {took}"
    yield from _table(_text_facts(report))
    if source.text is not None:
        yield f"With {report.tokenizer}, {_text_identity(source.text)}"
    if report.documents_rejected:
        yield f"Rejected records are listed in {written.output / REJECTED}"
    yield f"Written to {written.output}"


def _text_identity(text: TextIdentity) -> str:
    from packer.sources.meanings import HISTORY, OF_CHATS

    first, *others = text.columns
    # at most two columns are in every source: others, such as a prompt's, are read where they exist
    columns = "+".join([first, *(column for column in others if column not in (*OF_CHATS, HISTORY))][:2])
    as_chats = ", rendered as chats" if text.as_chats else ""
    return f"training on {text.train_on} of {columns}{as_chats} (tokenizer {text.tokenizer[:8]})"


def _table(facts: Iterable[Fact]) -> list[str]:
    """Align the facts that have a number, without those about a part that is empty."""
    shown = [
        (name, value if isinstance(value, str) else f"{value:,}", note)
        for name, value, note in facts
        if value is not None and (value or not name.startswith(" "))
    ]
    return [render_table(shown, align="<><")] if shown else []


def _facts(manifest: Manifest) -> Iterator[Fact]:
    """Yield what happened to every document and token."""
    from packer.sources.meanings import EXCHANGE_STARTS

    options, totals = manifest.options, manifest.totals
    yield "documents", totals.documents, f"{rounded(totals.documents_packed / totals.rows)} per row"
    yield "  split", totals.documents_split, f"{count_of(totals.segments, 'segment')} in all"
    yield "  truncated", totals.documents_truncated, ""
    for reason, count in totals.documents_dropped.items():
        if reason != "rejected":
            yield f"  dropped, {reason.replace('_', ' ')}", count, ""
    yield from _text_facts(totals)

    yield "tokens", totals.tokens, ""
    if totals.tokens_packed != totals.tokens:
        yield "  packed", totals.tokens_packed, ""
    yield "  truncated", totals.tokens_truncated, ""
    for reason, count in totals.tokens_dropped.items():
        yield f"  dropped, {reason.replace('_', ' ')}", count, ""
    yield "  padding", totals.tokens_stripped, "removed before; not among the tokens"
    yield "  shared", totals.tokens_shared, "left out: beginnings of documents are stored once"
    if options.labels and options.lengths_column is None:
        yield "trained", totals.tokens_trained, f"{percent(totals.tokens_trained / totals.tokens_packed)} of packed"
        yield "  untrained", totals.segments_untrained, "segments without a trained token"
        if manifest.source.labels or EXCHANGE_STARTS in manifest.source.columns:
            yield "  in later pieces", totals.tokens_trained_later, "of documents, whose beginning they do not see"
        yield "  truncated", totals.tokens_trained_truncated, "trained tokens that are cut off"

    packed, groups = totals.rows, totals.groups
    yield "rows", packed, f"{percent(totals.efficiency)} full; {fewest(packed, totals.lower_bound)}"
    if groups is not None:
        extra, without = packed - groups.rows_ungrouped, groups.documents_without
        share = percent(extra / groups.rows_ungrouped)
        none = f"; {count_of(without, 'document')} in none" if without else ""
        yield "  together", f"{extra:+,}", f"rows more than ungrouped, {share}"
        yield "  groups", groups.groups, f"of {options.group_by}{none}"
    yield "shards", len(manifest.shards), byte_size(sum(shard.bytes for shard in manifest.shards))


def _text_facts(counted: Totals | TokenizeReport) -> Iterator[Fact]:
    """Yield what tokenizing counts; nothing about records that cannot be used if one would have been an error."""
    if counted.documents_rejected is not None:
        rejected = counted.documents_rejected
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in rejected.items())
        yield "  rejected", sum(rejected.values()), reasons
    yield "  nothing to train on", counted.documents_untrained, ""
    yield "  straddling", counted.documents_straddling, "a token is partly inside what is trained"
