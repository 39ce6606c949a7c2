"""A shard is made of one partition: it holds blocks of consecutive documents, and reads nothing else of a bucket."""

import numpy as np
import pyarrow as pa
import pytest

import packer
from tests.helpers.pack import hashes
from tests.helpers.packed_rows import rows_on_disk
from tests.helpers.remote_sources import small_chunks, upload  # noqa: F401 (a fixture)
from tests.helpers.small import forget_mirrors, shrink
from tests.helpers.writing import write_ipc

BLOCKS = 8
OPTIONS = {"max_len": 1024, "shard_size": "700KB", "workers": 1}


@pytest.fixture(autouse=True)
def partitions_of_a_shard(monkeypatch):
    shrink(monkeypatch, partition_tokens=1, blocks_per_partition=BLOCKS)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    chance = np.random.default_rng(0)
    documents = [chance.integers(1, 1000, length) for length in chance.integers(1, 400, 3000)]
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))})
    return write_ipc(tmp_path_factory.mktemp("source") / "rows.arrow", table, rows=90)


def documents_of_shards(folder):
    """The documents in each shard, sorted."""
    for path in sorted(folder.glob("*.arrow")):
        rows = rows_on_disk(folder, path.name)
        yield np.unique([document for row in rows for document in row["doc_ids"] if document >= 0])


@pytest.mark.parametrize("algorithm", ["auto", "mixed", "bfd"])
def test_a_shard_holds_blocks_of_consecutive_documents_that_no_other_shard_has(source, tmp_path, algorithm):
    packer.pack(source, tmp_path / "out", **OPTIONS, algorithm=algorithm)
    shards = list(documents_of_shards(tmp_path / "out"))
    assert len(shards) > 5
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(3000))
    for documents in shards:
        assert np.count_nonzero(np.diff(documents) > 1) < BLOCKS + 2


def test_a_remote_source_gives_the_same_bytes_and_is_read_by_the_block(
    source, bucket, tmp_path, monkeypatch, store_server
):
    packer.pack(source, tmp_path / "one", **OPTIONS)
    remote = str(upload(source.parent, bucket / "data"))
    forget_mirrors(monkeypatch)
    store_server.faults()  # from here on
    packer.pack(remote, tmp_path / "two", **OPTIONS)
    assert store_server.faults()["GET"] < 120  # 103: 8 blocks for each of 8 shards; 172 if shards shared documents
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")
