"""Render messages to text by a tokenizer's chat template, or by a built-in template that replaces it.

Templates expect content parts and tool calls in different forms; packer finds out by rendering short chats. Arguments
of calls are an object or, as OpenAI writes them, a JSON string. Some templates accept both. Others raise an error for
one of them, or write it as escaped JSON or in Python's notation.

A template that rewrites earlier answers, such as Qwen3's, hides the ends of answers in chats with several answers. A
built-in template may replace it only if both render chats with one answer, and generation prompts, identically. This
depends on the arguments of a chat (`enable_thinking`), and on whether it has tools, calls or thoughts. Short chats are
therefore compared once for each such kind of chat.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError

from packer.errors import OtherSourceError, PackerError, shortage
from packer.options.option import BUILT_IN_TEMPLATES
from packer.signals import raise_if_interrupted
from packer.sources.meanings import CALLS, REASONING, TEMPLATE_KWARGS, TOOLS
from packer.text.built_in_templates import built_in
from packer.text.conversations import Chat, Message, from_json, record_error
from packer.text.template_environment import as_text, compiled, names_read
from packer.text.tokenizer import Tokenizer

_PARTS = ("\U000f0af7", "\U000f0af8")  # private-use characters, which templates leave unchanged

_DATE = datetime(2024, 7, 26)
"""Date that templates get as today's, so that packs of different days are equal; the default of Llama's template."""

# arguments of transformers' apply_chat_template
_GIVEN = ("messages", "conversation", "tools", "chat_template", "add_generation_prompt", "tokenize")
_NOT_FOR_TEMPLATES = ("continue_final_message", "return_assistant_tokens_mask", "sanitize_control_tokens")
_NOT_FOR_TEXT = {"padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}

# a tool, and arguments of its call, for the short chat that tests how a template writes calls
_LOOK = [{"type": "function", "function": {"name": "look", "description": "?", "parameters": {"type": "object"}}}]
_LOOK_AT = {"city_of": "Cologne"}

# messages and tools of the short chats that compare built-in templates with others
_SYSTEM: Message = {"role": "system", "content": "Be brief. "}
_QUESTION: Message = {"role": "user", "content": " What is\n 2 + 2? "}
_ANSWER: Message = {"role": "assistant", "content": "\n4, of course. "}
_CALL: Message = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
_CALLS: Message = {**_ANSWER, "tool_calls": [_CALL, {**_CALL, "function": {"name": "add", "arguments": '{"a": 2}'}}]}
_RESULT: Message = {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call00001"}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}, "required": ["a"]}
_ADD = {"name": "add", "description": "Addition, naïve.", "parameters": _PARAMETERS, "strict": True}
_TOOLS = [{"type": "function", "function": function} for function in (_ADD, {**_ADD, "name": "sum"})]

_MOST = 256
"""Maximum number of cached results, one per kind of chat; limited because every chat may have different arguments."""


class _CallNeeds(NamedTuple):
    """Requirements of a chat template for writing calls."""

    arguments: type | None  # required type of arguments, dict or str; None if both types work, or neither does
    content: bool  # whether a message with calls must have a `content`, even an empty one
    writes_neither: bool


class Templates:
    """Chat templates of a tokenizer, unless `source` (a template, or the name of a built-in one) replaces them.

    Raises a PackerError if there is no template, if a template is not text, or if the tokenizer lacks tokens of a
    built-in template.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.ends = tokenizer.ends
        """Texts of the tokens at which the model stops."""
        if source is not None and source in BUILT_IN_TEMPLATES:
            template = built_in(source)
            missing = next((token for token in template.special_tokens if not tokenizer.has_token(token)), None)
            if missing is not None:
                raise PackerError(
                    f"--chat-template {source} writes {missing}, which is not a token of {tokenizer.name}: choose the "
                    "template of its own model, or add the token to the tokenizer"
                )
            source = template.source
            self.ends = tuple(sorted({*self.ends, *template.ends}))
        self.sources = _checked(tokenizer.chat_template if source is None else source, tokenizer)
        """All templates by name; `default` is the usual one."""
        self._takes_parts: dict[tuple[str, str], bool] = {}
        self._call_needs: dict[bool, _CallNeeds] = {}  # for chats with tools (True) and without (False)

    def source_of(self, chat: Chat) -> str:
        """Return the template for a chat: `tool_use` for tools, if it exists. Raises a DocumentError if none fits."""
        wanted = "tool_use" if chat.tools is not None and "tool_use" in self.sources else "default"
        if wanted not in self.sources:
            raise record_error(
                f"{self.tokenizer.name} has no chat template 'default' for it (found: {', '.join(self.sources)}); "
                + choice_of(self.tokenizer),
                "template_error",
            )
        return self.sources[wanted]

    def fitted(self, chat: Chat) -> tuple[Chat, bool]:
        """Return (chat with contents and calls in the form that its template needs, whether it omits some calls)."""
        chat = self.with_joined_parts(chat)
        if all(CALLS not in message and "content" in message for message in chat.messages):
            return chat, False
        has_tools = bool(chat.tools)
        needs = self._call_needs[has_tools] = self._call_needs.get(has_tools) or self._find_call_needs(has_tools)
        messages = [_fitted(message, needs, chat.name_of(at)) for at, message in enumerate(chat.messages)]
        partly = {
            weight: {at: _fitted(message, needs, chat.name_of(at)) for at, message in copies.items()}
            for weight, copies in chat.partly.items()
        }
        leaves_out = needs.writes_neither and any(message.get(CALLS) for message in messages)
        return replace(chat, messages=messages, partly=partly), leaves_out

    def with_joined_parts(self, chat: Chat) -> Chat:
        """Join the parts of contents if the template accepts only text: ["What is", " 2?"] becomes "What is 2?".

        Parts are not joined if the template accepts parts for their role.
        """
        if not any(isinstance(message.get("content"), list) for message in chat.messages):
            return chat
        source = self.source_of(chat)
        messages = []
        for message in chat.messages:
            content, key = message.get("content"), (source, message["role"])
            if isinstance(content, list):
                if key not in self._takes_parts:
                    self._takes_parts[key] = self._writes_parts(*key)
                if not self._takes_parts[key]:
                    message = {**message, "content": "".join(part["text"] for part in content)}
            messages.append(message)
        return replace(chat, messages=messages)

    def _writes_parts(self, source: str, role: str) -> bool:
        """Whether a template writes a role's parts; also True if it writes neither the parts nor their joined text."""
        try:
            template = compiled(source)
        except TemplateError:  # reported when the chat is rendered
            return True
        first, second = _PARTS
        before: list[Message] = [] if role in ("system", "user") else [{"role": "user", "content": "?"}]
        after = [{"role": "user", "content": "?"}] if role == "system" else []
        if role == "tool":
            function = {"name": "find", "arguments": {}}
            call = {"id": "call00001", "type": "function", "function": function}
            before.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found = []
        for content in ([{"type": "text", "text": part} for part in _PARTS], first + second):
            message = {"role": role, "content": content, "tool_call_id": "call00001", "name": "find"}
            chat = Chat([*before, message, *after])
            found.append(self.attempt(chat, chat.messages, template=template))
        parts, joined = found
        if isinstance(parts, Exception):
            return False
        between = parts.partition(first)[2].partition(second)
        return (bool(between[1]) and "text" not in between[0]) or isinstance(joined, Exception) or first not in joined

    def unread(self, chat: Chat) -> list[str]:
        """Return the names of a chat's arguments that its template does not read. Tools count as an argument."""
        if not chat.kwargs and chat.tools is None:
            return []
        given = [*_arguments(chat), *([TOOLS] if chat.tools is not None else [])]
        return [name for name in given if name not in names_read(self.source_of(chat))]

    def _find_call_needs(self, has_tools: bool) -> _CallNeeds:
        """Find out, by rendering short chats, in which form the templates need calls."""
        tools = _LOOK if has_tools else None
        texts, content = [], {"content": ""}
        for arguments, beside in ((_LOOK_AT, content), (json.dumps(_LOOK_AT), content), (_LOOK_AT, {})):
            call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
            chat = Chat([{"role": "user", "content": "?"}, {"role": "assistant", **beside, CALLS: [call]}], tools=tools)
            text = self.attempt(chat, chat.messages)
            texts.append(text if isinstance(text, str) else None)
        escaped, python = '\\"city_of', str(_LOOK_AT)
        objects, strings = (
            text is not None and "Cologne" in text and escaped not in text and python not in text for text in texts[:2]
        )
        kind = None if objects == strings else dict if objects else str
        return _CallNeeds(kind, texts[2] is None, not (objects or strings) and None not in texts[:2])

    def render(self, chat: Chat, count: int | None = None, *, prompt: bool = False, marked: bool = False) -> str:
        """Render the first `count` messages of a chat, by default all. Raises a DocumentError if the template fails.

        Errors name the last message, or with `prompt`, the message to be generated. With `marked`, marks are written
        around {% generation %} tags.
        """
        text = self.attempt(chat, chat.messages[:count], prompt=prompt, marked=marked)
        if isinstance(text, Exception):
            where = "it" if count is None else f"up to {chat.name_of(count - (not prompt))}"
            reason = next(iter(str(text).splitlines()), "")
            what = f"the chat template does not render {where}: {type(text).__name__}"
            raise record_error(f"{what} {reason}", "template_error") from text
        return text

    def attempt(
        self,
        chat: Chat,
        messages: Sequence[Message],
        *,
        prompt: bool = False,
        template: Template | None = None,
        marked: bool = False,
    ) -> str | Exception:
        """Render any messages with the tools and arguments of a chat. Returns the exception if the template raises one.

        `template` replaces the template of the chat.
        """
        raise_if_interrupted()
        source = "" if template is not None else self.source_of(chat)
        try:
            rendered = (template or compiled(source, marked=marked)).render(
                {"documents": None, **self.tokenizer.special_tokens, **_arguments(chat)},
                messages=messages,
                tools=chat.tools,
                add_generation_prompt=prompt,
                strftime_now=_strftime_now,
            )
            return as_text(rendered)
        except Exception as error:  # templates raise any exception
            if shortage(error) is not None:
                raise
            return error


def _fitted(message: Message, needs: _CallNeeds, where: str) -> Message:
    if needs.content and "content" not in message:
        message = {**message, "content": ""}
    if CALLS in message:
        message = {**message, CALLS: [_fitted_call(call, needs, where) for call in message[CALLS]]}
    return message


def _fitted_call(call: dict[str, Any], needs: _CallNeeds, where: str) -> dict[str, Any]:
    """Return a call with arguments as a template needs them. Missing arguments, null and "" become an empty object."""
    if isinstance(call.get("function"), dict):
        return {**call, "function": _fitted_call(call["function"], needs, where)}
    arguments = call.get("arguments") or {}
    if needs.arguments is dict and isinstance(arguments, str):
        arguments = from_json(arguments, f"'arguments' of a call in {where}")
        if not isinstance(arguments, dict):
            raise record_error(f"'arguments' of a call in {where} is no object: {arguments!r:.60}")
    elif needs.arguments is str and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments} if "name" in call else call


def _strftime_now(format: str) -> str:  # templates may name the argument
    return _DATE.strftime(format)


def _arguments(chat: Chat) -> dict[str, Any]:
    """Return the arguments of a chat for its template.

    Parameters of `apply_chat_template` itself are left out if they do not change the text. Null is left out as well: in
    formats such as Parquet, all records have the same fields, and null marks a missing argument.
    """
    given = {name: value for name, value in chat.kwargs.items() if value is not None}
    found = {name: value for name, value in given.items() if name not in _NOT_FOR_TEXT}
    refused = next((name for name in _NOT_FOR_TEMPLATES if found.pop(name, None)), None)
    if refused is None:
        refused = next((name for name in _GIVEN if name in found), None)
    if refused is not None:
        raise TypeError(f"'{TEMPLATE_KWARGS}' has {refused}, which is not an argument of a template; remove it")
    return found


def fitting(tokenizer: Tokenizer) -> list[str]:
    """Return the names of the built-in templates whose special tokens a tokenizer has."""
    return [name for name in BUILT_IN_TEMPLATES if all(map(tokenizer.has_token, built_in(name).special_tokens))]


def choice_of(tokenizer: Tokenizer) -> str:
    """Return the remedy if a chat template is missing."""
    names = fitting(tokenizer)
    if not names:
        return "give one by --chat-template FILE"
    return f"choose a template by --chat-template ({', '.join(names)}, or a file)"


def _checked(templates: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the chat templates (one or several) of a tokenizer by name. Raises a PackerError if one is not text."""
    name = tokenizer.name
    if not templates and (templates is None or isinstance(templates, str | dict)):
        raise OtherSourceError(f"{name} has no chat template", choice_of(tokenizer))
    by_name = templates if isinstance(templates, dict) else {"default": templates}
    for which, template in by_name.items():
        is_text = isinstance(which, str) and isinstance(template, str) and bool(template)
        if not is_text or template != template.encode(errors="ignore").decode():  # encode drops lone surrogates
            raise PackerError(
                f"{name} has a chat template that is not text: {str({which: template})[:60]!a} (chat_template in "
                "tokenizer_config.json); fix it, or give another by --chat-template FILE"
            )
    return dict(by_name)


class StandIns:
    """Built-in templates that may replace the templates in `own`."""

    def __init__(self, own: Templates) -> None:
        self._own = own
        self._names = fitting(own.tokenizer)
        sources = [*own.sources.values(), *(built_in(name).source for name in self._names)]
        self._read = frozenset().union(*map(names_read, sources))
        self._found: dict[bytes, tuple[str | None, bool]] = {}

    def of(self, chat: Chat) -> str | None:
        """Return the built-in template that replaces `own` for a chat, because `own` rewrites earlier answers.

        Returns None if it does not rewrite answers, if there are several templates, or if no built-in template renders
        the same text.
        """
        name, rewrites = self._likeness(chat)
        return name if rewrites and self._own.sources.keys() == {"default"} else None

    def choice(self, chat: Chat) -> str:
        """Return the remedy for an unsuitable template; it may name a built-in template that renders the same text."""
        name, _ = self._likeness(chat)
        if name is not None:
            return f"choose --chat-template {name}, which renders chats with one answer alike (or a file)"
        if not self._names:
            return choice_of(self._own.tokenizer)
        return f"choose a different --chat-template ({', '.join(self._names)}, or a file)"

    def _likeness(self, chat: Chat) -> tuple[str | None, bool]:
        """Return (built-in template that renders the same text or None, whether `own` rewrites earlier answers)."""
        arguments = {name: value for name, value in chat.kwargs.items() if name in self._read}
        thought = max((_thought_of(message) for message in chat.messages), default="")
        calls = any("tool_calls" in message or message["role"] == "tool" for message in chat.messages)
        key = pickle.dumps((arguments, chat.tools is None, thought, calls))
        if key not in self._found:
            if len(self._found) >= _MOST:
                self._found.clear()
            short = Chat([], tools=None if chat.tools is None else _TOOLS, kwargs=arguments)
            self._found[key] = self._compare(short, thought, calls=calls or chat.tools is not None)
        return self._found[key]

    def _compare(self, chat: Chat, thought: str, *, calls: bool) -> tuple[str | None, bool]:
        """Compare `own` with built-in templates on answers with a `thought` (unless empty) and calls (if `calls`)."""
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
        """Whether both templates render chats with each of `ends` identically. An empty end asks for a prompt."""
        template = compiled(built_in(name).source)
        return all(
            self._own.attempt(chat, [*before, *end], prompt=not end)
            == self._own.attempt(chat, [*before, *end], prompt=not end, template=template)
            for before in ([_QUESTION], [_SYSTEM, _QUESTION])
            for end in ends
        )


def _thought_of(message: Message) -> str:
    """Return the thought for a short chat: "" if the message has none, a newline if its thought is empty."""
    content = message.get("content", "")
    content = str(content) if isinstance(content, list) else content
    found = [content.partition("</think>")[0].rpartition("<think>")[2]] if "</think>" in content else []
    found += [message[name] for name in REASONING if name in message]
    return "" if not found else "Two and two." if any(str(text).strip() for text in found) else "\n"
