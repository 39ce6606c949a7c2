"""Preference pairs to tokens and labels: both answers of a record, each after the prompt that they share.

Loss covers what follows the prompt, which has the same tokens on both sides. It ends where TRL's DPOTrainer ends it: at
the first token in which either side differs from the prompt tokenized alone. If no column holds the prompt, it is what
both sides begin with: messages, or characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.text.conversations import chat_of
from packer.text.messages import Message, TextError, messages_of, text_of
from packer.text.rendering import Chat
from packer.text.text_encoder import Chunk, Encoded, Encoder
from packer.text.token_places import Place

_ALL = "or set --train-on all"


class PairEncoder(Encoder):
    """Turns batches of preference pairs into tokens and labels; see `Encoder`.

    While they are encoded, the answers of record i are documents 2i and 2i + 1.
    """

    documents_per_record = 2

    def encode(self, batch: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]], first_row: int = 0) -> Encoded:
        """Encode a batch; see `Encoder.encode`. The rejected answers are in the field `rejected_answers`.

        Numbers of straddling and untrained documents count both sides; an error has the number of the record.

        Raises:
            TextError: a record is wrong, or what is trained cannot be located exactly.
        """
        try:
            both = super().encode(batch, 2 * first_row)
        except TextError as fault:
            raise TextError(fault.row // 2, fault.message, fault.reason, fault.listed) from None
        return replace(_side(both, 0), rejected_answers=_side(both, 1))

    def _tokenize(self, chunk: Chunk) -> list[tuple[list[int], list[Place]]]:
        """Tokenize both sides, and begin the answers of both after the tokens that they share with their prompt."""
        found = super()._tokenize(chunk)
        if chunk.cuts is None:
            return found
        crossed = [
            at
            for at in range(0, len(found), 2)
            if (prompt := _prompt(chunk, at)) == _prompt(chunk, at + 1)
            and (_ends_in_spaces(prompt) or any(places and places[0].inside for _, places in found[at : at + 2]))
        ]
        prompts = self._tokens.encode([_prompt(chunk, at) for at in crossed], None, chunk.first_row)
        for at, (alone, _) in zip(crossed, prompts, strict=True):
            first = min(_in_common(alone, found[side][0]) for side in (at, at + 1))
            for side in (at, at + 1):
                tokens, places = found[side]
                found[side] = tokens, [Place(first, places[0].inside), *places[1:]]
        return found

    def _written(self, columns: dict[str, list[Any]], first_row: int) -> Chunk:
        """Make a chunk of answers as text, each after its prompt."""
        texts, cuts = [], []
        for record, row in self._records(columns, first_row):
            sides = [text_of(record[column], f"'{column}'", row) for column in self.records.columns]
            prompt = self._prompt_of(record, row)
            before = text_of(prompt, f"'{self.records.prompt_column}'", row) if self.records.has_prompts else ""
            for column, side in zip(self.records.columns, sides, strict=True):
                if not side and not (before and self._ending):
                    raise _empty(column, row)
            shared = len(before) if self.records.has_prompts or not self.has_labels else _shared_text(*sides)
            if not shared and self.has_labels and not self.records.has_prompts:
                raise self._without_prompt(row, "character")
            texts += [before + side for side in sides]
            cuts += [[shared], [shared]]
        return Chunk(first_row, texts, cuts if self.has_labels else None)

    def _rendered(self, columns: dict[str, list[Any]], first_row: int) -> Chunk:
        """Make a chunk of answers as messages, each rendered after its prompt by the chat template."""
        assert self._template is not None
        texts, cuts = [], []
        for record, row in self._records(columns, first_row):
            for chat in self._chats(record, row):
                one = self._template.locate(chat, self.train_on)
                texts.append(text_of(one.text, "the rendered conversation", row))
                cuts.append([place for span in one.trained or () for place in span])
        return Chunk(first_row, texts, cuts if self.has_labels else None)

    def _chats(self, record: Mapping[str, Any], row: int) -> list[Chat]:
        """Return both sides of a pair as conversations.

        Raises:
            TextError: a value is wrong, or an answer is not the assistant's.
        """
        columns, prompt = self.records.columns, self._prompt_of(record, row)
        sides = [messages_of(record[column], column, row) for column in columns]
        for column, side in zip(columns, sides, strict=True):
            if not side:
                raise _empty(column, row)
        if self.records.has_prompts:
            before = (str(self.records.prompt_column),)
            chats = [chat_of(record, (*before, column), self.train_on, row) for column in columns]
            shared = 0
        else:
            chats = [chat_of(record, (column,), self.train_on, row) for column in columns]
            shared = _shared_messages(*sides)
            self._check_beginning(sides[0][:shared], prompt, row)
            systems = len(chats[0].messages) - len(sides[0])  # messages of the column `system`, before the others
            chats = [replace(chat, first=systems + shared) for chat in chats]
        for column, side in zip(columns, sides, strict=True):
            if self.has_labels and side[shared]["role"] != "assistant":
                raise TextError(row, self._no_answer(column, side[shared], shared), "invalid_chat")
        return chats

    def _no_answer(self, column: str, message: Message, number: int) -> str:
        """Return the message for an answer that begins with another role's message than the assistant's."""
        where = f"'{column}' message {number}"
        if self.records.has_prompts:
            without = ",".join(self.records.columns)
            remedy = f"if the answers hold the prompt, too, leave it out by --text-column {without}"
        else:
            remedy = "both sides may differ in what the assistant answers only"
        role = message["role"]
        return f"{where} has the role {role!r} where the assistant's answer begins; {remedy}, {_ALL}"

    def _prompt_of(self, record: Mapping[str, Any], row: int) -> Any:
        """Return the value of the prompt's column; None if there is none.

        Raises:
            TextError: there is one, and the first record has none; or there is none, and the first record has one.
        """
        column = self.records.prompt_column
        value = record.get(column) if column is not None else None
        if self.records.has_prompts and value is None:
            message = f"'{column}' is null or missing, and the first record has one; filter the row out"
            raise TextError(row, message, "missing_value")
        is_repeated = self.records.conversational and isinstance(value, str)
        if value is not None and not self.records.has_prompts and not is_repeated:
            message = f"'{column}' holds a prompt, and the first record has none; give one to all or none"
            raise TextError(row, message, "invalid_value")
        return value

    def _check_beginning(self, shared: list[Message], prompt: str | None, row: int) -> None:
        """Check that both sides begin with a prompt, which contains the prompt of the record if that is a string.

        Raises:
            TextError: they do not.
        """
        if not shared and self.has_labels:
            raise self._without_prompt(row, "message")
        if prompt is not None and prompt.strip() not in [_text(message).strip() for message in shared]:
            raise TextError(
                row,
                f"'{self.records.prompt_column}' is a string that is none of the messages with which both answers "
                f"begin; write it as messages, or leave it out by --text-column {','.join(self.records.columns)}",
                "invalid_chat",
            )

    def _without_prompt(self, row: int, what: str) -> TextError:
        one, other = self.records.columns
        return TextError(
            row,
            f"'{one}' and '{other}' differ from the first {what} on, and there is no prompt column; "
            f"write the prompt before both or into its own column, {_ALL}",
            "invalid_chat" if self.records.conversational else "invalid_text",
        )

    def _records(self, columns: dict[str, list[Any]], first_row: int) -> list[tuple[dict[str, Any], int]]:
        """Return each record, with the number of its chosen answer."""
        records = zip(*columns.values(), strict=True)
        return [(dict(zip(columns, values, strict=True)), first_row + 2 * at) for at, values in enumerate(records)]


def _prompt(chunk: Chunk, at: int) -> str:
    """Return what comes before the trained part of a text; "" if nothing is trained."""
    cuts = chunk.cuts[at] if chunk.cuts is not None else []
    return chunk.texts[at][: cuts[0]] if cuts else ""


def _ends_in_spaces(prompt: str) -> bool:
    """Whether a prompt may have other tokens if tokenized alone, although a token ends with it on both sides.

    Tokenizers like that of GPT-2 split "a  b" into "a", " " and " b", but "a  " into "a" and "  ".
    """
    return prompt.endswith(" ") or (prompt[-2:].isspace() and len(prompt) > 1)


def _side(both: Encoded, side: int) -> Encoded:
    """Return the documents of one side."""
    numbers = as_arrow(np.arange(side, len(both.input_ids), 2))
    labels = both.labels.take(numbers) if both.labels is not None else None
    return replace(both, input_ids=both.input_ids.take(numbers), labels=labels)


def _shared_messages(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Return the number of messages that both chats begin with; the last of the shorter one is always an answer."""
    most = min(len(chosen), len(rejected)) - 1
    return next((at for at in range(most) if chosen[at] != rejected[at]), most)


def _shared_text(chosen: str, rejected: str) -> int:
    """Return the number of characters that both texts begin with, without a space at the end, which answers begin with.

    The last character of the shorter text always belongs to its answer.
    """
    last = min(len(chosen), len(rejected)) - 1
    shared = next((at for at in range(last + 1) if chosen[at] != rejected[at]), None)
    if shared is None:
        return last
    return shared - 1 if shared and chosen[shared - 1] == " " else shared


def _in_common(prompt: Sequence[int], tokens: Sequence[int]) -> int:
    """Return the number of tokens that both begin with."""
    return next(
        (at for at, (one, other) in enumerate(zip(prompt, tokens, strict=False)) if one != other),
        min(len(prompt), len(tokens)),
    )


def _empty(column: str, row: int) -> TextError:
    message = f"'{column}' is empty, so there is no answer to train on; filter the row out"
    return TextError(row, message, "missing_value")


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
