"""Files of a folder: each is found once, whatever links lead to it, and special files are refused."""

import os
import socket
import time

import pytest

import packer
from packer.errors import PackerError
from packer.sources.find_source import files_in
from tests.helpers.commands import run
from tests.helpers.opening import open_source
from tests.helpers.splits import refused, save, tokens_of


def names_of(source):
    return [file.name for file in open_source(source).files]


def names_of_text(source):
    return [path.name for path in files_in(source)]


def link(folder, name, target):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(target, target_is_directory=True)


# ---- links ----


def test_two_folders_that_link_to_each_other_are_read_once(tmp_path):
    save(tmp_path, ["a/x.jsonl", "b/y.jsonl"])
    link(tmp_path / "a", "b", tmp_path / "b")
    link(tmp_path / "b", "a", tmp_path / "a")
    assert names_of(tmp_path) == ["a/x.jsonl", "b/y.jsonl"]
    assert names_of(tmp_path / "a") == ["b/y.jsonl", "x.jsonl"]


def test_a_link_never_takes_the_place_of_the_folder_it_leads_to(tmp_path, caplog):
    save(tmp_path, ["b/c/x.jsonl"])
    link(tmp_path, "a", tmp_path / "b" / "c")
    with caplog.at_level("INFO", logger="packer"):
        assert names_of(tmp_path) == ["b/c/x.jsonl"]
    assert f"1 link(s) lead to folders that are read already, and are left out: {tmp_path / 'a'}" in caplog.text


def test_a_link_to_a_folder_outside_is_followed(tmp_path):
    save(tmp_path / "elsewhere", ["x.jsonl"])
    link(tmp_path / "source", "linked", tmp_path / "elsewhere")
    assert names_of(tmp_path / "source") == ["linked/x.jsonl"]


def test_sixteen_folders_that_link_to_each_other_are_searched_quickly(tmp_path):
    save(tmp_path, [f"f{i}/x.jsonl" for i in range(16)])
    for i in range(16):
        for j in range(16):
            link(tmp_path / f"f{i}", f"to{j}", tmp_path / f"f{j}")
    begun = time.monotonic()
    found = names_of(tmp_path)
    assert sorted(found) == sorted(f"f{i}/x.jsonl" for i in range(16))
    assert time.monotonic() - begun < 5


def test_a_link_that_leads_to_itself_or_nowhere_is_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing")
    message = refused(tmp_path / "loop")
    assert message == f"{tmp_path}/loop: a link that leads to no file or folder (loop); correct the link"
    assert "leads to no file or folder (nothing)" in refused(tmp_path / "gone")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").symlink_to("a.jsonl")
    assert refused(tmp_path / "d") == "a.jsonl: cannot be read: Too many levels of symbolic links"


def test_the_first_bytes_decide_how_a_file_is_read_whatever_its_name(tmp_path):
    content = (save(tmp_path, ["a.parquet"]) / "a.parquet").read_bytes()
    for name in ("a.arrow", "a.bin", "a"):
        (tmp_path / name).write_bytes(content)
        assert tokens_of(tmp_path / name) == [0]
    (tmp_path / "a.xml").write_bytes(b"<rows>")
    assert refused(tmp_path / "a.xml").endswith(
        "unknown format (it begins with b'<rows>'); supported formats are Arrow (.arrow .ipc .feather), "
        "Parquet (.parquet), JSON (.jsonl .ndjson .json, also .gz .zst), Megatron's index (.idx), "
        "datatrove's tokens (.ds), bare arrays (.npy .bin), CSV (.csv, also .gz .zst) and text (.txt, also .gz .zst)"
    )


def test_files_of_formats_that_are_not_read_are_said_where_most_are_left_out(tmp_path, caplog):
    save(tmp_path, ["README.txt"])
    for name in ("a.py", "b.rs", ".hidden"):
        (tmp_path / name).write_text("code")
    with caplog.at_level("INFO", logger="packer"):
        assert names_of_text(tmp_path) == ["README.txt"]
    assert f"2 of 3 files in {tmp_path} are left out, because no format that is read has their endings: .py, .rs" in (
        caplog.text
    )


# ---- special files ----


def special_files(folder):
    folder.mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "zero.parquet").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "socket.arrow"))
    return "pipe.jsonl", "zero.parquet", "socket.arrow"


def test_pipes_devices_and_sockets_are_refused_alone_and_in_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in special_files(tmp_path / "all"):
        folder = save(tmp_path / f"with {name}", ["a.jsonl"])
        (tmp_path / "all" / name).rename(folder / name)
        for source in (folder / name, folder):
            assert refused(source).startswith(
                f"{name}: a pipe, a device or a socket, where a file is expected that can"
            )
        done = run("pack", folder, "--max-len", 8)
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
    assert refused("/dev/zero").startswith("zero: a pipe, a device or a socket")


@pytest.mark.parametrize("name", ["data-00000-of-00001.arrow", "state.json", "dataset_dict.json", "tokenized.json"])
def test_a_pipe_in_a_saved_dataset_is_refused(tmp_path, name):
    import datasets

    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(tmp_path / "d")
    (tmp_path / "d" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "d" / name)
    assert "a socket, where a file is expected" in refused(tmp_path / "d")


def test_a_manifest_or_a_file_that_is_a_pipe_or_endless_does_not_hang(tmp_path):
    folder = save(tmp_path / "source", ["a.jsonl"])
    os.mkfifo(folder / "manifest.json")
    assert tokens_of(folder) == [0]
    (tmp_path / "rows.jsonl").symlink_to("/dev/zero")
    done = run("stats", tmp_path / "rows.jsonl", "--max-len", 8)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "rows.jsonl: a pipe, a device or a socket, where a file is expected" in done.stderr


# ---- names and permissions ----


@pytest.mark.parametrize("source", ["x" * 256 + ".jsonl", "x" * 300, "d/" + "x" * 5000])
def test_a_name_too_long_for_the_system_fails_in_one_line(tmp_path, source):
    assert refused(tmp_path / source).endswith(": cannot be read: File name too long")


def test_a_name_that_is_not_utf_8_fails_in_one_line(tmp_path):
    name = os.fsdecode(b"caf\xe9.jsonl")
    folder = save(tmp_path / "d", ["a.jsonl"])
    (folder / "a.jsonl").rename(folder / name)
    for source in (folder, folder / name):
        message = refused(source)
        message.encode()
        assert "caf\\xe9.jsonl" in message
        assert message.endswith("the name is not UTF-8; rename it")


def test_an_output_with_an_impossible_name_fails_in_one_line(tmp_path):
    source = save(tmp_path, ["a.jsonl"]) / "a.jsonl"
    (tmp_path / "loop").symlink_to("loop")
    for output in ("x" * 256, os.fsdecode(b"caf\xe9"), "loop"):
        with pytest.raises(PackerError) as caught:
            packer.pack(source, tmp_path / output, max_len=8)
        str(caught.value).encode()
    long_name = tmp_path / ("x" * 249 + ".jsonl")  # too long with -packed-8
    source.rename(long_name)
    with pytest.raises(PackerError, match="File name too long: choose a shorter name"):
        packer.pack(long_name, max_len=8)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search everything")
def test_a_folder_that_cannot_be_searched_is_named(tmp_path):
    folder = save(tmp_path / "d", ["a.jsonl", "sub/b.jsonl"])
    for mode in (0o000, 0o600, 0o300):
        (folder / "sub").chmod(mode)
        try:
            for source in (folder, folder / "sub"):
                assert refused(source).endswith(": cannot be read: Permission denied")
            if mode != 0o300:
                assert refused(folder / "sub" / "b.jsonl").endswith(": cannot be read: Permission denied")
        finally:
            (folder / "sub").chmod(0o700)
