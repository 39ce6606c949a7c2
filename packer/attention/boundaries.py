"""Segment boundaries of a batch, from the arguments that reach every attention layer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import pairwise

import torch

from packer.errors import PackerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """Segments of a batch whose rows are laid end to end."""

    cu_seqlens: torch.Tensor
    """int32 `[segments + 1]`: index of each segment's first token, then the number of tokens. Segments of 3, 2 and 4
    tokens -> [0, 3, 5, 9]."""

    longest: int
    """Tokens in the longest segment."""


def find_boundaries(
    rows: int,
    row_tokens: int,
    *,
    cu_seq_lens: torch.Tensor | None,
    max_length: int | torch.Tensor | None,
    position_ids: torch.Tensor | None,
    device: torch.device,
) -> Boundaries:
    """Return the segments of a batch `[rows, row_tokens]`; the layers of a forward pass share one result.

    They are those of `cu_seq_lens`, `[segments + 1]` over all rows, with `max_length` tokens in the longest. Without
    them, a segment starts where `position_ids`, `[rows, row_tokens]` or `[1, row_tokens]`, do not increase by one.
    """
    source = cu_seq_lens if cu_seq_lens is not None else position_ids
    if source is None:
        raise PackerError(
            "neither cu_seq_lens_q nor position_ids reached attention, because this model does not pass them on: "
            "documents would attend to each other; `packer check` lists the attn_implementation that is safe for it; "
            "M-RoPE needs the position in the document as the first of 4 rows of position_ids"
        )
    global _last
    is_compiling = torch.compiler.is_compiling()  # the last result and `_check` would break the graph
    # A tensor in inference mode has no version, so that a change of it would not be noticed.
    is_kept = not is_compiling and not source.is_inference()
    key = (rows, row_tokens, device, source._version, cu_seq_lens is None) if is_kept else ()
    if is_kept:
        last_source, last_key, last = _last
        if last_source() is source and last_key == key and last is not None:
            return last
    if cu_seq_lens is None:
        starts, max_length = _restarts(source, rows, row_tokens), None
    else:
        starts = cu_seq_lens
    if max_length is None:
        max_length = starts.diff().max()
    found = Boundaries(cu_seqlens=starts.to(device, torch.int32), longest=int(max_length))
    if not is_compiling:
        _check(found, rows * row_tokens)
    elif cu_seq_lens is not None:
        _check_compiled(found, rows * row_tokens)
    if is_kept:
        _last = (weakref.ref(source), key, found)
    return found


_last: tuple[weakref.ref[torch.Tensor], tuple[object, ...], Boundaries | None]
_last = (weakref.ref(torch.empty(0)), (), None)
"""Tensor, other arguments and result of the last call."""


def _restarts(position_ids: torch.Tensor, rows: int, row_tokens: int) -> torch.Tensor:
    """Return `[segments + 1]`: where positions do not increase by one, then the end: [[0, 1, 2, 0, 1]] -> [0, 3, 5].

    Every row starts a segment.
    """
    if position_ids.ndim != 2 or position_ids.shape[-1] != row_tokens or position_ids.shape[0] not in (1, rows):
        raise PackerError(
            f"position_ids of shape {list(position_ids.shape)} do not contain the segment boundaries of "
            f"[{rows}, {row_tokens}] tokens: pass cu_seq_lens_q and max_length_q, as packer.collate returns them"
        )
    positions = position_ids.expand(rows, row_tokens)
    is_start = torch.ones_like(positions, dtype=torch.bool)
    is_start[:, 1:] = positions.diff(dim=1) != 1
    starts = is_start.flatten().nonzero().flatten()
    return torch.cat([starts, starts.new_tensor([rows * row_tokens])])


def _check_compiled(found: Boundaries, tokens: int) -> None:
    """Check the same as `_check` in compiled code, without synchronizing; the error is torch's RuntimeError."""
    cu_seqlens = found.cu_seqlens
    lengths = cu_seqlens.diff()
    covers = (cu_seqlens[0] == 0) & (cu_seqlens[-1] == tokens) & (lengths.min() >= 0)
    torch._assert_async(covers, "cu_seq_lens_q does not cover the tokens of the batch: pass it whole")
    torch._assert_async(lengths.max() <= found.longest, "max_length_q is below the longest segment: pass packer's")


def _check(found: Boundaries, tokens: int) -> None:
    """Check that the segments cover the batch; done once per batch, because it synchronizes with the device."""
    values = found.cu_seqlens.tolist()
    lengths = [end - start for start, end in pairwise(values)]
    if not lengths or values[0] != 0 or values[-1] != tokens or min(lengths) < 0:
        raise PackerError(
            f"cu_seq_lens_q runs from {values[0]} to {values[-1]}, but the batch has {tokens:,} tokens: pass it whole "
            "(accelerate slices it for an IterableDataset: use a map-style dataset, or dispatch_batches=False)"
        )
    if found.longest < max(lengths):
        raise PackerError(
            f"max_length_q is {found.longest:,}, but the longest segment has {max(lengths):,} tokens: pass the value "
            "that packer.collate returns"
        )
