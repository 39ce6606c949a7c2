r"""Locate the messages of a chat in its rendering, and the characters that are trained.

If the template marks answers with {% generation %}, the marked text is trained. Otherwise, two renderings locate an
answer: the messages before it with the generation prompt, which are the model's input, and the messages up to and
including the answer. The text between their ends is trained, together with the token that ends the turn and a newline
that the template writes after it. The text is never searched: if the rendering of the whole chat does not begin with
both renderings, the chat is refused.

Templates append a generation prompt after the last message on request; some always append a part of it. Such a part
must not be mistaken for the end of the last turn. In

    {% for message in messages %}...{% endfor %}<|im_start|>assistant\n{% if add_generation_prompt %}<think>{% endif %}

the text `<|im_start|>assistant\n` follows an answer at the end, does not follow an answer before a question, and is
part of the prompt. Packer detects such text by rendering short chats with the same tools and arguments, because
generation prompts depend on them (`enable_thinking`). Renderings alone cannot distinguish a tail of `<|im_start|>` from
the beginning of a question. Therefore the text that the template writes after its loop over messages is also compared,
if the template's syntax shows it.

Most templates end an answer with a special token such as `<|im_end|>`, which is part of the answer. In others, the
marker of the next role ends it: GLM stops at `<|user|>` and at `<|observation|>`. Such a marker is trained if the
tokenizer or generation_config.json names it as an end. If a chat ends with an answer, the marker is appended.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.text.answer_parts import marked_parts, untrained_parts
from packer.text.chat_shapes import Shapes
from packer.text.conversations import Chat, Message, record_error
from packer.text.message_marks import RenderedChat, has_generation_tags, render_with_marks
from packer.text.rendering import StandIns, Templates
from packer.text.tokenizer import Tokenizer, shared_length
from packer.text.tokens import MarkedText, Span

_MOST = 256
_ANSWER, _QUESTION = "\U000f0afa", "\U000f0af9"  # private-use characters, which templates leave unchanged
_WORD = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+")


class ChatTemplate:
    """Chat template of a tokenizer, unless `source` replaces it. Raises a PackerError if there is none.

    With `locates_answers`, a built-in template may replace a tokenizer's template that rewrites earlier answers.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None, *, locates_answers: bool = False) -> None:
        self.templates = Templates(tokenizer, source)
        self._prompts = GenerationPrompts(self.templates)
        ends = self.templates.ends
        self._stops = (*ends, *tokenizer.special_texts)
        self._next_end = re.compile(rf"\s*(?:{'|'.join(map(re.escape, ends))})") if ends else None
        self._stand_ins = StandIns(self.templates)
        self.stand_in: str | None = None
        """Name of the built-in template that replaces the tokenizer's own for chats that both render identically."""
        if locates_answers and source is None and not has_generation_tags(self.templates.sources.get("default", "")):
            self.stand_in = self._stand_ins.of(Chat([]))
        self._other = ChatTemplate(tokenizer, self.stand_in) if self.stand_in is not None else None
        self._shapes = Shapes(self._located, self._compared)

    @property
    def content(self) -> list[Any] | dict[str, str]:
        """Everything that determines the text of chats, as JSON."""
        sources = self.templates.sources
        chat = Chat([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
        ends_by_next_role = "default" in sources and self._following(chat)
        # If answers do not end with the next role, the ends are left out, so that the hash does not depend on
        # generation_config.json.
        own = [sources, *self.templates.ends] if ends_by_next_role else sources
        return own if self._other is None else [own, self._other.content]

    def locate(
        self, chat: Chat, train_on: TrainOn, *, exchanges: bool = False, untrained: Sequence[str] = ()
    ) -> list[MarkedText]:
        """Render the documents of a chat; find the trained characters and, if requested, the starts of exchanges.

        An exchange begins where the rendering of the previous message ends. If a single rendering does not show where
        that is, the chat counts as one exchange. With `train_on` "completion", everything after the first `chat.first`
        messages is trained. `untrained` names the parts of answers that are not trained.

        Raises a DocumentError if the trained characters cannot be located exactly.
        """
        found = None if untrained else self._shapes.located(chat, train_on, exchanges)
        return found or self._located(chat, train_on, exchanges, untrained)

    def _located(
        self, chat: Chat, train_on: TrainOn, exchanges: bool, untrained: Sequence[str] = ()
    ) -> list[MarkedText]:
        """Locate like `locate`, by rendering this chat."""
        meaning: dict[TrainOn, TrainOn] = {"each-answer": "completion", "last": "assistant"}
        options = meaning.get(train_on, train_on), exchanges, untrained
        return [self._locate(one, *options)._replace(messages=one.messages) for one in chat.documents(train_on)]

    def _locate(self, chat: Chat, train_on: TrainOn, exchanges: bool, untrained: Sequence[str]) -> MarkedText:
        """Render and locate one document."""
        if self._other is not None and self._stand_ins.of(chat) == self.stand_in:
            located = self._other._locate(chat, train_on, exchanges, untrained)
            answers = sum(message["role"] == "assistant" for message in chat.messages)
            return located._replace(counted=(*located.counted, "stood in")) if answers > 1 else located
        if not chat.messages:
            return MarkedText("", None if train_on == "all" else [], [] if exchanges else None)
        chat, leaves_out_calls = self.templates.fitted(chat)
        is_tagged = train_on == "assistant" and has_generation_tags(self.templates.source_of(chat))
        firsts = chat.exchanges() if exchanges else []
        ends = bool(firsts or chat.masked or chat.required) or not (is_tagged or train_on == "all")
        one = render_with_marks(self.templates, chat, ends=ends, tags=is_tagged)
        trained: list[Span] | None
        if train_on == "all":
            trained = None
        elif train_on == "completion":
            trained = self._completion(one)
        elif is_tagged:
            trained = self._tagged(one)
        else:
            trained = self._answers(one)
        starts = self._exchange_starts(one, firsts, trained if train_on == "assistant" else None) if exchanges else None
        text, trained, unstopped = self._with_stop_tokens(one, trained, train_on, is_tagged=is_tagged)
        weights = None
        if trained and (chat.weights or chat.partly or untrained):
            trained, weights = self._weighted(one, trained, train_on, untrained)
        counted = [f"unread {name}" for name in self.templates.unread(chat)] + ["unwritten"] * leaves_out_calls
        return MarkedText(text, trained, starts, weights, counted=(*counted, *["unstopped"] * unstopped))

    def _compared(self, chat: Chat) -> set[str]:
        """Return the texts that are compared with the text of a chat, to find out where answers begin and end."""
        own = {*self._stops, self._prompts.of(chat).requested or ""} - {""}
        return own if self._other is None else own | self._other._compared(chat)

    def _weighted(
        self, one: RenderedChat, trained: list[Span], train_on: TrainOn, untrained: Sequence[str]
    ) -> tuple[list[Span], list[float] | None]:
        """Cut trained spans where the weights of messages and their parts begin and end.

        Returns (spans, weight of each), without spans of weight 0; None if all weights are 1. A stop token after a
        message has its weight.
        """
        chat, pieces = one.chat, [(begin, end, 1.0) for begin, end in trained]
        for turn, weight in chat.weights.items():
            if chat.first <= turn < len(chat.messages):
                start, end = self._end(one, turn), self._end(one, turn + 1)
                is_alone = train_on == "assistant" or turn == len(chat.messages) - 1
                ends = [end, *(stop for begin, stop in trained if is_alone and start <= begin < end)]
                pieces = _reweighted(pieces, [(start, max(ends))], weight)
        for weight, copies in chat.partly.items():
            spans = marked_parts(self.templates, one, copies, train_on, self._stand_ins.choice)
            pieces = _reweighted(pieces, spans, weight)
        left_out = untrained_parts(self.templates, one, untrained, self._stand_ins.choice)
        pieces = _reweighted(pieces, left_out, 0)
        kept = [(begin, end) for begin, end, weight in pieces if weight]
        weights = [weight for *_, weight in pieces if weight]
        return kept, weights if {*weights} - {1.0} else None

    def _exchange_starts(self, one: RenderedChat, firsts: list[int], answers: list[Span] | None) -> list[int]:
        """Return the characters at which exchanges begin.

        In some templates, an answer in `answers` ends with the marker of the next role. An exchange then begins after
        this marker.
        """
        starts, spans = {0}, [] if one.ends is not None else answers or []
        for place in (one.places[at - 1] for at in firsts) if one.places is not None else ():
            starts.add(next((end for begin, end in spans if begin < place < end), place))
        return sorted(starts - {len(one.text)})

    def _tagged(self, one: RenderedChat) -> list[Span]:
        """Return the spans that the template's tags enclose after the prompt."""
        chat, spans = one.chat, one.generated or []
        if chat.first:
            start = self._end_of(self._rendered_prompt(chat, chat.first), one, chat.first)
            spans = [(max(start, begin), end) for begin, end in spans if end > start]
        if not spans and any(message["role"] == "assistant" for message in chat.messages[chat.first :]):
            raise record_error(
                "the chat template's generation marks hold nothing of the assistant's turns; fix them",
                "unlocated_spans",
            )
        self._check_required(one, spans)
        return _without(spans, self._masked(one, answers_only=True)) if spans else []

    def _check_required(self, one: RenderedChat, spans: list[Span]) -> None:
        """Check that the template's tags cover a part of every message whose mark requires training."""
        chat = one.chat
        turns = [turn for turn in sorted(chat.required) if turn >= chat.first]
        answers = [message for message in chat.messages[chat.first :] if message["role"] == "assistant"]
        if one.ends is None and len(spans) >= len(answers):  # without `ends`, it may be impossible to locate messages
            return
        for turn in turns:
            start, stop = self._end(one, turn), self._end(one, turn + 1)
            if not any(begin < stop and end > start for begin, end in spans):
                raise record_error(
                    f"{chat.name_of(turn)} says that it is trained, and the chat template's generation marks leave it "
                    "out; remove its weight, or choose another --chat-template"
                )

    def _answers(self, one: RenderedChat) -> list[Span]:
        """Return the spans of the assistant's messages from `first` on, except context-only messages."""
        chat = one.chat
        turns = [
            turn
            for turn in range(chat.first, len(chat.messages))
            if turn not in chat.masked and chat.messages[turn]["role"] == "assistant"
        ]
        spans = [self._written_by_ends(one, turn, turn + 1) for turn in turns]
        if None in spans:
            self._refuse_prompts(chat)
        return [span or self._written(one, turn, turn + 1) for turn, span in zip(turns, spans, strict=True)]

    def _completion(self, one: RenderedChat) -> list[Span]:
        """Return the spans after the prompt, except context-only messages."""
        first, last = one.chat.first, len(one.chat.messages)
        span = self._written_by_ends(one, first, last) or self._written(one, first, last)
        return _without([span], self._masked(one))

    def _written_by_ends(self, one: RenderedChat, first: int, last: int) -> Span | None:
        """Locate messages like `_written`, without further renderings. Returns None if this is not possible.

        `ends` are known only if the template writes the same generation prompt after every message of every chat, and
        writes nothing after the last message unless requested.
        """
        prompt = self._prompts.of(one.chat).requested if one.ends is not None and first else None
        if one.ends is None or prompt is None or not one.text.startswith(prompt, one.ends[first - 1]):
            return None
        start, end = one.ends[first - 1] + len(prompt), one.ends[last - 1]
        return (start, end) if start <= end else None

    def _written(self, one: RenderedChat, first: int, last: int) -> Span:
        """Return the span of messages `first` to `last` - 1, after the earlier messages and their generation prompt."""
        chat = one.chat
        before, end = self._rendered_prompt(chat, first), self._end(one, last)
        start = self._end_of(before, one, first, is_prompt=True)
        if last == len(chat.messages) and last - 1 not in chat.masked:
            self._check_end(one, before)
        if end < start:
            raise self._unlocated(chat, f"the chat template renders {chat.name_of(first)} as nothing")
        return start, end

    def _masked(self, one: RenderedChat, *, answers_only: bool = False) -> list[Span]:
        """Return the spans of context-only messages, each with the header that the template writes before it.

        With `answers_only`, a message of another role is left out if further renderings would be needed to locate it.
        """
        turns = [turn for turn in sorted(one.chat.masked) if turn >= one.chat.first]
        if answers_only and one.ends is None:
            turns = [turn for turn in turns if one.chat.messages[turn]["role"] == "assistant"]
        ends = {count: self._end(one, count) for count in sorted({turn + at for turn in turns for at in (0, 1)})}
        return [(ends[turn], ends[turn + 1]) for turn in turns]

    def _end(self, one: RenderedChat, count: int) -> int:
        """Return where message `count` (from 1) ends in the full rendering."""
        if count == 0:
            return 0
        if count == len(one.chat.messages):
            return len(one.text)
        if one.ends is not None:
            return one.ends[count - 1]
        return self._end_of(self.templates.render(one.chat, count), one, count - 1)

    def _rendered_prompt(self, chat: Chat, count: int) -> str:
        """Render the first messages with the generation prompt: the input from which the model writes its answer."""
        if count == 0 and isinstance(self.templates.attempt(chat, [], prompt=True), Exception):
            raise self._without_beginning(chat)
        return self.templates.render(chat, count, prompt=True)

    def _with_stop_tokens(
        self, one: RenderedChat, trained: list[Span] | None, train_on: TrainOn, *, is_tagged: bool
    ) -> tuple[str, list[Span] | None, int]:
        """Extend the trained spans (None: everything) by the stop tokens after answers.

        Returns (text, trained, unstopped): the chat's text, with a stop token appended if it needs one; the trained
        spans; and the number of answers that end without a trained stop token. In tagged chats, several spans may be
        parts of one answer.
        """
        chat, text = one.chat, one.text
        ends_with_answer = chat.messages[-1]["role"] == "assistant" and len(chat.messages) - 1 not in chat.masked
        last = trained[-1][1] if trained else len(text) if trained is None else 0
        if ends_with_answer and not text[last:].strip() and not text.rstrip().endswith(self.templates.ends):
            text += self._following(chat)
        if trained is None:
            is_last_trained = ends_with_answer and not self._prompts.of(chat).always
            return text, None, int(is_last_trained and not text.rstrip().endswith(self._stops))
        trained = [*trained]
        for at, (start, end) in enumerate(trained):
            found = self._next_end.match(text, end) if self._next_end is not None else None
            if found is not None and not text[start:end].rstrip().endswith(self.templates.ends):
                trained[at] = start, found.end()
        answers = trained if train_on == "assistant" else trained[-1:] if ends_with_answer else []
        if is_tagged and len(answers) > sum(message["role"] == "assistant" for message in chat.messages):
            gaps = [text[end:start] for (_, end), (start, _) in pairwise(answers)]
            is_last = [*(any(stop in gap for stop in self._stops) for gap in gaps), True]
            answers = [span for span, ends in zip(answers, is_last, strict=True) if ends]
        unstopped = sum(not text[start:end].rstrip().endswith(self._stops) for start, end in answers)
        return text, trained, unstopped

    def _following(self, chat: Chat) -> str:
        """Return the stop token with which a message after the last answer would begin; "" if there is none."""
        if self._next_end is None:
            return ""
        if chat.messages[-1].get("tool_calls"):
            messages = [*chat.messages, _next_messages(chat)[-1]]
            texts = [self.templates.attempt(chat, some) for some in (chat.messages, messages)]
            before, after = (text if isinstance(text, str) else "" for text in texts)
            following = after.removeprefix(before) if after.startswith(before) else ""
        else:
            following = self._prompts.of(chat).next_question
        found = self._next_end.match(following)
        return "" if found is None else found[0]

    def _check_end(self, one: RenderedChat, before: str) -> None:
        """Check that the rendering does not end in a generation prompt that was not requested.

        A text that ends with a stop token has no prompt at its end. If the template appends prompts only on request,
        the model's input `before` shows this. Otherwise, check that a further message leaves the text unchanged: the
        message would replace a prompt.
        """
        chat, text = one.chat, one.text
        if text.rstrip().endswith(self.templates.ends):
            return
        self._refuse_prompts(chat)
        prompt, asked = self._prompts.of(chat), self._prompts.of(chat).requested
        if prompt.always is False and asked and before.endswith(asked) and not text.endswith(asked):
            return
        following = (self.templates.attempt(chat, [*chat.messages, message]) for message in _next_messages(chat))
        if not any(isinstance(longer, str) and longer.startswith(text) for longer in following):
            raise self._unlocated(
                chat,
                "the chat template renders the last turn differently, or not at all, when another follows, and always "
                "or never appends a generation prompt, so the turn's end is not known",
            )

    def _refuse_prompts(self, chat: Chat) -> None:
        """Refuse a template that appends a generation prompt, or text that may be part of one, without a request."""
        if self._prompts.of(chat).always:
            raise self._unlocated(
                chat,
                "the chat template appends a generation prompt, or what may be a part of one, even if none is "
                "requested, so the end of a turn is not known",
                "if the token at the end of its text is one at which the model stops, name it in "
                "generation_config.json, ",
            )

    def _end_of(self, part: str, one: RenderedChat, turn: int, *, is_prompt: bool = False) -> int:
        """Return where `part`, the rendering of the messages before or up to `turn`, ends in the full rendering.

        With `is_prompt`, `part` is the model's input from which it writes message `turn`.
        """
        if one.text.startswith(part):
            return len(part)
        if is_prompt and turn == 0:
            raise self._without_beginning(one.chat)
        context = self.templates.attempt(one.chat, one.chat.messages[:turn]) if is_prompt else None
        if isinstance(context, str) and one.text.startswith(context) and part.startswith(context):
            raise self._unlocated(
                one.chat,
                f"the generation prompt ends with {part.removeprefix(context)[-60:]!r}, but the chat template renders "
                f"{one.chat.name_of(turn)} without it, so the answer to train is unknown",
                "add reasoning to the answer, set chat_template_kwargs such as enable_thinking, or ",
            )
        raise self._unlocated(
            one.chat,
            f"the chat template renders the chat up to {one.chat.name_of(turn)} differently if more messages follow, "
            "so the assistant's answers cannot be located exactly",
        )

    def _without_beginning(self, chat: Chat) -> DocumentError:
        """Return the error for a trained first message whose template needs a message before it."""
        return self._unlocated(
            chat,
            f"the chat begins with {chat.name_of(0)}, and without a message before it the chat template does not show "
            "where that begins",
            "begin the chat with another message, give this one weight 0, or ",
        )

    def _unlocated(self, chat: Chat, problem: str, remedy: str = "") -> DocumentError:
        """Return the error for answers that cannot be located. `remedy` is put before the general remedies."""
        ways = "mark answers with {% generation %} tags, or use --train-on each-answer or all"
        always = f"{self._stand_ins.choice(chat)}, {ways}"
        return record_error(f"{problem}; {remedy}{always}", "unlocated_spans")


def _reweighted(pieces: list[tuple[int, int, float]], spans: list[Span], weight: float) -> list[tuple[int, int, float]]:
    """Give the parts of (begin, end, weight) inside spans another weight: (2, 9, 1) becomes (2, 4, 1), (4, 9, 0.5)."""
    for start, stop in spans:
        cut = [
            part
            for begin, end, held in pieces
            for part in (
                (begin, min(end, start), held),
                (max(begin, start), min(end, stop), weight),
                (max(begin, stop), end, held),
            )
        ]
        pieces = [part for part in cut if part[0] < part[1]]
    return pieces


def _without(spans: list[Span], masked: list[Span]) -> list[Span]:
    """Remove masked spans from spans: [(2, 9)] without [(4, 6)] is [(2, 4), (6, 9)]."""
    pieces = _reweighted([(begin, end, 1) for begin, end in spans], masked, 0)
    return [(begin, end) for begin, end, weight in pieces if weight]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPrompt:
    """Generation prompt of a template."""

    requested: str | None
    """Text that the template adds after a question only on request; None if unknown."""
    always: bool | None
    """Whether the template appends a part of the prompt even without a request; None if unknown."""
    next_question: str
    """Text between an answer and the next question; "" if unknown."""


class GenerationPrompts:
    """Generation prompts of chat templates. Each is found once for all chats with the same tools and arguments."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._found: dict[tuple[str, bytes, bool, bool], GenerationPrompt] = {}

    def of(self, chat: Chat) -> GenerationPrompt:
        """Return the generation prompt of a chat's template for the chat's tools and arguments."""
        arguments = pickle.dumps((chat.tools, chat.kwargs)) if chat.tools or chat.kwargs else b""
        key = (self._templates.source_of(chat), arguments, _holds_lists(chat, "user"), _holds_lists(chat, "assistant"))
        if key not in self._found:
            if len(self._found) >= _MOST:  # every chat may have different tools
                self._found.clear()
            self._found[key] = self._find(chat)
        return self._found[key]

    def _find(self, chat: Chat) -> GenerationPrompt:
        question, answer = _message_like(chat, "user", _QUESTION), _message_like(chat, "assistant", _ANSWER)
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
        """Render messages with the tools and arguments of a chat. The text is empty if the template raises."""
        try:
            return render_with_marks(self._templates, replace(chat, messages=messages), prompt=prompt)
        except DocumentError:
            return RenderedChat(chat, "")

    def _shares_tail(self, answered: RenderedChat, prompted: RenderedChat) -> bool:
        """Whether the text after the loop over messages, if known, is a part of the prompt.

        A text that ends with a stop token is no prompt: it closes the last turn, as the next message closes other
        turns.
        """
        tail, prompt = answered.behind, prompted.behind
        if not tail or not tail.strip() or prompt is None or tail.rstrip().endswith(self._templates.ends):
            return False
        return tail.strip() in prompt or bool(_words(tail) & _words(prompt))


def _next_messages(chat: Chat) -> list[Message]:
    """Return messages that may follow a chat: a question, and after tool calls also the result of the first call."""
    question, calls = _message_like(chat, "user", "?"), chat.messages[-1].get("tool_calls")
    if not calls:
        return [question]
    return [question, {"role": "tool", "content": "?", "name": "?", "tool_call_id": calls[0].get("id", "?")}]


def _message_like(chat: Chat, role: str, content: str) -> Message:
    """Return a message whose content is text or a list of parts, as for this role in the chat."""
    listed = [{"type": "text", "text": content}]
    return {"role": role, "content": listed if _holds_lists(chat, role) else content}


def _holds_lists(chat: Chat, role: str) -> bool:
    """Whether the contents of a role are lists of parts. If the role has no messages, all roles are considered."""
    contents = [message.get("content") for message in chat.messages if message["role"] == role]
    contents = contents or [message.get("content") for message in chat.messages]
    return any(isinstance(content, list) for content in contents)


def _shares_words(answered: str, followed: str, prompted: str) -> bool | None:
    """Whether words of the prompt follow the last answer, but are not between an answer and the next question.

    Returns None if a rendering failed or leaves out contents.
    """
    if _ANSWER not in answered or _ANSWER not in followed or _QUESTION not in prompted:
        return None
    between, _, _ = followed.rpartition(_ANSWER)[2].partition(_QUESTION)
    last = _words(answered.rpartition(_ANSWER)[2]) - _words(between)
    return bool(last & _words(prompted.rpartition(_QUESTION)[2]))


def _words(text: str) -> set[str]:
    """Return the special tokens and words: "<|im_end|>[/INST] Assistant:" has <|im_end|>, [/INST] and Assistant."""
    return set(_WORD.findall(text))
