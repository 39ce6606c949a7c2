"""Convert records to the texts or chats of their documents. A preference pair has two documents.

Loss covers the text after the prompt. In a preference pair, the prompt has the same tokens on both sides. The prompt
ends where TRL's DPOTrainer ends it: at the first token in which either side differs from the tokens of the prompt
alone. If no column holds the prompt, it is the common beginning of both sides, in messages or characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse
from operator import add
from typing import Any, TypeAlias, TypeVar

import numpy as np

from packer.options.option import TrainOn
from packer.sources.documents import DocumentError
from packer.sources.meanings import DESIRABLE, HISTORY, OF_PROMPTS
from packer.text.conversations import Chat, Message, chat_of, messages_of, record_error, text_of
from packer.text.text_columns import Records
from packer.text.tokenizer import shared_length
from packer.text.tokens import MarkedText, Texts, TextTokens, Tokens

Value = TypeVar("Value")
Made = TypeVar("Made")

Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""Values of all records, by column. Columns that no record has may be missing, except those of `Records.columns`."""


def records_of(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the records with these columns."""
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _each(function: Callable[[Value], Made], values: Iterable[Value]) -> list[Made]:
    """Call a function for each record. A DocumentError that it raises gets the number of the record."""
    made = list[Made]()
    try:
        for value in values:
            made.append(function(value))
    except DocumentError as fault:
        raise fault.at(len(made)) from None
    return made


def texts_of(columns: Columns, records: Records, train_on: TrainOn, *, may_be_empty: bool) -> Texts:
    """Return the texts of documents as they are: texts, prompts with their completions, or both answers of pairs.

    The answers of a pair may be empty if `may_be_empty`. Raises a DocumentError if a value is wrong, or needs a chat
    template. The values of a column are checked before those of the next.
    """
    if records.kind != "text":
        _refuse_without_template(columns)
    if records.kind == "pair":
        pairs = _each(partial(_texts_of_pair, records=records, may_be_empty=may_be_empty), records_of(columns))
        return Texts.of([side._replace(row=row) for row, sides in enumerate(pairs) for side in sides])
    parts = [_checked(columns[column], column) for column in records.columns]
    rows = np.arange(len(parts[0]))
    if records.kind == "text":
        return Texts(parts[0], rows)
    prompts, completions = parts
    if records.separated:
        named = partial(_prompt_texts, prompt=records.columns[0], input_column=records.input_column)
        prompts = ["".join(f"{part}\n\n" for part in asked) for asked in _each(named, records_of(columns))]
    texts = Texts([*map(add, prompts, completions)], rows)
    if train_on == "all":
        return texts
    return texts._replace(spans=np.column_stack([rows, [*map(len, prompts)], [*map(len, texts.texts)]]))


def _checked(values: Sequence[Any], column: str) -> Sequence[str]:
    """Return the values of a column, all of which must be text that can be written as UTF-8."""
    try:
        "".join(filterfalse(str.isascii, values)).encode()
    except (TypeError, UnicodeEncodeError):
        return _each(partial(text_of, where=f"'{column}'"), values)  # raises the error for the first wrong value
    return values


def chats_of(record: Mapping[str, Any], records: Records, train_on: TrainOn) -> list[Chat]:
    """Return the conversation of a record, or both of a preference pair. Raises a DocumentError if a value is wrong."""
    if records.as_chats:
        record = _with_messages(record, records)
    if records.kind == "pair":
        return _chats_of_pair(record, records, train_on)
    return [chat_of(record, records.columns, train_on)]


def _with_messages(record: Mapping[str, Any], records: Records) -> dict[str, Any]:
    """Return a record whose prompt, completion or answers are lists of messages instead of strings.

    Questions and answers in the column `history` are put before the prompt.
    """
    prompt = records.columns[0] if records.kind == "prompt+completion" else str(records.prompt_column)
    earlier = [
        {"role": role, "content": content}
        for turn in _history_of(record.get(HISTORY))
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    question = {"role": "user", "content": "\n\n".join(_prompt_texts(record, prompt, records.input_column))}
    answers = {
        column: [{"role": "assistant", "content": text_of(record[column], f"'{column}'")}]
        for column in records.columns
        if column != prompt
    }
    return {**record, **answers, prompt: [*earlier, question]}


def _prompt_texts(record: Mapping[str, Any], prompt: str, input_column: str | None) -> list[str]:
    """Return the non-empty parts of a prompt: in the Alpaca format, the instruction and its input."""
    texts = [text_of(record[prompt], f"'{prompt}'")]
    if input_column is not None and record.get(input_column) is not None:
        texts.append(text_of(record[input_column], f"'{input_column}'"))
    return [text for text in texts if text]


def _history_of(value: Any) -> list[list[str]]:
    """Return the earlier turns of a record, each a question and its answer. Null means no earlier turns."""
    for turn in value if isinstance(value, list) else [value] if value else []:
        if not isinstance(turn, list) or len(turn) != 2:
            raise record_error(
                f"'{HISTORY}' is no list of questions with answers: [[question, answer], ...]", "wrong_type"
            )
        for text in turn:
            text_of(text, f"a text in '{HISTORY}'")
    return value or []


def _refuse_without_template(columns: Columns) -> None:
    """Raise a DocumentError if a record has a system prompt or earlier turns, which plain text cannot represent."""
    for column in OF_PROMPTS:
        for row in (row for row, value in enumerate(columns.get(column, ())) if value):
            message = (
                f"'{column}' belongs to the prompt, and only a chat template can write it: choose one by "
                "--chat-template, or remove the column"
            )
            raise DocumentError(row, message, reason="invalid_chat")


def refuse_undesirable(columns: Columns, texts: Sequence[str]) -> None:
    """Raise a DocumentError if a record marks its answer as a bad example. `texts` are the columns with its text."""
    for name in (name for name in DESIRABLE if name in columns and name not in texts):
        for row in (row for row, value in enumerate(columns[name]) if str(value).lower() == "false"):
            message = (
                f"'{name}' is false, which marks a rejected answer, as for KTO, that would be trained: filter for rows "
                "where it is true, or rename the column if it says something else"
            )
            raise DocumentError(row, message, reason="invalid_value")


def _texts_of_pair(record: Mapping[str, Any], *, records: Records, may_be_empty: bool) -> list[MarkedText]:
    """Return both answers of a pair as text, each after its prompt. Only the answers are trained.

    An answer may be empty if an end token follows it. Raises a DocumentError if a value is not text, or if the answers
    share no prompt.
    """
    sides = [text_of(record[column], f"'{column}'") for column in records.columns]
    prompt = _prompt_of(record, records)
    before = text_of(prompt, f"'{records.prompt_column}'") if records.has_prompts else ""
    before += "\n\n" if before and records.separated else ""
    for column, side in zip(records.columns, sides, strict=True):
        if not side and not (before and may_be_empty):
            raise _empty(column)
    shared = len(before) if records.has_prompts else _shared_text(*sides)
    if not shared and not records.has_prompts:
        raise _without_prompt(records, "character")
    texts = [before + side for side in sides]
    return [MarkedText(text, [(shared, len(text))]) for text in texts]


def _chats_of_pair(record: Mapping[str, Any], records: Records, train_on: TrainOn) -> list[Chat]:
    """Return both answers of a pair as conversations, each after its prompt.

    Raises a DocumentError if a value is wrong, or if an answer is not from the assistant.
    """
    columns, prompt = records.columns, _prompt_of(record, records)
    sides = [messages_of(record[column], column) for column in columns]
    for column, side in zip(columns, sides, strict=True):
        if not side:
            raise _empty(column)
    before = (str(records.prompt_column),) if records.has_prompts else ()
    shared = 0
    if not records.has_prompts:
        most = min(map(len, sides)) - 1  # the last message of the shorter side is always an answer
        shared = next((at for at in range(most) if sides[0][at] != sides[1][at]), most)
        if not shared:
            raise _without_prompt(records, "message")
        _check_repeated(prompt, sides[0][:shared], records)
    chats = [chat_of(record, (*before, column), train_on, shared) for column in columns]
    for column, side in zip(columns, sides, strict=True):
        if side[shared]["role"] != "assistant":
            remedy = "both sides may differ in what the assistant answers only"
            if records.has_prompts:
                remedy = f"if the answers hold the prompt, too, leave it out by --text-column {','.join(columns)}"
            raise record_error(
                f"'{column}' message {shared} has the role {side[shared]['role']!r} where the assistant's answer "
                f"begins; {remedy}"
            )
    return chats


def begin_together(texts: Texts, found: Tokens, tokens: TextTokens) -> None:
    """Let both answers of every pair begin after the tokens that they share with their prompt.

    `found` has the tokens of `texts`; its positions of trained text are modified.
    """
    owners, firsts = np.unique(texts.spans[:, 0], return_index=True)
    first_spans = dict(zip(owners.tolist(), firsts.tolist(), strict=True))
    crosses = {side for side, at in first_spans.items() if found.places.inside[2 * at]}
    prompts = {side: texts.texts[side][: texts.spans[at, 1]] for side, at in first_spans.items()}
    crossed = [
        at
        for at, prompt in prompts.items()
        if at % 2 == 0 and prompt == prompts.get(at + 1) and (_ends_in_spaces(prompt) or crosses & {at, at + 1})
    ]
    sides = np.split(found.ids, found.ends[:-1])
    alone = tokens.encode(Texts([prompts[at] for at in crossed], texts.rows[crossed]))
    for at, prompt in zip(crossed, np.split(alone.ids, alone.ends[:-1]), strict=False):
        first = min(shared_length(prompt.tolist(), sides[side].tolist()) for side in (at, at + 1))
        found.places.tokens[[2 * first_spans[side] for side in (at, at + 1)]] = first


def _prompt_of(record: Mapping[str, Any], records: Records) -> Any:
    """Return the value of the prompt column, None without one. Either all records have a prompt, or none has."""
    column = records.prompt_column
    value = record.get(column) if column is not None else None
    if records.has_prompts and value is None:
        message = f"'{column}' is null or missing, and the first record has one; filter the row out"
        raise record_error(message, "missing_value")
    is_repeated = records.conversational and isinstance(value, str)
    if value is not None and not records.has_prompts and not is_repeated:
        message = f"'{column}' holds a prompt, and the first record has none; give one to all or none"
        raise record_error(message, "invalid_value")
    return value


def _check_repeated(prompt: str | None, shared: list[Message], records: Records) -> None:
    """Check that a prompt given as a string is one of the messages with which both sides begin."""
    contents = [message.get("content") for message in shared]
    if prompt is not None and prompt.strip() not in [one.strip() if isinstance(one, str) else "" for one in contents]:
        raise record_error(
            f"'{records.prompt_column}' is a string that is none of the messages with which both answers "
            f"begin; write it as messages, or leave it out by --text-column {','.join(records.columns)}"
        )


def _without_prompt(records: Records, what: str) -> DocumentError:
    one, other = records.columns
    return record_error(
        f"'{one}' and '{other}' differ from the first {what} on, and there is no prompt column; "
        "write the prompt before both or into its own column",
        "invalid_chat" if records.conversational else "invalid_text",
    )


def _empty(column: str) -> DocumentError:
    message = f"'{column}' is empty, so there is no answer to train on; filter the row out"
    return record_error(message, "missing_value")


def _shared_text(chosen: str, rejected: str) -> int:
    """Return the length of the common beginning of both texts, in characters.

    A space at its end belongs to the answers. The last character of the shorter text belongs to its answer.
    """
    last = min(len(chosen), len(rejected)) - 1
    shared = next((at for at in range(last + 1) if chosen[at] != rejected[at]), None)
    if shared is None:
        return last
    return shared - 1 if shared and chosen[shared - 1] == " " else shared


def _ends_in_spaces(prompt: str) -> bool:
    """Whether a prompt may have other tokens alone than with an answer, although a token ends with it on both sides.

    GPT-2's tokenizer splits "a  b" into "a", " " and " b", but "a  " into "a" and "  ".
    """
    return prompt.endswith(" ") or (prompt[-2:].isspace() and len(prompt) > 1)
