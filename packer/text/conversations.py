"""Convert records to conversations: messages and their training marks, system prompt, tools and template arguments.

ShareGPT messages are converted to the OpenAI format. Messages, parts of their contents and spans of characters may have
marks that decide whether they are trained; without marks, --train-on decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from packer.json_records import Reason
from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.sources.meanings import (
    CALLS,
    FIELDS,
    MARKS,
    REASONING,
    ROLE_NAMES,
    SHAREGPT_ROLES,
    SPANS,
    SYSTEMS,
    TEMPLATE_KWARGS,
    TOOLS,
    Place,
    names,
    refusal,
)

Message = dict[str, Any]

IMAGES_PAGE = "pack images, sound and video by the lengths of documents, see docs/how-to/images.md"
"""Remedy for documents with other content than text."""
_ASKED, _ANSWERED = names("message", "prompt", "completion")
_ASKING = {"system", "developer", "user"}

Said: TypeAlias = tuple[float | None, str]
"""(weight in the loss that marks give, 0 for context and None without marks; the marks in words, for errors)."""

BEGIN_PART, END_PART = "\U000f5af8", "\U000f5af9"
"""Private-use characters around parts of a message with another weight, in copies of messages."""

_MOST = 2.0**128
"""Limit of weights, above the largest float32."""
_WEIGHTS = names("message", "weight")
_INVERSE = {field.name for fields in FIELDS.values() for field in fields if field.means == "untrained"}
_READ = {SPANS, REASONING[0], *MARKS["message"]}
"""Fields of a message, besides its content, that may decide what is trained."""
_UNUSUAL = re.compile("[\ud800-\udfff\U000f0000-\U0010ffff]")
"""Lone surrogates, and private-use characters, some of which mark places in renderings."""
_ROLES = {*ROLE_NAMES.values()}
_NO_TEXT = {"name", SPANS, *names("message", "role"), *MARKS["message"]}
"""Fields of a message that are not part of its content."""


def record_error(message: str, reason: Reason = "invalid_chat") -> DocumentError:
    """Return the error for a record. Its number is added where records are counted."""
    return DocumentError(0, message, reason=reason)


def _wrong_type(where: str, value: Any, expected: str) -> DocumentError:
    """Return the error for a value of an unexpected type, or for null."""
    what = "null" if value is None else f"a {type(value).__name__}"
    return record_error(f"{where} is {what} where {expected}", "missing_value" if value is None else "wrong_type")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation with everything that its template reads."""

    messages: list[Message]
    first: int = 0
    """Number of messages in the prompt, which is never trained."""
    tools: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the template (`chat_template_kwargs`)."""
    masked: frozenset[int] = frozenset()
    """Numbers of messages that are only context."""
    required: frozenset[int] = frozenset()
    """Numbers of messages that are marked as trained, wholly or in part."""
    weights: dict[int, float] = field(default_factory=dict)
    """Weights of messages in the loss, by number, other than 0 and 1."""
    partly: dict[float, dict[int, Message]] = field(default_factory=dict)
    """For weights of parts (0: not trained), copies of messages, by number, with marks around parts of this weight."""
    contents: list[str] | None = None
    """Contents of all messages, if these have only a role and usual text; otherwise None."""

    def documents(self, train_on: TrainOn) -> list[Chat]:
        """Return the documents of a chat: usually itself; with "last", its beginning up to the last answer.

        With "each-answer", these are its beginnings up to each trained answer. The messages before the answer are the
        prompt. Without such answers, "last" returns the chat, and "each-answer" a chat without messages.
        """
        if train_on not in ("last", "each-answer"):
            return [self]
        messages, is_last = enumerate(self.messages), train_on == "last"
        answers = [at for at, message in messages if at >= self.first and message["role"] == "assistant"]
        answers = answers[-1:] if is_last else [at for at in answers if at not in self.masked]
        found = [
            replace(
                self, messages=self.messages[: at + 1], first=at, masked=self.masked & {*range(at + 1)}, contents=None
            )
            for at in answers
        ]
        return found or [self if is_last else replace(self, messages=[], first=0, contents=None)]

    def exchanges(self) -> list[int]:
        """Return the numbers of the messages at which exchanges begin, except the first exchange.

        An exchange begins with the user and system messages that follow a message of another role.
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
    """Return the conversation of a record. `columns` name one column of messages, or the prompt's and the completion's.

    The first `shared` messages of a single column belong to the prompt. Raises a DocumentError if a value is wrong, or
    if a message contradicts `train_on`.
    """
    parts = [record[column] for column in columns]
    contents = _plain_contents(parts)
    if contents is None:
        parts = [*map(messages_of, parts, columns)]
    shared = len(parts[0]) if len(parts) > 1 else shared
    system = _system_message(parts, record)
    first = len(system) + shared if shared or len(parts) > 1 else 0
    messages = [*system, *chain.from_iterable(parts)]
    if contents is None or system:
        contents = _plain_contents([messages])
    marked = [] if contents is not None else [*zip(columns, parts, strict=True)]
    marks = _marked_messages(marked, train_on, first, len(system))
    kwargs = record.get(TEMPLATE_KWARGS)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise _wrong_type(f"'{TEMPLATE_KWARGS}'", kwargs, "an object is expected")
    return Chat(
        messages if contents is not None else [*map(_with_joined_thoughts, messages)],
        first,
        tools_of(record.get(TOOLS)),
        plain(kwargs or {}, f"'{TEMPLATE_KWARGS}'"),
        *marks,
        contents,
    )


def _system_message(parts: Sequence[Sequence[Message]], record: Mapping[str, Any]) -> list[Message]:
    """Return the system prompt from a separate column, as in ShareGPT. "" and null mean no system prompt."""
    first = next(chain.from_iterable(parts), None)
    column, *others = [name for name in SYSTEMS if record.get(name) not in (None, "")] or [""]
    if not column or first is None:
        return []
    system = text_of(record[column], f"'{column}'")
    if others and record[others[0]] != system:
        raise record_error(f"'{column}' and '{others[0]}' hold two system prompts; keep one of them")
    if first["role"] != "system":
        return [{"role": "system", "content": system}]
    if first.get("content") != system:
        raise record_error(
            f"the conversation begins with a system message, and '{column}' holds another; keep one of them"
        )
    return []


def text_of(value: Any, where: str) -> str:
    """Return a value that is text and can be written as UTF-8. Raises a DocumentError otherwise."""
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
    """Check a conversation, and give every message a `role` and, unless it has none, a `content`.

    The fields `from` and `value` of ShareGPT become `role` and `content`; `human` becomes user and `gpt` assistant. A
    question and its answer in one object (`input` and `output` in Capybara) become two messages. An `observation`
    becomes a tool message. The content of a `function_call`, JSON with the name and arguments of one or several calls,
    becomes the `tool_calls` of the assistant. All other fields are left for the chat template. Raises a DocumentError
    if the value is not a list of messages, or if a role is unknown.
    """
    if not isinstance(value, list):
        raise _wrong_type(f"'{column}'", value, "a list of messages is expected")
    if value and isinstance(value[0], dict) and value[0].keys() >= {_ASKED, _ANSWERED}:
        value = [*chain.from_iterable(map(_exchange, value))]
    return [_message(message, f"'{column}' message {number}") for number, message in enumerate(value)]


def _plain_contents(parts: list[Any]) -> list[str] | None:
    """Return the contents of conversations if all messages have only a known role and a text; None for others."""
    messages = [*chain.from_iterable(parts)] if {*map(type, parts)} == {list} else []
    if {*map(type, messages)} != {dict} or {*map(len, messages)} != {2} or {*chain(*messages)} != {"role", "content"}:
        return None
    roles, contents = ([message[name] for message in messages] for name in ("role", "content"))
    if {*map(type, roles), *map(type, contents)} != {str} or not _ROLES.issuperset(roles):
        return None
    joined = "".join(contents)
    return contents if joined.isascii() or not _UNUSUAL.search(joined) else None


def _exchange(turn: Any) -> list[Any]:
    """Split a question and its answer in one object into two messages. Other messages are returned unchanged."""
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
    # From transformers 5 on, apply_chat_template drops nulls; templates would write them as "None"
    message = {key: value for key, value in message.items() if value is not None}
    if (refused := refusal("message", message)) is not None:
        raise record_error(f"{where}: {refused}")
    if "role" in message:
        role, known = message["role"], ROLE_NAMES
    elif "from" in message:
        role, known = message.pop("from"), SHAREGPT_ROLES
    else:
        found = ", ".join(message) or "none"
        raise record_error(f"{where} has no 'role' (found: {found})")
    if not isinstance(role, str) or role not in known:
        among = f"which is none of {', '.join(known)}"
        raise record_error(f"{where} has the role {role!r}, {among}")
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
    # Templates read the reasoning of an answer under these names; transformers sets them from version 5 on
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        for number, part in enumerate(reasoning if isinstance(reasoning, list) else [{"text": reasoning}]):
            _check_part(part, f"part {number} of the reasoning of {where}")
    return message if reasoning is None else {"thinking": reasoning, **message, REASONING[0]: reasoning}


def _with_joined_thoughts(message: Message) -> Message:
    """Return the message with reasoning that is a list of parts joined to text, because templates accept only text."""
    parts = message.get(REASONING[0])
    if not isinstance(parts, list):
        return message
    return {**message, **dict.fromkeys(message.keys() & {*REASONING}, "".join(part["text"] for part in parts))}


def _check_part(part: Any, where: str) -> None:
    """Raise a DocumentError unless a part of a message's content is text: {"type": "text", "text": "..."}."""
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    if kind != "text" or not isinstance(part, dict):
        raise record_error(f"{where} has the type {str(kind)[:20]!r}, and only text can be packed; {IMAGES_PAGE}")
    if (refused := refusal("part", part)) is not None:
        raise record_error(f"{where}: {refused}")
    text_of(part.get("text"), f"the text of {where}")


def plain(value: Any, where: str) -> Any:
    """Return a value as JSON types. Values without a JSON type, such as Arrow times, become the name of their type.

    Chat templates may be untrusted, and Python objects have methods that jinja2's sandbox does not know. Raises a
    DocumentError if the value is nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise record_error(f"{where} has hundreds of lists or objects within each other") from None


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else f"<{type(value).__name__}>"


def _calls_of(text: str, where: str) -> list[dict[str, Any]]:
    """Return the `tool_calls` of a function_call message. Its content is JSON: one call or a list of calls."""
    calls = _listed_calls(text, f"{where} is a function_call, and its content")
    if not calls or not all(isinstance(call.get("name"), str) for call in calls):
        raise record_error(f"{where} is a function_call, and its content names no function: write name and arguments")
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]


def _listed_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return tool calls as a list. The value is one call or a list; it, or each call in it, may be a JSON string."""
    calls = from_json(value, where) or []
    calls = [from_json(call, where) for call in (calls if isinstance(calls, list) else [calls])]
    if not all(isinstance(call, dict) for call in calls):
        raise record_error(f"{where} names no functions: write an object for each call")
    return calls


def from_json(value: Any, where: str) -> Any:
    """Parse a JSON string; return other values unchanged. Raises a DocumentError if the string is not JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise record_error(f"{where} is not valid JSON: {error}") from None


def tools_of(value: Any) -> list[Any] | None:
    """Return the tools of a conversation from a list or its JSON; None without tools."""
    tools = from_json(value, f"'{TOOLS}'") if isinstance(value, str) and value else value or None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise _wrong_type(f"'{TOOLS}'", tools, "a list of objects is expected")
    return plain(tools, f"'{TOOLS}'") or None


# Marks


def _marked_messages(
    columns: Sequence[tuple[str, Sequence[Message]]], train_on: TrainOn, first: int, before: int
) -> tuple[frozenset[int], frozenset[int], dict[int, float], dict[float, dict[int, Message]]]:
    """Return what the marks say, as `Chat` has it: (masked, required, weights, partly).

    `columns` has the messages by column. Messages are numbered across all columns, from `before` on; those before
    `first` belong to the prompt. Raises a DocumentError if marks are wrong or contradict each other or `train_on`, or
    if a trained answer is empty.
    """
    masked, required = set[int](), set[int]()
    weights, partly = dict[int, float](), dict[float, dict[int, Message]]()
    places = [(column, at, message) for column, messages in columns for at, message in enumerate(messages)]
    if train_on == "last":
        answers = [number for number, (*_, message) in enumerate(places, before) if message["role"] == "assistant"]
        first = max([first, *answers])
    for number, (column, at, message) in enumerate(places, before):
        if _READ.isdisjoint(message) and isinstance(message.get("content"), str):
            continue
        in_prompt, where = number < first, f"'{column}' message {at}"
        trained, words = _said_by(message, "message", where)
        copies, of_parts = _with_marks(message, 1 if trained is None else trained, where)
        for said, its_words in [(trained, words), *of_parts]:
            if said and trained == 0:
                raise record_error(f"{words}, and {its_words}; leave one of them out")
            _check_train_on(said, its_words, message["role"], train_on, in_prompt=in_prompt)
        if trained is not None or any(said for said, _ in of_parts):
            (masked if trained == 0 else required).add(number)
        if trained not in (None, 0, 1):
            weights[number] = trained
        for weight, copy in copies.items() if trained != 0 else ():
            partly.setdefault(weight, {})[number] = _with_joined_thoughts(copy)
        # an empty answer: the template has nothing to write, not even tool calls
        is_empty = "content" not in message and not any(message[name] for name in message.keys() - _NO_TEXT)
        is_context = in_prompt or trained == 0 or message["role"] != "assistant"
        if is_empty and not is_context:
            what = "is an answer without content: null would be trained as an empty answer; remove it, write ''"
            raise record_error(f"{where} {what}, or set its weight to 0", "missing_value")
    return frozenset(masked), frozenset(required), weights, partly


def _check_train_on(said: float | None, words: str, role: str, train_on: TrainOn, *, in_prompt: bool) -> None:
    """Raise a DocumentError if a mark contradicts `train_on`."""
    if said not in (None, 1) and train_on == "all":
        raise record_error(f"{words}, and --train-on all trains every message: leave --train-on out, or remove that")
    untrained = in_prompt or (train_on in ("assistant", "last", "each-answer") and role != "assistant")
    if said and untrained and train_on != "all":
        before = "a message before the last answer" if train_on == "last" else "a message of the prompt"
        which = before if in_prompt else f"a message of the role {role}"
        raise record_error(f"{words}, and --train-on {train_on} does not train {which}; remove that")


def _said_by(owner: Mapping[str, Any], place: Place, where: str) -> Said:
    """Return the weight that the marks of a message or a part give it in the loss."""
    found = {name: owner[name] for name in MARKS[place] if owner.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, int | float) or not (0 <= value < _MOST if name in _WEIGHTS else value in (0, 1)):
            expected = "a finite number from 0 on" if name in _WEIGHTS else "0 or 1, or false or true,"
            raise record_error(f"{where} has {name} {str(value)[:40]!r}, where {expected} is expected")
    words = f"{where} has {' and '.join(f'{name} {json.dumps(value)}' for name, value in found.items())}"
    said = {bool(value) != (name in _INVERSE) for name, value in found.items()}
    weights = {float(value) for name, value in found.items() if name in _WEIGHTS} or {*map(float, said)}
    if len(said) > 1 or len(weights) > 1:
        raise record_error(f"{words}; leave one of them out")
    return next(iter(weights), None), words


def _with_marks(message: Message, usual: float, where: str) -> tuple[dict[float, Message], list[Said]]:
    """Return (copies of a message, marks of its parts).

    For each weight of a part, except the weight `usual` of the message, a copy has marks around parts of that weight.
    """
    copies, said = dict[float, Message](), list[Said]()
    for name in ("content", REASONING[0]):
        value = message.get(name)
        parts = _parts_of_spans(message, where) if name == "content" and SPANS in message else value
        if isinstance(parts, list):
            said += (each := [_said_by(part, "part", f"part {at} of {where}") for at, part in enumerate(parts)])
            for weight in sorted({one for one, _ in each if one not in (None, usual)}):
                marked = [
                    {**part, "text": f"{BEGIN_PART}{part['text']}{END_PART}" if one == weight else part["text"]}
                    for (one, _), part in zip(each, parts, strict=True)
                ]
                text = marked if parts is value else "".join(part["text"] for part in marked)
                copies[weight] = {**copies.get(weight, message), name: text}
    return copies, [one for one in said if one[0] is not None]


def _parts_of_spans(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the content of a message as parts with marks. Text outside of its spans is not trained."""
    content, spans = message.get("content"), message[SPANS]
    if not (isinstance(content, str) and isinstance(spans, list) and spans):
        raise record_error(
            f"{where} has {SPANS} {str(spans)[:40]!r}, where spans of a content that is a string are expected"
        )
    parts, done = list[dict[str, Any]](), 0
    for at, span in enumerate(spans):
        begin: Any = span.get("begin_offset") if isinstance(span, dict) else None
        end: Any = span.get("end_offset") if isinstance(span, dict) else None
        is_place = type(begin) is type(end) is int and done <= begin <= end < len(content)
        if not is_place or _said_by(span, "part", where)[0] is None:
            raise record_error(
                f"span {at} of {SPANS} in {where} is {str(span)[:80]}, where a mark such as train is expected, and "
                f"begin_offset and end_offset, its last character, from {done} to {len(content) - 1}"
            )
        parts += [{"text": content[done:begin], MARKS["part"][0]: 0}, {**span, "text": content[begin : end + 1]}]
        done = end + 1
    return [part for part in [*parts, {"text": content[done:], MARKS["part"][0]: 0}] if part["text"]]
