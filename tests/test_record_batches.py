"""Record batches are decoded on demand: none is held, and open sources can be pickled."""

import pickle
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import SourceError
from packer.gather import TokenColumn
from packer.sources.columns.value_column import ValueColumn
from packer.sources.documents import Columns
from packer.sources.mapped.ipc import open_ipc
from packer.sources.mapped.record_batches import MappedFile
from packer.sources.source import Source
from packer.sources.text.text_source import open_text
from packer.sources.tokenized_source import open_source
from packer.text import TextOptions
from tests.chat_templates import save_tokenizer
from tests.test_sources import DOCUMENTS, LABELS, read_whole, write, write_ipc

NAMES = ["input_ids", "labels"]


def open_batches(path: Path, extra: tuple[str, ...] = ()) -> MappedFile:
    (store,) = open_ipc(path, path.name, Columns(*NAMES, extra)).stores
    assert isinstance(store, MappedFile)
    return store


@pytest.mark.parametrize("stream", [True, False])
@given(numbers=st.sets(st.integers(0, 19)))
def test_any_selection_of_batches_is_decoded_as_written(tmp_path_factory, stream, numbers):
    path = tmp_path_factory.mktemp("any") / "rows.arrow"
    table = pa.table({"input_ids": [[n] * (n % 4) for n in range(40)], "name": [f"n{n}" for n in range(40)]})
    write_ipc(path, table, stream=stream)
    store = open_batches(path, ("name",))
    wanted = sorted(numbers)
    found = [[column.to_pylist() for column in columns] for columns in store.read(wanted, ["name", "input_ids"])]
    assert store.ends.tolist() == list(range(2, 41, 2))
    assert found == [[table[name][2 * n : 2 * n + 2].to_pylist() for name in ("name", "input_ids")] for n in wanted]


def write_dictionaries(path: Path, values: list[list[str]], **options) -> None:
    """Write a stream with one record batch per list of values, each with its own dictionary."""
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "name": kind})
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema, options=written) as writer:
        for names in values:
            batch = [pa.array([[1]] * len(names), schema.field(0).type), pa.array(names).dictionary_encode()]
            writer.write_batch(pa.record_batch(batch, schema=schema))


@pytest.mark.parametrize("deltas", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        [["a", "b"], ["b", "a", "b"], ["a", "b"]],
        [["a", "b"], ["c"], ["d", "a"], ["d"]],
        [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]],
        [[], ["a"], [], ["b", "a"], []],
    ],
    ids=["one for all", "replaced", "growing", "empty batches"],
)
def test_dictionaries_are_those_of_the_batch(tmp_path, values, deltas):
    path = tmp_path / "rows.arrow"
    write_dictionaries(path, values, emit_dictionary_deltas=deltas)
    store = open_batches(path, ("name",))
    filled = [names for names in values if names]
    for wanted in (range(len(filled)), [len(filled) - 1], [0], range(0, len(filled), 2), []):
        found = [names.to_pylist() for (names,) in store.read(wanted, ["name"])]
        assert found == [filled[number] for number in wanted]


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4), st.data())
def test_values_are_looked_up_at_any_rows(chunks, data):
    values = [value % 2**31 for chunk in chunks for value in chunk]
    rows = sorted(data.draw(st.lists(st.integers(0, len(values) - 1)))) if values else []
    column = ValueColumn.of_chunks("n", [pa.array([v % 2**31 for v in c], pa.int64()) for c in chunks], pa.int64())
    assert column.at(np.array(rows, np.int64)).to_pylist() == [values[row] for row in rows]


def test_values_are_looked_up_across_files(tmp_path):
    for name, first in (("a", 0), ("b", 5), ("c", 5)):
        write_ipc(tmp_path / f"{name}.arrow", pa.table({"input_ids": [[1]] * 5, "n": range(first, first + 5)}))
    column = open_source(tmp_path, keep=["n"]).value_columns()["n"]
    assert column.at(np.array([0, 4, 4, 5, 12])).to_pylist() == [0, 4, 4, 5, 7]
    assert pa.chunked_array(list(column.chunks)).to_pylist() == [*range(10), *range(5, 10)]


GROWTH = """
import sys
from packer.algorithms import jit
from packer.sources.tokenized_source import open_source

jit.compile_from_now_on()

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

open_source(sys.argv[1]).table(open_source(sys.argv[1]).survey().lengths())  # load and compile
before = resident()
source = open_source(sys.argv[2])
table = source.table(source.survey().lengths())
print(resident() - before)
"""


def in_a_fresh_process(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's figures")
def test_a_record_batch_takes_less_than_a_kilobyte(tmp_path):
    batches = 20_000
    table = pa.table({"input_ids": [[1, 2]] * batches, "labels": [[1, 2]] * batches})
    write_ipc(tmp_path / "one.arrow", table[:1], rows=1)
    write_ipc(tmp_path / "many.arrow", table, rows=1)
    grown = int(in_a_fresh_process(GROWTH, str(tmp_path / "one.arrow"), str(tmp_path / "many.arrow")))
    assert grown * 1024 / batches < 600  # 2,600 if batches were held; addresses take 128


def contents(source: Source) -> list:
    table = source.table(source.survey().lengths())
    extra = {name: list(map(str, column.chunks)) for name, column in table.extra.items()}
    return [read_whole(source), extra, source.describe(1), source.name]


def table_of(**columns) -> dict:
    return {"input_ids": DOCUMENTS, "labels": LABELS, "n": list(range(len(DOCUMENTS))), **columns}


@pytest.mark.parametrize("kind", ["stream", "file", "parquet", "jsonl", "gz"])
def test_a_source_reads_the_same_in_another_process(another_process, tmp_path, kind):
    source = open_source(write(tmp_path / "rows", kind, DOCUMENTS, LABELS)).spill(tmp_path / "spill")
    assert contents(source)[0] == (DOCUMENTS, LABELS)
    assert another_process(contents, source) == contents(source)


def test_pairs_with_extra_columns_read_the_same_in_another_process(another_process, tmp_path):
    steps = {"chosen": 1, "rejected": -1}
    columns = {f"{role}_{name}": DOCUMENTS[::step] for role, step in steps.items() for name in NAMES}
    write_ipc(tmp_path / "pairs.arrow", pa.table({**columns, "n": range(len(DOCUMENTS))}))
    source = open_source(tmp_path / "pairs.arrow", pairs=True, keep=["n"])
    assert len(contents(source)[0][0]) == 2 * len(DOCUMENTS)
    assert another_process(contents, source) == contents(source)


def test_masked_documents_read_the_same_in_another_process(another_process, tmp_path):
    masks = [[1] * (len(d) // 2) + [0] * (len(d) - len(d) // 2) for d in DOCUMENTS]
    write_ipc(tmp_path / "rows.arrow", pa.table({"input_ids": DOCUMENTS, "loss_mask": masks}))
    source = open_source(tmp_path / "rows.arrow").spill(tmp_path / "spill")
    assert another_process(contents, source) == contents(source)


def test_tokenized_text_reads_the_same_without_its_tokenizer(another_process, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "The fox"}\n\n{"text": "jumps over"}\n')
    options = TextOptions(tokenizer=save_tokenizer(tmp_path / "tokenizer"))
    source = open_text(tmp_path / "rows.jsonl", options).spill(tmp_path / "spill")
    assert source.describe(1) == "document 1 (rows.jsonl line 3)"
    assert another_process(contents, source) == contents(source)


@pytest.mark.parametrize("where", ["memory", "disk", "both"])
@pytest.mark.parametrize("change", ["none", "select", "shuffle"])
def test_datasets_in_memory_read_the_same_in_another_process(another_process, tmp_path, where, change):
    dataset = datasets.Dataset.from_dict(table_of())
    if where != "memory":
        dataset.save_to_disk(tmp_path / "saved", num_shards=2)
        dataset = datasets.load_from_disk(tmp_path / "saved")
    if where == "both":
        dataset = datasets.concatenate_datasets([dataset, datasets.Dataset.from_dict(table_of())])
    if change == "select":
        dataset = dataset.select(range(1, 5))
    if change == "shuffle":
        dataset = dataset.shuffle(seed=1)
    source = open_source(dataset, keep=["n"])
    assert another_process(contents, source) == contents(source)


def test_saved_datasets_read_the_same_in_another_process(another_process, tmp_path):
    datasets.Dataset.from_dict(table_of()).save_to_disk(tmp_path / "saved", num_shards=3)
    source = open_source(tmp_path / "saved", keep=["n"])
    assert another_process(contents, source) == contents(source)


def open_mapped(folder: Path, kind: str) -> Source:
    """Open a source that maps an Arrow file, directly or through `datasets`."""
    if kind == "file":
        return open_source(write(folder / "rows", "stream", DOCUMENTS))
    datasets.Dataset.from_dict(table_of()).save_to_disk(folder / "saved")
    return open_source(datasets.load_from_disk(folder / "saved"))


@pytest.mark.parametrize("kind", ["file", "dataset"])
@pytest.mark.parametrize("change", ["gone", "longer"])
def test_a_missing_or_changed_file_is_named(tmp_path, kind, change):
    pickled = pickle.dumps(open_mapped(tmp_path, kind))
    (file,) = tmp_path.rglob("*.arrow")
    size = file.stat().st_size
    if change == "gone":
        file.rename(tmp_path / "elsewhere")
        message = rf"{file.name}: cannot be read again \(No such file or directory\); it was opened as {file}"
    else:
        file.write_bytes(file.read_bytes() + b"more")
        message = f"{file.name}: changed from {size:,} to {size + 4:,} bytes since it was opened"
    with pytest.raises(SourceError, match=message):
        pickle.loads(pickled)


def test_a_pickled_table_is_no_larger_than_its_columns(tmp_path):
    dataset = datasets.Dataset.from_dict(table_of(text=["x" * 1_000_000] * len(DOCUMENTS)))
    assert len(pickle.dumps(open_source(dataset))) < 100_000
    dataset.save_to_disk(tmp_path / "saved")
    assert len(pickle.dumps(open_source(datasets.load_from_disk(tmp_path / "saved"), keep=["text"]))) < 100_000


def test_addresses_are_not_pickled():
    with pytest.raises(TypeError, match="pickle the source instead"):
        pickle.dumps(TokenColumn.from_arrow([pa.array([[1]])]))
