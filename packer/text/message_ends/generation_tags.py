"""Templates that tell by tags what the assistant writes: {% generation %} ... {% endgeneration %}."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from packer.text.messages import TextError
from packer.text.rendering import template_tokens

if TYPE_CHECKING:
    from jinja2 import nodes

# private-use characters around what the tags enclose; a chat that holds them is refused
_BEGIN, _END = "\U000f5afe", "\U000f5aff"
_NAME = "packer_generation"
_MACRO = f"{{% macro {_NAME}() %}}{_BEGIN}{{{{ caller() }}}}{_END}{{% endmacro %}}\n"
_OPENING = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_CLOSING = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")


@lru_cache(64)
def has_generation_tags(source: str) -> bool:
    """Whether a template has the tag; a comment, a string or raw text that names it does not count."""
    tokens = template_tokens(source) if _OPENING.search(source) else []
    return any(
        kind == "block_begin" and following == ("name", "generation") for (kind, _), following in pairwise(tokens)
    )


def mark_generated(source: str) -> str:
    """Make a copy of a template that writes a character at both ends of what the tags enclose.

    The tags become a `call` block, as in transformers, so that white space and the scope of names stay the same.
    """
    return _MACRO + _CLOSING.sub(r"\1endcall\2", _OPENING.sub(rf"\1call {_NAME}()\2", source))


@lru_cache(64)
def tags_stand_alone(source: str) -> bool:
    """Whether the copy `mark_generated` writes the template's text and the characters: nothing reads what is enclosed.

    This holds if tags stand in conditions and loops only, not in macros, captured text or filters.
    """
    from jinja2 import Environment, TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """Parses the tag to what `mark_generated` makes of it."""

        tags = {"generation"}  # noqa: RUF012, as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = nodes.Call(nodes.Name(_NAME, "load"), [], [], None, None)
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

    # as transformers parses templates
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    try:
        plain, copy = environment.parse(source), environment.parse(mark_generated(source))
    except TemplateError:
        return False
    macro, *rest = copy.body
    count = sum(map(_is_tag, plain.find_all(nodes.CallBlock)))
    return rest == plain.body and isinstance(macro, nodes.Macro) and count == _count_in_place(plain.body)


def split_at_marks(row: int, marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Take the characters out of a text and return the spans between them: "a<b>c" is "abc" with (1, 2).

    Args:
        row: number of the document, for errors.
        marked: what the copy `mark_generated` of a template writes.

    Raises:
        TextError: they are no pairs.
    """
    pieces = re.split(f"([{_BEGIN}{_END}])", marked)
    marks = pieces[1::2]
    if marks != [_BEGIN, _END] * (len(marks) // 2):
        raise misplaced(row)
    ends = list(accumulate(map(len, pieces[::2])))
    spans: list[tuple[int, int]] = []
    for start, end in zip(ends[0:-1:2], ends[1::2], strict=True):
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif start < end:
            spans.append((start, end))
    return "".join(pieces[::2]), spans


def without_generation_marks(marked: str) -> str:
    """The text without the characters."""
    return marked.replace(_BEGIN, "").replace(_END, "")


def misplaced(row: int) -> TextError:
    """The error for a template in which the place of what the tags enclose is lost."""
    return TextError(
        row,
        "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
        "marks, so that its place is not known; mend the template, or --train-on all",
        "unlocated_spans",
    )


def _is_tag(node: nodes.Node) -> bool:
    from jinja2 import nodes

    return isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.Name) and node.call.node.name == _NAME


def _count_in_place(body: Sequence[nodes.Node]) -> int:
    """Count the tags that write straight into the text."""
    from jinja2 import nodes

    count = 0
    for node in body:
        if isinstance(node, nodes.For) and not node.recursive:
            count += _count_in_place([*node.body, *node.else_])
        elif isinstance(node, nodes.If):
            count += _count_in_place([*node.body, *node.elif_, *node.else_])
        else:
            count += _is_tag(node)
    return count
