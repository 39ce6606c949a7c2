"""Compare packed datasets with their sources, for random sources and options."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings

import packer
from tests.helpers.effort import FUZZ
from tests.helpers.packings import packings, write


@settings(deadline=None, max_examples=50 * FUZZ)
@given(packings())
def test_every_packed_dataset_agrees_with_its_source(packing):
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        path = packing.write(Path(folder))
        assume(packing.pack(path, out) is not None)
        assert packing.verify(path, out) == []


@pytest.mark.parametrize("lengths", [[40, 100], [100, 100, 3], [65], [64, 200, 64]], ids=str)
def test_truncated_documents_cut_at_the_end_of_a_row_are_verified(tmp_path, lengths):
    source = write(tmp_path / "rows.arrow", {"input_ids": [list(range(length)) for length in lengths]})
    packer.pack(source, tmp_path / "out", max_len=64, algorithm="wrapped", long="truncate")
    assert list(packer.verify(tmp_path / "out", source)) == []
