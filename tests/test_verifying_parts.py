"""Verification against a source: it finds every change of the rows, and leaves no temporary file."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.verifying import compare_opened
from packer.progress import silent
from packer.shards.reader import read_manifest
from packer.stores.local_files import temporary_folder
from packer.text.text_source import open_source
from tests.helpers.packed_rows import rows_on_disk
from tests.helpers.packings import packings, write
from tests.helpers.small import shrink
from tests.helpers.verifying import change_rows


def compared(path: Path, out: Path) -> list[str]:
    """Return the differences between the rows and the source, without checking the rows by themselves."""
    manifest = read_manifest(out)
    opened = open_source(path, manifest.options)
    try:
        return list(compare_opened(out, manifest, opened, workers=1, progress=silent))
    except PackerError as error:
        return [str(error)]


def contents(out: Path) -> list[tuple]:
    """Return the segments of all rows with their values, in the order of their documents."""
    found = []
    for row in rows_on_disk(out):
        place = 0
        for at, document in enumerate(row["doc_ids"]):
            extent = row["seq_lengths"][at]
            values = [
                each[place : place + extent] if len(each) > len(row["doc_ids"]) else each[at] for each in row.values()
            ]
            found.append((document, row["doc_starts"][at], repr(values)))
            place += extent
    return sorted(found)


def damage(draw, rows: list[dict], options: PackOptions) -> None:
    """Change a few values in the rows, without changing the lengths of columns."""
    documents = [document for row in rows for document in row["doc_ids"]]
    for _ in range(draw(st.integers(1, 3))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        name = draw(st.sampled_from(["doc_ids", "doc_ids", "doc_starts", "input_ids", "labels", *options.kept]))
        if options.align > 1 and draw(st.integers(0, 5)) == 0:
            name = "seq_tokens"
        at = draw(st.integers(0, len(row[name]) - 1))
        values = {
            "doc_ids": st.sampled_from([-1, *documents, max(documents) + draw(st.integers(1, 99))]),
            "doc_starts": st.integers(0, options.max_len),
            "seq_tokens": st.integers(0, row["seq_lengths"][min(at, len(row["seq_lengths"]) - 1)]),
            "source": st.sampled_from(["a", "b", "c", None]),
            "role": st.sampled_from(["chosen", "rejected"]),
        }
        row[name][at] = draw(values.get(name, st.integers(0, 50)))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(packings(), st.data())
def test_every_change_of_the_rows_is_found(packing, data):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        out = Path(folder) / "out"
        path = packing.write(Path(folder))
        manifest = packing.pack(path, out)
        assume(manifest is not None)
        before = contents(out)
        change_rows(out, lambda rows: damage(data.draw, rows, manifest.options))
        shrink(patched, compared_ranges=data.draw(st.sampled_from([2, 3, 1000])))
        assert bool(compared(path, out)) == (contents(out) != before)


@pytest.fixture
def small(tmp_path) -> tuple[Path, Path]:
    """A packed dataset and its source, which is decoded."""
    source = write(tmp_path / "rows.jsonl", {"input_ids": [[n % 50, n % 7, 1] for n in range(200)]})
    packer.pack(source, tmp_path / "out", max_len=16)
    return tmp_path / "out", source


def left() -> list[Path]:
    """Temporary files of this process."""
    return list(temporary_folder().glob("decoded-*"))


@pytest.mark.parametrize("ends", ["verified", "fault", "verify", "compare"])
def test_no_temporary_file_is_left_after_a_comparison_a_fault_or_an_interrupt(small, ends):
    def interrupt(reported, done, total):
        if reported == ends:
            assert bool(left()) == (ends == "compare")
            raise KeyboardInterrupt

    def change(rows):
        rows[7]["input_ids"][0] += 1

    if ends == "fault":
        change_rows(small[0], change)
        (fault,) = packer.verify(*small)
        assert "input_ids at position 0 is" in fault
    elif ends == "verified":
        assert list(packer.verify(*small)) == []
    else:
        with pytest.raises(KeyboardInterrupt):
            list(packer.verify(*small, progress=interrupt))
    assert left() == []


def test_a_full_disk_of_temporary_files_is_one_line(small, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("packer.shards.files.HashingFile.write", full)
    with pytest.raises(
        PackerError, match="No space left on device: temporary files are written there; free some space"
    ):
        packer.verify(*small)
