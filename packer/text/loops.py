"""Chat templates that write one message after the other: where each ends is told by one rendering, not by one for each.

Most templates are: something before the messages, a loop over them, the generation prompt. Where nothing in the loop or
before it looks ahead (at `messages` but the first, at `loop.last`), and what comes after it depends on nothing but
`add_generation_prompt`, the template does the same for the first messages of a chat as it does for these in the whole
chat. That is read off its syntax tree (ahead.py), also where

- the loop is over `messages[1:]`, in certain cases or always, by whatever name: nothing but what stands before the loop
  is then written for the first message;
- another loop before it notes something of the messages (system prompts): the same for every beginning, unless it comes
  to note something of another message than the first;
- what comes after it asks whether something is set in a namespace: always the same where it is not set at the end of
  any message.

Where the template looks ahead in certain cases only, it is made to say whether one came up. Where nothing of this shows
it, each beginning of a chat is rendered by itself.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from packer.text.ahead import Messages, branches, is_plain, name_of
from packer.text.marks import has_marks, marks_in_place, with_marks

if TYPE_CHECKING:
    from jinja2 import nodes

    from packer.text.rendering import Chat

# private-use characters; a chat that holds them is rendered by itself
END, _AHEAD, _START = "\U000f5afd", "\U000f5afc", "\U000f5afb"
_AFTER = {"add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token"}
"""Names that what comes after the loop may use."""
_OURS = END.encode()[:3]  # what all characters that tell places begin with


@lru_cache(64)
def with_ends(source: str) -> str | None:
    """A template that puts a character behind every message and is otherwise the same; None where it may look ahead.

    Where it looks ahead under a condition only that does not (at what follows a tool's answer), it puts another
    character there, and a third before the first message where it may leave one out; `ends_of` takes notice of them.
    """
    from jinja2 import TemplateError, nodes

    try:
        tree = _parse(source)
    except TemplateError:
        return None
    body = [node for node in tree.body if not _is_default(node)]
    messages = Messages(body)
    loops = [(at, node) for at, node in enumerate(body) if is_plain(node) and name_of(node.iter) in messages.names]
    if not loops:
        return None
    at, loop = loops[-1]
    conditions: list[nodes.If | None] = []
    notes: list[nodes.Assign] = []
    for node in body[:at]:
        noted = messages.notes(node)
        conditions += messages.conditions([node]) if noted is None else []
        notes += noted or []
    whole = messages.held.get(name_of(loop.iter))
    flags = _flags(body[:at], body[at + 1 :], messages)
    if whole is None or flags is None or name_of(loop.target) in messages.names:
        return None
    if not whole and any(loop.find_all((nodes.Break, nodes.Continue))):
        return None  # what is left out would not be the first message alone
    messages.held = {name: True for name, all_ in messages.held.items() if all_ or name == name_of(loop.iter)}
    conditions += messages.conditions(loop.body, setting=False)
    if None in conditions:
        return None
    at_end = "".join(_if(flag, _AHEAD) for flag in flags)
    written = {
        **{id(node): _if("true", _AHEAD) for node in conditions},
        **{id(node): _if("not loop.first", _AHEAD) for node in notes},
        **({} if whole else {id(loop): at_end + _if("true", _START)}),
    }
    marked = _written(source, tree, written, at_end + _if("true", END))
    _insert(tree.body, written)
    loop.body.extend(_parse(at_end + _if("true", END)).body)
    try:
        return marked if marked and _parse(marked) == tree else None
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
    head, start, body = marked.rpartition(_START)
    *pieces, rest = body.split(END)
    left_out = messages - len(pieces)
    if rest or _AHEAD in marked or not 0 <= left_out <= len(start):
        return None
    return list(accumulate(map(len, pieces), initial=len(head)))[1 - left_out :]


@lru_cache(64)
def telling_places(source: str) -> str | None:
    """A template that writes what a template does, and our characters; None where it may not, or can tell nothing."""
    if _OURS in source.encode() or "\\u000f5af" in source.lower():
        return None
    if not has_marks(source):
        return with_ends(source)
    if not marks_in_place(source):
        return None
    marking = with_marks(source)
    return with_ends(marking) or marking


def holds_places(chat: Chat) -> bool:
    """Whether a chat may itself hold characters that tell places."""
    return _OURS in pickle.dumps((chat.messages, chat.tools, chat.kwargs), protocol=4)  # strings as they are in UTF-8


def without_ends(marked: str) -> str:
    """What the template without these characters writes."""
    return marked.replace(END, "").replace(_AHEAD, "").replace(_START, "")


def _flags(before: Sequence[nodes.Node], after: Sequence[nodes.Node], messages: Messages) -> list[str] | None:
    """What comes after the loop depends on these being set or not, and on nothing else of a chat; None: it may.

    They are attributes of what a name holds that is given a value but once, before the loop: the same within it.
    """
    from jinja2 import nodes

    sets = [node for node in before if isinstance(node, nodes.Assign)]
    once = {name_of(node.target) for node in sets if messages.stored[name_of(node.target)] == 1}
    found: dict[str, None] = {}
    for node in (one for part in after for one in _read(part)):
        if isinstance(node, nodes.Getattr) and name_of(node.node) in once:
            found[f"{name_of(node.node)}.{node.attr}"] = None
        elif name_of(node) not in _AFTER or name_of(node) in messages.stored:
            return None
    return list(found)


def _read(node: nodes.Node, *, asked: bool = False) -> Iterator[nodes.Node]:
    """Yield names, and attributes of names of which is asked only whether they are true."""
    from jinja2 import nodes

    if isinstance(node, nodes.Name) or (asked and isinstance(node, nodes.Getattr) and name_of(node.node)):
        yield node
        return
    for child in node.iter_child_nodes():
        kept = asked and isinstance(node, nodes.And | nodes.Or | nodes.Not)
        yield from _read(child, asked=kept or (isinstance(node, nodes.If) and child is node.test))


def _is_default(node: nodes.Node) -> bool:
    """Whether it sets `add_generation_prompt` where that is not given, as it always is."""
    from jinja2 import nodes

    missing = nodes.Not(nodes.Test(nodes.Name("add_generation_prompt", "load"), "defined", [], [], None, None))
    return isinstance(node, nodes.If) and node.test == missing and not (node.elif_ or node.else_)


def _written(source: str, tree: nodes.Template, written: dict[int, str], at_end: str) -> str | None:
    """Write something before the tags of some statements, by their ids, and before the last loop's end.

    Tags are looked for as text; where one is another's or a comment's, what comes out is another template.
    """
    from jinja2 import nodes

    *_, end = [None, *re.finditer(r"\{%([-+]?)\s*endfor\b", source)]
    if end is None:
        return None
    places = [(end, at_end)]
    for name, kind in (("if", nodes.If), ("for", nodes.For), ("set", nodes.Assign | nodes.AssignBlock)):
        tags = re.finditer(rf"\{{%([-+]?)\s*{name}\b", source)
        statements = [node for node in _statements(tree.body) if isinstance(node, kind)]
        places += [(tag, written[id(node)]) for tag, node in zip(tags, statements, strict=False) if id(node) in written]
    for tag, text in sorted(places, key=lambda place: place[0].start(), reverse=True):
        at = tag.start()
        source = f"{source[:at]}{{%{tag[1]}{text.removeprefix('{%')}{source[at:]}"
    return source


def _statements(body: Sequence[nodes.Node]) -> Iterator[nodes.Node]:
    """All statements as they are written, one after the other; `elif` is none by itself."""
    from jinja2 import nodes

    for node in body:
        if isinstance(node, nodes.Stmt):
            yield node
        for name in ("body", "else_") if not isinstance(node, nodes.If) else ():
            yield from _statements(getattr(node, name, None) or [])
        for part in branches(node) if isinstance(node, nodes.If) else ():
            yield from _statements(part)


def _insert(body: list[nodes.Node], written: dict[int, str]) -> None:
    """Write the same into the tree, in place."""
    from jinja2 import nodes

    for number in range(len(body) - 1, -1, -1):
        node = body[number]
        if isinstance(node, nodes.If | nodes.For):
            for part in branches(node) if isinstance(node, nodes.If) else [node.body]:
                _insert(part, written)
        if id(node) in written:
            body[number:number] = _parse(written[id(node)]).body


def _if(test: str, character: str) -> str:
    return f"{{% if {test} %}}{character}{{% endif %}}"


def _parse(source: str) -> nodes.Template:
    from jinja2 import Environment

    # as transformers does, but for its tag `generation`
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    return environment.parse(source)
