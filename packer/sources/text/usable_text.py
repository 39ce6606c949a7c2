"""Text records encoded one by one, so that those that cannot be used are rejected (`--on-error skip`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from packer.sources.columns.column_types import as_plain
from packer.sources.columns.column_values import infer
from packer.sources.documents import DocumentError, Rejection
from packer.sources.json_lines.line_faults import rejection
from packer.text import Encoded, Encoder, TextError

Records: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]
"""Records as a reader decodes them."""


def encode_usable(
    encoder: Encoder, records: Records, kept: Sequence[str], faults: Sequence[DocumentError]
) -> tuple[Encoded, dict[str, pa.Array], tuple[Rejection, ...]]:
    """Encode records, with an empty document instead of every record that cannot be used.

    Args:
        encoder: encoder of the records.
        records: a block of records.
        kept: further columns to keep.
        faults: errors for records that could not be decoded; their indices count from the first record.

    Returns:
        The documents, the kept columns, and the rejections in ascending order.

    Raises:
        DocumentError: no type holds all values of a kept column.
    """
    rejected = {fault.row: fault for fault in faults}
    parts: list[Encoded | None] = []
    for row in range(len(records)):
        part: Encoded | None = None
        if row not in rejected:
            one = records.slice(row, 1) if isinstance(records, pa.Table) else records[row : row + 1]
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
    if isinstance(records, pa.Table):
        return as_plain(records.column(column).combine_chunks())
    return infer([record.get(column) for record in records], column)


def _kept_values(records: Records, column: str, rejected: Mapping[int, DocumentError]) -> pa.Array:
    """Return the values of a kept column, null for rejected records whose values may have any type."""
    if isinstance(records, pa.Table):
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
        straddling=tuple(row for part in encoded for row in part.straddling),
        untrained=tuple(row for part in encoded for row in part.untrained),
        turn_starts=turns,
        unstopped=sum(part.unstopped for part in encoded),
    )
