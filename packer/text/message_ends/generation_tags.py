"""Templates that mark what the assistant writes by tags: {% generation %} ... {% endgeneration %}."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from jinja2 import TemplateError, nodes

from packer.text.conversations import TextError
from packer.text.rendering import template_tokens
from packer.text.template_environment import BEGIN_GENERATED, END_GENERATED, parsed

_OPENING = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


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
    """Take the marks out of a text and return the spans between them: "a<b>c" is "abc" with (1, 2).

    Args:
        row: number of the document, for errors.
        marked: a rendering with marks.

    Raises:
        TextError: they are not pairs.
    """
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
