"""Chat templates that write one message after the other: where each ends is told by one rendering, not by one for each.

Most templates are: something before the messages, a loop over them, the generation prompt. Where nothing in the loop or
before it looks ahead (at `messages` but the first, at `loop.last`), and what comes after it depends on nothing but
`add_generation_prompt`, the template does the same for the first messages of a chat as it does for these in the whole
chat. That is read off its syntax tree; where it looks ahead in certain cases only, it is made to say whether one came
up. Where neither shows it, each beginning of a chat is rendered by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import nodes

END, _AHEAD = "\U000f5afd", "\U000f5afc"  # private-use characters; a chat that holds them is rendered by itself
_ENDFOR = re.compile(r"\{%([-+]?)\s*endfor\b")
_IF = re.compile(r"\{%([-+]?)\s*if\b")
_AFTER = {"add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
"""Names that what comes after the loop may use."""

_BEHIND = {"first", "index", "index0", "previtem", "changed", "cycle"}
"""What `loop` tells without looking ahead."""


@lru_cache(64)
def with_ends(source: str) -> str | None:
    """A template that puts a character behind every message and is otherwise the same; None where it may look ahead.

    Where it looks ahead under a condition only that does not (at what follows a tool's answer), it puts another
    character there, of which `ends_of` takes notice.
    """
    from jinja2 import TemplateError, nodes

    try:
        tree = _parse(source)
    except TemplateError:
        return None
    loops = [(number, node) for number, node in enumerate(tree.body) if isinstance(node, nodes.For) and _is_over(node)]
    if len(loops) != 1:
        return None
    ((at, loop),) = loops
    before, after = tree.body[:at], tree.body[at + 1 :]
    names = {name.name for node in after for name in node.find_all(nodes.Name)}
    conditions = [*_conditions(before), *_conditions(loop.body)]
    if not names <= _AFTER or None in conditions:
        return None
    *_, end = [None, *_ENDFOR.finditer(source)]  # the last may be another loop's, or a comment's; compared below
    if end is None:
        return None
    places = [(end, END)]
    ifs = [node for node in _statements(tree.body) if isinstance(node, nodes.If)]
    for tag, node in zip(_IF.finditer(source), ifs, strict=False):
        if any(node is one for one in conditions):
            places.append((tag, _AHEAD))
    marked = source
    for tag, character in sorted(places, key=lambda place: place[0].start(), reverse=True):
        at = tag.start()
        marked = f"{marked[:at]}{{%{tag[1]} if true %}}{character}{{% endif %}}{marked[at:]}"
    for body in (tree.body, loop.body):
        _insert(body, conditions)
    loop.body.append(_writing(END))
    try:
        return marked if _parse(marked) == tree else None
    except TemplateError:
        return None


def ends_of(marked: str, messages: int) -> list[int] | None:
    """Where in a text the renderings of its first message, its first two, ... end, the whole last.

    Args:
        marked: what the template `with_ends` makes of the messages.
        messages: how many there are.

    Returns:
        None where the template looked ahead, or where a message or the template's end is not as expected.
    """
    *pieces, rest = marked.split(END)
    if len(pieces) != messages or rest or _AHEAD in marked:
        return None
    return list(accumulate(map(len, pieces)))


def without_ends(marked: str) -> str:
    """What the template without these characters writes."""
    return marked.replace(END, "").replace(_AHEAD, "")


def _statements(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """All statements as they are written, one after the other; `elif` is none by itself."""
    from jinja2 import nodes

    for node in body:
        if isinstance(node, nodes.Stmt):
            yield node
        for name in ("body", "else_") if not isinstance(node, nodes.If) else ():
            yield from _statements(getattr(node, name, None) or [])
        if isinstance(node, nodes.If):
            for branch in (node, *node.elif_):
                yield from _statements(branch.body)
            yield from _statements(node.else_)


def _conditions(body: list[nodes.Node], *, nested: bool = False) -> Iterator[nodes.If | None]:
    """Yield conditions that look ahead, in others that do not: when they are reached. None: it always looks ahead."""
    from jinja2 import nodes

    for node in body:
        if not _looks_ahead(node):
            continue
        if not isinstance(node, nodes.If):
            yield None
        elif any(_looks_ahead(branch.test) for branch in (node, *node.elif_)):
            yield node if nested else None
        else:
            inner = [
                one
                for part in (node.body, *(branch.body for branch in node.elif_), node.else_)
                for one in _conditions(part, nested=True)
            ]
            yield from inner if None not in inner else [node if nested else None]


def _insert(body: list[nodes.Node], conditions: list[nodes.If | None]) -> None:
    """Write a character before each condition, in place."""
    from jinja2 import nodes

    for number in range(len(body) - 1, -1, -1):
        node = body[number]
        if isinstance(node, nodes.If):
            for part in (node.body, *(branch.body for branch in node.elif_), node.else_):
                _insert(part, conditions)
            if any(node is one for one in conditions):
                body.insert(number, _writing(_AHEAD))


def _writing(character: str) -> nodes.If:
    from jinja2 import nodes

    return nodes.If(nodes.Const(True), [nodes.Output([nodes.TemplateData(character)])], [], [])


def _parse(source: str) -> nodes.Template:
    from jinja2 import Environment

    # as transformers does, but for its tag `generation`
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    return environment.parse(source)


def _is_over(loop: nodes.For) -> bool:
    """Whether it is a plain loop over all messages."""
    from jinja2 import nodes

    iterated = isinstance(loop.iter, nodes.Name) and loop.iter.name == "messages"
    return iterated and isinstance(loop.target, nodes.Name) and not (loop.test or loop.else_ or loop.recursive)


def _looks_ahead(node: nodes.Node, *, inner: bool = False) -> bool:
    """Whether what a node writes may depend on later messages; `inner` loops have a `loop` of their own."""
    from jinja2 import nodes

    if isinstance(node, nodes.Block | nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport):
        return True
    if isinstance(node, nodes.Getitem) and node.arg == nodes.Const(0) and _is_named(node.node, "messages"):
        return False
    if isinstance(node, nodes.Getattr) and node.attr in _BEHIND and _is_named(node.node, "loop"):
        return False
    if isinstance(node, nodes.Name):
        return node.name in ("messages", "add_generation_prompt", "self") or (node.name == "loop" and not inner)
    if isinstance(node, nodes.For):
        outside = [node.target, node.iter, *([node.test] if node.test else []), *node.else_]
        return any(_looks_ahead(part, inner=inner) for part in outside) or any(
            _looks_ahead(part, inner=True) for part in node.body
        )
    return any(_looks_ahead(child, inner=inner) for child in node.iter_child_nodes())


def _is_named(node: nodes.Node, name: str) -> bool:
    from jinja2 import nodes

    return isinstance(node, nodes.Name) and node.name == name and node.ctx == "load"
