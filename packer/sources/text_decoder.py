"""Decode text: blocks of records are tokenized, one by one if one of a block cannot be used (`--on-error skip`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from packer.inputs.column_types import as_plain, infer
from packer.inputs.document_errors import DocumentError
from packer.inputs.documents import TURN_STARTS, Batch
from packer.inputs.format_reader import DecodedInput, Reader, Records
from packer.inputs.list_checks import rejection
from packer.sources.pairs import each_twice
from packer.text import Encoded, Encoder, TextError, join_encoded


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
        documents_per_record=encoder.documents_per_record,
    )


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Tokenizes the blocks of a reader."""

    encoder: Encoder
    kept: tuple[str, ...]
    skips: bool
    reader: Reader

    def __call__(self, block: tuple[object, int]) -> Batch:
        """Tokenize a block."""
        try:
            return self._decoded(*block)
        except DocumentError as fault:  # with the number of its record
            raise fault.at(self.encoder.documents_per_record * fault.row) from None

    def _decoded(self, content: object, done: int) -> Batch:
        needed, each = (*self.encoder.records.needed, *self.kept), self.encoder.documents_per_record
        faults: Mapping[int, DocumentError] = {}
        try:
            records = self.reader.records(content, needed)
            encoded = self.encoder.encode(records)
            extra = {column: values_of_column(records, column) for column in self.kept}
        except (DocumentError, TextError, UnicodeDecodeError) as error:
            if not self.skips:
                raise document_error(error) from None
            unread: list[DocumentError] = []
            records = self.reader.records(content, needed, unread)
            encoded, extra, faults = _encode_usable(self.encoder, records, self.kept, unread)
        if each > 1:
            extra = {name: each_twice(values) for name, values in extra.items()}
        if encoded.turn_starts is not None:
            extra[TURN_STARTS] = encoded.turn_starts
        return Batch(
            [encoded.input_ids],
            [encoded.labels] if encoded.labels is not None else None,
            done,
            {name: [values] for name, values in extra.items()},
            counts=encoded.counts,
            differing=None if encoded.differing_row is None else each * encoded.differing_row,
            rejected=tuple(rejection(each * row + side, faults[row]) for row in sorted(faults) for side in range(each)),
            lines=self.reader.lines_of(content) if self.skips else None,
        )


def _encode_usable(
    encoder: Encoder, records: Records, kept: Sequence[str], faults: Sequence[DocumentError]
) -> tuple[Encoded, dict[str, pa.Array], Mapping[int, DocumentError]]:
    """Encode records, with empty documents instead of every record that cannot be used; also return their errors.

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
    return _joined(encoder, parts), extra, rejected


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
    """Join the documents of records; those of None are empty."""
    empty = pa.array([[]] * encoder.documents_per_record, pa.list_(pa.int32()))
    nothing = Encoded(
        input_ids=empty,
        labels=empty if encoder.has_labels else None,
        turn_starts=empty if encoder.has_turns else None,
        straddling=0,
        untrained=0,
    )
    documents = [nothing if part is None else part for part in parts]
    return join_encoded(documents, has_labels=encoder.has_labels, has_turns=encoder.has_turns)
