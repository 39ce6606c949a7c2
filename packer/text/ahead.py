"""What the syntax of a chat template says of its messages: which names hold them, and what may depend on later ones.

For every beginning of a chat the template is the same program; what it does may differ where it looks ahead: where it
reads more of the messages than the first, or than those that its loop has come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    from jinja2 import nodes

    Kind = TypeVar("Kind", bound=nodes.Node)

_BEHIND = {"first", "index", "index0", "previtem", "changed", "cycle"}
"""What `loop` tells without looking ahead."""

_STRINGS = {"lower", "upper", "trim", "string"}
_KINDS = {"defined", "undefined", "none", "string", "mapping"}
"""Filters and tests that use nothing up, as others do a generator."""


class Messages:
    """The names that hold messages, as the statements of a template are gone through one after the other."""

    def __init__(self, body: Sequence[nodes.Node]) -> None:
        from jinja2 import nodes

        found = [name for node in body for name in _all(node, nodes.Name)]
        self.stored = Counter(name.name for name in found if name.ctx != "load")
        """How often each name is given a value, as a loop's or a macro's too."""
        self.names = {"messages"}
        """All names that may hold some of them anywhere; wherever one is read otherwise than here, it looks ahead."""
        self.held = {"messages": True}
        """Names that hold all messages here, or (False) maybe all but some first ones, in order."""
        sets = [(name_of(one.target), _listed(one.node)) for node in body for one in _all(node, nodes.Assign)]
        for _ in sets:  # of one another
            self.names |= {name for name, of in sets if name and of in self.names}

    def conditions(
        self, body: Sequence[nodes.Node], *, nested: bool = False, setting: bool = True
    ) -> list[nodes.If | None]:
        """Conditions that look ahead, in others that do not: when they are reached. None: it always looks ahead.

        Args:
            body: statements, one after the other.
            nested: whether they are reached in certain cases only.
            setting: whether they may set names to the messages, which `held` then tells; not within a loop.
        """
        from jinja2 import nodes

        found: list[nodes.If | None] = []
        for node in body:
            if (setting and self._set(node)) or not self.looks_ahead(node):
                continue
            itself = node if nested and isinstance(node, nodes.If) else None
            if not isinstance(node, nodes.If) or any(self.looks_ahead(one.test) for one in (node, *node.elif_)):
                found.append(itself)
                continue
            entered, inner, left = self.held, [], []
            for part in branches(node):
                self.held = dict(entered)
                inner += self.conditions(part, nested=True, setting=setting)
                left.append(self.held)
            unknown = None in inner
            # what a condition that looks ahead sets does not matter: where it is reached, nothing is told
            self.held = entered if unknown else {name: all(one[name] for one in left) for name in _common(left)}
            found += [itself] if unknown else inner
        return found

    def notes(self, loop: nodes.Node) -> list[nodes.Assign] | None:
        """What a loop over all messages sets in namespaces, where it does nothing else; None where it may.

        It writes nothing, looks at none ahead and uses nothing up, so that all that is left of a message is set here.
        """
        from jinja2 import nodes

        if not is_plain(loop) or not self.held.get(name_of(loop.iter)) or any(map(self.looks_ahead, loop.body)):
            return None
        found = list(_notes(loop.body))
        expressions = [one for node in loop.body for one in _all(node, nodes.Expr)]
        operands = [operand for node in loop.body for operand in _all(node, nodes.Operand)]
        looked_in = [name.name for one in operands if one.op in ("in", "notin") for name in _all(one, nodes.Name)]
        if None in found or not all(map(_is_simple, expressions)) or {*looked_in} - {name_of(loop.target)}:
            return None
        return [one for one in found if one is not None]

    def looks_ahead(self, node: nodes.Node, *, inner: bool = False, deferred: bool = False) -> bool:
        """Whether what a node does may depend on later messages.

        Args:
            node: a statement or an expression.
            inner: whether it is in a loop within the one over the messages, with a `loop` of its own.
            deferred: whether it is in a macro, which may be called when names hold other messages.
        """
        from jinja2 import nodes

        if isinstance(node, nodes.Block | nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport):
            return True
        if isinstance(node, nodes.Getitem) and node.arg == nodes.Const(0) and name_of(node.node) in self.names:
            return not self.held.get(name_of(node.node)) or (deferred and name_of(node.node) in self.stored)
        if isinstance(node, nodes.Getattr) and node.attr in _BEHIND and name_of(node.node) == "loop":
            return False
        if isinstance(node, nodes.Name):
            return node.name in {*self.names, "add_generation_prompt", "self"} or (node.name == "loop" and not inner)
        deferred = deferred or isinstance(node, nodes.Macro | nodes.CallBlock)
        if isinstance(node, nodes.For):
            outside = [node.target, node.iter, *([node.test] if node.test else []), *node.else_]
            return any(self.looks_ahead(part, inner=inner, deferred=deferred) for part in outside) or any(
                self.looks_ahead(part, inner=True, deferred=deferred) for part in node.body
            )
        return any(self.looks_ahead(child, inner=inner, deferred=deferred) for child in node.iter_child_nodes())

    def _set(self, node: nodes.Node) -> bool:
        """Take notice of a name set to all messages that another holds, or to all but their first."""
        from jinja2 import nodes

        if not isinstance(node, nodes.Assign) or not isinstance(node.target, nodes.Name):
            return False
        of = _listed(node.node)
        if of not in self.held:
            return False
        self.held[node.target.name] = self.held[of] and isinstance(node.node, nodes.Name)
        return True


def branches(node: nodes.If) -> list[list[nodes.Node]]:
    """What a condition does, case by case."""
    return [node.body, *(branch.body for branch in node.elif_), node.else_]


def is_plain(node: nodes.Node) -> TypeGuard[nodes.For]:
    """Whether it is a loop over all that a name holds."""
    from jinja2 import nodes

    return (
        isinstance(node, nodes.For)
        and isinstance(node.iter, nodes.Name)
        and isinstance(node.target, nodes.Name)
        and not (node.test or node.else_ or node.recursive)
    )


def name_of(node: nodes.Node) -> str:
    """The name that a node is, or nothing."""
    from jinja2 import nodes

    return node.name if isinstance(node, nodes.Name) else ""


def _listed(value: nodes.Node) -> str:
    """The name in `name` or `name[1:]`, or nothing."""
    from jinja2 import nodes

    if isinstance(value, nodes.Getitem) and value.arg == nodes.Slice(nodes.Const(1), None, None):
        value = value.node
    return name_of(value)


def _notes(body: Sequence[nodes.Node]) -> Iterator[nodes.Assign | None]:
    """Yield what is set in namespaces, and None for what is done besides."""
    from jinja2 import nodes

    for node in body:
        if isinstance(node, nodes.If):
            for part in branches(node):
                yield from _notes(part)
        elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.NSRef):
            yield node
        elif not isinstance(node, nodes.Break | nodes.Continue) and not (
            isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name)  # gone with the iteration
        ):
            yield None


def _is_simple(node: nodes.Expr) -> bool:
    """Whether an expression, its parts left out, has no effect but its value."""
    from jinja2 import nodes

    if isinstance(node, nodes.Filter | nodes.Test):
        known = _STRINGS if isinstance(node, nodes.Filter) else _KINDS
        return node.name in known and not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)
    plain = nodes.Const | nodes.Name | nodes.NSRef | nodes.Getattr | nodes.Getitem | nodes.Compare
    return isinstance(node, plain | nodes.And | nodes.Or | nodes.Not | nodes.Add | nodes.Concat | nodes.CondExpr)


def _all(node: nodes.Node, kind: type[Kind]) -> Iterator[Kind]:
    """A node, if it is of a kind, and all of its parts that are."""
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)


def _common(held: list[dict[str, bool]]) -> set[str]:
    return set(held[0]).intersection(*held[1:])
