"""Records that were left out with `--on-error skip`: their counts, and their list in the output."""

from __future__ import annotations

import json
from dataclasses import replace

from packer.column_names import TREE
from packer.errors import SourceError
from packer.json_records import REJECTED, Totals
from packer.output.unfinished_output import Output
from packer.shards.files import HashingFile
from packer.sources.list_checks import STRIPPED
from packer.sources.record_lists import SAVED
from packer.sources.source import Documents, Rejections


def write_rejected_list(folder: Output, rejections: Rejections) -> str:
    """Write the list of rejected records, a line for each, in the order of the source; return its xxh3-128."""
    with folder.store.temporary(REJECTED) as temporary:
        with HashingFile(temporary) as file:
            for record in rejections.records():
                file.write(json.dumps(record.to_dict()).encode() + b"\n")
        folder.store.put_file(REJECTED, temporary)
    return file.hexdigest()


def with_rejected(totals: Totals, rejections: Rejections) -> Totals:
    """Count empty documents that were rejected under their reasons."""
    counts = rejections.counts
    values = totals.with_rejected(sum(counts.values())).values()
    return Totals(**{**values, "documents_rejected": counts})


def with_counts(totals: Totals, documents: Documents) -> Totals:
    """Add the counts made while documents were decoded: of padding, of text, and of trees."""
    source, counts = documents.source, documents.source.counts
    totals = replace(totals, tokens_stripped=counts[STRIPPED] or None)
    if TREE in source.columns.extra:
        totals = replace(totals, tokens_shared=counts[SAVED])
    if source.text is None:
        return totals
    return replace(
        totals,
        documents_straddling=counts["straddling"],
        documents_untrained=counts["untrained"],
        documents_by_gigatoken=counts["fast"] or None,
    )


def refuse_all_rejected(documents: Documents) -> None:
    """Raise a SourceError if rejected records leave nothing to pack."""
    identity, rejections = documents.identity, documents.source.rejections
    if identity.tokens or not len(rejections.documents):
        return
    others = ", and the others are empty" if identity.documents > len(rejections.documents) else ""
    raise SourceError(f"nothing is left: of {identity.documents:,} records, {_described(rejections, others)}")


def refuse_untrained(rejections: Rejections, tokens: int) -> None:
    """Raise the SourceError for rows without trained tokens, which names rejected records if there are any."""
    what = f"none of the {tokens:,} packed tokens is trained"
    if len(rejections.documents):
        raise SourceError(f"{what}, and of the records, {_described(rejections)}; or choose --untrained keep-all")
    raise SourceError(
        f"{what}, so a model would learn nothing from them: check the labels or masks, or choose --untrained keep-all"
    )


def _described(rejections: Rejections, others: str = "") -> str:
    """Describe rejected records: how many, why, what is said of others, and the first one."""
    first = next(rejections.records())
    place = f"line {first.line}" if first.line is not None else f"row {first.row}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejections.counts.items())
    return (
        f"{len(rejections.documents):,} cannot be used ({reasons}){others}; "
        f"the first is document {first.document} ({first.file} {place}): {first.message}"
    )
