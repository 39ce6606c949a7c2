"""Chat templates that write one message after the other: where each ends is told by one rendering, not by one for each.

Most templates are: something before the messages, a loop over them, the generation prompt. Where nothing in the loop or
before it looks ahead (at `messages` but the first, at `loop.last`), and what comes after it depends on nothing but
`add_generation_prompt`, the template does the same for the first messages of a chat as it does for these in the whole
chat. That is read off its syntax tree; where it does not show, each beginning of a chat is rendered by itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import nodes

_END = "\U000f5afd"  # a private-use character; a chat that holds it is rendered message by message
_ENDFOR = re.compile(r"\{%([-+]?)\s*endfor\b")
_AFTER = {"add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
"""Names that what comes after the loop may use."""

_BEHIND = {"first", "index", "index0", "previtem", "changed", "cycle"}
"""What `loop` tells without looking ahead."""


@lru_cache(64)
def with_ends(source: str) -> str | None:
    """A template that puts a character behind every message and is otherwise the same; None where it may look ahead."""
    from jinja2 import TemplateError, nodes

    tags = list(_ENDFOR.finditer(source))
    if not tags:
        return None
    at, sign = tags[-1].start(), tags[-1][1]
    marked = f"{source[:at]}{{%{sign} if true %}}{_END}{{% endif %}}{source[at:]}"
    try:
        tree, other = _parse(source), _parse(marked)
    except TemplateError:
        return None
    loops = [(number, node) for number, node in enumerate(tree.body) if isinstance(node, nodes.For) and _is_over(node)]
    if len(loops) != 1:
        return None
    ((at, loop),) = loops
    before, after = tree.body[:at], tree.body[at + 1 :]
    names = {name.name for node in after for name in node.find_all(nodes.Name)}
    if not names <= _AFTER or any(_looks_ahead(node) for node in [*before, *loop.body]):
        return None
    loop.body.append(nodes.If(nodes.Const(True), [nodes.Output([nodes.TemplateData(_END)])], [], []))
    return marked if tree == other else None  # the last `endfor` may be another loop's, or a comment's


def ends_of(marked: str, text: str, messages: int) -> list[int] | None:
    """Where in a text the renderings of its first message, its first two, ... end, the whole last.

    Args:
        marked: what the template `with_ends` makes of the messages.
        text: what the template makes of them.
        messages: how many there are.

    Returns:
        None where a message or the template's end is not as expected.
    """
    *pieces, rest = marked.split(_END)
    if len(pieces) != messages or rest or "".join(pieces) != text:
        return None
    return list(accumulate(map(len, pieces)))


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
