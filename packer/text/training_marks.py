"""Marks of messages, of parts of their contents and of spans of characters that say what is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from packer.json_records import Reason
from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.sources.meanings import FIELDS, MARKS, REASONING, SPANS, Place, names

Said: TypeAlias = tuple[bool | None, str]
"""Whether marks say that something is trained, None if there are none; and the marks in words, for errors."""

UNTRAINED, END_UNTRAINED = "\U000f5af8", "\U000f5af9"
"""Private-use characters around text that is not trained, in copies of messages."""

_INVERSE = {field.name for fields in FIELDS.values() for field in fields if field.means == "untrained"}
_READ = {SPANS, REASONING[0], *MARKS["message"]}
"""Fields of a message, other than its content, that may say what is trained."""
_NO_TEXT = {"name", SPANS, *names("message", "role"), *MARKS["message"]}
"""Fields of a message that are not part of its content."""


def marked_messages(
    columns: Sequence[tuple[str, Sequence[dict[str, Any]]]], train_on: TrainOn, shared: int
) -> tuple[list[int], list[int], dict[int, dict[str, Any]]]:
    """Return (masked, required, partly): what messages say about their training, given the columns that hold them.

    These are the numbers of messages that are context only, and of messages that say that they or parts of them are
    trained; and copies of messages with `UNTRAINED` and `END_UNTRAINED` around parts that are not trained. Messages are
    counted through all columns; the first `shared` ones belong to the prompt.

    Marks that are wrong or contradict each other or `train_on`, and a trained answer that is empty, are errors.
    """
    masked, required, partly = list[int](), list[int](), dict[int, dict[str, Any]]()
    places = [(column, at, message) for column, messages in columns for at, message in enumerate(messages)]
    for number, (column, at, message) in enumerate(places):
        in_prompt, trained = len(columns) > 1 and column == columns[0][0], None
        if not (_READ.isdisjoint(message) and isinstance(message.get("content"), str)):
            where = f"'{column}' message {at}"
            trained, words = _said_by(message, "message", where)
            copy, of_parts = _with_marks(message, where)
            for said, its_words in [(trained, words), *of_parts]:
                if said and trained is False:
                    raise _wrong(f"{words}, and {its_words}; leave one of them out")
                _check_train_on(said, its_words, message["role"], train_on, in_prompt=in_prompt)
            if trained is not None or any(said for said, _ in of_parts):
                (masked if trained is False else required).append(number)
            if trained is not False and not all(said for said, _ in of_parts):
                partly[number] = copy
        # an answer with nothing that a template could write, not even tool calls
        is_empty = "content" not in message and not any(message[name] for name in message.keys() - _NO_TEXT)
        is_context = in_prompt or number < shared or trained is False or message["role"] != "assistant"
        if is_empty and not is_context:
            what = "is an answer without content: null would be trained as an empty answer; remove it, write ''"
            raise _wrong(f"'{column}' message {at} {what}, or set its weight to 0", "missing_value")
    return masked, required, partly


def _check_train_on(said: bool | None, words: str, role: str, train_on: TrainOn, *, in_prompt: bool) -> None:
    """Raise a DocumentError if a mark contradicts `train_on`."""
    if said is False and train_on == "all":
        raise _wrong(f"{words}, and --train-on all trains every message: leave --train-on out, or remove that")
    untrained = in_prompt or (train_on in ("assistant", "each-answer") and role != "assistant")
    if said and untrained and train_on != "all":
        which = "a message of the prompt" if in_prompt else f"a message of the role {role}"
        raise _wrong(f"{words}, and --train-on {train_on} does not train {which}; remove that")


def _said_by(owner: Mapping[str, Any], place: Place, where: str) -> Said:
    """Return what the marks of a message or a part say."""
    found = {name: owner[name] for name in MARKS[place] if owner.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise _wrong(f"{where} has {name} {str(value)[:40]!r}, where 0 or 1, or false or true, is expected")
    words = f"{where} has {' and '.join(f'{name} {json.dumps(value)}' for name, value in found.items())}"
    said = {bool(value) != (name in _INVERSE) for name, value in found.items()}
    if len(said) > 1:
        raise _wrong(f"{words}; leave one of them out")
    return next(iter(said), None), words


def _with_marks(message: dict[str, Any], where: str) -> tuple[dict[str, Any], list[Said]]:
    """Return a copy of a message with marks around parts that are not trained, and what the parts say."""
    copy, said = message, list[Said]()
    for name in ("content", REASONING[0]):
        value = message.get(name)
        parts = _parts_of_spans(message, where) if name == "content" and SPANS in message else value
        if isinstance(parts, list):
            said += (each := [_said_by(part, "part", f"part {at} of {where}") for at, part in enumerate(parts)])
            marked = [
                {**part, "text": f"{UNTRAINED}{part['text']}{END_UNTRAINED}" if trained is False else part["text"]}
                for (trained, _), part in zip(each, parts, strict=True)
            ]
            copy = {**copy, name: marked if parts is value else "".join(part["text"] for part in marked)}
    return copy, [one for one in said if one[0] is not None]


def _parts_of_spans(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the content of a message as parts with marks; what is in none of its spans is not trained."""
    content, spans = message.get("content"), message[SPANS]
    if not (isinstance(content, str) and isinstance(spans, list) and spans):
        raise _wrong(f"{where} has {SPANS} {str(spans)[:40]!r}, where spans of a content that is a string are expected")
    parts, done = list[dict[str, Any]](), 0
    for at, span in enumerate(spans):
        begin: Any = span.get("begin_offset") if isinstance(span, dict) else None
        end: Any = span.get("end_offset") if isinstance(span, dict) else None
        is_place = type(begin) is type(end) is int and done <= begin <= end < len(content)
        if not is_place or _said_by(span, "part", where)[0] is None:
            raise _wrong(
                f"span {at} of {SPANS} in {where} is {str(span)[:80]}, where a mark such as train is expected, and "
                f"begin_offset and end_offset, its last character, from {done} to {len(content) - 1}"
            )
        parts += [{"text": content[done:begin], MARKS["part"][0]: 0}, {**span, "text": content[begin : end + 1]}]
        done = end + 1
    return [part for part in [*parts, {"text": content[done:], MARKS["part"][0]: 0}] if part["text"]]


def _wrong(message: str, reason: Reason = "invalid_chat") -> DocumentError:
    return DocumentError(0, message, reason=reason)
