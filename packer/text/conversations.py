"""Records to conversations: system prompt, tools, template arguments, and the messages that are context only.

A message may have a field that says whether it is trained: `weight`, 0 or 1, in OpenAI's fine-tuning format and in
ShareGPT, or `train`, true or false, in Axolotl's. Otherwise, --train-on decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from packer.options.choices import TrainOn
from packer.text.messages import Message, TextError, messages_of, plain, text_of, tools_of
from packer.text.rendering import Chat
from packer.text.text_columns import SYSTEM, TEMPLATE_KWARGS, TOOLS

_NO_TEXT = {"role", "name", "weight", "train"}
"""Fields of a message that are not part of its content."""


def chat_of(record: Mapping[str, Any], columns: Sequence[str], train_on: TrainOn, row: int) -> Chat:
    """Make a conversation of a record.

    Args:
        record: values by column, as Python objects.
        columns: columns with messages: one, or the prompt's and the completion's.
        train_on: what is trained by default.
        row: number of the document, for errors.

    Raises:
        TextError: a value is wrong, or a message contradicts `train_on`.
    """
    parts = [messages_of(record[column], column, row) for column in columns]
    masked = _masked_messages([*zip(columns, parts, strict=True)], train_on, row)
    system = _system_message(parts, record.get(SYSTEM), row)
    kwargs = record.get(TEMPLATE_KWARGS)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TextError(
            row, f"'{TEMPLATE_KWARGS}' is a {type(kwargs).__name__} where an object is expected", "wrong_type"
        )
    return Chat(
        row,
        [*system, *chain.from_iterable(parts)],
        len(system) + len(parts[0]) if len(parts) > 1 else 0,
        tools_of(record.get(TOOLS), row),
        plain(kwargs or {}, f"'{TEMPLATE_KWARGS}'", row),
        frozenset(len(system) + turn for turn in masked),
    )


def _system_message(parts: Sequence[Sequence[Message]], system: Any, row: int) -> list[Message]:
    """Return the system prompt in a column of its own, as in ShareGPT; "" and null mean that there is none.

    Raises:
        TextError: it is not text, or the conversation begins with another system prompt.
    """
    first = next(chain.from_iterable(parts), None)
    if system is None or first is None or not (system := text_of(system, f"'{SYSTEM}'", row)):
        return []
    if first["role"] != "system":
        return [{"role": "system", "content": system}]
    if first.get("content") != system:
        raise TextError(
            row,
            f"the conversation begins with a system message, and '{SYSTEM}' holds another; keep one of them",
            "invalid_chat",
        )
    return []


def _masked_messages(parts: Sequence[tuple[str, Sequence[Message]]], train_on: TrainOn, row: int) -> frozenset[int]:
    """Return the numbers of the messages that are context only, counted through the whole conversation.

    Args:
        parts: columns and their messages: one, or the prompt's and the completion's.
        train_on: what is trained by default.
        row: number of the document, for errors.

    Raises:
        TextError: a weight is neither 0 nor 1, or contradicts `train_on`; or a trained answer is empty.
    """
    masked, number = [], 0
    for column, messages in parts:
        in_prompt = len(parts) > 1 and column == parts[0][0]
        for at, message in enumerate(messages):
            trained = None
            if "weight" in message or "train" in message:
                where = f"'{column}' message {at}"
                trained = _is_trained(message, where, row)
                _check(message, where, row, trained, train_on, in_prompt=in_prompt)
                if trained is False:
                    masked.append(number)
            if "content" not in message and not in_prompt and trained is not False and _is_empty_answer(message):
                raise TextError(
                    row,
                    f"'{column}' message {at} is an answer without content: null would be trained as an empty answer; "
                    "remove it, write '', or set its weight to 0",
                    "missing_value",
                )
            number += 1
    return frozenset(masked)


def _is_empty_answer(message: Message) -> bool:
    """Whether a message is of the assistant, and has nothing that a template could write, not even tool calls."""
    return message["role"] == "assistant" and not any(message[name] for name in message.keys() - _NO_TEXT)


def _is_trained(message: Message, where: str, row: int) -> bool | None:
    """Whether a message says that it is trained; None if it says nothing."""
    weight, train = message.get("weight"), message.get("train")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        expected = "0 (context only) or 1 (trained) is expected"
        listed = f"{where} has another weight where {expected}"
        raise TextError(row, f"{where} has the weight {weight!r}, where {expected}", "invalid_chat", listed)
    if train is not None and not isinstance(train, bool):
        listed = f"{where} has train {type(train).__name__} where true or false is expected"
        raise TextError(row, f"{where} has train {train!r}, where true or false is expected", "invalid_chat", listed)
    if weight is not None and train is not None and bool(weight) != train:
        both = f"{where} has weight {weight!r} and train {str(train).lower()}"
        raise TextError(row, f"{both}; leave one of them out", "invalid_chat")
    return train if weight is None else bool(weight)


def _check(message: Message, where: str, row: int, trained: bool | None, train_on: TrainOn, *, in_prompt: bool) -> None:
    """Refuse a message that contradicts what is trained by default."""
    said = f"weight {message['weight']!r}" if message.get("weight") is not None else f"train {str(trained).lower()}"
    if trained is False and train_on == "all":
        raise TextError(
            row,
            f"{where} has {said}, and --train-on all trains every message: leave --train-on out, or remove that",
            "invalid_chat",
        )
    untrained = in_prompt or (train_on == "assistant" and message["role"] != "assistant")
    if trained and untrained and train_on != "all":
        which = "a message of the prompt" if in_prompt else f"a message of the role {message['role']}"
        raise TextError(
            row, f"{where} has {said}, and --train-on {train_on} does not train {which}; remove that", "invalid_chat"
        )
