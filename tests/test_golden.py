"""The format on disk: tests/golden/rows is a packed dataset of FORMAT_VERSION, byte for byte, and can be read.

A change of these bytes is a new version of the format. `python -m tests.test_golden` writes the folder anew.
"""

import shutil
from pathlib import Path

import packer
from tests.helpers.pack import made_documents, save_arrow, segments_in

GOLDEN = Path(__file__).parent / "golden" / "rows"


def pack(folder: Path) -> Path:
    source = save_arrow(folder / "source.arrow", made_documents(40, longest=30))
    packer.pack(source, folder / "rows", max_len=32, add_column=["position_ids"], shard_size="3KB", pad_id=3)
    return folder / "rows"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dataset_is_written_byte_for_byte_as_the_format_says(tmp_path):
    assert contents(pack(tmp_path)) == contents(GOLDEN)


def test_a_dataset_of_this_format_is_read():
    assert packer.verify(GOLDEN)
    documents = [list(tokens) for tokens in made_documents(40, longest=30)]
    found = list(segments_in(packer.load(GOLDEN)))
    assert sorted(document for document, *_ in found) == [number for number in range(40) if documents[number]]
    assert all(documents[document] == tokens for document, _, tokens, _ in found)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(pack(Path(name)), GOLDEN)
