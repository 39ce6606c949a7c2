"""Apply the long-document policy: cut documents, or preference pairs, into segments of at most max_len tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import joined_ranges
from packer.algorithms.jit import jit_if_large
from packer.errors import SourceError
from packer.options import PackOptions
from packer.options.choices import LongPolicy, TruncateSide
from packer.plan.segments import Segments, documents_of, extents_of


def cut_lengths_of(
    options: PackOptions, lengths: NDArray[np.int32], ranges: NDArray[np.int64] | None = None
) -> Segments:
    """Cut documents, or pairs of them, into segments, as the options say; see `cut_documents` and `cut_pairs`.

    `ranges` are those of `Segments`. If a document or pair is longer than max_len and may not be cut, this is a
    SourceError with the number of the first one.
    """
    _refuse_long(options, lengths, ranges)
    if options.pairs:
        side = options.truncate_side
        segments = cut_pairs(lengths, options.max_len, options.long, truncate_side=side, align=options.align)
    else:
        segments = cut_documents(
            lengths,
            options.max_len,
            options.long,
            overlap=options.overlap,
            truncate_side=options.truncate_side,
            align=options.align,
        )
    return segments if ranges is None else replace(segments, ranges=ranges)


def _refuse_long(options: PackOptions, lengths: NDArray[np.int32], ranges: NDArray[np.int64] | None) -> None:
    """Raise a SourceError if a document or a pair is longer than a row, and the options do not say how to cut it."""
    may_split = not (options.limit or options.pairs)
    if options.long not in ("split", "error") or (options.long == "split" and may_split):
        return
    taken: NDArray[np.int64] = lengths.astype(np.int64)
    if options.pairs:
        sides = extents_of(taken.reshape(-1, 2), options.align)
        taken = np.where(sides.min(axis=1) > 0, sides.sum(axis=1), 0)
    is_long = taken > options.max_len
    if not is_long.any():
        return
    first, count = int(is_long.argmax()), np.count_nonzero(is_long)
    document = first * options.documents_each
    if ranges is not None:
        document = int(documents_of(ranges, np.array([document]))[0])
    limit = f"and max_len is {options.max_len:,}"
    if options.pairs:
        raise SourceError(
            f"pair {document // 2} takes {taken[first]:,} tokens {limit} ({count:,} pairs are longer), and pairs are "
            "never split: choose --long truncate or drop"
        )
    remedy = "choose --long split, truncate or drop"
    if options.limit:
        remedy = "with --limit none is split: choose --long drop or truncate"
    raise SourceError(
        f"document {document} has {taken[first]:,} tokens {limit} ({count:,} documents are longer); {remedy}"
    )


def kept_lengths_of(options: PackOptions, lengths: NDArray[np.int32], first_document: int = 0) -> NDArray[np.int32]:
    """Count the tokens of each document that reach the rows, each token once: int32, shape (documents,).

    Errors are those of `cut_lengths_of`.
    """
    kept = lengths
    if options.long == "truncate":
        kept = np.minimum(lengths, np.int32(options.max_len))
    elif options.long == "drop":
        kept = np.where(lengths > options.max_len, np.int32(0), lengths)
    elif options.long == "error":
        _refuse_long(options, lengths, np.array([[first_document, first_document + len(lengths)]]))
    return kept


def cut_documents(
    lengths: NDArray[np.int32],
    max_len: int,
    long: LongPolicy,
    *,
    overlap: int = 0,
    truncate_side: TruncateSide = "right",
    align: int = 1,
) -> Segments:
    """Cut documents, of which `lengths` has the tokens, by the long-document policy.

    `split` cuts a document every max_len tokens; with `overlap`, every piece except the first repeats that many
    tokens of the piece before it. `truncate` keeps max_len tokens, the last ones if `truncate_side`, the side that
    is cut off, is left. `drop` leaves long documents out; with `error`, there may be none. Every policy leaves out
    empty documents. Extents are rounded up to a multiple of `align`, a divisor of max_len.
    """
    assert 0 <= overlap < max_len
    assert max_len % align == 0
    cut = np.flatnonzero(lengths > max_len)
    of_long = lengths[cut].astype(np.int64)
    assert long != "error" or not len(cut)
    tails, stride = lengths, max_len - overlap
    heads, tail_starts = np.zeros(len(cut), np.int64), np.zeros(len(cut), np.int64)
    if len(cut) and long == "split":
        heads = (of_long - max_len + stride - 1) // stride
        tail_starts = heads * stride
    elif long == "truncate" and truncate_side == "left":
        tail_starts = of_long - max_len
    if len(cut):
        tails = lengths.copy()
        tails[cut] = of_long - tail_starts if long == "split" else max_len if long == "truncate" else 0
    has_start = tail_starts > 0
    return Segments(
        lengths=lengths,
        max_len=max_len,
        long=long,
        overlap=overlap if long == "split" else 0,
        align=align,
        tails=tails,
        cut_documents=cut[has_start],
        tail_starts=tail_starts[has_start].astype(np.int32),
        head_documents=np.repeat(cut, heads),
        head_starts=(joined_ranges(np.zeros_like(heads), heads) * stride).astype(np.int32),
        head_lengths=np.full(int(heads.sum()), max_len, np.int32),
        repeated=overlap * int(heads.sum()),
        long_documents=len(cut),
        long_tokens=int(of_long.sum()),
        empty_documents=len(lengths) - int(np.count_nonzero(lengths)),
        truncated_tokens=int(of_long.sum()) - max_len * len(cut) if long == "truncate" else 0,
    ).counted()


def cut_pairs(
    lengths: NDArray[np.int32],
    max_len: int,
    long: LongPolicy,
    *,
    truncate_side: TruncateSide = "right",
    align: int = 1,
) -> Segments:
    """Apply the long-document policy to pairs; a pair is long if the extents of both sides together exceed max_len.

    Documents 2i and 2i + 1 are a pair. `truncate` keeps up to half a row of each side, and more of the longer side
    if the shorter one leaves room; `drop` leaves both sides out; with any other policy, no pair may be long. Every
    policy leaves out pairs with an empty side; the other side is counted as unpaired. max_len is at least 2 *
    align.
    """
    assert len(lengths) % 2 == 0
    assert max_len >= 2 * align
    pairs = lengths.reshape(-1, 2)
    extents = extents_of(pairs.astype(np.int64), align)
    places = extents.sum(axis=1)
    is_whole = np.minimum(pairs[:, 0], pairs[:, 1]) > 0
    is_long = is_whole & (places > max_len)
    assert long in ("truncate", "drop") or not is_long.any()
    tails = np.where(is_whole[:, None], pairs, np.int32(0))
    if long == "truncate":
        half = max_len // 2 // align * align
        others = extents[:, ::-1]
        room = np.where(others <= half, max_len - others, half)
        tails[is_long] = np.minimum(tails, room)[is_long]
    else:
        tails[is_long] = 0
    tails = tails.reshape(-1)
    is_cut = (tails < lengths) & (tails > 0)
    was_long = is_cut if long == "truncate" else np.repeat(is_long, 2)
    unpaired = (lengths > 0) & np.repeat(~is_whole, 2)
    cut = np.flatnonzero(is_cut) if truncate_side == "left" else np.empty(0, np.int64)
    # Start from empty documents; `counted` counts the segments set here.
    return replace(
        cut_documents(np.zeros_like(lengths), max_len, "drop", align=align),
        lengths=lengths,
        long=long,
        tails=tails,
        cut_documents=cut,
        tail_starts=lengths[cut] - tails[cut],
        long_documents=int(np.count_nonzero(was_long)),
        long_tokens=int(lengths[was_long].sum(dtype=np.int64)),
        empty_documents=int(np.count_nonzero(lengths == 0)),
        unpaired_documents=int(np.count_nonzero(unpaired)),
        unpaired_tokens=int(lengths[unpaired].sum(dtype=np.int64)),
        truncated_tokens=int((lengths - tails)[is_cut].sum(dtype=np.int64)),
    ).counted()


def items_of(segments: Segments, each: int) -> Segments:
    """Return what is dealt to rows: segments, or `each` documents (a pair) as one segment, with the extents of all."""
    if each == 1:
        return segments
    places = segments.places_of_documents().reshape(-1, each).sum(axis=1)
    return cut_documents(places.astype(np.int32), segments.max_len, "error")


def cuts_between(
    lengths: NDArray[np.int32], offsets: NDArray[np.int64], starts: NDArray[np.int32], max_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Cut documents at allowed positions only, each piece as long as max_len allows.

    Document i may be cut at starts[offsets[i]:offsets[i + 1]], ascending, from 0 to its length. Of length 9 and
    positions [2, 3, 6] with max_len 4, the cuts are 3 and 6.

    Returns the number of cuts of each document, int64; the positions of the cuts, int32; and the first document
    whose allowed positions do not ascend or are too far apart, or -1.
    """
    counts = np.zeros(len(lengths), np.int64)
    cuts = np.empty(len(starts), np.int32)
    used, wrong = _choose_cuts(lengths, offsets, starts, max_len, counts, cuts)
    return counts, cuts[:used].copy(), int(wrong)


@jit_if_large
def _choose_cuts(
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int32],
    max_len: int,
    out_counts: NDArray[np.int64],
    out_cuts: NDArray[np.int32],
) -> tuple[int, int]:
    """Write the cuts; return how many there are, and the first document that cannot be cut, or -1."""
    used = 0
    for document in range(len(lengths)):
        begin = np.int64(0)
        last = np.int64(0)  # last position that fits
        before = np.int64(0)
        for i in range(offsets[document], offsets[document + 1] + 1):
            place = np.int64(starts[i]) if i < offsets[document + 1] else np.int64(lengths[document])
            if place < before or place > lengths[document]:
                return used, document
            before = place
            if place - begin > max_len:
                if last == begin or place - last > max_len:
                    return used, document
                out_cuts[used] = last
                out_counts[document] += 1
                used += 1
                begin = last
            last = place
    return used, -1
