"""Records to tokens and labels: what `packer` packs if the source holds text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.options.choices import TrainOn
from packer.text.conversations import chat_of, from_json, text_of
from packer.text.load_tokenizer import open_tokenizer
from packer.text.preference_pairs import begin_together, chats_of_pair, texts_of_pair
from packer.text.text_columns import TRAIN_ON, Records, column_values
from packer.text.tokenizer import Place
from packer.text.tokenizer_identity import text_identity
from packer.text.tokens import MarkedText, TextTokens

if TYPE_CHECKING:
    from packer.text.message_ends import ChatTemplate

# at most in one call of the tokenizer, which needs hundreds of bytes per token
_CHARACTERS = 1 << 20
_DOCUMENTS = 1 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """Options that shape the tokens."""

    tokenizer: str
    """A folder, a tokenizer.json, or a Hub id."""
    train_on: TrainOn | None = None
    """What is trained; None: the assistant's turns in chats, completions of prompts, every token of plain text."""
    chat_template: str | None = None
    """A Jinja template to use instead of the tokenizer's own."""
    eos: bool = True
    """Whether to end texts and completions with the end-of-sequence token, so that a model learns to stop."""
    mixed: bool = False
    """Whether this is one source of a mixture: if `train_on` does not fit its records, the default applies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Documents as tokens, in the order of their records; an empty record has no tokens."""

    input_ids: pa.ListArray
    """list<int32>"""
    labels: pa.ListArray | None
    """list<int32>, not shifted, -100 at tokens that are not trained; None if all tokens are."""
    straddling: int
    """Number of documents in which a token holds characters on both sides of where training begins or ends."""
    untrained: int
    """Number of documents that have tokens, none of them trained."""
    unstopped: int = 0
    """Number of answers in chats that end without a trained stop token."""
    turn_starts: pa.ListArray | None = None
    """list<int32>, the tokens with which the turns of chats begin, ascending from 0; None if not asked for."""
    rejected_answers: Encoded | None = None
    """Rejected answers if the records are preference pairs; all other fields but the counts are of the chosen ones."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers to sum over a source: straddling and untrained documents, and answers without a stop token."""
        return {"straddling": self.straddling, "untrained": self.untrained, "unstopped": self.unstopped}


class Encoder:
    """Turns batches of records into tokens and labels, on all cores.

    A record becomes a text, or both answers of a preference pair; chats are rendered by the chat template. The
    characters that are trained tell which tokens are.

    Text is tokenized whole: a document's tokens are those of `tokenizer(text)` with an end-of-sequence token, and those
    of a chat are what `apply_chat_template` gives. A token that reaches across the place where training begins or ends
    is trained, and its document is counted as straddling. A turn begins with the token that holds its first character.

    Args:
        options: options that shape the tokens.
        records: the columns that make a document.
        turns: find where the turns of chats begin, too.

    Raises:
        PackerError: the tokenizer cannot be opened, has no chat template or end token, or `train_on` does not fit the
            records.
    """

    def __init__(self, options: TextOptions, records: Records, *, turns: bool = False) -> None:
        fitting = TRAIN_ON[records.kind]
        if not records.conversational:
            fitting = tuple(choice for choice in fitting if choice != "assistant")
        self.train_on: TrainOn = options.train_on or fitting[0]
        if self.train_on not in fitting and options.mixed:
            self.train_on = fitting[0]
        if self.train_on not in fitting:
            raise PackerError(
                f"--train-on {self.train_on} does not fit documents of {'+'.join(records.columns)}: "
                f"choose {' or '.join(fitting)}"
            )
        assert records.conversational or not turns, "only chats have turns"
        self.records = records
        self.documents_per_record = 2 if records.kind == "pair" else 1
        """Number of documents that a record makes: 2 for preference pairs, otherwise 1."""
        self.has_labels = self.train_on != "all"
        """Whether `encode` returns labels, because some tokens are not trained."""
        self.has_turns = turns
        """Whether `encode` returns where the turns of chats begin."""
        tokenizer = open_tokenizer(options.tokenizer)
        self._tokens = TextTokens(tokenizer)
        self._template: ChatTemplate | None = None
        if records.conversational:
            from packer.text.message_ends import ChatTemplate  # imports jinja2

            self._template = ChatTemplate(tokenizer, options.chat_template)
        self.identity = text_identity(
            tokenizer,
            self._tokens,
            self._template,
            columns=records.needed,
            train_on=self.train_on,
            eos=options.eos,
        )
        end = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.pad_id = end if end is not None else 0
        """The padding token, or the end of a sequence, or 0."""
        self._ending = self._tokens.suffix
        if options.eos and not self._ending and not records.conversational:
            if tokenizer.eos_token_id is None:
                raise PackerError(
                    f"{options.tokenizer} names no end-of-sequence token to end documents with: add tokenizer_config."
                    "json with an eos_token, or choose --no-eos"
                )
            self._ending = [tokenizer.eos_token_id]

    def encode(self, batch: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]], first_row: int = 0) -> Encoded:
        """Encode a batch of fewer than 2**31 tokens: an Arrow batch, or records as Python objects.

        Args:
            batch: records with at least the columns `records.needed`.
            first_row: number of its first record, for errors.

        Raises:
            TextError: a record is wrong, or what is trained cannot be located exactly.
        """
        ids: list[Sequence[int]] = []
        trained: list[list[tuple[int, int]]] = []
        turns: list[list[int]] = []
        straddling = unstopped = 0
        for text, (tokens, places) in self._tokenized(self._texts(batch, first_row)):
            front, back = self._around(tokens)
            ids += (front, tokens, back)
            unstopped += text.unstopped
            count = 2 * len(text.trained or ())
            if self.has_labels:
                straddling += any(place.inside for place in places[:count])
                trained.append(_ranges(text, places[:count], len(front), len(front) + len(tokens) + len(back)))
            if self.has_turns:
                turns.append([*dict.fromkeys(place.token for place in places[count:])])
        encoded = _assemble(ids, trained if self.has_labels else None)
        turn_starts = _lists(turns) if self.has_turns else None
        encoded = replace(encoded, turn_starts=turn_starts, straddling=straddling, unstopped=unstopped)
        if self.documents_per_record == 1:
            return encoded
        return replace(_side(encoded, 0), rejected_answers=_side(encoded, 1))

    def _texts(
        self, batch: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]], first_row: int
    ) -> Iterator[MarkedText]:
        """Yield the texts of all records, with the characters that are trained."""
        columns = {column: column_values(batch, column) for column in self.records.needed}
        for column in self.records.json:
            columns[column] = [
                from_json(value, f"'{column}'", row) for row, value in enumerate(columns[column], first_row)
            ]
        for row, values in enumerate(zip(*columns.values(), strict=True), first_row):
            record = dict(zip(columns, values, strict=True))
            yield from self._rendered(record, row) if self._template is not None else self._written(record, row)

    def _rendered(self, record: Mapping[str, Any], row: int) -> Iterator[MarkedText]:
        """Render the conversations of a record by the chat template; one without messages is empty."""
        assert self._template is not None
        if self.records.kind == "pair":
            chats = chats_of_pair(record, self.records, row, train_on=self.train_on, has_labels=self.has_labels)
        else:
            chats = [chat_of(record, self.records.columns, self.train_on, row)]
        for chat in chats:
            located = self._template.locate(chat, self.train_on, turns=self.has_turns)
            text_of(located.text, "the rendered conversation", row)
            yield located

    def _written(self, record: Mapping[str, Any], row: int) -> list[MarkedText]:
        """Return the texts of a record as they are, or prompts joined with completions; Alpaca joins by empty lines."""
        if self.records.kind == "pair":
            return texts_of_pair(record, self.records, row, has_labels=self.has_labels, may_be_empty=bool(self._ending))
        parts = [text_of(record[column], f"'{column}'", row) for column in self.records.columns]
        name = self.records.input_column
        if name is not None:
            given = "" if record[name] is None else text_of(record[name], f"'{name}'", row)
            parts[0] = "".join(part + "\n\n" for part in (parts[0], given) if part)
        text = "".join(parts)
        return [MarkedText(row, text, [(len(parts[0]), len(text))] if self.has_labels else None)]

    def _tokenized(self, texts: Iterator[MarkedText]) -> Iterator[tuple[MarkedText, tuple[list[int], list[Place]]]]:
        """Yield texts with their tokens, nothing added, and the places of what is trained and of turns among them."""
        for chunk in self._chunks(texts):
            found = self._tokens.encode(chunk, places=self.has_labels or self.has_turns)
            if self.has_labels and self.records.kind == "pair":
                found = begin_together(chunk, found, self._tokens)
            yield from zip(chunk, found, strict=True)

    def _chunks(self, texts: Iterator[MarkedText]) -> Iterator[list[MarkedText]]:
        """Yield the texts that are tokenized in one call; both answers of a pair are in the same one."""
        chunk: list[MarkedText] = []
        size = 0
        for text in texts:
            chunk.append(text)
            size += len(text.text)
            is_whole = len(chunk) % self.documents_per_record == 0
            if is_whole and (size >= _CHARACTERS or len(chunk) >= _DOCUMENTS):
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _around(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Tokens to add before and after those of a text: what the tokenizer adds, unless the text has them itself."""
        prefix, ending = self._tokens.prefix, self._ending
        if self._template is not None or not tokens:  # a template writes both as text
            return [], []
        has_prefix = tokens[: len(prefix)] == prefix
        has_ending = tokens[len(tokens) - len(ending) :] == ending
        return [] if has_prefix else prefix, [] if has_ending else ending


def _ranges(text: MarkedText, places: list[Place], shift: int, length: int) -> list[tuple[int, int]]:
    """Turn places where training begins and ends, alternately, into ranges of tokens.

    A token that holds characters on both sides is trained. Tokens added after a text are trained if its end is.
    """
    starts = [place.token + shift for place in places[::2]]
    ends = [place.token + place.inside + shift for place in places[1::2]]
    if text.trained and text.trained[-1][1] == len(text.text):
        ends[-1] = length
    return list(zip(starts, ends, strict=True))


def _lists(values: list[list[int]]) -> pa.ListArray:
    """Make a list<int32> array; `pa.array` would import pandas, which takes half a second."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(
        as_arrow(offsets), as_arrow(np.fromiter(chain.from_iterable(values), np.int32, int(offsets[-1])))
    )


def _assemble(ids: list[Sequence[int]], trained: list[list[tuple[int, int]]] | None) -> Encoded:
    """Join the three lists of each document: added before, its own, and added after."""
    sizes = np.fromiter(map(len, ids), np.int64, len(ids)).reshape(-1, 3).sum(axis=1)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assert bounds[-1] < 2**31, "a batch of too many tokens"
    offsets = as_arrow(bounds.astype(np.int32))
    values = np.fromiter(chain.from_iterable(ids), np.int32, int(bounds[-1]))
    labels, untrained = None, 0
    if trained is not None:
        mask = np.zeros(len(values), np.bool_)
        for start, ranges in zip(bounds.tolist(), trained, strict=False):
            for begin, end in ranges:
                mask[start + begin : start + end] = True
        labels = pa.ListArray.from_arrays(offsets, as_arrow(np.where(mask, values, np.int32(NO_LOSS))))
        counts = np.diff(np.concatenate([[0], np.cumsum(mask)])[bounds])
        untrained = int(((counts == 0) & (sizes > 0)).sum())
    input_ids = pa.ListArray.from_arrays(offsets, as_arrow(values))
    return Encoded(input_ids=input_ids, labels=labels, straddling=0, untrained=untrained)


def _side(both: Encoded, side: int) -> Encoded:
    """Return the chosen answers, or the rejected ones."""
    numbers = as_arrow(np.arange(side, len(both.input_ids), 2))
    labels = both.labels.take(numbers) if both.labels is not None else None
    return replace(both, input_ids=both.input_ids.take(numbers), labels=labels)
