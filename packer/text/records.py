"""What a record holds: a text, a prompt and its completion, or a conversation; and in which columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.options.choices import TrainOn

Kind = Literal["text", "prompt+completion", "chat"]
Message = dict[str, Any]

TRAIN_ON: dict[Kind, tuple[TrainOn, ...]] = {
    "text": ("all",),
    "prompt+completion": ("completion", "assistant", "all"),
    "chat": ("assistant", "all"),
}
"""What can be trained on in each kind of record; the first is the default."""

SYSTEM, TOOLS, TEMPLATE_KWARGS = "system", "tools", "chat_template_kwargs"
OF_CHATS = (SYSTEM, TOOLS, TEMPLATE_KWARGS)
"""Columns that are read beside messages."""

ALPACA, ALPACA_INPUT = ("instruction", "output"), "input"
"""Columns of the Alpaca format; the prompt is the instruction and, where there is one, its input."""

_KNOWN: dict[tuple[str, ...], Kind] = {
    ("text",): "text",
    ("prompt", "completion"): "prompt+completion",
    ALPACA: "prompt+completion",
    ("messages",): "chat",
    ("conversations",): "chat",
}
_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool", "function", "ipython")}


class TextError(SourceError):
    """A record is wrong: its row in the batches encoded so far, and what is wrong with it."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(f"document {row:,}: {message}")
        self.row = row
        self.message = message

    def __reduce__(self) -> tuple[type[TextError], tuple[int, str]]:
        return type(self), (self.row, self.message)  # so that it passes between processes


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The columns that make a document."""

    kind: Kind
    columns: tuple[str, ...]
    """One column, or those of the prompt and of the completion."""
    template_columns: tuple[str, ...] = ()
    """Of `system`, `tools` and `chat_template_kwargs` those that are there; for the chat template."""
    conversational: bool = False
    """Whether the columns hold lists of messages rather than strings."""
    input_column: str | None = None
    """Column of the Alpaca format that follows the instruction in the prompt; null or missing where there is none."""

    @property
    def needed(self) -> tuple[str, ...]:
        """All columns to read."""
        return (*self.columns, *((self.input_column,) if self.input_column is not None else ()), *self.template_columns)


def recognise(fields: pa.Schema | Mapping[str, Any], name: str, text_column: str | None = None) -> Records:
    """Tell what kind of documents a source holds, by its columns' names and types.

    Args:
        fields: the schema, or a first record.
        name: of the source, for messages.
        text_column: the column to take, or two joined by a comma: of the prompt and of the completion, which follow
            each other as they are. Without it the columns are `text`; `prompt` and `completion`; `instruction`, `input`
            and `output` as in the Alpaca format; `messages`; or `conversations`.

    Raises:
        PackerError: none or several of these are there, or a column holds neither strings nor lists of messages.
    """
    shapes = _shapes(fields)
    found = ", ".join(shapes) or "none"
    if text_column is not None:
        columns = tuple(text_column.split(","))
        if set(columns) == {*ALPACA, ALPACA_INPUT}:
            columns = ALPACA
        missing = next((column for column in columns if column not in shapes), None)
        if missing is not None or len(columns) > 2:
            what = f"no column '{missing}'" if missing is not None else f"{len(columns)} columns named where two can be"
            raise PackerError(f"{name}: {what} (found: {found}); name one, or a prompt's and a completion's")
    else:
        fitting = [columns for columns in _KNOWN if set(columns) <= set(shapes)]
        if len(fitting) != 1:
            wanted = "'text', 'prompt' and 'completion', 'instruction' and 'output', 'messages' or 'conversations'"
            several = " and ".join(f"'{'+'.join(columns)}'" for columns in fitting)
            what = f"{several} are both there" if fitting else f"no column {wanted} (found: {found})"
            raise PackerError(f"{name}: {what}; name the one that holds the text, as in --text-column content")
        columns = fitting[0]
    held = {shapes[column] for column in columns} - {"null"}
    if len(held) > 1 or not held <= {"string", "list"}:
        shown = " and ".join(f"'{column}' is a {shapes[column]}" for column in columns)
        raise PackerError(f"{name}: {shown}; strings or lists of messages are expected (name others by --text-column)")
    conversational = held == {"list"} if held else _KNOWN.get(columns) == "chat"
    if text_column is None and len(columns) == 1 and conversational != (_KNOWN[columns] == "chat"):
        what = "a list" if conversational else "a string"
        raise PackerError(
            f"{name}: '{columns[0]}' is {what}; if it is the text to take, say --text-column {columns[0]}"
        )
    kind: Kind = "prompt+completion" if len(columns) == 2 else "chat" if conversational else "text"
    extra = tuple(column for column in OF_CHATS if column in shapes) if conversational else ()
    if columns == ALPACA and conversational:
        raise PackerError(f"{name}: 'instruction' and 'output' are lists; name lists of messages prompt and completion")
    return Records(
        kind=kind,
        columns=columns,
        template_columns=extra,
        conversational=conversational,
        input_column=ALPACA_INPUT if columns == ALPACA else None,
    )


def _shapes(fields: pa.Schema | Mapping[str, Any]) -> dict[str, str]:
    """Each column's name, and whether it holds strings, lists, nulls (so far), or else what."""
    if isinstance(fields, pa.Schema):
        return {field.name: _arrow_shape(field.type) for field in fields}
    names = {str: "string", list: "list", type(None): "null", dict: "struct"}
    return {column: names.get(type(value), type(value).__name__) for column, value in fields.items()}


def _arrow_shape(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    return "null" if pa.types.is_null(kind) else "struct" if pa.types.is_struct(kind) else str(kind)


def column_values(batch: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]], column: str) -> list[Any]:
    """The values of a column, as Python objects.

    Arrow gives every record all fields of all others, as nulls: in lists of messages and in tools they are taken out.
    """
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        return [record.get(column) for record in batch]
    values: list[Any] = batch.column(column).to_pylist()
    return values if _arrow_shape(batch.schema.field(column).type) == "string" else [_without_nulls(v) for v in values]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def text_of(value: Any, where: str, row: int) -> str:
    """Check that a value is text that can be written as UTF-8.

    Raises:
        TextError: it is not.
    """
    if type(value) is not str:
        what = "null" if value is None else f"a {type(value).__name__}"
        raise TextError(row, f"{where} is {what} where a string is expected; filter the row out or write ''")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise TextError(
                row, f"{where} has a lone surrogate U+{code:04X} at character {error.start}; no UTF-8 can hold it"
            ) from None
    return value


def is_utf8(text: str) -> bool:
    """Whether text can be written as UTF-8: it holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def messages_of(value: Any, column: str, row: int) -> list[Message]:
    """Check a conversation and give every message a `role` and, unless it has none, a `content`.

    ShareGPT's `from` and `value` are taken as such; `human` is the user and `gpt` the assistant. What else a message
    holds is left for the chat template.

    Raises:
        TextError: it is no list of messages, or a role is unknown.
    """
    if not isinstance(value, list):
        what = "null" if value is None else f"a {type(value).__name__}"
        raise TextError(row, f"'{column}' is {what} where a list of messages is expected")
    return [_message(message, column, number, row) for number, message in enumerate(value)]


def _message(message: Any, column: str, number: int, row: int) -> Message:
    if type(message) is dict and type(content := message.get("content")) is str and content.isascii():
        role = message.get("role")
        if type(role) is str and role in _ROLES and None not in message.values():
            return message  # nothing to change or to refuse, as nearly all are
    where = f"'{column}' message {number}"
    if not isinstance(message, dict):
        raise TextError(row, f"{where} is a {type(message).__name__} where an object with a role is expected")
    # as apply_chat_template does from transformers 5 on: templates would write "None"
    message = {key: value for key, value in message.items() if value is not None}
    if "role" in message:
        role, known = message["role"], _ROLES
    elif "from" in message:
        role, known = message.pop("from"), _SHAREGPT
        if "value" in message:
            message["content"] = message.pop("value")
    else:
        raise TextError(row, f"{where} has no 'role' (found: {', '.join(message) or 'none'})")
    if not isinstance(role, str) or role not in known:
        raise TextError(row, f"{where} has the role {role!r}, which is none of {', '.join(known)}")
    content = message.get("content", "")
    if isinstance(content, str):
        text_of(content, f"the content of {where}", row)
    elif not isinstance(content, list):
        raise TextError(row, f"{where} has a content of type {type(content).__name__} where text is expected")
    return {**message, "role": known[role]}


def tools_of(value: Any, row: int) -> list[Any] | None:
    """The tools of a conversation: a list, or JSON of one; none at all is None.

    Raises:
        TextError: it is neither.
    """
    try:
        tools = json.loads(value) if isinstance(value, str) and value else value or None
    except ValueError as error:
        raise TextError(row, f"'{TOOLS}' is not valid JSON: {error}") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise TextError(row, f"'{TOOLS}' is a {type(tools).__name__} where a list of objects is expected")
    return tools or None
