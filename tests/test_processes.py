"""Processes tokenize much text: to the bytes and errors of one process, also if some of them are killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from packer.engines.processes import Processes
from packer.errors import PackerError
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.from_text import CHATML, chats, pack, shards, texts
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=CHATML)


def of_two(monkeypatch, piece=1500):
    """Let processes decode pieces of this size; return the list of tasks that these did."""
    shrink(monkeypatch, piece=piece, text_per_process=1)
    numbers, call = [], Processes.run

    def run(self, task, given, report=None, *, local=None):
        for number in call(self, task, given, report, local=local):
            numbers.append(number)
            yield number

    monkeypatch.setattr(Processes, "run", run)
    return numbers


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("records", [chats, texts])
def test_the_bytes_are_those_of_one_process(tmp_path, tokenizer, monkeypatch, records):
    source = write_lines(tmp_path / "records.jsonl", records())
    one = pack(source, tmp_path / "one", tokenizer)
    done = of_two(monkeypatch)
    two = pack(source, tmp_path / "two", tokenizer, workers=2)
    assert shards(two) == shards(one)
    assert two.source == one.source
    assert sorted(done) == [*range(len(done))]
    assert len(done) > 3


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_moves_within_each_piece_that_a_process_or_a_thread_decodes(tmp_path, tokenizer, monkeypatch, workers):
    """Read 1 of 3 blocks of a piece, while no piece is done: as often as there are pieces."""
    folder, steps = tmp_path / "texts", []
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        write_lines(folder / name, texts())
    of_two(monkeypatch, piece=1 << 20)
    shrink(monkeypatch, everywhere=True, record_block=400)
    pack(folder, tmp_path / "out", tokenizer, workers=workers, progress=lambda *step: steps.append(step))
    seen = {done for stage, done, _ in steps if stage == "tokenize"}
    whole = len(texts())
    assert any(0 < done < whole for done in seen)
    assert any(whole < done < 2 * whole for done in seen)
    assert max(seen) == 2 * whole


def test_of_two_files_each_is_a_process_and_one_file_is_none(tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        write_lines(folder / name, texts())
    one = pack(folder, tmp_path / "one", tokenizer)
    done = of_two(monkeypatch, piece=1 << 20)
    assert shards(pack(folder, tmp_path / "five", tokenizer, workers=5)) == shards(one)
    assert sorted(done) == [0, 1]
    pack(folder / "a.jsonl", tmp_path / "single", tokenizer, workers=5)
    assert sorted(done) == [0, 1]


def test_processes_import_nothing_from_the_current_folder_and_one_fewer_than_workers_is_started(
    tmp_path, tokenizer, monkeypatch
):
    source = write_lines(tmp_path / "texts.jsonl", texts())
    for name in ("json", "packer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    of_two(monkeypatch)
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: started.append(args) or popen(*args, **options))
    assert pack(source, tmp_path / "out", tokenizer, workers=2).totals.documents == len(texts())
    assert len(started) == 1  # this process tokenizes, too


def test_the_error_is_the_first_of_the_source(tmp_path, tokenizer, monkeypatch):
    records = [*chats()]
    for at in (11, 25, 38):
        records[at] = {"messages": [{"role": "nobody", "content": "!"}]}
    source = write_lines(tmp_path / "chats.jsonl", records)
    of_two(monkeypatch)
    with pytest.raises(PackerError, match=r"^document 11 \(chats.jsonl line 12\): .* the role 'nobody'"):
        pack(source, tmp_path / "out", tokenizer, workers=2)


def test_a_killed_process_is_one_line_and_the_pack_resumes(tmp_path, tokenizer, monkeypatch):
    source = write_lines(tmp_path / "chats.jsonl", chats())
    one = pack(source, tmp_path / "one", tokenizer)
    of_two(monkeypatch)
    popen = subprocess.Popen

    def started(words, **options):
        process = popen(words, **options)
        os.kill(process.pid, signal.SIGKILL)
        return process

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", started)
        with pytest.raises(PackerError, match=r"ended \(SIGKILL\): if memory is short, set fewer"):
            pack(source, tmp_path / "two", tokenizer, workers=2)
    assert shards(pack(source, tmp_path / "two", tokenizer, workers=2)) == shards(one)


@pytest.mark.nightly(after=1)
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_they_end_with_the_process_that_started_them(tmp_path, tokenizer, monkeypatch, sent):
    source = write_lines(tmp_path / "chats.jsonl", chats() * 200)
    words = ["pack", str(source), "-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer), "--workers", "3"]
    shrink(monkeypatch, everywhere=True, piece=100_000, text_per_process=1)
    command = [sys.executable, "-m", "packer", *words, "--max-len", "64"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while len(found := children(process.pid)) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(sent)
    _, told = process.communicate(timeout=60)
    if sent != signal.SIGKILL:
        assert told.strip().splitlines()[-1].endswith("the same command resumes where it stopped")
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since it was listed
            found += map(int, (task / "children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there, and is not one that only waits for its parent to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
