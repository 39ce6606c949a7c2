"""Verification in buckets of documents: it finds the same faults as in one bucket, and leaves no temporary file."""

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.read_documents import open_sources
from packer.pipeline.verification import against_source, packed_segments
from packer.pipeline.verification.packed_segments import Buckets
from packer.pipeline.verifying import compare_opened
from packer.progress import silent
from packer.shards.reader import read_manifest
from tests.packings import Packing, packings, write
from tests.test_verifying import rewrite


def set_sizes(monkeypatch, *, bucket: int, documents: int, written: int) -> None:
    monkeypatch.setattr(packed_segments, "BUCKET", bucket)
    monkeypatch.setattr(against_source, "_CUT_TOGETHER", documents)
    monkeypatch.setattr(packed_segments, "_WRITTEN_TOGETHER", written)


def compared(packing: Packing, paths: list[Path], out: Path) -> list[str]:
    """Return the differences between the rows and the source, without checking the rows by themselves."""
    manifest = read_manifest(out)
    opened = open_sources(paths if packing.weights else paths[0], manifest.options)
    try:
        return list(compare_opened(out, manifest, opened, silent))
    except PackerError as error:
        return [str(error)]


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


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(packings(), st.data())
def test_the_faults_of_damaged_rows_do_not_depend_on_the_size_of_buckets(packing, data):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        out = Path(folder) / "out"
        paths = packing.write(Path(folder))
        manifest = packing.pack(paths, out)
        assume(manifest is not None)
        options = manifest.options
        if data.draw(st.integers(0, 9)):
            rewrite(out, lambda rows: damage(data.draw, rows, options))
        expected = compared(packing, paths, out)
        set_sizes(
            patched,
            bucket=data.draw(st.sampled_from([1, 2, 5])),
            documents=data.draw(st.sampled_from([2, 4, 100])),
            written=data.draw(st.sampled_from([1, 7, 100])),
        )
        assert compared(packing, paths, out) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), max_size=300), st.integers(0, 600), st.integers(1, 40))
def test_a_bucket_has_all_segments_of_its_documents_and_about_the_requested_size(segments, documents, size):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packed_segments, "_MOST_RANGES", 64)
        found = np.array(segments, np.int64)
        buckets = Buckets.balanced([found[:7], found[7:]], documents, size)
    numbers = buckets.of(found)
    assert np.array_equal(np.bincount(numbers, minlength=len(buckets.sizes)), buckets.sizes)
    assert np.array_equal(numbers, np.searchsorted(buckets.borders, found, side="right"))
    assert not (buckets.borders % 2).any()
    ranges = Counter(np.minimum(found >> buckets.shift, documents >> buckets.shift).tolist())
    assert buckets.sizes.max() < size + max(ranges.values(), default=1)


@pytest.fixture
def small(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A packed dataset of many buckets, and its source."""
    set_sizes(monkeypatch, bucket=10, documents=100, written=30)
    source = write(tmp_path / "rows.arrow", {"input_ids": [[n % 50, n % 7, 1] for n in range(200)]})
    packer.pack(source, tmp_path / "out", max_len=16)
    return tmp_path / "out", source


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> list:
    """Temporary files that are opened; none of them may have a name in its folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    files, make = [], tempfile.TemporaryFile

    def noted(**arguments):
        files.append(make(**arguments))
        assert list(folder.iterdir()) == []
        return files[-1]

    monkeypatch.setattr(packed_segments, "TemporaryFile", noted)
    return files


def test_the_temporary_file_is_closed_after_a_comparison(small, temporary):
    assert list(packer.verify(*small)) == []
    (file,) = temporary
    assert file.closed


def test_the_temporary_file_is_closed_after_a_fault(small, temporary):
    def change(rows):
        rows[7]["input_ids"][0] += 1

    rewrite(small[0], change)
    (fault,) = packer.verify(*small)
    assert "input_ids at position 0 is" in fault
    assert temporary[0].closed


@pytest.mark.parametrize("stage", ["verify", "compare"])
def test_no_temporary_file_is_open_after_an_interrupt(small, temporary, stage):
    def interrupt(reported, done, total):
        if reported == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(packer.verify(*small, progress=interrupt))
    assert len(temporary) == (stage == "compare")
    assert all(file.closed for file in temporary)


def test_few_segments_need_no_temporary_file(small, temporary, monkeypatch):
    monkeypatch.setattr(packed_segments, "BUCKET", 1000)
    assert list(packer.verify(*small)) == []
    assert temporary == []


def test_long_kept_values_make_buckets_smaller(tmp_path, monkeypatch, temporary):
    monkeypatch.setattr(packed_segments, "_KEPT_BYTES", 2000)
    columns = {"input_ids": [[n, 1] for n in range(200)], "source": [f"{n:050d}" for n in range(200)]}
    source = write(tmp_path / "rows.arrow", columns)
    packer.pack(source, tmp_path / "out", max_len=16, keep=["source"])
    assert list(packer.verify(tmp_path / "out", source)) == []
    assert len(temporary) == 1


@pytest.mark.parametrize(("full", "reason"), [(True, "No space left on device"), (False, "No such file or directory")])
def test_a_full_disk_for_the_temporary_file_is_reported_in_one_line(small, tmp_path, monkeypatch, full, reason):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    if full:
        monkeypatch.setattr(packed_segments, "TemporaryFile", partial(Path("/dev/full").open, "wb"))
    with pytest.raises(PackerError) as error:
        list(packer.verify(*small))
    assert str(error.value).startswith(f"{tmp_path / 'missing'}: {reason}: a comparison of 200 segments")
    assert str(error.value).endswith("free some space, or set TMPDIR to another folder")
