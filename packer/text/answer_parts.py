"""Locate the parts of answers that are weighted differently or not trained: marked parts, thoughts and tool calls.

Parts and thoughts are located by a further rendering with marks around them, which must not change the text. Tool calls
are located by two renderings without them, one of which has a mark at the end of the content. Calls take the place of
the mark | if the three renderings agree around it:

    <|im_start|>assistant⏎Wait.⏎<tool_call>{...}</tool_call><|im_end|>
    <|im_start|>assistant⏎Wait.<|im_end|>
    <|im_start|>assistant⏎Wait.|<|im_end|>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.sources.meanings import CALLS, REASONING
from packer.text.conversations import BEGIN_PART, END_PART, Chat, Message, record_error
from packer.text.message_marks import RenderedChat, split_at_marks
from packer.text.rendering import Templates
from packer.text.tokens import Span

Remedy: TypeAlias = Callable[[Chat], str]
"""Function that returns the remedy if a template is unsuitable for a chat."""

_TAGS = [
    *(("<think>", "</think>"), ("<seed:think>", "</seed:think>")),
    *(("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>")),
]
"""Tags around thoughts. If the generation prompt has the first, contents may have only the second."""
_CHANNELS = [("<|channel|>analysis<|message|>", "<|end|>"), ("<|channel>thought", "<channel|>")]
"""Texts around thoughts that only templates write."""
_THOUGHTS = [
    re.compile(rf"(?:{first}|\A(?=(?:(?!{first}).)*?{last}))\s*(.*?)\s*(?={last}|\Z)", re.DOTALL)
    for first, last in [map(re.escape, tags) for tags in _TAGS]
]
_EMPTY = re.compile("|".join(rf"{re.escape(first)}\s*{re.escape(last)}\s*" for first, last in _TAGS + _CHANNELS))


def marked_parts(
    templates: Templates, one: RenderedChat, copies: Mapping[int, Message], train_on: TrainOn, remedy: Remedy
) -> list[Span]:
    """Return the spans of the marked parts in copies of messages, by number. Raises a DocumentError if unknown."""
    chat, roles = one.chat, [message["role"] for message in one.chat.messages]
    turns = [turn for turn in sorted(copies) if chat.first <= turn < len(roles)]
    turns = [turn for turn in turns if train_on == "completion" or roles[turn] == "assistant"]
    spans = _marked_spans(templates, one, {turn: copies[turn] for turn in turns})
    if spans is None:
        raise _unlocated(chat, turns[0], "a part", remedy, "set the weight of the whole message to 0")
    return spans


def untrained_parts(templates: Templates, one: RenderedChat, parts: Sequence[str], remedy: Remedy) -> list[Span]:
    """Return the spans of `parts` ("reasoning", "tool_calls") of the trained answers.

    Raises a DocumentError if the place of one is unknown.
    """
    chat = one.chat
    turns = [turn for turn in range(chat.first, len(chat.messages)) if turn not in chat.masked]
    answers = [turn for turn in turns if chat.messages[turn]["role"] == "assistant"]
    spans: list[Span] = []
    if "reasoning" in parts:
        thoughts = _marked_spans(templates, one, {at: _with_marked_thoughts(chat.messages[at]) for at in answers})
        if thoughts is None:
            raise _unlocated(chat, answers[0], "the thought", remedy, "leave --untrained-parts reasoning out")
        spans += [_with_tags(one.text, *span) for span in thoughts]
        spans += [found.span() for found in _EMPTY.finditer(one.text)]
    for turn in answers if "tool_calls" in parts else ():
        calls = _calls(templates, one, turn) if chat.messages[turn].get(CALLS) else (0, 0)
        if calls is None:
            raise _unlocated(chat, turn, "the tool call", remedy, "leave --untrained-parts tool_calls out")
        spans.append(calls)
    return [(start, end) for start, end in spans if start < end]


def _unlocated(chat: Chat, turn: int, what: str, remedy: Remedy, other: str) -> DocumentError:
    return record_error(
        f"{what} of {chat.name_of(turn)} is not trained like the rest, and the chat template changes or moves it, so "
        f"that its place is not known; {remedy(chat)}, or {other}",
        "unlocated_spans",
    )


def _marked_spans(templates: Templates, one: RenderedChat, marked: Mapping[int, Message]) -> list[Span] | None:
    """Return the spans between the marks in `marked`, copies of messages by number. None: the marks change the text."""
    if not marked:
        return []
    messages = [marked.get(at, message) for at, message in enumerate(one.chat.messages)]
    text = templates.attempt(one.chat, templates.with_joined_parts(replace(one.chat, messages=messages)).messages)
    with suppress(DocumentError):
        if isinstance(text, str) and (found := split_at_marks(text, BEGIN_PART, END_PART))[0] == one.text:
            return found[1]
    return None


def _with_marked_thoughts(message: Message) -> Message:
    """Return a message with marks around its thoughts, but not around their tags, which templates may read.

    White space around a thought is not marked, because templates strip it.
    """
    copy, content = dict(message), message.get("content")
    for name, thought in message.items():
        if name in REASONING and isinstance(thought, str):
            copy[name] = re.sub(r"\A\s*(.*?)\s*\Z", _with_marks, thought, flags=re.DOTALL)
    if isinstance(content, list):
        copy["content"] = [{**part, "text": _with_marks_between_tags(part["text"])} for part in content]
    elif isinstance(content, str):
        copy["content"] = _with_marks_between_tags(content)
    return copy


def _with_marks_between_tags(content: str) -> str:
    for tags, thought in zip(_TAGS, _THOUGHTS, strict=True):
        if any(tag in content for tag in tags):
            content = thought.sub(_with_marks, content)
    return content


def _with_marks(found: re.Match[str]) -> str:
    if not found[1]:
        return found[0]
    before, thought, after = found[0].rpartition(found[1])
    return f"{before}{BEGIN_PART}{thought}{END_PART}{after}"


def _with_tags(text: str, start: int, end: int) -> Span:
    """Extend the span of a thought by the tags around it, and the white space after them."""
    before, after = text[:start].rstrip(), text[end:].lstrip()
    for tags in _TAGS + _CHANNELS:
        is_opened = before.endswith(tags[0])
        if is_opened:
            start = len(before) - len(tags[0])
        if after.startswith(tags[1]) and (is_opened or tags in _TAGS):
            end = len(text) - len(after.removeprefix(tags[1]).lstrip())
    return start, end


def _calls(templates: Templates, one: RenderedChat, turn: int) -> Span | None:
    """Return the span of the tool calls of a message; None if it is unknown."""

    def rendered(message: Message) -> str:
        text = templates.attempt(one.chat, [*one.chat.messages[:turn], message])
        return text if isinstance(text, str) else ""

    message = one.chat.messages[turn]
    content = message.get("content") or ""
    marked = [*content, {"type": "text", "text": BEGIN_PART}] if isinstance(content, list) else content + BEGIN_PART
    whole = rendered(message)
    if whole == rendered({**message, "content": marked}):  # the template leaves out contents beside calls
        content, marked = "", BEGIN_PART
    alone = {name: value for name, value in message.items() if name != CALLS}
    plain = rendered({**alone, "content": content})
    _, found, behind = rendered({**alone, "content": marked}).rpartition(BEGIN_PART)
    start, end = len(plain) - len(behind), len(whole) - len(behind)
    agree = plain.endswith(behind) and whole.endswith(behind) and whole.startswith(plain[:start])
    return (start, end) if found and agree and start <= end and one.text.startswith(whole) else None
