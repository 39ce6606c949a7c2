"""Make docs/reference/fields.md from the table of what fields mean: `python docs/make_fields.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packer.sources.meanings import FIELDS, JOINED, OTHER_PROMPTS, PROMPTS, Field, Means, Place

_INTRODUCTION = """\
# Fields and columns

This page lists the names of fields and columns that packer knows. packer uses them, keeps them with `--keep`, ignores
them because they do not matter for training, or refuses them. `packer pack` and `packer tokenize` list unknown fields
and columns at the end:

```text
Unused fields: id, source; messages: feedback
```

This page is generated from `packer/sources/meanings.py` by `python docs/make_fields.py`.
"""

_HEADINGS: dict[Place, str] = {
    "record": "Fields of a text record",
    "message": "Fields of a message",
    "part": "Fields of a content part",
    "tokens": "Columns of a tokenized source",
}

_MEANINGS: dict[Means, str] = {
    "text": "text",
    "prompt": "prompt",
    "input": "second part of the prompt",
    "completion": "completion",
    "chat": "chat: a list of messages",
    "answer": "answer of a preference pair, with `--pairs`",
    "system": "system prompt; needs a chat template",
    "tools": "tools of a chat; needs a chat template",
    "template_arguments": "arguments of the chat template",
    "history": "earlier questions and answers; needs a chat template",
    "media": "images, video or audio; ignored, but refused if the text has a placeholder for it",
    "desirable": "whether the answer is good, as in KTO; if false, the record is refused",
    "role": "role",
    "content": "content",
    "calls": "tool calls; their arguments are converted to the form that the chat template needs",
    "template": "read by chat templates",
    "reasoning": "reasoning of an answer, read by chat templates",
    "trained": "whether the message or part is trained",
    "untrained": "whether the message or part is excluded from training",
    "spans": "which characters of the content are trained",
    "token_ids": "token ids",
    "labels": "labels",
    "mask": "1 for trained tokens",
    "inverse_mask": "1 for tokens that are not trained",
    "prompt_length": "number of tokens at the beginning that are not trained",
    "weight": "weight of the loss, a number from 0 on; 0 is not trained",
    "attention": "0 for padding, which is removed",
    "exchanges": "positions at which exchanges of a chat begin",
    "lengths": "lengths of the documents in a row",
    "padded_lengths": "lengths of the documents in a row; the last one may be padding",
    "offsets": "positions at which the documents of a row begin and end",
    "starts": "positions at which the documents of a row begin",
    "positions": "positions, which restart with each document of a row",
    "numbers": "document ids within a row, one for each token, from 1; 0 is padding",
    "numbers_from_0": "document ids within a row, one for each token, from 0; -1 is padding",
    "shifted_labels": "shifted labels: each position holds the next token",
    "shifted_numbers": "0 if the next token is not trained",
    "nothing": "not needed for training",
    "refused": "refused",
}
_OF_PLACE: dict[Place, dict[Means, str]] = {
    "message": {
        "prompt": "question, in messages that hold a question and its answer",
        "completion": "answer, in such a message",
    },
    "part": {"role": "type of the part, which must be `text`"},
}
"""Descriptions of meanings that differ by place."""


def fields_page() -> str:
    """Return the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for place, fields in FIELDS.items():
        yield f"## {_HEADINGS[place]}\n\n| name | meaning | written by |\n|---|---|---|"
        yield from (_row(field, _OF_PLACE.get(place, {})) for field in fields)
        yield ""
    yield "## Prompts and completions\n"
    yield "These columns are recognized as prompt and completion."
    yield 'The column in "after the prompt" may be missing or empty.\n'
    yield "| prompt | after the prompt | completion | separator |\n|---|---|---|---|"
    yield f"| `{JOINED[0]}` | | `{JOINED[1]}` | nothing, as in TRL |"
    for (prompt, completion), follows in PROMPTS.items():
        yield f"| `{prompt}` | {f'`{follows}`' if follows else ''} | `{completion}` | an empty line |"
    for prompt, completion in OTHER_PROMPTS:
        yield f"| `{prompt}` | | `{completion}` | an empty line; used only if no other text or chat is recognized |"


def _row(field: Field, of_place: dict[Means, str]) -> str:
    beside = f" if the record also has {' and '.join(f'`{name}`' for name in field.beside)}" if field.beside else ""
    only_lists = "list with one value per token: " if field.only_lists else ""
    note = ""
    if field.note:
        note = f", because it {field.note}" if field.means == "refused" else f"; {field.note}"
    meaning = of_place.get(field.means, _MEANINGS[field.means])
    return f"| `{field.name}` | {only_lists}{meaning}{beside}{note} | {field.by} |"


if __name__ == "__main__":
    (Path(__file__).parent / "reference" / "fields.md").write_text(fields_page())
