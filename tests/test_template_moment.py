"""Chat templates that write the current time: one moment for each pack, whenever and wherever it goes on."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

import packer
from packer.pipeline.tokenizing import TokenizeReport
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import succeeded
from tests.helpers.kills import Killed, kill
from tests.helpers.small import shrink

pytest.importorskip("tokenizers")

TEMPLATE = "{{ strftime_now('%Y-%m-%d %H:%M') }} {% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
EAST, WEST = "Etc/GMT-14", "Etc/GMT+12"  # where it is another day at all times, and another time of the day
OPTIONS = {"max_len": 128, "sync": False, "train_on": "all"}


@pytest.fixture
def travel(monkeypatch):
    """Set the time zone of this process, and with it the date."""

    def to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield to
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def tokenizer(tmp_path) -> str:
    return save_tokenizer(tmp_path / "tokenizer", template=TEMPLATE)


@pytest.fixture
def chats(tmp_path) -> Path:
    answers = ({"role": "assistant", "content": f"fox {number}"} for number in range(3000))
    records = ({"messages": [{"role": "user", "content": "the quick"}, answer]} for answer in answers)
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def moments(out: Path, tokenizer: str) -> set[str]:
    """What the documents of a packed dataset begin with."""
    from tokenizers import Tokenizer

    decode = Tokenizer.from_file(f"{tokenizer}/tokenizer.json").decode
    found = set()
    for row in packer.load(out):
        ends, is_real = row["seq_lengths"].cumsum(), row["doc_ids"] != -1
        spans = zip((ends - row["seq_lengths"])[is_real].tolist(), ends[is_real].tolist(), strict=True)
        found |= {decode(row["input_ids"][first:end].tolist())[:16] for first, end in spans}
    return found


def written(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M")


def test_a_pack_that_resumes_on_another_day_has_one_moment(chats, tokenizer, tmp_path, monkeypatch, travel):
    shrink(monkeypatch, piece=1 << 15, record_block=1 << 13)
    out = tmp_path / "out"
    travel(WEST)
    with monkeypatch.context() as striking:
        kill(striking, r"00000-00002\.json$", after=True)
        with pytest.raises(Killed):
            packer.pack(chats, out, tokenizer=tokenizer, **OPTIONS)
    travel(EAST)
    manifest = packer.pack(chats, out, tokenizer=tokenizer, **OPTIONS)
    assert moments(out, tokenizer) == {written(manifest.source.text.moment)}
    assert manifest.source.text.moment < datetime.now().isoformat()[:10], "that of the first run"


def test_a_pack_is_verified_and_found_complete_on_any_other_day(chats, tokenizer, tmp_path, travel):
    out = tmp_path / "out"
    travel(WEST)
    before = packer.pack(chats, out, tokenizer=tokenizer, **OPTIONS)
    travel(EAST)
    assert not list(packer.verify(out, chats, tokenizer=tokenizer))
    os.utime(chats)  # so that every token is compared
    assert packer.pack(chats, out, tokenizer=tokenizer, **OPTIONS) == before
    other = packer.pack(chats, tmp_path / "other", tokenizer=tokenizer, **OPTIONS)
    assert other.source.text.moment != before.source.text.moment


def test_tokens_are_those_of_one_moment_too(chats, tokenizer, tmp_path, travel):
    out = tmp_path / "tokens"
    command = ("tokenize", chats, "-o", out, "--tokenizer", tokenizer, "--train-on", "all", "--no-sync")
    travel(WEST)
    succeeded(*command)
    report = json.loads((out / "tokenized.json").read_bytes())
    travel(EAST)
    assert "complete" in succeeded(*command)
    assert json.loads((out / "tokenized.json").read_bytes()) == report
    packer.pack(out, tmp_path / "out", max_len=128, sync=False)
    assert moments(tmp_path / "out", tokenizer) == {written(TokenizeReport.from_dict(report).text.moment)}


@pytest.mark.nightly
def test_ranks_on_machines_with_different_clocks_write_one_moment(chats, tokenizer, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shrink(monkeypatch, everywhere=True, piece=1 << 15)
    options = f"--max-len 128 --tokenizer {tokenizer} --train-on all --ranks".split()
    command = [sys.executable, "-m", "packer", "pack", str(chats), "-o", str(out), *options]
    running = [
        subprocess.Popen([*command, f"{rank}/2"], env={**os.environ, "TZ": zone})
        for rank, zone in enumerate((EAST, WEST))
    ]
    assert [process.wait(timeout=100) for process in running] == [0, 0]
    assert moments(out, tokenizer) == {written(packer.load(out).manifest.source.text.moment)}
