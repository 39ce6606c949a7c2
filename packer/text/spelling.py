"""What bytes a byte-level tokenizer's tokens spell: with them, where a character begins is told without offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NEVER = b"\xff"  # in no UTF-8: what a token spells that is not known
_KEEPING = {"Split", "Digits", "Punctuation", "UnicodeScripts", "ByteLevel"}
"""Pre-tokenizers that cut a text and, unless told to, take nothing from it and add nothing."""


class Spelling:
    """The bytes of every token, of a tokenizer `can_be_spelled`.

    Where these, joined, are a text's bytes, each token holds just those that it spells. Where they are not (a
    normalizer changed the text), nothing is said.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        table = {ord(letter): byte for byte, letter in enumerate(_letters())}
        self._bytes = [_NEVER] * (max(vocabulary.values()) + 1)
        for token, number in vocabulary.items():
            with suppress(UnicodeEncodeError):  # no token of bytes: nothing is tokenized to it
                self._bytes[number] = token.encode() if token in added else token.translate(table).encode("latin-1")
        self._sizes = np.fromiter(map(len, self._bytes), np.int64, len(self._bytes))

    def places(
        self, texts: Sequence[str], ids: Sequence[list[int]], cuts: Sequence[Sequence[int]]
    ) -> tuple[list[int], list[bool]] | None:
        """Tell where in their tokens the characters at the cuts of texts begin.

        Returns:
            For the cuts of all texts, one after the other: the first token that holds the character or a later one,
            counted from the text's first; and whether it holds characters before it, too. None where the tokens of
            some text do not spell it.
        """
        encoded = [text.encode() for text in texts]
        tokens = np.fromiter(chain.from_iterable(ids), np.int32, sum(map(len, ids)))
        ends = np.concatenate([[0], np.cumsum(self._sizes[tokens])])  # ends[n + 1]: of token n, in bytes
        first_token, first_byte = _starts(ids), _starts(encoded)
        data = b"".join(encoded)
        if not np.array_equal(ends[first_token], first_byte):
            return None
        if b"".join(map(self._bytes.__getitem__, chain.from_iterable(ids))) != data:
            return None
        document = np.repeat(np.arange(len(texts)), np.fromiter(map(len, cuts), np.int64, len(cuts)))
        first_character = _starts(texts)
        at = np.fromiter(chain.from_iterable(cuts), np.int64) + first_character[document]
        if first_character[-1] != len(data):  # characters to bytes
            characters = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
            at = np.append(characters, len(data))[at]
        token = np.searchsorted(ends[1:], at, side="right")
        return (token - first_token[document]).tolist(), (ends[token] < at).tolist()


def can_be_spelled(tokenizer: Any) -> bool:
    """Whether a tokenizer's tokens spell the text that it cuts, unless its normalizer changes that.

    It is so where the model knows all bytes and nothing is dropped (by a pre-tokenizer, by tokens that take the white
    space beside them) or added (a space in front). Unicode normalization drops nothing, and what begins with a
    normalized text's beginning is itself normalized; so texts that are spelled were left as they are in every piece.
    """
    from tokenizers import models, normalizers

    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    if not (tokenizer.normalizer is None or isinstance(tokenizer.normalizer, normalizers.NFC)):
        return False
    if any(
        token.lstrip or token.rstrip or not token.content for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return False
    if tokenizer.pre_tokenizer is None or any(tokenizer.token_to_id(letter) is None for letter in _letters()):
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return (
        all(part["type"] in _KEEPING and part.get("behavior") != "Removed" for part in parts)
        and not any(part.get("add_prefix_space") for part in parts)
        and [part["type"] for part in parts].count("ByteLevel") == 1
    )


def _letters() -> str:
    """The letter that stands for each byte in a byte-level vocabulary: itself, or one from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in shown else next(others)) for byte in range(0x100))


def _starts(parts: Sequence[Any]) -> NDArray[np.int64]:
    """Where each part begins when they are joined, and where the last ends."""
    return np.fromiter(chain([0], accumulate(map(len, parts))), np.int64, len(parts) + 1)
