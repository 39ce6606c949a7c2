"""Conversations to text, and which characters of it the assistant wrote.

Where the template marks its answers ({% generation %}), the marks say so. Otherwise the conversation is rendered turn
by turn: what is trained on begins where the rendering of the messages before an answer, with the generation prompt,
ends, and ends where the rendering with the answer ends. This is what a model is given and what it has to write,
including the token that ends its turn and a newline that the template puts behind it. Nothing is searched for in the
text: each of these renderings must be the beginning of the whole one, or it is an error. Where the template's syntax
shows that they are (loops.py), one rendering tells where all of them end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from packer.text.loops import ends_of, with_ends
from packer.text.marks import between_marks, has_marks, with_marks
from packer.text.records import Message, TextError, TrainOn
from packer.text.rendering import Chat, Rendering, Templates, name_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]

_REMEDY = "use a template that marks its answers with {% generation %} (--chat-template FILE) or --train-on all"
_NEXT: Message = {"role": "user", "content": "?"}


class ChatTemplate:
    """A tokenizer's chat template, or another in its place.

    Raises:
        PackerError: there is none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> None:
        self.templates = Templates(tokenizer, source)
        self._headers: dict[str, str] = {}
        self._prompts: dict[str, str] = {}

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """Render whole conversations.

        Raises:
            TextError: the template refuses one.
        """
        return self.templates.render([Rendering(chat, chat.messages) for chat in chats])

    def spans(self, chats: Sequence[Chat], texts: Sequence[str], train_on: TrainOn) -> list[list[Span]]:
        """Tell which characters of the rendered conversations are trained on, in order.

        Raises:
            TextError: the template does not allow to tell.
        """
        if train_on == "completion":
            return self._completions(chats, texts)
        marked = [has_marks(self.templates.source_of(chat)) for chat in chats]
        found: dict[int, list[Span]] = {}
        for marks, method in ((True, self._by_marks), (False, self._by_turns)):
            which = [number for number, has in enumerate(marked) if has == marks]
            spans = method([chats[number] for number in which], [texts[number] for number in which])
            found.update(zip(which, spans, strict=True))
        return [found[number] for number in range(len(chats))]

    def turn_starts(self, chats: Sequence[Chat], texts: Sequence[str]) -> list[list[int]]:
        """Tell at which characters of the rendered conversations a message begins, ascending.

        A message begins where the rendering of those before it ends, if that is the beginning of the whole. Where it is
        not, or is refused, no turn begins with the message: the template writes it into what is there before (several
        tools' answers, a system prompt), or rewrites that. What stands before the first message belongs to it.
        """
        ends = self._ends(chats, texts)
        starts = {id(chat): [0] if known is None else [0, *known[:-1]] for chat, known in zip(chats, ends, strict=True)}
        others = [chat for chat, known in zip(chats, ends, strict=True) if known is None]
        whole = {id(chat): text for chat, text in zip(chats, texts, strict=True)}
        parts = [
            Rendering(chat, chat.messages[:turn], turn) for chat in others for turn in range(1, len(chat.messages))
        ]
        for (chat, _, _), before in zip(parts, self.templates.attempt(parts), strict=True):
            found, text = starts[id(chat)], whole[id(chat)]
            if isinstance(before, str) and text.startswith(before) and found[-1] < len(before) < len(text):
                found.append(len(before))
        return [sorted({*starts[id(chat)]} - {len(text)}) or [0] for chat, text in zip(chats, texts, strict=True)]

    def _by_marks(self, chats: list[Chat], texts: list[str]) -> list[list[Span]]:
        """Render with a character at both ends of what is marked; without these it must be the same text."""
        renderings = self.templates.render([Rendering(chat, chat.messages) for chat in chats], change=with_marks)
        headers = {
            id(rendering.chat): text
            for rendering, text in self._given(
                [Rendering(chat, chat.messages[: chat.first], chat.first) for chat in chats if chat.first]
            )
        }
        found = []
        for chat, text, marked in zip(chats, texts, renderings, strict=True):
            spans = between_marks(chat.row, text, marked)
            if chat.first:
                start = _beginning(headers[id(chat)], text, chat, chat.first)
                spans = [(max(start, begin), end) for begin, end in spans if end > start]
            if not spans and any(message["role"] == "assistant" for message in chat.messages[chat.first :]):
                raise TextError(
                    chat.row, "the chat template's generation marks hold nothing of the assistant's turns; mend them"
                )
            found.append(spans)
        return found

    def _by_turns(self, chats: list[Chat], texts: list[str]) -> list[list[Span]]:
        """Render up to every answer, and up to its end."""
        spans = {id(chat): found for chat, found in self._by_loop(chats, texts)}
        before, after = [], []
        for chat in chats:
            if id(chat) in spans:
                continue
            spans[id(chat)] = []
            for turn in range(chat.first, len(chat.messages)):
                if chat.messages[turn]["role"] == "assistant":
                    before.append(Rendering(chat, chat.messages[:turn], turn))
                    if turn + 1 < len(chat.messages):
                        after.append(Rendering(chat, chat.messages[: turn + 1], turn))
        whole = {id(chat): text for chat, text in zip(chats, texts, strict=True)}
        ends = {
            (id(rendering.chat), rendering.turn): _beginning(
                text, whole[id(rendering.chat)], rendering.chat, rendering.turn
            )
            for rendering, text in zip(after, self.templates.render(after), strict=True)
        }
        for (chat, _, turn), given in self._given(before):
            text = whole[id(chat)]
            start = _beginning(given, text, chat, turn)
            if (id(chat), turn) not in ends:
                self._check_end(chat, text, given)
            end = ends.get((id(chat), turn), len(text))
            if end < start:
                raise TextError(chat.row, f"the chat template renders {name_of(chat, turn)} as nothing; {_REMEDY}")
            spans[id(chat)].append((start, end))
        return [spans[id(chat)] for chat in chats]

    def _by_loop(self, chats: list[Chat], texts: list[str]) -> Iterator[tuple[Chat, list[Span]]]:
        """Yield the same, of the chats for which it can be told without rendering them up to every answer."""
        for chat, text, ends in zip(chats, texts, self._ends(chats, texts), strict=True):
            turns = [
                turn for turn in range(chat.first, len(chat.messages)) if chat.messages[turn]["role"] == "assistant"
            ]
            if ends is None or 0 in turns:
                continue
            prompt = self._prompt(chat, text)
            spans = [(ends[turn - 1] + len(prompt), ends[turn]) for turn in turns]
            if all(text.startswith(prompt, ends[turn - 1]) for turn in turns) and all(a <= b for a, b in spans):
                if turns and turns[-1] == len(chat.messages) - 1:
                    self._check_end(chat, text, text[: spans[-1][0]])
                yield chat, spans

    def _ends(self, chats: Sequence[Chat], texts: Sequence[str]) -> list[list[int] | None]:
        """Where the renderings of a chat's first message, its first two, ... end; None where only these tell."""
        plain = [chat for chat in chats if not chat.kwargs and with_ends(self.templates.source_of(chat))]
        marked = self.templates.attempt([Rendering(chat, chat.messages) for chat in plain], change=with_ends)
        found = {id(chat): text for chat, text in zip(plain, marked, strict=True) if isinstance(text, str)}
        return [
            ends_of(found[id(chat)], text, len(chat.messages)) if id(chat) in found else None
            for chat, text in zip(chats, texts, strict=True)
        ]

    def _prompt(self, chat: Chat, text: str) -> str:
        """The generation prompt of a template `with_ends`, the same behind all messages of all chats."""
        source = self.templates.source_of(chat)
        if source not in self._prompts:
            (given,) = self.templates.render([Rendering(chat, chat.messages)], prompt=True)
            self._prompts[source] = given[_beginning(text, given, chat, len(chat.messages)) :]
        return self._prompts[source]

    def _completions(self, chats: Sequence[Chat], texts: Sequence[str]) -> list[list[Span]]:
        """Everything after the prompt, rendered with the generation prompt."""
        given = self._given([Rendering(chat, chat.messages[: chat.first], chat.first) for chat in chats])
        spans = []
        for (rendering, header), text in zip(given, texts, strict=True):
            start = _beginning(header, text, rendering.chat, rendering.turn)
            self._check_end(rendering.chat, text, header)
            spans.append([(start, len(text))])
        return spans

    def _given(self, renderings: list[Rendering]) -> list[tuple[Rendering, str]]:
        """Render what the model is given before it writes."""
        return list(zip(renderings, self.templates.render(renderings, prompt=True), strict=True))

    def _check_end(self, chat: Chat, text: str, given: str) -> None:
        """Check that the whole does not end in a generation prompt, which some templates always append.

        The one that the model was given is known where the template appends it on request. Where it does not, another
        message must leave the text as it is: it would come in place of a prompt.
        """
        header = self._header(chat)
        if header and given.endswith(header) and not text.endswith(header):
            return
        (longer,) = self.templates.render([Rendering(chat, [*chat.messages, _NEXT], len(chat.messages) - 1)])
        if not longer.startswith(text):
            raise TextError(
                chat.row,
                "the chat template renders the last turn differently when another follows, and always or never "
                f"appends a generation prompt, so that the turn's end is not known; {_REMEDY}",
            )

    def _header(self, chat: Chat) -> str:
        """What the template writes behind a user's message on request and otherwise does not; maybe nothing."""
        source = self.templates.source_of(chat)
        if source not in self._headers:
            probe = Chat(chat.row, [_NEXT])
            try:
                (plain,) = self.templates.render([Rendering(probe, probe.messages)])
                (given,) = self.templates.render([Rendering(probe, probe.messages)], prompt=True)
            except TextError:
                plain = given = ""
            self._headers[source] = given[_common(plain, given) :]
        return self._headers[source]


def _beginning(part: str, whole: str, chat: Chat, turn: int) -> int:
    """Where in the whole a rendering of its beginning ends.

    Raises:
        TextError: the whole begins otherwise.
    """
    if not whole.startswith(part):
        raise TextError(
            chat.row,
            f"the chat template renders what comes before the end of {name_of(chat, turn)} differently when more "
            f"follows, so that what the assistant wrote cannot be told exactly; {_REMEDY}",
        )
    return len(part)


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
