"""Find where every message ends in one rendering, with a copy of the template that writes a mark after each message.

Most templates write a beginning, then the messages in a loop, then the generation prompt. If the loop writes the first
N messages before the template reads a later one, a chat of these N messages alone begins with the same text. A message
therefore ends where the body of the loop ends. Example: the copy of

    {% for message in messages %}[{{ message.content }}]{% endfor %}

writes "[a]|[b]|" for two messages, where | stands for the mark: they end at 3 and 6 of "[a][b]".

The rendering records which messages the template reads. If the template reads a message too early, or does not have
this form, every beginning of the chat is rendered separately. docs/how-to/chat-templates.md defines where a message
ends.

Templates may also tag the assistant's text: {% generation %} ... {% endgeneration %}. The same rendering writes marks
around the tagged text, if nothing in the template reads that text.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from jinja2 import Template, TemplateError, nodes

from packer.sources.documents import DocumentError
from packer.text.conversations import Chat, record_error
from packer.text.rendering import Templates
from packer.text.template_environment import (
    BEGIN_GENERATED,
    END_GENERATED,
    MARK_BYTES,
    LoopProgress,
    WatchedMessages,
    compiled_tree,
    parsed,
    text_node,
    watch_loop,
)

# private-use characters
_START, _END = "\U000f5afb", "\U000f5afd"
_AFTER = {"add_generation_prompt", "enable_thinking", "bos_token", "eos_token", "pad_token", "unk_token"}
"""Names that statements after the loop may read."""
_OTHER_SOURCES = (nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """Text of a whole chat."""

    chat: Chat
    text: str
    places: list[int] | None = None
    """Ends of the first message, the second, ... in this text; None if unknown."""
    ends: list[int] | None = None
    """`places`, if this rendering shows that a chat of only the first messages ends at each place; otherwise None."""
    behind: str | None = None
    """Text that the template writes after the last message; None if this rendering does not show it."""
    generated: list[tuple[int, int]] | None = None
    """Spans in {% generation %} tags, if requested."""


def render_with_marks(
    templates: Templates, chat: Chat, *, prompt: bool = False, ends: bool = True, tags: bool = False
) -> RenderedChat:
    """Render a chat once, with marks, and remove the marks from the text.

    With `ends`, find where its messages end, if possible. With `tags`, find the text in {% generation %} tags; this
    takes a second rendering if something in the template may read the tagged text.
    """
    if not (ends or tags):
        return RenderedChat(chat, templates.render(chat, prompt=prompt))
    source = templates.source_of(chat)
    held = pickle.dumps((chat.messages, chat.tools, chat.kwargs), protocol=4)  # pickle stores strings as UTF-8
    is_free = not (MARK_BYTES in held or _may_write_marks(source))
    of_all, in_place = _count_tags(source)
    marked = tags and is_free and of_all == in_place
    copy, is_exact = _with_end_marks(source, marked=marked) if ends and is_free else (None, False)
    progress, written = LoopProgress(), None
    if copy is not None:
        messages = WatchedMessages(chat.messages, progress)
        written = templates.attempt(chat, messages, prompt=prompt, template=copy)
    places, behind = None, None
    if isinstance(written, str):
        untagged = written.replace(BEGIN_GENERATED, "").replace(END_GENERATED, "") if marked else written
        places, after = _places(untagged, progress, len(chat.messages))
        behind, is_exact = after if is_exact else None, is_exact and not (progress.looked_ahead or after)
        text = written.replace(_START, "").replace(_END, "")
    else:  # the template raised for watched messages, but may accept a list
        text = templates.render(chat, prompt=prompt, marked=marked)
    generated = None
    if marked:
        text, generated = split_at_marks(text, BEGIN_GENERATED, END_GENERATED)
    elif tags:
        generated = _generated(templates, chat, text)
    return RenderedChat(chat, text, places, places if is_exact else None, behind, generated)


def _generated(templates: Templates, chat: Chat, text: str) -> list[tuple[int, int]]:
    """Find the text in {% generation %} tags by a separate rendering, which must not change the text."""
    if mark := next((mark for mark in (BEGIN_GENERATED, END_GENERATED) if mark in text), None):
        raise record_error(
            f"a text holds U+{ord(mark):X}, a character for private use, with which packer marks what "
            "{% generation %} encloses; remove it",
            "invalid_text",
        )
    unmarked, spans = split_at_marks(templates.render(chat, marked=True), BEGIN_GENERATED, END_GENERATED)
    if unmarked != text:
        raise _misplaced()
    return spans


@lru_cache(64)
def _with_end_marks(source: str, *, marked: bool) -> tuple[Template | None, bool]:
    """Compile a copy of a template that writes a mark before its last loop, and one after every message in the loop.

    With `marked`, it also writes marks around {% generation %} tags. Returns (template, is_exact). The template is None
    if its form is not supported. is_exact says whether a chat of the first messages begins with the same text: the part
    after the loop does not depend on messages, and only this part reads `add_generation_prompt`.
    """
    try:
        tree = parsed(source, marked=marked)
        tree.body = [node for node in tree.body if not _is_default(node)]
        at = max((at for at, node in enumerate(tree.body) if isinstance(node, nodes.For)), default=None)
        prints = any(node.name == "pprint" for node in tree.find_all(nodes.Filter))  # prints only lists correctly
        if at is None or any(tree.find_all(_OTHER_SOURCES)) or prints:
            return None, False
        loop, before, after = tree.body[at], nodes.Template(tree.body[: at + 1]), nodes.Template(tree.body[at + 1 :])
        stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        asks_early = any(name.name == "add_generation_prompt" for name in before.find_all(nodes.Name))
        is_same_after = {name.name for name in after.find_all(nodes.Name)} <= _AFTER - stored
        if not isinstance(loop, nodes.For) or loop.else_ or loop.recursive:
            return None, False
        watch_loop(loop, _END)
        tree.body.insert(at, text_node(_START))
        return compiled_tree(tree, marked=marked), is_same_after and not asks_early
    except (TemplateError, RecursionError):
        return None, False


def _is_default(node: nodes.Node) -> bool:
    """Whether a statement sets a default for `add_generation_prompt`; packer always passes this argument."""
    missing = nodes.Not(nodes.Test(nodes.Name("add_generation_prompt", "load"), "defined", [], [], None, None))
    return isinstance(node, nodes.If) and node.test == missing and not (node.elif_ or node.else_)


def _places(marked: str, progress: LoopProgress, count: int) -> tuple[list[int] | None, str | None]:
    """Return (ends of the messages in the text, text after the last one); both are None if unknown."""
    head, _, body = marked.rpartition(_START)
    *pieces, behind = body.split(_END)
    if progress.left_out + len(pieces) != count:
        return None, None
    ends = [len(head)] * progress.left_out + [*accumulate(map(len, pieces), initial=len(head))][1:]
    return ends, behind


@lru_cache(64)
def _may_write_marks(source: str) -> bool:
    """Whether a template may itself write the characters of marks."""
    return MARK_BYTES in source.encode() or "\\u000f5af" in source.lower()


def has_generation_tags(source: str) -> bool:
    """Whether a template has {% generation %} tags. Comments, strings and raw text with this name do not count."""
    return _count_tags(source)[0] > 0


@lru_cache(64)
def _count_tags(source: str) -> tuple[int, int]:
    """Return (number of tags, number of tags outside of macros, captured text and filters).

    Both are 0 if the template's syntax is wrong.
    """
    try:
        tree = parsed(source, marked=True)
        return sum(map(_is_mark, tree.find_all(nodes.Output))), _count_in_place(tree.body)
    except (TemplateError, RecursionError):
        return 0, 0


def split_at_marks(marked: str, begin: str, end: str) -> tuple[str, list[tuple[int, int]]]:
    """Remove the marks from a text, and return it with the spans between them: "a<b>c" is "abc" with (1, 2)."""
    text, *pieces = marked.split(begin)
    if end in text:
        raise _misplaced()
    parts, at = [text], len(text)
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        inside, found, behind = piece.partition(end)
        if not found or end in behind:
            raise _misplaced()
        start, at = at, at + len(inside)
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], at)
        elif inside:
            spans.append((start, at))
        at += len(behind)
        parts += (inside, behind)
    return "".join(parts), spans


def _misplaced() -> DocumentError:
    """Return the error for a template that moves or changes tagged text."""
    return record_error(
        "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
        "marks, so its place is not known; fix the template, or --train-on all",
        "unlocated_spans",
    )


def _is_mark(node: nodes.Node) -> bool:
    """Whether a statement writes the mark at the beginning of tagged text."""
    return isinstance(node, nodes.Output) and node.nodes == [nodes.TemplateData(BEGIN_GENERATED)]


def _count_in_place(body: Sequence[nodes.Node]) -> int:
    """Count the tags that write directly to the text, by their marks."""
    count = 0
    for node in body:
        if isinstance(node, nodes.For) and not node.recursive:
            count += _count_in_place([*node.body, *node.else_])
        elif isinstance(node, nodes.If):
            count += _count_in_place([*node.body, *node.elif_, *node.else_])
        else:
            count += _is_mark(node)
    return count
