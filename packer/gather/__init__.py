"""Tokens in mapped Arrow memory, and the kernels that copy them into rows.

`columns.py` describes a list column by addresses, `kernels.py` copies out of it (`memory.py`), and `derived.py` is what
follows from where segments stand. The source's columns and the packed shards' columns are described the same way, so
that one kernel packs, and reads back to verify.
"""

from packer.gather.columns import TokenColumn, list_lengths
from packer.gather.derived import RowLayout, any_trained, count_trained, fill_gaps, mask_context, restart_positions
from packer.gather.kernels import Spans, gather, gather_bytes, lengths_of

__all__ = [
    "RowLayout",
    "Spans",
    "TokenColumn",
    "any_trained",
    "count_trained",
    "fill_gaps",
    "gather",
    "gather_bytes",
    "lengths_of",
    "list_lengths",
    "mask_context",
    "restart_positions",
]
