"""Make docs/reference/fields.md from the table of what fields mean: `python docs/make_fields.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packer.sources.meanings import FIELDS, JOINED, OTHER_PROMPTS, PROMPTS, Field, Means, Place

_INTRODUCTION = """\
# Fields and columns

What packer reads of a source. Every field of a record, a message or a part of its content, and every column of tokens,
is used, kept with `--keep`, known to mean nothing for training, or refused by its name. All others are named once at
the end of `packer pack` and `packer tokenize`:

```text
Fields that nothing reads: id, source; messages: feedback
```

This page is made from `packer/sources/meanings.py` by `python docs/make_fields.py`.
"""

_HEADINGS: dict[Place, str] = {
    "record": "Fields of a record of text",
    "message": "Fields of a message",
    "part": "Fields of a part of a content",
    "tokens": "Columns of a tokenized source",
}

_MEANINGS: dict[Means, str] = {
    "text": "the text",
    "prompt": "the prompt",
    "input": "follows the prompt",
    "completion": "the completion",
    "chat": "list of messages",
    "answer": "answer of a preference pair, with `--pairs`",
    "system": "system prompt; only a chat template can write it",
    "tools": "tools of a chat; only a chat template can write them",
    "template_arguments": "arguments of the chat template",
    "history": "earlier questions with answers; only a chat template can write them",
    "media": "not text: refused where the text has a placeholder for it",
    "desirable": "whether the answer is a good one, as for KTO; a record where it is false is refused",
    "role": "the role",
    "content": "the content",
    "calls": "calls of tools; their arguments are written as the chat template needs them",
    "template": "read by chat templates",
    "reasoning": "reasoning of an answer, read by chat templates",
    "trained": "whether it is trained",
    "untrained": "whether it is context only",
    "spans": "which of its characters are trained",
    "token_ids": "the tokens",
    "labels": "the labels",
    "mask": "1 where tokens are trained",
    "inverse_mask": "1 where tokens are not trained",
    "prompt_length": "number of tokens at the beginning that are not trained",
    "weight": "trained where it is 1, not trained where it is 0; other weights are refused",
    "attention": "0 at padding, which is removed",
    "exchanges": "tokens at which exchanges of a chat begin",
    "lengths": "lengths of the documents in a row",
    "padded_lengths": "lengths of the documents in a row, the last of which may be padding",
    "offsets": "where the documents of a row begin and end",
    "starts": "where the documents of a row begin",
    "positions": "positions, which begin again with each document of a row",
    "numbers": "numbers of the documents of a row, one for each token, from 1; 0 is padding",
    "numbers_from_0": "numbers of the documents of a row, one for each token, from 0; -1 is padding",
    "shifted_labels": "the labels, shifted: at each token, the next one",
    "shifted_numbers": "0 where the next token is not trained",
    "nothing": "means nothing for training",
    "refused": "refused",
}
_OF_PLACE: dict[Place, dict[Means, str]] = {
    "message": {"prompt": "the question, with its answer in one object", "completion": "its answer"},
    "part": {"role": "the type of the part, which must be `text`"},
}
"""What meanings are called in one place, where that differs."""


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
    yield "These columns are recognized as prompt and completion. What follows the prompt may be missing or empty.\n"
    yield "| prompt | follows it | completion | between them |\n|---|---|---|---|"
    yield f"| `{JOINED[0]}` | | `{JOINED[1]}` | nothing, as in TRL |"
    for (prompt, completion), follows in PROMPTS.items():
        yield f"| `{prompt}` | {f'`{follows}`' if follows else ''} | `{completion}` | an empty line |"
    for prompt, completion in OTHER_PROMPTS:
        yield f"| `{prompt}` | | `{completion}` | an empty line; only if no other text or chat is recognized |"


def _row(field: Field, of_place: dict[Means, str]) -> str:
    beside = f"; beside {' and '.join(f'`{name}`' for name in field.beside)}" if field.beside else ""
    note = "; only as a list, one for each token" if field.only_lists else ""
    note += f": {field.note}" if field.note else ""
    return f"| `{field.name}` | {of_place.get(field.means, _MEANINGS[field.means])}{beside}{note} | {field.by} |"


if __name__ == "__main__":
    (Path(__file__).parent / "reference" / "fields.md").write_text(fields_page())
