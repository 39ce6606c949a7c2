"""Places of characters among the tokens of a text."""

from __future__ import annotations

from typing import Any, NamedTuple


class Place(NamedTuple):
    """Place of a character among the tokens of a text."""

    token: int
    """The first token that holds the character or a later one; the number of tokens if none does."""
    inside: bool
    """Whether that token holds characters before it, too."""


def place_of(encoding: Any, cut: int, length: int) -> Place:
    """Find the place of a character among the tokens of the library; `length` is that of the text."""
    for character in range(cut, length):  # a space that WordPiece drops belongs to no token
        token = encoding.char_to_token(character)
        if token is not None:
            return Place(token, encoding.token_to_chars(token)[0] < cut)
    return Place(len(encoding), False)
