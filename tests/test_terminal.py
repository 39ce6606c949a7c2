"""Nothing that packer reads controls the terminal: escapes in texts, names and messages are shown, not sent."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import packer
from tests.helpers.commands import run, succeeded
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.packed_rows import LENGTHS, MAX_LEN, edit_manifest, make, tokens_of, write_source
from tests.helpers.writing import write_ipc, write_lines

EVIL = "a\x1b[2Jb\x9b31mc\u202ed\x08e"
SHOWN = r"a\x1b[2Jb\x9b31mc\u202ed\x08e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printed(*arguments: object, shows: str = SHOWN) -> str:
    """Run a command; check that it prints no control characters, and the escaped ones; return what it prints."""
    done = run(*arguments)
    text = done.stdout + done.stderr
    assert not CONTROL.search(text), repr(text)
    assert shows in text
    return text


@pytest.fixture
def kept(tmp_path) -> Path:
    """A packed dataset with an evil name, column and values."""
    columns = {"input_ids": [tokens_of(*each) for each in enumerate(LENGTHS)], EVIL: [EVIL] * len(LENGTHS)}
    source, folder = write_ipc(tmp_path / f"{EVIL}.arrow", pa.table(columns)), tmp_path / f"packed {EVIL}"
    printed("pack", source, "-o", folder, "--max-len", MAX_LEN, "--keep", EVIL)
    return folder


def test_names_of_files_columns_and_kept_values_are_escaped_by_every_command(kept):
    source = kept.parent / f"{EVIL}.arrow"
    printed("show", kept, 0)
    printed("show", kept, "--document", 1)
    printed("verify", kept, "--source", source)
    printed("export", kept, "--to", "parquet", "-o", kept.parent / f"out {EVIL}")
    printed("pack", source, "-o", kept, "--max-len", 2 * MAX_LEN)
    printed("stats", source, "--group-by", f"no {EVIL}")
    printed("stats", kept.parent / f"none {EVIL}")
    printed("tokenize", source, "--split", EVIL, "--tokenizer", "none")
    for shard in kept.glob("*.arrow"):
        shard.unlink()
    printed("verify", kept)


@pytest.mark.parametrize("more", [(), ("--full",)])
@pytest.mark.parametrize("color", [False, True])
def test_texts_are_escaped_and_only_packers_own_colors_are_sent(tokenizer, tmp_path, monkeypatch, more, color):
    source, out = write_lines(tmp_path / "rows.jsonl", [{"text": EVIL} for _ in range(9)]), tmp_path / "out"
    succeeded("pack", source, "--tokenizer", tokenizer, "--max-len", 64, "-o", out)
    if not color:
        shown = printed("show", out, 0, "--tokenizer", tokenizer, *more, shows="")
    else:
        monkeypatch.setenv("FORCE_COLOR", "1")
        shown = run("show", out, 0, "--tokenizer", tokenizer, *more).stdout
        own = re.compile(r"\x1b\[(?:0|1|2|3\d)m")
        assert own.search(shown)
        assert not CONTROL.search(own.sub("", shown))
    assert r"\x1b[2J" in shown


def test_messages_of_templates_and_wrong_usage_are_escaped(tokenizer, tmp_path):
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    template = tmp_path / "template.jinja"
    template.write_text(f"{{{{ raise_exception({json.dumps(EVIL)}) }}}}")
    options = ("--tokenizer", tokenizer, "--max-len", 64, "-o", tmp_path / "out")
    printed("pack", source, *options, "--chat-template", template)
    for words in (("pack", source, "--max-len", EVIL), (EVIL,), ("pack", f"--{EVIL}"), ("show", source, EVIL)):
        printed(*words)
        assert json.loads(run(*words, "--json").stdout)["exit_code"] == 2


def test_fields_of_a_manifest_are_escaped(tmp_path):
    folder = make(tmp_path)
    changes = {
        "format_version": lambda content: content.update(format_version=EVIL),
        "shards": lambda content: content["shards"].update(bytes=[EVIL]),
        "files": lambda content: content["files"].update({EVIL: "0" * 32}),
        "algorithm": lambda content: content["options"].update(algorithm=EVIL),
    }
    for field, change in changes.items():
        edited = shutil.copytree(folder, tmp_path / field)
        edit_manifest(edited, change)
        for command in (("verify", edited), ("show", edited, 0), ("stats", edited)):
            printed(*command, shows="shards.bytes is not a list" if field == "shards" else "[2Jb")


def test_log_lines_are_escaped(tmp_path):
    source = write_source(tmp_path / f"{EVIL}.arrow", LENGTHS)
    packer.pack(source, tmp_path / "out", max_len=MAX_LEN)
    source.touch()
    printed("pack", source, "-o", tmp_path / "out", "--max-len", MAX_LEN, shows="comparing every token")


def test_commands_print_by_functions_that_escape():
    for path in (Path(packer.__file__).parent / "cli").glob("*.py"):
        if path.name != "printing.py":
            assert not re.search(r"click\.(echo|secho|style)\(|\bprint\(", path.read_text()), path
