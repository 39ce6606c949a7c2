"""Packing into object storage: the bytes of a local pack, whoever writes them and whatever goes wrong."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import packer
from packer.engines.ranks import Heartbeats
from packer.errors import PackerError
from packer.output.unfinished_output import Output
from packer.shards.files import HashingFile
from packer.shards.manifest import is_packed
from packer.stores import RemotePath
from packer.stores.local_files import temporary_folder
from packer.stores.store import store_at
from tests.helpers.cli import ROOT
from tests.helpers.commands import run
from tests.helpers.kills import Killed, kill, named
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.ranks import in_threads, run_ranks
from tests.helpers.small import shrink

OPTIONS = {"max_len": 64, "shard_size": "12KB", "algorithm": "mixed"}


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    shrink(monkeypatch, heartbeat=0.05, first_pause=0.01)


@pytest.fixture
def source(tmp_path):
    """Three files that must be decoded."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for number in range(2):
        lines = [json.dumps({"input_ids": tokens}) for tokens in made_documents(75, seed=number)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def expected(source, tmp_path):
    """Hashes of what a local pack makes of it."""
    packer.pack(source, tmp_path / "expected", **OPTIONS)
    return hashes(tmp_path / "expected")


def test_a_shard_takes_two_writes_and_one_read(bucket, tmp_path, store_server, monkeypatch):
    shrink(monkeypatch, heartbeat=60)
    source = save_arrow(tmp_path / "rows.arrow", made_documents(900))
    store_server.faults()
    manifest = packer.pack(source, str(bucket / "set"), workers=2, **{**OPTIONS, "algorithm": "sequential"})
    counted, shards = store_server.faults(), len(manifest.shards)
    assert shards > 20
    assert 2 * shards < counted["PUT"] < 2 * shards + 15
    assert shards < counted["GET"] < shards + 15
    assert counted["HEAD"] < 15


def test_every_second_request_may_fail(bucket, tmp_path, store_server):
    source = save_arrow(tmp_path / "rows.arrow", made_documents(100))
    packer.pack(source, tmp_path / "expected", **OPTIONS)
    store_server.faults(status=503, every=2)
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    store_server.faults()
    assert hashes(bucket / "set") == hashes(tmp_path / "expected")


@pytest.mark.nightly
@pytest.mark.parametrize("faults", [{"cut": True, "every": 3}, {"seconds": 0.02}], ids=["cut", "slow"])
def test_a_store_that_cuts_answers_or_is_slow_changes_nothing(source, bucket, expected, store_server, faults):
    """Decoded streams, checkpoints and entries are read back from the store."""
    store_server.faults(**faults)
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    store_server.faults()
    assert hashes(bucket / "set") == expected


def test_ranks_that_a_slow_store_makes_look_dead_do_no_harm(source, bucket, expected, store_server):
    store_server.faults(seconds=0.3, every=15)
    results = run_ranks(source, str(bucket / "set"), 2, options=OPTIONS, timeout=0.2)
    store_server.faults()
    assert results[0] == results[1]
    assert hashes(bucket / "set") == expected


def test_two_processes_that_know_nothing_of_each_other_do_no_harm_and_are_told(source, bucket, expected, caplog):
    results = in_threads(*2 * [partial(packer.pack, source, bucket / "set", **OPTIONS)])
    assert results[0] == results[1]
    assert hashes(bucket / "set") == expected
    assert any("another process works on the same output and does the same work" in line for line in caplog.messages)


def refusal(*arguments, **options):
    with pytest.raises(PackerError) as told:
        packer.pack(*arguments, **{**OPTIONS, **options})
    assert "\n" not in str(told.value)
    return str(told.value)


def begin(source, out, monkeypatch):
    """Leave an unfinished pack behind."""
    with monkeypatch.context() as struck:
        kill(struck, "/data-00001", after=True)
        with pytest.raises(Killed):
            packer.pack(source, str(out), **OPTIONS)


INSTANTS = {
    "after the request": ("request.json$", True, False),
    "between a decoded stream and its checkpoint": (r"spill/.*-00000\.json$", False, False),
    "before the mark of all streams": (r"\.unified$", False, False),
    "before a checkpoint of the plan": ("checkpoints/.*/3$", False, False),
    "after a checkpoint of the plan": ("checkpoints/.*/3$", True, False),
    "before an entry": ("checkpoints/committed/5$", False, True),
    "between an entry and its shard": (r"data-00005-.*\.arrow$", False, True),
    "after a shard": (r"data-00005-.*\.arrow$", True, True),
    "before the manifest": ("manifest.json$", False, True),
    "after the manifest": ("manifest.json$", True, True),
}


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_killed_pack_is_resumed_on_another_machine(source, bucket, tmp_path, monkeypatch, instant):
    shrink(monkeypatch, partition_tokens=1)  # each shard is a partition, so that plans have several checkpoints
    options, out, named_again = {**OPTIONS, "shard_size": "6KB", "workers": 1}, bucket / "set", []
    packer.pack(source, tmp_path / "other", **options)
    name, after, has_shards = INSTANTS[instant]
    with monkeypatch.context() as striking:
        kill(striking, name, after=after)
        with pytest.raises(Killed):
            packer.pack(source, out, **options)
    assert is_packed(out) == (instant == "after the manifest")
    there = {path.name for path in out.iterdir() if path.name.startswith("data-")}
    assert bool(there) == has_shards
    with monkeypatch.context() as watching:
        watching.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=tmp_path))
        named(watching, lambda target, rename: (named_again.append(target), rename())[1])
        packer.pack(source, out, **options)
    planned = [target for target in named_again if "/checkpoints/" in target and "/committed/" not in target]
    assert bool(planned) == (not has_shards)  # nothing is planned again
    assert there.isdisjoint(target.rpartition("/")[2] for target in named_again)
    assert hashes(out) == hashes(tmp_path / "other")


def test_an_unfinished_pack_of_another_request_is_refused_or_replaced(source, bucket, expected, monkeypatch):
    out = bucket / "set"
    begin(source, out, monkeypatch)
    assert refusal(source, str(out), seed=5) == (
        f"{out} is an unfinished pack with seed 0, not 5: repeat that command to finish it, or start afresh with "
        "overwrite"
    )
    other = packer.pack(source, str(out), **{**OPTIONS, "seed": 5}, overwrite=True)
    assert other.options.seed == 5
    assert not (out / ".packer").exists()
    assert not list(packer.verify(str(out)))


def test_a_pack_that_shows_heartbeats_is_not_replaced(source, bucket, monkeypatch):
    out = bucket / "set"
    shrink(monkeypatch, heartbeat=0.4)
    begin(source, out, monkeypatch)
    signs = Heartbeats(store=store_at(out), patience=9)
    with signs.shown(3, lambda: False):
        assert refusal(source, str(out), seed=5, overwrite=True) == (
            f"{out} is being written by another packer: wait for it, or choose another output"
        )


def test_a_dataset_that_is_finished_while_heartbeats_are_looked_for_is_not_removed(
    source, bucket, expected, monkeypatch
):
    out, any_changes = bucket / "set", Heartbeats.any_changes
    begin(source, out, monkeypatch)

    def finishing(heartbeats):
        packer.pack(source, str(out), **OPTIONS)
        return any_changes(heartbeats)

    monkeypatch.setattr(Heartbeats, "any_changes", finishing)
    assert refusal(source, str(out), seed=5, overwrite=True) == (
        f"{out} was finished by another packer just now: repeat the command to compare"
    )
    assert hashes(out) == expected


def test_small_files_of_another_request_are_not_replaced(source, bucket, tmp_path, monkeypatch):
    """A process that was taken for dead when it was about to finish comes back after another command has finished."""
    out, check, begun = bucket / "set", Output.check_request, []
    options = {**OPTIONS, "max_len": 32, "shard_size": "6KB"}  # state.json names other shards
    expected = packer.pack(source, tmp_path / "expected", **options)
    shards = packer.pack(source, tmp_path / "first", **OPTIONS).shards

    def sleeping(self):
        check(self)
        written = all((out / shard.file).is_file() for shard in shards)
        if not begun and written and self.request.count(b'"max_len": 64'):
            begun.append(True)
            self.clear()
            begun.append(packer.pack(source, str(out), **options))

    monkeypatch.setattr(Output, "check_request", sleeping)
    told = refusal(source, str(out), workers=1)
    removed = f"{out} was finished, removed or started again by another packer"
    assert told == f"{removed}: repeat the command, or choose another output"
    assert begun == [True, expected]
    assert hashes(out) == hashes(tmp_path / "expected")
    assert not list(packer.verify(str(out)))


def test_what_a_process_of_another_request_still_writes_is_never_mixed_in(source, bucket, tmp_path, monkeypatch):
    """A process that was taken for dead comes back after another command has begun anew."""
    out, options, commit, begun = bucket / "set", {**OPTIONS, "seed": 5}, Output.commit, []
    expected = packer.pack(source, tmp_path / "expected", **options)

    def sleeping(self, file, entry):
        if not begun:
            begun.append(True)
            (
                out / ".packer" / "request.json"
            ).unlink()  # what was written for it may appear at any time, so it stays here
            begun.append(packer.pack(source, str(out), **options))
        commit(self, file, entry)

    monkeypatch.setattr(Output, "commit", sleeping)
    told = refusal(source, str(out), workers=1)
    removed = f"{out} was finished, removed or started again by another packer"
    assert told == f"{removed}: repeat the command, or choose another output"
    assert begun == [True, expected]
    (out / ".packer").remove_all()
    assert hashes(out) == hashes(tmp_path / "expected")


def test_a_complete_dataset_is_found_and_never_replaced(source, bucket, expected, monkeypatch):
    out = bucket / "set"
    packer.pack(source, str(out), **OPTIONS)
    (out / ".packer" / "ranks" / "1").write_bytes(b"a sign of one that came late")
    packer.pack(source, str(out), **OPTIONS)
    assert hashes(out) == expected
    assert refusal(source, str(out), seed=5) == (
        f"{out} is complete, packed with seed 0, not 5: choose another output, or remove it first "
        f"(`aws s3 rm --recursive {out}/`)"
    )
    assert refusal(source, str(out), overwrite=True) == (
        f"{out} is complete, and nothing in object storage is replaced in one step, so readers would meet a "
        f"mixture of both: choose another output, or remove it first (`aws s3 rm --recursive {out}/`)"
    )
    assert hashes(out) == expected


def test_a_folder_that_a_console_made_is_empty(source, bucket, expected, store_server):
    """Consoles show a folder by an empty object whose name ends in a slash."""
    store_server.put(bucket.bucket, "out/")
    packer.pack(source, str(bucket / "out"), **OPTIONS)
    assert hashes(bucket / "out") == expected


def test_what_is_no_dataset_is_left_alone(source, bucket):
    (bucket / "set" / "notes.txt").write_bytes(b"mine")
    assert refusal(source, str(bucket / "set")) == (
        f"{bucket}/set exists and is not a packed dataset: choose another output"
    )
    assert len(bucket.files()) == 1


def test_a_full_disk_for_temporary_files_is_one_line_and_the_pack_resumes(source, bucket, expected, monkeypatch):
    write = HashingFile.write

    def fails(self, data):
        if self.bytes > 4000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    with monkeypatch.context() as full:
        full.setattr(HashingFile, "write", fails)
        told = refusal(source, str(bucket / "set"))
    assert told == (
        f"{tempfile.gettempdir()}: No space left on device: temporary files are written there; "
        "free some space, or name another folder with TMPDIR, and repeat the same command"
    )
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    assert hashes(bucket / "set") == expected


ENDED = {
    "ExpiredToken: The provided token has expired.": (400, ["GET", "PUT"]),
    "400 Bad Request: have the credentials expired?": (400, ["HEAD"]),  # answered without a body
    "access denied (": (403, ["GET", "PUT"]),
    "access denied (403 Forbidden)": (403, ["HEAD"]),
}


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("told_as", ENDED)
def test_credentials_that_end_in_the_middle_are_one_line_and_the_pack_resumes(
    source, bucket, expected, store_server, told_as
):
    status, methods = ENDED[told_as]
    store_server.faults(status=status, after=30 if "PUT" in methods else 4, methods=methods)
    told = refusal(source, str(bucket / "set"))
    store_server.faults()
    assert told.startswith(f"{bucket}/set/")
    assert told_as in told
    assert told.endswith("repeat the same command: it resumes where it stopped") or "that is fixed: it resumes" in told
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    assert hashes(bucket / "set") == expected


def test_a_bucket_that_is_missing_is_one_line(source, bucket):
    told = refusal(source, "s3://no-such-bucket/set")
    assert told == ("s3://no-such-bucket: there is no such bucket: create it, or check the name and AWS_ENDPOINT_URL")


def test_a_store_that_cannot_be_reached_is_one_line_with_its_address(source, tmp_path, monkeypatch):
    """It does not say that anything resumes: nothing has begun."""
    shrink(monkeypatch, first_pause=0.01, retries=0)
    address = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in address.items():
        monkeypatch.setenv(name, value)
    why = (
        "the store cannot be used (nothing answers at http://127.0.0.1:9: check AWS_ENDPOINT_URL and the network, "
        "tried 4 times)"
    )
    for command, place in (
        (("pack", source, "-o", "s3://unreachable/set"), "s3://unreachable/set/manifest.json"),
        (("pack", "s3://unreachable/a.parquet", "-o", tmp_path / "out"), "s3://unreachable/a.parquet"),
        (("stats", "s3://unreachable/set"), "s3://unreachable/set/manifest.json"),
    ):
        done = run(*command, "--max-len", 64)
        assert (done.exit_code, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.removesuffix(": repeat the same command when that is fixed") == f"packer: {place}: {why}"


def test_a_machine_without_credentials_says_which_to_set(monkeypatch, tmp_path):
    shrink(monkeypatch, first_pause=0.01, retries=0)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    told = refusal("s3://without-credentials/a.parquet", str(tmp_path / "out"))
    assert "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE" in told


def test_addresses_are_taken_and_shown_by_the_command(source, bucket, packed, tmp_path):
    out = f"{bucket}/set"
    done = run("pack", source, "-o", out, "--max-len", 64, "--no-sync")
    assert done.output.endswith(f"Written to {out}\n")
    again = run("pack", source, "-o", out, "--max-len", 64)
    assert f"{out} is complete, packed with the same options from the same source: nothing to do" in again.output
    assert run("verify", out, "--source", source).output.startswith(f"{out} is verified: hashes, structure and every")
    assert run("stats", out, "--report", tmp_path / "report.html").exit_code == 0
    assert "<h1>" in (tmp_path / "report.html").read_text()
    for words, message in (
        (("tokenize", source, "-o", f"{out}-x", "--tokenizer", "x"), "packer tokenize writes to local folders"),
        (("export", packed, "-o", f"{out}-x", "--to", "parquet"), "packer export writes to local folders"),
        (("stats", source, "--report", f"{out}-x"), "name a local file"),
    ):
        refused = run(*words)
        assert refused.exit_code in (1, 2)
        assert len(refused.output.splitlines()) == 1
        assert message in refused.output


def test_faults_of_a_stored_dataset_are_found(source, bucket, expected, tmp_path):
    out = bucket / "set"
    shards = packer.pack(source, str(out), **OPTIONS).shards
    assert list(packer.verify(str(out), workers=2)) == []
    names = [shard.file for shard in shards]
    second, third, last = (out / names[number] for number in (1, 2, -1))
    unlisted = names[0].replace("data-00000", "data-00009")
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(bytes(content))
    third.unlink()
    last.write_bytes(last.read_bytes()[:-1])
    (out / unlisted).write_bytes(b"")
    (out / "state.json").unlink()
    assert list(packer.verify(str(out))) == [
        "state.json is missing",
        f"{unlisted} is not listed in the manifest",
        f"{second.name} does not match its hash: it was changed after packing",
        f"{third} is missing, but listed in the manifest: changed after packing; restore it, or pack again to another "
        "folder",
        f"{last} has {len(last.read_bytes()):,} bytes, the manifest says {len(last.read_bytes()) + 1:,}: changed after "
        "packing; restore it, or pack again to another folder",
    ]
    assert [path.name for path in temporary_folder().iterdir() if "data" in path.name] == []


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://", "s3:// is not an address in object"),
        ("s3://bucket/a//out", "s3://bucket/a//out: its path has an empty part (//), another name in a bucket"),
        ("ftp://x", "ftp://x is neither a local path nor an address"),
    ],
)
def test_wrong_addresses_are_refused(source, out, message):
    refused = run("pack", source, "-o", out, "--max-len", 64)
    assert refused.exit_code == 2
    assert message in refused.output
    with pytest.raises(
        PackerError, match=r"not an address in object storage|an empty part|packer writes to folders, s3://"
    ):
        packer.pack(source, out, **OPTIONS)


def test_a_store_that_fails_is_no_fault_of_the_dataset(source, bucket, store_server):
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    store_server.faults(status=403, after=8)
    with pytest.raises(PackerError, match="access denied"):
        list(packer.verify(str(bucket / "set")))


def test_processes_that_were_killed_leave_no_temporary_files_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = "from packer.stores.local_files import temporary_folder as f; print(f(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", killed],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    left = Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()
    (left / "data").touch()
    for name in ("packer-work", left.name[:-1]):  # of somebody else
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    folder = temporary_folder()
    assert folder.parent == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "packer-work", left.name[:-1]}


# Processes, clocks, disks and stores that fail

COMMAND = [sys.executable, "-m", "packer", "pack", "--max-len", "64", "--shard-size", "12KB", "--algorithm", "mixed"]


@pytest.fixture
def uploads(monkeypatch):
    """Names of the objects that are uploaded, in turn."""
    names, upload = [], RemotePath.upload
    monkeypatch.setattr(RemotePath, "upload", lambda self, file: (names.append(self.name), upload(self, file)))
    return names


def test_two_ranks_may_write_the_same_shard_at_the_same_time(source, bucket, expected, uploads, monkeypatch):
    """Signs of rank 0 do not arrive any more, so rank 1 does its tasks, while rank 0 still does them, too."""
    both, met, commit, write = threading.Barrier(2), set(), Output.commit, Heartbeats._write

    def silent(self, word):
        if self._rank == 1 or not word.isdecimal() or word == "0":
            write(self, word)

    def together(self, task, written):
        if task == 0 and task not in met:
            both.wait(timeout=60)
            met.add(task)
        commit(self, task, written)

    monkeypatch.setattr(Heartbeats, "_write", silent)
    monkeypatch.setattr(Output, "commit", together)
    results = run_ranks(source, str(bucket / "set"), 2, options=OPTIONS, timeout=0.5)
    assert results[0] == results[1]
    assert uploads.count(results[0].shards[0].file) == 2
    assert hashes(bucket / "set") == expected


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("clock", [-3600, 3600])
def test_clocks_that_are_off_by_an_hour_do_not_matter(source, bucket, expected, store_server, uploads, clock):
    out = bucket / "set"
    store_server.faults(clock=clock, seconds=0.1, methods=["PUT"], contains="/data-")
    results = run_ranks(source, str(out), 2, options=OPTIONS)
    assert results[0] == results[1]
    assert len(uploads) == len(set(uploads))  # nobody was taken for dead
    assert hashes(out) == expected
    run_ranks(source, str(bucket / "some"), 3, only=[1], options=OPTIONS, timeout=0.4)  # and nobody for alive
    assert hashes(bucket / "some") == expected
    text = (source / "0.jsonl").read_text()
    at = text.index("[") + 1  # the first token, which keeps its number of digits
    (source / "0.jsonl").write_text(f"{text[:at]}{9 if text[at] != '9' else 8}{text[at + 1 :]}")
    assert "packed from a source that has changed since" in refusal(source, str(out))


def test_a_clock_that_the_store_does_not_accept_is_one_line(source, bucket, store_server):
    store_server.faults(status=403, code="RequestTimeTooSkewed", methods=["GET", "PUT", "DELETE"])
    told = refusal(source, str(bucket / "set"))
    assert "access denied (RequestTimeTooSkewed: The difference between the request time and the current" in told
    assert told.endswith("): set the clock of this machine, and repeat the same command: it resumes where it stopped")


@pytest.mark.nightly(after=1)
def test_a_limit_of_file_sizes_is_one_line_and_the_pack_resumes(out, tmp_path):
    """As on a full disk, but where nothing can be mounted, too."""
    arrow, most = save_arrow(tmp_path / "rows.arrow", made_documents(150)), 8000  # bytes; shards have 12,000
    done = subprocess.run(
        [*COMMAND, str(arrow), "-o", str(out)], cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "File too large: raise ulimit -f, or choose a smaller --shard-size, and repeat the command: it resumes where "
        "it stopped"
    )
    packer.pack(arrow, out, **OPTIONS)
    packer.pack(arrow, tmp_path / "expected", **OPTIONS)
    assert hashes(out) == hashes(tmp_path / "expected")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("after", [0, 30, 12, 46])
def test_a_store_that_never_answers_ends_a_command_within_two_timeouts(
    source,
    bucket,
    expected,
    store_server,
    monkeypatch,
    after,
):
    shrink(monkeypatch, timeout=timedelta(seconds=2), left_alone=2)
    store_server.faults(seconds=100, after=after)
    begun = time.monotonic()
    told = refusal(source, str(bucket / "set"))
    took = time.monotonic() - begun
    store_server.faults()
    assert re.fullmatch(
        r"s3://bucket-\d+/set\S*: the store cannot be used \(no answer within 2 seconds, tried 2 times\): "
        f"repeat the same command when that is fixed{': it resumes where it stopped' * (after > 0)}",
        told,
    )
    assert took < 50  # of 100 seconds that a single request takes
    time.sleep(2)
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    assert hashes(bucket / "set") == expected


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    "faults",
    [
        {"methods": ["PUT"], "contains": "/manifest.json", "lost": True},
        {"methods": ["PUT"], "contains": "/request.json", "lost": True},
        {"methods": ["POST"]},
    ],
    ids=["manifest", "request", "removal"],
)
def test_what_a_process_wrote_itself_is_not_taken_for_that_of_another(source, bucket, expected, store_server, faults):
    """The store does what it is asked to, but every answer is an error; or it does not remove what is left over."""
    store_server.faults()
    packer.pack(source, str(bucket / "other"), **OPTIONS)
    after = store_server.faults()["POST"] - 1 if "POST" in faults["methods"] else 0
    store_server.faults(status=503, after=after, **faults)
    result = run(*COMMAND[3:], source, "-o", bucket / "set")
    store_server.faults()
    assert result.exit_code == 0, result.stderr
    assert f"Written to {bucket}/set" in result.stdout
    assert "another process" not in result.output
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    assert hashes(bucket / "set") == expected
