"""Arrow and NumPy share values: slices, every type, and no pandas."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.pack import made_documents
from tests.helpers.sources import write


def assert_no_pandas(code):
    """Run statements one by one; name the first after which pandas is there, which takes 0.1 s."""
    checked = [f"{statement}\nassert 'pandas' not in sys.modules, {statement!r}" for statement in code]
    subprocess.run([sys.executable, "-c", "\n".join(["import packer, sys", *checked])], check=True)


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", ["stream", "parquet", "jsonl", "gz"])
def test_packing_does_not_wait_for_pandas(tmp_path, kind):
    source = write(tmp_path / "source", kind, made_documents(50))
    assert_no_pandas([f"packer.pack({str(source)!r}, {str(tmp_path / 'out')!r}, max_len=64)"])


def test_lengths_and_the_demo_do_not_wait_for_pandas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("tokens\n3\n5\n")
    assert_no_pandas(
        [
            "packer.pack('lengths.csv', 'out', lengths_column='tokens', max_len=8)",
            "from packer.cli import writing_commands as demo",
            "demo.standard_library_texts = lambda: [('a.py', 'import this'), ('b.py', 'import that')]",
            "from pathlib import Path; demo.write_corpus(Path('demo'))",
        ]
    )


@pytest.mark.nightly
def test_columns_beside_the_tokens_do_not_wait_for_pandas(tmp_path, monkeypatch):
    """Masks, kept columns, groups and pairs; packed and verified."""
    monkeypatch.chdir(tmp_path)
    documents = made_documents(50)
    tokens = {"input_ids": pa.array(documents, pa.list_(pa.int32()))}
    masks = {
        "attention_mask": pa.array([[1] * len(ids) for ids in documents], pa.list_(pa.int8())),
        "assistant_masks": pa.array([[at % 2 == 0 for at in range(len(ids))] for ids in documents]),
    }
    kept = {
        "name": [str(at // 4) for at in range(50)],
        "number": [*range(50)],
        "flag": [at % 3 == 0 for at in range(50)],
        "share": [at / 3 for at in range(50)],
        "day": pa.array([None, *range(49)], pa.date32()),
    }
    sides = {
        f"{side}_{column}": pa.array([ids or [1] for ids in documents[at::2]], pa.list_(pa.int32()))
        for at, side in enumerate(("chosen", "rejected"))
        for column in ("input_ids", "labels")
    }
    for name, columns in (("masked", tokens | masks), ("kept", tokens | kept), ("pairs", sides)):
        table = pa.table(columns)
        with pa.OSFile(name + ".arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    names = [name for name in kept if name != "day"]
    lines = [
        {"input_ids": ids, **{name: kept[name][at] if at % 5 else None for name in names}}
        for at, ids in enumerate(documents)
    ]
    Path("lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_no_pandas(
        [
            f"packer.pack('lines.jsonl', 'lines', max_len=64, keep={names}, group_by='name')",
            "assert not [*packer.verify('lines', source='lines.jsonl')]",
            "packer.pack('masked.arrow', 'masked', max_len=64)",
            f"packer.pack('kept.arrow', 'kept', max_len=64, keep={[*kept]})",
            "packer.pack('kept.arrow', 'grouped', max_len=64, group_by='name', keep=['name'])",
            "packer.pack('pairs.arrow', 'pairs', max_len=256, pairs=True, long='drop')",
            "for name in ('masked', 'kept', 'pairs'): assert not [*packer.verify(name, source=name + '.arrow')]",
            "assert not [*packer.verify('grouped', source='kept.arrow')]",
        ]
    )
