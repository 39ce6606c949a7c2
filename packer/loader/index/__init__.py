"""Tokens of an index: its shards say which documents a row holds, and the tokens are read from what was packed.

A row is filled when it is read. If the source is in object storage, where a row would take many small requests, whole
shards are written to the cache of the node instead.

    index_tokens.py         tokens of rows, read from the mapped source of each generation
    source_lists.py         lists of the source as NumPy arrays: located together, copied one by one
    materialized_shards.py  whole shards, written to the cache with their tokens

It imports much of `packer.pipeline` to open the source, so nothing here is imported before there is one.
"""
