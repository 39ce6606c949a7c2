"""Files of the Hugging Face Hub as a source, with a stand-in for the Hub itself."""

import types

import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.stores import any_path, buckets
from tests.helpers.pack import hashes
from tests.helpers.remote_sources import write_documents, write_stream
from tests.helpers.small import forget_mirrors, shrink

COMMIT = "0123abcd"


class Files:
    """Stands in for `HfFileSystem`: one repository, in a local folder."""

    def __init__(self, folder):
        self.folder, self.revisions = folder, []

    def resolve_path(self, path, revision=None):
        kind, organisation, name, *inside = path.split("/")
        if (kind, organisation, name.partition("@")[0]) != ("datasets", "org", "name"):
            raise FileNotFoundError(path)
        place = "/".join(inside)
        return types.SimpleNamespace(
            repo_id="org/name",
            repo_type="dataset",
            revision=revision or name.partition("@")[2] or "main",
            place=place,
            unresolve=lambda: f"datasets/org/name@{revision}/{place}".rstrip("/"),
        )

    def info(self, path, revision=None):
        found = self.folder / self.resolve_path(path).place
        if not found.exists():
            raise FileNotFoundError(path)
        return {"type": "directory" if found.is_dir() else "file", "size": found.stat().st_size}

    def find(self, path, detail, revision):
        found = self.resolve_path(path, revision)
        inside = [each for each in (self.folder / found.place).rglob("*") if each.is_file()]
        root = f"datasets/org/name@{revision}"
        return {f"{root}/{each.relative_to(self.folder)}": {"size": each.stat().st_size} for each in inside}

    def open(self, path, mode, revision, cache_type):
        self.revisions.append(revision)
        return (self.folder / self.resolve_path(path).place).open(mode)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    import huggingface_hub

    files = Files(tmp_path / "hub")
    (files.folder / "data").mkdir(parents=True)
    monkeypatch.setattr(buckets, "_files", lambda: files)
    shrink(monkeypatch, chunk=1 << 12)
    forget_mirrors(monkeypatch)
    info = types.SimpleNamespace(sha=COMMIT)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *arguments, **named: info)
    yield files
    forget_mirrors(monkeypatch)


@pytest.mark.parametrize("ending", ["arrow", "jsonl"])
@pytest.mark.parametrize("place", ["/data", "@main/data", "/data/*"])
def test_a_folder_on_the_hub_is_packed_to_the_bytes_of_a_local_one(ending, place, hub, tmp_path):
    for number in range(2):
        (write_stream if ending == "arrow" else write_documents)(hub.folder / "data" / f"{number}.{ending}", number)
    packer.pack(hub.folder / "data", tmp_path / "one", max_len=64)
    packer.pack(f"hf://datasets/org/name{place}", tmp_path / "two", max_len=64)
    assert hashes(tmp_path / "two") == hashes(tmp_path / "one")
    command = ["verify", str(tmp_path / "two"), "--source", f"hf://datasets/org/name{place}"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert set(hub.revisions) == {COMMIT}


def test_paths_on_the_hub_are_those_of_folders(hub):
    (hub.folder / "data" / "a.jsonl").write_bytes(b"abc\n")
    root = any_path("hf://datasets/org/name")
    assert (root.is_dir(), root.is_file(), (root / "data" / "a.jsonl").is_file()) == (True, False, True)
    assert [each.name for each in root.iterdir()] == ["data"]
    assert (root / "data" / "a.jsonl").read_bytes() == b"abc\n"
    assert not (root / "nothing").exists()
    with pytest.raises(FileNotFoundError, match="no such object: 'hf://datasets/org/name/nothing'"):
        (root / "nothing").read_bytes()
    with pytest.raises(PackerError, match="packer does not write to the Hub"):
        (root / "x").write_bytes(b"")
    with pytest.raises(PackerError, match="no such object"):
        packer.pack("hf://datasets/org/name/nothing", "unused", max_len=64)
