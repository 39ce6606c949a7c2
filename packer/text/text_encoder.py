"""Records to tokens and labels: what `packer` packs if the source holds text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.errors import PackerError
from packer.labels import NO_LOSS
from packer.options.choices import TrainOn
from packer.text.conversations import chat_of
from packer.text.load_tokenizer import open_tokenizer
from packer.text.message_ends import ChatTemplate
from packer.text.messages import from_json, text_of
from packer.text.text_columns import TRAIN_ON, Records, column_values
from packer.text.token_places import Place
from packer.text.tokenizer_identity import text_identity, with_templates
from packer.text.tokens import TextTokens

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
    straddling: tuple[int, ...]
    """Numbers of documents in which a token holds characters on both sides of where training begins or ends."""
    untrained: tuple[int, ...]
    """Numbers of documents that have tokens, none of them trained."""
    unstopped: int = 0
    """Number of answers in chats that end without a trained stop token."""
    turn_starts: pa.ListArray | None = None
    """list<int32>, the tokens with which the turns of chats begin, ascending from 0; None if not asked for."""
    rejected_answers: Encoded | None = None
    """Rejected answers if the records are preference pairs; all other fields but the numbers are of the chosen ones."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers to sum over a source: straddling and untrained documents, and answers without a stop token."""
        return {"straddling": len(self.straddling), "untrained": len(self.untrained), "unstopped": self.unstopped}


class Chunk(NamedTuple):
    """Texts that are tokenized in one call."""

    first_row: int
    texts: list[str]
    cuts: list[list[int]] | None
    """For each text, where training begins and ends, alternately; None if everything is trained."""
    turns: list[list[int]] | None = None
    """For each text, where turns begin; None if not asked for."""
    unstopped: int = 0
    """Number of answers that end without a trained stop token."""

    @property
    def places(self) -> list[list[int]] | None:
        """For each text, the characters of both, one list after the other."""
        if self.cuts is None or self.turns is None:
            return self.cuts if self.turns is None else self.turns
        return [cuts + turns for cuts, turns in zip(self.cuts, self.turns, strict=True)]


class Encoder:
    """Turns batches of records into tokens and labels, on all cores.

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

    documents_per_record = 1
    """Number of documents that a record makes: 2 for preference pairs, otherwise 1."""

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
        self._turns = turns
        tokenizer = open_tokenizer(options.tokenizer)
        self._tokens = TextTokens(tokenizer)
        self.identity = text_identity(
            tokenizer, self._tokens, columns=records.needed, train_on=self.train_on, eos=options.eos
        )
        self._template = None
        if records.conversational:
            self._template = ChatTemplate(tokenizer, options.chat_template)
            self.identity = with_templates(
                self.identity, self._template.templates.sources, self._template.ends_by_next_role
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

    @property
    def has_labels(self) -> bool:
        """Whether `encode` returns labels, because some tokens are not trained."""
        return self.train_on != "all"

    @property
    def has_turns(self) -> bool:
        """Whether `encode` returns where the turns of chats begin."""
        return self._turns

    def encode(self, batch: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]], first_row: int = 0) -> Encoded:
        """Encode a batch of fewer than 2**31 tokens: an Arrow batch, or records as Python objects.

        Args:
            batch: records with at least the columns `records.needed`.
            first_row: number of its first record, for errors and counts.

        Raises:
            TextError: a record is wrong, or what is trained cannot be located exactly.
        """
        columns = {column: column_values(batch, column) for column in self.records.needed}
        for column in self.records.json:
            columns[column] = [
                from_json(value, f"'{column}'", first_row + at * self.documents_per_record)
                for at, value in enumerate(columns[column])
            ]
        ids: list[Sequence[int]] = []
        trained: list[list[tuple[int, int]]] = []
        straddling: list[int] = []
        turns: list[list[int]] = []
        unstopped = 0
        for chunk in self._chunks(columns, first_row):
            unstopped += chunk.unstopped
            for row, (tokens, places) in enumerate(self._tokenize(chunk), chunk.first_row):
                front, back = self._around(tokens)
                ids += (front, tokens, back)
                if chunk.turns is not None:
                    first = len(places) - len(chunk.turns[row - chunk.first_row])
                    turns.append([*dict.fromkeys(place.token for place in places[first:])])
                    places = places[:first]
                if chunk.cuts is not None:
                    trained.append(_ranges(places, len(front), len(front) + len(tokens) + len(back)))
                    if any(place.inside for place in places):
                        straddling.append(row)
        encoded = _assemble(ids, trained if self.has_labels else None, straddling, first_row)
        return replace(encoded, turn_starts=_lists(turns) if self._turns else None, unstopped=unstopped)

    def _tokenize(self, chunk: Chunk) -> list[tuple[list[int], list[Place]]]:
        """Return the tokens of each text, with nothing added, and where among them its `places` are."""
        return self._tokens.encode(chunk.texts, chunk.places, chunk.first_row)

    def _around(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Tokens to add before and after those of a text: what the tokenizer adds, unless the text has them itself."""
        prefix, ending = self._tokens.prefix, self._ending
        if self._template is not None or not tokens:  # a template writes both as text
            return [], []
        has_prefix = tokens[: len(prefix)] == prefix
        has_ending = tokens[len(tokens) - len(ending) :] == ending
        return [] if has_prefix else prefix, [] if has_ending else ending

    def _chunks(self, columns: dict[str, list[Any]], first_row: int) -> Iterator[Chunk]:
        rows = len(columns[self.records.columns[0]])
        start = 0
        while start < rows:
            stop, size = start, 0
            while stop < rows and stop < start + _DOCUMENTS and size < _CHARACTERS:
                size += sum(_size(columns[column][stop]) for column in self.records.columns)
                stop += 1
            part = {column: values[start:stop] for column, values in columns.items()}
            make = self._rendered if self._template is not None else self._written
            yield make(part, first_row + start * self.documents_per_record)
            start = stop

    def _written(self, columns: dict[str, list[Any]], first_row: int) -> Chunk:
        """Make a chunk of texts as they are, or of prompts joined with completions; Alpaca joins by empty lines."""
        parts = [
            [text_of(value, f"'{column}'", row) for row, value in enumerate(columns[column], first_row)]
            for column in self.records.columns
        ]
        name = self.records.input_column
        if name is not None:
            given = ["" if value is None else value for value in columns[name]]
            inputs = [text_of(value, f"'{name}'", row) for row, value in enumerate(given, first_row)]
            parts[0] = ["".join(part + "\n\n" for part in pair if part) for pair in zip(parts[0], inputs, strict=True)]
        texts = list(map("".join, zip(*parts, strict=True)))
        return Chunk(first_row, texts, [[len(prompt)] for prompt in parts[0]] if self.has_labels else None)

    def _rendered(self, columns: dict[str, list[Any]], first_row: int) -> Chunk:
        """Make a chunk of conversations, rendered by the chat template; one without messages is empty."""
        assert self._template is not None
        chats = [
            chat_of(dict(zip(columns, values, strict=True)), self.records.columns, self.train_on, row)
            for row, values in enumerate(zip(*columns.values(), strict=True), first_row)
        ]
        located = [self._template.locate(chat, self.train_on, turns=self._turns) for chat in chats]
        for one, chat in zip(located, chats, strict=True):
            text_of(one.text, "the rendered conversation", chat.row)
        trained = [[*chain.from_iterable(one.trained or ())] for one in located] if self.has_labels else None
        turns = [one.turn_starts or [] for one in located] if self._turns else None
        return Chunk(first_row, [one.text for one in located], trained, turns, sum(one.unstopped for one in located))


def _size(value: Any) -> int:
    """About how many characters a value has, whatever its type."""
    if type(value) is str:
        return len(value)
    if not isinstance(value, list | dict):
        return 1
    size = 0
    for part in value.values() if isinstance(value, dict) else value:
        if type(part) is str:
            size += len(part)
        elif type(part) is dict:  # a message
            size += sum([len(text) if type(text) is str else _size(text) for text in part.values()])
        else:
            size += _size(part)
    return size


def _ranges(places: list[Place], shift: int, length: int) -> list[tuple[int, int]]:
    """Turn places where training begins and ends, alternately, into ranges of tokens; the last may have no end.

    A token that holds characters on both sides is trained.
    """
    starts = [place.token + shift for place in places[::2]]
    ends = [place.token + place.inside + shift for place in places[1::2]]
    return list(zip(starts, ends if len(ends) == len(starts) else [length], strict=True))


def _lists(values: list[list[int]]) -> pa.ListArray:
    """Make a list<int32> array; `pa.array` would import pandas, which takes half a second."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(
        as_arrow(offsets), as_arrow(np.fromiter(chain.from_iterable(values), np.int32, int(offsets[-1])))
    )


def _assemble(
    ids: list[Sequence[int]], trained: list[list[tuple[int, int]]] | None, straddling: list[int], first_row: int
) -> Encoded:
    """Join the three lists of each document: added before, its own, and added after."""
    sizes = np.fromiter(map(len, ids), np.int64, len(ids)).reshape(-1, 3).sum(axis=1)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assert bounds[-1] < 2**31, "a batch of too many tokens"
    offsets = as_arrow(bounds.astype(np.int32))
    values = np.fromiter(chain.from_iterable(ids), np.int32, int(bounds[-1]))
    labels, untrained = None, ()
    if trained is not None:
        mask = np.zeros(len(values), np.bool_)
        for start, ranges in zip(bounds.tolist(), trained, strict=False):
            for begin, end in ranges:
                mask[start + begin : start + end] = True
        labels = pa.ListArray.from_arrays(offsets, as_arrow(np.where(mask, values, np.int32(NO_LOSS))))
        counts = np.diff(np.concatenate([[0], np.cumsum(mask)])[bounds])
        untrained = tuple((np.flatnonzero((counts == 0) & (sizes > 0)) + first_row).tolist())
    return Encoded(
        input_ids=pa.ListArray.from_arrays(offsets, as_arrow(values)),
        labels=labels,
        straddling=tuple(straddling),
        untrained=untrained,
    )
