"""Damaged sources and packed datasets: random mutations, every single byte, and extreme sizes."""

import io
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer import PackerError
from packer.json_records import REMEDY
from packer.progress import silent
from packer.shards.check_shards import verify_packed
from packer.sources.source import read_documents
from tests.helpers import fuzzing
from tests.helpers.effort import FUZZ
from tests.helpers.fuzzing_kept import SETS, make_set
from tests.helpers.opening import open_source
from tests.helpers.packed_rows import fit_manifest
from tests.helpers.writing import write_ipc

MUTATIONS = 40 * FUZZ  # per file
FEW = 8  # of them by day

KEPT = [f"kept-{column}" for column in fuzzing.KEPT]
SETS_DAMAGED = [f"set-{name}" for name in SETS]


@pytest.mark.parametrize(
    "name", ["stream", "stream-zstd", "parquet", "idx", "packed-shard", "kept-string", "set-index"]
)
def test_a_damaged_file_is_refused_or_read_correctly(tmp_path, name):
    assert fuzzing.run(name, 0, FEW, tmp_path) == []


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", [*fuzzing.SOURCES, *fuzzing.PACKED, *KEPT, *SETS_DAMAGED])
def test_thousands_of_damaged_files_are_refused_or_read_correctly(tmp_path, name):
    assert fuzzing.run(name, FEW, MUTATIONS, tmp_path) == []


# Packed datasets: every byte


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("name", "every"), [("packed-shard", 10), *((name, 1) for name in fuzzing.PACKED)])
def test_verify_finds_every_changed_byte(tmp_path, name, every):
    packed = fuzzing.pack_small(tmp_path)
    assert list(verify_packed(packed, silent)) == []
    (path,) = packed.glob(fuzzing.PACKED[name])
    whole, chance = path.read_bytes(), random.Random(name)
    with path.open("r+b", buffering=0) as file:
        for place, byte in list(enumerate(whole))[::every]:
            others = {byte ^ 1, byte ^ 0x20, chance.choice([other for other in range(256) if other != byte])}
            for other in others if name == "packed-manifest" else sorted(others)[:1]:
                os.pwrite(file.fileno(), bytes([other]), place)
                try:
                    fault = next(verify_packed(packed, silent), None)
                except PackerError as error:
                    fault = str(error)
                assert fault is not None, f"{path.name}: byte {place} is {other}, not {byte}"
                assert path.name in fault
                assert "\n" not in fault
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert list(verify_packed(packed, silent)) == []


@pytest.mark.parametrize("name", fuzzing.PACKED)
def test_verify_finds_a_file_that_is_cut_grown_or_gone(tmp_path, name):
    packed = fuzzing.pack_small(tmp_path)
    (path,) = packed.glob(fuzzing.PACKED[name])
    whole = path.read_bytes()
    grown = [whole + b"\0", whole + b"\n", whole + whole, b"\n" + whole]
    for content in [*(whole[:size] for size in {0, 1, len(whole) // 2, len(whole) - 1}), *grown, None]:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        try:
            faults = list(verify_packed(packed, silent))
        except PackerError as error:
            faults = [str(error)]
        assert faults
        assert all(path.name in fault and "\n" not in fault for fault in faults)


def test_verify_finds_a_manifest_of_other_bytes_and_equal_content(tmp_path):
    """An extra space, an escaped letter or a repeated key leaves the same JSON, and is a change."""
    packed = fuzzing.pack_small(tmp_path)
    path = packed / "manifest.json"
    text = path.read_text()
    for changed in (
        text.replace('"max_len": 16', '"max_len":  16'),
        text.replace("format", r"f\u006frmat"),
        text.replace('"max_len": 16,', '"max_len": 16, "max_len": 16,'),
        text.rstrip("\n"),
    ):
        assert changed != text
        path.write_text(changed)
        assert packer.load(packed).max_len == 16
        assert list(packer.verify(packed)) == [
            "manifest.json does not match its own checksum: it was changed after packing"
        ]


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("file", ["shard", "manifest"])
@pytest.mark.parametrize("name", [name for name in SETS if name != "index"])
def test_no_changed_bit_is_passed_on(tmp_path, name, file):
    """It is refused before anything is complete."""
    packed, _ = make_set(tmp_path, name)
    rest, chance = len(list(packed.iterdir())), random.Random(name)
    for number in range(12 * FUZZ):
        path = chance.choice(sorted(packed.glob("*.arrow" if file == "shard" else "manifest.json")))
        whole = path.read_bytes()
        changed = bytearray(whole)
        place = chance.randrange(8 * len(whole))
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(PackerError, match=path.name):
            packer.export(packed, tmp_path / f"export-{number}", to="torchtune", sync=False)
        path.write_bytes(whole)
        assert not any((tmp_path / f"export-{number}").glob("*.json")), place
        assert len(list(packed.iterdir())) == rest


def test_the_loader_checks_the_segments_of_a_record_batch_when_it_is_read(tmp_path):
    packed = fuzzing.pack_small(tmp_path)
    path = max(packed.glob("*.arrow"))
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    extents = table["seq_lengths"].chunk(0).values.to_numpy()
    wrong = extents.copy()
    wrong[0] += 1
    assert path.read_bytes().count(extents.tobytes()) == 1
    path.write_bytes(path.read_bytes().replace(extents.tobytes(), wrong.tobytes()))
    dataset = packer.load(packed)
    assert len(dataset[0]["input_ids"]) == 16
    for use in (lambda: dataset[-1], lambda: list(dataset.segments())):
        with pytest.raises(PackerError, match=rf"{path.name}: the seq_lengths of a row do not sum to 16: changed"):
            use()


@pytest.mark.parametrize("name", ["string", "binary", "list", "map"])
@pytest.mark.parametrize("wrong", [-1, 2**20, 2**31 - 1])
def test_offsets_inside_a_kept_column_are_checked_before_a_value_is_read(tmp_path, name, wrong):
    """The manifest is made to fit the damage, so that no hash reveals it."""
    source, packed = fuzzing.pack_keeping(name, tmp_path)
    path = min(packed.glob("*.arrow"))
    values = pa.ipc.open_stream(path.read_bytes()).read_all()[name].chunk(0).values
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1)
    changed = offsets.copy()
    changed[1] = wrong
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) >= 1
    path.write_bytes(content.replace(offsets.tobytes(), changed.tobytes()))
    fit_manifest(packed)
    assert fuzzing.reading_fault(packed, source) is None
    assert any(path.name in fault for fault in packer.verify(packed))
    for use in (lambda: packer.load(packed)[0], lambda: packer.export(packed, tmp_path / "out", to="parquet")):
        with pytest.raises(PackerError, match=rf"{path.name}: .*: changed after packing; restore it, or pack again"):
            use()
    assert len(packer.load(packed)[-1]["input_ids"]) == 16  # in another shard


# Lists with false offsets, and sizes above 2^31


def save(path: Path, *columns: pa.Array, names=("input_ids", "labels")) -> Path:
    return write_ipc(path, pa.table(columns, names=names[: len(columns)]))


def refusal(source: Path) -> str:
    with pytest.raises(PackerError) as caught:
        read_documents(open_source(source))
    with pytest.raises(PackerError, match=r"[^\n]+"):
        packer.pack(source, source.with_suffix(".packed"), max_len=4, sync=False)
    assert not source.with_suffix(".packed").exists()
    return str(caught.value)


@pytest.mark.parametrize("claimed", [2**31, 2**31 + 5, 2**33, 2**62, -(2**31)])
def test_a_list_that_claims_values_beyond_its_buffer_is_refused(tmp_path, claimed):
    offsets = np.array([0, 2, 3, 4], np.int64)
    path = save(tmp_path / "a.arrow", pa.array([[1, 2], [3], [4]], pa.large_list(pa.int32())))
    content = path.read_bytes()
    for place in (2, 3):
        wrong = offsets.copy()
        wrong[place] = claimed
        assert content.count(offsets.tobytes()) == 1
        path.write_bytes(content.replace(offsets.tobytes(), wrong.tobytes()))
        assert refusal(path).startswith("a.arrow: cannot be read, truncated or corrupt: ")


class SparseFile(io.RawIOBase):
    """A writable file that leaves holes in place of large writes."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.file.tell()

    def write(self, content) -> int:
        size = memoryview(content).nbytes
        if size > 1 << 24:
            self.file.seek(size, io.SEEK_CUR)
        else:
            self.file.write(content)
        return size

    def close(self) -> None:
        self.file.truncate()
        self.file.close()
        super().close()


def test_a_document_above_the_longest_is_named(tmp_path):
    """All of the 2^31 tokens exist, in a hole of the file."""
    values = pa.Array.from_buffers(pa.int8(), 2**31, [None, pa.py_buffer(np.zeros(2**31, np.int8))])
    lists = pa.LargeListArray.from_arrays(pa.array([0, 2, 2**31], pa.int64()), values)
    longer = pa.LargeListArray.from_arrays(pa.array([0, 0, 2**31], pa.int64()), values)
    for column, length in ((lists, None), (longer, 2**31)):
        path = tmp_path / "a.arrow"
        batch = pa.RecordBatch.from_arrays([column], names=["input_ids"])
        options = pa.ipc.IpcWriteOptions(allow_64bit=True)
        with SparseFile(path) as file, pa.ipc.new_stream(pa.PythonFile(file), batch.schema, options=options) as writer:
            writer.write_batch(batch)
        if length is None:
            assert read_documents(open_source(path), hold_lengths=True).lengths.tolist() == [2, 2**31 - 2]
        else:
            expected = f"{length} tokens, more than the limit of {length - 1} for a document; split it"
            assert refusal(path) == f"document 1 (a.arrow row 1): {expected}; {REMEDY}"


# Files that do not fit together, and sources without files


@pytest.mark.parametrize(
    "state",
    [
        '{"_data_files": [{"filename": 5}]}',
        '{"_data_files": [{"filename": null}]}',
        '{"_data_files": "data.arrow"}',
        '{"_data_files": [{"filename": "a\\u0000b"}]}',
        "[" * 100_000,
    ],
)
def test_a_state_without_a_list_of_file_names_is_refused(tmp_path, state):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text(state)
    refusal(tmp_path / "saved")


@pytest.mark.parametrize("splits", ['{"splits": [1, 2]}', '{"splits": [null]}', '{"splits": [["train"]]}'])
def test_splits_that_are_not_names_are_refused(tmp_path, splits):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(splits)
    assert "no list of 'splits'" in refusal(tmp_path / "saved")


# Many small documents, and one large


def packed_in_little_memory(source: Path, out: Path, megabytes: int, *, verified: bool = True) -> None:
    """Pack and verify in a process that may allocate `megabytes` more than after packing a small source.

    That source has documents enough for compiled kernels, whose memory is not counted.
    """
    code = """
import resource, sys
from pathlib import Path
import packer
small, source, out, room = *map(Path, sys.argv[1:4]), int(sys.argv[4])
packer.pack(small, out.with_name("small"), max_len=4096, sync=False, workers=1)
assert not list(packer.verify(out.with_name("small"), small))
used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
packer.pack(source, out, max_len=4096, sync=False, workers=1)
"""
    code += "assert not list(packer.verify(out, source))" if verified else ""
    small = save(out.with_name("small.arrow"), pa.array([[1], [2, 3]] * 400, pa.list_(pa.int32())))
    command = [sys.executable, "-c", code, small, source, out, str(megabytes << 20)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrow", "jsonl", "parquet"])
def test_a_million_documents_of_one_token(tmp_path, kind):
    count, path = 10**6, tmp_path / f"a.{kind}"
    tokens = np.arange(count, dtype=np.int32) * 7 % 50_000
    lists = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), pa.array(tokens))
    if kind == "arrow":
        save(path, lists)
    elif kind == "jsonl":
        path.write_text("".join(f'{{"input_ids": [{token}]}}\n' for token in tokens.tolist()))
    else:
        fuzzing.pq.write_table(pa.table({"input_ids": lists}), path)
    packed_in_little_memory(path, tmp_path / "out", 400)
    dataset = packer.load(tmp_path / "out")
    assert len(dataset) == -(-count // 4096)
    found = np.full(count, -1)
    for row in dataset:
        real = row["doc_ids"] >= 0
        found[row["doc_ids"][real]] = row["input_ids"][: real.sum()]
    assert np.array_equal(found, tokens)


@pytest.mark.nightly
@pytest.mark.slow
def test_packing_holds_no_more_for_ten_million_documents(tmp_path):
    count = 10**7
    offsets = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(1, 5, count))]).astype(np.int32)
    tokens = np.arange(offsets[-1], dtype=np.int32) % 50_000
    save(tmp_path / "a.arrow", pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)))
    packed_in_little_memory(tmp_path / "a.arrow", tmp_path / "out", 200, verified=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", [pa.int32(), pa.uint16()])
def test_one_document_of_fifty_million_tokens(tmp_path, kind):
    count = 5 * 10**7
    values = pa.array((np.arange(count, dtype=np.int64) * 7 % 50_000).astype(kind.to_pandas_dtype()))
    save(tmp_path / "a.arrow", pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values))
    packed_in_little_memory(tmp_path / "a.arrow", tmp_path / "out", 90)
    dataset = packer.load(tmp_path / "out")
    assert len(dataset) == -(-count // 4096)
    assert sum(int((row["doc_ids"] >= 0).sum()) for row in dataset) == len(dataset)
