"""The format is written and read unchanged: each golden folder is a packed dataset."""

import pytest

import packer
from tests.helpers.golden_folders import is_golden
from tests.helpers.pack import made_documents, save_arrow, segments_in


@pytest.mark.parametrize("name", ["bfd", "drawn", "index"])
def test_the_format_is_written_and_read_unchanged(tmp_path, name):
    source = save_arrow(tmp_path / "source.arrow", made_documents(40, longest=30))
    options = {
        "max_len": 32,
        "algorithm": "bfd" if name == "bfd" else "auto",
        "add_column": ["position_ids"],
        "shard_size": "3KB",
        "pad_id": 3,
    }
    options["index_only"] = name == "index"
    tokens = {"source": source} if options["index_only"] else {}
    packer.pack(source, tmp_path / "out", **options)
    golden = is_golden(tmp_path / "out", name)
    assert packer.verify(golden, source)
    assert sorted(segments_in(packer.load(golden, **tokens))) == sorted(
        segments_in(packer.load(tmp_path / "out", **tokens))
    )
