"""Files that packer did not write are never replaced and never deleted."""

import shutil
from pathlib import Path

import pytest

from packer.cli import demo_command
from tests.helpers.commands import refused, succeeded
from tests.helpers.pack import hashes, made_documents, save_arrow


@pytest.fixture
def texts(monkeypatch):
    """Make the corpus of `packer demo` small."""
    texts = [(f"{number}.py", f"import this, that{number}\n" * 40) for number in range(30)]
    monkeypatch.setattr(demo_command, "standard_library_texts", lambda: iter(texts))


@pytest.fixture
def source(tmp_path) -> Path:
    return save_arrow(tmp_path / "source.arrow", made_documents(60))


def saved_model(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_text('{"of": "a user"}')


def notes(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")


@pytest.mark.parametrize("fill", [saved_model, notes])
def test_the_demo_refuses_a_folder_with_files_of_a_user(texts, tmp_path, fill):
    out = tmp_path / "mine"
    out.mkdir()
    fill(out)
    before = hashes(out)
    refused("demo", "-o", out, words=(str(out), "choose another --output"))
    assert hashes(out) == before


def test_the_demo_refuses_a_packed_dataset(texts, source, tmp_path):
    out = tmp_path / "packed"
    succeeded("pack", source, "--max-len", 64, "-o", out)
    before = hashes(out)
    refused("demo", "-o", out, words=("choose another --output",))
    assert hashes(out) == before
    succeeded("verify", out, "--source", source)


def test_the_demo_replaces_what_it_wrote_itself(texts, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for out in (tmp_path / "new", empty):
        succeeded("demo", "-o", out, "--max-len", 128)
        (out / "stdlib.arrow").write_bytes(b"damaged")
        assert "is verified" in succeeded("demo", "-o", out, "--max-len", 128)


@pytest.mark.parametrize("content", ["<!doctype html>\n<title>Mine</title>\n", "", "<meta name=generator content=x>"])
@pytest.mark.parametrize("command", ["pack", "stats"])
def test_a_report_replaces_no_page_of_a_user(source, tmp_path, command, content):
    page, out = tmp_path / "page.html", tmp_path / "out"
    page.write_text(content)
    more = ("-o", out) if command == "pack" else ()
    refused(command, source, "--max-len", 64, *more, "--report", page, words=(str(page), "not a report"))
    assert page.read_text() == content
    assert not out.exists()


def test_a_report_replaces_an_earlier_report(source, tmp_path):
    page = tmp_path / "page.html"
    for max_len in (64, 128):
        succeeded("stats", source, "--max-len", max_len, "--report", page)
        assert f"--max-len {max_len}" in page.read_text()


@pytest.mark.parametrize("manifest", ['{"name": "an app", "shards": []}', "[]", "no JSON", ""])
def test_overwrite_replaces_no_folder_whose_manifest_packer_did_not_write(source, tmp_path, manifest):
    out = tmp_path / "app"
    out.mkdir()
    (out / "manifest.json").write_text(manifest)
    (out / "data-00000-of-00001.arrow").write_bytes(b"mine")
    before = hashes(out)
    work = out / ".packer"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    for more in ((), ("--overwrite",)):
        refused("pack", source, "--max-len", 64, "-o", out, *more, words=(str(out), "another folder"))
        assert (work / "notes.txt").read_text() == "mine"
    shutil.rmtree(work)
    refused("pack", source, "--max-len", 64, "-o", out, "--overwrite", words=(str(out), "another folder"))
    assert hashes(out) == before


@pytest.mark.parametrize("record", ['{"name": "an app", "files": []}', "no JSON"])
def test_overwrite_replaces_no_folder_whose_record_packer_did_not_write(source, tmp_path, record):
    packed, out = tmp_path / "packed", tmp_path / "app"
    succeeded("pack", source, "--max-len", 64, "-o", packed)
    out.mkdir()
    (out / "_export.json").write_text(record)
    (out / "data.parquet").write_bytes(b"mine")
    before = hashes(out)
    refused("export", packed, "--to", "parquet", "-o", out, "--overwrite", words=(str(out), "choose another"))
    assert hashes(out) == before
