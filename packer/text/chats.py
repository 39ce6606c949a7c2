"""Conversations to text, and which characters of it the assistant wrote.

Where the template marks its answers ({% generation %}), the marks say so. Otherwise the conversation is rendered turn
by turn: what is trained on begins where the rendering of the messages before an answer, with the generation prompt,
ends, and ends where the rendering with the answer ends. This is what a model is given and what it has to write,
including the token that ends its turn and a newline that the template puts behind it. Nothing is searched for in the
text: each of these renderings must be the beginning of the whole one, or it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.errors import PackerError
from packer.text.records import Message, TextError, TrainOn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]

# private-use characters around what the template marks; where a conversation holds them, it is refused
_BEGIN, _END = "\U000f5afe", "\U000f5aff"
_MACRO = "{% macro packer_generation() %}" + _BEGIN + "{{ caller() }}" + _END + "{% endmacro %}\n"
_OPENING = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_CLOSING = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")

_REMEDY = "use a template that marks its answers with {% generation %} (--chat-template FILE) or --train-on all"
_NEXT: Message = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to render; what is trained on begins at message `first`."""

    row: int
    messages: list[Message]
    first: int = 0
    tools: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


class _Rendering(NamedTuple):
    """Some messages of a chat, to be rendered; `turn` is the one that it is for, -1 for the whole."""

    chat: Chat
    messages: list[Message]
    turn: int = -1


class ChatTemplate:
    """A tokenizer's chat template, or another in its place.

    Raises:
        PackerError: there is none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._source = source
        if source is None and not tokenizer.chat_template:
            raise PackerError(
                f"{tokenizer.name_or_path or 'the tokenizer'} has no chat template; give one by --chat-template FILE"
            )
        self._headers: dict[str, str] = {}

    @property
    def sources(self) -> dict[str, str]:
        """Every template there is, by name; `default` where there is one."""
        given = self._source or self._tokenizer.chat_template
        return dict(given) if isinstance(given, dict) else {"default": given}

    def render(self, chats: Sequence[Chat]) -> list[str]:
        """Render whole conversations.

        Raises:
            TextError: the template refuses one.
        """
        return self._render([_Rendering(chat, chat.messages) for chat in chats])

    def spans(self, chats: Sequence[Chat], texts: Sequence[str], train_on: TrainOn) -> list[list[Span]]:
        """Tell which characters of the rendered conversations are trained on, in order.

        Raises:
            TextError: the template does not allow to tell.
        """
        if train_on == "completion":
            return self._completions(chats, texts)
        marked = [bool(_OPENING.search(self._template(chat))) for chat in chats]
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
        starts: dict[int, list[int]] = {id(chat): [0] for chat in chats}
        whole = {id(chat): text for chat, text in zip(chats, texts, strict=True)}
        parts = [
            _Rendering(chat, chat.messages[:turn], turn) for chat in chats for turn in range(1, len(chat.messages))
        ]
        for (chat, _, _), before in zip(parts, self._attempt(parts), strict=True):
            found, text = starts[id(chat)], whole[id(chat)]
            if isinstance(before, str) and text.startswith(before) and found[-1] < len(before) < len(text):
                found.append(len(before))
        return [starts[id(chat)] for chat in chats]

    def _by_marks(self, chats: list[Chat], texts: list[str]) -> list[list[Span]]:
        """Render with a character at both ends of what is marked; without these it must be the same text."""
        renderings = self._render([_Rendering(chat, chat.messages) for chat in chats], marked=True)
        headers = {
            id(rendering.chat): text
            for rendering, text in self._given(
                [_Rendering(chat, chat.messages[: chat.first], chat.first) for chat in chats if chat.first]
            )
        }
        found = []
        for chat, text, marked in zip(chats, texts, renderings, strict=True):
            spans = _between_marks(chat, text, marked)
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
        before, after = [], []
        for chat in chats:
            for turn in range(chat.first, len(chat.messages)):
                if chat.messages[turn]["role"] == "assistant":
                    before.append(_Rendering(chat, chat.messages[:turn], turn))
                    if turn + 1 < len(chat.messages):
                        after.append(_Rendering(chat, chat.messages[: turn + 1], turn))
        whole = {id(chat): text for chat, text in zip(chats, texts, strict=True)}
        ends = {
            (id(rendering.chat), rendering.turn): _beginning(
                text, whole[id(rendering.chat)], rendering.chat, rendering.turn
            )
            for rendering, text in zip(after, self._render(after), strict=True)
        }
        spans: dict[int, list[Span]] = {id(chat): [] for chat in chats}
        for (chat, _, turn), given in self._given(before):
            text = whole[id(chat)]
            start = _beginning(given, text, chat, turn)
            if (id(chat), turn) not in ends:
                self._check_end(chat, text, given)
            end = ends.get((id(chat), turn), len(text))
            if end < start:
                raise TextError(chat.row, f"the chat template renders {_turn(chat, turn)} as nothing; {_REMEDY}")
            spans[id(chat)].append((start, end))
        return [spans[id(chat)] for chat in chats]

    def _completions(self, chats: Sequence[Chat], texts: Sequence[str]) -> list[list[Span]]:
        """Everything after the prompt, rendered with the generation prompt."""
        given = self._given([_Rendering(chat, chat.messages[: chat.first], chat.first) for chat in chats])
        spans = []
        for (rendering, header), text in zip(given, texts, strict=True):
            start = _beginning(header, text, rendering.chat, rendering.turn)
            self._check_end(rendering.chat, text, header)
            spans.append([(start, len(text))])
        return spans

    def _given(self, renderings: list[_Rendering]) -> list[tuple[_Rendering, str]]:
        """Render what the model is given before it writes."""
        return list(zip(renderings, self._render(renderings, prompt=True), strict=True))

    def _check_end(self, chat: Chat, text: str, given: str) -> None:
        """Check that the whole does not end in a generation prompt, which some templates always append.

        The one that the model was given is known where the template appends it on request. Where it does not, another
        message must leave the text as it is: it would come in place of a prompt.
        """
        header = self._header(chat)
        if header and given.endswith(header) and not text.endswith(header):
            return
        (longer,) = self._render([_Rendering(chat, [*chat.messages, _NEXT], len(chat.messages) - 1)])
        if not longer.startswith(text):
            raise TextError(
                chat.row,
                "the chat template renders the last turn differently when another follows, and always or never "
                f"appends a generation prompt, so that the turn's end is not known; {_REMEDY}",
            )

    def _header(self, chat: Chat) -> str:
        """What the template writes behind a user's message on request and otherwise does not; maybe nothing."""
        source = self._template(chat)
        if source not in self._headers:
            probe = Chat(chat.row, [_NEXT])
            try:
                (plain,) = self._render([_Rendering(probe, probe.messages)])
                (given,) = self._render([_Rendering(probe, probe.messages)], prompt=True)
            except TextError:
                plain = given = ""
            self._headers[source] = given[_common(plain, given) :]
        return self._headers[source]

    def _template(self, chat: Chat) -> str:
        return self._source or str(self._tokenizer.get_chat_template(tools=chat.tools))

    def _render(self, renderings: Sequence[_Rendering], *, prompt: bool = False, marked: bool = False) -> list[str]:
        texts = []
        for (chat, _, turn), text in zip(
            renderings, self._attempt(renderings, prompt=prompt, marked=marked), strict=True
        ):
            if isinstance(text, Exception):
                where = f"up to {_turn(chat, turn)}: " if turn >= 0 and not marked else ""
                reason = next(iter(str(text).splitlines()), "")
                raise TextError(
                    chat.row, f"the chat template does not render {where or 'it: '}{type(text).__name__} {reason}"
                )
            texts.append(text)
        return texts

    def _attempt(
        self, renderings: Sequence[_Rendering], *, prompt: bool = False, marked: bool = False
    ) -> Iterator[str | Exception]:
        """Yield the text of each rendering, or what the template raises."""
        plain = [rendering for rendering in renderings if not rendering.chat.tools and not rendering.chat.kwargs]
        if len(plain) == len(renderings) > 1:
            try:
                texts = self._apply(plain, [rendering.messages for rendering in plain], prompt=prompt, marked=marked)
            except Exception:  # some one of them; told below
                pass
            else:
                yield from texts
                return
        for rendering in renderings:
            try:
                (text,) = self._apply([rendering], [rendering.messages], prompt=prompt, marked=marked)
            except Exception as error:  # whatever a template does
                yield error
            else:
                yield text

    def _apply(
        self, renderings: Sequence[_Rendering], conversations: list[list[Message]], *, prompt: bool, marked: bool
    ) -> list[str]:
        """Render conversations that share the tools and arguments of the first."""
        chat = renderings[0].chat
        source = self._template(chat)
        render: Any = self._tokenizer.apply_chat_template  # typed for everything it may return
        rendered: list[str] = render(
            conversations,
            tools=chat.tools,
            chat_template=_with_marks(source) if marked else source,
            add_generation_prompt=prompt,
            tokenize=False,
            **chat.kwargs,
        )
        return rendered


def _with_marks(source: str) -> str:
    """Have the template put a character at both ends of what it marks.

    A `call` block is what transformers makes of `generation`, so that white space and names are as they were.
    """
    return _MACRO + _CLOSING.sub(r"\1endcall\2", _OPENING.sub(r"\1call packer_generation()\2", source))


def _between_marks(chat: Chat, text: str, marked: str) -> list[Span]:
    """The spans between the marks, in the text without them: "a<b>c" is "abc" with (1, 2)."""
    pieces = re.split(f"([{_BEGIN}{_END}])", marked)
    marks = pieces[1::2]
    if marks != [_BEGIN, _END] * (len(marks) // 2) or "".join(pieces[::2]) != text:
        raise TextError(
            chat.row,
            "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
            "marks, so that its place is not known; mend the template, or --train-on all",
        )
    ends, length = [], 0
    for piece in pieces[::2]:
        length += len(piece)
        ends.append(length)
    spans: list[Span] = []
    for start, end in zip(ends[0:-1:2], ends[1::2], strict=True):
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif start < end:
            spans.append((start, end))
    return spans


def _beginning(part: str, whole: str, chat: Chat, turn: int) -> int:
    """Where in the whole a rendering of its beginning ends.

    Raises:
        TextError: the whole begins otherwise.
    """
    if not whole.startswith(part):
        raise TextError(
            chat.row,
            f"the chat template renders what comes before the end of {_turn(chat, turn)} differently when more "
            f"follows, so that what the assistant wrote cannot be told exactly; {_REMEDY}",
        )
    return len(part)


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _turn(chat: Chat, turn: int) -> str:
    return f"message {turn} ({chat.messages[turn]['role']})" if turn < len(chat.messages) else "the completion"
