"""Damage small files and use them in a child process, which may crash, hang or run out of memory.

Children are forks of one process in which everything is imported and compiled, `tests/helpers/fuzzing_warm.py`.

A damaged source must be refused in one line that names the file, or be packed correctly: the rows hold what a plain
reader finds in the same file. In a damaged packed dataset, `verify` must find the fault, and the loader return rows or
refuse in one line. If the manifest is adapted to the damage, every command must give a result or refuse in one line.
Any other outcome is a fault, reported with the number of the mutation; `tests/helpers/fuzz.py` runs it again.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.fuzzing_kept import KEPT as KEPT
from tests.helpers.fuzzing_kept import SETS as SETS
from tests.helpers.fuzzing_kept import make_set, pack_keeping, reading_fault, writing_fault
from tests.helpers.packed_rows import fit_manifest
from tests.helpers.token_files import (
    read_datatrove,
    read_indexed,
    read_lined,
    write_array,
    write_datatrove,
    write_indexed,
    write_lines_beside,
)
from tests.helpers.zstd import zstd

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.helpers.fuzzing_warm"])

SECONDS = 20  # a mutation that takes longer hangs; the slowest takes some hundred milliseconds
MEMORY = 4 << 30  # that a child may take: a length that lies asks for more

MAX_LEN = 8
ROWS = 20


# Files to damage


def _documents(kind: pa.DataType, *, labels: bool = False) -> pa.Table:
    """Make documents of 0 to 6 tokens, or of 3 for lists of fixed size, in record batches of 7."""
    lengths = [3 if pa.types.is_fixed_size_list(kind) else (5 * i) % 7 for i in range(ROWS)]
    tokens = [[(7 * i + 31 * j) % 120 for j in range(length)] for i, length in enumerate(lengths)]
    columns = {"input_ids": pa.array(tokens, kind)}
    if labels:
        masked = [[-100, *document[1:]] if document else [] for document in tokens]
        columns["labels"] = pa.array(masked, pa.list_(pa.int32()))
    return pa.table(columns)


def _ipc(table: pa.Table, *, compression: str | None = None, file: bool = False) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def _mixed() -> pa.Table:
    """Make documents beside other columns: strings, nested lists, a dictionary, and nulls in unread values."""
    others = {
        "text": pa.array([f"text {i}" for i in range(ROWS)]),
        "nested": pa.array([[[i], []] for i in range(ROWS)]),
        "source": pa.array([f"source {i % 3}" for i in range(ROWS)]).dictionary_encode(),
        "score": pa.array([None if i % 4 else i / 3 for i in range(ROWS)]),
    }
    return pa.table({**others, "input_ids": _documents(pa.large_list(pa.int64())).column(0)})


def _parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=12, **options)
    return sink.getvalue()


def _lines(*, labels: bool = False) -> bytes:
    rows = _documents(pa.list_(pa.int32()), labels=labels).to_pylist()
    return "".join(json.dumps({"id": i, "text": "é", **row}) + "\n" for i, row in enumerate(rows)).encode()


def _indexed(ending: str, sequences: int = 1) -> bytes:
    """Make one of the files of documents that consist of this many sequences."""
    rows = _documents(pa.list_(pa.int32())).column("input_ids").to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        documents = [[row, *[row[:2]] * (sequences - 1)] for row in rows]
        return write_indexed(Path(folder) / "a", documents, "int16").with_suffix(ending).read_bytes()


def _datatrove(name: str) -> bytes:
    """Make one of the files of datatrove."""
    rows = _documents(pa.list_(pa.int32())).column("input_ids").to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        write_datatrove(Path(folder) / "a.ds", rows)
        return (Path(folder) / name).read_bytes()


def _olmo(name: str) -> bytes:
    """Make one of the files of OLMo: tokens, the lines that say where documents end, or a mask."""
    rows = _documents(pa.list_(pa.int32())).column("input_ids").to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        write_lines_beside(write_array(Path(folder) / "token_ids_a.npy", rows), rows)
        write_array(Path(folder) / "labels_mask_a.npy", [[token % 3 > 0 for token in row] for row in rows], "bool")
        return (Path(folder) / name).read_bytes()


INT32, LABELS = pa.list_(pa.int32()), {"labels": True}
STATE = json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": None}).encode()

SOURCES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "stream": ("a.arrow", lambda: _ipc(_documents(INT32, **LABELS))),
    "stream-int8": ("a.arrow", lambda: _ipc(_documents(pa.large_list(pa.int8())))),
    "stream-fixed": ("a.arrow", lambda: _ipc(_documents(pa.list_(pa.uint16(), 3)))),
    "stream-mixed": ("a.arrow", lambda: _ipc(_mixed())),
    "stream-lz4": ("a.arrow", lambda: _ipc(_documents(INT32, **LABELS), compression="lz4")),
    "stream-zstd": ("a.arrow", lambda: _ipc(_mixed(), compression="zstd")),
    "file": ("a.arrow", lambda: _ipc(_documents(INT32, **LABELS), file=True)),
    "file-mixed": ("a.arrow", lambda: _ipc(_mixed(), file=True)),
    "file-zstd": ("a.arrow", lambda: _ipc(_documents(pa.large_list(pa.int64())), compression="zstd", file=True)),
    "parquet": ("a.parquet", lambda: _parquet(_documents(INT32, **LABELS))),
    "parquet-plain": (
        "a.parquet",
        lambda: _parquet(_documents(INT32), compression="none", use_dictionary=False, store_schema=False),
    ),
    "parquet-zstd": ("a.parquet", lambda: _parquet(_mixed(), compression="zstd", data_page_version="2.0")),
    "parquet-delta": (
        "a.parquet",
        lambda: _parquet(
            _documents(INT32), compression="none", use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"
        ),
    ),
    "jsonl": ("a.jsonl", lambda: _lines()),
    "jsonl-labels": ("a.jsonl", lambda: _lines(labels=True)),
    "jsonl-gz": ("a.jsonl.gz", lambda: gzip.compress(_lines(labels=True), mtime=0)),
    "jsonl-zst": ("a.jsonl.zst", lambda: zstd.compress(_lines(), options={zstd.CompressionParameter.checksum_flag: 1})),
    "idx": ("a.idx", lambda: _indexed(".idx")),
    "idx-sequences": ("a.idx", lambda: _indexed(".idx", sequences=2)),
    "idx-tokens": ("a.bin", lambda: _indexed(".bin")),
    "ds": ("a.ds", lambda: _datatrove("a.ds")),
    "ds-index": ("a.ds.index", lambda: _datatrove("a.ds.index")),
    "olmo-lines": ("token_ids_a.csv.gz", lambda: gzip.decompress(_olmo("token_ids_a.csv.gz"))),
    "olmo-lines-gz": ("token_ids_a.csv.gz", lambda: _olmo("token_ids_a.csv.gz")),
    "olmo-mask": ("labels_mask_a.npy", lambda: _olmo("labels_mask_a.npy")),
    "saved-data": ("saved/data.arrow", lambda: _ipc(_documents(INT32))),
    "saved-state": ("saved/state.json", lambda: STATE),
}
"""(file to damage, its bytes) by name; `saved/` is a folder of `save_to_disk`."""


# How it is damaged

INTERESTING = [0, 1, 2, 4, 7, 8, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63]


def mutate(whole: bytes, number: int) -> bytes:
    """Return the bytes with the damage of this number; the same number gives the same damage."""
    rng = np.random.default_rng([20, number])
    damaged = bytearray(whole)
    place, other = (int(at) for at in rng.integers(0, len(whole), 2))
    how = rng.choice(["cut", "flip", "byte", "word", "words", "drop", "double", "swap", "insert"], p=ODDS)
    size = int(rng.choice([1, 4, 8, 16, 64, 256]))
    if how == "cut":
        del damaged[place:]
    elif how == "flip":
        damaged[place] ^= 1 << int(rng.integers(8))
    elif how == "byte":
        damaged[place] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)]))
    elif how in ("word", "words"):  # lengths and offsets are little-endian and aligned
        for _ in range(1 if how == "word" else 3):
            width = int(rng.choice([2, 4, 8]))
            at = int(rng.integers(0, len(whole))) // width * width
            value = int(rng.choice(INTERESTING)) if rng.integers(3) else int(rng.integers(len(whole)))
            value = -value if rng.integers(4) == 0 else value
            damaged[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")[: len(whole) - at]
    elif how == "drop":
        del damaged[place : place + size]
    elif how == "double":
        damaged[place:place] = whole[place : place + size]
    elif how == "swap":
        damaged[place : place + size] = whole[other : other + size]
    else:
        damaged[place:place] = rng.bytes(size)
    return bytes(damaged)


ODDS = [0.1, 0.25, 0.15, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05]


def write_source(name: str, content: bytes, folder: Path) -> tuple[Path, Path]:
    """Write a source whose file has this content; return (source, file)."""
    path = folder / SOURCES[name][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == "saved":
        rest = {"data.arrow": SOURCES["saved-data"][1](), "state.json": STATE}
        for file, usual in rest.items():
            (path.parent / file).write_bytes(usual)
    if path.suffix in (".idx", ".bin"):
        for ending in (".idx", ".bin"):
            path.with_suffix(ending).write_bytes(_indexed(ending, 2 if name == "idx-sequences" else 1))
        path.write_bytes(content)
        return path.with_suffix(".idx"), path
    if path.name.startswith("a.ds"):
        for file in ("a.ds", "a.ds.index"):
            (folder / file).write_bytes(_datatrove(file))
        path.write_bytes(content)
        return folder / "a.ds", path
    if name.startswith("olmo"):
        for file in ("token_ids_a.npy", "token_ids_a.csv.gz", "labels_mask_a.npy"):
            (folder / file).write_bytes(_olmo(file))
        path.write_bytes(gzip.compress(content) if name == "olmo-lines" else content)
        return folder / "token_ids_a.npy", path
    path.write_bytes(content)
    return (path.parent if path.parent.name == "saved" else path), path


# What a plain reader finds

Documents = list[tuple[list[int], list[int] | None]]


def read_plainly(source: Path) -> Documents:
    """Read the tokens and labels of every document with only pyarrow, gzip, zstd and json; may raise anything."""
    if source.is_dir():
        state = json.loads((source / "state.json").read_bytes())
        return [d for file in state["_data_files"] for d in read_plainly(source / file["filename"])]
    if ".jsonl" in source.name:
        content = source.read_bytes()
        if source.suffix == ".gz":
            content = gzip.decompress(content)
        if source.suffix == ".zst":
            content = zstd.decompress(content)
        lines = content.decode("utf-8-sig").split("\n")
        # a tab or a form feed after an object, which is whole, does no harm
        rows = [json.loads(line.strip(" \t\r\v\f"), strict=False) for line in lines if line.strip()]
    elif source.suffix == ".parquet":
        with pq.ParquetFile(io.BytesIO(source.read_bytes())) as parquet:
            names = [name for name in ("input_ids", "labels") if name in parquet.schema_arrow.names]
            table = parquet.read(columns=names)
            assert table.num_rows == parquet.metadata.num_rows
        table.validate(full=True)
        rows = table.to_pylist()
    elif source.suffix in (".idx", ".bin"):
        rows = [{"input_ids": tokens} for tokens in read_indexed(source)]
    elif source.suffix == ".npy":
        masks = np.fromfile(source.with_name("labels_mask_a.npy"), np.uint8)
        rows = [
            {
                "input_ids": tokens,
                "labels": [token if mask else -100 for token, mask in zip(tokens, masks[start:], strict=False)],
            }
            for start, tokens in read_lined(source, len(masks))
        ]
    elif source.suffix == ".ds":
        rows = [{"input_ids": tokens} for tokens in read_datatrove(source)]
    else:
        rows = _read_ipc(source).to_pylist()
    return [(row["input_ids"], row.get("labels")) for row in rows]


def _read_ipc(path: Path) -> pa.Table:
    content = path.read_bytes()
    reader = pa.ipc.open_file(content) if content.startswith(b"ARROW1") else pa.ipc.open_stream(content)
    table = reader.read_all()
    table = table.select([name for name in ("input_ids", "labels") if name in table.column_names])
    table.validate(full=True)
    return table


def read_back(packed: Path) -> Documents:
    """Read the tokens and labels of every document from the rows, by doc_ids and doc_starts."""
    found: dict[int, list[tuple[int, list[int], list[int]]]] = {}
    for name in sorted(packed.glob("*.arrow")):
        for row in pa.ipc.open_stream(name.read_bytes()).read_all().to_pylist():
            place = 0
            for document, start, length in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                part = slice(place, place := place + length)
                if document >= 0:
                    found.setdefault(document, []).append((start, row["input_ids"][part], row["labels"][part]))
    documents = [[] for _ in range(max(found, default=-1) + 1)]
    labels = [[] for _ in documents]
    for document, parts in found.items():
        for start, tokens, marks in sorted(parts):
            assert start == len(documents[document])
            documents[document] += tokens
            labels[document] += marks
    return list(zip(documents, labels, strict=True))


def source_fault(source: Path, damaged: Path, out: Path) -> str | None:
    """Pack a source with a damaged file; return what is wrong with the outcome, or None."""
    import packer

    try:
        of_arrays = {"dtype": "uint16"} if source.suffix == ".npy" else {}
        packer.pack(source, out, max_len=MAX_LEN, shard_size=400, workers=1, sync=False, **of_arrays)
    except packer.PackerError as error:
        message = str(error)
        if "\n" in message or len(message) > 2000:
            return f"the message is no line: {message!r}"
        if out.exists():
            return f"refused, and something is left: {message}"
        named = {damaged.name, source.name, "nothing to pack"} | ({"No such file"} if source.is_dir() else set())
        return None if any(words in message for words in named) else f"the file is not named: {message}"
    faults = list(packer.verify(out, source)) + list(packer.verify(out))
    if faults:
        return f"packed, and verify finds {faults}"
    try:
        expected = read_plainly(source)
    except Exception as error:
        return f"packed, though a plain reader refuses it: {type(error).__name__}: {error}"
    found = read_back(out)
    found += [([], [])] * (len(expected) - len(found))
    for number, ((tokens, labels), (packed, marks)) in enumerate(zip(expected, found, strict=True)):
        trained = [-100 if at % MAX_LEN == 0 else label for at, label in enumerate(labels or tokens)]
        if tokens != packed or trained != marks:
            return f"document {number} is {tokens} {trained} in the source, {packed} {marks} in the rows"
    return None


# A packed dataset

PACKED = {
    "packed-shard": "data-00000-*",
    "packed-other-shard": "data-00001-*",
    "packed-manifest": "manifest.json",
    "packed-state": "state.json",
    "packed-info": "dataset_info.json",
}
"""Pattern of the file of a packed dataset to damage, by name."""


def pack_small(folder: Path) -> Path:
    """Pack a small source into `folder/packed`, in a few shards of 2 KB."""
    import packer

    source, _ = write_source("stream", SOURCES["stream"][1](), folder)
    packer.pack(
        source, folder / "packed", max_len=16, shard_size=512, add_column=["position_ids"], workers=1, sync=False
    )
    return folder / "packed"


def packed_fault(folder: Path, *, intact: bool) -> str | None:
    """Verify, load and describe a packed dataset; return what is wrong with the outcome, or None."""
    import packer
    from packer.pipeline.collect_figures import packed_figures

    def every_row() -> None:
        dataset = packer.load(folder)
        for row in dataset:
            assert row["seq_lengths"].sum() == row["input_ids"].size == 16
        for batch in packer.batches(dataset, rows=3, seed=None, tensors="numpy"):
            assert batch["input_ids"].dtype == "int64"

    messages = []
    try:
        messages += packer.verify(folder)
    except packer.PackerError as error:
        messages.append(str(error))
    if bool(messages) == intact:
        return f"verify finds {messages}"
    for use in (every_row, lambda: packed_figures(folder)):
        try:
            use()
        except packer.PackerError as error:
            messages.append(str(error))
    if bool(messages) == intact:
        return f"the loader finds {messages}"
    return next((f"the message is no line: {text!r}" for text in messages if "\n" in text or len(text) > 2000), None)


# The child


def open_target(name: str, folder: Path) -> tuple[bytes, Callable[[bytes, Path], str | None]]:
    """Return (undamaged bytes, a function that tries damaged bytes in a folder and returns a fault or None)."""
    if name in SOURCES:
        return SOURCES[name][1](), lambda content, here: source_fault(*write_source(name, content, here), here / "out")
    kind, _, what = name.partition("-")
    if kind == "packed":
        packed = pack_small(folder)
        (file,) = packed.glob(PACKED[name])
    elif kind == "kept":
        source, packed = pack_keeping(what, folder)
        file = min(packed.glob("*.arrow"))
    else:
        packed, source = make_set(folder, what)
        file = max(packed.glob("*.arrow"))
    whole = file.read_bytes()

    def attempt(content: bytes, here: Path) -> str | None:
        shutil.copytree(packed, here)
        (here / file.name).write_bytes(content)
        if kind == "packed":
            return packed_fault(here, intact=content == whole)
        fit_manifest(here)
        if kind == "kept":
            return reading_fault(here, source, with_report=zlib.crc32(content) % 16 == 0)  # it takes longest
        return writing_fault(here, source)

    return whole, attempt


def run_child(name: str, first: int, count: int, folder: Path) -> None:
    """Try mutations first..first + count - 1.

    Writes the number of the current one to `folder/at`, faults to `folder/faults`, and stderr to `folder/stderr`.
    """
    with (folder / "stderr").open("wb") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(2)
    whole, attempt = open_target(name, folder / "whole")
    fault = attempt(whole, folder / "undamaged")  # compile and import everything first
    assert fault is None, f"undamaged: {fault}"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (folder / "at").open("wb", buffering=0) as at, (folder / "faults").open("a") as faults:
        for number in range(first, first + count):
            os.pwrite(at.fileno(), number.to_bytes(8, "little"), 0)
            here = folder / str(number)  # a new folder, because older files may still be mapped
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                fault = attempt(mutate(whole, number), here)
            except BaseException:
                fault = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            if fault:
                faults.write(json.dumps([number, fault]) + "\n")
                faults.flush()
            shutil.rmtree(here)


def run(name: str, first: int, count: int, folder: Path, most: int = 20) -> list[str]:
    """Try mutations first..first + count - 1 in child processes; return at most `most` faults, one per mutation."""
    wrong: list[str] = []
    end = first + count
    while first < end and len(wrong) < most:
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            child = FORKS.Process(target=run_child, args=(name, first, end - first, Path(inside)))
            child.start()
            child.join()
            errors = (Path(inside) / "stderr").read_text()
            assert (Path(inside) / "at").exists(), errors
            for line in (Path(inside) / "faults").read_text().splitlines():
                number, fault = json.loads(line)
                wrong.append(f"{name} {number}: {fault}")
            if child.exitcode == 0:
                break
            first = int.from_bytes((Path(inside) / "at").read_bytes(), "little")
            wrong.append(f"{name} {first}: the process ended with {child.exitcode}\n{errors[-3000:]}")
            first += 1
    return wrong
