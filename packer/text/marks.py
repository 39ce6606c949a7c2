"""Chat templates that mark what the assistant wrote: {% generation %} ... {% endgeneration %}."""

from __future__ import annotations

import re

from packer.text.records import TextError

# private-use characters around what the template marks; where a conversation holds them, it is refused
_BEGIN, _END = "\U000f5afe", "\U000f5aff"
_MACRO = "{% macro packer_generation() %}" + _BEGIN + "{{ caller() }}" + _END + "{% endmacro %}\n"
_OPENING = re.compile(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})")
_CLOSING = re.compile(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})")


def has_marks(source: str) -> bool:
    """Whether a template marks something."""
    return bool(_OPENING.search(source))


def with_marks(source: str) -> str:
    """Have the template put a character at both ends of what it marks.

    A `call` block is what transformers makes of `generation`, so that white space and names are as they were.
    """
    return _MACRO + _CLOSING.sub(r"\1endcall\2", _OPENING.sub(r"\1call packer_generation()\2", source))


def between_marks(row: int, text: str, marked: str) -> list[tuple[int, int]]:
    """The spans between the marks, in the text without them: "a<b>c" is "abc" with (1, 2).

    Raises:
        TextError: they are no pairs, or the text is another; of the document in this row.
    """
    pieces = re.split(f"([{_BEGIN}{_END}])", marked)
    marks = pieces[1::2]
    if marks != [_BEGIN, _END] * (len(marks) // 2) or "".join(pieces[::2]) != text:
        raise TextError(
            row,
            "what the chat template marks with {% generation %} is changed or moved afterwards, or marks lie within "
            "marks, so that its place is not known; mend the template, or --train-on all",
        )
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
    return spans
