r"""What a chat template appends after the last message: a generation prompt on request, and parts of it always.

A prompt that is appended without a request must not be taken for the end of the last turn. In

    {% for message in messages %}...{% endfor %}<|im_start|>assistant\n{% if add_generation_prompt %}<think>{% endif %}

the text `<|im_start|>assistant\n` follows an answer at the end, does not follow an answer before a question, and is
part of the prompt. Short chats show that; they have the tools and arguments of the chat in question, because prompts
depend on these (`enable_thinking`). Renderings alone cannot distinguish a tail of `<|im_start|>` from the beginning of
a question; if the template's syntax shows what comes after the loop over messages, that is compared, too.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from typing import Any

from packer.text.conversations import Chat, Message
from packer.text.message_ends.message_marks import text_behind_messages, with_end_marks, without_end_marks
from packer.text.rendering import Templates
from packer.text.tokenizer import shared_length

_MOST = 256
_ANSWER, _QUESTION = "\U000f5afa", "\U000f5af9"  # private-use characters, which no template changes
_WORD = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPrompt:
    """What a template appends after the last message."""

    requested: str
    """What it writes after a question only on request; "" if nothing or unknown."""
    always: bool | None
    """Whether it appends a part of the prompt without a request, too; None if unknown."""
    next_question: str
    """What follows the rendering of a question and an answer if another question does; "" if unknown."""


class GenerationPrompts:
    """The generation prompts of chat templates, found once for all chats with the same tools and arguments."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._found: dict[bytes, GenerationPrompt] = {}

    def of(self, chat: Chat) -> GenerationPrompt:
        """Return the generation prompt that a chat's template writes with the chat's tools and arguments."""
        key = pickle.dumps((self._templates.source_of(chat), chat.tools, chat.kwargs, _holds_lists(chat)))
        if key not in self._found:
            if len(self._found) >= _MOST:  # every chat may have tools of its own
                self._found.clear()
            self._found[key] = self._find(chat)
        return self._found[key]

    def _find(self, chat: Chat) -> GenerationPrompt:
        question, answer = question_for(chat, _QUESTION), {**question_for(chat, _ANSWER), "role": "assistant"}
        asked = self._render(chat, [question])
        prompted = self._render(chat, [question], prompt=True)
        answered = self._render(chat, [question, answer])
        followed = self._render(chat, [question, answer, question])
        plain, whole = without_end_marks(asked), without_end_marks(prompted)
        two, three = without_end_marks(answered), without_end_marks(followed)
        return GenerationPrompt(
            requested=whole[shared_length(plain, whole) :] if plain else "",
            always=_shares_tail(answered, prompted) or _shares_words(answered, followed, prompted),
            next_question=three.removeprefix(two) if three.startswith(two) and two else "",
        )

    def _render(self, chat: Chat, messages: list[Message], *, prompt: bool = False) -> str:
        """Render messages with the tools and arguments of a chat; "" if the template refuses them."""
        copy = with_end_marks(self._templates.source_of(chat))
        text = self._templates.attempt(chat, messages, prompt=prompt, template=copy)
        return text if isinstance(text, str) else ""


def question_for(chat: Chat, content: str = "?") -> Message:
    """Make a user's message whose content is text or a list of parts, as in the chat."""
    listed: Any = [{"type": "text", "text": content}]
    return {"role": "user", "content": listed if _holds_lists(chat) else content}


def _holds_lists(chat: Chat) -> bool:
    return any(isinstance(message.get("content"), list) for message in chat.messages)


def _shares_tail(answered: str, prompted: str) -> bool:
    """Whether what comes after the loop over messages, if that is known, is a part of the prompt."""
    tail, prompt = (text_behind_messages(text) for text in (answered, prompted))
    if tail is None or prompt is None or not tail.strip():
        return False
    return tail.strip() in prompt or bool(_words(tail) & _words(prompt))


def _shares_words(answered: str, followed: str, prompted: str) -> bool | None:
    """Whether something that is in the prompt comes after the last answer, and not before another question.

    None if the template refuses one of these renderings, or leaves out contents.
    """
    if _ANSWER not in answered or _ANSWER not in followed or _QUESTION not in prompted:
        return None
    between, _, _ = followed.rpartition(_ANSWER)[2].partition(_QUESTION)
    last = _words(answered.rpartition(_ANSWER)[2]) - _words(between)
    return bool(last & _words(prompted.rpartition(_QUESTION)[2]))


def _words(text: str) -> set[str]:
    """Special tokens and words: "<|im_end|>[/INST] Assistant:" holds <|im_end|>, [/INST] and Assistant."""
    return set(_WORD.findall(text))
