"""Tokens by gigatoken, many times as fast as by tokenizers, of tokenizers for which it gives the same.

It is never trusted: it is compared with the library on texts that are hard to tokenize, on all added tokens and all
characters, on the first documents and on one in a thousand of all others, drawn by hash. Texts with characters that it
treats differently are left to the library. At any other difference, it is no longer used.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import first_line
from packer.system_errors import shortage
from packer.text.tokenizer import Content
from packer.text.unlike_characters import Encode, Encoded, differing, texts_with, unlike_characters

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

log = logging.getLogger(__name__)

SWITCH = "PACKER_GIGATOKEN"
"""Environment variable that switches gigatoken off if it is 0."""

_ENOUGH = 1 << 17  # characters in one call from which it is worth a second to load it
_FIRST = 1 << 19  # characters of the first documents, all of which are compared
_ONE_IN = 1000  # of all others are compared

_SPACES = ("", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u0085")
_WORDS = (
    "a I'm WE'LL don\u2019t '\u017ft \xe9t\xe9 cafe\u0301 \ufb01n \xc5\u212b na\xefve 123 1234567 3.14 1,000 "
    "\u0663\u0664 \xbd \u2167 _x__y a.b(c)[0] //--==> <|x|> <s \\n ?!?!... the The THE thethe "
    "xxxxxxxxxxxxxxxxxxxx https://example.org/?a=1&b=%20 \u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e\u3067\u3059 "
    "\ud55c\uad6d\uc5b4 a\u0300\u0323 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f600 "
    "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea \u1e9b\u0323 \ufffd \ufeff \x00 \x7f \U0010ffff \ue000"
)


class _Loaded(NamedTuple):
    """Gigatoken with a tokenizer, compared with the library."""

    encode: Encode
    unlike: NDArray[np.bool_]
    """Whether texts with a character are left to the library, for each code point."""


class FastTokens:
    """Tokenizes by gigatoken where that gives what a tokenizer of this content gives."""

    def __init__(self, backend: RustTokenizer, content: Content) -> None:
        self._backend, self._content = backend, content
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        settings = content.settings
        model = settings["model"]
        is_plain = model["type"] == "BPE" and not model.get("dropout") and not settings.get("encode_special_tokens")
        self._is_used = is_plain and is_switched_on() and version() is not None
        self._left_to_compare = _FIRST
        self.differs = False
        """Whether a document had other tokens than by the library."""

    def __reduce__(self) -> tuple[type[FastTokens], tuple[Any, ...]]:
        return type(self), (self._backend, self._content)  # to pass between processes

    def stop(self) -> None:
        """Use the library from now on."""
        self._is_used = False

    def encode(self, texts: Sequence[str]) -> tuple[Encoded, int] | None:
        """Tokenize texts; return them and how many gigatoken tokenized, or None if that is left to the library.

        The library is used from now on if a text has other tokens than by the library.
        """
        loaded = self._opened(texts)
        if loaded is None:
            return None
        left = texts_with(loaded.unlike, texts)
        try:
            ids, ends = loaded.encode(texts)
        except BaseException as error:
            if not is_refusal(error):
                raise
            self._differ()
            return None
        if left:
            lists = np.split(ids, ends[:-1])
            for at in left:
                lists[at] = self._by_library([texts[at]])[0]
            ids, ends = _concatenated(lists)
        compared = self._compared(texts, ids, ends)
        by_library = self._by_library([texts[at] for at in compared])
        parts = [ids[ends[at - 1] if at else 0 : ends[at]] for at in compared]
        if differing(_concatenated(parts), by_library):
            self._differ()
            return None
        return (ids, ends), len(texts) - len(left)

    def _differ(self) -> None:
        with self._lock:
            if not self.differs:
                log.warning("gigatoken gives other tokens than tokenizers for a document: tokenizers makes all tokens")
            self.differs = True
        self.stop()

    def _by_library(self, texts: Sequence[str]) -> Encoded:
        return by_library(self._backend, texts)

    def _opened(self, texts: Sequence[str]) -> _Loaded | None:
        """Load gigatoken once there is enough to tokenize."""
        if not self._is_used or (self._loaded is None and sum(map(len, texts)) < _ENOUGH):
            return None
        with self._lock:
            if self._loaded is None and self._is_used:
                try:
                    self._loaded = self._load()
                except BaseException as error:  # it raises RuntimeError and others for what it does not know
                    if not is_refusal(error):
                        raise
                    log.info("tokenizers is used instead of gigatoken: %s", first_line(error))
                    self.stop()
        return self._loaded if self._is_used else None

    def _load(self) -> _Loaded:
        from importlib import metadata

        encode = load(self._backend)
        hard = hard_texts(self._content.settings)
        if found := differing(encode(hard), self._by_library(hard)):
            raise ValueError(f"it has other tokens for {hard[found[0]][:40]!a}")
        key = json.dumps([*self._content, version(), metadata.version("tokenizers")], sort_keys=True)
        unlike = unlike_characters(encode, self._by_library, xxhash.xxh3_128_hexdigest(key.encode()))
        if unlike[1:128].any():
            raise ValueError(f"it has other tokens for {chr(1 + int(np.argmax(unlike[1:128])))!a}")
        return _Loaded(encode, unlike)

    def _compared(self, texts: Sequence[str], ids: NDArray[np.int32], ends: NDArray[np.int64]) -> list[int]:
        """Return the documents to compare with the library: the first ones, and one in a thousand."""
        first = 0
        if self._left_to_compare > 0:
            characters = np.cumsum([*map(len, texts)])
            first = min(int(np.searchsorted(characters, self._left_to_compare)) + 1, len(texts))
            self._left_to_compare -= int(characters[first - 1])
        return [*map(int, np.union1d(np.arange(first), _drawn(ids, ends)))]


def by_library(backend: RustTokenizer, texts: Sequence[str]) -> Encoded:
    """Tokenize by the library."""
    return joined([encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)])


def joined(lists: Sequence[Sequence[int]]) -> Encoded:
    """Join the tokens of texts."""
    ends = np.cumsum([*map(len, lists)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(lists), np.int32, int(ends[-1]) if len(ends) else 0), ends


def _concatenated(parts: Sequence[NDArray[np.int32]]) -> Encoded:
    return np.concatenate([np.zeros(0, np.int32), *parts]), np.cumsum([*map(len, parts)], dtype=np.int64)


def is_refusal(error: BaseException) -> bool:
    """Whether a tokenizer raised this: tokenizers raises plain Exception and, if Rust panics, a BaseException."""
    is_known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
    return is_known and shortage(error) is None


def is_switched_on() -> bool:
    """Whether gigatoken may be used if it is installed."""
    return os.environ.get(SWITCH) != "0"


@cache
def version() -> str | None:
    """Return the version of gigatoken; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        return None


def load(backend: RustTokenizer) -> Encode:
    """Return the function by which gigatoken tokenizes as a tokenizer of the library does."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(backend.to_str())

    def encode(texts: Sequence[str]) -> Encoded:
        # threads of packer share the work
        found = tokenizer.encode_batch(texts, parallel=False).layout
        bounds = np.asarray(found.offsets.data)
        ids: NDArray[np.int32] = np.asarray(found.content.data)[bounds[0] : bounds[-1]].view(np.int32)
        return ids, bounds[1:] - bounds[0]

    return encode


def hard_texts(settings: Mapping[str, Any]) -> list[str]:
    """Return texts that are hard to tokenize: words of many scripts between spaces, and every added token."""
    words = _WORDS.split(" ")
    texts = [f"{before}{word}{behind}" for word in words for before, behind in pairwise(_SPACES)]
    texts += ["".join(words), _WORDS, "\n".join(words), *(_SPACES), *(one * 5 for one in _SPACES)]
    added = [token["content"] for token in settings["added_tokens"]]
    texts += [f"a {one} b{one}{one.upper()} {one[:-1]}\n{one}\n {one[1:]}1" for one in added]
    return [*texts, "".join(added), " ".join(added)]


def _drawn(ids: NDArray[np.int32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw one text in a thousand, by a hash of its tokens."""
    sums = np.append(np.uint64(0), np.cumsum(ids, dtype=np.uint64))
    totals = sums[ends] - sums[np.concatenate([[0], ends[:-1]])]
    return np.flatnonzero((totals * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(_ONE_IN) == 0)
