"""Tokens by gigatoken, many times as fast as by tokenizers, of tokenizers for which it gives the same.

It is never trusted: it is compared with the library on texts that are hard to tokenize, on all added tokens, on the
first documents and on one in a thousand of all others, drawn by hash. At the first difference, it is no longer used.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.system_errors import shortage

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

log = logging.getLogger(__name__)

SWITCH = "PACKER_GIGATOKEN"
"""Environment variable that switches gigatoken off if it is 0."""

_ENOUGH = 1 << 17  # characters in one call from which it is worth a second to load it
_FIRST = 200  # documents that are compared first, by their first characters
_CHARACTERS = 1024  # of each of these
_ONE_IN = 1000  # of all others are compared whole

_SPACES = ("", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u0085")
_WORDS = (
    "a I'm WE'LL don\u2019t '\u017ft \xe9t\xe9 cafe\u0301 \ufb01n \xc5\u212b na\xefve 123 1234567 3.14 1,000 "
    "\u0663\u0664 \xbd \u2167 _x__y a.b(c)[0] //--==> <|x|> <s \\n ?!?!... the The THE thethe "
    "xxxxxxxxxxxxxxxxxxxx https://example.org/?a=1&b=%20 \u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e\u3067\u3059 "
    "\ud55c\uad6d\uc5b4 a\u0300\u0323 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f600 "
    "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea \u1e9b\u0323 \ufffd \ufeff \x00 \x7f \U0010ffff \ue000"
)

Encoded: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Tokens of texts, one text after the other, and the number of tokens up to the end of each."""

Encode: TypeAlias = Callable[[Sequence[str]], Encoded]


class Difference(Exception):  # noqa: N818 (it is not the caller's error)
    """Raised with the number of a text in the call that has other tokens than by the library."""


class FastTokens:
    """Tokenizes by gigatoken where that gives what a tokenizer of these `Content.settings` gives."""

    def __init__(self, backend: RustTokenizer, settings: Mapping[str, Any]) -> None:
        self._backend, self._settings = backend, settings
        self._lock = threading.Lock()
        self._encode: Encode | None = None
        model = settings["model"]
        is_plain = model["type"] == "BPE" and not model.get("dropout") and not settings.get("encode_special_tokens")
        self._is_used = is_plain and is_switched_on() and version() is not None
        self._compared = 0
        self.differs = False
        """Whether a document had other tokens than by the library."""

    def __reduce__(self) -> tuple[type[FastTokens], tuple[Any, ...]]:
        return type(self), (self._backend, self._settings)  # to pass between processes

    def stop(self) -> None:
        """Use the library from now on."""
        self._is_used = False

    def encode(self, texts: Sequence[str]) -> Encoded | None:
        """Tokenize texts; return None if that is left to the library.

        A `Difference` is raised if a text has other tokens than by the library, which is used from now on.
        """
        encode = self._opened(texts)
        if encode is None:
            return None
        try:
            ids, ends = encode(texts)
        except BaseException as error:
            if not is_refusal(error):
                raise
            raise self._stopped_at(0) from error
        differing = self._differing(encode, texts, ids, ends)
        if differing is not None:
            raise self._stopped_at(differing)
        return ids, ends

    def _stopped_at(self, text: int) -> Difference:
        self.stop()
        self.differs = True
        return Difference(text)

    def _opened(self, texts: Sequence[str]) -> Encode | None:
        """Load gigatoken once there is enough to tokenize."""
        if not self._is_used or (self._encode is None and sum(map(len, texts)) < _ENOUGH):
            return None
        with self._lock:
            if self._encode is None and self._is_used:
                try:
                    self._encode = load(self._backend)
                    hard = hard_texts(self._settings)
                    differing = _differing(self._encode(hard), by_library(self._backend, hard))
                    if differing is not None:
                        raise ValueError(f"it has other tokens for {hard[differing][:40]!a}")
                except BaseException as error:  # it raises RuntimeError and others for what it does not know
                    if not is_refusal(error):
                        raise
                    log.info("tokenizers is used instead of gigatoken: %s", error)
                    self.stop()
        return self._encode if self._is_used else None

    def _differing(
        self, encode: Encode, texts: Sequence[str], ids: NDArray[np.int32], ends: NDArray[np.int64]
    ) -> int | None:
        """Compare documents with the library; return the number of one with other tokens, None if there is none."""
        firsts = np.concatenate([[0], ends[:-1]])
        for at in _drawn(ids, ends).tolist():
            if not np.array_equal(by_library(self._backend, [texts[at]])[0], ids[firsts[at] : ends[at]]):
                return int(at)
        some = [text[:_CHARACTERS] for text in texts[: max(0, _FIRST - self._compared)]]
        self._compared += len(some)
        return _differing(encode(some), by_library(self._backend, some)) if some else None


def by_library(backend: RustTokenizer, texts: Sequence[str]) -> Encoded:
    """Tokenize by the library."""
    return joined([encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)])


def joined(lists: Sequence[Sequence[int]]) -> Encoded:
    """Join the tokens of texts."""
    ends = np.cumsum([*map(len, lists)], dtype=np.int64)
    return np.fromiter(chain.from_iterable(lists), np.int32, int(ends[-1]) if len(ends) else 0), ends


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


def _differing(one: Encoded, other: Encoded) -> int | None:
    """Return the number of the first text with different tokens; None if all are equal."""
    if np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]):
        return None
    both = [np.split(ids, ends[:-1]) for ids, ends in (one, other)]
    return next((at for at, (a, b) in enumerate(zip(*both, strict=False)) if not np.array_equal(a, b)), 0)
