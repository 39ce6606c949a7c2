"""Built-in templates in the place of a tokenizer's own: which of them writes chats with one answer as that does.

A template that rewrites earlier answers, as Qwen3's does, does not show what was written in chats of several. A
built-in one may take its place only if both agree on chats with one answer, and on what the model is given to answer.
This depends on the arguments of a chat (`enable_thinking`), and on whether it has tools, calls or thoughts. So short
chats of the same kind are compared, once for all chats of a kind.
"""

from __future__ import annotations

import pickle

from packer.sources.meanings import REASONING
from packer.text.built_in_templates import built_in
from packer.text.conversations import Chat, Message
from packer.text.rendering import Templates, choice_of, fitting
from packer.text.template_environment import compiled, names_read

_MOST = 256
_SYSTEM: Message = {"role": "system", "content": "Be brief. "}
_QUESTION: Message = {"role": "user", "content": " What is\n 2 + 2? "}
_ANSWER: Message = {"role": "assistant", "content": "\n4, of course. "}
_CALL: Message = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
_CALLS: Message = {**_ANSWER, "tool_calls": [_CALL, {**_CALL, "function": {"name": "add", "arguments": '{"a": 2}'}}]}
_RESULT: Message = {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call00001"}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]}
_ADD = {"name": "add", "description": "Addition, naïve.", "parameters": _PARAMETERS, "strict": True}
_TOOLS = [{"type": "function", "function": function} for function in (_ADD, {**_ADD, "name": "sum"})]


class StandIns:
    """The built-in templates that may take the place of `own` ones."""

    def __init__(self, own: Templates) -> None:
        self._own = own
        self._names = fitting(own.tokenizer)
        sources = [*own.sources.values(), *(built_in(name).source for name in self._names)]
        self._read = frozenset().union(*map(names_read, sources))
        self._found: dict[bytes, tuple[str | None, bool]] = {}

    def of(self, chat: Chat) -> str | None:
        """Return the built-in template that takes the place of one that rewrites earlier answers.

        Returns None if the template does not rewrite answers, is one of several, or no built-in one writes alike.
        """
        name, rewrites = self._likeness(chat)
        return name if rewrites and self._own.sources.keys() == {"default"} else None

    def choice(self, chat: Chat) -> str:
        """Return the remedy if the template is unsuitable for a chat; it names a built-in one that writes alike."""
        name, _ = self._likeness(chat)
        if name is not None:
            return f"choose --chat-template {name}, which renders chats with one answer alike (or a file)"
        if not self._names:
            return choice_of(self._own.tokenizer)
        return f"choose a template by --chat-template (a file, or {', '.join(self._names)}, which render it otherwise)"

    def _likeness(self, chat: Chat) -> tuple[str | None, bool]:
        """Return the built-in template that writes alike, and whether the own one rewrites earlier answers."""
        arguments = {name: value for name, value in chat.kwargs.items() if name in self._read}
        thought = max((_thought_of(message) for message in chat.messages), default="")
        calls = any("tool_calls" in message or message["role"] == "tool" for message in chat.messages)
        key = pickle.dumps((arguments, chat.tools is None, thought, calls))
        if key not in self._found:
            if len(self._found) >= _MOST:  # every chat may have arguments of its own
                self._found.clear()
            short = Chat([], tools=None if chat.tools is None else _TOOLS, kwargs=arguments)
            self._found[key] = self._compare(short, thought, calls=calls or chat.tools is not None)
        return self._found[key]

    def _compare(self, chat: Chat, thought: str, *, calls: bool) -> tuple[str | None, bool]:
        """Compare answers, with the thought if there is one and with calls on request, given tools and arguments."""
        if "default" not in self._own.sources:
            return None, False
        ends: list[list[Message]] = [[], [_ANSWER]]
        if thought:
            content = f"<think>\n{thought}\n</think>\n\n4"
            ends += [[{**_ANSWER, "reasoning_content": thought}], [{**_ANSWER, "content": content}]]
        if calls:
            ends += [[_CALLS], [_RESULT, _RESULT, _ANSWER]]
        once, twice = (self._own.attempt(chat, [_QUESTION, _ANSWER] * times) for times in (1, 2))
        rewrites = isinstance(twice, str) and not (isinstance(once, str) and twice.startswith(once))
        return next((name for name in self._names if self._agree(name, chat, ends)), None), rewrites

    def _agree(self, name: str, chat: Chat, ends: list[list[Message]]) -> bool:
        """Whether a built-in template and the own one write the same: chats with these ends, or prompts without one."""
        template = compiled(built_in(name).source)
        return all(
            self._own.attempt(chat, [*before, *end], prompt=not end)
            == self._own.attempt(chat, [*before, *end], prompt=not end, template=template)
            for before in ([_QUESTION], [_SYSTEM, _QUESTION])
            for end in ends
        )


def _thought_of(message: Message) -> str:
    """Return a thought to compare with, an empty one if the message has one; "" if it has none."""
    content = str(message.get("content"))
    found = [content.partition("</think>")[0].rpartition("<think>")[2]] if "</think>" in content else []
    if len(message) > 2:  # most have a role and a content only
        found += [message[name] for name in REASONING if name in message]
    return "" if not found else "Two and two." if any(str(text).strip() for text in found) else "\n"
