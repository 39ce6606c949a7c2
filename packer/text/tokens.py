"""Tokenize texts in batches, and map character positions to tokens (by the characters that begin in each token).

gigatoken, if it is installed, is many times as fast as the tokenizers library, and gives the same tokens for most
tokenizers. Its results are always checked against the library: on texts that are hard to tokenize, on all added tokens
and every character that occurs, on the first documents, and on one in a thousand of the others, drawn by hash. Texts
with characters that gigatoken treats differently are left to the library. Any other difference is an error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import PackerError, SourceError, check_address_space, first_line
from packer.sources.documents import DocumentError
from packer.text.tokenizer import PROBES, Tokenizer, TokenizerContent, added_tokens, is_refusal, shared_length

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

log = logging.getLogger(__name__)

_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes written as themselves in a byte-level vocabulary. The others are written as U+0100 and the letters after it."""

CHARACTERS = 1 << 20
"""Approximate maximum size of the texts of one tokenizer call, which needs hundreds of bytes per token."""

_NORMALIZED = 64  # number of characters before and after a position that are normalized to test for composition

_NO_BYTE = 0xFF  # never occurs in UTF-8

# free address space needed to tokenize, in bytes: without it, the library aborts the process
_ADDRESS_SPACE, _PER_CHARACTER = 64 << 20, 64

SWITCH = "PACKER_GIGATOKEN"
"""Environment variable that switches gigatoken off if it is 0."""

_ENOUGH = 4 << 20  # bytes of a source, or characters so far, that justify loading gigatoken, which takes a second
_FIRST = 1 << 17  # number of characters of the first documents, which are all compared
_ONE_IN = 1000  # one in this many of all further documents is compared

_SPACES = ("", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u0085")
_WORDS = (
    "a I'm WE'LL don\u2019t '\u017ft \xe9t\xe9 cafe\u0301 \ufb01n \xc5\u212b na\xefve 123 1234567 3.14 1,000 "
    "\u0663\u0664 \xbd \u2167 _x__y a.b(c)[0] //--==> <|x|> <s \\n ?!?!... the The THE thethe "
    "xxxxxxxxxxxxxxxxxxxx https://example.org/?a=1&b=%20 \u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e\u3067\u3059 "
    "\ud55c\uad6d\uc5b4 a\u0300\u0323 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f600 "
    "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea \u1e9b\u0323 \ufffd \ufeff \x00 \x7f \U0010ffff \ue000"
)

_GROUP = 64  # number of characters that are first compared in one text
_NEW, _ALIKE, _UNLIKE = range(3)  # states of a character: not compared yet, or how its comparison ended
_COMPOSED = range(0x20000)  # includes all characters that canonically decompose into two

Span = tuple[int, int]
"""Characters first:last of a text."""

Encoded: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""(tokens of all texts, concatenated; number of tokens up to the end of each text)."""

Encode: TypeAlias = Callable[[Sequence[str]], Encoded]


class MarkedText(NamedTuple):
    """A document as text, with its trained characters and the starts of its exchanges."""

    text: str
    trained: list[Span] | None = None
    """Trained spans, in order; None if everything is trained."""
    exchange_starts: list[int] | None = None
    """Starts of exchanges, ascending from 0; None if not requested. Text before the first start belongs to it."""
    weights: Sequence[float] | None = None
    """Weight of each trained span in the loss; None if all are 1."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Messages of a chat."""
    row: int = 0
    """Number of the record."""
    counted: tuple[str, ...] = ()
    """Keys of `Batch.counts` that the document increments, repeated for each increment."""


class Texts(NamedTuple):
    """Texts that are tokenized together, as columns."""

    texts: Sequence[str]
    rows: NDArray[np.int64]
    """Number of the record of each text."""
    spans: NDArray[np.int64] = np.zeros((0, 3), np.int64)
    """Trained spans, text by text: (index of the text, first character, end) of each."""
    exchange_starts: NDArray[np.int64] = np.zeros((0, 2), np.int64)
    """Starts of exchanges, text by text: (index of the text, character) of each."""

    @classmethod
    def of(cls, marked: Sequence[MarkedText]) -> Texts:
        """Return marked texts as columns."""
        spans, starts = [one.trained or () for one in marked], [one.exchange_starts or () for one in marked]
        of_spans, of_starts = (np.repeat(np.arange(len(marked)), [*map(len, lists)]) for lists in (spans, starts))
        bounds, firsts = (np.fromiter(chain(*lists), np.int64) for lists in (chain(*spans), starts))
        columns = np.column_stack([of_spans, bounds.reshape(-1, 2)]), np.column_stack([of_starts, firsts])
        return cls([one.text for one in marked], np.array([one.row for one in marked], np.int64), *columns)

    def parts(self, together: int) -> Iterator[Texts]:
        """Yield the texts of each tokenizer call. Each `together` texts, such as answers of a pair, stay together."""
        ends = np.cumsum([*map(len, self.texts)])[together - 1 :: together]
        bounds = [0, *(together * (np.flatnonzero(np.diff(ends // CHARACTERS)) + 1)).tolist(), len(self.texts)]
        for first, last in pairwise(bounds):
            columns = []
            for column in (self.spans, self.exchange_starts):
                own = column[slice(*np.searchsorted(column[:, 0], [first, last]))].copy()
                own[:, 0] -= first
                columns.append(own)
            yield Texts(self.texts[first:last], self.rows[first:last], *columns)


class TokenPlaces(NamedTuple):
    """Positions of characters among the tokens of their texts."""

    tokens: NDArray[np.int64]
    """First token that contains the character or a later one; the number of tokens if there is none."""
    inside: NDArray[np.bool_]
    """Whether this token also contains earlier characters."""


class Tokens(NamedTuple):
    """Texts as tokens, without added tokens."""

    ids: NDArray[np.int32]
    """Tokens of all texts, concatenated."""
    ends: NDArray[np.int64]
    """Number of tokens up to the end of each text."""
    places: TokenPlaces
    """Positions of the bounds of all trained spans, followed by positions of all exchange starts."""
    by_gigatoken: int = 0
    """Number of texts that gigatoken tokenized."""


class TextTokens:
    """A tokenizer that adds no tokens (BOS, EOS, ...) any more; they are stored. Modifies the tokenizer that is passed.

    Raises a PackerError if the tokenizer refuses plain sentences, or adds anything but a fixed beginning and end.
    """

    def __init__(self, tokenizer: Tokenizer, size: int = 0) -> None:
        self.tokenizer = tokenizer
        self.backend = tokenizer.backend
        self.fast = FastTokens(self.backend, tokenizer.content, size)
        """Tokenizer that uses gigatoken."""
        try:
            self.prefix, self.suffix = _added(tokenizer)  # tokens before and after every text: BOS, [CLS], [SEP]
        except BaseException as error:
            if isinstance(error, PackerError) or not is_refusal(error):
                raise
            raise PackerError(
                f"{tokenizer.name} does not tokenize a plain sentence: {_reason(error)}; choose a tokenizer that takes "
                "any text"
            ) from error
        # The post-processor would add prefix and suffix. In byte-level models, it would also exclude leading spaces
        # from offsets.
        self.backend.post_processor = None

    @property
    def content_hash(self) -> str:
        """Hash of everything that determines tokens. It does not depend on the class that opened the tokenizer."""
        settings, vocabulary = self.tokenizer.content
        settings = {name: value for name, value in settings.items() if name != "decoder"}
        return json_hash([settings, vocabulary, [self.prefix, self.suffix], dict(self.tokenizer.special_tokens)])

    def encode(self, texts: Texts) -> Tokens:
        """Tokenize texts without lone surrogates, and find their trained spans and exchange starts among the tokens.

        Raises a DocumentError if the tokenizer refuses a text.
        """
        cuts = np.concatenate([texts.spans[:, 1:].ravel(), texts.exchange_starts[:, 1]])
        owners = np.concatenate([texts.spans[:, 0].repeat(2), texts.exchange_starts[:, 0]])
        check_address_space(_ADDRESS_SPACE + _PER_CHARACTER * sum(map(len, texts.texts)), "tokens")
        try:
            return self._encode(texts.texts, cuts, owners)
        except BaseException as error:
            if not is_refusal(error):
                raise
        for at, text in enumerate(texts.texts):  # finds the refused text
            try:
                self._encode([text], cuts[owners == at], owners[owners == at] - at)
            except BaseException as error:
                if not is_refusal(error):
                    raise
                message = f"the tokenizer does not take it: {_reason(error)}"
                raise DocumentError(int(texts.rows[at]), message, reason="invalid_text") from None
        raise AssertionError("a tokenizer refuses texts that it takes one by one")

    def _encode(self, texts: Sequence[str], cuts: NDArray[np.int64], owners: NDArray[np.int64]) -> Tokens:
        """Tokenize texts, and find the tokens of characters: cuts[i] is a character of text owners[i].

        Positions follow from the characters of tokens, or from the library's offsets if tokens may not spell a text.
        """
        characters = self._characters if len(cuts) else None
        if len(cuts) and characters is None:
            return self._with_offsets(texts, cuts, owners)
        (ids, ends), count = self.fast.encode(texts) or (by_library(self.backend, texts), 0)
        if characters is None:
            return Tokens(ids, ends, TokenPlaces(owners, np.zeros(0, np.bool_)), count)
        places, exact = characters.find(texts, ids, ends, cuts, owners)
        left = ~exact[owners]
        if left.any():
            others, numbers = np.unique(owners[left], return_inverse=True)
            found = self._with_offsets([texts[at] for at in others.tolist()], cuts[left], numbers).places
            places.tokens[left], places.inside[left] = found
        return Tokens(ids, ends, places, count)

    def _with_offsets(self, texts: Sequence[str], cuts: NDArray[np.int64], owners: NDArray[np.int64]) -> Tokens:
        """Tokenize with the library, and find positions by its offsets."""
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        places = []
        for cut, at in zip(cuts.tolist(), owners.tolist(), strict=True):
            if self._is_composed(texts[at], cut):
                places.append(self._shared_place(texts[at], cut, encodings[at].ids))
            else:
                places.append(_place_of(encodings[at], cut, len(texts[at])))
        found = np.array(places, np.int64).reshape(-1, 2)
        ids, ends = _joined([encoding.ids for encoding in encodings])
        return Tokens(ids, ends, TokenPlaces(found[:, 0], found[:, 1].astype(np.bool_)))

    def _shared_place(self, text: str, cut: int, ids: list[int]) -> tuple[int, bool]:
        """Find a character's token, as in `TokenPlaces`: it follows the tokens shared with the text before it."""
        before = self.backend.encode(text[:cut], add_special_tokens=False).ids
        token = shared_length(before, ids)
        return token, token < min(len(before), len(ids))

    def _is_composed(self, text: str, cut: int) -> bool:
        """Whether the normalizer joins characters before and after a position: "s" and U+0301 become one character."""
        if not cut or text[cut : cut + 1].isascii() or self.backend.normalizer is None:
            return False
        first = max(cut - _NORMALIZED, 0)
        before, whole = (self.backend.normalizer.normalize_str(text[first:last]) for last in (cut, cut + _NORMALIZED))
        return not whole.startswith(before)

    @cached_property
    def _characters(self) -> TokenCharacters | None:
        """Characters of each token; None unless the tokenizer is byte-level."""
        settings = self.tokenizer.content.settings
        if settings["model"]["type"] != "BPE":
            return None
        words = settings["pre_tokenizer"] or {}
        parts = [part for part in (words, *words.get("pretokenizers", ())) if part.get("type") == "ByteLevel"]
        is_exact = parts and not any(part["add_prefix_space"] for part in parts)
        return TokenCharacters(self.backend, settings) if is_exact else None


def json_hash(value: Any) -> str:
    """Return a hash of a value's JSON."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def _place_of(encoding: Any, cut: int, length: int) -> tuple[int, bool]:
    """Find a character among the tokens of the library, as in `TokenPlaces`; `length` is the length of the text."""
    for character in range(cut, length):  # WordPiece drops spaces, which then belong to no token
        token = encoding.char_to_token(character)
        if token is not None:
            return token, encoding.token_to_chars(token)[0] < cut
    return len(encoding), False


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__} {next(iter(str(error).splitlines()), '')}".strip()


def _added(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer adds before and after every text."""
    first, *others = [added_tokens(tokenizer.backend, probe) for probe in PROBES]
    if first is None or any(other != first for other in others):
        raise PackerError(
            f"{tokenizer.name}: the tokens it adds to a text are not the same before and after every text; choose a "
            "tokenizer that adds BOS and EOS alone"
        )
    return first


class TokenCharacters:
    """Characters of each token of a byte-level tokenizer."""

    def __init__(self, backend: RustTokenizer, settings: Mapping[str, Any]) -> None:
        others = (byte for byte in range(256) if byte not in _PRINTED)
        letters = {byte: chr(byte) for byte in _PRINTED} | {byte: chr(256 + at) for at, byte in enumerate(others)}
        bytes_of_letters = np.full(sys.maxunicode + 1, _NO_BYTE, np.uint8)
        bytes_of_letters[[*map(ord, letters.values())]] = [*letters]
        vocabulary = backend.get_vocab(with_added_tokens=False)
        tokens = {number: token for token, number in vocabulary.items()}
        for number, token in backend.get_added_tokens_decoder().items():
            tokens[number] = "".join(letters[byte] for byte in token.content.encode())
        spelled = [tokens.get(number, chr(0xFFFF)) for number in range(max(tokens, default=-1) + 1)]
        data = bytes_of_letters[np.frombuffer("".join(spelled).encode("utf-32-le"), np.uint32)]
        bounds = np.cumsum([0, *map(len, spelled)])  # each letter is one byte
        is_first = np.append((data & 0xC0) != 0x80, True)  # byte that begins a character
        self._begun = np.diff(np.append(0, np.cumsum(is_first))[bounds]).astype(np.int32)
        """Number of characters that begin in each token."""
        self._continues = ~is_first[bounds[:-1]]
        """Whether each token begins inside a character."""
        self._forms = _kept_forms(settings) if vocabulary.keys() >= {*letters.values()} else None

    def find(
        self,
        texts: Sequence[str],
        ids: NDArray[np.int32],
        ends: NDArray[np.int64],
        cuts: NDArray[np.int64],
        owners: NDArray[np.int64],
    ) -> tuple[TokenPlaces, NDArray[np.bool_]]:
        """Find the tokens of characters: cuts[i] is a character of text owners[i]. Texts have no lone surrogates.

        Returns (places, is_exact). `is_exact`, shape (texts,), says whether a text's tokens spell it for certain;
        places are valid only for these texts.
        """
        begun = np.zeros(len(ids) + 1, np.int64)  # number of characters that begin before each token
        np.cumsum(self._begun.take(ids), out=begun[1:])
        bounds = np.append(0, ends)
        wanted = begun[bounds[owners]] + cuts
        found = np.minimum(np.searchsorted(begun[1:], wanted, side="right"), ends[owners])
        inside = found < ends[owners]
        inside[inside] = (begun[found] < wanted)[inside] | self._continues[ids[found[inside]]]
        forms = self._forms
        kept = (  # tokens spell these texts, unless they leave characters out
            forms is not None and (text.isascii() or all(unicodedata.is_normalized(form, text) for form in forms))
            for text in texts
        )
        # tokens that leave characters out, such as spaces before an added token, are too short
        exact = np.fromiter(kept, np.bool_, len(texts)) & (np.diff(begun[bounds]) == [*map(len, texts)])
        return TokenPlaces(found - bounds[owners], inside), exact


def _kept_forms(settings: Mapping[str, Any]) -> set[Any] | None:
    """Return the Unicode forms that a tokenizer converts texts to. None if it may add or replace other characters."""
    model, normalizer, words = (settings[name] or {} for name in ("model", "normalizer", "pre_tokenizer"))
    forms = {part["type"] for part in normalizer.get("normalizers", [normalizer] if normalizer else [])}
    adds = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    adds = adds or any(part["type"] in ("Metaspace", "Sequence") for part in words.get("pretokenizers", [words]))
    adds = adds or any(token["normalized"] and not token["content"].isascii() for token in settings["added_tokens"])
    return None if adds or not forms <= {"NFC", "NFD", "NFKC", "NFKD"} else forms


class FastTokens:
    """Tokenizes with gigatoken if its results equal those of the library, and there is enough to tokenize."""

    def __init__(self, backend: RustTokenizer, content: TokenizerContent, size: int) -> None:
        self._backend, self._content = backend, content
        self._size, self._characters = size, 0  # bytes of the files, which may be compressed; characters so far
        self._lock = threading.Lock()
        self._loaded: ComparedCharacters | None = None  # with gigatoken as its first tokenizer
        settings = content.settings
        model = settings["model"]
        is_plain = model["type"] == "BPE" and not model.get("dropout") and not settings.get("encode_special_tokens")
        self._is_used = is_plain and os.environ.get(SWITCH) != "0" and gigatoken_version() is not None
        self._left_to_compare = _FIRST

    def __reduce__(self) -> tuple[type[FastTokens], tuple[Any, ...]]:
        return type(self), (self._backend, self._content, self._size)  # pickling drops the loaded gigatoken

    def encode(self, texts: Sequence[str]) -> tuple[Encoded, int] | None:
        """Tokenize texts. Returns (result, number of texts by gigatoken), or None if all are left to the library.

        Raises a SourceError if gigatoken and the library disagree on a text.
        """
        loaded = self._opened(texts)
        if loaded is None:
            return None
        try:
            left = loaded.unlike_texts(texts)
            ids, ends = loaded.one(texts)
        except BaseException as error:
            self._switch_off(error)
            return None
        if left:
            lists = np.split(ids, ends[:-1])
            for at in left:
                lists[at] = by_library(self._backend, [texts[at]])[0]
            ids, ends = _concatenated(lists)
        compared = self._compared(texts, ids, ends)
        parts = [ids[ends[at - 1] if at else 0 : ends[at]] for at in compared]
        library = by_library(self._backend, [texts[at] for at in compared])
        if not _are_equal(_concatenated(parts), library):
            raise SourceError(
                "gigatoken gives other tokens than tokenizers for a document, so others may be wrong, too: set "
                f"{SWITCH}=0, and repeat the command"
            )
        return (ids, ends), len(texts) - len(left)

    def _opened(self, texts: Sequence[str]) -> ComparedCharacters | None:
        """Load gigatoken once there is enough to tokenize."""
        if not self._is_used:
            return None
        if self._loaded is None and self._size < _ENOUGH:
            self._characters += sum(map(len, texts))
            if self._characters < _ENOUGH:
                return None
        with self._lock:
            if self._loaded is None and self._is_used:
                try:
                    self._loaded = self._load()
                except BaseException as error:  # RuntimeError and others, for unsupported tokenizers
                    self._switch_off(error)
        return self._loaded if self._is_used else None

    def _switch_off(self, error: BaseException) -> None:
        """Leave all further texts to the library. Raises errors that are no refusal of a tokenizer."""
        if not is_refusal(error):
            raise error
        log.info("tokenizers is used instead of gigatoken: %s", first_line(error))
        self._is_used = False

    def _load(self) -> ComparedCharacters:
        encode, library = load(self._backend), partial(by_library, self._backend)
        hard = hard_texts(self._content.settings)
        if found := _differing(encode, library, hard):
            raise ValueError(f"it has other tokens for {hard[found[0]][:40]!a}")
        return ComparedCharacters(encode, library)

    def _compared(self, texts: Sequence[str], ids: NDArray[np.int32], ends: NDArray[np.int64]) -> list[int]:
        """Return the documents to compare with the library: the first ones, and one in a thousand of the others."""
        first = 0
        if self._left_to_compare > 0:
            characters = np.cumsum([*map(len, texts)])
            first = min(int(np.searchsorted(characters, self._left_to_compare)) + 1, len(texts))
            self._left_to_compare -= int(characters[first - 1])
        return [*map(int, np.union1d(np.arange(first), _drawn(ids, ends)))]


def by_library(backend: RustTokenizer, texts: Sequence[str]) -> Encoded:
    """Tokenize with the library."""
    return _joined([encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)])


def _joined(lists: Sequence[Sequence[int]]) -> Encoded:
    """Join the tokens of texts."""
    ends = np.cumsum([*map(len, lists)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(lists), np.int32, int(ends[-1]) if len(ends) else 0), ends


def _concatenated(parts: Sequence[NDArray[np.int32]]) -> Encoded:
    return np.concatenate([np.zeros(0, np.int32), *parts]), np.cumsum([*map(len, parts)], dtype=np.int64)


def _are_equal(one: Encoded, other: Encoded) -> bool:
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


@cache
def gigatoken_version() -> str | None:
    """Return the version of gigatoken; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        return None


def load(backend: RustTokenizer) -> Encode:
    """Return a function that tokenizes with gigatoken like `backend`."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(backend.to_str())

    def encode(texts: Sequence[str]) -> Encoded:
        # the threads of packer already share the work
        found = tokenizer.encode_batch(texts, parallel=False).layout
        bounds = np.asarray(found.offsets.data)
        ids: NDArray[np.int32] = np.asarray(found.content.data)[bounds[0] : bounds[-1]].view(np.int32)
        return ids, bounds[1:] - bounds[0]

    return encode


def hard_texts(settings: Mapping[str, Any]) -> list[str]:
    """Return texts that are hard to tokenize: words of many scripts between spaces, and every added token.

    With a normalizer, these include variants that it may turn into an added token: other Unicode forms, other cases,
    accents, and spaces written as U+2581.
    """
    words = _WORDS.split(" ")
    texts = [f"{before}{word}{behind}" for word in words for before, behind in pairwise(_SPACES)]
    texts += ["".join(words), _WORDS, "\n".join(words), *(_SPACES), *(one * 5 for one in _SPACES)]
    added = [token["content"] for token in settings["added_tokens"]]
    if settings.get("normalizer") is not None:
        forms = [[unicodedata.normalize(form, one) for one in added] for form in ("NFD", "NFC", "NFKD", "NFKC")]
        cases = [[one.lower() for one in added], [one.upper() for one in added]]
        marks = [["".join(letter + "\u0301" * letter.isalpha() for letter in one) for one in added]]
        spaces = [[one.replace("\u2581", " ") for one in added], [one.replace(" ", "\u2581") for one in added]]
        added = [*dict.fromkeys(chain(added, *forms, *cases, *marks, *spaces))]
    texts += [f"a {one} b{one}{one.upper()} {one[:-1]}\n{one}\n {one[1:]}1" for one in added]
    return [*texts, "".join(added), " ".join(added)]


def _drawn(ids: NDArray[np.int32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw one text in a thousand, by a hash of its tokens."""
    totals = np.add.reduceat(np.append(ids, np.int32(0)), np.append(0, ends)[:-1], dtype=np.uint64)
    return np.flatnonzero((totals * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(_ONE_IN) == 0)


class ComparedCharacters:
    """Compares two tokenizers on characters when they first occur, to find texts that may have other tokens.

    Libraries contain tables of different Unicode versions. Later versions add characters but never change the class,
    combining order or composition of existing ones. Two libraries therefore agree on texts whose characters are in both
    versions. Characters are compared between letters, digits, spaces, apostrophes and marks. A character that Python
    does not know counts as different.

    Raises a ValueError if the tokenizers differ on an ASCII character.
    """

    def __init__(self, one: Encode, other: Encode) -> None:
        self.one, self._other = one, other
        self._states = np.full(sys.maxunicode + 1, _NEW, np.uint8)
        self._compare(range(128))
        pairs = [*chain.from_iterable(map(_decompositions, map(chr, _COMPOSED)))]
        self._states[[ord(pairs[at][0]) for at in _differing(one, other, pairs)]] = _UNLIKE
        found = np.flatnonzero(self._states[:128] == _UNLIKE)
        if len(found):
            raise ValueError(f"it has other tokens for {chr(found[0])!a}")

    def unlike_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts with characters that the tokenizers treat differently."""
        numbers = [at for at, text in enumerate(texts) if not text.isascii()]
        codes = np.frombuffer("".join(texts[at] for at in numbers).encode("utf-32-le"), np.uint32)
        if (self._states[codes[codes > 127]] == _ALIKE).all():
            return []
        self._compare(np.unique(codes[self._states[codes] == _NEW]).tolist())
        places = np.flatnonzero(self._states[codes] == _UNLIKE)
        ends = np.cumsum([len(texts[at]) for at in numbers], dtype=np.int64)
        return [numbers[at] for at in np.unique(np.searchsorted(ends, places, side="right"))]

    def _compare(self, codes: Sequence[int]) -> None:
        """Set the states of characters."""
        contexts = {code: _context(chr(code)) for code in codes if _is_known(chr(code))}
        groups = [[*contexts][first : first + _GROUP] for first in range(0, len(contexts), _GROUP)]
        # compare many characters in one text, and single ones only if the tokens differ
        texts = ["".join(map(contexts.__getitem__, group)) for group in groups]
        doubtful = [*chain.from_iterable(groups[at] for at in _differing(self.one, self._other, texts))]
        differing = _differing(self.one, self._other, [*map(contexts.__getitem__, doubtful)])
        alike = contexts.keys() - {doubtful[at] for at in differing}
        self._states[codes] = [_ALIKE if code in alike else _UNLIKE for code in codes]


def _differing(one: Encode, other: Encode, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts with different tokens."""
    if not texts:
        return []
    ones, others = one(texts), other(texts)
    if _are_equal(ones, others):
        return []
    both = [np.split(ids, ends[:-1]) for ids, ends in (ones, others)]
    return [at for at, (a, b) in enumerate(zip(*both, strict=True)) if not np.array_equal(a, b)]


def _context(character: str) -> str:
    """Return a text that reveals the class of a character, and whether it is a mark.

    Subtle: a mark of any class but 0 is sorted between U+0345, of the last class, and U+0334, of the first. The next
    character is usually of the same script.
    """
    c, near = character, chr(ord(character) + 1)
    near = near if _is_known(near) else c
    return f"a{c}b {c}'s  {c}\n{c}\n\n1{c}2 !{c}?\t{c}{c}{near}{c}a\u0345{c}\u0334"


def _is_known(character: str) -> bool:
    """Whether Python's version of Unicode contains a character."""
    return unicodedata.category(character) not in ("Cn", "Cs")


def _decompositions(character: str) -> Iterable[str]:
    """Yield the decompositions of a character: base and mark, and the full one, which also decomposes the base."""
    parts = unicodedata.decomposition(character).split()
    if len(parts) == 2 and not parts[0].startswith("<"):
        yield "".join(chr(int(part, 16)) for part in parts)
        yield unicodedata.normalize("NFD", character)
