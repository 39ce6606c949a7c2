"""Processes, clocks and disks that fail while a dataset is packed into a store: the bytes of one process."""

import re
import resource
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from test_cli import run
from test_pack import hashes, made_documents, save_arrow
from test_ranks import ROOT, run_ranks
from test_stored_outputs import OPTIONS, expected, quickly, refusal, source  # noqa: F401 (fixtures among them)

import packer
from packer.output.unfinished_output import Output
from packer.ranks import Heartbeats
from packer.stores import RemotePath
from tests.helpers.small import shrink

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

    def together(self, file, entry):
        if entry.file.startswith("data-00000") and entry.file not in met:
            both.wait(timeout=60)
            met.add(entry.file)
        commit(self, file, entry)

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


@pytest.mark.nightly(after=2)
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
        "repeat the same command when that is fixed: it resumes where it stopped",
        told,
    )
    assert took < 50  # of 100 seconds that a single request takes
    time.sleep(2)
    packer.pack(source, str(bucket / "set"), **OPTIONS)
    assert hashes(bucket / "set") == expected


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
