"""Records to conversations: messages and whether they are trained, system prompt, tools and template arguments.

Messages of ShareGPT become those of OpenAI. Messages and parts of their contents may have fields that say whether they
are trained (`packer/text/training_marks.py`). Otherwise, --train-on decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from packer.json_records import Reason
from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.sources.meanings import (
    CALLS,
    DESIRABLE,
    HISTORY,
    OF_PROMPTS,
    REASONING,
    ROLE_NAMES,
    SHAREGPT_ROLES,
    SYSTEMS,
    TEMPLATE_KWARGS,
    TOOLS,
    names,
    refusal,
)
from packer.text.text_columns import Records
from packer.text.training_marks import marked_messages

Message = dict[str, Any]

IMAGES_PAGE = "pack images, sound and video by the lengths of documents, see docs/how-to/images.md"
"""Remedy for documents that are not text alone."""
_ASKED, _ANSWERED = names("message", "prompt", "completion")
_ASKING = {"system", "developer", "user"}


def record_error(message: str, reason: Reason) -> DocumentError:
    """Return the error for a record. Its number is added where records are counted."""
    return DocumentError(0, message, reason=reason)


def _wrong_type(where: str, value: Any, expected: str) -> DocumentError:
    """Return the error for a value of another type than expected, or for null."""
    what = "null" if value is None else f"a {type(value).__name__}"
    return record_error(f"{where} is {what} where {expected}", "missing_value" if value is None else "wrong_type")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, with everything that its template reads."""

    messages: list[Message]
    first: int = 0
    """Number of messages in the prompt, which is never trained."""
    tools: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the template (`chat_template_kwargs`)."""
    masked: frozenset[int] = frozenset()
    """Numbers of messages that are context only."""
    required: frozenset[int] = frozenset()
    """Numbers of messages that say that they, or parts of them, are trained."""
    partly: dict[int, Message] = field(default_factory=dict)
    """Copies of messages of which a part is not trained, by number, with marks around that."""

    def each_answer(self) -> list[Chat]:
        """Return a chat for each trained answer, with the messages before it as its prompt.

        Without trained answers, this is one chat without messages.
        """
        messages = enumerate(self.messages)
        turns = [at for at, message in messages if message["role"] == "assistant" and at not in self.masked]
        ending = [replace(self, messages=self.messages[: turn + 1], first=turn) for turn in turns if turn >= self.first]
        return [replace(chat, masked=frozenset()) for chat in ending] or [replace(self, messages=[], first=0)]

    def exchanges(self) -> list[int]:
        """Return the numbers of the messages with which exchanges begin, without that of the first exchange.

        An exchange begins with messages of the user, and of the system beside these, that follow another message.
        """
        firsts, first = list[int](), 0
        for at, message in enumerate(self.messages):
            role = message["role"]
            if role not in _ASKING:
                first = at + 1
            elif role == "user" and first and first not in firsts[-1:]:
                firsts.append(first)
        return firsts

    def name_of(self, turn: int) -> str:
        """Return the name of a message in errors: "message 1 (assistant)"."""
        return f"message {turn} ({self.messages[turn]['role']})" if turn < len(self.messages) else "the completion"


def chat_of(record: Mapping[str, Any], columns: Sequence[str], train_on: TrainOn, shared: int = 0) -> Chat:
    """Make a conversation of a record, given the columns with messages: one, or the prompt's and the completion's.

    The first `shared` messages belong to the prompt. A DocumentError is raised if a value is wrong, or a message
    contradicts `train_on`.
    """
    parts = [messages_of(record[column], column) for column in columns]
    masked, required, partly = marked_messages([*zip(columns, parts, strict=True)], train_on, shared)
    system = _system_message(parts, record)
    kwargs = record.get(TEMPLATE_KWARGS)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise _wrong_type(f"'{TEMPLATE_KWARGS}'", kwargs, "an object is expected")
    return Chat(
        [*system, *(m if len(m) == 2 else _with_joined_thoughts(m) for m in chain.from_iterable(parts))],
        len(system) + len(parts[0]) if len(parts) > 1 else 0,
        tools_of(record.get(TOOLS)),
        plain(kwargs or {}, f"'{TEMPLATE_KWARGS}'"),
        frozenset(len(system) + turn for turn in masked),
        frozenset(len(system) + turn for turn in required),
        {len(system) + turn: _with_joined_thoughts(message) for turn, message in partly.items()},
    )


def with_messages(record: Mapping[str, Any], records: Records) -> dict[str, Any]:
    """Return a record of a prompt and a completion, or answers, in which these strings are lists of messages.

    Questions and answers in the column `history` come before the prompt.
    """
    prompt = records.columns[0] if records.kind == "prompt+completion" else str(records.prompt_column)
    earlier = [
        {"role": role, "content": content}
        for turn in history_of(record.get(HISTORY))
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    question = {"role": "user", "content": "\n\n".join(prompt_texts(record, prompt, records.input_column))}
    answers = {
        column: [{"role": "assistant", "content": text_of(record[column], f"'{column}'")}]
        for column in records.columns
        if column != prompt
    }
    return {**record, **answers, prompt: [*earlier, question]}


def prompt_texts(record: Mapping[str, Any], prompt: str, input_column: str | None) -> list[str]:
    """Return the parts of a prompt that are not empty: in the Alpaca format, the instruction and its input."""
    texts = [text_of(record[prompt], f"'{prompt}'")]
    if input_column is not None and record[input_column] is not None:
        texts.append(text_of(record[input_column], f"'{input_column}'"))
    return [text for text in texts if text]


def history_of(value: Any) -> list[list[str]]:
    """Return the earlier turns of a record, each a question and its answer; null means that there are none."""
    for turn in value if isinstance(value, list) else [value] if value else []:
        if not isinstance(turn, list) or len(turn) != 2:
            raise record_error(
                f"'{HISTORY}' is no list of questions with answers: [[question, answer], ...]", "wrong_type"
            )
        for text in turn:
            text_of(text, f"a text in '{HISTORY}'")
    return value or []


def refuse_without_template(record: Mapping[str, Any]) -> None:
    """Raise a DocumentError if a record has a system prompt or earlier turns, which text has no place for."""
    for column in OF_PROMPTS:
        if record.get(column):
            raise record_error(
                f"'{column}' belongs to the prompt, and only a chat template can write it: choose one by "
                "--chat-template, or remove the column",
                "invalid_chat",
            )


def refuse_undesirable(record: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Raise a DocumentError if a record, whose text is in these columns, says that its answer is a bad example."""
    for name in DESIRABLE:
        if name not in columns and str(record.get(name)).lower() == "false":
            raise record_error(
                f"'{name}' is false, which marks a rejected answer, as for KTO, that would be trained: filter for rows "
                "where it is true, or rename the column if it says something else",
                "invalid_value",
            )


def _system_message(parts: Sequence[Sequence[Message]], record: Mapping[str, Any]) -> list[Message]:
    """Return the system prompt in a column of its own, as in ShareGPT; "" and null mean that there is none."""
    first = next(chain.from_iterable(parts), None)
    column, *others = [name for name in SYSTEMS if record.get(name) not in (None, "")] or [""]
    if not column or first is None:
        return []
    system = text_of(record[column], f"'{column}'")
    if others and record[others[0]] != system:
        raise record_error(f"'{column}' and '{others[0]}' hold two system prompts; keep one of them", "invalid_chat")
    if first["role"] != "system":
        return [{"role": "system", "content": system}]
    if first.get("content") != system:
        raise record_error(
            f"the conversation begins with a system message, and '{column}' holds another; keep one of them",
            "invalid_chat",
        )
    return []


def text_of(value: Any, where: str) -> str:
    """Return a value if it is text that can be written as UTF-8; raise a DocumentError if not."""
    if type(value) is not str:
        raise _wrong_type(where, value, "a string is expected; filter the row out or write ''")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise record_error(
                f"{where} has a lone surrogate U+{code:04X} at character {error.start}; no UTF-8 can hold it",
                "invalid_text",
            ) from None
    return value


def messages_of(value: Any, column: str) -> list[Message]:
    """Check a conversation and give every message a `role` and, unless it has none, a `content`.

    The fields `from` and `value` of ShareGPT become `role` and `content`; `human` is the user and `gpt` the assistant.
    A question and its answer in one object, `input` and `output` in Capybara, become two messages.
    An `observation` becomes a message of a tool. The content of a `function_call`, JSON with the name and arguments of
    one call or several, becomes the `tool_calls` of the assistant. All other fields are left for the chat template. A
    DocumentError is raised if it is not a list of messages, or a role is unknown.
    """
    if not isinstance(value, list):
        raise _wrong_type(f"'{column}'", value, "a list of messages is expected")
    if value and isinstance(value[0], dict) and value[0].keys() >= {_ASKED, _ANSWERED}:
        value = [*chain.from_iterable(map(_exchange, value))]
    return [
        message if _is_plain(message) else _message(message, f"'{column}' message {number}")
        for number, message in enumerate(value)
    ]


def _exchange(turn: Any) -> list[Any]:
    """Return a question and its answer in one object as two messages; anything else as it is."""
    if not isinstance(turn, dict) or not turn.keys() >= {_ASKED, _ANSWERED} or "role" in turn:
        return [turn]
    others = {name: value for name, value in turn.items() if name not in (_ASKED, _ANSWERED)}
    question = {"role": "user", "content": turn[_ASKED]}
    return [question, {**others, "role": "assistant", "content": turn[_ANSWERED]}]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise record_error(
            f"{where} is a {type(message).__name__} where an object with a role is expected", "wrong_type"
        )
    # apply_chat_template does so from transformers 5 on; otherwise templates write "None"
    message = {key: value for key, value in message.items() if value is not None}
    if (refused := refusal("message", message)) is not None:
        raise record_error(f"{where}: {refused}", "invalid_chat")
    if "role" in message:
        role, known = message["role"], ROLE_NAMES
    elif "from" in message:
        role, known = message.pop("from"), SHAREGPT_ROLES
    else:
        found = ", ".join(message) or "none"
        raise record_error(f"{where} has no 'role' (found: {found})", "invalid_chat")
    if not isinstance(role, str) or role not in known:
        among = f"which is none of {', '.join(known)}"
        raise record_error(f"{where} has the role {role!r}, {among}", "invalid_chat")
    if "value" in message and "content" not in message:
        message["content"] = message.pop("value")
    if role == "function_call" and isinstance(message.get("content"), str):
        message[CALLS] = _calls_of(message.pop("content"), where)
    if CALLS in message:
        message[CALLS] = _listed_calls(message[CALLS] or None, f"'{CALLS}' of {where}")
    content = message.get("content", "")
    if isinstance(content, list):
        for number, part in enumerate(content):
            _check_part(part, f"part {number} of {where}")
    elif isinstance(content, str):
        text_of(content, f"the content of {where}")
    else:
        raise record_error(
            f"{where} has a content of type {type(content).__name__} where text is expected", "wrong_type"
        )
    message = {key: value if type(value) is str else plain(value, where) for key, value in message.items()}
    message["role"] = known[role]
    # the names under which templates read the reasoning of an answer, as transformers gives them from 5 on
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        for number, part in enumerate(reasoning if isinstance(reasoning, list) else [{"text": reasoning}]):
            _check_part(part, f"part {number} of the reasoning of {where}")
    return message if reasoning is None else {"thinking": reasoning, **message, REASONING[0]: reasoning}


def _with_joined_thoughts(message: Message) -> Message:
    """Return a message in which reasoning that is a list of parts is text, which is all that templates take."""
    parts = message.get(REASONING[0])
    if not isinstance(parts, list):
        return message
    return {**message, **dict.fromkeys(message.keys() & {*REASONING}, "".join(part["text"] for part in parts))}


def _check_part(part: Any, where: str) -> None:
    """Raise a DocumentError unless a part of a message's content is text: {"type": "text", "text": "..."}."""
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    if kind != "text" or not isinstance(part, dict):
        raise record_error(
            f"{where} has the type {str(kind)[:20]!r}, and only text can be packed; {IMAGES_PAGE}",
            "invalid_chat",
        )
    if (refused := refusal("part", part)) is not None:
        raise record_error(f"{where}: {refused}", "invalid_chat")
    text_of(part.get("text"), f"the text of {where}")


def _is_plain(message: object) -> bool:
    """Whether a message has only a usual role and a content in ASCII, as most do, and needs no further checks."""
    if type(message) is not dict or len(message) != 2:
        return False
    role, content = message.get("role"), message.get("content")
    return type(role) is str and ROLE_NAMES.get(role) == role and type(content) is str and content.isascii()


def plain(value: Any, where: str) -> Any:
    """Return a value as JSON types; values that JSON does not have, such as Arrow times, become their type's name.

    Chat templates may be untrusted, and Python objects have methods that jinja2's sandbox does not know. A
    DocumentError is raised if the value is nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise record_error(f"{where} has hundreds of lists or objects within each other", "invalid_chat") from None


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else f"<{type(value).__name__}>"


def _calls_of(text: str, where: str) -> list[dict[str, Any]]:
    """Return the `tool_calls` of a message of the role function_call, whose content is JSON of one call or a list."""
    calls = _listed_calls(text, f"{where} is a function_call, and its content")
    if not calls or not all(isinstance(call.get("name"), str) for call in calls):
        raise record_error(
            f"{where} is a function_call, and its content names no function: write name and arguments", "invalid_chat"
        )
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]


def _listed_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return calls of tools as a list; they may be JSON, as a whole or one by one, or a single one."""
    calls = from_json(value, where) or []
    calls = [from_json(call, where) for call in (calls if isinstance(calls, list) else [calls])]
    if not all(isinstance(call, dict) for call in calls):
        raise record_error(f"{where} names no functions: write an object for each call", "invalid_chat")
    return calls


def from_json(value: Any, where: str) -> Any:
    """Parse a string of JSON; other values stay as they are. Raises a DocumentError if the string is not JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise record_error(f"{where} is not valid JSON: {error}", "invalid_chat") from None


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a conversation, given as a list or as JSON of one; None without tools."""
    tools = from_json(value, f"'{TOOLS}'") if isinstance(value, str) and value else value or None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise _wrong_type(f"'{TOOLS}'", tools, "a list of objects is expected")
    return plain(tools, f"'{TOOLS}'") or None
