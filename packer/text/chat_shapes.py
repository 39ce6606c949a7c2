r"""Locate the trained characters of a chat once for all chats of its shape.

Most templates write contents as they are. If chats have the same roles, their renderings differ only in the contents. A
chat is therefore rendered with placeholders, and its answers are located. Contents then take their places:

    <|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n

Placeholders record what the template searches contents for. If a content has such a text, or a special token, its chat
is rendered by itself. White space at the ends of contents belongs to the shape, because templates may strip it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

from packer.sources.documents import DocumentError
from packer.text.conversations import Chat
from packer.text.template_environment import MARK_BYTES, STANDING_IN, Placeholder
from packer.text.tokens import MarkedText

_MOST = 1 << 10
"""Maximum number of shapes, and of messages in them. Other chats are rendered by themselves."""
_FIRST, _CORE = 0x100000, "\U00100000"  # the first of the characters that stand for contents


class _Shape(NamedTuple):
    """Chats with the same roles, and the same white space at the ends of contents."""

    located: MarkedText
    """The text with a character for each content, and positions in it."""
    parts: list[str]
    """The text, cut around contents."""
    numbers: list[int]
    """Numbers of the contents in the text."""
    places: list[tuple[int, int]]
    """For each bound of a trained span, and then for each start of an exchange: (position in the text without contents,
    number of contents before it)."""
    absent: re.Pattern[str]
    """Texts that contents do not have."""

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
        return self.located._replace(text="".join(parts), trained=trained, exchange_starts=starts, messages=())


class Shapes:
    """Shapes of chats. `compared` returns the texts that are compared with a chat's text when answers are located."""

    def __init__(self, compared: Callable[[Chat], set[str]]) -> None:
        self._compared = compared
        self._found: dict[tuple[Any, ...], _Shape | None] = {}

    def located(self, chat: Chat, options: tuple[Any, ...], locate: Callable[..., MarkedText]) -> MarkedText | None:
        """Return `locate(chat, *options)`, but without `messages`, by the shape of the chat; None if it does not tell.

        Messages must have only roles and contents. Their contents have no special tokens.
        """
        contents: list[Any] = [message.get("content") for message in chat.messages if len(message) == 2]
        if {*map(type, contents)} != {str} or len(contents) < len(chat.messages) or len(contents) > _MOST:
            return None
        if chat.tools is not None or chat.kwargs or chat.weights or chat.partly:
            return None
        cores = [content.strip() for content in contents]
        framed = [one.replace(core, _CORE, 1) if core else one for one, core in zip(contents, cores, strict=True)]
        messages = [{**message, "content": one} for message, one in zip(chat.messages, framed, strict=True)]
        fields = tuple([tuple(message.items()) for message in messages])  # in their order: templates may write them all
        key = fields, chat.first, chat.masked, chat.required, options
        if key not in self._found and len(self._found) < _MOST:
            self._found[key] = self._shape(replace(chat, messages=messages), lambda one: locate(one, *options))
        shape, joined = self._found.get(key), "".join(contents)
        if shape is None or shape.absent.search(joined) or (not joined.isascii() and MARK_BYTES in joined.encode()):
            return None
        return shape.filled(cores)

    def _shape(self, chat: Chat, locate: Callable[[Chat], MarkedText]) -> _Shape | None:
        """Return the shape of a chat with `_CORE` in its contents; None if contents may change where answers are."""
        absent = set[str]()
        unknown = [at for at, message in enumerate(chat.messages) if _CORE in message["content"]]
        for at in unknown:
            text = chat.messages[at]["content"].replace(_CORE, chr(_FIRST + at))
            chat.messages[at]["content"] = Placeholder(text, absent)
        try:
            located, compared = locate(chat), self._compared(chat)
        except (DocumentError, ValueError):
            return None
        texts, characters = STANDING_IN.split(located.text), [*STANDING_IN.finditer(located.text)]
        numbers = [ord(found[0]) - _FIRST for found in characters]
        may_overlap = any(_may_overlap(text, one) for text in {*texts} for one in compared)
        may_overlap |= any(text in one[1:-1] for text in {*texts[1:-1]} for one in compared)  # from content to content
        if "" in absent or may_overlap or {*numbers} != {*unknown}:
            return None
        places = [*chain.from_iterable(located.trained or ()), *(located.exchange_starts or ())]
        counts = [bisect_left(characters, place, key=re.Match.start) for place in places]
        return _Shape(
            located,
            [*chain.from_iterable((text, "") for text in texts)][:-1],
            numbers,
            [(place - count, count) for place, count in zip(places, counts, strict=True)],
            re.compile("|".join(map(re.escape, sorted(absent | compared))) or "(?!)"),
        )


def _may_overlap(text: str, other: str) -> bool:
    """Whether another text may lie partly in a text before or after a content, and partly in the content."""
    return any(text.endswith(other[:size]) or text.startswith(other[size:]) for size in range(1, len(other)))
