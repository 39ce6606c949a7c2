"""Records that cannot be used and are left out with `--on-error skip`: the reasons, and the lines that list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from packer.facts.json_record import Count, JsonRecord

Reason = Literal[
    "unreadable",
    "missing_value",
    "wrong_type",
    "invalid_text",
    "invalid_chat",
    "template_error",
    "unlocated_spans",
    "invalid_tokens",
    "invalid_labels",
    "invalid_value",
]
"""Why a record cannot be used. The names are part of the format:

- unreadable: it cannot be parsed, or is not an object.
- missing_value: a column, or the content of a message, is missing or null.
- wrong_type: a value has another type than expected, such as a number where text belongs.
- invalid_text: text cannot be written as UTF-8, or the tokenizer refuses it.
- invalid_chat: a role is unknown or missing, or messages contradict each other or the options.
- template_error: the chat template refuses the chat.
- unlocated_spans: what the assistant wrote cannot be located exactly in the rendered chat.
- invalid_tokens: a token is null or out of range, or there are too many.
- invalid_labels: labels or a mask are null, have another length than the tokens, or hold an invalid value.
- invalid_value: a value of a kept column cannot be kept, or one of a limit is missing or not a whole number.
"""

REASONS: tuple[Reason, ...] = get_args(Reason)

REJECTED = "rejected.jsonl"
"""File in the output that lists the rejected records, a `RejectedRecord` on each line."""

REMEDY = "or leave such records out with --on-error skip"
"""What the error for a record that cannot be used adds to its message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRecord(JsonRecord):
    """A line of rejected.jsonl. The message may quote a value such as a role, but no text of the record."""

    source: str | None = None
    """Name of the source in a mixture; None for a single source."""

    document: Count
    """Number of the document in its source, as in `doc_ids`."""

    file: str
    """Name of the file, as in the manifest."""

    line: Count | None = None
    """Line of the file, counted from 1; None where a file is not made of lines."""

    row: Count | None = None
    """Number of the record in the file, counted from 0; None if there is a line."""

    reason: str
    """One of `REASONS`."""

    message: str
    """What is wrong, in words."""
