"""Too little memory, too few threads, memory maps or open files: a line, no word of corruption, and nothing is lost."""

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest

import packer
from packer.algorithms.jit import jit
from packer.errors import shortage, shortage_behind
from packer.options import ReadOptions
from packer.output.unfinished_output import Output
from packer.pipeline.tokenizing import tokenize
from packer.sources import arrow_files
from packer.text.tokenizer import is_refusal
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.writing import write_lines

ROOT = Path(__file__).parent.parent
NO_MAPS = OSError("Memory mapping file failed: Cannot allocate memory")  # as pyarrow says it: without an errno


def write_documents(path: Path, count: int = 300) -> Path:
    return write_lines(path, [{"input_ids": tokens} for tokens in made_documents(count)])


def pack(source: Path, out: Path) -> packer.Manifest:
    return packer.pack(source, out, max_len=64, shard_size="6KB", workers=3, sync=False)


def limit_threads(monkeypatch, allowed: int) -> None:
    """Let only so many threads start, as the system does that has no more."""
    started = iter(range(10**6))
    usual = threading.Thread.start

    def start(thread):
        if next(started) >= allowed:
            raise RuntimeError("can't start new thread")
        usual(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("allowed", range(8))
@pytest.mark.parametrize("name", ["source.arrow", "source.jsonl"])
def test_without_threads_a_pack_says_so_and_is_resumed(tmp_path, monkeypatch, name, allowed):
    source, out = tmp_path / name, tmp_path / "out"
    save_arrow(source, made_documents(300)) if source.suffix == ".arrow" else write_documents(source)
    pack(source, tmp_path / "expected")
    told = None
    with monkeypatch.context() as limited:
        limit_threads(limited, allowed)
        try:
            pack(source, out)
        except packer.PackerError as error:
            told = str(error)
    if told is not None:
        assert "no more threads can be started" in told
        assert "workers" in told
        assert (out / ".packer" / "request.json").is_file()
    assert (told is not None) or allowed > 2
    pack(source, out)
    assert hashes(out) == hashes(tmp_path / "expected")


def test_without_threads_tokens_and_exports_are_not_made_but_nothing_is_damaged(tmp_path, monkeypatch, tokenizer):
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"text": "The quick fox"}) + "\n")
    packed = tmp_path / "packed"
    pack(write_documents(tmp_path / "tokens.jsonl"), packed)
    with monkeypatch.context() as limited:
        limit_threads(limited, 0)
        with pytest.raises(packer.PackerError, match="no more threads"):
            tokenize(source, options=ReadOptions(tokenizer=tokenizer))
        with pytest.raises(packer.PackerError, match="no more threads"):
            packer.export(packed, to="parquet")
    tokenize(source, options=ReadOptions(tokenizer=tokenizer))
    packer.export(packed, to="parquet")


SHORT = {
    "maps": (NO_MAPS, "no more memory can be mapped .* vm.max_map_count"),
    "open files": (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "too many files are open .* ulimit -n"),
    "threads of Arrow": (
        pa.ArrowException("Failed to launch worker thread: Resource temporarily unavailable"),
        "no more threads can be started",
    ),
}


@pytest.mark.parametrize("kind", SHORT)
def test_what_is_missing_is_not_called_corrupt_and_what_was_begun_stays(tmp_path, monkeypatch, kind):
    error, message = SHORT[kind]
    source, out = write_documents(tmp_path / "source.jsonl"), tmp_path / "out"
    with monkeypatch.context() as limited:
        limited.setattr(arrow_files, "map_file", lambda path: (_ for _ in ()).throw(error))
        with pytest.raises(packer.PackerError, match=message) as told:
            pack(source, out)
    assert "corrupt" not in str(told.value)
    assert not isinstance(told.value, packer.SourceError)
    spilled = {path: path.stat().st_ino for path in (out / ".packer").glob("*/spill/*")}
    assert len(spilled) == 2
    monkeypatch.setattr(Output, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pack(source, out)
    assert {path: path.stat().st_ino for path in spilled} == spilled  # taken up, not decoded again


def test_lines_that_there_is_no_memory_to_parse_are_not_called_wrong(tmp_path, monkeypatch):
    def short(*arguments, **options):
        raise pa.ArrowMemoryError("realloc of size 4194304 failed")

    source, out = write_documents(tmp_path / "source.jsonl"), tmp_path / "out"
    with monkeypatch.context() as limited:
        limited.setattr(pyarrow.json, "read_json", short)
        with pytest.raises(packer.PackerError, match="out of memory") as told:
            pack(source, out)
    assert not isinstance(told.value, packer.SourceError)
    assert (out / ".packer" / "request.json").is_file()
    assert pack(source, out).totals.documents == 300


def test_a_shard_that_cannot_be_mapped_is_not_called_changed(tmp_path, monkeypatch):
    out = tmp_path / "out"
    pack(write_documents(tmp_path / "source.jsonl"), out)
    monkeypatch.setattr(pa, "memory_map", lambda path: (_ for _ in ()).throw(NO_MAPS))
    with pytest.raises(packer.PackerError, match="no more memory can be mapped") as told:
        packer.load(out)[0]
    assert "changed after packing" not in str(told.value)


def test_a_tokenizer_without_threads_does_not_blame_the_text():
    class PanicException(BaseException):
        pass

    assert not is_refusal(PanicException(f"ThreadPoolBuildError {{ kind: IOError({os.strerror(errno.EAGAIN)}) }}"))
    assert is_refusal(PanicException("index out of bounds"))


def test_other_errors_are_not_taken_for_a_shortage():
    for error in (ValueError("no"), OSError(errno.ENOENT, "No such file"), pa.ArrowInvalid("bad"), RuntimeError("x")):
        assert shortage(error) is None
    of_a_library = ValueError("of a library")
    of_a_library.__cause__ = RuntimeError("can't start new thread")
    assert "no more threads" in str(shortage_behind(of_a_library))
    assert shortage(of_a_library) is None


def test_a_kernel_is_not_loaded_into_the_last_of_the_address_space(monkeypatch):
    @jit
    def kernel(number):
        return number + 1

    limited = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda what: (1 << 20, 1 << 20) if what == resource.RLIMIT_AS else limited(what)
    )
    with pytest.raises(MemoryError, match="MiB of address space left for a kernel") as told:
        kernel(1)
    assert "raise ulimit -v" in str(shortage(told.value))
    monkeypatch.undo()
    assert kernel(1) == 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [700, 1000, 1700])
def test_under_a_limit_of_address_space_the_command_says_a_line_and_is_resumed(tmp_path, megabytes):
    source, out = write_documents(tmp_path / "source.jsonl", 40_000), tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "packer",
        "pack",
        str(source),
        "-o",
        str(out),
        "--max-len",
        "512",
        "--workers",
        "8",
    ]
    limit = (megabytes << 20, megabytes << 20)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert all(line.startswith("packer: ") for line in done.stderr.splitlines()), done.stderr
    assert "corrupt" not in done.stderr
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("megabytes", [440, 460, 520, 640])
def test_too_little_address_space_to_tokenize_is_a_line(tmp_path, tokenizer, megabytes):
    """The library ends the process if it gets no memory, so what is left is looked at before."""
    words = "The quick brown fox jumps over the lazy dog. "
    lines = [json.dumps({"text": f"{number} {words * (1 + number % 40)}"}) + "\n" for number in range(20_000)]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    command = [sys.executable, "-m", "packer", "tokenize", tmp_path / "text.jsonl", "--tokenizer", tokenizer]
    limit = (megabytes << 20, megabytes << 20)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("packer: ")
    assert "raise ulimit" in line


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("megabytes", [700, 640, 490])
def test_too_little_address_space_to_decode_is_a_line(tmp_path, megabytes):
    """What several threads would import first is imported before them: a library ends the process without memory."""
    values = np.random.default_rng(0).integers(0, 150_000, 20_000_000, np.int32)
    lists = pa.ListArray.from_arrays(np.arange(0, len(values) + 1, 250, dtype=np.int32), values)
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "rows.parquet", row_group_size=10_000)
    command = [sys.executable, "-m", "packer", "pack", "rows.parquet", "--max-len", "256", "--workers", "2"]
    limit = (megabytes << 20, megabytes << 20)
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("packer: ")
    assert "terminate" not in done.stderr
