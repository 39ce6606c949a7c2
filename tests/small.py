"""Sizes and waiting times that are made small, so that a small input has several pieces, blocks, chunks or shards.

No other file of tests names these private constants: whoever moves one changes a line here.
"""

import pytest

PLACES = {
    # reading
    "piece": "packer.sources.decoding.decoded_pieces._PIECE",
    "json_block": "packer.sources.readers.json_lines._BLOCK",
    "record_block": "packer.sources.readers.format_reader.BLOCK",
    "parquet_rows": "packer.sources.readers.parquet.LIST_ROWS",
    "blank_lines": "packer.sources.readers.line_blocks.MOST_BLANK",
    "record": "packer.sources.documents.MOST_RECORD",
    "segment_run": "packer.sources.packed.segment_index._RUN",
    "segment_batch": "packer.sources.packed.segment_index._BATCH",
    # planning
    "documents_together": "packer.pipeline.segments.segment_reader.CHUNK",
    "segments_arranged": "packer.pipeline.planning.order_plan.STRETCH",
    "region": "packer.pipeline.partitions.partitioning.REGION",
    "partition_segments": "packer.pipeline.partitions.partitioning.MOST_SEGMENTS",
    "blocks_per_partition": "packer.pipeline.planning.surveying.BLOCKS_PER_PARTITION",
    "solved_groups": "packer.plan.groups.MOST_SOLVED",
    # writing and checking
    "batch": "packer.shards.row_format._BATCH_BYTES",
    "batches_together": "packer.shards.row_format._BLOCK_BATCHES",
    "shards_in_manifest": "packer.shards.shard_table.MOST_IN_MANIFEST",
    "verified_segments": "packer.pipeline.against_source._TOGETHER",
    "compared_segments": "packer.pipeline.against_source._SEGMENTS_TOGETHER",
    # ranks and stores
    "heartbeat": "packer.heartbeats.INTERVAL",
    "first_pause": "packer.stores.requests._FIRST_PAUSE",
    "retries": "packer.stores.requests._RETRIES",
    "timeout": "packer.stores.requests._TIMEOUT",
    "left_alone": "packer.stores.requests._LEFT_ALONE",
    "chunk": "packer.stores.mirror.CHUNK",
    # loading
    "open_shards": "packer.loader.dataset.MOST_OPEN",
    "check_pause": "packer.loader.open_shards._CHECK_PAUSE",
    "room_patience": "packer.loader.cache.shard_cache.ROOM_PATIENCE",
    "fetch_patience": "packer.loader.cache.shard_cache.FETCH_PATIENCE",
    "idle": "packer.loader.cache.cached_dataset._IDLE",
}


def shrink(patch: pytest.MonkeyPatch, **sizes) -> None:
    """Make sizes and times small until the patch is undone."""
    for name, size in sizes.items():
        patch.setattr(PLACES[name], size)


def forget_mirrors(patch: pytest.MonkeyPatch) -> None:
    """Start without contents of objects, as another process would."""
    from packer.sources.files import file_access
    from packer.stores import mirror

    patch.setattr(mirror, "_mirrors", mirror._Mirrors())
    for cache in (file_access._mirrored, file_access._with_headers):
        cache.cache_clear()
