"""Arrow and NumPy share values: slices, every type, and no pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from test_pack import made_documents
from test_sources import write

from packer.arrow import as_arrow, as_numpy

TYPES = [pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float32()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_values_are_those_of_the_slice_in_their_own_type(kind):
    array = pa.array(range(100), kind)
    for part in (array, array[7:], array[3:5], array[5:5]):
        values = as_numpy(part)
        assert values.tolist() == part.to_pylist()
        assert values.dtype == part.to_numpy().dtype
        assert as_arrow(values).equals(part)


def test_nothing_is_copied():
    values = np.arange(10)
    assert as_numpy(as_arrow(values)).ctypes.data == values.ctypes.data


@pytest.mark.parametrize("kind", ["stream", "parquet", "jsonl", "gz"])
def test_packing_does_not_wait_for_pandas(tmp_path, kind):
    source = write(tmp_path / "source", kind, made_documents(50))
    code = f"import packer, sys; packer.pack({str(source)!r}, {str(tmp_path / 'out')!r}, max_len=64)"
    code += "; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
