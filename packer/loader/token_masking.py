"""Random masking of tokens for masked language models, per segment and independent of where a document is packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import cu_seqlens_of, restart_positions
from packer.algorithms.permute import MASKS, hashes_of, key_of, mixed_all
from packer.column_names import NO_LOSS, PADDING
from packer.errors import PackerError
from packer.loader.row_order import check_range

_HASH_BITS = 32  # high bits of a draw that order tokens; a constant, so that ties do not depend on the batch
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

    Labels are the original tokens at the chosen positions and -100 elsewhere; they are not shifted. The lengths of the
    segments sum to T, `doc_starts` are their offsets in their documents, and padding has the doc_id -1.
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
    chosen = _choose(fixed, cu_seqlens_of(lengths), random, mlm.probability)
    labels = np.full(len(input_ids), NO_LOSS, np.int64)
    labels[chosen] = input_ids[chosen]
    masked = input_ids.copy()
    masked[chosen] = _replacements(input_ids[chosen], random[chosen], mlm)
    return masked, labels


def _choose(
    fixed: NDArray[np.bool_], cu_seqlens: NDArray[np.int64], random: NDArray[np.uint64], probability: float
) -> NDArray[np.int64]:
    """Return the tokens to mask, by index: in each segment, a share of those that are not `fixed`, by their draws."""
    # From here on, tokens are numbered without the fixed ones: token i is input_ids[free[i]].
    free = np.flatnonzero(~fixed)
    starts = np.searchsorted(free, cu_seqlens)  # first token of each segment
    sizes = np.diff(starts)
    needed = np.where(sizes, np.maximum(np.floor(probability * sizes + 0.5), 1), 0).astype(np.int64)
    order = _shuffled(starts, random[free])
    chosen: NDArray[np.int64] = free[order[np.arange(len(free)) - starts[:-1].repeat(sizes) < needed.repeat(sizes)]]
    return chosen


def _shuffled(starts: NDArray[np.int64], random: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the tokens of each segment, sorted by the high bits of their draws, segment by segment: shape (tokens,).

    Example: starts [0, 2, 5] and draws with the high bits [7, 3, 9, 1, 4] -> [1, 0, 3, 4, 2].
    """
    counts = np.diff(starts)
    hashes = random >> np.uint64(64 - _HASH_BITS)
    index_bits = int(counts.max(initial=1) - 1).bit_length()
    if index_bits + len(counts).bit_length() > 64 - _HASH_BITS:  # batches of billions of tokens
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


def _replacements(tokens: NDArray[np.int64], random: NDArray[np.uint64], mlm: MaskedLM) -> NDArray[np.int64]:
    """Return what replaces each chosen token: the mask token, a random token or the token itself.

    The high bits of the draws choose among the three, and the low bits choose the random token.
    """
    drawn = mixed_all(random ^ _REPLACE)
    share = (drawn >> np.uint64(40)).astype(np.float64) * 2.0**-24
    low = (drawn & np.uint64(2**32 - 1)).astype(np.int64)
    random_ids = mlm.ordinary_ids[low * len(mlm.ordinary_ids) >> 32]
    unmasked = np.where(share < mlm.mask_share + mlm.random_share, random_ids, tokens)
    return np.where(share < mlm.mask_share, mlm.mask_id, unmasked)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskedLM:
    """Masking of tokens for BERT's training task (Devlin et al., arXiv 1810.04805); for `collate` and `batches`.

    In each segment, a share `probability` of the tokens that are not special is chosen, rounded to a whole number of at
    least one. By default, 80% of the chosen tokens become the mask token, 10% a random token, and 10% are kept.

    The draw of each token is a hash of seed, epoch, document and position in the document: a document is masked the
    same way in any row, batch, rank or worker, and differently in each epoch. Each piece of a split document is a
    segment of its own.

    Raises:
        PackerError: a number is out of its range.
    """

    mask_id: int
    """Token id of the mask token."""

    vocab_size: int
    """Number of token ids; random tokens are drawn from those that are not special."""

    special_ids: Sequence[int]
    """Token ids that are neither chosen nor drawn, such as [CLS], [SEP], padding and mask tokens."""

    probability: float = 0.15
    """Share of the tokens that are chosen, above 0 and at most 1."""

    mask_share: float = 0.8
    """Share of the chosen tokens that become `mask_id`, 0 to 1."""

    random_share: float = 0.1
    """Share of the chosen tokens that become a random token, 0 to 1; with mask_share, at most 1."""

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
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise PackerError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")
        if self.mask_share + self.random_share > 1:
            raise PackerError(
                f"mask_share is {self.mask_share} and random_share {self.random_share}: their sum must be at most 1"
            )
        is_special = np.zeros(self.vocab_size, np.bool_)
        is_special[ids] = True
        if is_special.all():
            raise PackerError(f"all {self.vocab_size:,} tokens are special: there must be another one to draw")
        object.__setattr__(self, "is_special", is_special)
        object.__setattr__(self, "ordinary_ids", np.flatnonzero(~is_special))


def masked_lm(tokenizer: Any, *, probability: float = 0.15, seed: int = 0) -> MaskedLM:
    """Return a MaskedLM with the mask token and the special tokens of a Hugging Face tokenizer.

    Args:
        tokenizer: tokenizer with `get_vocab`, `mask_token_id` and `all_special_ids`.
        probability: as in `MaskedLM`.
        seed: as in `MaskedLM`.

    Raises:
        PackerError: the tokenizer has no mask token, or an argument is out of its range.
    """
    if tokenizer.mask_token_id is None:
        raise PackerError(f"{type(tokenizer).__name__} has no mask token: pass another token's id to packer.MaskedLM")
    return MaskedLM(
        mask_id=tokenizer.mask_token_id,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        special_ids=tokenizer.all_special_ids,
        probability=probability,
        seed=seed,
    )
