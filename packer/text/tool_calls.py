"""Calls of tools, with arguments in the form in which a chat template writes them.

Arguments are an object or, as OpenAI writes them, a string of JSON. Some templates take both, others only one of them:
they raise an error for the other, or write it as escaped JSON or in Python's notation. A short chat shows which.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from packer.sources.meanings import CALLS
from packer.text.conversations import Chat, Message, from_json, record_error
from packer.text.rendering import Templates

_NAME, _VALUE = "city_of", "Cologne"
_ARGUMENTS = {_NAME: _VALUE}
_TOOLS = [{"type": "function", "function": {"name": "look", "description": "?", "parameters": {"type": "object"}}}]


class _Needs(NamedTuple):
    """What a chat template needs to write calls."""

    arguments: type | None  # dict or str; None if it takes both, or neither
    content: bool  # beside calls, if only an empty one
    writes_neither: bool


class ToolCalls:
    """Calls of tools in chats that the chat templates of a tokenizer render."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._needs: dict[bool, _Needs] = {}  # of chats with tools, and without

    def fit(self, chat: Chat) -> tuple[Chat, bool]:
        """Return a chat with calls as its template needs them, and whether it has some that the template leaves out."""
        if all(CALLS not in message and "content" in message for message in chat.messages):
            return chat, False
        has_tools = bool(chat.tools)
        needs = self._needs[has_tools] = self._needs.get(has_tools) or self._find(_TOOLS if has_tools else None)
        messages = [_fitted(message, needs, chat.name_of(at)) for at, message in enumerate(chat.messages)]
        partly = {at: _fitted(message, needs, chat.name_of(at)) for at, message in chat.partly.items()}
        leaves_out = needs.writes_neither and any(message.get(CALLS) for message in messages)
        return replace(chat, messages=messages, partly=partly), leaves_out

    def _find(self, tools: list[Any] | None) -> _Needs:
        texts, content = [], {"content": ""}
        for arguments, beside in ((_ARGUMENTS, content), (json.dumps(_ARGUMENTS), content), (_ARGUMENTS, {})):
            call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
            chat = Chat([{"role": "user", "content": "?"}, {"role": "assistant", **beside, CALLS: [call]}], tools=tools)
            text = self._templates.attempt(chat, chat.messages)
            texts.append(text if isinstance(text, str) else None)
        # neither as escaped JSON nor in Python's notation
        objects, strings = (
            text is not None and _VALUE in text and f'\\"{_NAME}' not in text and str(_ARGUMENTS) not in text
            for text in texts[:2]
        )
        kind = None if objects == strings else dict if objects else str
        return _Needs(kind, texts[2] is None, not (objects or strings) and None not in texts[:2])


def _fitted(message: Message, needs: _Needs, where: str) -> Message:
    if needs.content and "content" not in message:
        message = {**message, "content": ""}
    if CALLS in message:
        message = {**message, CALLS: [_fitted_call(call, needs, where) for call in message[CALLS]]}
    return message


def _fitted_call(call: dict[str, Any], needs: _Needs, where: str) -> dict[str, Any]:
    """Return a call with arguments in the form that a template needs; none, null and "" are an empty object."""
    if isinstance(call.get("function"), dict):
        return {**call, "function": _fitted_call(call["function"], needs, where)}
    arguments = call.get("arguments") or {}
    if needs.arguments is dict and isinstance(arguments, str):
        arguments = from_json(arguments, f"'arguments' of a call in {where}")
        if not isinstance(arguments, dict):
            raise record_error(f"'arguments' of a call in {where} is no object: {arguments!r:.60}", "invalid_chat")
    elif needs.arguments is str and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments} if "name" in call else call
