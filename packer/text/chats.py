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

from packer.options.choices import TrainOn
from packer.text.generation_prompts import GenerationPrompts, question_for
from packer.text.loops import ends_of, holds_places, telling_places, without_ends
from packer.text.marks import between_marks, has_marks, moved, with_marks, without_marks
from packer.text.records import TextError
from packer.text.rendering import Chat, Rendered, Rendering, Templates, name_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]

_REMEDY = "use a template that marks its answers with {% generation %} (--chat-template FILE) or --train-on all"


class ChatTemplate:
    """A tokenizer's chat template, or another in its place.

    Raises:
        PackerError: there is none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> None:
        self.templates = Templates(tokenizer, source)
        self._prompts = GenerationPrompts(self.templates)
        self._prompts_of_loops: dict[str, str] = {}

    def render(self, chats: Sequence[Chat], *, telling: bool = False) -> list[Rendered]:
        """Render whole conversations, if `telling` by templates that say, in characters of ours, what ends where.

        Raises:
            TextError: the template refuses one.
        """
        found: dict[int, Rendered] = {}
        told = {id(chat): telling and not holds_places(chat) for chat in chats}
        for tells in (False, True):
            which = [Rendering(chat, chat.messages) for chat in chats if told[id(chat)] == tells]
            for (chat, _, _), text in zip(
                which, self.templates.render(which, change=telling_places if tells else None), strict=True
            ):
                found[id(chat)] = self._told(chat, text) if tells else Rendered(chat, text)
        return [found[id(chat)] for chat in chats]

    def _told(self, chat: Chat, told: str) -> Rendered:
        """Take our characters out of a text, and tell where they were."""
        source = self.templates.source_of(chat)
        if telling_places(source) is None:
            return Rendered(chat, told)
        text, marked = between_marks(chat.row, without_ends(told)) if has_marks(source) else (without_ends(told), None)
        return Rendered(chat, text, None if chat.kwargs else ends_of(without_marks(told), len(chat.messages)), marked)

    def spans(self, rendered: Sequence[Rendered], train_on: TrainOn) -> list[list[Span]]:
        """Tell which characters of the rendered conversations are trained on, in order.

        Raises:
            TextError: the template does not allow to tell.
        """
        if train_on == "completion":
            return self._completions(rendered)
        found: dict[int, list[Span]] = {}
        for marks, method in ((True, self._by_marks), (False, self._by_turns)):
            which = [one for one in rendered if has_marks(self.templates.source_of(one.chat)) == marks]
            found.update(zip((id(one.chat) for one in which), method(which), strict=True))
        return [found[id(one.chat)] for one in rendered]

    def turn_starts(self, rendered: Sequence[Rendered]) -> list[list[int]]:
        """Tell at which characters of the rendered conversations a message begins, ascending.

        A message begins where the rendering of those before it ends, if that is the beginning of the whole. Where it is
        not, or is refused, no turn begins with the message: the template writes it into what is there before (several
        tools' answers, a system prompt), or rewrites that, or appends a generation prompt to every beginning. What
        stands before the first message belongs to it.
        """
        starts = {id(one.chat): [0] if one.ends is None else [0, *one.ends[:-1]] for one in rendered}
        whole = {id(one.chat): one.text for one in rendered}
        parts = [
            Rendering(one.chat, one.chat.messages[:turn], turn)
            for one in rendered
            if one.ends is None
            for turn in range(1, len(one.chat.messages))
            if not self._prompts.of(one.chat).always
        ]
        for (chat, _, _), before in zip(parts, self.templates.attempt(parts), strict=True):
            found, text = starts[id(chat)], whole[id(chat)]
            if isinstance(before, str) and text.startswith(before) and found[-1] < len(before) < len(text):
                found.append(len(before))
        return [sorted({*starts[id(one.chat)]} - {len(one.text)}) or [0] for one in rendered]

    def _by_marks(self, rendered: Sequence[Rendered]) -> list[list[Span]]:
        """What is marked; where only another rendering tells, that must be the same text without the marks."""
        others = [Rendering(one.chat, one.chat.messages) for one in rendered if one.marked is None]
        marked = dict(
            zip((id(chat) for chat, _, _ in others), self.templates.render(others, change=with_marks), strict=True)
        )
        headers = {
            id(rendering.chat): text
            for rendering, text in self._given(
                [
                    Rendering(one.chat, one.chat.messages[: one.chat.first], one.chat.first)
                    for one in rendered
                    if one.chat.first
                ]
            )
        }
        found = []
        for one in rendered:
            chat, spans = one.chat, one.marked
            if spans is None:
                text, spans = between_marks(chat.row, marked[id(chat)])
                if text != one.text:
                    raise moved(chat.row)
            if chat.first:
                start = _beginning(headers[id(chat)], one.text, chat, chat.first)
                spans = [(max(start, begin), end) for begin, end in spans if end > start]
            if not spans and any(message["role"] == "assistant" for message in chat.messages[chat.first :]):
                raise TextError(
                    chat.row, "the chat template's generation marks hold nothing of the assistant's turns; mend them"
                )
            found.append(_without(spans, self._masked(one, answers=True)) if spans else [])
        return found

    def _by_turns(self, rendered: Sequence[Rendered]) -> list[list[Span]]:
        """Render up to every answer, and up to its end."""
        spans = {id(one.chat): found for one, found in self._by_ends(rendered)}
        before, after = [], []
        for one in rendered:
            chat = one.chat
            if id(chat) in spans:
                continue
            spans[id(chat)] = []
            if turns := _answers(chat):
                self._refuse_prompts(chat)
            for turn in turns:
                before.append(Rendering(chat, chat.messages[:turn], turn))
                if turn + 1 < len(chat.messages):
                    after.append(Rendering(chat, chat.messages[: turn + 1], turn))
        whole, given_before = {id(one.chat): one.text for one in rendered}, self._given(before)
        ends = {
            (id(rendering.chat), rendering.turn): _beginning(
                text, whole[id(rendering.chat)], rendering.chat, rendering.turn
            )
            for rendering, text in zip(after, self.templates.render(after), strict=True)
        }
        for (chat, _, turn), given in given_before:
            text = whole[id(chat)]
            start = _start(given, text, chat, turn)
            if (id(chat), turn) not in ends:
                self._check_end(chat, text, given)
            end = ends.get((id(chat), turn), len(text))
            if end < start:
                raise TextError(chat.row, f"the chat template renders {name_of(chat, turn)} as nothing; {_REMEDY}")
            spans[id(chat)].append((start, end))
        return [spans[id(one.chat)] for one in rendered]

    def _by_ends(self, rendered: Sequence[Rendered]) -> Iterator[tuple[Rendered, list[Span]]]:
        """Yield the same, of the chats for which it can be told without rendering them up to every answer.

        Nothing is appended behind the last message of these: `ends_of` would not tell their ends.
        """
        for one in rendered:
            chat, text, ends, turns = one.chat, one.text, one.ends, _answers(one.chat)
            if ends is None or 0 in turns:
                continue
            prompt = self._prompt(chat, text)
            spans = [(ends[turn - 1] + len(prompt), ends[turn]) for turn in turns]
            if all(text.startswith(prompt, ends[turn - 1]) for turn in turns) and all(a <= b for a, b in spans):
                yield one, spans

    def _prompt(self, chat: Chat, text: str) -> str:
        """The generation prompt of a template `with_ends`, the same behind all messages of all chats."""
        source = self.templates.source_of(chat)
        if source not in self._prompts_of_loops:
            (given,) = self.templates.render([Rendering(chat, chat.messages)], prompt=True)
            self._prompts_of_loops[source] = given[_beginning(text, given, chat, len(chat.messages)) :]
        return self._prompts_of_loops[source]

    def _completions(self, rendered: Sequence[Rendered]) -> list[list[Span]]:
        """Everything after the prompt, rendered with the generation prompt."""
        chats = [one.chat for one in rendered]
        given = self._given([Rendering(chat, chat.messages[: chat.first], chat.first) for chat in chats])
        spans = []
        for (rendering, header), one in zip(given, rendered, strict=True):
            start = _start(header, one.text, rendering.chat, rendering.turn)
            if len(one.chat.messages) - 1 not in one.chat.masked:
                self._check_end(rendering.chat, one.text, header)
            spans.append(_without([(start, len(one.text))], self._masked(one)))
        return spans

    def _masked(self, one: Rendered, *, answers: bool = False) -> list[Span]:
        """Where the messages are that are context only, with what the template writes before each.

        Args:
            one: the conversation.
            answers: look for others than the assistant's only where no further rendering is needed.
        """
        chat, text, last = one.chat, one.text, len(one.chat.messages)
        turns = [turn for turn in sorted(chat.masked) if turn >= chat.first]
        if one.ends is not None:
            ends = dict(enumerate([0, *one.ends]))
            return [(ends[turn], ends[turn + 1]) for turn in turns]
        turns = [turn for turn in turns if not answers or chat.messages[turn]["role"] == "assistant"]
        places = sorted({place for turn in turns for place in (turn, turn + 1)} - {0, last})
        parts = [Rendering(chat, chat.messages[:place], place - 1) for place in places]
        ends = {0: 0, last: len(text)}
        for (_, _, turn), part in zip(parts, self.templates.render(parts), strict=True):
            ends[turn + 1] = _beginning(part, text, chat, turn)
        return [(ends[turn], ends[turn + 1]) for turn in turns]

    def _given(self, renderings: list[Rendering]) -> list[tuple[Rendering, str]]:
        """Render what the model is given before it writes."""
        empty = [rendering for rendering in renderings if not rendering.messages]
        for (chat, _, _), text in zip(empty, self.templates.attempt(empty, prompt=True), strict=True):
            if isinstance(text, Exception):
                raise _without_beginning(chat)
        return list(zip(renderings, self.templates.render(renderings, prompt=True), strict=True))

    def _check_end(self, chat: Chat, text: str, given: str) -> None:
        """Check that the whole does not end in a generation prompt that nobody asked for.

        The prompt that the model was given is known where the template appends it on request. Where it does not,
        another message must leave the text as it is: it would come in place of a prompt.
        """
        self._refuse_prompts(chat)
        prompt, asked = self._prompts.of(chat), self._prompts.of(chat).requested
        if prompt.always is False and asked and given.endswith(asked) and not text.endswith(asked):
            return
        longer = [*chat.messages, question_for(chat)]
        (followed,) = self.templates.render([Rendering(chat, longer, len(chat.messages) - 1)])
        if not followed.startswith(text):
            raise TextError(
                chat.row,
                "the chat template renders the last turn differently when another follows, and always or never "
                f"appends a generation prompt, so that the turn's end is not known; {_REMEDY}",
            )

    def _refuse_prompts(self, chat: Chat) -> None:
        """Refuse a template that appends a generation prompt, or a part of one, without being asked."""
        if self._prompts.of(chat).always:
            raise TextError(
                chat.row,
                "the chat template appends a generation prompt, or a part of one, also where none is asked for, so "
                f"that the end of a turn is not known; {_REMEDY}",
            )


def _answers(chat: Chat) -> list[int]:
    """The assistant's messages from `first` on that are not context only."""
    turns = (turn for turn in range(chat.first, len(chat.messages)) if turn not in chat.masked)
    return [turn for turn in turns if chat.messages[turn]["role"] == "assistant"]


def _without(spans: list[Span], masked: list[Span]) -> list[Span]:
    """Spans, less what is masked: [(2, 9)] without [(4, 6)] is [(2, 4), (6, 9)]."""
    for start, stop in masked:
        pieces = [piece for begin, end in spans for piece in ((begin, min(end, start)), (max(begin, stop), end))]
        spans = [(begin, end) for begin, end in pieces if begin < end]
    return spans


def _start(given: str, whole: str, chat: Chat, turn: int) -> int:
    """Where in the whole a message begins that a model writes after what it is given.

    Raises:
        TextError: the whole begins otherwise.
    """
    if turn == 0 and not whole.startswith(given):
        raise _without_beginning(chat)
    return _beginning(given, whole, chat, turn)


def _without_beginning(chat: Chat) -> TextError:
    """What is wrong where the first message is trained, and the template needs one before it."""
    return TextError(
        chat.row,
        f"the chat begins with {name_of(chat, 0)}, and without a message before it the chat template does not tell "
        f"where that begins; begin the chat with another, give that one weight 0, or {_REMEDY}",
    )


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
