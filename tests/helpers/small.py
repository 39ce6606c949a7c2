"""Sizes and waiting times that are made small, so that a small input has several pieces, blocks, chunks or shards.

Each is a constant of the module that it belongs to, beside the reason for its value. No other file of tests names one,
so whoever moves it changes a line here.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

EVERYWHERE = "PACKER_TEST_SIZES"
"""Environment variable with sizes for processes that tests start, as JSON."""

PLACES = {
    # reading
    "piece": "packer.sources.spill._PIECE",
    "compared_documents": "packer.text.tokens._ONE_IN",
    "fast_characters": "packer.text.tokens._ENOUGH",
    "call_characters": "packer.text.tokens.CHARACTERS",
    "first_characters": "packer.text.tokens._FIRST",
    "text_per_process": "packer.sources.spill.TEXT_PER_PROCESS",
    "json_block": "packer.sources.json_files._BLOCK",
    "record_block": "packer.sources.format_reader.BLOCK",
    "parquet_rows": "packer.sources.parquet.LIST_ROWS",
    "mapped_lists": "packer.sources.token_files._LISTS_TOGETHER",
    "checked_sequences": "packer.sources.token_files._SEQUENCES_TOGETHER",
    "checked_ends": "packer.sources.token_files._CHECKED",
    "searched_tokens": "packer.sources.token_files._TOGETHER",
    "record": "packer.sources.documents.MOST_RECORD",
    # planning
    "plain_seconds": "packer.algorithms.jit.PLAIN_SECONDS",
    "documents_together": "packer.plan.segments.CHUNK",
    "segments_arranged": "packer.plan.order_plan.STRETCH",
    "partition_tokens": "packer.plan.partition_plan.PARTITION_TOKENS",
    "partition_segments": "packer.plan.partition_plan.MOST_SEGMENTS",
    "blocks_per_partition": "packer.plan.partition_plan.BLOCKS_PER_PARTITION",
    "solved_groups": "packer.plan.whole_plan.MOST_SOLVED",
    # writing and checking
    "batch": "packer.shards.row_format._BATCH_BYTES",
    "shard_tasks": "packer.pipeline.write_shards.MOST_TASKS",
    "compared_ranges": "packer.pipeline.verifying.BUCKETS",
    # ranks and stores
    "heartbeat": "packer.engines.ranks.INTERVAL",
    "rank_patience": "packer.engines.ranks.PATIENCE",
    "first_pause": "packer.stores.buckets._FIRST_PAUSE",
    "retries": "packer.stores.buckets._RETRIES",
    "timeout": "packer.stores.buckets.TIMEOUT",
    "left_alone": "packer.stores.buckets._LEFT_ALONE",
    "chunk": "packer.stores.mirror.CHUNK",
    # loading
    "open_shards": "packer.loader.load.MOST_OPEN",
    "check_pause": "packer.loader.open_shards._CHECK_PAUSE",
    "room_patience": "packer.loader.shard_cache.ROOM_PATIENCE",
}


def shrink(patch: pytest.MonkeyPatch, *, everywhere: bool = False, **sizes) -> None:
    """Make sizes and times small until the patch is undone; with `everywhere`, also in processes that are started."""
    for name, size in sizes.items():
        patch.setattr(PLACES[name], size)
    if everywhere:
        tests = Path(__file__).parents[2]
        path = [Path(__file__).parent / "site", tests, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
        patch.setenv(EVERYWHERE, json.dumps(sizes))


def set_sizes(sizes: dict) -> None:
    """Set sizes and times in this process, for good."""
    for name, size in sizes.items():
        module, _, constant = PLACES[name].rpartition(".")
        setattr(importlib.import_module(module), constant, size)


def forget_mirrors(patch: pytest.MonkeyPatch) -> None:
    """Start without contents of objects, as another process would."""
    from packer.sources import arrow_files

    for cache in (arrow_files._mirrored, arrow_files._fetch_headers):
        cache.cache_clear()
