"""Whether the token that ends an answer is trained, so that a model learns to stop.

Most templates end an answer by a token of its own, such as `<|im_end|>`, which is a part of the answer. In others, the
marker of the next role ends it: GLM stops at `<|user|>` and at `<|observation|>`. Such a marker is trained if the
tokenizer or generation_config.json names it as an end. It is appended to a chat that ends with an answer.
"""

from __future__ import annotations

import re
from itertools import pairwise

from packer.options.choices import TrainOn
from packer.text.conversations import Chat
from packer.text.message_ends.generation_prompts import GenerationPrompts
from packer.text.message_ends.message_marks import RenderedChat
from packer.text.rendering import Templates
from packer.text.tokens import Span


class StopTokens:
    """The tokens that end answers, for a tokenizer and its chat templates."""

    def __init__(self, templates: Templates, prompts: GenerationPrompts) -> None:
        self._templates = templates
        self._prompts = prompts
        self._ends = templates.ends
        self._stops = (*templates.ends, *templates.special_texts)
        self._next = re.compile(rf"\s*(?:{'|'.join(map(re.escape, self._ends))})") if self._ends else None

    @property
    def ends_by_next_role(self) -> tuple[str, ...]:
        """All tokens that end answers, if the marker of the next role is one of them; otherwise ()."""
        chat = Chat(0, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
        return self._ends if "default" in self._templates.sources and self._following(chat) else ()

    def train(
        self, one: RenderedChat, trained: list[Span] | None, train_on: TrainOn, *, is_tagged: bool
    ) -> tuple[str, list[Span] | None, int]:
        """Extend what is trained by the stop tokens that follow answers.

        Args:
            one: the chat.
            trained: what is trained, in order; None if everything is.
            train_on: what is trained by default.
            is_tagged: whether several spans may be parts of one answer.

        Returns:
            The chat's text, to which a stop token may have been appended; what is trained; and the number of answers
            that end without a trained stop token.
        """
        chat, text = one.chat, one.text
        ends_with_answer = chat.messages[-1]["role"] == "assistant" and len(chat.messages) - 1 not in chat.masked
        last = trained[-1][1] if trained else len(text) if trained is None else 0
        if ends_with_answer and not text[last:].strip() and not text.rstrip().endswith(self._ends):
            text += self._following(chat)
        if trained is None:
            is_last_trained = ends_with_answer and not self._prompts.of(chat).always
            return text, None, int(is_last_trained and not text.rstrip().endswith(self._stops))
        trained = [(start, self._extended(text, start, end)) for start, end in trained]
        answers = trained if train_on == "assistant" else trained[-1:] if ends_with_answer else []
        if is_tagged and len(answers) > sum(message["role"] == "assistant" for message in chat.messages):
            gaps = [text[end:start] for (_, end), (start, _) in pairwise(answers)]
            is_last = [*(any(stop in gap for stop in self._stops) for gap in gaps), True]
            answers = [span for span, ends in zip(answers, is_last, strict=True) if ends]
        unstopped = sum(not text[start:end].rstrip().endswith(self._stops) for start, end in answers)
        return text, trained, unstopped

    def _extended(self, text: str, start: int, end: int) -> int:
        """Return where an answer ends with the stop token that follows it, if it does not end with one."""
        if self._next is None or text[start:end].rstrip().endswith(self._ends):
            return end
        found = self._next.match(text, end)
        return end if found is None else found.end()

    def _following(self, chat: Chat) -> str:
        """Return the stop token with which another message would begin after the last answer; "" if none would."""
        if self._next is None:
            return ""
        if chat.messages[-1].get("tool_calls"):
            messages = [*chat.messages, {"role": "tool", "content": "?"}]
            texts = [self._templates.attempt(chat, some) for some in (chat.messages, messages)]
            before, after = (text if isinstance(text, str) else "" for text in texts)
            following = after.removeprefix(before) if after.startswith(before) else ""
        else:
            following = self._prompts.of(chat).next_question
        found = self._next.match(following)
        return "" if found is None else found[0]
