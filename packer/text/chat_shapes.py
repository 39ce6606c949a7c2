r"""Locate the trained characters of a chat once for all chats of its shape.

Most templates write contents as they are. If chats have the same roles, their renderings differ only in the contents. A
chat is therefore rendered with placeholders, and its answers are located. Contents then take their places:

    <|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n

Placeholders record what the template searches contents for. If a content has such a text, or a special token, its chat
is rendered by itself. White space at the ends of contents belongs to the shape, because templates may strip it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

from jinja2 import TemplateError

from packer.sources.documents import DocumentError
from packer.text.conversations import Chat
from packer.text.template_environment import Placeholder
from packer.text.tokens import MarkedText

_MOST = 1 << 8
"""Maximum number of shapes, and of messages in them. Other chats are rendered by themselves."""
_FIRST, _CORE = 0x100000, "\U00100000"  # the first of the private-use characters that stand for contents
_STANDING_IN = re.compile("([\U00100000-\U0010ffff])")
_ALONE = list["_Document"](), re.compile("")  # shape of chats that are rendered by themselves


class _Document(NamedTuple):
    """A document of all chats of a shape."""

    located: MarkedText
    """The document with a character for each content, and positions in its text."""
    parts: list[str]
    """The text, cut around contents."""
    numbers: list[int]
    """Numbers of the contents in the text."""
    places: list[tuple[int, int]]
    """For each bound of a trained span, and then for each start of an exchange: (position in the text without contents,
    number of contents before it)."""

    def filled(self, contents: Sequence[str]) -> MarkedText:
        """Put contents, without white space at their ends, in their places."""
        parts, inside = [*self.parts], [contents[number] for number in self.numbers]
        parts[1::2] = inside
        shifts = [0, *accumulate(map(len, inside))]
        places = [place + shifts[count] for place, count in self.places]
        trained, starts = self.located.trained, self.located.exchange_starts
        if trained is not None:
            trained = [*zip(places[: 2 * len(trained) : 2], places[1::2], strict=False)]
        if starts is not None:
            starts = places[len(places) - len(starts) :]
        return MarkedText("".join(parts), trained, starts, counted=self.located.counted)


class Shapes:
    """Shapes of chats: roles, and white space at the ends of contents.

    `locate` renders and locates the documents of a chat. `compared` returns the texts that it compares with them.
    """

    def __init__(self, locate: Callable[..., list[MarkedText]], compared: Callable[[Chat], set[str]]) -> None:
        self._locate, self._compared = locate, compared
        self._found: dict[tuple[Any, ...], tuple[list[_Document], re.Pattern[str]]] = {}
        """(documents of all chats of a shape, texts that their contents do not have)."""

    def located(self, chat: Chat, *options: Any) -> list[MarkedText] | None:
        """Locate the documents of a chat by its shape, without `messages`; None if its shape does not tell.

        Their contents have no special tokens.
        """
        contents = chat.contents
        if contents is None or chat.tools is not None or chat.kwargs or len(contents) > _MOST:
            return None
        cores = [*map(str.strip, contents)]
        framed = [_CORE] * len(cores)
        if cores != contents or "" in cores:
            framed = [one.replace(core, _CORE, 1) if core else one for one, core in zip(contents, cores, strict=True)]
        roles = [message["role"] for message in chat.messages]
        names = chain.from_iterable(chat.messages)  # templates may write all fields, in their order
        key = (*roles, *names, *framed), chat.first, options
        if key not in self._found and len(self._found) < _MOST:
            self._found[key] = self._shape(chat, framed, options)
        documents, absent = self._found.get(key, _ALONE)
        return None if absent.search("".join(contents)) else [one.filled(cores) for one in documents]

    def _shape(
        self, chat: Chat, framed: list[str], options: tuple[Any, ...]
    ) -> tuple[list[_Document], re.Pattern[str]]:
        """Return the shape of chats whose contents are `framed`, with any texts in the places of `_CORE`."""
        absent, messages = self._compared(chat), [{**message} for message in chat.messages]
        compared, unknown = [*absent], {at for at, text in enumerate(framed) if _CORE in text}
        for at in unknown:
            messages[at]["content"] = Placeholder(framed[at].replace(_CORE, chr(_FIRST + at)), absent)
        try:
            documents = [*map(_document, self._locate(replace(chat, messages=messages), *options))]
        except (DocumentError, TemplateError):
            return _ALONE
        texts = {text for document in documents for text in document.parts[::2]}
        # otherwise, the template itself may write these characters
        are_once = all(len({*one.numbers} & unknown) == len(one.numbers) for one in documents)
        if not are_once or any(_may_overlap(text, other) for text in texts for other in compared):
            return _ALONE
        return documents, re.compile("|".join(map(re.escape, sorted(absent))))


def _document(located: MarkedText) -> _Document:
    """Cut a document around the characters that stand for contents."""
    parts = _STANDING_IN.split(located.text)
    places = [*chain.from_iterable(located.trained or ()), *(located.exchange_starts or ())]
    counts = [len(_STANDING_IN.findall(located.text, 0, place)) for place in places]
    shifted = [(place - count, count) for place, count in zip(places, counts, strict=True)]
    return _Document(located, parts, [ord(one) - _FIRST for one in parts[1::2]], shifted)


def _may_overlap(text: str, other: str) -> bool:
    """Whether another text may lie partly in a text before or after a content, and partly in the content."""
    return text in other[1:-1] or any(
        text.endswith(other[:size]) or text.startswith(other[size:]) for size in range(1, len(other))
    )
