"""Options of masked language modeling, and how to derive them from a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.draws import check_range

Unit = Literal["token", "word", "span"]

_CONTINUATION_MARKS = {"##": True, "Ġ": False, "▁": False}
"""Prefixes of tokens that continue a word (True, WordPiece) or begin one (False, byte-level BPE, SentencePiece)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskedLM:
    """Masking of tokens for BERT's training task (Devlin et al., arXiv 1810.04805); for `collate` and `batches`.

    In each segment, a share `probability` of the tokens that are not special is chosen, rounded to a whole number of at
    least one. By default, 80% of the chosen tokens become the mask token, 10% a random token, and 10% are kept.

    The draw of each token is a hash of seed, epoch, document and position in the document: a document is masked the
    same way in any row, batch, rank or worker, and differently in each epoch. Each piece of a split document is a
    segment of its own.

    Raises:
        PackerError: a number is out of its range, or `unit` is "word" without `continuations`.
    """

    mask_id: int
    """Token id of the mask token."""

    vocab_size: int
    """Number of token ids; random tokens are drawn from those that are not special."""

    special_ids: Sequence[int]
    """Token ids that are neither chosen nor drawn, such as [CLS], [SEP], padding and mask tokens."""

    continuations: NDArray[np.bool_] | None = None
    """True for tokens that continue a word, shape (vocab_size,); `masked_lm` derives them from a tokenizer."""

    unit: Unit = "token"
    """Unit, "token", "word" or "span", that is chosen at random until enough tokens are chosen.

    "word" chooses all tokens of a word, which may exceed the number of tokens slightly. "span" chooses up to
    `longest_span` consecutive words (tokens, without `continuations`), of a geometric length with a mean of
    1 / span_stop before that limit. The last span ends after the word that makes the tokens enough, and each span is
    masked, replaced or kept as a whole (SpanBERT, arXiv 1907.10529). Words and spans end at special tokens and at the
    end of a segment.
    """

    probability: float = 0.15
    """Share of the tokens that are chosen, above 0 and at most 1."""

    mask_share: float = 0.8
    """Share of the chosen tokens that become `mask_id`, 0 to 1."""

    random_share: float = 0.1
    """Share of the chosen tokens that become a random token, 0 to 1; with mask_share, at most 1."""

    span_stop: float = 0.2
    """Probability that a span ends after a word, 0 to 1."""

    longest_span: int = 10
    """Largest number of words in a span, at least 1."""

    seed: int = 0
    """Seed of the draws, 0..2^64-1."""

    is_special: NDArray[np.bool_] = field(init=False, repr=False)
    """True for `special_ids` and `mask_id`, shape (vocab_size,)."""

    ordinary_ids: NDArray[np.int64] = field(init=False, repr=False)
    """Token ids that are not special, ascending."""

    def __post_init__(self) -> None:
        ids = np.array([*self.special_ids, self.mask_id], np.int64)
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if len(outside):
            raise PackerError(f"token id {outside[0]} is not in 0..{self.vocab_size - 1}: increase vocab_size")
        if not 0 < self.probability <= 1:
            raise PackerError(f"probability is {self.probability}: it must be above 0 and at most 1")
        check_range("seed", self.seed)
        for name in ("mask_share", "random_share", "span_stop"):
            if not 0 <= getattr(self, name) <= 1:
                raise PackerError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")
        if self.mask_share + self.random_share > 1:
            raise PackerError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}: their sum must be at most 1"
            )
        if self.longest_span < 1:
            raise PackerError(f"longest_span is {self.longest_span}: it must be at least 1")
        if self.unit not in ("token", "word", "span"):
            raise PackerError(f"unit is {self.unit!r}: choose token, word or span")
        if self.continuations is None and self.unit == "word":
            raise PackerError("unit is 'word' without continuations: packer.masked_lm derives them from a tokenizer")
        if self.continuations is not None and len(self.continuations) != self.vocab_size:
            raise PackerError(
                f"continuations has {len(self.continuations):,} values for {self.vocab_size:,} token ids: "
                "pass one per token id"
            )
        is_special = np.zeros(self.vocab_size, np.bool_)
        is_special[ids] = True
        if is_special.all():
            raise PackerError(f"all {self.vocab_size:,} tokens are special: there must be another one to draw")
        object.__setattr__(self, "is_special", is_special)
        object.__setattr__(self, "ordinary_ids", np.flatnonzero(~is_special))


def masked_lm(tokenizer: Any, *, unit: Unit = "token", probability: float = 0.15, seed: int = 0) -> MaskedLM:
    """Return a MaskedLM with the mask token, special tokens and word continuations of a Hugging Face tokenizer.

    A token continues a word if it starts with `##` (WordPiece), or does not start with the mark of a space, `Ġ`
    (byte-level BPE) or `▁` (SentencePiece); for the latter two, punctuation belongs to the word before it.

    Args:
        tokenizer: tokenizer with `get_vocab`, `mask_token_id` and `all_special_ids`.
        unit: as in `MaskedLM`.
        probability: as in `MaskedLM`.
        seed: as in `MaskedLM`.

    Raises:
        PackerError: the tokenizer has no mask token, or an argument is out of its range.
    """
    if tokenizer.mask_token_id is None:
        raise PackerError(f"{type(tokenizer).__name__} has no mask token: pass another token's id to packer.MaskedLM")
    tokens: dict[str, int] = tokenizer.get_vocab()
    vocab_size = max(tokens.values()) + 1
    continuations = None
    marks = (mark for mark in _CONTINUATION_MARKS if any(token.startswith(mark) for token in tokens))
    if (mark := next(marks, None)) is not None:
        continuations = np.zeros(vocab_size, np.bool_)
        for token, token_id in tokens.items():
            continuations[token_id] = token.startswith(mark) == _CONTINUATION_MARKS[mark]
    return MaskedLM(
        mask_id=tokenizer.mask_token_id,
        vocab_size=vocab_size,
        special_ids=tokenizer.all_special_ids,
        continuations=continuations,
        unit=unit,
        probability=probability,
        seed=seed,
    )
