"""Decoding in parallel gives the same bytes and the same errors for any number of workers."""

import gzip
import json
from collections import namedtuple
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer.engines.engine import Engine
from packer.errors import PackerError, SourceError
from packer.options import PackOptions
from packer.output.job import Job
from packer.pipeline.packing import pack
from packer.sources import parquet
from packer.sources.documents import Columns, SourceFile
from packer.sources.source import read_documents
from packer.sources.spill import spill_source
from packer.stores.paths import PathList
from tests.helpers.kills import kill
from tests.helpers.opening import open_source
from tests.helpers.small import shrink
from tests.helpers.sources import KINDS, MAPPED, read_whole, write
from tests.helpers.writing import write_ipc
from tests.helpers.zstd import zstd

WORKERS = (1, 2, 7)
DECODED = [kind for kind in KINDS if kind not in MAPPED]


@pytest.fixture
def small_pieces(monkeypatch):
    """Make pieces and blocks so small that a few hundred documents fill many of both."""
    shrink(monkeypatch, piece=1000, json_block=300)


def made_documents(count: int) -> list[list[int]]:
    random = np.random.default_rng(count)
    return [random.integers(0, 2**31, size).tolist() for size in random.integers(0, 30, count)]


def spilled(source, folder: Path, workers: int) -> dict[str, bytes]:
    spill_source(open_source(source), folder, engine=Engine(workers=workers))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# the bytes


@pytest.mark.nightly(after=3)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", DECODED)
def test_the_streams_are_the_same_for_any_number_of_workers(tmp_path, kind):
    documents = made_documents(200)
    path = write(tmp_path / "data", kind, documents, documents)
    found = [spilled(path, tmp_path / str(workers), workers) for workers in WORKERS]
    assert found[0] == found[1] == found[2]
    if kind in ("parquet", "jsonl"):
        assert len(found[0]) > 10
    source = open_source(path)
    assert read_whole(spill_source(source, tmp_path / "7", engine=Engine(workers=2))) == (documents, documents)
    assert read_documents(spill_source(source, tmp_path / "7")).identity == read_documents(open_source(path)).identity


@pytest.mark.usefixtures("small_pieces")
def test_many_files_of_all_kinds_come_back_in_order(tmp_path):
    documents = made_documents(330)
    (tmp_path / "d").mkdir()
    for number in range(11):
        write(tmp_path / "d" / f"{number:02}", KINDS[number % 8], documents[30 * number : 30 * number + 30])
    found = [spilled(tmp_path / "d", tmp_path / str(workers), workers) for workers in WORKERS]
    assert found[0] == found[1] == found[2]
    source = spill_source(open_source(tmp_path / "d"), tmp_path / "2")
    assert read_whole(source)[0] == documents
    assert source.files == open_source(tmp_path / "d").files


def test_compressed_tokens_are_decoded_although_a_kept_column_has_no_bytes_to_compress(tmp_path):
    table = pa.table({"input_ids": [[1] * 100, [2] * 90], "note": pa.nulls(2)})
    source = open_source(write_ipc(tmp_path / "a.arrow", table, compression="lz4"), keep=("note",))
    assert not source.mapped
    assert read_whole(spill_source(source, tmp_path / "spill"))[0] == table["input_ids"].to_pylist()


# the errors


@pytest.mark.parametrize(("claimed", "readable"), [(64, 8), (66, 9)])
def test_pages_with_more_or_fewer_rows_than_the_footer_says_are_refused(tmp_path, monkeypatch, claimed, readable):
    shrink(monkeypatch, parquet_rows=8)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"input_ids": [[1]] * 65}), path)
    reader = (
        parquet.ParquetReader.open(SourceFile.of(path, "a.parquet")).for_lists(Columns("input_ids", "labels")).reader
    )
    batches = replace(reader, group_rows=(claimed,)).blocks(["input_ids"])
    assert sum(len(batch) for batch, _ in islice(batches, readable)) == min(claimed, 65)
    with pytest.raises(SourceError, match=f"corrupt: its footer says {claimed} rows, its pages hold more or fewer"):
        next(batches)


@pytest.mark.nightly(after=2)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("bad", ['{"input_ids": [1, null]}', '{"input_ids": [4294967296]}', '{"input_ids": [1,'])
def test_the_first_invalid_line_is_named_for_any_number_of_workers(tmp_path, kind, bad):
    lines = [json.dumps({"input_ids": document}) for document in made_documents(300)]
    lines[3:3] = ["", ""]
    for place in (120, 121, 180, 290):
        lines[place] = bad
    path = tmp_path / f"a.{kind}"
    compress = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstd.compress}[kind]
    path.write_bytes(compress("\n".join(lines).encode()))
    for workers in WORKERS:
        with pytest.raises(SourceError, match=rf"^document 118 \(a\.{kind} line 121\): ") as caught:
            spill_source(open_source(path), tmp_path / str(workers), engine=Engine(workers=workers))
        with pytest.raises(SourceError) as streamed:
            read_documents(open_source(path))
        assert str(caught.value) == str(streamed.value)
        assert not list((tmp_path / str(workers)).glob(".*"))


@pytest.mark.usefixtures("small_pieces")
def test_the_first_invalid_row_is_named_for_any_number_of_workers(tmp_path):
    documents = made_documents(300)
    documents[150] = [7, 2**40]
    documents[151] = None
    documents[20:20] = [[]]
    pq.write_table(pa.table({"input_ids": pa.array(documents[:100], pa.list_(pa.int64()))}), tmp_path / "a.parquet")
    table = pa.table({"input_ids": pa.array(documents[100:], pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=9)
    source = PathList((tmp_path / "a.parquet", tmp_path / "b.parquet"))
    for workers in WORKERS:
        with pytest.raises(SourceError) as caught:
            spill_source(open_source(source), tmp_path / str(workers), engine=Engine(workers=workers))
        assert str(caught.value).startswith("document 151 (b.parquet row 51): 'input_ids' holds 1099511627776 at")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_stops_the_pieces_after_it(tmp_path, workers):
    lines = ['{"input_ids": 1}'] + 20_000 * ['{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    pieces = len(open_source(tmp_path / "a.jsonl").inputs[0].cut(1000))
    with pytest.raises(SourceError, match="line 1"):
        spill_source(open_source(tmp_path / "a.jsonl"), tmp_path / "spill", engine=Engine(workers=workers))
    made = len(list((tmp_path / "spill").glob("*.arrow")))
    assert made == 0 if workers == 1 else made < pieces / 2


# streams that are used again


@pytest.mark.usefixtures("small_pieces")
def test_complete_pieces_are_used_again_and_torn_ones_decoded_again(tmp_path):
    path = write(tmp_path / "a", "jsonl", made_documents(100))
    folder = tmp_path / "spill"
    before = spilled(path, folder, 2)
    numbers = {file.name: file.stat().st_ino for file in folder.glob("*.arrow")}
    (folder / "00000-00002.json").unlink()
    (folder / "00000-00002.arrow").write_bytes(b"torn")
    assert spilled(path, folder, 2) == before
    changed = [file.name for file in folder.glob("*.arrow") if file.stat().st_ino != numbers[file.name]]
    assert changed == ["00000-00002.arrow"]


def swap_two_bytes(content: bytes) -> bytes:
    middle = next(at for at in range(len(content) // 2, len(content)) if content[at] != content[at - 1])
    return content[: middle - 1] + content[middle : middle + 1] + content[middle - 1 : middle] + content[middle + 1 :]


@pytest.mark.parametrize("damage", [bytes.swapcase, swap_two_bytes, lambda content: bytes(len(content))])
def test_a_stream_of_the_right_size_with_other_bytes_is_decoded_again(tmp_path, damage):
    path = write(tmp_path / "a", "parquet", made_documents(20))
    stream = tmp_path / "spill" / "00000-00000.arrow"
    whole = spilled(path, tmp_path / "spill", 1)[stream.name]
    made = stream.stat().st_ino
    assert spilled(path, tmp_path / "spill", 1)[stream.name] == whole
    assert stream.stat().st_ino == made  # nothing is decoded twice
    stream.write_bytes(damage(stream.read_bytes()))  # by a power failure, or a failing disk
    assert spilled(path, tmp_path / "spill", 1)[stream.name] == whole


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"facts": 1}', "counts", "xxh3_128"])
def test_a_stream_with_a_damaged_note_is_decoded_again(tmp_path, damage):
    path = write(tmp_path / "a", "parquet", [[1], [2]])
    note = tmp_path / "spill" / "00000-00000.json"
    whole = spilled(path, tmp_path / "spill", 1)
    content = json.loads(note.read_bytes())
    if isinstance(damage, str):
        content["facts"][damage] = {"straddling": 5, "untrained": 5} if damage == "counts" else 0
        damage = json.dumps(content).encode()
    note.write_bytes(damage)
    assert spilled(path, tmp_path / "spill", 1) == whole
    assert json.loads(note.read_bytes())["facts"]["counts"] == {}


# the disk

Usage = namedtuple("Usage", "total used free")


def with_free(monkeypatch, free: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10**12, 0, free))


def test_rows_that_cannot_fit_on_the_disk_are_refused_before_they_are_written(tmp_path, monkeypatch):
    path = write(tmp_path / "a", "stream", [[1] * 64] * 100)
    options = PackOptions(max_len=64, shard_size=10 * 64 * 8)
    with_free(monkeypatch, 51_199)
    with pytest.raises(PackerError, match=r"/out: the rows to be written need 51\.2 kB, 51\.2 kB are free: free some"):
        pack(path, options=options, job=Job(output=tmp_path / "out"))
    assert not list((tmp_path / "out").glob("data-*"))
    with monkeypatch.context() as patch:  # six shards, then the process dies
        kill(patch, "data-00006-", error=KeyboardInterrupt)
        with_free(patch, 51_200)
        with pytest.raises(KeyboardInterrupt):
            pack(path, options=options, job=Job(output=tmp_path / "out", workers=1))
    with_free(monkeypatch, 4 * 10 * 64 * 8)  # rows that are written need no space again
    assert pack(path, options=options, job=Job(output=tmp_path / "out")).record.totals.rows == 100
