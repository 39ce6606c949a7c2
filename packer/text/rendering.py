"""Messages to text, by a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.errors import PackerError
from packer.system_errors import shortage
from packer.text.records import Message, TextError, is_utf8

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Change = Callable[[str], str | None]
"""Makes another template of one, or None: it stays as it is."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to render; what is trained on begins at message `first`, and leaves out those `masked`."""

    row: int
    messages: list[Message]
    first: int = 0
    tools: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    masked: frozenset[int] = frozenset()


class Rendering(NamedTuple):
    """Some messages of a chat, to be rendered; `turn` is the one that it is for, -1 for the whole."""

    chat: Chat
    messages: list[Message]
    turn: int = -1


@dataclass(frozen=True, slots=True)
class Rendered:
    """A whole conversation as text."""

    chat: Chat
    text: str
    ends: list[int] | None = None
    """Where in it the renderings of its first message, its first two, ... end; None where only these tell."""
    marked: list[tuple[int, int]] | None = None
    """What the template marks as the assistant's; None where it marks nothing or only another rendering tells."""


class Templates:
    """A tokenizer's chat templates, or another in their place.

    Raises:
        PackerError: there is none, or it is no text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._name = tokenizer.name_or_path or "the tokenizer"
        self.sources = _checked(tokenizer.chat_template if source is None else source, self._name)
        """Every template there is, by name; `default` where there is one."""

    def source_of(self, chat: Chat) -> str:
        """The template that is for a chat.

        Raises:
            TextError: there is none for it.
        """
        wanted = "tool_use" if chat.tools is not None and "tool_use" in self.sources else "default"
        if wanted not in self.sources:
            raise TextError(
                chat.row,
                f"{self._name} has no chat template 'default' for it (found: {', '.join(self.sources)}); "
                "give one by --chat-template FILE",
            )
        return self.sources[wanted]

    def render(
        self, renderings: Sequence[Rendering], *, prompt: bool = False, change: Change | None = None
    ) -> list[str]:
        """Render messages, with the generation prompt or without, maybe by a changed template.

        Raises:
            TextError: the template refuses some.
        """
        texts = []
        for (chat, _, turn), text in zip(
            renderings, self.attempt(renderings, prompt=prompt, change=change), strict=True
        ):
            if isinstance(text, Exception):
                where = f"up to {name_of(chat, turn)}: " if turn >= 0 else ""
                reason = next(iter(str(text).splitlines()), "")
                raise TextError(
                    chat.row, f"the chat template does not render {where or 'it: '}{type(text).__name__} {reason}"
                )
            texts.append(text)
        return texts

    def attempt(
        self, renderings: Sequence[Rendering], *, prompt: bool = False, change: Change | None = None
    ) -> Iterator[str | Exception]:
        """Yield the text of each rendering, or what the template raises."""
        plain = [rendering for rendering in renderings if not rendering.chat.tools and not rendering.chat.kwargs]
        if len(plain) == len(renderings) > 1:
            try:
                texts = self._apply(plain, [rendering.messages for rendering in plain], prompt=prompt, change=change)
            except Exception:  # some one of them; told below
                pass
            else:
                yield from texts
                return
        for rendering in renderings:
            try:
                (text,) = self._apply([rendering], [rendering.messages], prompt=prompt, change=change)
            except Exception as error:  # whatever a template does
                if shortage(error) is not None:
                    raise
                yield error
            else:
                yield text

    def _apply(
        self,
        renderings: Sequence[Rendering],
        conversations: list[list[Message]],
        *,
        prompt: bool,
        change: Change | None,
    ) -> list[str]:
        """Render conversations that share the tools and arguments of the first."""
        chat = renderings[0].chat
        source = self.source_of(chat)
        render: Any = self._tokenizer.apply_chat_template  # typed for everything it may return
        rendered: list[str] = render(
            conversations,
            tools=chat.tools,
            chat_template=(change and change(source)) or source,
            add_generation_prompt=prompt,
            tokenize=False,
            **chat.kwargs,
        )
        return rendered


def _checked(templates: Any, name: str) -> dict[str, str]:
    """Chat templates by name, as a tokenizer has one or several.

    Raises:
        PackerError: there is none, or one is no text.
    """
    if not templates and (templates is None or isinstance(templates, str | dict)):
        raise PackerError(f"{name} has no chat template; give one by --chat-template FILE")
    by_name = templates if isinstance(templates, dict) else {"default": templates}
    for which, template in by_name.items():
        if not (isinstance(which, str) and isinstance(template, str) and template and is_utf8(template)):
            raise PackerError(
                f"{name} has a chat template that is no text: {str({which: template})[:60]!a} (chat_template in "
                "tokenizer_config.json); mend it, or give another by --chat-template FILE"
            )
    return dict(by_name)


def name_of(chat: Chat, turn: int) -> str:
    """A message, for an error."""
    return f"message {turn} ({chat.messages[turn]['role']})" if turn < len(chat.messages) else "the completion"
