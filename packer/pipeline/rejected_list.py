"""Records that were left out with `--on-error skip`: their list in the output, and its comparison with a source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest

from packer.errors import SourceError
from packer.inputs.list_checks import STRIPPED
from packer.manifest_fields import REASONS, REJECTED, Totals
from packer.output.unfinished_output import Output
from packer.shards.files import HashingFile
from packer.shards.reader import read_rejected
from packer.sources.record_decoder import SAVED
from packer.sources.source import Source
from packer.stores import AnyPath


def write_rejected_list(folder: Output, source: Source) -> str:
    """Write the list of rejected records, a line for each, in the order of the source; return its xxh3-128."""
    with folder.store.temporary(REJECTED) as temporary:
        with HashingFile(temporary) as file:
            for record in source.rejections.records():
                file.write(json.dumps(record.to_dict()).encode() + b"\n")
        folder.store.put_file(REJECTED, temporary)
    return file.hexdigest()


def with_rejected(totals: Totals, source: Source) -> Totals:
    """Count empty documents that were rejected under their reasons."""
    counts = source.count_rejected()
    values = totals.with_rejected(sum(counts.values())).values()
    return Totals(**{**values, "documents_rejected": counts})


def with_counts(totals: Totals, source: Source) -> Totals:
    """Add the counts made while documents were decoded: of padding, of text, and of trees."""
    counts = source.counts
    totals = replace(totals, tokens_stripped=counts[STRIPPED] or None)
    if source.tree_len is not None:
        totals = replace(totals, tokens_shared=counts[SAVED])
    if source.text is None:
        return totals
    return replace(
        totals,
        documents_straddling=counts["straddling"],
        documents_untrained=counts["untrained"],
        documents_by_gigatoken=counts["fast"] or None,
    )


def refuse_all_rejected(source: Source, documents: int, tokens: int) -> None:
    """Raise a SourceError if rejected records leave nothing to pack."""
    counts = source.count_rejected()
    if tokens or not counts:
        return
    others = ", and the others are empty" if documents > sum(counts.values()) else ""
    raise SourceError(f"nothing is left: of {documents:,} records, {_described(source, counts, others)}")


def refuse_untrained(source: Source, tokens: int) -> None:
    """Raise the SourceError for rows without trained tokens, which names rejected records if there are any."""
    what = f"none of the {tokens:,} packed tokens is trained"
    if counts := source.count_rejected():
        raise SourceError(f"{what}, and of the records, {_described(source, counts)}; or choose --untrained keep-all")
    raise SourceError(
        f"{what}, so a model would learn nothing from them: check the labels or masks, or choose --untrained keep-all"
    )


def _described(source: Source, counts: Mapping[str, int], others: str = "") -> str:
    """Describe rejected records: how many, why, what is said of others, and the first one."""
    first = next(source.rejections.records())
    place = f"line {first.line}" if first.line is not None else f"row {first.row}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    return (
        f"{sum(counts.values()):,} cannot be used ({reasons}){others}; "
        f"the first is document {first.document} ({first.file} {place}): {first.message}"
    )


def list_faults(folder: AnyPath, source: Source) -> Iterator[str]:
    """Yield a sentence for the first difference between the list and the records that the source rejects now.

    The source has been read to its end. Names of files may differ, as in a comparison of sources, and so may
    messages, which libraries write.
    """
    rejections = source.rejections
    found = (
        (int(document), REASONS[reason])
        for document, reason in zip(rejections.documents, rejections.reasons, strict=True)
    )
    recorded = ((one.document, one.reason) for one in read_rejected(folder / REJECTED))
    for one, other in zip_longest(recorded, found):
        if one != other:
            yield f"{REJECTED} {_said(one)}, the source {_said(other)}"
            return


def _said(one: tuple[int, str] | None) -> str:
    return "rejects no further document" if one is None else f"rejects document {one[0]} ({one[1]})"
