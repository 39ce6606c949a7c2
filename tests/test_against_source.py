"""Packed datasets compared with their sources: whatever was packed is found as it was."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings

import packer
from tests.packings import packings, write


@settings(deadline=None, max_examples=200)
@given(packings())
def test_whatever_was_packed_is_verified(packing):
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        paths = packing.write(Path(folder))
        assume(packing.pack(paths, out) is not None)
        assert packing.verify(paths, out) == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [[40, 100], [100, 100, 3], [65], [64, 200, 64]], ids=str)
def test_truncated_documents_may_be_cut_where_a_row_ends(tmp_path, lengths, side):
    source = write(tmp_path / "rows.arrow", {"input_ids": [list(range(length)) for length in lengths]})
    packer.pack(source, tmp_path / "out", max_len=64, algorithm="wrapped", long="truncate", truncate_side=side)
    assert list(packer.verify(tmp_path / "out", source)) == []
