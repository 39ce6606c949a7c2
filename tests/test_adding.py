"""A format, an algorithm, an export, a batch format, a store and an option are added by one entry each."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import packer
from packer.cli.command import command
from packer.exporting.targets import TARGETS, Target
from packer.loader.batch_formats import FORMATS, BatchFormat
from packer.options.option import GENERAL, option
from packer.sources.formats import FORMATS as INPUT_FORMATS
from packer.sources.formats import InputFormat
from packer.stores.buckets import SCHEMES
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.sources import DOCUMENTS, write
from tests.helpers.toy_format import NUMBERS

PACKAGE = Path(packer.__file__).parent


@pytest.fixture
def source(tmp_path) -> Path:
    return write(tmp_path / "rows", "stream", DOCUMENTS)


@pytest.fixture
def packed(source, tmp_path) -> Path:
    packer.pack(source, tmp_path / "packed", max_len=64, sync=False)
    return tmp_path / "packed"


def run_python(*arguments: object, package: Path = PACKAGE) -> str:
    """Run Python with a copy of the package; options list what is registered when they are imported."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


ALGORITHM = """
import sys
from packer.algorithms import ALGORITHMS, Algorithm
from packer.algorithms.open_packs import best_fit_decreasing

def solve(histogram, max_segments=None, **limits):
    return best_fit_decreasing(histogram, max_segments)

ALGORITHMS["toy"] = Algorithm(name="toy", summary="A toy.", solve=solve)
from packer.cli import main
main()
"""


def test_an_algorithm_is_an_entry(source, tmp_path):
    run_python("-c", ALGORITHM, "pack", source, "-o", tmp_path / "toy", "--max-len", 64, "--algorithm", "toy")
    packer.pack(source, tmp_path / "best", max_len=64, algorithm="bfd", sync=False)
    one, other = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("toy", "best"))
    assert one["shards"] == other["shards"]
    assert "toy" in run_python("-c", ALGORITHM, "stats", source, "--max-len", 64, "--algorithm", "all")


@pytest.fixture
def numbers(monkeypatch, tmp_path) -> Path:
    """A file of the toy format, which is registered."""
    toy = InputFormat(
        title="Numbers", endings=(".numbers",), magic=(NUMBERS,), reader="tests.helpers.toy_format.NumberLines"
    )
    monkeypatch.setitem(INPUT_FORMATS, "numbers", toy)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rows.numbers"
    path.write_bytes(NUMBERS + b"".join(b" ".join(b"%d" % token for token in d) + b"\n" for d in DOCUMENTS))
    return path


def test_an_input_format_is_an_entry(numbers, packed, tmp_path):
    packer.pack(numbers.parent, tmp_path / "toy", max_len=64, sync=False)
    one, other = (packer.load(path) for path in (tmp_path / "toy", packed))
    assert [row["input_ids"].tolist() for row in one] == [row["input_ids"].tolist() for row in other]
    assert not list(packer.verify(tmp_path / "toy", source=numbers.parent))
    packer.pack(numbers, max_len=64, sync=False)
    assert (numbers.parent / "rows-packed-64").is_dir()


def test_text_in_an_added_format_is_tokenized(numbers, tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    options = {"tokenizer": tokenizer, "text_column": "text"}
    manifest = packer.pack(numbers, tmp_path / "packed", max_len=512, sync=False, **options)
    assert manifest.totals.documents == len(DOCUMENTS)


def test_an_added_format_is_recognized_by_its_first_bytes_and_listed_in_messages(numbers, tmp_path):
    numbers.rename(tmp_path / "rows.bin")
    assert packer.pack(tmp_path / "rows.bin", tmp_path / "packed", max_len=64).totals.documents == len(DOCUMENTS)
    (tmp_path / "other").write_bytes(b"something else")
    words = r"it begins with b'somethin'\); supported formats are .* and Numbers \(\.numbers\)$"
    with pytest.raises(packer.PackerError, match=words):
        packer.pack(tmp_path / "other", tmp_path / "packed", max_len=64)


def test_a_store_is_an_entry(source, packed, tmp_path, monkeypatch):
    store = pytest.importorskip("obstore").store.MemoryStore()
    monkeypatch.setitem(SCHEMES, "toy", lambda bucket: store)
    packer.pack(source, "toy://bucket/out", max_len=64)
    one, other = packer.load("toy://bucket/out", cache_dir=tmp_path / "cache"), packer.load(packed)
    assert [row["input_ids"].tolist() for row in one] == [row["input_ids"].tolist() for row in other]
    assert not list(packer.verify("toy://bucket/out"))


EXPORT = """
from packer.exporting.targets import TARGETS, Target
TARGETS["toy"] = Target(summary="tokens of a toy", columns={"tokens": "int64"},
    values=lambda rows: {"tokens": [row["input_ids"] for row in rows]})
from packer.cli import main
main()
"""


def test_an_export_is_an_entry(packed, tmp_path):
    run_python("-c", EXPORT, "export", packed, "--to", "toy", "-o", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "data-00000-of-00001.parquet")
    assert table["tokens"].to_pylist() == [row["input_ids"].tolist() for row in packer.load(packed)]
    assert "toy               tokens of a toy" in run_python("-c", EXPORT, "export", "--help")


def test_an_export_is_an_entry_in_python_too(packed, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "all", Target(summary="all columns"))
    made = packer.export(packed, tmp_path / "out", to="all", sync=False)
    assert "doc_ids" in made.columns


@dataclass(frozen=True, kw_only=True)
class ToyBatch(BatchFormat):
    position_offset: int = 0

    def _arrays(self, rows, epoch):
        return {"first": np.array([row["input_ids"][0] + self.position_offset for row in rows])}


def test_a_batch_format_is_a_record_whose_fields_are_its_options(packed, monkeypatch):
    monkeypatch.setitem(FORMATS, "toy", ToyBatch)
    dataset = packer.load(packed)
    (batch,) = packer.batches(dataset, rows=len(dataset), seed=None, format="toy", tensors="numpy", position_offset=7)
    assert batch["first"].tolist() == [row["input_ids"][0] + 7 for row in dataset]
    with pytest.raises(packer.PackerError, match="format toy does not support keep_tokens: leave it out, or choose hf"):
        packer.collate([dataset[0]], format="toy", keep_tokens=["labels"])


@pytest.fixture
def with_toy(tmp_path) -> Path:
    """A copy of the package in which `PackOptions` has one field more, and nothing else was changed."""
    copy = tmp_path / "copy" / "packer"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    declared = copy / "options" / "pack_options.py"
    line = '    toys: int = option(3, "Number of toys.", ROWS, least=1, most=9, metavar="N")\n'
    declared.write_text(declared.read_text().replace("    labels: bool", line + "    labels: bool"))
    return copy


TOYS = """
import packer
from click.testing import CliRunner
from packer.cli import cli
from runpy import run_path

def run(*words):
    print(CliRunner().invoke(cli, words).output)

run("pack", "{source}", "-o", "{out}", "--max-len", "64", "--toys", "5")
for toys in ({{"toys": 5}}, {{"toys": 4}}, {{"toys": 10}}, {{"tois": 5}}):
    try:
        print(packer.pack("{source}", "{out}", max_len=64, **toys).options.toys)
    except (packer.PackerError, TypeError) as error:
        print(error)
run("pack", "--help-all")
run("verify", "{out}", "--source", "{source}")
print(run_path("{script}")["arguments_module"]())
"""


def test_an_option_of_pack_is_a_line(with_toy, source, tmp_path):
    script = PACKAGE.parent / "docs/make_commands.py"
    toys = TOYS.format(source=source, out=tmp_path / "out", script=script)
    printed = run_python("-c", toys, package=with_toy)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["options"]["toys"] == 5
    expected = [
        "Packed",
        "\n5\n",
        "out is complete, packed with toys 5, not 4",
        "toys is 10: it must be a whole number from 1 to 9",
    ]
    expected += ["'tois': did you mean toys?", "--toys N", "is verified", "    toys: int\n"]
    for words in expected:
        assert words in printed


@dataclass
class ToyOptions:
    toys: int = option(3, "Number of toys.", GENERAL, least=1, most=9, metavar="N", commands=("play",))


def test_an_option_of_a_command_is_a_line(monkeypatch):
    monkeypatch.setattr("packer.cli.command.CommandOptions", ToyOptions)

    @command()
    def play(*, toys: int) -> None:
        click.echo(f"{toys} toys")

    invoke = CliRunner().invoke
    assert [invoke(play, words).output for words in ([], ["--toys", "5"])] == ["3 toys\n", "5 toys\n"]
    assert "'--toys': 10 is not a whole number from 1 to 9" in invoke(play, ["--toys", "10"]).output
    assert "--toys N    Number of toys.  [default: 3]" in invoke(play, ["--help"]).output
