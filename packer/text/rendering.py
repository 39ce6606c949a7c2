"""Messages to text, by a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError

from packer.errors import OtherSourceError, PackerError, shortage
from packer.options.option import BUILT_IN_TEMPLATES
from packer.signals import raise_if_interrupted
from packer.sources.meanings import TEMPLATE_KWARGS, TOOLS
from packer.text.built_in_templates import built_in
from packer.text.conversations import Chat, Message, record_error
from packer.text.template_environment import compiled, names_read
from packer.text.tokenizer import Tokenizer

_PARTS = ("\U000f0af7", "\U000f0af8")  # private-use characters, which no template changes

_DATE = datetime(2024, 7, 26)
"""Date that templates write as today's, so that packs of different days are equal; Llama's write it by default."""

# arguments of transformers' apply_chat_template
_GIVEN = ("messages", "conversation", "tools", "chat_template", "add_generation_prompt", "tokenize")
_NOT_FOR_TEMPLATES = ("continue_final_message", "return_assistant_tokens_mask", "sanitize_control_tokens")
_NOT_FOR_TEXT = {"padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}


class Templates:
    """Chat templates of a tokenizer, or in their place `source`: a template, or the name of a built-in one.

    A PackerError is raised if there is no template, one is not text, or a built-in one needs tokens that the tokenizer
    lacks.
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

    def with_joined_parts(self, chat: Chat) -> Chat:
        """Join the parts of contents where the template takes text only: ["What is", " 2?"] is "What is 2?".

        A template that writes the parts of a role's messages itself gets them as they are.
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
        """Whether a template writes the parts of a role's messages, or writes neither these nor their joined text."""
        try:
            template = compiled(source)
        except TemplateError:  # which rendering reports
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
        """Return the names of a chat's arguments that its template does not read; its tools are an argument, too."""
        if not chat.kwargs and chat.tools is None:
            return []
        given = [*_arguments(chat), *([TOOLS] if chat.tools is not None else [])]
        return [name for name in given if name not in names_read(self.source_of(chat))]

    def render(self, chat: Chat, count: int | None = None, *, prompt: bool = False, marked: bool = False) -> str:
        """Render the first `count` messages of a chat, by default all, or raise a DocumentError.

        In errors, a rendering is named after its last message, or after the message that a generation prompt asks for.
        `marked` writes marks around what {% generation %} encloses.
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
        """Render any messages with the tools and arguments of a chat; return what the template raises.

        `template` takes the place of the chat's own.
        """
        raise_if_interrupted()
        source = "" if template is not None else self.source_of(chat)
        try:
            return (template or compiled(source, marked=marked)).render(
                {"documents": None, **self.tokenizer.special_tokens, **_arguments(chat)},
                messages=messages,
                tools=chat.tools,
                add_generation_prompt=prompt,
                strftime_now=_strftime_now,
            )
        except Exception as error:  # templates raise anything
            if shortage(error) is not None:
                raise
            return error


def _strftime_now(format: str) -> str:  # templates may name the argument
    return _DATE.strftime(format)


def _arguments(chat: Chat) -> dict[str, Any]:
    """Return the arguments of a chat that are for its template.

    `apply_chat_template` takes some for itself. Those that do not change the text are left out, and so is null, which
    stands for a missing argument where all records have the same ones, as in Parquet.
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
    """Chat templates by name; a tokenizer has one or several."""
    name = tokenizer.name
    if not templates and (templates is None or isinstance(templates, str | dict)):
        raise OtherSourceError(f"{name} has no chat template", choice_of(tokenizer))
    by_name = templates if isinstance(templates, dict) else {"default": templates}
    for which, template in by_name.items():
        is_text = isinstance(which, str) and isinstance(template, str) and bool(template)
        if not is_text or template != template.encode(errors="ignore").decode():  # which leaves out lone surrogates
            raise PackerError(
                f"{name} has a chat template that is not text: {str({which: template})[:60]!a} (chat_template in "
                "tokenizer_config.json); fix it, or give another by --chat-template FILE"
            )
    return dict(by_name)
