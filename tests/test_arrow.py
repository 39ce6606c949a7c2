"""Arrow and NumPy share values: slices, every type, and no pandas."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_pack import made_documents
from test_sources import write

from packer.arrow import as_arrow, as_numpy, as_scalar, of_one_type, strings

TYPES = [pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float32()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_values_are_those_of_the_slice_in_their_own_type(kind):
    array = pa.array(range(100), kind)
    for part in (array, array[7:], array[3:5], array[5:5]):
        values = as_numpy(part)
        assert values.tolist() == part.to_pylist()
        assert values.dtype == part.to_numpy().dtype
        assert as_arrow(values).equals(part)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 21])
def test_booleans_are_packed_into_bits_and_out_of_them(count):
    values = np.arange(count) % 3 == 1
    array = as_arrow(values)
    array.validate(full=True)
    assert array.equals(pa.array(values))
    for start in range(0, count + 1, 3):
        assert as_numpy(array[start:]).tolist() == values[start:].tolist()


@pytest.mark.parametrize("values", [np.arange(20), np.arange(20) > 5], ids=["numbers", "booleans"])
def test_some_values_may_be_null(values):
    is_valid = np.arange(20) % 3 > 0
    array = as_arrow(values, is_valid)
    array.validate(full=True)
    assert array.equals(pa.array(values, mask=~is_valid))


@pytest.mark.parametrize("kind", [*TYPES, pa.float16(), pa.float64(), pa.bool_()], ids=str)
def test_a_number_is_a_value_of_its_type(kind):
    for value in (0, 1) if pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind) else (0, 1, -100):
        assert as_scalar(value, kind).equals(pa.scalar(value, pa.int64()).cast(kind))


def test_strings_are_those_given():
    for values in (["é", "", "ab"], ["é", None, "", None, "ab"], [None], []):
        array = strings(values)
        array.validate(full=True)
        assert array.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("kind", [str, int, float, bool, type(None)])
@pytest.mark.parametrize("nulls", [False, True])
def test_values_of_one_type_are_those_that_pyarrow_makes(kind, nulls):
    values = [None if (nulls and at % 3 == 1) or kind is type(None) else kind(at - 4) for at in range(20)]
    array = of_one_type(values)
    array.validate(full=True)
    assert array.equals(pa.array(values))
    assert array.type == pa.array(values).type


def test_values_of_several_types_or_too_large_are_left_to_pyarrow():
    for values in ([1, 2.5], [1, True], ["a", 1], [[1]], [{"a": 1}], [2**63], [-(2**63) - 1], ["\ud800"]):
        assert of_one_type(values) is None
    assert of_one_type([2**63 - 1, -(2**63)]).to_pylist() == [2**63 - 1, -(2**63)]
    assert str(of_one_type([float("nan"), float("inf"), None]).to_pylist()) == "[nan, inf, None]"


def test_nothing_is_copied():
    values = np.arange(10)
    assert as_numpy(as_arrow(values)).ctypes.data == values.ctypes.data


def assert_no_pandas(code):
    """Run statements one by one; name the first after which pandas is there, which takes 0.1 s."""
    checked = [f"{statement}\nassert 'pandas' not in sys.modules, {statement!r}" for statement in code]
    subprocess.run([sys.executable, "-c", "\n".join(["import packer, sys", *checked])], check=True)


@pytest.mark.parametrize("kind", ["stream", "parquet", "jsonl", "gz"])
def test_packing_does_not_wait_for_pandas(tmp_path, kind):
    source = write(tmp_path / "source", kind, made_documents(50))
    assert_no_pandas([f"packer.pack({str(source)!r}, {str(tmp_path / 'out')!r}, max_len=64)"])


def test_columns_beside_the_tokens_do_not_wait_for_pandas(tmp_path, monkeypatch):
    """Masks, kept columns, groups and pairs; packed, verified and packed again."""
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
        f"{side}_input_ids": pa.array(documents[at::2], pa.list_(pa.int32()))
        for at, side in enumerate(("chosen", "rejected"))
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
            f"packer.pack('kept', 'again', max_len=80, keep={[*kept]})",
            "packer.pack('kept.arrow', 'apart', max_len=64, group_by='name', group_mode='apart', keep=['name'])",
            "packer.pack('pairs.arrow', 'pairs', max_len=256, pairs=True, long='drop')",
            "for name in ('masked', 'kept', 'pairs'): assert not [*packer.verify(name, source=name + '.arrow')]",
            "assert not [*packer.verify('apart', source='kept.arrow')]",
        ]
    )
