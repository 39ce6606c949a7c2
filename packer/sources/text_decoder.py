"""Decode text: blocks of records are tokenized, one by one if one of a block cannot be used (`--on-error skip`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from packer.sources.columns.column_types import as_plain, infer
from packer.sources.columns.list_checks import rejection
from packer.sources.decoding.decoded_input import DecodedInput
from packer.sources.documents import TURN_STARTS, Batch, DocumentError, Rejection
from packer.sources.readers.format_reader import Reader, Records
from packer.sources.text_pairs import rejected_columns
from packer.text import Encoded, Encoder, TextError


def decoded_text(reader: Reader, encoder: Encoder, kept: tuple[str, ...], *, skips: bool) -> DecodedInput:
    """Return the texts of a reader as an input, which tokenizes them each time it is read.

    Args:
        reader: the reader.
        encoder: tokenizes records.
        kept: further columns to keep.
        skips: reject records that cannot be used, with an empty document in the place of each.
    """
    return DecodedInput(
        reader=reader,
        needed=tuple(dict.fromkeys((*encoder.records.needed, *kept))),
        kept=kept,
        start=partial(TextDecoder, encoder, kept, skips),
        is_slow=True,
        has_labels=encoder.has_labels,
    )


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Tokenizes the blocks of a reader."""

    encoder: Encoder
    kept: tuple[str, ...]
    skips: bool
    reader: Reader

    def __call__(self, block: tuple[Any, int]) -> Batch:
        """Tokenize a block."""
        content, done = block
        needed = (*self.encoder.records.needed, *self.kept)
        rejected: tuple[Rejection, ...] = ()
        try:
            records = self.reader.records(content, needed)
            encoded = self.encoder.encode(records)
            extra = {column: values_of_column(records, column) for column in self.kept}
        except (DocumentError, TextError, UnicodeDecodeError) as error:
            if not self.skips:
                raise document_error(error) from None
            faults: list[DocumentError] = []
            records = self.reader.records(content, needed, faults)
            encoded, extra, rejected = _encode_usable(self.encoder, records, self.kept, faults)
        if encoded.turn_starts is not None:
            extra[TURN_STARTS] = encoded.turn_starts
        if encoded.rejected_answers is not None:
            extra |= rejected_columns(encoded.rejected_answers)
        return Batch(
            [encoded.input_ids],
            [encoded.labels] if encoded.labels is not None else None,
            done,
            {name: [values] for name, values in extra.items()},
            counts=encoded.counts,
            rejected=rejected,
            lines=self.reader.lines_of(content) if self.skips else None,
        )


def _encode_usable(
    encoder: Encoder, records: Records, kept: Sequence[str], faults: Sequence[DocumentError]
) -> tuple[Encoded, dict[str, pa.Array], tuple[Rejection, ...]]:
    """Encode records, with an empty document instead of every record that cannot be used.

    The indices of `faults`, the errors for records that could not be decoded, count from the first record. A
    DocumentError is raised if no type holds all values of a kept column.
    """
    rejected = {fault.row: fault for fault in faults}
    parts: list[Encoded | None] = []
    for row in range(len(records)):
        part: Encoded | None = None
        if row not in rejected:
            one = records.slice(row, 1) if isinstance(records, pa.RecordBatch) else records[row : row + 1]
            try:
                part = encoder.encode(one, row)
                for column in kept:
                    values_of_column(one, column)
            except (DocumentError, TextError, UnicodeDecodeError) as error:
                fault = document_error(error)
                if fault.reason is None:
                    raise fault.at(row) from None
                rejected[row], part = fault, None
        parts.append(part)
    extra = {column: _kept_values(records, column, rejected) for column in kept}
    return _joined(encoder, parts), extra, tuple(rejection(row, rejected[row]) for row in sorted(rejected))


def document_error(error: DocumentError | TextError | UnicodeDecodeError) -> DocumentError:
    """Return the error of an encoder, or of reading a text column, as that of a document."""
    if isinstance(error, DocumentError):
        return error
    if isinstance(error, UnicodeDecodeError):
        return DocumentError(0, f"invalid UTF-8 at byte {error.start} of a text", reason="invalid_text")
    return DocumentError(error.row, error.message, reason=error.reason, listed=error.listed)


def values_of_column(records: Records, column: str) -> pa.Array:
    """Return the values of a kept column.

    Raises:
        DocumentError: no type holds all values.
    """
    if isinstance(records, pa.RecordBatch):
        return as_plain(records.column(column))
    return infer([record.get(column) for record in records], column)


def _kept_values(records: Records, column: str, rejected: Mapping[int, DocumentError]) -> pa.Array:
    """Return the values of a kept column, null for rejected records whose values may have any type."""
    if isinstance(records, pa.RecordBatch):
        return values_of_column(records, column)
    return infer([None if row in rejected else record.get(column) for row, record in enumerate(records)], column)


def _joined(encoder: Encoder, parts: Sequence[Encoded | None]) -> Encoded:
    """Join documents, or pairs of them; None is an empty one."""
    joined = _joined_documents(encoder, parts)
    if encoder.documents_per_record == 1:
        return joined
    answers = [part.rejected_answers if part is not None else None for part in parts]
    return replace(joined, rejected_answers=_joined_documents(encoder, answers))


def _joined_documents(encoder: Encoder, parts: Sequence[Encoded | None]) -> Encoded:
    empty = pa.array([[]], pa.list_(pa.int32()))
    encoded = [part for part in parts if part is not None]
    labels = turns = None
    if encoder.has_labels:
        labels = pa.concat_arrays([empty if part is None else part.labels for part in parts])
    if encoder.has_turns:
        turns = pa.concat_arrays([empty if part is None else part.turn_starts for part in parts])
    return Encoded(
        input_ids=pa.concat_arrays([empty if part is None else part.input_ids for part in parts]),
        labels=labels,
        straddling=sum(part.straddling for part in encoded),
        untrained=sum(part.untrained for part in encoded),
        turn_starts=turns,
        unstopped=sum(part.unstopped for part in encoded),
    )
