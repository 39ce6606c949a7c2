"""Tokens in mapped Arrow memory, and the kernels that copy them into rows.

`token_column.py` describes a list column by memory addresses, and `gather.py` copies spans of it. Columns of sources
and of packed shards are described in the same way, so the same kernel packs and verifies.
"""

from packer.token_memory.gather import (
    Spans,
    count_trained,
    fetched_spans,
    gather,
    gather_bytes,
    lengths_of,
    lies_in_store,
)
from packer.token_memory.token_column import TokenColumn, list_lengths

__all__ = [
    "Spans",
    "TokenColumn",
    "count_trained",
    "fetched_spans",
    "gather",
    "gather_bytes",
    "lengths_of",
    "lies_in_store",
    "list_lengths",
]
