"""Paths in object storage: like local ones, whatever the store and the network do."""

import os
import pickle
import random
import re
import subprocess
import sys

import pytest

from packer.errors import PackerError, StoreError
from packer.stores import RemotePath, any_path, is_remote
from tests.helpers.small import shrink

CONTENT = random.Random(1).randbytes(20_000_000)


@pytest.fixture
def quick(monkeypatch):
    """Tries that follow each other at once."""
    shrink(monkeypatch, first_pause=0.01)


def test_addresses_are_told_from_local_paths():
    assert all(map(is_remote, ("s3://bucket/key", RemotePath.of("gs://bucket"))))
    assert not any(map(is_remote, ("s3:/bucket", "bucket/s3://", 3)))
    assert str(any_path("s3://bucket/a/b/")) == "s3://bucket/a/b"
    for address in ("s3://", "s3:///key", "ftp://host/file", "bucket/key"):
        with pytest.raises(PackerError, match="is not an address in object storage"):
            RemotePath.of(address)
    with pytest.raises(TypeError):
        os.fspath(RemotePath.of("s3://bucket/key"))


def test_parts_of_paths_are_those_of_pathlib():
    path = RemotePath.of("s3://bucket/a/b.tar.gz")
    assert (path.name, path.suffix, str(path.parent)) == ("b.tar.gz", ".gz", "s3://bucket/a")
    assert path.with_suffix(".json").name == "b.tar.json"
    assert pickle.loads(pickle.dumps(path)) == path


def test_objects_are_written_read_listed_and_removed(bucket, tmp_path):
    path = bucket / "folder" / "data.bin"
    assert (path.exists(), bucket.is_dir()) == (False, False)
    path.write_bytes(CONTENT)
    assert (path.is_file(), path.is_dir(), path.parent.is_file(), path.parent.is_dir()) == (True, False, False, True)
    assert path.stat().st_size == len(CONTENT)
    assert path.stat().etag
    assert path.read_bytes() == CONTENT
    assert bytes(path.read_range(5, 10)) == CONTENT[5:15]
    assert bytes(path.read_range(9, 0)) == b""
    path.download(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    (bucket / "folder" / "large").upload(tmp_path / "copy")
    assert (bucket / "folder" / "large").read_bytes() == CONTENT
    (bucket / "folder" / "b" / "c").write_bytes(b"")
    assert [each.name for each in (bucket / "folder").iterdir()] == ["b", "data.bin", "large"]
    assert [str(each).removeprefix(f"{bucket}/") for each in bucket.files()] == [
        "folder/b/c",
        "folder/data.bin",
        "folder/large",
    ]
    path.unlink()
    path.unlink()  # again
    assert not path.is_file()
    (bucket / "folder").remove_all()
    assert bucket.files() == []


def test_an_object_is_put_once_if_absent(bucket):
    path = bucket / "note"
    path.write_bytes(b"first", if_absent=True)
    with pytest.raises(FileExistsError):
        path.write_bytes(b"second", if_absent=True)
    assert path.read_text() == "first"


def test_files_are_read_at_any_place(bucket):
    path = bucket / "data.bin"
    path.write_bytes(CONTENT)
    chance = random.Random(2)
    with path.open("rb") as file:
        for _ in range(20):
            start, length = chance.randrange(len(CONTENT) + 10), chance.choice([0, 1, 1000, 3_000_000])
            file.seek(start)
            assert file.read(length) == CONTENT[start : start + length]
        file.seek(0)
        assert b"".join(iter(lambda: file.read(1 << 16), b"")) == CONTENT


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("faults", [{"status": 503, "every": 2}, {"cut": True, "every": 2}], ids=["503", "cut"])
def test_every_second_request_may_fail(bucket, store_server, quick, tmp_path, faults):
    path = bucket / "data.bin"
    store_server.faults(**faults)
    path.write_bytes(CONTENT)
    (tmp_path / "file").write_bytes(CONTENT)
    (bucket / "large").upload(tmp_path / "file")
    (bucket / "absent").write_bytes(CONTENT, if_absent=True)
    for each in (path, bucket / "large", bucket / "absent"):
        assert each.read_bytes() == CONTENT
        each.download(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == CONTENT
    assert len(bucket.files()) == 3


def test_a_store_that_always_fails_is_one_error(bucket, store_server, quick):
    store_server.faults(status=503)
    with pytest.raises(
        StoreError, match=r"s3://bucket-\d+/x: the store cannot be used \(.*(SlowDown|503).*, tried 4 times\)"
    ):
        (bucket / "x").write_bytes(b"")


def test_credentials_that_have_ended_are_told_at_once(bucket, store_server):
    store_server.faults(status=400)
    with pytest.raises(StoreError, match=r"ExpiredToken: The provided token has expired"):
        (bucket / "x").write_bytes(b"")
    with pytest.raises(StoreError, match=r"/x: the store cannot be used \(400 Bad Request: have the credentials exp"):
        (bucket / "x").stat()  # by HEAD, whose answers have no body to say so


def test_errors_are_those_of_local_files(bucket, store_server):
    for read in (RemotePath.read_bytes, RemotePath.stat):
        with pytest.raises(FileNotFoundError, match="no such object: 's3://"):
            read(bucket / "missing")
    store_server.faults(status=403)
    for read in (RemotePath.read_bytes, RemotePath.stat, RemotePath.files):
        with pytest.raises(PermissionError, match="access denied"):
            read(bucket / "x")


def test_a_server_that_is_gone_is_one_error(bucket, quick, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match="tried 4 times"):
        (RemotePath.of("s3://never-seen") / "x").read_bytes()


def test_without_obstore_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    remedy = 'needs the package obstore: install packer with its extra "store", in a checkout by pip install ".[store]"'
    with pytest.raises(PackerError, match=re.escape(f"s3://bucket/x {remedy}")):
        (RemotePath.of("s3://bucket") / "x").stat()


FORKED = """
import os, sys
from packer.stores import RemotePath
path = RemotePath.of(sys.argv[1])
if "first" in sys.argv:
    path.write_bytes(b"content")
child = os.fork()
try:
    print(path.read_text() if child == 0 else "", end="", flush=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_process_may_use_a_store_only_if_the_one_before_it_did_not(bucket):
    """Otherwise its requests would wait forever."""

    def told(*arguments):
        words = [sys.executable, "-c", FORKED, str(bucket / "x"), *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout

    (bucket / "x").write_bytes(b"content")
    assert told() == "content"
    assert told("first") == (
        f"PackerError: {bucket}: this process was forked from one that has used object storage, and cannot use it: "
        'start processes by spawning them, as with multiprocessing.set_start_method("spawn")\n'
    )
