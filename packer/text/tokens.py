"""Texts to tokens, in batches on all cores; and the tokens in which places of the texts lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import PackerError
from packer.system_errors import shortage
from packer.text.conversations import TextError
from packer.text.tokenizer import Content, Place, Tokenizer, content_of, place_of, shared_length
from packer.text.word_tokens import WordTokens, is_quicker, word_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_PROBES = ("a", "Hello, world!\n", "  Two  spaces \u00e9\u4e2d\U0001f600 42")


Span = tuple[int, int]
"""Characters first:last of a text."""


class MarkedText(NamedTuple):
    """A document as text, with the places of what is trained and of its messages, in characters."""

    row: int
    """Number of the record, for errors."""
    text: str
    trained: list[Span] | None = None
    """What is trained, in order; None if everything is."""
    turn_starts: list[int] | None = None
    """Where messages begin, ascending from 0; None if not requested. Text before the first message belongs to it."""
    unstopped: int = 0
    """Number of answers that end without a trained stop token."""

    @property
    def places(self) -> list[int]:
        """Where training begins and ends, alternately, and then where messages begin."""
        return [*chain.from_iterable(self.trained or ()), *(self.turn_starts or ())]


class TextTokens:
    """A tokenizer that adds no tokens, but knows which ones it would have added.

    Args:
        tokenizer: changed in place: it no longer adds tokens, pads or truncates.

    Raises:
        PackerError: it refuses plain sentences, or adds other tokens than a fixed beginning and end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.content: Content | None = None
        """What shapes the tokens of `backend`; None without one."""
        self._words: WordTokens | None = None
        try:
            self.backend = _backend(tokenizer)
            self.prefix, self.suffix = _added(tokenizer)  # before and after every text: BOS, [CLS], [SEP]
        except BaseException as error:
            if isinstance(error, PackerError) or not _is_refusal(error):
                raise
            raise PackerError(
                f"{tokenizer.name} does not tokenize a plain sentence: {_reason(error)}; choose a tokenizer that takes "
                "any text"
            ) from error
        if self.backend is not None:
            self.backend.no_padding()
            self.backend.no_truncation()
            # it would add those tokens, and in byte-level models hide leading spaces from the offsets
            self.backend.post_processor = None
            self.content = tokenizer.content or content_of(self.backend)
            if is_quicker():
                self._words = word_tokens(self.backend, self.content.settings)

    def encode(self, texts: Sequence[MarkedText], *, places: bool) -> list[tuple[list[int], list[Place]]]:
        """Tokenize texts without lone surrogates and, if asked for, find their places among the tokens.

        Returns:
            For every text its token ids, with nothing added, and where its `places` are.

        Raises:
            TextError: the tokenizer refuses a text.
        """
        cuts = [one.places for one in texts] if places else None
        try:
            return self._encode([one.text for one in texts], cuts)
        except BaseException as error:
            if not _is_refusal(error):
                raise
        encoded = []
        for one in texts:  # find the one
            try:
                encoded += self._encode([one.text], [one.places] if places else None)
            except BaseException as error:
                if not _is_refusal(error):
                    raise
                message = f"the tokenizer does not take it: {_reason(error)}"
                listed = f"the tokenizer does not take it: {type(error).__name__}"
                raise TextError(one.row, message, "invalid_text", listed) from None
        return encoded

    def _encode(
        self, texts: Sequence[str], cuts: Sequence[Sequence[int]] | None
    ) -> list[tuple[list[int], list[Place]]]:
        if self.backend is None:
            return [self._encode_slowly(text, at) for text, at in zip(texts, cuts or [()] * len(texts), strict=True)]
        if self._words is not None:
            return self._words.encode(texts, cuts)
        if cuts is None:
            return [(encoding.ids, []) for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        return [
            (encoding.ids, [place_of(encoding, cut, len(text)) for cut in at])
            for encoding, text, at in zip(encodings, texts, cuts, strict=True)
        ]

    def _encode_slowly(self, text: str, cuts: Sequence[int]) -> tuple[list[int], list[Place]]:
        """Tokenize with a tokenizer in Python, without offsets: the tokens of the text before a cut end there."""
        ids, places = self._tokenizer.ids(text, special=False), []
        for cut in cuts:
            before = self._tokenizer.ids(text[:cut], special=False)
            token = shared_length(before, ids)
            places.append(Place(token, token < min(len(before), len(ids))))
        return ids, places


def _is_refusal(error: BaseException) -> bool:
    """Whether a tokenizer raised this: tokenizers raises plain Exception and, if Rust panics, a BaseException."""
    is_known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
    return is_known and shortage(error) is None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__} {next(iter(str(error).splitlines()), '')}".strip()


def _backend(tokenizer: Tokenizer) -> RustTokenizer | None:
    """The tokenizer in Rust; None if there is none, or if the class around it does more than call it."""
    backend = tokenizer.backend
    if tokenizer.pretrained is None or backend is None:
        return backend
    expected = [tokenizer.ids(probe, special=True) for probe in _PROBES]  # this switches off padding and truncation
    return backend if [backend.encode(probe).ids for probe in _PROBES] == expected else None


def _added(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after every text."""
    found = set()
    for probe in _PROBES:
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
