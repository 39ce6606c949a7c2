"""One rendering that tells where every message ends: by a copy of the template that writes a mark after each.

Most templates write something, then one message after the other in a loop, then the generation prompt. If nothing in
the loop or before it looks ahead, the template writes the same for the first messages of a chat as for these in the
whole chat, so that the end of the loop's body is where a message ends. Example: the copy of

    {% for message in messages %}[{{ message.content }}]{% endfor %}

writes "[a]|[b]|" for two messages, where | stands for the mark: they end at 3 and 6 of "[a][b]".

Where a condition may look ahead, the copy writes another mark that says so. Every beginning of the chat is then
rendered separately, as for templates of any other form. docs/how-to/chat-templates.md explains this in full.

Templates may also mark by tags what the assistant writes: {% generation %} ... {% endgeneration %}. Marks around these
are written by the same rendering, if nothing in the template reads what they enclose.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeVar

from jinja2 import Template, TemplateError, nodes

from packer.text.conversations import Chat, TextError
from packer.text.rendering import Templates, template_tokens
from packer.text.template_environment import BEGIN_GENERATED, END_GENERATED, compiled_tree, parsed, text_node

Kind = TypeVar("Kind", bound=nodes.Node)

_OPENING = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

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

    Without `ends`, only what {% generation %} encloses is found.
    """
    source = templates.source_of(chat)
    if _may_write_marks(source) or _may_hold_marks(chat):
        return RenderedChat(chat, templates.render(chat))
    is_tagged = has_generation_tags(source) and tags_stand_alone(source)
    # with arguments of its own, a chat's template may depend on more than its messages
    copy = with_end_marks(source, marked=is_tagged) if ends and not chat.kwargs else None
    text = templates.render(chat, template=copy, marked=is_tagged)
    places, generated = None, None
    if copy is not None:
        places = ends_of(without_generation_marks(text), len(chat.messages))
        text = without_end_marks(text)
    if is_tagged:
        text, generated = split_at_marks(chat.row, text)
    return RenderedChat(chat, text, places, generated)


@lru_cache(64)
def with_end_marks(source: str, *, marked: bool = False) -> Template | None:
    """Compile a copy of a template that writes marks after messages; None if it may always look ahead.

    It writes another mark where a condition may look ahead, and a third one before a loop that may leave out the first
    message. Without these, its text is that of the template, with marks around what {% generation %} encloses if
    `marked`.
    """
    try:
        tree = parsed(source, marked=marked)
        found = _loop_and_marks(tree)
        if found is None:
            return None
        loop, marks = found
        _insert_marks(tree.body, marks)
        loop.body.append(text_node(_END))
        return compiled_tree(tree, marked=marked)
    except (TemplateError, RecursionError):
        return None


def ends_of(marked: str, count: int) -> list[int] | None:
    """Where the renderings of the first message, the first two, ... and all `count` of them end in a text.

    `marked` is what the copy `with_end_marks` of a template writes. None if the template looked ahead, left out more
    than the first message, or wrote something after the last.
    """
    head, start, body = marked.rpartition(_START)
    *pieces, rest = body.split(_END)
    left_out = count - len(pieces)
    if rest or _LOOKED_AHEAD in marked or not 0 <= left_out <= len(start):
        return None
    return list(accumulate(map(len, pieces), initial=len(head)))[1 - left_out :]


def text_behind_messages(marked: str) -> str | None:
    """What the copy `with_end_marks` of a template writes after the last message; None without a message."""
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
    missing = nodes.Not(nodes.Test(nodes.Name("add_generation_prompt", "load"), "defined", [], [], None, None))
    return isinstance(node, nodes.If) and node.test == missing and not (node.elif_ or node.else_)


def _loop_and_marks(tree: nodes.Template) -> tuple[nodes.For, dict[int, str]] | None:
    """Find the loop over messages, and the marks to write before statements, by the statements' ids.

    None if the template may always look ahead, or is not of the form that can be marked.
    """
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


def _insert_marks(body: list[nodes.Node], marks: dict[int, str]) -> None:
    """Insert marks before statements, in place."""
    for at in range(len(body) - 1, -1, -1):
        node = body[at]
        if isinstance(node, nodes.If | nodes.For):
            for part in branches(node) if isinstance(node, nodes.If) else [node.body]:
                _insert_marks(part, marks)
        if id(node) in marks:
            body.insert(at, text_node(marks[id(node)]))


@lru_cache(64)
def has_generation_tags(source: str) -> bool:
    """Whether a template has the tag; a comment, a string or raw text that names it does not count."""
    tokens = template_tokens(source) if _OPENING.search(source) else []
    return any(
        kind == "block_begin" and following == ("name", "generation") for (kind, _), following in pairwise(tokens)
    )


@lru_cache(64)
def tags_stand_alone(source: str) -> bool:
    """Whether a rendering with marks is the template's text plus the marks: nothing reads what the tags enclose.

    This holds if tags are in conditions and loops only, not in macros, captured text or filters.
    """
    try:
        tree = parsed(source, marked=True)
        return sum(map(_is_mark, tree.find_all(nodes.Output))) == _count_in_place(tree.body)
    except (TemplateError, RecursionError):
        return False


def split_at_marks(row: int, marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Take the marks out of a text and return the spans between them: "a<b>c" is "abc" with (1, 2)."""
    text, *pieces = marked.split(BEGIN_GENERATED)
    if END_GENERATED in text:
        raise misplaced(row)
    parts, at = [text], len(text)
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        inside, end, behind = piece.partition(END_GENERATED)
        if not end or END_GENERATED in behind:
            raise misplaced(row)
        start, at = at, at + len(inside)
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], at)
        elif inside:
            spans.append((start, at))
        at += len(behind)
        parts += (inside, behind)
    return "".join(parts), spans


def without_generation_marks(marked: str) -> str:
    """The text without the marks."""
    return marked.replace(BEGIN_GENERATED, "").replace(END_GENERATED, "")


def misplaced(row: int) -> TextError:
    """The error for a template in which the place of what the tags enclose is lost."""
    return TextError(
        row,
        "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
        "marks, so its place is not known; fix the template, or --train-on all",
        "unlocated_spans",
    )


def _is_mark(node: nodes.Node) -> bool:
    """Whether a statement writes the mark before what a tag encloses."""
    return isinstance(node, nodes.Output) and node.nodes == [nodes.TemplateData(BEGIN_GENERATED)]


def _count_in_place(body: Sequence[nodes.Node]) -> int:
    """Count the tags that write straight into the text, by their marks."""
    count = 0
    for node in body:
        if isinstance(node, nodes.For) and not node.recursive:
            count += _count_in_place([*node.body, *node.else_])
        elif isinstance(node, nodes.If):
            count += _count_in_place([*node.body, *node.elif_, *node.else_])
        else:
            count += _is_mark(node)
    return count


_PAST = {"first", "index", "index0", "previtem", "changed", "cycle"}
"""Attributes of `loop` that say nothing about later items."""


class Lookahead:
    """The names that hold messages, followed through a template's statements in order."""

    def __init__(self, body: Sequence[nodes.Node]) -> None:
        self.names = {"messages"}
        """All names that may hold messages: `messages`, and what is set to one of these or to its `[1:]`."""
        self.shortened: set[str] = set()
        """Those that may lack the first message after the statements seen so far."""
        aliases = [(name_of(one.target), _list_name(one.node)) for one in find_all(body, nodes.Assign)]
        for _ in aliases:  # an alias may be set before the name that it is set to
            self.names |= {name for name, held in aliases if name and held in self.names}

    def conditions(self, body: Sequence[nodes.Node], *, nested: bool = False) -> list[nodes.If | None]:
        """List the conditions that may look ahead when they are reached, innermost ones where that is enough.

        These are `if` statements that other conditions lead to, and None for a statement that is always reached; it is
        not if the statements are `nested`. Aliases that the statements set are noted.
        """
        found: list[nodes.If | None] = []
        for node in body:
            if self._sets_alias(node) or not self.looks_ahead(node):
                continue
            inner: list[nodes.If | None] = [None]
            if isinstance(node, nodes.If) and not any(self.looks_ahead(one.test) for one in (node, *node.elif_)):
                inner = [one for branch in branches(node) for one in self.conditions(branch, nested=True)]
            if None in inner:
                inner = [node if nested and isinstance(node, nodes.If) else None]
            found += inner
        return found

    def looks_ahead(self, node: nodes.Node, *, in_inner_loop: bool = False, in_macro: bool = False) -> bool:
        """Whether a statement or an expression may depend on later messages.

        In an inner loop, `loop` is not that over the messages; a macro may run later, when names hold other messages.
        """
        if isinstance(node, nodes.Block | nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport):
            return True
        if isinstance(node, nodes.Getitem) and node.arg == nodes.Const(0) and self.is_list(node.node):
            return in_macro or name_of(node.node) in self.shortened
        if isinstance(node, nodes.Getattr) and node.attr in _PAST and name_of(node.node) == "loop":
            return False
        if isinstance(node, nodes.Name):
            return node.name in {*self.names, "add_generation_prompt", "self"} or (
                node.name == "loop" and not in_inner_loop
            )
        in_macro = in_macro or isinstance(node, nodes.Macro | nodes.CallBlock)
        loop_body = {id(one) for one in node.body} if isinstance(node, nodes.For) else ()
        return any(
            self.looks_ahead(child, in_inner_loop=in_inner_loop or id(child) in loop_body, in_macro=in_macro)
            for child in node.iter_child_nodes()
        )

    def is_list(self, node: nodes.Node) -> bool:
        """Whether a node is a name that may hold messages."""
        return name_of(node) in self.names

    def _sets_alias(self, node: nodes.Node) -> bool:
        """Whether a statement sets a name to the messages, or to those without the first; note which."""
        if not (isinstance(node, nodes.Assign) and name_of(node.target) and _list_name(node.node) in self.names):
            return False
        if not isinstance(node.node, nodes.Name) or node.node.name in self.shortened:
            self.shortened.add(name_of(node.target))
        return True


def branches(node: nodes.If) -> list[list[nodes.Node]]:
    """The statements of every case of a condition."""
    return [node.body, *(branch.body for branch in node.elif_), node.else_]


def name_of(node: nodes.Node) -> str:
    """The name that a node is, or an empty string."""
    return node.name if isinstance(node, nodes.Name) else ""


def find_all(body: Iterable[nodes.Node], kind: type[Kind]) -> Iterator[Kind]:
    """Find nodes of a kind among statements and all of their parts, in the order of the source."""
    for node in body:
        if isinstance(node, kind):
            yield node
        yield from node.find_all(kind)


def _list_name(value: nodes.Node) -> str:
    """The name in `name` or `name[1:]`, or an empty string."""
    if isinstance(value, nodes.Getitem) and value.arg == nodes.Slice(nodes.Const(1), None, None):
        value = value.node
    return name_of(value)
