"""Chat templates that mark what the assistant wrote: {% generation %} ... {% endgeneration %}."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from packer.text.records import TextError

if TYPE_CHECKING:
    from jinja2 import nodes

# private-use characters around what the template marks; where a conversation holds them, it is refused
BEGIN, END = "\U000f5afe", "\U000f5aff"
_MACRO = "{% macro packer_generation() %}" + BEGIN + "{{ caller() }}" + END + "{% endmacro %}\n"
_OPENING = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_CLOSING = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")


@lru_cache(64)
def has_marks(source: str) -> bool:
    """Whether a template marks something; the tag in a comment, a string or raw text marks nothing."""
    tokens = lexed(source) if _OPENING.search(source) else []
    return any(
        kind == "block_begin" and following == ("name", "generation") for (kind, _), following in pairwise(tokens)
    )


def lexed(source: str) -> list[tuple[str, str]]:
    """The tokens of a template without white space, as (kind, text); none where its syntax is wrong."""
    from jinja2 import Environment, TemplateError

    try:
        return [(kind, text) for _, kind, text in Environment().lex(source) if kind != "whitespace"]
    except TemplateError:
        return []  # rendering says what is wrong with it


def with_marks(source: str) -> str:
    """Have the template put a character at both ends of what it marks.

    A `call` block is what transformers makes of `generation`, so that white space and names are as they were.
    """
    return _MACRO + _CLOSING.sub(r"\1endcall\2", _OPENING.sub(r"\1call packer_generation()\2", source))


@lru_cache(64)
def marks_in_place(source: str) -> bool:
    """Whether a template `with_marks` writes what it wrote without them, and them: nothing reads what is marked.

    That is so where marks stand in no macro and no captured or filtered text, but in conditions and loops alone.
    """
    from jinja2 import Environment, TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """What `with_marks` makes of the tag, by way of the parser."""

        tags = {"generation"}  # noqa: RUF012, as jinja2 has it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = nodes.Call(nodes.Name("packer_generation", "load"), [], [], None, None)
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

    # as transformers does
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    try:
        plain, marked = environment.parse(source), environment.parse(with_marks(source))
    except TemplateError:
        return False
    macro, *rest = marked.body
    blocks = list(plain.find_all(nodes.CallBlock))
    ours = [block for block in blocks if _is_mark(block)]
    return rest == plain.body and isinstance(macro, nodes.Macro) and len(ours) == _in_place(plain.body)


def between_marks(row: int, marked: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and the spans between them: "a<b>c" is "abc" with (1, 2).

    Raises:
        TextError: they are no pairs; of the document in this row.
    """
    pieces = re.split(f"([{BEGIN}{END}])", marked)
    marks = pieces[1::2]
    if marks != [BEGIN, END] * (len(marks) // 2):
        raise moved(row)
    ends, length = [], 0
    for piece in pieces[::2]:
        length += len(piece)
        ends.append(length)
    spans: list[tuple[int, int]] = []
    for start, end in zip(ends[0:-1:2], ends[1::2], strict=True):
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif start < end:
            spans.append((start, end))
    return "".join(pieces[::2]), spans


def without_marks(marked: str) -> str:
    """The text alone."""
    return marked.replace(BEGIN, "").replace(END, "")


def moved(row: int) -> TextError:
    """What is wrong where marks do not tell a place."""
    return TextError(
        row,
        "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
        "marks, so that its place is not known; mend the template, or --train-on all",
    )


def _is_mark(node: nodes.Node) -> bool:
    from jinja2 import nodes

    return (
        isinstance(node, nodes.CallBlock)
        and isinstance(node.call.node, nodes.Name)
        and node.call.node.name == "packer_generation"
    )


def _in_place(body: Sequence[nodes.Node]) -> int:
    """How many marks write straight into the text."""
    from jinja2 import nodes

    count = 0
    for node in body:
        if _is_mark(node):
            count += 1
        elif isinstance(node, nodes.For):
            count += 0 if node.recursive else _in_place(node.body) + _in_place(node.else_)
        elif isinstance(node, nodes.If):
            count += _in_place(node.body) + _in_place(node.elif_) + _in_place(node.else_)
    return count
