"""Convert records of text to the tokens and labels that `packer` packs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.json_records import TextIdentity
from packer.options import ReadOptions
from packer.options.option import TrainOn
from packer.sources.documents import Batch, DocumentError
from packer.sources.list_checks import BlockRecords, joined_batches, lists_of, with_weights
from packer.sources.meanings import (
    DESIRABLE,
    EXCHANGE_STARTS,
    FIELDS,
    PLACEHOLDERS,
    REASONING,
    Means,
    Place,
    counted_fields,
    fields_counted,
    unread,
)
from packer.text.conversations import IMAGES_PAGE, Chat, from_json, record_error, text_of
from packer.text.record_texts import begin_together, chats_of, records_of, refuse_undesirable, texts_of
from packer.text.text_columns import TRAIN_ON, Records, column_values
from packer.text.tokenizer import Tokenizer, open_tokenizer
from packer.text.tokens import CHARACTERS, MarkedText, Texts, TextTokens, TokenPlaces, Tokens, json_hash

if TYPE_CHECKING:
    from packer.text.chat_template import ChatTemplate

_DOCUMENTS = 1 << 10  # maximum number of chats in one tokenizer call

_PLACES: tuple[Place, ...] = ("message", "part")
_OTHERS: tuple[Means, ...] = ("template", "reasoning", "prompt", "completion")
_READ = {field.name for place in _PLACES for field in FIELDS[place] if field.means not in _OTHERS} - {"from", "value"}
"""Fields of messages that packer itself reads, after `chat_of` has set role and content."""
_WHOLE = re.compile(r"\bmessages?\s*\|\s*tojson|\bmessage\.items\(")  # matches templates that write all fields


class Encoder:
    """Converts batches of records to tokens and labels, on all cores.

    A record becomes a text, or both answers of a preference pair; chats are rendered by the chat template. Trained
    tokens follow from the trained characters.

    Text is tokenized whole: a text's tokens equal `tokenizer(text)` plus an end-of-sequence token, a chat's equal
    `apply_chat_template`. If training begins or ends inside a token, the token is trained, and its document counts as
    straddling. An exchange begins with the token that contains its first character.

    With `exchanges`, the starts of the exchanges of chats are found as well. gigatoken is loaded only if `size`, the
    bytes of all files, is large. Raises a PackerError if the tokenizer cannot be opened, has no chat template or end
    token, or if `train_on` is not possible for these records.
    """

    def __init__(self, options: ReadOptions, records: Records, *, exchanges: bool = False, size: int = 0) -> None:
        fitting = TRAIN_ON[records.kind]
        if not records.conversational:
            fitting = tuple(choice for choice in fitting if choice in ("completion", "all"))
        self.train_on: TrainOn = options.train_on or fitting[0]
        if self.train_on not in fitting:
            raise PackerError(
                f"--train-on {self.train_on} does not fit documents of {'+'.join(records.columns)}: "
                f"choose {' or '.join(fitting)}"
            )
        if options.untrained_parts and not records.conversational:
            words = f"--untrained-parts is {','.join(options.untrained_parts)}, and {'+'.join(records.columns)}"
            raise PackerError(f"{words} are texts, not chats: leave it out, or choose a --chat-template for prompts")
        self.records = records
        each = 2 if records.kind == "pair" else 1
        self.documents_per_record = None if self.train_on == "each-answer" else each
        """Number of documents per record: 2 for preference pairs, None if each answer is a document, otherwise 1."""
        self.has_labels = self.train_on != "all"
        """Whether `encode` returns labels, because some tokens are not trained."""
        self.has_exchanges = exchanges
        """Whether `encode` returns the starts of the exchanges of chats."""
        assert options.tokenizer is not None
        tokenizer = open_tokenizer(options.tokenizer)
        self._tokens = TextTokens(tokenizer, size)
        self._untrained_parts = options.untrained_parts
        self._template: ChatTemplate | None = None
        if records.conversational:
            from packer.text.chat_template import ChatTemplate  # imports jinja2

            answers = self.train_on == "assistant" or records.kind == "pair"
            self._template = ChatTemplate(tokenizer, options.chat_template, locates_answers=answers)
        special = () if tokenizer.backend.encode_special_tokens else sorted(tokenizer.special_texts)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._special_ids = [at for text in special if (at := tokenizer.backend.token_to_id(text)) is not None]
        self.identity = self._identify(tokenizer, options)
        ends = [tokenizer.id_of(name) for name in ("pad_token", "eos_token")]
        self.pad_id = next((end for end in ends if end is not None), 0)
        """Padding token; without one, the end-of-sequence token, or 0."""
        self._ending = self._tokens.suffix
        self._edges = [tokenizer.special_tokens.get(name, "") for name in ("bos_token", "eos_token")]
        if options.eos and not self._ending and not records.conversational:
            if ends[1] is None:
                raise PackerError(
                    f"{options.tokenizer} names no end-of-sequence token to end documents with: add tokenizer_config."
                    "json with an eos_token, or choose --no-eos"
                )
            self._ending = [ends[1]]

    def encode(self, block: BlockRecords) -> Batch:
        """Encode records, of fewer than 2**31 tokens, to documents as list<int32>.

        An empty record has no tokens. The answers of preference pairs are alternating documents: chosen, rejected,
        chosen, ...; with each-answer, every answer of a chat is a document; with last, a chat ends with its last
        answer. Untrained tokens have the label -100. The
        column "exchange_starts" lists the first tokens of a chat's exchanges, ascending from 0; it is empty for other
        texts. Counts:

        straddling    documents with a token that straddles a boundary of trained text
        untrained     documents with tokens but without trained tokens
        unstopped     answers in chats that end without a trained stop token
        special       documents that contain the text of a special token (in chats: in a message's content)
        unwritten     chats with tool calls that the chat template does not write
        fast          documents that were tokenized by gigatoken
        stood in      chats with several answers that were rendered by a built-in template instead of the tokenizer's
        unread NAME   chats with an argument NAME that their template does not read

        Raises a DocumentError if a record is wrong, or if its trained text cannot be located exactly.
        """
        parts = []
        for texts, chats in self._texts(block):
            self._refuse_placeholders(block, texts)
            parts.append(self._encode_chunk(texts, chats))
        return joined_batches(parts) if parts else self.empty_documents(0)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""
        return self._tokens.tokenizer.decode(ids)

    def unread(self, counts: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the counted fields of messages and parts that the chat template does not read."""
        source = "" if self._template is None else "\n".join(self._template.templates.sources.values())
        words = {*re.findall(r"\w+", source)}
        words.update(() if words.isdisjoint(REASONING) else REASONING)
        counted = {place: fields_counted(place, counts) for place in _PLACES if not _WHOLE.search(source)}
        made = REASONING[:2] if REASONING[2] in counted.get("message", ()) else REASONING[1:2]
        words.update(made)  # in addition to the source's own field
        return {f"{place}s: ": unread(place, found, words) for place, found in counted.items()}

    @property
    def note(self) -> str | None:
        """Note in the summary if prompts and completions are packed as plain text, otherwise None."""
        if self._template is not None or not self.records.separated:
            return None
        note = f"An empty line follows the prompt ('{self.records.prompt_column or self.records.columns[0]}')"
        with suppress(PackerError):  # raised without a chat template
            from packer.text.rendering import StandIns, Templates  # imports jinja2

            choice = StandIns(Templates(self._tokens.tokenizer)).choice(Chat([]))
            return f"{note}; to pack chats instead of texts, {choice}"
        return note

    def empty_documents(self, count: int) -> Batch:
        """Return `count` documents of one record, without tokens."""
        nothing = lists_of(np.zeros(0, np.int32), np.zeros(count, np.int64))
        extra = {EXCHANGE_STARTS: nothing} if self.has_exchanges else {}
        labels = nothing if self.has_labels else None
        return Batch(nothing, labels, 0, extra, records=np.zeros(count, np.int64))

    def _identify(self, tokenizer: Tokenizer, options: ReadOptions) -> TextIdentity:
        """Return the identity of the tokens: how text is tokenized, and for chats also their template."""
        from importlib.metadata import version

        import tokenizers

        identity = TextIdentity(
            columns=tuple(one for one in self.records.needed if one not in {*DESIRABLE} - {*self.records.columns}),
            train_on=self.train_on,
            untrained_parts=options.untrained_parts,
            eos=options.eos,
            as_chats=self.records.as_chats,
            tokenizer=self._tokens.content_hash,
            tokenizers=tokenizers.__version__,
            transformers=version("transformers") if tokenizer.by_transformers else None,
        )
        if self._template is None:
            return identity
        return replace(
            identity,
            chat_template=json_hash(self._template.content),
            jinja2=version("jinja2"),
            stand_in=self._template.stand_in,
        )

    def _encode_chunk(self, texts: Texts, chats: Sequence[MarkedText]) -> Batch:
        """Tokenize texts, and convert their character positions to labels and starts of exchanges.

        If the texts are chats, `chats` has their further fields.
        """
        tokens = self._tokens.encode(texts)
        if self.records.kind == "pair":
            begin_together(texts, tokens, self._tokens)
        ids, bounds, fronts = self._with_ends(tokens.ids, tokens.ends)
        labels, extra = None, {}
        straddling = untrained = 0
        if self.has_labels:
            starts, stops, straddling = _token_spans(texts, tokens.places, bounds, fronts)
            edges = np.maximum.accumulate(np.column_stack([starts, stops]).ravel())
            is_trained = np.tile([False, True], len(starts) + 1)[:-1]  # tokens between edges: False, True, ..., False
            mask = np.repeat(is_trained, np.diff(edges, prepend=0, append=len(ids)))
            labels = lists_of(np.where(mask, ids, np.int32(NO_LOSS)), np.diff(bounds))
            trained = np.unique(texts.spans[starts < stops, 0])
            untrained = int(np.count_nonzero(np.diff(bounds))) - len(trained)
        if self.has_exchanges:
            extra[EXCHANGE_STARTS] = _starts(texts, tokens.places)
        batch = Batch(
            lists_of(ids, np.diff(bounds)),
            labels,
            0,
            extra,
            counts=Counter(chain.from_iterable(chat.counted for chat in chats))
            + Counter(
                straddling=straddling,
                untrained=untrained,
                special=self._count_special(texts.texts, tokens),
                fast=tokens.by_gigatoken,
                **_further_fields([*chain.from_iterable(chat.messages for chat in chats)]),
            ),
            records=texts.rows,
        )
        if not any(chat.weights for chat in chats):
            return batch
        found = (chat.weights or [1.0] * len(chat.trained or ()) for chat in chats)
        return with_weights(batch, _token_weights(starts, stops, [*chain.from_iterable(found)], len(ids)))

    def _texts(self, block: BlockRecords) -> Iterator[tuple[Texts, list[MarkedText]]]:
        """Yield texts that are tokenized in one call; of chats, also their further fields.

        Both answers of a pair are in the same call.
        """
        records, found = self.records, set[str]()
        if isinstance(block, pa.RecordBatch):
            found = {name for name, one in zip(block.schema.names, block, strict=True) if one.null_count < len(one)}
        else:
            found.update(*block)
        columns = {name: column_values(block, name) for name in records.needed if name in {*found, *records.columns}}
        refuse_undesirable(columns, records.columns)
        if self._template is None and len(block):
            texts = texts_of(columns, records, self.train_on, may_be_empty=bool(self._ending))
            yield from ((part, []) for part in texts.parts(self.documents_per_record or 1))
        chats, size = list[MarkedText](), 0
        for chat in self._chats(columns) if self._template is not None else ():
            chats.append(chat)
            size += len(chat.text)
            is_whole = len(chats) % (self.documents_per_record or 1) == 0
            if is_whole and (size >= CHARACTERS or len(chats) >= _DOCUMENTS):
                yield Texts.of(chats), chats
                chats, size = [], 0
        if chats:
            yield Texts.of(chats), chats

    def _refuse_placeholders(self, block: BlockRecords, texts: Texts) -> None:
        """Raise a DocumentError if a text has a placeholder of an image or other media, which would be dropped."""
        for column, mark in PLACEHOLDERS.items():
            rows: Collection[int] = range(len(block) if column in self.records.media_columns else 0)
            if not isinstance(block, pa.RecordBatch):
                rows = {row for row, record in enumerate(block) if record.get(column)}
            for row, text in zip(texts.rows.tolist(), texts.texts, strict=True) if rows else ():
                if mark in text and row in rows:
                    message = f"{mark} stands for a value of '{column}', and only text can be packed; {IMAGES_PAGE}"
                    raise DocumentError(row, message, reason="invalid_text")

    def _chats(self, columns: Mapping[str, Sequence[Any]]) -> Iterator[MarkedText]:
        """Yield the conversations of records as text. One without messages is empty."""
        assert self._template is not None
        locate = partial(self._template.locate, exchanges=self.has_exchanges, untrained=self._untrained_parts)
        for row, record in enumerate(records_of(columns)):
            try:
                for column in self.records.json_columns:
                    record[column] = from_json(record.get(column), f"'{column}'")
                chats = chats_of(record, self.records, self.train_on)
                for located in chain.from_iterable(locate(chat, self.train_on) for chat in chats):
                    text_of(located.text, "the rendered conversation")
                    if located.weights is not None and self.records.kind == "pair":
                        message = "a message has a weight, and --pairs stores none: set it to 0 or 1, or remove it"
                        raise record_error(message)
                    special = ["special"] * _hold_special(located.messages, self._special)
                    yield located._replace(row=row, counted=(*located.counted, *special))
            except DocumentError as fault:
                raise fault.at(row) from None

    def _count_special(self, texts: Sequence[str], tokens: Tokens) -> int:
        """Count texts that contain the text of a special token, not counting tokens at their beginning and end."""
        if self._template is not None:  # templates write special tokens; `_hold_special` was used instead
            return 0
        # Search tokens first: the regular expression alone would take longer.
        places = np.flatnonzero(tokens.ids >= min(self._special_ids, default=0))
        places = places[np.isin(tokens.ids[places], self._special_ids)]
        first, last = self._edges
        found = np.unique(np.searchsorted(tokens.ends, places, side="right"))
        inner = (texts[at].removeprefix(first).removesuffix(last) for at in found.tolist())
        return sum(self._special.search(text) is not None for text in inner)

    def _with_ends(
        self, ids: NDArray[np.int32], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Add the tokenizer's prefix, suffix and end token to texts. The rendering of a chat already contains them.

        Returns (tokens, bounds of documents among them, number of tokens added before each document).
        """
        bounds = np.concatenate([[0], ends])
        prefix, ending = self._tokens.prefix, self._ending
        if self._template is not None or not (prefix or ending):
            return ids, bounds, np.zeros(len(ends), np.int64)
        firsts, sizes = bounds[:-1], np.diff(bounds)
        begun = (sizes > 0) & ~_hold(ids, firsts, sizes, prefix)
        ended = (sizes > 0) & ~_hold(ids, ends - len(ending), sizes, ending)
        fronts = begun * len(prefix)
        # endings first: they precede the prefix of the next document, which has the same place
        places = np.append(ends[ended].repeat(len(ending)), firsts[begun].repeat(len(prefix)))
        added = [*ending * np.count_nonzero(ended), *prefix * np.count_nonzero(begun)]
        shifts = np.append(0, np.cumsum(fronts + ended * len(ending)))
        return np.insert(ids, places, added), bounds + shifts, fronts


def _further_fields(messages: Sequence[Mapping[str, Any]], place: Place = "message") -> dict[str, int]:
    """Count the fields of messages and of content parts that packer itself does not read."""
    found = counted_fields(place, set[str]().union(*messages) - _READ)
    if list in {type(message.get("content")) for message in messages}:
        contents = (message["content"] for message in messages if isinstance(message.get("content"), list))
        found |= _further_fields([*chain.from_iterable(contents)], "part")
    return found


def _hold_special(messages: Sequence[Mapping[str, Any]], special: re.Pattern[str]) -> bool:
    """Whether the content of any message contains the text of a special token."""
    contents = [message.get("content") or "" for message in messages]
    texts = ([each] if isinstance(each, str) else [part.get("text") or "" for part in each] for each in contents)
    return any(map(special.search, chain.from_iterable(texts)))


def _hold(
    ids: NDArray[np.int32], firsts: NDArray[np.int64], sizes: NDArray[np.int64], tokens: Sequence[int]
) -> NDArray[np.bool_]:
    """Whether each document, of `sizes` tokens, has these `tokens` at its position in `firsts`."""
    found: NDArray[np.bool_] = sizes >= len(tokens)
    for at, token in enumerate(tokens):
        found[found] = ids[firsts[found] + at] == token
    return found


def _token_spans(
    texts: Texts, places: TokenPlaces, bounds: NDArray[np.int64], fronts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return (first token and end of each trained span, number of documents with a token that straddles trained text).

    A straddling token is trained. Tokens added after a text are trained if the end of the text is trained.
    """
    owners = texts.spans[:, 0]
    tokens, inside = (each[: 2 * len(owners)].reshape(-1, 2) for each in places)
    shifts = (bounds[:-1] + fronts)[owners]
    starts, stops = tokens[:, 0] + shifts, tokens[:, 1] + inside[:, 1] + shifts
    to_end = texts.spans[:, 2] == np.array([*map(len, texts.texts)])[owners]
    stops[to_end] = bounds[1:][owners[to_end]]
    return starts, stops, len(np.unique(owners[inside.any(axis=1)]))


def _token_weights(
    starts: NDArray[np.int64], stops: NDArray[np.int64], weights: Sequence[float], count: int
) -> NDArray[np.float32]:
    """Return the weight of each of `count` tokens from the weights of spans; a token in two spans has the larger."""
    found = np.zeros(count, np.float32)
    for start, stop, weight in zip(starts.tolist(), stops.tolist(), weights, strict=True):
        np.maximum(found[start:stop], np.float32(weight), out=found[start:stop])
    return found


def _starts(texts: Texts, places: TokenPlaces) -> pa.ListArray:
    """Return the distinct first tokens of exchanges as a list per text."""
    owners, tokens = texts.exchange_starts[:, 0], places.tokens[2 * len(texts.spans) :]
    is_new = np.ones(len(tokens), np.bool_)
    is_new[1:] = (owners[1:] != owners[:-1]) | (tokens[1:] != tokens[:-1])
    return lists_of(tokens[is_new].astype(np.int32), np.bincount(owners[is_new], minlength=len(texts.texts)))
