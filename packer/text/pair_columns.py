"""Columns that hold preference pairs: two answers, with their prompt in a third column or at the beginning of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from packer.column_names import ROLES
from packer.errors import OtherSourceError, PackerError
from packer.text.text_columns import OF_CHATS, Records, column_shapes, decode_shapes

PROMPT = "prompt"

_NAMED = "name them by --text-column, as in question,chosen,rejected"


def recognize_pairs(fields: pa.Schema | Mapping[str, Any], name: str, text_column: str | None = None) -> Records:
    """Find the columns that hold preference pairs and their prompts.

    Answers are strings or lists of messages. If there are prompts of the same kind, the answers follow them. Otherwise,
    both answers begin with the prompt, also if they are messages and a prompt column holds strings, as in
    UltraFeedback.

    Args:
        fields: the schema, or a first record.
        name: name of the source, for errors.
        text_column: the chosen and the rejected answer's columns, joined by a comma, or the prompt's before them;
            by default `chosen` and `rejected`, and `prompt` if it exists.

    Raises:
        PackerError: a column is missing, or they hold different kinds of text.
        OtherSourceError: the pairs are tokens already.
    """
    shapes, text_column, json = decode_shapes(column_shapes(fields), name, text_column)
    *before, chosen, rejected = _columns(shapes, name, text_column)
    prompt = before[0] if before else None
    held = {shapes[chosen], shapes[rejected]} - {"null"}
    if len(held) > 1 or not held <= {"string", "list"}:
        raise PackerError(
            f"{name}: '{chosen}' is a {shapes[chosen]} and '{rejected}' is a {shapes[rejected]}; "
            f"make both strings, or both lists of messages, or {_NAMED}"
        )
    conversational = held == {"list"}
    of_prompt = shapes.get(prompt, "null") if prompt is not None else "null"
    if of_prompt not in ("null", "string", *held):
        raise PackerError(
            f"{name}: '{prompt}' is a {of_prompt} and '{chosen}' is a {shapes[chosen]}; "
            f"make all of them strings or lists of messages, or leave it out by --text-column {chosen},{rejected}"
        )
    return Records(
        kind="pair",
        columns=(chosen, rejected),
        json=json,
        template_columns=tuple(column for column in OF_CHATS if column in shapes) if conversational else (),
        conversational=conversational,
        prompt_column=prompt,
        has_prompts=of_prompt in held,
    )


def _columns(shapes: Mapping[str, str], name: str, text_column: str | None) -> tuple[str, ...]:
    """Return the columns of the answers, and before them that of the prompt, which may be missing if it is not named.

    Raises:
        PackerError: a column of the answers, or one that is named, is missing.
        OtherSourceError: the pairs are tokens already.
    """
    named = text_column.split(",") if text_column is not None else [PROMPT, *ROLES]
    if not 2 <= len(named) <= 3:
        raise PackerError(f"{name}: --text-column is {text_column}, and a pair has two columns or three: {_NAMED}")
    missing = [column for column in (named if text_column is not None else ROLES) if column not in shapes]
    found = ", ".join(shapes) or "none"
    if missing and text_column is None and f"{ROLES[0]}_input_ids" in shapes:
        raise OtherSourceError(
            f"{name}: has the column '{ROLES[0]}_input_ids', so it is already tokenized", "pack it without --tokenizer"
        )
    if missing and missing != [*ROLES]:
        there = [column for column in named[-2:] if column in shapes]
        what = f"has '{there[0]}' and no '{missing[0]}'" if len(there) == 1 else f"has no column '{missing[0]}'"
        raise PackerError(f"{name}: {what} (found: {found}); a pair needs both answers: {_NAMED}")
    if missing:
        raise PackerError(f"{name}: no columns 'chosen' and 'rejected' (found: {found}); {_NAMED}")
    return tuple(named)
