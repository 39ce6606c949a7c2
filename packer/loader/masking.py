"""Which tokens a masked language model has to restore: chosen segment by segment, the same for a document anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import NO_LOSS
from packer.loader.draws import MASKS, check_range, draws, mixed, stream_key
from packer.loader.segments import boundaries_of, restart_positions
from packer.shards.columns import PADDING

Unit = Literal["token", "word", "span"]

_HASH_BITS = 32  # of a draw that order the units of a segment; a fixed number, or the batch would decide between ties
_REPLACE = np.uint64(0x5851F42D4C957F2D)  # makes of a draw, whose bits chose the token, another one
_WORD_MARKS = {"##": True, "Ġ": False, "▁": False}  # WordPiece marks what continues a word, the others what begins one


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskedLM:
    """How tokens are masked for BERT's training task (Devlin et al., arXiv 1810.04805); for `collate` and `batches`.

    In every segment by itself, `probability` of the tokens that are not special are chosen, rounded to a whole number
    and at least one. Of these 80% become the mask token, 10% a random token and 10% stay as they are.

    Every token's draw is a hash of seed, epoch, document and place in the document: a document is masked alike in
    whatever row, batch, rank and worker, and anew in another epoch. Pieces of a split document count as segments.

    Raises:
        PackerError: a number is out of its range, or whole words are asked for without `continuations`.
    """

    mask_id: int
    """Token id that hides a token."""

    vocabulary: int
    """Token ids are below this number; random tokens are drawn from all that are not special."""

    special_ids: Sequence[int]
    """Token ids that are never chosen and never drawn: [CLS], [SEP] and their like, the padding and mask tokens."""

    continuations: NDArray[np.bool_] | None = None
    """Shape (vocabulary,): True where a token goes on with the word before it; `masked_lm` finds them."""

    unit: Unit = "token"
    """What is chosen at random, until the tokens are enough.

    "token": single tokens. "word": all tokens of a word, which may be a few more than enough. "span": up to
    `longest_span` words in a row (tokens, without `continuations`), the length geometric with a mean of 1 / span_stop
    before it is cut there; the last one chosen is cut after the word with which the tokens are enough, and a span is
    masked, replaced or kept as a whole (SpanBERT, arXiv 1907.10529). No word and no span goes on past the end of a
    segment or a special token.
    """

    probability: float = 0.15
    """Share of the tokens that are chosen."""

    mask_share: float = 0.8
    """Share of the chosen tokens that become `mask_id`."""

    random_share: float = 0.1
    """Share of the chosen tokens that become a random token."""

    span_stop: float = 0.2
    """Probability that a span ends after a word."""

    longest_span: int = 10
    """Words of a span at most."""

    seed: int = 0
    """Another seed is another choice."""

    special: NDArray[np.bool_] = field(init=False, repr=False)
    """Shape (vocabulary,): True at `special_ids` and `mask_id`."""

    ordinary: NDArray[np.int64] = field(init=False, repr=False)
    """All other token ids."""

    def __post_init__(self) -> None:
        ids = np.array([*self.special_ids, self.mask_id], np.int64)
        outside = ids[(ids < 0) | (ids >= self.vocabulary)]
        if len(outside):
            raise PackerError(f"token id {outside[0]} is not in 0..{self.vocabulary - 1}: give the whole vocabulary")
        if not 0 < self.probability <= 1:
            raise PackerError(f"probability is {self.probability}: it is above 0 and at most 1")
        check_range("seed", self.seed)
        for name in ("mask_share", "random_share", "span_stop"):
            if not 0 <= getattr(self, name) <= 1:
                raise PackerError(f"{name} is {getattr(self, name)}: it is a share from 0 to 1")
        if self.mask_share + self.random_share > 1:
            raise PackerError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}: together they are at most 1"
            )
        if self.longest_span < 1:
            raise PackerError(f"longest_span is {self.longest_span}: a span has at least 1 word")
        if self.unit not in ("token", "word", "span"):
            raise PackerError(f"unit is {self.unit!r}: choose token, word or span")
        if self.continuations is None and self.unit == "word":
            raise PackerError(
                "unit is 'word' and continuations are missing: packer.masked_lm takes them from a tokenizer"
            )
        if self.continuations is not None and len(self.continuations) != self.vocabulary:
            raise PackerError(
                f"there are {len(self.continuations):,} continuations for a vocabulary of {self.vocabulary:,}: "
                "give one for each"
            )
        special = np.zeros(self.vocabulary, np.bool_)
        special[ids] = True
        if special.all():
            raise PackerError(f"all {self.vocabulary:,} tokens are special: there is none to draw")
        object.__setattr__(self, "special", special)
        object.__setattr__(self, "ordinary", np.flatnonzero(~special))


def masked_lm(tokenizer: Any, *, unit: Unit = "token", probability: float = 0.15, seed: int = 0) -> MaskedLM:
    """Make a MaskedLM for a Hugging Face tokenizer: its mask token, special tokens, and which tokens go on with a word.

    These are the tokens with `##` of WordPiece, and the tokens without the mark of a space of byte-level BPE (`Ġ`) and
    SentencePiece (`▁`), where punctuation belongs to the word before it.

    Raises:
        PackerError: the tokenizer has no mask token; or as MaskedLM.
    """
    if tokenizer.mask_token_id is None:
        raise PackerError(f"{type(tokenizer).__name__} has no mask token: give packer.MaskedLM the id of another one")
    tokens: dict[str, int] = tokenizer.get_vocab()
    vocabulary = max(tokens.values()) + 1
    continuations = None
    marks = (mark for mark in _WORD_MARKS if any(token.startswith(mark) for token in tokens))
    if (mark := next(marks, None)) is not None:
        continuations = np.zeros(vocabulary, np.bool_)
        for token, number in tokens.items():
            continuations[number] = token.startswith(mark) == _WORD_MARKS[mark]
    return MaskedLM(
        mask_id=tokenizer.mask_token_id,
        vocabulary=vocabulary,
        special_ids=tokenizer.all_special_ids,
        continuations=continuations,
        unit=unit,
        probability=probability,
        seed=seed,
    )


def mask_tokens(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    doc_ids: NDArray[np.int64],
    doc_starts: NDArray[np.int64],
    *,
    mlm: MaskedLM,
    epoch: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Mask tokens of segments that lie end to end; return (input_ids with some of them hidden, labels).

    A label is the token that stood at a chosen place, and -100 elsewhere; it is not shifted.

    Args:
        input_ids: (T,) tokens.
        lengths: (segments,) extents that sum to T.
        doc_ids: (segments,) document of each segment; -1 for padding.
        doc_starts: (segments,) where in its document each segment starts.
        mlm: how.
        epoch: another epoch is another choice under the same seed.

    Raises:
        PackerError: a token is outside the vocabulary.
    """
    if len(input_ids) and not 0 <= (largest := int(input_ids.max())) < mlm.vocabulary:
        raise PackerError(
            f"a batch has the token {largest}, mlm a vocabulary of {mlm.vocabulary}: give the tokenizer's"
        )
    fixed = mlm.special[input_ids]
    fixed |= np.repeat(doc_ids == PADDING, lengths)
    random = _draws(lengths, doc_ids, doc_starts, stream_key(mlm.seed, MASKS, epoch))
    chosen, deciding = _choose(input_ids, fixed, boundaries_of(lengths), random, mlm)
    labels = np.full(len(input_ids), NO_LOSS, np.int64)
    labels[chosen] = input_ids[chosen]
    hidden = input_ids.copy()
    hidden[chosen] = _replacements(input_ids[chosen], random[chosen], random[deciding], mlm)
    return hidden, labels


def _draws(
    lengths: NDArray[np.int64], doc_ids: NDArray[np.int64], doc_starts: NDArray[np.int64], key: np.uint64
) -> NDArray[np.uint64]:
    """64 random bits for every token: the draw of its place in the document, from the document's stream."""
    places = restart_positions(lengths)
    places += doc_starts.repeat(lengths)
    return draws(draws(key, doc_ids).repeat(lengths), places)


def _choose(
    input_ids: NDArray[np.int64],
    fixed: NDArray[np.bool_],
    boundaries: NDArray[np.int64],
    random: NDArray[np.uint64],
    mlm: MaskedLM,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places of the chosen tokens, for each the place whose draw decides what becomes of it)."""
    free = np.flatnonzero(~fixed)
    ends = np.searchsorted(free, boundaries)  # numbers of tokens, words and units are places in `free` from here on
    frees = np.diff(ends)
    enough = np.where(frees, np.maximum(np.floor(mlm.probability * frees + 0.5), 1), 0).astype(np.int64)
    if mlm.unit == "token":
        order = _shuffled(ends, random[free])
        chosen = free[order[np.arange(len(free)) - ends[:-1].repeat(frees) < enough.repeat(frees)]]
        return chosen, chosen
    breaks = np.zeros(len(input_ids), np.bool_)  # nothing goes on past a special token or the end of a segment
    breaks[1:] = fixed[:-1]
    breaks[boundaries[:-1]] = True
    words = np.arange(len(free))
    if mlm.continuations is not None:
        words = words[(breaks | ~mlm.continuations[input_ids])[free]]
    units = words if mlm.unit == "word" else words[_span_begins(breaks[free[words]], random[free[words]], mlm)]
    sizes = np.diff(units, append=len(free))
    unit_ends = np.searchsorted(units, ends)
    order = _shuffled(unit_ends, random[free[units]])
    # tokens of the units that come before in the segment's order, as if it were all one segment; then less its start
    before = np.empty_like(units)
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    before -= ends[:-1].repeat(np.diff(unit_ends))
    # a word is chosen where the tokens before it, in its unit and in the units before, are not enough
    word_units = np.searchsorted(units, words, side="right") - 1
    wanted = before[word_units] + words - units[word_units] < enough.repeat(np.diff(np.searchsorted(words, ends)))
    word_sizes = np.diff(words, append=len(free))
    chosen = free[wanted.repeat(word_sizes)]
    if mlm.unit == "word":
        return chosen, chosen
    return chosen, free[units[word_units[wanted]].repeat(word_sizes[wanted])]


def _span_begins(breaks: NDArray[np.bool_], random: NDArray[np.uint64], mlm: MaskedLM) -> NDArray[np.bool_]:
    """Whether a word begins a span: at a break, where the draw says so, and after `longest_span` words without."""
    low = (random & np.uint64(2**32 - 1)).astype(np.float64)
    begins: NDArray[np.bool_] = breaks | (low < mlm.span_stop * 2**32)
    words = np.arange(len(begins))
    begun = np.maximum.accumulate(np.where(begins, words, 0))
    return np.asarray((words - begun) % mlm.longest_span == 0)


def _shuffled(ends: NDArray[np.int64], random: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Order the units of every segment by the high bits of their draws: (units,) their numbers, segment by segment.

    `ends` is (segments + 1,): where the units of a segment begin. Example: ends [0, 2, 5], draws [7, 3, 9, 1, 4] in
    the high bits -> [1, 0, 3, 4, 2].
    """
    counts = np.diff(ends)
    hashes = random >> np.uint64(64 - _HASH_BITS)
    place_bits = int(counts.max(initial=1) - 1).bit_length()
    if place_bits + len(counts).bit_length() > 64 - _HASH_BITS:  # a batch of billions, or nearly
        return np.lexsort((hashes, np.arange(len(counts)).repeat(counts)))
    # segment, hash and place in one number: a plain sort, ten times as fast as sorting indices
    keys = np.arange(len(counts), dtype=np.uint64).repeat(counts)
    keys <<= np.uint64(_HASH_BITS)
    keys |= hashes
    keys <<= np.uint64(place_bits)
    firsts = ends[:-1].repeat(counts)
    keys |= (np.arange(len(random)) - firsts).astype(np.uint64)
    keys.sort()
    keys &= np.uint64((1 << place_bits) - 1)
    return firsts + keys.astype(np.int64)


def _replacements(
    tokens: NDArray[np.int64], random: NDArray[np.uint64], deciding: NDArray[np.uint64], mlm: MaskedLM
) -> NDArray[np.int64]:
    """What chosen tokens become: the high bits of a draw decide, the low ones draw the random token."""
    share = (mixed(deciding ^ _REPLACE) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    low = (mixed(random ^ _REPLACE) & np.uint64(2**32 - 1)).astype(np.int64)
    ordinary = mlm.ordinary
    drawn = ordinary[low * len(ordinary) >> 32]
    kept = np.where(share < mlm.mask_share + mlm.random_share, drawn, tokens)
    return np.where(share < mlm.mask_share, mlm.mask_id, kept)
