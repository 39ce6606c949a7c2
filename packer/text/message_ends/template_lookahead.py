"""Which statements of a chat template may depend on messages after the current one, by the template's syntax tree.

A template that is run on the first messages of a chat does the same as on the whole chat, until it looks ahead: until
it reads more of `messages` than the first one, or asks its loop about more than the messages so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from jinja2 import nodes

    Kind = TypeVar("Kind", bound=nodes.Node)

_PAST = {"first", "index", "index0", "previtem", "changed", "cycle"}
"""Attributes of `loop` that say nothing about later items."""


class Lookahead:
    """The names that hold messages, followed through a template's statements in order.

    Args:
        body: all statements of the template.
    """

    def __init__(self, body: Sequence[nodes.Node]) -> None:
        from jinja2 import nodes

        self.names = {"messages"}
        """All names that may hold messages: `messages`, and what is set to one of these or to its `[1:]`."""
        self.shortened: set[str] = set()
        """Those that may lack the first message after the statements seen so far."""
        aliases = [(name_of(one.target), _list_name(one.node)) for one in find_all(body, nodes.Assign)]
        for _ in aliases:  # an alias may be set before the name that it is set to
            self.names |= {name for name, held in aliases if name and held in self.names}

    def conditions(self, body: Sequence[nodes.Node], *, nested: bool = False) -> list[nodes.If | None]:
        """List the conditions that may look ahead when they are reached, innermost ones where that is enough.

        Args:
            body: statements in order; aliases that they set are noted.
            nested: whether the statements are reached in some cases only.

        Returns:
            `if` statements that other conditions lead to; None for a statement that is always reached.
        """
        from jinja2 import nodes

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

        Args:
            node: the statement or expression.
            in_inner_loop: whether `loop` is that of another loop than the one over the messages.
            in_macro: whether the node may run later, when names hold other messages.
        """
        from jinja2 import nodes

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
        from jinja2 import nodes

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
    from jinja2 import nodes

    return node.name if isinstance(node, nodes.Name) else ""


def find_all(body: Iterable[nodes.Node], kind: type[Kind]) -> Iterator[Kind]:
    """Find nodes of a kind among statements and all of their parts, in the order of the source."""
    for node in body:
        if isinstance(node, kind):
            yield node
        yield from node.find_all(kind)


def _list_name(value: nodes.Node) -> str:
    """The name in `name` or `name[1:]`, or an empty string."""
    from jinja2 import nodes

    if isinstance(value, nodes.Getitem) and value.arg == nodes.Slice(nodes.Const(1), None, None):
        value = value.node
    return name_of(value)
