"""A process that stands still while its output is removed and begun again does no harm when it goes on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import packer
from tests.helpers.commands import succeeded
from tests.helpers.kills import Killed, kill, named
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

ROOT = Path(__file__).parent.parent

STOPS = """
import os, re, signal, sys
from pathlib import Path
from packer import ranks
from packer.cli import main
ranks.INTERVAL = 0.05
rename, stops_after = Path.rename, [sys.argv.pop(1)]
def renaming(self, target):
    result = rename(self, target)
    if stops_after and re.search(stops_after[0], str(target)):
        stops_after.clear()
        os.kill(os.getpid(), signal.SIGSTOP)
    return result
Path.rename = Path.replace = renaming
main()
"""


class Slow:
    """A command in a process that has stopped right after a file of this name, a regular expression, got it."""

    def __init__(self, stops_after: str, *command: object) -> None:
        words = [sys.executable, "-c", STOPS, stops_after, *map(str, command)]
        self._process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), self._process.stderr.read()

    def ended(self) -> tuple[int, str]:
        """Let the process go on; return its exit code and what it wrote on stderr."""
        os.kill(self._process.pid, signal.SIGCONT)
        _, errors = self._process.communicate(timeout=120)
        assert "Traceback" not in errors
        return self._process.returncode, errors

    def refusal(self) -> str:
        """Let the process go on, which must end in one line; return the line."""
        code, errors = self.ended()
        assert code == 1, errors
        return errors.splitlines()[-1]


def interrupted_by(monkeypatch, name: str, interrupt: Callable[[], None]) -> None:
    """Call a function once, before a file of this name is put in place."""
    waiting = [interrupt]

    def tell(target, rename):
        if waiting and Path(target).match(name):
            waiting.pop()()
        return rename()

    named(monkeypatch, tell)


MADE_AGAIN = "was finished, removed or started again by another packer: repeat the command, or choose another --output"

PACK = {"max_len": 64, "shard_size": "6KB", "workers": 1}
COMMAND = ("--max-len", 64, "--shard-size", "6KB", "--workers", 1)
RANK = ("--ranks", "0/1")

PACKS = {
    "after the request": ("request.json$", (), {}),
    "after a decoded stream": (r"spill/.*\.arrow$", (), {}),
    "after a checkpoint of the plan": (r"checkpoints/(?!committed)[^/]*/0$", (), {}),
    "after an entry": ("checkpoints/committed/11$", (), {}),
    "after a shard": ("data-00011-of", (), {}),
    "after the small files": ("state.json$", (), {}),
    "one of several ranks, after a checkpoint": (r"checkpoints/(?!committed)[^/]*/0$", RANK, {}),
    "one of several ranks, after a shard": ("data-00011-of", RANK, {"ranks": "0/1"}),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("made") / "source.jsonl"
    return write_lines(path, [{"input_ids": tokens} for tokens in made_documents(300)])


@pytest.fixture(scope="module")
def undisturbed(source) -> dict[str, str]:
    packer.pack(source, source.parent / "undisturbed", seed=5, **PACK)
    return hashes(source.parent / "undisturbed")


@pytest.mark.parametrize("goes_on", ["while the other packs", "when the other is done"])
@pytest.mark.parametrize("instant", PACKS)
def test_a_slow_pack_leaves_the_next_one_in_the_same_folder_alone(
    source, undisturbed, tmp_path, monkeypatch, instant, goes_on
):
    shrink(monkeypatch, heartbeat=0.05)
    stops_after, as_rank, others = PACKS[instant]
    slow, refusals = Slow(stops_after, "pack", source, "-o", tmp_path / "out", *COMMAND, *as_rank), []
    shutil.rmtree(tmp_path / "out")
    with monkeypatch.context() as patch:
        if goes_on == "while the other packs":
            interrupted_by(patch, "data-00005-of-*", lambda: refusals.append(slow.refusal()))
        packer.pack(source, tmp_path / "out", seed=5, **PACK, **others)
    if not refusals:
        refusals.append(slow.refusal())
    assert hashes(tmp_path / "out") == undisturbed
    if instant == "after the request":  # while the output is prepared
        assert re.match(f"packer: {tmp_path / 'out'} .* another packer", refusals.pop())
    else:
        assert refusals == [f"packer: {tmp_path / 'out'} {MADE_AGAIN}"]
    assert list(packer.verify(tmp_path / "out", source)) == []


def test_a_slow_pack_completes_no_folder_that_was_emptied_and_begun_again(source, undisturbed, tmp_path, monkeypatch):
    """The folder itself stays, so its descriptor would not tell."""
    out, refusals = tmp_path / "out", []
    slow = Slow("data-00011-of", "pack", source, "-o", out, *COMMAND)
    for path in list(out.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    interrupted_by(monkeypatch, "manifest.json", lambda: refusals.append(slow.refusal()))
    packer.pack(source, out, seed=5, **PACK)
    assert refusals == [f"packer: {out} {MADE_AGAIN}"]
    assert hashes(out) == undisturbed


def test_a_slow_pack_whose_source_has_changed_removes_nothing_of_the_next_one(source, tmp_path):
    own = shutil.copy2(source, tmp_path / "source.jsonl")
    slow = Slow("data-00003-of", "pack", own, "-o", tmp_path / "out", *COMMAND)
    own.write_text(json.dumps({"input_ids": [1, 2, 3]}) + "\n")
    shutil.rmtree(tmp_path / "out")
    packer.pack(source, tmp_path / "out", seed=5, **PACK)
    before = hashes(tmp_path / "out")
    slow.refusal()
    assert hashes(tmp_path / "out") == before


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_rank_that_stops_while_it_prepares_the_output_is_replaced(
    source, undisturbed, tmp_path, monkeypatch, begun_before
):
    out, options = tmp_path / "out", ("--seed", 5, *COMMAND, "--ranks")
    if begun_before:  # with another lock, and another request
        with monkeypatch.context() as killing:
            kill(killing, "data-00003-of")
            with pytest.raises(Killed):
                packer.pack(source, out, seed=5, **PACK)
    slow = Slow("request.json$", "pack", source, "-o", out, *options, "0/2")
    shrink(monkeypatch, rank_patience=0.5)
    packer.pack(source, out, seed=5, ranks="1/2", **PACK)
    assert hashes(out) == undisturbed
    assert slow.ended() == (0, "")
    assert hashes(out) == undisturbed


def test_a_slow_replacement_is_not_swapped_for_that_of_another_process(source, undisturbed, tmp_path, monkeypatch):
    out, refusals = tmp_path / "out", []
    packer.pack(source, out, seed=1, **PACK)
    slow = Slow("packer-new/manifest.json$", "pack", source, "-o", out, "--overwrite", *COMMAND)
    shutil.rmtree(tmp_path / ".out.packer-new")
    interrupted_by(monkeypatch, "data-00005-of-*", lambda: refusals.append(slow.refusal()))
    packer.pack(source, out, seed=5, overwrite=True, **PACK)
    assert refusals == [f"packer: {out} {MADE_AGAIN}"]
    assert hashes(out) == undisturbed


@pytest.mark.parametrize("stops_after", [r"spill/00002-00000\.arrow$", "tokenizing/data-00001-of", "state.json$"])
def test_a_slow_process_that_tokenizes_leaves_the_next_one_alone(tmp_path, tokenizer, monkeypatch, stops_after):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            lines = [{"text": f"{name} of {number} " * (1 + line % 7)} for line in range(20)]
            write_lines(tmp_path / name / f"{number}.jsonl", lines)
    options = ("--tokenizer", tokenizer, "--workers", 1)
    succeeded("tokenize", tmp_path / "b", "-o", tmp_path / "undisturbed", *options)
    out, refusals = tmp_path / "out", []
    slow = Slow(stops_after, "tokenize", tmp_path / "a", "-o", out, *options)
    shutil.rmtree(tmp_path / ".out.packer-tokenizing")
    interrupted_by(monkeypatch, "data-00002-of-*", lambda: refusals.append(slow.refusal()))
    succeeded("tokenize", tmp_path / "b", "-o", out, *options)
    assert refusals == [f"packer: {out} {MADE_AGAIN}"]
    assert hashes(out) == hashes(tmp_path / "undisturbed")


@pytest.mark.parametrize("stops_after", ["data-00002-of", "_export.json$"])
def test_a_slow_export_leaves_the_next_one_alone(tmp_path, monkeypatch, stops_after):
    packed, out, refusals = tmp_path / "packed", tmp_path / "out", []
    packer.pack(save_arrow(tmp_path / "source.arrow", made_documents(300)), packed, **PACK)
    packer.export(packed, tmp_path / "undisturbed", to="torchtune", workers=1)
    slow = Slow(stops_after, "export", packed, "-o", out, "--to", "torchtitan", "--workers", 1)
    shutil.rmtree(tmp_path / ".out.packer-export")
    interrupted_by(monkeypatch, "data-00004-of-*", lambda: refusals.append(slow.refusal()))
    packer.export(packed, out, to="torchtune", workers=1)
    assert refusals == [f"packer: {out} {MADE_AGAIN}"]
    assert hashes(out) == hashes(tmp_path / "undisturbed")
