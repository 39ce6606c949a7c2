"""Find the columns that hold the text: a text, a prompt and its completion, a conversation, or a preference pair.

If no column has a known name, the error suggests columns based on the first records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from packer.column_names import ROLES
from packer.errors import OtherSourceError, PackerError
from packer.options.option import TrainOn
from packer.sources.column_types import is_json, is_string, python_values
from packer.sources.documents import DocumentError
from packer.sources.list_checks import BlockRecords
from packer.sources.meanings import (
    DESIRABLE,
    HISTORY,
    JOINED,
    OF_CHATS,
    OF_PROMPTS,
    OTHER_PROMPTS,
    PLACEHOLDERS,
    PROMPTS,
    ROLE_NAMES,
    SHAREGPT_ROLES,
    names,
)

RecordKind = Literal["text", "prompt+completion", "chat", "pair"]

TRAIN_ON: dict[RecordKind, tuple[TrainOn, ...]] = {
    "text": ("all",),
    "prompt+completion": ("completion", "assistant", "last", "each-answer", "all"),
    "chat": ("assistant", "last", "each-answer", "all"),
    "pair": ("completion", "assistant"),
}
"""Allowed values of `train_on` for each kind of document; the first is the default."""

JSON = ":json"
"""Suffix in `--text-column` that marks a column of JSON strings with lists of messages."""

_ROLES = {*ROLE_NAMES, *SHAREGPT_ROLES, "prompter"}  # "prompter" is used by OASST
_ROLE, _CONTENT = ({*names("message", means)} for means in ("role", "content"))

_NAMED = "name them by --text-column PROMPT,CHOSEN,REJECTED, or without a prompt that both answers begin with"

_KNOWN: dict[tuple[str, ...], RecordKind] = {
    **{(column,): "text" for column in names("record", "text")},
    JOINED: "prompt+completion",
    **dict.fromkeys(PROMPTS, "prompt+completion"),
    **{(column,): "chat" for column in names("record", "chat")},
}

FirstRecords: TypeAlias = Sequence[Mapping[str, Any]]
"""The first records of a file, with all columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """Columns from which the documents of a record are made."""

    kind: RecordKind
    columns: tuple[str, ...]
    """One column; or prompt and completion; or chosen and rejected."""
    media_columns: tuple[str, ...] = ()
    """Columns of `PLACEHOLDERS` that exist; they are not read."""
    json_columns: tuple[str, ...] = ()
    """Columns of JSON strings with lists of messages."""
    conversational: bool = False
    """Whether the documents are chats: the columns hold lists of messages, or strings that become messages."""
    as_chats: bool = False
    """Whether strings become messages: a user message from the prompt, and an assistant message from the answer."""
    separated: bool = False
    """Whether an empty line follows each part of the prompt."""
    input_column: str | None = None
    """Column appended to the prompt, as `input` is to `instruction`. Its values may be null or missing."""
    prompt_column: str | None = None
    """Prompt column of a preference pair; None if no such column is read."""
    has_prompts: bool = False
    """Whether answers of pairs follow a prompt column. Otherwise, each answer is a text or chat with the prompt."""

    @property
    def needed(self) -> tuple[str, ...]:
        """All columns to read.

        These include columns that a chat template reads, such as `tools`, and columns that switch training off. Some
        files, and the first line of a file, may lack them.
        """
        beside = (self.input_column, self.prompt_column)
        needed = (*self.columns, *(column for column in beside if column is not None))
        if self.kind == "text":
            return needed
        if self.as_chats:
            return (*needed, *OF_CHATS, HISTORY, *DESIRABLE)
        needed = (*needed, *(OF_CHATS if self.conversational else OF_PROMPTS))
        return needed if self.kind == "pair" else (*needed, *DESIRABLE)


def recognize(
    fields: pa.Schema | Mapping[str, Any],
    name: str,
    text_column: str | None = None,
    first_records: Callable[[], FirstRecords] = list,
) -> Records:
    """Return the kind of documents in a source and their columns, from its schema or a first record.

    `text_column` names one column, or prompt and completion joined by a comma; "messages:json" names a column of JSON
    strings. By default, columns are found by the names in `_KNOWN`. Raises a PackerError if no columns or several are
    found, or if a column holds neither strings nor lists of messages. The error suggests columns after looking at
    records; `first_records` reads them if `fields` is only a schema.
    """
    shapes, json_columns = _shapes_and_json(fields, name, text_column)
    read = first_records if isinstance(fields, pa.Schema) else lambda: [fields]
    columns = (
        _known_columns(shapes, name, read) if text_column is None else _named_columns(shapes, name, text_column, read)
    )
    held = {shapes[column] for column in columns} - {"null"}
    if len(held) > 1 or not held <= {"string", "list"}:
        shown = " and ".join(f"'{column}' is a {shapes[column]}" for column in columns)
        raise PackerError(f"{name}: {shown}; strings or lists of messages are expected (name others by --text-column)")
    conversational = held == {"list"} if held else _KNOWN.get(columns) == "chat"
    if text_column is None and len(columns) == 1 and conversational != (_KNOWN[columns] == "chat"):
        column = columns[0]
        values = [record[column] for record in read() if record.get(column)]
        if conversational:
            is_text = f"if it is the text to take, say --text-column {column}"
            way = is_text if all(map(is_chat, values)) else "write a string, or messages with role and content"
            raise PackerError(f"{name}: '{column}' is a list; {way}")
        ending, how = (JSON, "decode it") if all(map(holds_messages, values)) else ("", "pack it as text")
        expected = "a string where a list of messages is expected"
        raise PackerError(f"{name}: '{column}' is {expected}; {how} by --text-column {column}{ending}")
    follows = next((follows for pair, follows in PROMPTS.items() if pair == columns), None)
    if follows is not None and conversational:
        raise PackerError(f"{name}: {joined(columns)} are lists; rename lists of messages to prompt and completion")
    return Records(
        kind="prompt+completion" if len(columns) == 2 else "chat" if conversational else "text",
        columns=columns,
        json_columns=json_columns,
        media_columns=tuple(column for column in PLACEHOLDERS if column in shapes),
        conversational=conversational,
        separated=len(columns) == 2 and columns != JOINED and not conversational,
        input_column=follows,
    )


def as_chats(records: Records, name: str) -> Records:
    """Return the records as chats: their strings become messages, which a chat template renders.

    Raises a PackerError if the strings are not prompts with completions or answers.
    """
    if records.kind == "text" or (records.kind == "pair" and not records.has_prompts):
        raise PackerError(
            f"--chat-template is set, and {name} holds whole texts in {joined(records.columns)}, not chats: leave it "
            "out, or name the columns of prompt and completion by --text-column"
        )
    return replace(records, conversational=True, as_chats=True)


def recognize_pairs(fields: pa.Schema | Mapping[str, Any], name: str, text_column: str | None = None) -> Records:
    """Find the columns of preference pairs and their prompts, from a schema or a first record.

    Answers are strings or lists of messages. If the prompt column has the same type, the answers follow it. Otherwise
    each answer already includes its prompt; a prompt given as a string may repeat one of the messages, as in
    UltraFeedback. `text_column` names the two answer columns, or "prompt,chosen,rejected". Raises a PackerError if a
    column is missing or the columns have different types, and an OtherSourceError if the pairs are already tokens.
    """
    shapes, json_columns = _shapes_and_json(fields, name, text_column)
    *before, chosen, rejected = _pair_columns(shapes, name, text_column)
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
        json_columns=json_columns,
        media_columns=tuple(column for column in PLACEHOLDERS if column in shapes),
        conversational=conversational,
        separated=prompt is not None and prompt != JOINED[0] and not conversational,
        prompt_column=prompt,
        has_prompts=of_prompt in held,
    )


def _pair_columns(shapes: Mapping[str, str], name: str, text_column: str | None) -> tuple[str, ...]:
    """Return the prompt column and the two answer columns. By default, the prompt column may be missing."""
    named = names_in(text_column) or ("prompt", *ROLES)
    if not 2 <= len(named) <= 3:
        raise PackerError(f"{name}: --text-column is {','.join(named)}, and a pair has two columns or three: {_NAMED}")
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
    return named


def names_in(text_column: str | None) -> tuple[str, ...]:
    """Return the column names in `text_column`, without the suffix `JSON`."""
    return tuple(one.removesuffix(JSON) for one in text_column.split(",")) if text_column is not None else ()


def _shapes_and_json(
    fields: pa.Schema | Mapping[str, Any], name: str, text_column: str | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (shape of each column, columns of JSON strings); columns of JSON strings count as lists.

    A shape is "string", "list", "null" if nothing is known yet, or the name of another type.
    """
    if isinstance(fields, pa.Schema):
        shapes = {field.name: _arrow_shape(field.type) for field in fields}
    else:
        names = {str: "string", list: "list", type(None): "null", dict: "struct"}
        shapes = {column: names.get(type(value), type(value).__name__) for column, value in fields.items()}
    json_columns = tuple(one.removesuffix(JSON) for one in (text_column or "").split(",") if one.endswith(JSON))
    for column in json_columns:
        if shapes.get(column, "string") not in ("string", "null"):
            raise PackerError(f"{name}: '{column}' is a {shapes[column]}, not JSON in a string: leave out '{JSON}'")
    return {column: "list" if column in json_columns else shape for column, shape in shapes.items()}, json_columns


def column_values(records: BlockRecords, column: str) -> list[Any]:
    """Return the values of a column as Python objects.

    In Arrow, every message and tool has the fields of all others, filled with nulls; these nulls are removed. JSON is
    decoded. Raises a DocumentError if text is not UTF-8.
    """
    if not isinstance(records, pa.RecordBatch):
        return [record.get(column) for record in records]
    try:
        return python_values(records.column(column), column, of_text=True)
    except UnicodeDecodeError as error:
        message = f"invalid UTF-8 at byte {error.start} of a text"
        raise DocumentError(0, message, reason="invalid_text") from None


def _named_columns(
    shapes: Mapping[str, str], name: str, text_column: str, read: Callable[[], FirstRecords]
) -> tuple[str, ...]:
    columns = names_in(text_column)
    columns = next((pair for pair, follows in PROMPTS.items() if {*pair, follows} == {*columns}), columns)
    missing = next((column for column in columns if column not in shapes), None)
    if missing is not None or len(columns) > 2:
        what = f"no column '{missing}'" if missing is not None else f"{len(columns)} columns named where two can be"
        known = _fitting(shapes)
        without = f"leave --text-column out to pack {joined(known[0])}" if len(known) == 1 else advice(read())
        raise PackerError(f"{name}: {what} (found: {', '.join(shapes) or 'none'}); {without}")
    return columns


def _known_columns(shapes: Mapping[str, str], name: str, read: Callable[[], FirstRecords]) -> tuple[str, ...]:
    fitting = _fitting(shapes)
    if len(fitting) > 1:
        options = " or ".join(f"--text-column {','.join(columns)}" for columns in fitting)
        raise PackerError(f"{name}: several columns may hold the text: choose {options}")
    if not fitting:
        what = f"no column of text or chats that packer knows (found: {', '.join(shapes) or 'none'})"
        raise PackerError(f"{name}: {what}; {advice(read())}")
    return fitting[0]


def _fitting(shapes: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the columns of every known kind of document that exist in a source."""
    known = [columns for columns in _KNOWN if set(columns) <= set(shapes)]
    return known or [pair for pair in OTHER_PROMPTS if {*map(shapes.get, pair)} <= {"string", "null"}]


def joined(columns: Sequence[str]) -> str:
    """Return the names of columns for a message: "'prompt' and 'completion'"."""
    return " and ".join(f"'{column}'" for column in columns)


def _arrow_shape(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    return "null" if pa.types.is_null(kind) or is_json(kind) else "struct" if pa.types.is_struct(kind) else str(kind)


def advice(records: Sequence[Mapping[str, Any]]) -> str:
    """Suggest options that name the columns of the given records. Names only existing columns."""
    columns = dict.fromkeys(name for record in records for name in record)
    held = {name: [record[name] for record in records if record.get(name)] for name in columns}
    held = {name: values for name, values in held.items() if values}
    prompts = [name for name in names("record", "prompt", "input") if name in held]
    if {*ROLES} <= held.keys():
        named = f" --text-column {','.join([*prompts, *ROLES])}" if len(prompts) == 1 and prompts != ["prompt"] else ""
        is_text = isinstance(held[ROLES[0]][0], str) and not held.keys().isdisjoint(OF_PROMPTS)
        return f"set --pairs{named}{' --chat-template NAME' * is_text} for preference pairs"
    for name, values in held.items():
        for ending, are_messages in (("", is_chat), (JSON, holds_messages)):
            if all(map(are_messages, values)):
                return f"name the messages, as in --text-column {name}{ending}"
    asks = ("write them", "as a list 'messages' of objects with role and content")
    if any(all(isinstance(role, str) and role in _ROLES for role in held[name]) for name in _ROLE & held.keys()):
        return f"each record is one message: {asks[0]} of each chat into one record, {asks[1]}"
    sizes = {name: sum(map(_size, values)) for name, values in held.items()}
    texts = [name for name, values in held.items() if all(isinstance(value, str) for value in values)]
    texts = [name for name in texts if any(map(_is_prose, held[name]))] or texts
    longest = sorted(texts, key=sizes.__getitem__, reverse=True)
    ways = [f"name the text, as in --text-column {longest[0]}"] if longest else []
    prompts = [name for name in prompts if name in texts]
    if len(longest) > 1:
        answer = next(name for name in longest if name not in prompts[:1])
        pair = [prompts[0], answer] if prompts else [name for name in columns if name in longest[:2]]
        ways.insert(not prompts, f"name prompt and completion, as in --text-column {','.join(pair)}")
    most = max(held, key=sizes.__getitem__, default="")
    if most and isinstance(held[most][0], list | dict):
        ways.insert(0, f"most text is in '{most}', which holds no messages: {asks[0]} {asks[1]}, or as strings")
    return ", or ".join(ways) or "no column holds text or messages"


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages: objects with role and content, or in ShareGPT's format."""
    is_list = isinstance(value, list) and all(isinstance(one, dict) and one.keys() & _ROLE for one in value)
    return is_list and any(one.keys() & _CONTENT for one in value)


def holds_messages(text: Any) -> bool:
    """Whether a value is a JSON string with messages; some tools write nested columns like this."""
    try:
        return isinstance(text, str) and text.lstrip()[:1] == "[" and is_chat(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _size(value: Any) -> int:
    """Return the total number of characters in all strings of a value."""
    if isinstance(value, dict | list):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, str) else 0


def _is_prose(text: str) -> bool:
    """Whether a string may be prose, rather than a path, a hash, a date, or a JSON object."""
    return text.lstrip()[:1] not in ("{", "[") and (len(text.split()) > 2 or not text.isascii())
