"""Records that were left out with `--on-error skip`: their list in the output, and its comparison with a source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from packer.errors import SourceError
from packer.facts import REASONS, RejectedRecord, Totals
from packer.inputs.list_checks import STRIPPED
from packer.output.unfinished_output import Output
from packer.plan.mixture_shares import Take
from packer.shards.file_names import rejected_name
from packer.shards.files import HashingFile
from packer.shards.manifest import Manifest
from packer.shards.reader import read_rejected
from packer.sources.corpus import Corpus, count_rejected
from packer.sources.record_decoder import SAVED
from packer.sources.source import Source
from packer.stores import AnyPath


def write_rejected_list(
    folder: Output, sources: Mapping[str, Source], generation: int = 0, first_document: int = 0
) -> str:
    """Write the list of rejected records, a line for each, in the order of the sources; return its xxh3-128.

    The name of the file has the generation, and the numbers of its documents begin at `first_document`.
    """
    name = rejected_name(generation)
    with folder.store.temporary(name) as temporary:
        with HashingFile(temporary) as file:
            for record in _rejected_records(sources):
                record = replace(record, document=record.document + first_document)
                file.write(json.dumps(record.to_dict()).encode() + b"\n")
        folder.store.put_file(name, temporary)
    return file.hexdigest()


def with_rejected(totals: Totals, sources: Mapping[str, Source], takes: Sequence[Take]) -> Totals:
    """Count empty documents that were rejected under their reasons; `takes` has what is taken of each source."""
    counts = count_rejected([*sources.values()], takes)
    values = totals.with_rejected(sum(counts.values())).values()
    return Totals(**{**values, "documents_rejected": counts})


def with_counts(totals: Totals, opened: Corpus) -> Totals:
    """Add the counts made while documents were decoded: of padding, of text, and of trees."""
    counts = sum((source.counts for source in opened.parts), Counter[str]())
    totals = replace(totals, tokens_stripped=counts[STRIPPED] or None)
    if any(source.tree_len is not None for source in opened.parts):
        totals = replace(totals, tokens_shared=counts[SAVED])
    if all(source.text is None for source in opened.parts):
        return totals
    return replace(
        totals,
        documents_straddling=counts["straddling"],
        documents_untrained=counts["untrained"],
        documents_by_gigatoken=counts["fast"] or None,
    )


def refuse_all_rejected(sources: Mapping[str, Source], documents: int, tokens: int) -> None:
    """Raise a SourceError if rejected records leave nothing to pack."""
    counts = count_rejected([*sources.values()])
    if tokens or not counts:
        return
    others = ", and the others are empty" if documents > sum(counts.values()) else ""
    raise SourceError(f"nothing is left: of {documents:,} records, {_described(sources, counts, others)}")


def refuse_untrained(sources: Mapping[str, Source], tokens: int) -> None:
    """Raise the SourceError for rows without trained tokens, which names rejected records if there are any."""
    what = f"none of the {tokens:,} packed tokens is trained"
    if counts := count_rejected([*sources.values()]):
        raise SourceError(
            f"{what}, and of the records, {_described(sources, counts)}; or choose --allow-nothing-trained"
        )
    raise SourceError(
        f"{what}, so a model would learn nothing from them: check the labels or masks, or choose "
        "--allow-nothing-trained"
    )


def _rejected_records(sources: Mapping[str, Source]) -> Iterator[RejectedRecord]:
    """Yield the rejected records of a decoded source, or of those of a mixture by name, in order."""
    for name, source in sources.items():
        for record in source.rejections.records(source.indices):
            yield replace(record, source=name) if name else record


def _described(sources: Mapping[str, Source], counts: Mapping[str, int], others: str = "") -> str:
    """Describe rejected records: how many, why, what is said of others, and the first one."""
    first = next(_rejected_records(sources))
    place = f"line {first.line}" if first.line is not None else f"row {first.row}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    return (
        f"{sum(counts.values()):,} cannot be used ({reasons}){others}; "
        f"the first is document {first.document} ({first.file} {place}): {first.message}"
    )


def list_faults(folder: AnyPath, manifest: Manifest, sources: Mapping[str, Source]) -> Iterator[str]:
    """Yield a sentence for the first difference between the list and the records that sources reject now.

    The sources have been read to their end. Names of files may differ, as in a comparison of sources, and so may
    messages, which libraries write.
    """
    found = (
        (name or None, int(document) + manifest.first.document, REASONS[reason])
        for name, source in sources.items()
        for document, reason in zip(*source.rejections.documents(source.indices), strict=True)
    )
    recorded = ((one.source, one.document, one.reason) for one in read_rejected(folder / manifest.rejected_name))
    for one, other in zip_longest(recorded, found):
        if one != other:
            yield f"{manifest.rejected_name} {_said(one)}, the source {_said(other)}"
            return


def _said(one: tuple[str | None, int, str] | None) -> str:
    if one is None:
        return "rejects no further document"
    of = f" of {one[0]}" if one[0] else ""
    return f"rejects document {one[1]}{of} ({one[2]})"
