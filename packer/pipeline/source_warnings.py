"""Warn of data that would silently ruin a training run, and report which records of a source were left out."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.column_names import TREE
from packer.errors import SourceError
from packer.json_records import REJECTED, Totals
from packer.output.unfinished_output import Output
from packer.plain_text import count_of
from packer.shards.files import HashingFile
from packer.sources.documents import reading
from packer.sources.list_checks import STRIPPED
from packer.sources.meanings import fields_counted, unread
from packer.sources.packed_rows import ROWS
from packer.sources.record_lists import SAVED
from packer.sources.source import Documents, Rejections, Source
from packer.token_memory.token_column import fetched_spans, lengths_of

_READ_TOGETHER = 250  # number of documents read together
_LOOKED_AT = 1000  # maximum number of documents examined
_FEWEST = 20  # minimum number of documents for a warning, minus one
_REPEATED = 3  # minimum number of equal tokens at an end of a document that looks padded
_MOST = 0.5  # share of documents that look padded above which the source counts as padded

_SHOWN = 10  # maximum number of field names shown

log = logging.getLogger(__name__)


def check_documents(documents: Documents) -> None:
    """Log warnings about a source that was read. Raises a SourceError if rejected records leave no tokens to pack."""
    identity, rejections = documents.identity, documents.source.rejections
    if len(rejections.documents) and not identity.tokens:
        others = ", and the others are empty" if identity.documents > len(rejections.documents) else ""
        raise SourceError(f"nothing is left: of {identity.documents:,} records, {_described(rejections, others)}")
    _say_packed_before(documents)
    _warn_of_padding(documents)
    _warn_of_texts(documents.source)


def _warn_of_padding(documents: Documents) -> None:
    """Log a warning if most documents of a tokenized source begin or end with the same repeated id.

    Padding marked by a mask has already been removed. Without a mask, padding is packed and trained like other tokens.
    """
    if documents.source.text is not None:
        return
    repeated: Counter[int] = Counter()
    read = 0
    for tokens in islice(_documents(documents), _LOOKED_AT):
        ends = (tokens[:_REPEATED].tolist(), tokens[-_REPEATED:].tolist())
        ids = [end[0] for end in ends if len(end) == _REPEATED and len(set(end)) == 1]
        if len(set(ids)) == len(ids):  # otherwise the whole document may consist of one id
            repeated.update(ids)
        read += 1
    for token, count in repeated.most_common(1):
        if count > max(_MOST * read, _FEWEST):
            log.warning(
                "most documents begin or end with several tokens of id %d, which looks like padding and is packed like "
                "all other tokens: give an attention_mask, or remove it",
                token,
            )


def _say_packed_before(documents: Documents) -> None:
    """Log the number of documents in the rows of an already packed source, unless each row is one whole document."""
    source, rows = documents.source, documents.source.counts[ROWS]
    count = documents.identity.documents - len(source.rejections.documents)
    if rows and (count > rows or source.counts[STRIPPED]):
        by = " and ".join(map(repr, source.packed_by))
        held = f"{count_of(rows, 'row')} hold{'s' * (rows == 1)} {count_of(count, 'document')} by {by}"
        log.info("rows of %s were packed before: %s", source.name, held)


_OF_TEXTS = {
    "unstopped": (
        "1 answer ends",
        "{:,} answers end",
        "without a trained stop token, so a model does not learn to stop there: put the model's "
        "generation_config.json, which names the tokens that end a turn, beside the tokenizer, or choose a "
        "--chat-template that ends every answer with a special token",
    ),
    "special": (
        "1 document holds",
        "{:,} documents hold",
        "the text of a special token, which becomes that token, as in transformers: a model takes it for the end or "
        "the beginning of a message or a document; remove it unless it is meant",
    ),
    "unwritten": (
        "1 chat has",
        "{:,} chats have",
        "calls of tools that the chat template does not write, or not as they are: choose a --chat-template that "
        "writes tools, such as qwen3",
    ),
}
"""Warnings by count name of `Encoder.encode`: beginning for one, beginning for several, and the rest of the text."""


def _warn_of_texts(source: Source) -> None:
    """Log warnings for problems of texts, templates that were replaced, and chat arguments that templates ignore."""
    for name, (one, several, rest) in _OF_TEXTS.items():
        if count := source.counts.get(name):
            log.warning("%s %s", one if count == 1 else several.format(count), rest)
    if source.text is not None and (count := source.counts["stood in"]):
        log.warning(
            "packer's template %s rendered %s of several answers, because the tokenizer's template rewrites earlier "
            "answers; to train every answer exactly as the tokenizer's template renders it, use --train-on each-answer",
            source.text.stand_in,
            "1 chat" if count == 1 else f"{count:,} chats",
        )
    unread = sorted(key.partition(" ")[2] for key in source.counts if key.startswith("unread "))
    if unread:
        counted = ", ".join(f"{name} (of {source.counts[f'unread {name}']:,})" for name in unread)
        log.warning(
            "the chat template does not read arguments of chats, so they change nothing: %s; choose a --chat-template "
            "that reads them, or remove them",
            counted,
        )


def notes_on(opened: Source, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return notes for the summary: fields that nothing reads, and prompts that are packed as plain text."""
    encoder = opened.encoder
    notes = [] if encoder is None or encoder.note is None else [encoder.note]
    columns = dict.fromkeys([*opened.fields, *fields_counted("column", counts)])
    found = {"": unread("tokens" if encoder is None else "record", columns, opened.needed)}
    found |= {} if encoder is None else encoder.unread(counts)
    shown = [f"{where}{_listed(fields)}" for where, fields in found.items() if fields]
    return (*notes, *([f"Unused fields: {'; '.join(shown)}"] if shown else []))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], f"and {len(names) - _SHOWN} more"])


def warn_of_rejected(rejections: Rejections) -> None:
    """Log a warning if records cannot be used. For commands that do not list such records."""
    if count := len(rejections.documents):
        reasons = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in rejections.counts.items())
        log.warning(
            "%s cannot be used and %s here (%s): `packer pack` lists them",
            "1 record" if count == 1 else f"{count:,} records",
            "counts as an empty document" if count == 1 else "count as empty documents",
            reasons,
        )


def _documents(documents: Documents) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the tokens of each document; nothing if only lengths are known."""
    column = documents.table.input_ids
    count = 0 if (column.addresses.value_codes < 0).any() else len(column)
    for first in range(0, count, _READ_TOGETHER):
        lists = np.arange(first, min(first + _READ_TOGETHER, count))
        lengths = np.empty(len(lists), np.int32)
        lengths_of(column.addresses, lists, lengths)
        with reading(documents.source.name):
            columns, read = fetched_spans({"": column}, lists, np.zeros_like(lists), lengths.astype(np.int64))
        for number, length in zip(read.tolist(), lengths.tolist(), strict=True):
            yield columns[""].values_at(number, 0, length)


# ---- Records that were left out with `--on-error skip` ----


def write_rejected_list(folder: Output, rejections: Rejections) -> str:
    """Write the list of rejected records, one line each, in source order. Returns the xxh3-128 of the file."""
    with folder.store.temporary(REJECTED) as temporary:
        with HashingFile(temporary) as file:
            for record in rejections.records():
                file.write(json.dumps(record.to_dict()).encode() + b"\n")
        folder.store.put_files({REJECTED: temporary})
    return file.hexdigest()


def with_counts(totals: Totals, documents: Documents) -> Totals:
    """Add the counts made while decoding documents: padding, texts and trees."""
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


def refuse_untrained(rejections: Rejections, tokens: int) -> None:
    """Raise a SourceError because no row has a trained token. The error mentions rejected records, if there are any."""
    what = f"none of the {tokens:,} packed tokens is trained"
    if len(rejections.documents):
        raise SourceError(f"{what}, and of the records, {_described(rejections)}; or choose --untrained keep-all")
    raise SourceError(
        f"{what}, so a model would learn nothing from them: check the labels or masks, or choose --untrained keep-all"
    )


def _described(rejections: Rejections, others: str = "") -> str:
    """Describe rejected records: their number, reasons, the remark `others`, and the first record."""
    first = next(rejections.records())
    place = f"line {first.line}" if first.line is not None else f"row {first.row}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejections.counts.items())
    return (
        f"{len(rejections.documents):,} cannot be used ({reasons}){others}; "
        f"the first is document {first.document} ({first.file} {place}): {first.message}"
    )
