"""Advice about columns by what they hold: messages, a text, a prompt and its completion, or what cannot be packed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from packer.column_names import ROLES
from packer.sources.meanings import OF_PROMPTS, ROLE_NAMES, SHAREGPT_ROLES, names

JSON = ":json"
"""Ending of the name of a column in `--text-column` whose strings hold lists of messages as JSON."""

_ROLES = {*ROLE_NAMES, *SHAREGPT_ROLES, "prompter"}  # the last one of OASST
_ROLE, _CONTENT = ({*names("message", means)} for means in ("role", "content"))


def advice(records: Sequence[Mapping[str, Any]]) -> str:
    """Say how to name the columns of some records, in words that can be typed; no column is named that is not there."""
    columns = dict.fromkeys(name for record in records for name in record)
    held = {name: [record[name] for record in records if record.get(name)] for name in columns}
    held = {name: values for name, values in held.items() if values}
    prompts = [name for name in names("record", "prompt", "input") if name in held]
    if {*ROLES} <= held.keys():
        named = f" --text-column {','.join([*prompts, *ROLES])}" if len(prompts) == 1 and prompts != ["prompt"] else ""
        is_text = isinstance(held[ROLES[0]][0], str) and not held.keys().isdisjoint(OF_PROMPTS)
        return f"set --pairs{named}{' --chat-template NAME' * is_text} for preference pairs"
    for name, values in held.items():
        for ending, are_messages in (("", is_chat), (JSON, holds_messages)):
            if all(map(are_messages, values)):
                return f"name the messages, as in --text-column {name}{ending}"
    asks = ("write them", "as a list 'messages' of objects with role and content")
    if any(all(isinstance(role, str) and role in _ROLES for role in held[name]) for name in _ROLE & held.keys()):
        return f"each record is one message: {asks[0]} of each chat into one record, {asks[1]}"
    sizes = {name: sum(map(_size, values)) for name, values in held.items()}
    texts = [name for name, values in held.items() if all(isinstance(value, str) for value in values)]
    texts = [name for name in texts if any(map(_is_prose, held[name]))] or texts
    longest = sorted(texts, key=sizes.__getitem__, reverse=True)
    ways = [f"name the text, as in --text-column {longest[0]}"] if longest else []
    prompts = [name for name in prompts if name in texts]
    if len(longest) > 1:
        answer = next(name for name in longest if name not in prompts[:1])
        pair = [prompts[0], answer] if prompts else [name for name in columns if name in longest[:2]]
        ways.insert(not prompts, f"name prompt and completion, as in --text-column {','.join(pair)}")
    most = max(held, key=sizes.__getitem__, default="")
    if most and isinstance(held[most][0], list | dict):
        ways.insert(0, f"most text is in '{most}', which holds no messages: {asks[0]} {asks[1]}, or as strings")
    return ", or ".join(ways) or "no column holds text or messages"


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages: of objects with role and content, or as in ShareGPT."""
    is_list = isinstance(value, list) and all(isinstance(one, dict) and one.keys() & _ROLE for one in value)
    return is_list and any(one.keys() & _CONTENT for one in value)


def holds_messages(text: Any) -> bool:
    """Whether a value is a string that holds messages as JSON, as some tools write nested columns."""
    try:
        return isinstance(text, str) and text.lstrip()[:1] == "[" and is_chat(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _size(value: Any) -> int:
    """Return the number of characters in all strings of a value."""
    if isinstance(value, dict | list):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, str) else 0


def _is_prose(text: str) -> bool:
    """Whether a string may be text, rather than a path, a hash, a date, or an object as JSON."""
    return text.lstrip()[:1] not in ("{", "[") and (len(text.split()) > 2 or not text.isascii())
