r"""What a chat template writes where a turn ends: generation prompts, and the tokens at which a model stops.

A generation prompt is appended after the last message on request, and parts of it always in some templates. These must
not be taken for the end of the last turn. In

    {% for message in messages %}...{% endfor %}<|im_start|>assistant\n{% if add_generation_prompt %}<think>{% endif %}

the text `<|im_start|>assistant\n` follows an answer at the end, does not follow an answer before a question, and is
part of the prompt. Short chats show that; they have the tools and arguments of the chat in question, because prompts
depend on these (`enable_thinking`). Renderings alone cannot distinguish a tail of `<|im_start|>` from the beginning of
a question; if the template's syntax shows what comes after the loop over messages, that is compared, too.

Most templates end an answer by a token of its own, such as `<|im_end|>`, which is a part of the answer. In others, the
marker of the next role ends it: GLM stops at `<|user|>` and at `<|observation|>`. Such a marker is trained if the
tokenizer or generation_config.json names it as an end. It is appended to a chat that ends with an answer.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.text.conversations import Chat, Message
from packer.text.message_marks import RenderedChat, render_with_ends
from packer.text.rendering import Templates
from packer.text.tokenizer import shared_length
from packer.text.tokens import Span

_MOST = 256
_ANSWER, _QUESTION = "\U000f0afa", "\U000f0af9"  # private-use characters, which no template changes
_WORD = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPrompt:
    """What a template appends after the last message."""

    requested: str | None
    """What it writes after a question only on request; None if unknown."""
    always: bool | None
    """Whether it appends a part of the prompt without a request, too; None if unknown."""
    next_question: str
    """What follows the rendering of a question and an answer if another question does; "" if unknown."""


class GenerationPrompts:
    """Generation prompts of chat templates, found once for all chats with the same tools and arguments."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._found: dict[tuple[str, bytes, bool, bool], GenerationPrompt] = {}

    def of(self, chat: Chat) -> GenerationPrompt:
        """Return the generation prompt that a chat's template writes with the chat's tools and arguments."""
        arguments = pickle.dumps((chat.tools, chat.kwargs)) if chat.tools or chat.kwargs else b""
        key = (
            self._templates.source_of(chat),
            arguments,
            _holds_lists(chat, "user"),
            _holds_lists(chat, "assistant"),
        )
        if key not in self._found:
            if len(self._found) >= _MOST:  # every chat may have tools of its own
                self._found.clear()
            self._found[key] = self._find(chat)
        return self._found[key]

    def _find(self, chat: Chat) -> GenerationPrompt:
        question, answer = question_for(chat, _QUESTION), _message_like(chat, "assistant", _ANSWER)
        asked = self._render(chat, [question])
        prompted = self._render(chat, [question], prompt=True)
        answered = self._render(chat, [question, answer])
        followed = self._render(chat, [question, answer, question])
        two, three = answered.text, followed.text
        return GenerationPrompt(
            requested=prompted.text[shared_length(asked.text, prompted.text) :] if asked.text else None,
            always=self._shares_tail(answered, prompted) or _shares_words(two, three, prompted.text),
            next_question=three.removeprefix(two) if three.startswith(two) and two else "",
        )

    def _render(self, chat: Chat, messages: list[Message], *, prompt: bool = False) -> RenderedChat:
        """Render messages with the tools and arguments of a chat, to no text if the template refuses them."""
        try:
            return render_with_ends(self._templates, replace(chat, messages=messages), prompt=prompt)
        except DocumentError:
            return RenderedChat(chat, "")

    def _shares_tail(self, answered: RenderedChat, prompted: RenderedChat) -> bool:
        """Whether what comes after the loop over messages, if that is known, is a part of the prompt.

        Where it ends with a stop token, it ends the last turn, as the beginning of the next message ends the others.
        """
        tail, prompt = answered.behind, prompted.behind
        if not tail or not tail.strip() or prompt is None or tail.rstrip().endswith(self._templates.ends):
            return False
        return tail.strip() in prompt or bool(_words(tail) & _words(prompt))


class StopTokens:
    """Tokens that end answers, by a tokenizer and its chat templates."""

    def __init__(self, templates: Templates, prompts: GenerationPrompts) -> None:
        self._templates = templates
        self._prompts = prompts
        self._ends = templates.ends
        self._stops = (*templates.ends, *templates.tokenizer.special_texts)
        self._next = re.compile(rf"\s*(?:{'|'.join(map(re.escape, self._ends))})") if self._ends else None

    @property
    def ends_by_next_role(self) -> tuple[str, ...]:
        """All tokens that end answers, if the marker of the next role does, otherwise ()."""
        chat = Chat([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
        return self._ends if "default" in self._templates.sources and self._following(chat) else ()

    def train(
        self, one: RenderedChat, trained: list[Span] | None, train_on: TrainOn, *, is_tagged: bool
    ) -> tuple[str, list[Span] | None, int]:
        """Extend what is trained, None for all, by the stop tokens that follow answers.

        Returns (text, trained, unstopped): the chat's text with an appended stop token if it needs one, what is
        trained, and the number of answers that end without a trained stop token. If chats are tagged, several spans
        may be parts of one answer.
        """
        chat, text = one.chat, one.text
        ends_with_answer = chat.messages[-1]["role"] == "assistant" and len(chat.messages) - 1 not in chat.masked
        last = trained[-1][1] if trained else len(text) if trained is None else 0
        if ends_with_answer and not text[last:].strip() and not text.rstrip().endswith(self._ends):
            text += self._following(chat)
        if trained is None:
            is_last_trained = ends_with_answer and not self._prompts.of(chat).always
            return text, None, int(is_last_trained and not text.rstrip().endswith(self._stops))
        trained = [*trained]
        for at, (start, end) in enumerate(trained):
            found = self._next.match(text, end) if self._next is not None else None
            if found is not None and not text[start:end].rstrip().endswith(self._ends):
                trained[at] = start, found.end()
        answers = trained if train_on == "assistant" else trained[-1:] if ends_with_answer else []
        if is_tagged and len(answers) > sum(message["role"] == "assistant" for message in chat.messages):
            gaps = [text[end:start] for (_, end), (start, _) in pairwise(answers)]
            is_last = [*(any(stop in gap for stop in self._stops) for gap in gaps), True]
            answers = [span for span, ends in zip(answers, is_last, strict=True) if ends]
        unstopped = sum(not text[start:end].rstrip().endswith(self._stops) for start, end in answers)
        return text, trained, unstopped

    def _following(self, chat: Chat) -> str:
        """Return the stop token with which another message would begin after the last answer; "" if none would."""
        if self._next is None:
            return ""
        if chat.messages[-1].get("tool_calls"):
            messages = [*chat.messages, next_messages(chat)[-1]]
            texts = [self._templates.attempt(chat, some) for some in (chat.messages, messages)]
            before, after = (text if isinstance(text, str) else "" for text in texts)
            following = after.removeprefix(before) if after.startswith(before) else ""
        else:
            following = self._prompts.of(chat).next_question
        found = self._next.match(following)
        return "" if found is None else found[0]


def next_messages(chat: Chat) -> list[Message]:
    """Return what may follow a chat: a question and, if its last message calls tools, the result of the first call."""
    question, calls = question_for(chat), chat.messages[-1].get("tool_calls")
    if not calls:
        return [question]
    return [question, {"role": "tool", "content": "?", "name": "?", "tool_call_id": calls[0].get("id", "?")}]


def question_for(chat: Chat, content: str = "?") -> Message:
    """Make a user's message whose content is text or a list of parts, as in the chat."""
    return _message_like(chat, "user", content)


def _message_like(chat: Chat, role: str, content: str) -> Message:
    listed = [{"type": "text", "text": content}]
    return {"role": role, "content": listed if _holds_lists(chat, role) else content}


def _holds_lists(chat: Chat, role: str) -> bool:
    """Whether the contents of a role are lists of parts; of all roles, if it has no messages."""
    contents = [message.get("content") for message in chat.messages if message["role"] == role]
    contents = contents or [message.get("content") for message in chat.messages]
    return any(isinstance(content, list) for content in contents)


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
