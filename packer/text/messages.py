"""Checks of a record's values: text, messages and tools; and the messages of ShareGPT as those of OpenAI."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from packer.errors import SourceError
from packer.facts import Reason
from packer.text.text_columns import TOOLS

Message = dict[str, Any]

_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool", "function", "ipython")}
_REASONING = ("reasoning_content", "thinking", "reasoning")
_LONGEST_ROLE = 20  # characters; what is longer may be text
_ROLES |= {"observation": "tool", "function_call": "assistant"}


class TextError(SourceError):
    """A record is wrong: the document's number, what is wrong with it, and the reason for leaving it out.

    Args:
        row: number of the document.
        message: what is wrong, for the user.
        reason: why the record cannot be used.
        listed: the message in the list of rejected records, if the one for the user quotes the record.
    """

    def __init__(self, row: int, message: str, reason: Reason, listed: str | None = None) -> None:
        super().__init__(f"document {row:,}: {message}")
        self.row = row
        self.message = message
        self.reason: Reason = reason
        self.listed = listed or message

    def __reduce__(self) -> tuple[type[TextError], tuple[int, str, Reason, str]]:
        return type(self), (self.row, self.message, self.reason, self.listed)  # to pass between processes


def text_of(value: Any, where: str, row: int) -> str:
    """Check that a value is text that can be written as UTF-8.

    Raises:
        TextError: it is not.
    """
    if type(value) is not str:
        what = "null" if value is None else f"a {type(value).__name__}"
        raise TextError(
            row,
            f"{where} is {what} where a string is expected; filter the row out or write ''",
            "missing_value" if value is None else "wrong_type",
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise TextError(
                row,
                f"{where} has a lone surrogate U+{code:04X} at character {error.start}; no UTF-8 can hold it",
                "invalid_text",
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

    The fields `from` and `value` of ShareGPT become `role` and `content`; `human` is the user and `gpt` the assistant.
    An `observation` becomes a message of a tool. The content of a `function_call`, JSON with the name and arguments of
    one call or several, becomes the `tool_calls` of the assistant. All other fields are left for the chat template.

    Raises:
        TextError: it is not a list of messages, or a role is unknown.
    """
    if not isinstance(value, list):
        what = "null" if value is None else f"a {type(value).__name__}"
        reason: Reason = "missing_value" if value is None else "wrong_type"
        raise TextError(row, f"'{column}' is {what} where a list of messages is expected", reason)
    return [_message(message, column, number, row) for number, message in enumerate(value)]


def _message(message: Any, column: str, number: int, row: int) -> Message:
    if type(message) is dict and len(message) == 2 and _is_plain(message):
        return message
    where = f"'{column}' message {number}"
    if not isinstance(message, dict):
        raise TextError(
            row, f"{where} is a {type(message).__name__} where an object with a role is expected", "wrong_type"
        )
    # apply_chat_template does so from transformers 5 on; otherwise templates write "None"
    message = {key: value for key, value in message.items() if value is not None}
    if "role" in message:
        role, known = message["role"], _ROLES
    elif "from" in message:
        role, known = message.pop("from"), _SHAREGPT
        if "value" in message:
            message["content"] = message.pop("value")
    else:
        found = ", ".join(message) or "none"
        raise TextError(row, f"{where} has no 'role' (found: {found})", "invalid_chat", f"{where} has no 'role'")
    if not isinstance(role, str) or role not in known:
        among = f"which is none of {', '.join(known)}"
        listed = f"{where} has an unknown role" if len(str(role)) > _LONGEST_ROLE else None
        raise TextError(row, f"{where} has the role {role!r}, {among}", "invalid_chat", listed)
    if role == "function_call" and isinstance(message.get("content"), str):
        message["tool_calls"] = _calls_of(message.pop("content"), where, row)
    content = message.get("content", "")
    if isinstance(content, str):
        text_of(content, f"the content of {where}", row)
    elif not isinstance(content, list):
        raise TextError(
            row, f"{where} has a content of type {type(content).__name__} where text is expected", "wrong_type"
        )
    message = {key: value if type(value) is str else plain(value, where, row) for key, value in message.items()}
    return _with_reasoning({**message, "role": known[role]})


def _is_plain(message: Message) -> bool:
    """Whether a message has a usual role and a content in ASCII, as most do, so that it needs no further checks."""
    role, content = message.get("role"), message.get("content")
    return type(role) is str and _ROLES.get(role) == role and type(content) is str and content.isascii()


def plain(value: Any, where: str, row: int) -> Any:
    """Return a value as JSON types; values that JSON does not have, such as Arrow times, become their type's name.

    Chat templates may be untrusted, and Python objects have methods that jinja2's sandbox does not know.

    Raises:
        TextError: the value is nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise TextError(row, f"{where} has hundreds of lists or objects within each other", "invalid_chat") from None


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else f"<{type(value).__name__}>"


def _with_reasoning(message: Message) -> Message:
    """Give the reasoning of an answer the names under which templates read it, as transformers does from 5 on."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _calls_of(text: str, where: str, row: int) -> list[dict[str, Any]]:
    """Return the `tool_calls` of a message of the role function_call, whose content is JSON of one call or a list.

    Raises:
        TextError: it is not.
    """
    calls = from_json(text, f"{where} is a function_call, and its content", row)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise TextError(
            row,
            f"{where} is a function_call, and its content names no function: write name and arguments",
            "invalid_chat",
        )
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]


def from_json(value: Any, where: str, row: int) -> Any:
    """Return what a string of JSON holds; other values are returned as they are.

    Raises:
        TextError: it is not JSON.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise TextError(row, f"{where} is not valid JSON: {error}", "invalid_chat") from None


def holds_messages(text: Any) -> bool:
    """Whether a value is a string that holds messages as JSON, as some tools write nested columns."""
    if not (isinstance(text, str) and text.lstrip()[:1] == "["):
        return False
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        return bool(found) and all(isinstance(one, dict) and ("role" in one or "from" in one) for one in found)
    return False


def tools_of(value: Any, row: int) -> list[Any] | None:
    """Return the tools of a conversation, which are a list or JSON of one; None if there are no tools.

    Raises:
        TextError: the value is neither, or nested too deeply.
    """
    tools = from_json(value, f"'{TOOLS}'", row) if isinstance(value, str) and value else value or None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise TextError(row, f"'{TOOLS}' is a {type(tools).__name__} where a list of objects is expected", "wrong_type")
    return plain(tools, f"'{TOOLS}'", row) or None
