r"""What a chat template appends behind the last message: a generation prompt on request, and parts of it always.

A prompt that is appended without a request must not be taken for the end of the last turn. In

    {% for message in messages %}...{% endfor %}<|im_start|>assistant\n{% if add_generation_prompt %}<think>{% endif %}

`<|im_start|>assistant\n` follows an answer at the end, does not follow one that a question comes after, and is part of
the prompt. Short chats with the tools and arguments of the chat in question show that, as prompts depend on these
(`enable_thinking`). Where the syntax shows what comes after the loop over messages (loops.py), that is compared, too:
a tail of `<|im_start|>` alone is how a question begins as well.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from typing import Any

from packer.text.loops import END, with_ends, without_ends
from packer.text.records import Message
from packer.text.rendering import Chat, Rendering, Templates

_MOST = 256
_ANSWER, _QUESTION = "\U000f5afa", "\U000f5af9"  # private-use characters, which no template changes
_WORD = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPrompt:
    """What a template appends behind the last message."""

    requested: str
    """What it writes behind a question on request and otherwise does not; "" if nothing or unknown."""
    always: bool | None
    """Whether it appends a part of the prompt without a request, too; None if unknown."""


class GenerationPrompts:
    """The generation prompts of chat templates, found once for all chats with the same tools and arguments."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._found: dict[bytes, GenerationPrompt] = {}

    def of(self, chat: Chat) -> GenerationPrompt:
        """The generation prompt that a chat's template writes with its tools and arguments."""
        key = pickle.dumps((self._templates.source_of(chat), chat.tools, chat.kwargs, _holds_lists(chat)))
        if key not in self._found:
            if len(self._found) >= _MOST:  # every chat may have tools of its own
                self._found.clear()
            self._found[key] = self._find(chat)
        return self._found[key]

    def _find(self, chat: Chat) -> GenerationPrompt:
        question, answer = question_for(chat, _QUESTION), {**question_for(chat, _ANSWER), "role": "assistant"}
        asked = self._render(chat, [question])
        given = self._render(chat, [question], prompt=True)
        answered = self._render(chat, [question, answer])
        followed = self._render(chat, [question, answer, question])
        plain, prompted = without_ends(asked), without_ends(given)
        return GenerationPrompt(
            requested=prompted[_common(plain, prompted) :] if plain else "",
            always=_shares_tail(answered, given) or _shares_words(answered, followed, given),
        )

    def _render(self, chat: Chat, messages: list[Message], *, prompt: bool = False) -> str:
        """Render messages with the tools and arguments of a chat; "" where the template refuses them."""
        (text,) = self._templates.attempt([Rendering(chat, messages)], prompt=prompt, change=with_ends)
        return text if isinstance(text, str) else ""


def question_for(chat: Chat, content: str = "?") -> Message:
    """A user's message whose content has the form that a chat's have: text, or a list of parts."""
    listed: Any = [{"type": "text", "text": content}]
    return {"role": "user", "content": listed if _holds_lists(chat) else content}


def _holds_lists(chat: Chat) -> bool:
    return any(isinstance(message.get("content"), list) for message in chat.messages)


def _shares_tail(answered: str, given: str) -> bool:
    """Whether what comes after the loop over messages, where that is known, is a part of the prompt."""
    if END not in answered or END not in given:
        return False
    tail, prompt = answered.rpartition(END)[2].strip(), given.rpartition(END)[2]
    return bool(tail) and (tail in prompt or bool(_words(tail) & _words(prompt)))


def _shares_words(answered: str, followed: str, given: str) -> bool | None:
    """Whether something comes after the last answer, not before another question, that is in the prompt.

    Args:
        answered: a question and an answer.
        followed: the same and another question.
        given: a question and the prompt.

    Returns:
        None where the template refuses one of these, or leaves out contents.
    """
    if _ANSWER not in answered or _ANSWER not in followed or _QUESTION not in given:
        return None
    between, _, _ = followed.rpartition(_ANSWER)[2].partition(_QUESTION)
    last = _words(answered.rpartition(_ANSWER)[2]) - _words(between)
    return bool(last & _words(given.rpartition(_QUESTION)[2]))


def _words(text: str) -> set[str]:
    """Special tokens and words: "<|im_end|>[/INST] Assistant:" holds <|im_end|>, [/INST] and Assistant."""
    return set(_WORD.findall(text))


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
