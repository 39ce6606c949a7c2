"""Places of characters among the tokens of byte-level tokenizers, by the bytes of each token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that stand for themselves in a byte-level vocabulary; for the others, U+0100 and the letters after it do."""

_NO_BYTE = 0xFF  # which UTF-8 does not have


class Places(NamedTuple):
    """Places of characters among the tokens of their texts."""

    tokens: NDArray[np.int64]
    """The first token that holds the character or a later one; the number of the text's tokens if none does."""
    inside: NDArray[np.bool_]
    """Whether that token holds characters before it, too."""


class _BytesOfLetters(dict[int, int]):
    """Bytes by the letters that stand for them."""

    def __init__(self) -> None:
        others = (byte for byte in range(256) if byte not in _PRINTED)
        super().__init__({byte: byte for byte in _PRINTED} | {256 + at: byte for at, byte in enumerate(others)})

    def __missing__(self, letter: int) -> int:
        return _NO_BYTE


def is_byte_level(settings: Mapping[str, Any]) -> bool:
    """Whether the tokens of most texts are the bytes of these, in order; `TokenBytes` checks it for every text."""
    words = settings["pre_tokenizer"] or {}
    parts = [part for part in (words, *words.get("pretokenizers", ())) if part.get("type") == "ByteLevel"]
    return settings["model"]["type"] == "BPE" and bool(parts) and not any(part["add_prefix_space"] for part in parts)


class TokenBytes:
    """The bytes of each token of a byte-level tokenizer."""

    def __init__(self, backend: RustTokenizer) -> None:
        bytes_of_letters = _BytesOfLetters()
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
    ) -> tuple[Places, NDArray[np.bool_]]:
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
        return Places(found - firsts[owners], inside), exact


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
