r"""Tokens of ASCII text by a memory of words, for byte-level tokenizers of a known kind.

Such a tokenizer cuts text at its added tokens, what is between them into words by a regular expression, and each word
into tokens by its merges. The `tokenizers` library repeats the first two steps for every text, keeping track of
offsets; they take most of its time. In ASCII, `\p{L}`, `\p{N}` and `\s` are a few characters, normalization changes
nothing, and Python's `re` finds the same words. The tokens of a word come from the library, once. Text between two
added tokens that is not ASCII is left to the library, too.

This takes a third of the library's processor time, but uses only one core, because it runs in Python: see `is_quicker`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from packer.engine import available_workers
from packer.text.tokenizer import Place, place_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Qwen2": _QWEN2,
    "Llama 3": _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),
}
"""Regular expressions that are known, by a model that has them; the first is that of `ByteLevel` itself."""

_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD")
_LONGEST, _MOST = 64, 1 << 17  # characters of a word that is remembered; words
_FEW_CORES = 2


def is_quicker() -> bool:
    """Whether there are so few cores that a memory of words is quicker than the library, which uses many."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "false", "off", "no", "n", "f"):
        return True
    allowed = os.environ.get("RAYON_NUM_THREADS", "")
    return min(available_workers(), int(allowed) if allowed.isdigit() and int(allowed) else 1 << 16) <= _FEW_CORES


def word_tokens(backend: Tokenizer, settings: Mapping[str, Any]) -> WordTokens | None:
    """Return a memory of words for a tokenizer; None if it is of another kind.

    Args:
        backend: the tokenizer, without post-processor, padding and truncation.
        settings: its settings, as in `Content.settings`.
    """
    normalizer, pattern, added = settings["normalizer"], _pattern(settings["pre_tokenizer"]), settings["added_tokens"]
    plain = {"normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    is_known = (
        pattern in WORDS.values()
        and not settings.get("encode_special_tokens")
        and (normalizer is None or normalizer.get("type") in _NORMALIZERS)
        and all(token["content"] and plain.items() <= token.items() for token in added)
        and settings["model"]["type"] == "BPE"
        and not any(settings["model"][name] for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and all(backend.token_to_id(_letter(chr(code))) is not None for code in range(128))
    )
    return WordTokens(backend, str(pattern), {t["content"]: t["id"] for t in added}) if is_known else None


class WordTokens:
    """Encodes texts as the tokenizer does; see `word_tokens`.

    Args:
        backend: the tokenizer.
        pattern: its regular expression for words.
        added: its added tokens, and their numbers.
    """

    def __init__(self, backend: Tokenizer, pattern: str, added: Mapping[str, int]) -> None:
        self._made_of = (backend, pattern, added)
        self._backend, self._added = backend, added
        longest_first = sorted(added, key=len, reverse=True)  # of two that begin at a character, the library's choice
        self._split = re.compile("|".join(map(re.escape, longest_first)).join("()") if added else "($.)").split
        self._words = re.compile(in_ascii(pattern)).findall
        self._known = _KnownWords(backend.model)

    def __reduce__(self) -> tuple[type[WordTokens], tuple[Any, ...]]:
        return type(self), self._made_of  # to pass between processes, without what is remembered

    def encode(self, texts: Sequence[str], cuts: Sequence[Sequence[int]] | None) -> list[tuple[list[int], list[Place]]]:
        """Return token ids and places; see `TextTokens.encode`."""
        parted = [self._split(text) for text in texts]
        others = [*{piece for pieces in parted for piece in pieces[::2] if not piece.isascii()}]
        left = dict(zip(others, self._backend.encode_batch(others, add_special_tokens=False), strict=True))
        if cuts is None:
            return [(self._ids(pieces, left), []) for pieces in parted]
        return [self._ids_and_places(pieces, at, left) for pieces, at in zip(parted, cuts, strict=True)]

    def _ids(self, pieces: list[str], left: Mapping[str, Any]) -> list[int]:
        """Return the tokens of a text in pieces: text, an added token, text, ..., text."""
        ids: list[int] = []
        words, known, added = self._words, self._known.__getitem__, self._added
        for number, piece in enumerate(pieces):
            if number & 1:
                ids.append(added[piece])
            elif piece in left:
                ids += left[piece].ids
            elif piece:
                ids.extend(chain.from_iterable(map(known, words(piece))))
        return ids

    def _ids_and_places(
        self, pieces: list[str], cuts: Sequence[int], left: Mapping[str, Any]
    ) -> tuple[list[int], list[Place]]:
        """Return the tokens of a text in pieces, and the places of characters."""
        ids: list[int] = []
        split, known, added = self._words, self._known.__getitem__, self._added
        found: dict[int, Place] = {}
        ahead = sorted({*cuts, sys.maxsize}, reverse=True)
        start = 0
        for number, piece in enumerate(pieces):
            here, start = start, start + len(piece)
            if number & 1:
                while ahead[-1] < start:
                    cut = ahead.pop()
                    found[cut] = Place(len(ids), cut > here)
                ids.append(added[piece])
            elif piece in left:
                while ahead[-1] < start:
                    cut = ahead.pop()
                    token, is_inside = place_of(left[piece], cut - here, len(piece))
                    found[cut] = Place(len(ids) + token, is_inside)
                ids += left[piece].ids
            elif piece:
                words = split(piece)
                while ahead[-1] < start:
                    cut = ahead.pop()
                    token, is_inside = self._place(words, cut - here)
                    found[cut] = Place(len(ids) + token, is_inside)
                ids.extend(chain.from_iterable(map(known, words)))
        end = Place(len(ids), False)
        return ids, [found.get(cut, end) for cut in cuts]

    def _place(self, words: list[str], cut: int) -> tuple[int, bool]:
        """Return the place of a character among the tokens of words, as in `Place`."""
        token = at = 0
        for word in words:
            if at + len(word) > cut:
                break
            at += len(word)
            token += len(self._known[word])
        if at == cut:
            return token, False
        for part in self._known.tokens(word):  # each of as many characters as the word has there
            if at + len(part.value) > cut:
                break
            at += len(part.value)
            token += 1
        return token, at < cut


class _KnownWords(dict[str, list[int]]):
    """Tokens by word; unknown words are passed to the model of the tokenizer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> list[int]:
        ids = [token.id for token in self.tokens(word)]
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[word] = ids
        return ids

    def tokens(self, word: str) -> list[Any]:
        return list(self._model.tokenize(word.translate(_LETTERS)))


def in_ascii(pattern: str) -> str:
    r"""Write a regular expression of the library for ASCII text, without classes that `re` does not have.

    Examples:
        >>> in_ascii(r" ?[^\s\p{L}]+|\s+(?!\S)")
        ' ?[^\\t-\\r A-Za-z]+|[\\t-\\r ]+(?![^\\t-\\r ])'
    """
    spaces = {r"\s": r"\t-\r ", r"\p{L}": "A-Za-z", r"\p{N}": "0-9"}  # the library has no other spaces in ASCII
    parts = re.split(r"(\[(?:\\.|[^\]])*\])", pattern)
    for number, part in enumerate(parts):
        for name, characters in spaces.items():
            part = part.replace(name, characters if number & 1 else f"[{characters}]")
        parts[number] = part.replace(r"\S", r"[^\t-\r ]")
    return "".join(parts)


def _pattern(words: Any) -> str | None:
    """Return the regular expression of a byte-level pre-tokenizer; None if it is of another form."""
    if not isinstance(words, dict):
        return None
    if words == {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
        return WORDS["GPT-2"]
    split, *rest = words.get("pretokenizers") or [{}]
    pattern = split.get("pattern", {}).get("Regex")
    is_split = split == {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    is_bytes = rest == [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    return pattern if is_split and is_bytes else None


def _letter(character: str) -> str:
    """Return the letter that stands for an ASCII character in a byte-level vocabulary: itself, if it is printable."""
    code = ord(character)
    if 33 <= code < 127:
        return character
    return chr(256 + (code if code < 33 else 33 + code - 127))  # the space is U+0120, DEL is U+0121


_LETTERS = {code: _letter(chr(code)) for code in range(128)}
