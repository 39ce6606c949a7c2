"""Texts to tokens, in batches; and the tokens in which places of the texts lie, for most tokenizers by their bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow
from packer.errors import PackerError, check_address_space
from packer.sources.documents import DocumentError
from packer.text.fast_tokens import FastTokens, by_library, is_refusal, joined
from packer.text.tokenizer import PROBES, Tokenizer, shared_length

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that stand for themselves in a byte-level vocabulary; for the others, U+0100 and the letters after it do."""

_NORMALIZED = 64  # characters on either side of a place among which a normalizer may compose some

_NO_BYTE = 0xFF  # which UTF-8 does not have

# bytes that must be left to tokenize: the library ends the process where memory is short
_ADDRESS_SPACE, _PER_CHARACTER = 64 << 20, 64


Span = tuple[int, int]
"""Characters first:last of a text."""


class MarkedText(NamedTuple):
    """A document as text, with the places of what is trained and of its exchanges, in characters."""

    text: str
    trained: list[Span] | None = None
    """What is trained, in order; None if everything is."""
    exchange_starts: list[int] | None = None
    """Starts of exchanges, ascending from 0; None if not requested. Text before the first one belongs to it."""
    unstopped: int = 0
    """Number of answers that end without a trained stop token."""
    holds_special: bool = False
    """Whether the content of a message holds the text of a special token."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Messages of a chat."""
    row: int = 0
    """Number of the record."""
    counted: tuple[str, ...] = ()
    """Further counts of `Batch.counts` in which the document counts."""

    @property
    def places(self) -> list[int]:
        """Starts and ends of what is trained, alternately, and then the starts of exchanges."""
        return [*chain.from_iterable(self.trained or ()), *(self.exchange_starts or ())]


class TokenPlaces(NamedTuple):
    """Places of characters among the tokens of their texts."""

    tokens: NDArray[np.int64]
    """First token that holds the character or a later one, or the number of tokens if none does."""
    inside: NDArray[np.bool_]
    """Whether that token holds characters before it, too."""


class Tokens(NamedTuple):
    """Texts as tokens, with nothing added."""

    ids: NDArray[np.int32]
    """Tokens of all texts, one text after the other."""
    ends: NDArray[np.int64]
    """Number of tokens up to the end of each text."""
    places: TokenPlaces
    """Places of the `places` of the texts, if requested, one text after the other."""
    by_gigatoken: int = 0
    """Number of texts that gigatoken tokenized."""


_NO_PLACES = TokenPlaces(np.zeros(0, np.int64), np.zeros(0, np.bool_))


class TextTokens:
    """A tokenizer that adds no tokens, but knows which ones it would have added; the one given is changed.

    A PackerError is raised if it refuses plain sentences, or adds other tokens than a fixed beginning and end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.backend = tokenizer.backend
        self.fast = FastTokens(self.backend, tokenizer.content)
        """Tokenizes by gigatoken."""
        try:
            self.prefix, self.suffix = _added(tokenizer)  # before and after every text: BOS, [CLS], [SEP]
        except BaseException as error:
            if isinstance(error, PackerError) or not is_refusal(error):
                raise
            raise PackerError(
                f"{tokenizer.name} does not tokenize a plain sentence: {_reason(error)}; choose a tokenizer that takes "
                "any text"
            ) from error
        # it would add those tokens, and in byte-level models hide leading spaces from the offsets
        self.backend.post_processor = None

    def encode(self, texts: Sequence[MarkedText], *, places: bool) -> Tokens:
        """Tokenize texts without lone surrogates and, if asked for, find their places among the tokens.

        A DocumentError is raised if the tokenizer refuses a text.
        """
        written = [one.text for one in texts]
        cuts = [one.places for one in texts] if places else None
        check_address_space(_ADDRESS_SPACE + _PER_CHARACTER * sum(map(len, written)), "tokens")
        try:
            return self._encode(written, cuts)
        except BaseException as error:
            if not is_refusal(error):
                raise
        for one in texts:  # find the one
            try:
                self._encode([one.text], [one.places] if places else None)
            except BaseException as error:
                if not is_refusal(error):
                    raise
                message = f"the tokenizer does not take it: {_reason(error)}"
                raise DocumentError(one.row, message, reason="invalid_text") from None
        raise AssertionError("a tokenizer refuses texts that it takes one by one")

    def _encode(self, texts: Sequence[str], cuts: Sequence[Sequence[int]] | None) -> Tokens:
        if cuts is not None and self._bytes is None:
            return self._with_offsets(texts, cuts)
        (ids, ends), count = self.fast.encode(texts) or (by_library(self.backend, texts), 0)
        places = _NO_PLACES if cuts is None else self._places(texts, ids, ends, cuts)
        return Tokens(ids, ends, places, count)

    def _with_offsets(self, texts: Sequence[str], cuts: Sequence[Sequence[int]]) -> Tokens:
        """Tokenize by the library, and find places by its offsets."""
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        places = []
        for encoding, text, at in zip(encodings, texts, cuts, strict=True):
            for cut in at:
                if self._is_composed(text, cut):
                    places.append(self._shared_place(text, cut, encoding.ids))
                else:
                    places.append(_place_of(encoding, cut, len(text)))
        return Tokens(*joined([encoding.ids for encoding in encodings]), _as_places(places))

    def _places(
        self, texts: Sequence[str], ids: NDArray[np.int32], ends: NDArray[np.int64], cuts: Sequence[Sequence[int]]
    ) -> TokenPlaces:
        """Find places by the bytes of tokens, or by the library in texts that are not these bytes."""
        assert self._bytes is not None
        owners = np.repeat(np.arange(len(texts)), [*map(len, cuts)])
        flat = np.fromiter(chain.from_iterable(cuts), np.int64, len(owners))
        places, exact = self._bytes.find(texts, ids, ends, flat, owners)
        others = np.flatnonzero(~exact).tolist()
        if others:
            left = self._with_offsets([texts[at] for at in others], [cuts[at] for at in others]).places
            places.tokens[~exact[owners]], places.inside[~exact[owners]] = left
        return places

    def _shared_place(self, text: str, cut: int, ids: list[int]) -> tuple[int, bool]:
        """Find a character, as in `TokenPlaces`, behind the first tokens that the text before it has alone, too."""
        before = self.tokenizer.ids(text[:cut], special=False)
        token = shared_length(before, ids)
        return token, token < min(len(before), len(ids))

    def _is_composed(self, text: str, cut: int) -> bool:
        """Whether the normalizer joins what is before and after a place: "s" and U+0301 to one character."""
        if not cut or text[cut : cut + 1].isascii() or self.backend.normalizer is None:
            return False
        first = max(cut - _NORMALIZED, 0)
        before, whole = (self.backend.normalizer.normalize_str(text[first:last]) for last in (cut, cut + _NORMALIZED))
        return not whole.startswith(before)

    @cached_property
    def _bytes(self) -> TokenBytes | None:
        """Bytes of tokens, if the tokens of most texts spell their bytes in order, which is checked for every text."""
        settings = self.tokenizer.content.settings
        if settings["model"]["type"] != "BPE":
            return None
        words = settings["pre_tokenizer"] or {}
        parts = [part for part in (words, *words.get("pretokenizers", ())) if part.get("type") == "ByteLevel"]
        return TokenBytes(self.backend) if parts and not any(part["add_prefix_space"] for part in parts) else None


def _as_places(places: Sequence[tuple[int, bool]]) -> TokenPlaces:
    found = np.array(places, np.int64).reshape(-1, 2)
    return TokenPlaces(found[:, 0], found[:, 1].astype(np.bool_))


def _place_of(encoding: Any, cut: int, length: int) -> tuple[int, bool]:
    """Find a character among the tokens of the library, as in `TokenPlaces`; `length` is that of the text."""
    for character in range(cut, length):  # a space that WordPiece drops belongs to no token
        token = encoding.char_to_token(character)
        if token is not None:
            return token, encoding.token_to_chars(token)[0] < cut
    return len(encoding), False


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__} {next(iter(str(error).splitlines()), '')}".strip()


def _added(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after every text."""
    found = set()
    for probe in PROBES:
        whole, plain = tokenizer.ids(probe, special=True), tokenizer.ids(probe, special=False)
        before = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), None)
        if before is None:
            break
        found.add((tuple(whole[:before]), tuple(whole[before + len(plain) :])))
    if len(found) != 1:
        raise PackerError(
            f"{tokenizer.name}: the tokens it adds to a text are not the same before and after every text; choose a "
            "tokenizer that adds BOS and EOS alone"
        )
    ((prefix, suffix),) = found
    return list(prefix), list(suffix)


class TokenBytes:
    """Bytes of each token of a byte-level tokenizer."""

    def __init__(self, backend: RustTokenizer) -> None:
        others = (byte for byte in range(256) if byte not in _PRINTED)
        bytes_of_letters = defaultdict(lambda: _NO_BYTE, {byte: byte for byte in _PRINTED})
        bytes_of_letters |= {256 + at: byte for at, byte in enumerate(others)}
        letters = {byte: chr(letter) for letter, byte in bytes_of_letters.items()}
        tokens = {number: token for token, number in backend.get_vocab().items()}
        for number, token in backend.get_added_tokens_decoder().items():
            tokens[number] = "".join(letters[byte] for byte in token.content.encode())
        spelled = [tokens.get(number, chr(0xFFFF)) for number in range(max(tokens, default=-1) + 1)]
        data = "".join(spelled).translate(bytes_of_letters).encode("latin-1")
        self._bytes = _binary(np.cumsum([0, *map(len, spelled)]), data)  # each letter is one byte

    def find(
        self,
        texts: Sequence[str],
        ids: NDArray[np.int32],
        ends: NDArray[np.int64],
        cuts: NDArray[np.int64],
        owners: NDArray[np.int64],
    ) -> tuple[TokenPlaces, NDArray[np.bool_]]:
        """Find characters `cuts` of texts without lone surrogates, each of the text `owners`, among the texts' tokens.

        Returns the places; and (texts,) whether the tokens of a text are its bytes. Only then are its places right.
        """
        spelled = self._bytes.take(as_arrow(ids)) if len(ids) else _binary(np.zeros(1, np.int64), b"")
        _, offsets, data = spelled.buffers()
        bounds = np.frombuffer(offsets, np.int64, len(ids) + 1)
        text = "".join(texts).encode()
        characters = np.cumsum([0, *map(len, texts)])
        byte_of = _bytes_of_characters(text, int(characters[-1]))
        in_text, in_tokens = byte_of(characters), bounds[np.concatenate([[0], ends])]
        exact = np.diff(in_text) == np.diff(in_tokens)
        if not exact.all() or (text and not data.equals(pa.py_buffer(text))):
            ours, theirs = memoryview(text), memoryview(data)
            for at in np.flatnonzero(exact).tolist():
                exact[at] = ours[in_text[at] : in_text[at + 1]] == theirs[in_tokens[at] : in_tokens[at + 1]]
        wanted = byte_of(characters[owners] + cuts) - in_text[owners] + in_tokens[owners]
        found = np.minimum(np.searchsorted(bounds[1:], wanted, side="right"), ends[owners])
        firsts = np.concatenate([[0], ends[:-1]])
        inside = (found < ends[owners]) & (bounds[found] < wanted)
        return TokenPlaces(found - firsts[owners], inside), exact


def _binary(offsets: NDArray[np.int64], data: bytes) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _bytes_of_characters(text: bytes, count: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the function from characters of a text to their first bytes; `count` is the number of its characters."""
    if len(text) == count:
        return lambda characters: characters
    found = np.frombuffer(text, np.uint8)
    starts = np.append(np.flatnonzero((found & 0xC0) != 0x80), len(text))
    return lambda characters: starts[characters]
