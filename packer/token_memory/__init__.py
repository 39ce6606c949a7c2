"""Tokens in mapped memory: list columns, kernels that copy them into rows, and documents joined into trees."""

from packer.token_memory.token_column import (
    Spans,
    TokenColumn,
    count_trained,
    fetched_spans,
    gather,
    gather_bytes,
    lengths_of,
    list_lengths,
)

__all__ = [
    "Spans",
    "TokenColumn",
    "count_trained",
    "fetched_spans",
    "gather",
    "gather_bytes",
    "lengths_of",
    "list_lengths",
]
