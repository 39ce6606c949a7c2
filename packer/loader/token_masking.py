"""Random masking of tokens for masked language models, per segment and independent of where a document is packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.row_order import check_range
from packer.loader.row_segments import cu_seqlens_of, restart_positions
from packer.permute import hashes_of, key_of, mixed_all
from packer.random_purposes import MASKS
from packer.shards.row_format import PADDING

_HASH_BITS = 32  # high bits of a draw that order units; a constant, so that ties do not depend on the batch
_REPLACE = np.uint64(0x5851F42D4C957F2D)  # turns the draw that chose a token into an independent one


def mask_tokens(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    doc_ids: NDArray[np.int64],
    doc_starts: NDArray[np.int64],
    *,
    mlm: MaskedLM,
    epoch: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask tokens of segments that lie end to end and return (masked input_ids, labels), int64, shape (T,).

    Labels are the original tokens at the chosen positions and -100 elsewhere; they are not shifted. Segments, of which
    `doc_starts` are the offsets in their documents, have lengths that sum to T; padding has the doc_id -1.
    """
    if len(input_ids) and not 0 <= (largest := int(input_ids.max())) < mlm.vocab_size:
        raise PackerError(
            f"a batch has the token {largest}, but mlm a vocab_size of {mlm.vocab_size}: pass that of the tokenizer"
        )
    fixed = mlm.is_special[input_ids]
    fixed |= np.repeat(doc_ids == PADDING, lengths)
    # 64 random bits per token: the draw of its position in the document, in the stream of the document
    positions = restart_positions(lengths)
    positions += doc_starts.repeat(lengths)
    random = hashes_of(hashes_of(key_of(mlm.seed, MASKS, epoch), doc_ids).repeat(lengths), positions)
    chosen, deciding = _choose(input_ids, fixed, cu_seqlens_of(lengths), random, mlm)
    labels = np.full(len(input_ids), NO_LOSS, np.int64)
    labels[chosen] = input_ids[chosen]
    masked = input_ids.copy()
    masked[chosen] = _replacements(input_ids[chosen], random[chosen], random[deciding], mlm)
    return masked, labels


def _choose(
    input_ids: NDArray[np.int64],
    fixed: NDArray[np.bool_],
    cu_seqlens: NDArray[np.int64],
    random: NDArray[np.uint64],
    mlm: MaskedLM,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose the tokens to mask and return (chosen, deciding): token indices, both of shape (chosen tokens,).

    The draw at index deciding[i] decides whether token chosen[i] is masked, replaced or kept. `fixed` tokens, shape
    (T,), cannot be chosen; `random` has a draw for each token.
    """
    # From here on, tokens are numbered without the fixed ones: token i is input_ids[free[i]].
    free = np.flatnonzero(~fixed)
    starts = np.searchsorted(free, cu_seqlens)  # first token of each segment
    sizes = np.diff(starts)
    needed = np.where(sizes, np.maximum(np.floor(mlm.probability * sizes + 0.5), 1), 0).astype(np.int64)
    if mlm.unit == "token":
        order = _shuffled(starts, random[free])
        chosen = free[order[np.arange(len(free)) - starts[:-1].repeat(sizes) < needed.repeat(sizes)]]
        return chosen, chosen
    breaks = np.zeros(len(input_ids), np.bool_)  # words and spans end at special tokens and at the end of a segment
    breaks[1:] = fixed[:-1]
    breaks[cu_seqlens[:-1]] = True
    words = np.arange(len(free))
    if mlm.continuations is not None:
        words = words[(breaks | ~mlm.continuations[input_ids])[free]]
    units = words if mlm.unit == "word" else words[_starts_span(breaks[free[words]], random[free[words]], mlm)]
    is_chosen, unit_of_word = _choose_words(words, units, starts, needed, random[free[units]])
    word_sizes = np.diff(words, append=len(free))
    chosen = free[is_chosen.repeat(word_sizes)]
    if mlm.unit == "word":
        return chosen, chosen
    return chosen, free[units[unit_of_word[is_chosen]].repeat(word_sizes[is_chosen])]


def _choose_words(
    words: NDArray[np.int64],
    units: NDArray[np.int64],
    starts: NDArray[np.int64],
    needed: NDArray[np.int64],
    random: NDArray[np.uint64],
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Choose words, unit by unit in a random order, until each segment has `needed` tokens.

    `words` and `units`, which consist of words, are numbers of their first tokens; `starts`, shape (segments + 1,), are
    those of segments. Returned are, for each word, whether it is chosen, and the index of its unit.
    """
    sizes = np.diff(units, append=starts[-1])
    unit_starts = np.searchsorted(units, starts)
    order = _shuffled(unit_starts, random)
    # Tokens in the units that precede each unit in the random order: of all segments end to end at first, then less
    # the tokens of the segments before.
    before = np.empty_like(units)
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    before -= starts[:-1].repeat(np.diff(unit_starts))
    # A word is chosen if fewer tokens than needed precede it, in its own unit and in the units before.
    unit_of_word = np.searchsorted(units, words, side="right") - 1
    needed_of_word = needed.repeat(np.diff(np.searchsorted(words, starts)))
    return before[unit_of_word] + words - units[unit_of_word] < needed_of_word, unit_of_word


def _starts_span(breaks: NDArray[np.bool_], random: NDArray[np.uint64], mlm: MaskedLM) -> NDArray[np.bool_]:
    """Return whether each word starts a span, shape (words,): at a break, by its draw, or at the length limit."""
    low = (random & np.uint64(2**32 - 1)).astype(np.float64)
    starts: NDArray[np.bool_] = breaks | (low < mlm.span_stop * 2**32)
    words = np.arange(len(starts))
    last_start = np.maximum.accumulate(np.where(starts, words, 0))
    return np.asarray((words - last_start) % mlm.longest_span == 0)


def _shuffled(starts: NDArray[np.int64], random: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the units of each segment, sorted by the high bits of their draws, segment by segment: shape (units,).

    Example: starts [0, 2, 5] and draws with the high bits [7, 3, 9, 1, 4] -> [1, 0, 3, 4, 2].
    """
    counts = np.diff(starts)
    hashes = random >> np.uint64(64 - _HASH_BITS)
    index_bits = int(counts.max(initial=1) - 1).bit_length()
    if index_bits + len(counts).bit_length() > 64 - _HASH_BITS:  # batches of billions of units
        return np.lexsort((hashes, np.arange(len(counts)).repeat(counts)))
    # Sorting numbers made of segment, hash and index in the segment is ten times as fast as sorting indices.
    keys = np.arange(len(counts), dtype=np.uint64).repeat(counts)
    keys <<= np.uint64(_HASH_BITS)
    keys |= hashes
    keys <<= np.uint64(index_bits)
    firsts = starts[:-1].repeat(counts)
    keys |= (np.arange(len(random)) - firsts).astype(np.uint64)
    keys.sort()
    keys &= np.uint64((1 << index_bits) - 1)
    return firsts + keys.astype(np.int64)


def _replacements(
    tokens: NDArray[np.int64], random: NDArray[np.uint64], deciding: NDArray[np.uint64], mlm: MaskedLM
) -> NDArray[np.int64]:
    """Return what replaces each chosen token: the mask token, a random token or the token itself.

    The high bits of the `deciding` draws choose among the three; the low bits of `random` choose the random token.
    """
    share = (mixed_all(deciding ^ _REPLACE) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    low = (mixed_all(random ^ _REPLACE) & np.uint64(2**32 - 1)).astype(np.int64)
    random_ids = mlm.ordinary_ids[low * len(mlm.ordinary_ids) >> 32]
    unmasked = np.where(share < mlm.mask_share + mlm.random_share, random_ids, tokens)
    return np.where(share < mlm.mask_share, mlm.mask_id, unmasked)


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
