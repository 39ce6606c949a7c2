"""Sources in object storage give the same bytes as local ones, and are read by ranges."""

import gzip
import os
import pickle
import random

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.engines.engine import Engine
from packer.errors import PackerError, SourceError
from packer.options import PackOptions
from packer.output import job
from packer.pipeline import packing
from packer.pipeline.collect_figures import measure
from packer.sources.arrow_files import mirrored
from packer.sources.find_source import find_source
from packer.sources.source import read_documents
from packer.stores import mirror
from tests.helpers.chat_templates import WORDS
from tests.helpers.opening import open_source
from tests.helpers.pack import hashes
from tests.helpers.remote_sources import (
    documents,
    small_chunks,  # noqa: F401 (fixtures)
    table,
    upload,
    write_documents,
    write_stream,
)
from tests.helpers.small import forget_mirrors, shrink
from tests.helpers.token_files import in_one, write_array, write_datatrove, write_indexed, write_lines_beside
from tests.helpers.writing import write_ipc, write_lines

MAX_LEN = 64


def compress(path):
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def texts(seed):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS.split(), k=chance.randrange(1, 40))) for _ in range(200)]


def write_olmo(folder):
    path = write_array(folder / "token_ids_1.npy", documents(1), "int32")
    write_lines_beside(path, documents(1))
    write_array(folder / "labels_mask_1.npy", [[token % 2 for token in tokens] for tokens in documents(1)], "bool")


def write_masked(folder):
    made = table(1)
    masks = pa.array([[1] * len(each) for each in made["input_ids"].to_pylist()], pa.list_(pa.int8()))
    write_ipc(folder / "a.arrow", made.append_column("attention_mask", masks), rows=200)


def write_rows(folder):
    """Write rows of two documents, in Arrow and in Parquet."""
    made = table(1)
    lengths = [[len(each) // 2, len(each) - len(each) // 2] for each in made["input_ids"].to_pylist()]
    made = made.append_column("seq_lengths", pa.array(lengths, pa.list_(pa.int32())))
    write_ipc(folder / "a.arrow", made, rows=50)
    pq.write_table(made, folder / "b.parquet", row_group_size=100)


SOURCES = {
    "stream": (lambda folder: [write_stream(folder / f"{n}.arrow", n) for n in range(3)], {}),
    "file": (lambda folder: write_stream(folder / "a.arrow", 1, stream=False), {}),
    "compressed": (lambda folder: write_stream(folder / "a.arrow", 1, compression="zstd"), {}),
    "kept": (lambda folder: write_stream(folder / "a.arrow", 1), {"keep": ("url",), "keep_tokens": ("score", "topk")}),
    "untrained": (lambda folder: write_stream(folder / "a.arrow", 1), {"untrained": "drop"}),
    "skip": (lambda folder: write_stream(folder / "a.arrow", 1), {"on_error": "skip"}),
    "masked": (write_masked, {}),
    "packed before": (write_rows, {"keep": ("url",), "keep_tokens": ("score", "topk")}),
    "groups": (lambda folder: write_stream(folder / "a.arrow", 1), {"group_by": "url"}),
    "sequential": (lambda folder: write_stream(folder / "a.arrow", 1), {"algorithm": "sequential"}),
    "indexed": (lambda folder: write_indexed(folder / "a", in_one(documents(1)), "uint16"), {}),
    "sequences": (lambda folder: write_indexed(folder / "a", [documents(1), documents(2)]), {"document": "sequence"}),
    "array": (lambda folder: write_array(folder / "a.bin", [*documents(1), [1]]), {"dtype": "uint16", "eos_id": 1}),
    "masked array": (write_olmo, {"dtype": "int32"}),
    "datatrove": (lambda folder: write_datatrove(folder / "a.ds", documents(1)), {}),
    "indexed skip": (lambda folder: write_indexed(folder / "a", in_one(documents(1))), {"on_error": "skip"}),
    "parquet": (lambda folder: pq.write_table(table(1), folder / "a.parquet", row_group_size=100), {}),
    "lines": (lambda folder: write_documents(folder / "a.jsonl", 1), {}),
    "saved": (lambda folder: datasets.Dataset(table(1)).save_to_disk(folder / "saved", num_shards=2), {}),
    "text": (
        lambda folder: write_lines(folder / "a.jsonl", [{"text": text} for text in texts(1)]),
        {"tokenizer": True},
    ),
    "text in parquet": (
        lambda folder: pq.write_table(pa.table({"text": texts(1)}), folder / "a.parquet"),
        {"tokenizer": True},
    ),
    "text in Arrow": (
        lambda folder: datasets.Dataset(pa.table({"text": texts(1)})).save_to_disk(folder / "saved"),
        {"tokenizer": True},
    ),
    "gz": (lambda folder: compress(write_documents(folder / "a.jsonl", 1)), {}),
}


def pack(source, output, **options):
    return packer.pack(source, output, **{"max_len": MAX_LEN, "shard_size": 20_000, "workers": 2} | options)


OFTEN = ("stream", "kept", "skip", "indexed", "array", "parquet", "text", "packed before")
"""A source of each reader, and what is made of one; the others are packed with --nightly."""


@pytest.mark.nightly(after=len(OFTEN))
@pytest.mark.parametrize("kind", sorted(SOURCES, key=lambda kind: kind not in OFTEN))
def test_a_remote_source_is_packed_to_the_bytes_of_a_local_one(kind, bucket, tokenizer, tmp_path):
    write, options = SOURCES[kind]
    options = {name: tokenizer if name == "tokenizer" else value for name, value in options.items()}
    local = tmp_path / "data"
    local.mkdir()
    write(local)
    remote = upload(local, bucket / "data")
    inside = "/saved" if (local / "saved").exists() else ""
    pack(f"{local}{inside}", tmp_path / "one", **options)
    pack(f"{remote}{inside}", tmp_path / "two", **options)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")
    named = {name: value for name, value in options.items() if name == "tokenizer"}
    assert list(packer.verify(tmp_path / "one", source=f"{remote}{inside}", **named)) == []


@pytest.fixture
def streams(bucket, tmp_path):
    """Three Arrow streams in a local folder, and the same in object storage."""
    local = tmp_path / "data"
    (local / "en").mkdir(parents=True)
    for number in range(3):
        write_stream(local / "en" / f"{number}.arrow", number)
    (local / "notes.txt").write_text("left out")
    return local, upload(local, bucket / "data")


@pytest.mark.parametrize("place", ["", "/en", "/en/0.arrow"])
def test_folders_and_files_are_found_as_locally(place, streams):
    local, remote = (find_source(f"{root}{place}", None) for root in streams)
    assert [file.name for file in remote.files] == [file.name for file in local.files]
    assert [str(file.path).removeprefix(f"{streams[1]}/") for file in remote.files] == [
        str(file.path.relative_to(streams[0])) for file in local.files
    ]


def test_several_paths_may_be_local_and_remote(streams, tmp_path):
    local, remote = streams
    paths = [f"{remote}/en/2.arrow", f"{remote}/en/0.arrow"]
    pack([f"{local}/en/2.arrow", f"{local}/en/0.arrow"], tmp_path / "one")
    pack(paths, tmp_path / "two")
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")


class Elsewhere(Engine):
    """An engine that runs every task as another process would: unpickled, with nothing in memory."""

    is_local = False

    def run(self, task, numbers, local=None):
        """Run the tasks one after the other."""
        content = pickle.dumps(task)
        for number in numbers:
            with pytest.MonkeyPatch.context() as patch:
                forget_mirrors(patch)
                result = pickle.loads(content)(number)
            yield result


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", ["indexed", "kept", "stream", "compressed", "lines"])
def test_tasks_read_a_remote_source_in_other_processes(kind, bucket, tmp_path, monkeypatch):
    write, options = SOURCES[kind]
    local = tmp_path / "data"
    local.mkdir()
    write(local)
    remote = upload(local, bucket / "data")
    pack(local, tmp_path / "one", **options)
    monkeypatch.setattr(job, "Engine", Elsewhere)
    pack(str(remote), tmp_path / "two", **options)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")


@pytest.mark.parametrize("kind", ["stream", "indexed", "datatrove"])
def test_tasks_of_a_process_share_what_was_fetched_when_the_source_was_opened(kind, bucket, tmp_path, store_server):
    SOURCES[kind][0](tmp_path)
    content = pickle.dumps(read_documents(open_source(str(upload(tmp_path, bucket / "data")))))
    store_server.faults()
    assert len(pickle.loads(content).table.input_ids) > 300
    assert store_server.faults() == {}


FAULTS = {"503": {"status": 503, "every": 2}, "cut": {"cut": True, "every": 3}, "slow": {"seconds": 0.03}}


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_store_that_fails_now_and_then_changes_nothing(faults, streams, store_server, tmp_path, monkeypatch):
    shrink(monkeypatch, first_pause=0.01)
    local, remote = streams
    pack(local / "en" / "0.arrow", tmp_path / "one", shard_size=50_000)
    store_server.faults(**faults)
    pack(f"{remote}/en/0.arrow", tmp_path / "two", shard_size=50_000)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")


def test_tokens_are_read_once_and_nothing_stays_in_memory(bucket, tmp_path, store_server):
    write_ipc(tmp_path / "a.arrow", table(1, 5000).select(["input_ids", "labels"]), rows=500)
    remote = upload(tmp_path, bucket / "data")
    size = (remote / "a.arrow").stat().st_size
    store_server.faults()
    pack(f"{remote}/a.arrow", tmp_path / "out", shard_size=10_000_000)
    store_server.faults()
    assert size <= store_server.sent < 1.4 * size  # the first thousand documents are looked at for padding, too
    assert len(mirrored(remote / "a.arrow").fetched) * mirror.CHUNK < size / 2  # headers and offsets


def test_a_file_that_is_decoded_is_read_once(bucket, tmp_path, store_server, monkeypatch):
    shrink(monkeypatch, piece=10_000)
    write_masked(tmp_path)
    remote = upload(tmp_path, bucket / "data")
    size = (remote / "a.arrow").stat().st_size
    store_server.faults()
    pack(str(remote), tmp_path / "out")
    store_server.faults()
    assert size <= store_server.sent < 1.3 * size  # twice, the format is told by what the file begins with


def test_dictionaries_of_an_arrow_file_are_fetched(bucket, tmp_path):
    """Words in dictionaries and 60 batches of 66 kB, more than is read at once around a header."""
    columns = {"input_ids": [[number] * 8000 for number in range(120)], "word": ["a", "b"] * 60}
    made = pa.table({**columns, "word": pa.array(columns["word"]).dictionary_encode()})
    write_ipc(tmp_path / "a.arrow", made, rows=2, stream=False)
    remote = upload(tmp_path, bucket / "data") / "a.arrow"
    for source, out in ((tmp_path / "a.arrow", "local"), (remote, "out")):
        pack(str(source), tmp_path / out, keep=("word",), shard_size="10MB")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "local")


@pytest.mark.parametrize("operation", ["truncate", "posix_fallocate"])  # of headers and offsets; of tokens
def test_a_full_disk_for_what_is_fetched_is_told_with_the_remedy(operation, streams, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, operation, full)
    with pytest.raises(PackerError, match=r"No space left on device: temporary files are written there"):
        pack(f"{streams[1]}/en", tmp_path / "out")


def test_an_object_that_changes_is_an_error(streams, tmp_path, monkeypatch):
    local, remote = streams
    read = packing.read_documents

    def change(*arguments, **named):
        write_stream(local / "en" / "0.arrow", 7)
        (remote / "en" / "0.arrow").upload(local / "en" / "0.arrow")
        return read(*arguments, **named)

    monkeypatch.setattr(packing, "read_documents", change)
    with pytest.raises(SourceError, match=r"the object was changed while it was read; repeat the command"):
        pack(f"{remote}/en", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_damaged_objects_are_told_as_files_are(bucket, tmp_path, kind):
    write_stream(tmp_path / "a.arrow", 1, stream=kind == "stream")
    content = (tmp_path / "a.arrow").read_bytes()
    chance = random.Random(4)
    for number in range(12 if kind == "stream" else 18):
        damaged = bytearray(content)
        first = len(content) - 1200 if number >= 12 else 0  # in the footer
        if number % 2:
            del damaged[chance.randrange(first, len(content)) :]
        else:
            damaged[chance.randrange(first, len(content))] ^= 1 << chance.randrange(8)
        (tmp_path / "b.arrow").write_bytes(damaged)
        (bucket / "b.arrow").write_bytes(bytes(damaged))
        outcomes = []
        for source, output in ((tmp_path / "b.arrow", f"one{number}"), (bucket / "b.arrow", f"two{number}")):
            try:
                pack(str(source), tmp_path / output)
                outcomes.append(hashes(tmp_path / output))
            except PackerError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "no such object, nor objects that begin with it; check the address"),
        ("*.arrow", "packer does not expand wildcards"),
    ],
)
def test_what_is_missing_is_told(place, message, bucket, tmp_path):
    (bucket / "a").write_bytes(b"")
    with pytest.raises(PackerError, match=message):
        pack(f"{bucket}/{place}", tmp_path / "out")
    with pytest.raises(PackerError, match="there is no such bucket"):
        pack("s3://no-such-bucket-at-all/a", tmp_path / "out")


def test_figures_of_a_remote_source_are_those_of_a_local_one(streams):
    one, two = (measure(f"{root}/en", PackOptions(max_len=MAX_LEN)) for root in streams)
    assert one.documents.identity == two.documents.identity
    assert one.lengths.tolist() == two.lengths.tolist()


def test_an_object_whose_name_has_an_empty_part_is_named(bucket, store_server, tmp_path):
    for key in ("lines/a.jsonl", "lines//b.jsonl"):
        store_server.put(bucket.bucket, key, b'{"input_ids": [1]}\n')
    with pytest.raises(PackerError, match=rf"^{bucket}/lines//b.jsonl: the name of this object has an empty part"):
        pack(f"{bucket}/lines", tmp_path / "out")
    with pytest.raises(PackerError, match=rf"^{bucket}/lines//b.jsonl: its path has an empty part \(//\)"):
        pack(f"{bucket}/lines//b.jsonl", tmp_path / "out")
