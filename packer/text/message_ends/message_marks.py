r"""One rendering that tells where every message ends: by a copy of the template that writes a mark after each.

Most templates write something, then one message after the other in a loop, then the generation prompt. If nothing in
the loop or before it looks ahead, the template writes the same for the first messages of a chat as for these in the
whole chat, so that the end of the loop's body is where a message ends. Example: the copy of

    {% for message in messages %}[{{ message.content }}]{% endfor %}

writes "[a]|[b]|" for two messages, where | stands for the mark: they end at 3 and 6 of "[a][b]".

Where a condition may look ahead, the copy writes another mark that says so. Every beginning of the chat is then
rendered separately, as for templates of any other form. docs/how-to/chat-templates.md explains this in full.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from packer.text.message_ends.generation_tags import (
    has_generation_tags,
    split_at_marks,
    tags_stand_alone,
    without_generation_marks,
)
from packer.text.message_ends.template_lookahead import Lookahead, branches, find_all, name_of
from packer.text.rendering import Chat, Templates
from packer.text.template_environment import parsed

if TYPE_CHECKING:
    from jinja2 import nodes

# private-use characters; all marks begin with the same three bytes in UTF-8
_END, _LOOKED_AHEAD, _START = "\U000f5afd", "\U000f5afc", "\U000f5afb"
_FIRST_BYTES = _END.encode()[:3]
_AFTER = {"add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
"""Names that the statements after the loop may read."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A whole chat as text."""

    chat: Chat
    text: str
    ends: list[int] | None = None
    """Where the renderings of its first message, its first two, ... end in the text; None if this rendering does not
    show it."""
    generated: list[tuple[int, int]] | None = None
    """Spans in {% generation %} tags; None if there are no tags, or this rendering does not show them."""


def render_with_ends(templates: Templates, chat: Chat, *, ends: bool = True) -> RenderedChat:
    """Render a chat once, with the marks that do not change what its template writes.

    Args:
        templates: the chat's template, or several of which it has one.
        chat: the conversation.
        ends: whether to find where messages end, or only what {% generation %} encloses.

    Raises:
        TextError: the template refuses the chat, or moves what it marks as generated.
    """
    source = templates.source_of(chat)
    if _may_write_marks(source) or _may_hold_marks(chat):
        return RenderedChat(chat, templates.render(chat))
    # with arguments of its own, a chat's template may depend on more than its messages
    copy = mark_ends(source) if ends and not chat.kwargs else None
    is_tagged = has_generation_tags(source) and tags_stand_alone(source)
    text = templates.render(chat, source=copy, marked=is_tagged)
    places, generated = None, None
    if copy is not None:
        places = ends_of(without_generation_marks(text), len(chat.messages))
        text = without_end_marks(text)
    if is_tagged:
        text, generated = split_at_marks(chat.row, text)
    return RenderedChat(chat, text, places, generated)


@lru_cache(64)
def mark_ends(source: str) -> str | None:
    """Make a copy of a template that writes marks after messages; None if it may always look ahead.

    It writes another mark where a condition may look ahead, and a third one before a loop that may leave out the first
    message. Without these, its text is that of the template.
    """
    from jinja2 import TemplateError

    try:
        tree = parsed(source)
        found = _loop_and_marks(tree)
        if found is None:
            return None
        loop, marks = found
        marked = _write_marks(source, tree, marks)
        _insert_marks(tree.body, marks)
        loop.body.append(_mark_node(_END))
        return marked if parsed(marked) == tree else None
    except TemplateError:
        return None


def ends_of(marked: str, count: int) -> list[int] | None:
    """Where the renderings of the first message, the first two, ... and all `count` of them end in a text.

    Args:
        marked: what the copy `mark_ends` of a template writes.
        count: number of messages.

    Returns:
        None if the template looked ahead, left out more than the first message, or wrote something after the last.
    """
    head, start, body = marked.rpartition(_START)
    *pieces, rest = body.split(_END)
    left_out = count - len(pieces)
    if rest or _LOOKED_AHEAD in marked or not 0 <= left_out <= len(start):
        return None
    return list(accumulate(map(len, pieces), initial=len(head)))[1 - left_out :]


def text_behind_messages(marked: str) -> str | None:
    """What the copy `mark_ends` of a template writes after the last message; None without a message."""
    _, end, text = marked.rpartition(_END)
    return text if end else None


def without_end_marks(marked: str) -> str:
    """The text that the template itself writes."""
    return marked.replace(_END, "").replace(_LOOKED_AHEAD, "").replace(_START, "")


@lru_cache(64)
def _may_write_marks(source: str) -> bool:
    """Whether a template may itself write the characters of marks."""
    return _FIRST_BYTES in source.encode() or "\\u000f5af" in source.lower()


def _may_hold_marks(chat: Chat) -> bool:
    """Whether a chat may itself hold the characters of marks."""
    return _FIRST_BYTES in pickle.dumps((chat.messages, chat.tools, chat.kwargs), protocol=4)  # strings are UTF-8 there


def _is_default(node: nodes.Node) -> bool:
    """Whether a statement sets `add_generation_prompt` if it is missing, which it never is."""
    from jinja2 import nodes

    missing = nodes.Not(nodes.Test(nodes.Name("add_generation_prompt", "load"), "defined", [], [], None, None))
    return isinstance(node, nodes.If) and node.test == missing and not (node.elif_ or node.else_)


def _loop_and_marks(tree: nodes.Template) -> tuple[nodes.For, dict[int, str]] | None:
    """Find the loop over messages, and the marks to write before statements, by the statements' ids.

    Returns:
        None if the template may always look ahead, or is not of the form that can be marked.
    """
    from jinja2 import nodes

    body = [node for node in tree.body if not _is_default(node)]
    lookahead = Lookahead(body)
    loops = [at for at, node in enumerate(body) if isinstance(node, nodes.For) and lookahead.is_list(node.iter)]
    if not loops:
        return None
    loop, before, after = body[loops[-1]], body[: loops[-1]], body[loops[-1] + 1 :]
    assert isinstance(loop, nodes.For)
    if loop.test or loop.else_ or loop.recursive or not name_of(loop.target) or lookahead.is_list(loop.target):
        return None
    stored = {name.name for name in find_all(body, nodes.Name) if name.ctx != "load"}
    if not {name.name for name in find_all(after, nodes.Name)} <= _AFTER - stored:
        return None
    conditions = lookahead.conditions(before)
    is_shortened = name_of(loop.iter) in lookahead.shortened
    conditions += lookahead.conditions(loop.body)
    if is_shortened and any(loop.find_all((nodes.Break, nodes.Continue))):
        return None  # such a loop may leave out other messages than the first
    marks = {id(loop): _START} if is_shortened else {}
    for condition in conditions:
        if condition is None:
            return None
        marks[id(condition)] = _LOOKED_AHEAD
    return loop, marks


def _write_marks(source: str, tree: nodes.Template, marks: dict[int, str]) -> str:
    """Write marks into the source: before the tags of statements, and before the last loop's end.

    Tags are found as text, the n-th `if` for the n-th condition. A tag in a comment or a string shifts that; the copy
    then differs from the tree with the same marks.
    """
    from jinja2 import nodes

    places = [(tag, _END) for tag in [*re.finditer(r"\{%([-+]?)\s*endfor\b", source)][-1:]]
    branched = {id(branch) for node in tree.find_all(nodes.If) for branch in node.elif_}
    for name, kind in (("if", nodes.If), ("for", nodes.For)):
        tags = re.finditer(rf"\{{%([-+]?)\s*{name}\b", source)
        ids = (id(node) for node in tree.find_all(kind) if id(node) not in branched)
        places += [(tag, marks[at]) for tag, at in zip(tags, ids, strict=False) if at in marks]
    for tag, mark in sorted(places, key=lambda place: place[0].start(), reverse=True):
        at = tag.start()  # the mark's own tag takes over what the tag does to white space before it
        source = f"{source[:at]}{{%{tag[1]} if true %}}{mark}{{% endif %}}{source[at:]}"
    return source


def _insert_marks(body: list[nodes.Node], marks: dict[int, str]) -> None:
    """Insert the same marks into the tree, in place."""
    from jinja2 import nodes

    for at in range(len(body) - 1, -1, -1):
        node = body[at]
        if isinstance(node, nodes.If | nodes.For):
            for part in branches(node) if isinstance(node, nodes.If) else [node.body]:
                _insert_marks(part, marks)
        if id(node) in marks:
            body.insert(at, _mark_node(marks[id(node)]))


def _mark_node(mark: str) -> nodes.Node:
    (node,) = parsed(f"{{% if true %}}{mark}{{% endif %}}").body
    return node
