"""An output that is reported as complete is complete: every file is intact, and the source has not changed."""

import json
import os
from pathlib import Path

import datasets
import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from tests.helpers.bad_input import write_source
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.pack import hashes, made_documents, save_arrow

DOCUMENTS = made_documents(60)
CHANGED = [*DOCUMENTS[:-1], [token % 1000 + 1 for token in DOCUMENTS[-1]]]  # of the same lengths


def pack(source, out: Path, **options) -> packer.Manifest:
    return packer.pack(source, out, max_len=64, shard_size="6KB", workers=1, **options)


def invoke(*arguments) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def pack_command(source, out, *more):
    return ("pack", source, "-o", out, "--max-len", 64, "--shard-size", "6KB", *more)


def keeping_times(path: Path, change, *, times: os.stat_result | None = None) -> None:
    """Change a file, and set its time back."""
    before = times or path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", ["missing", "shorter", "other bytes", "other bytes, old time"])
@pytest.mark.parametrize("name", ["data-00001-of-*", "state.json"])
def test_a_dataset_with_a_damaged_file_is_not_complete(tmp_path, damage, name):
    source, out = save_arrow(tmp_path / "source.arrow", DOCUMENTS), tmp_path / "out"
    pack(source, out)
    expected = hashes(out)
    (path,) = out.glob(name)
    content = path.read_bytes()
    other = {"shorter": content[:-1], "other bytes": content[:-9] + b"!" + content[-8:]}.get(damage.split(",")[0])
    if other is None:
        path.unlink()
    elif damage.endswith("old time"):
        keeping_times(path, lambda: path.write_bytes(other))
    else:
        path.write_bytes(other)
    code, _, error = invoke(*pack_command(source, out))
    assert code == 1
    assert str(path) in error
    assert "--overwrite" in error
    assert error.count("\n") == 1
    assert invoke(*pack_command(source, out, "--overwrite"))[0] == 0
    assert hashes(out) == expected


@pytest.mark.parametrize("name", ["source.arrow", "source.jsonl", "source.parquet", "source.jsonl.gz"])
@pytest.mark.parametrize("hides", [False, True])
def test_an_edit_that_keeps_size_and_lengths_is_noticed(tmp_path, name, hides):
    same_size = [[token % 9 + 1 for token in tokens] for tokens in DOCUMENTS]
    changed = [*same_size[:-1], [token % 9 + 1 for token in same_size[-1]]]
    source, out = write_source(tmp_path / name, same_size), tmp_path / "out"
    pack(source, out)
    times = source.stat()
    if hides:
        keeping_times(source, lambda: write_source(source, changed))
    else:
        write_source(source, changed)
    code, _, error = invoke(*pack_command(source, out))
    assert code == 1
    assert error.splitlines()[-1].startswith(f"packer: {out} is complete, packed from a source that has changed since")
    assert times.st_size == source.stat().st_size or "gz" in name or "parquet" in name


@pytest.mark.parametrize("name", ["source.arrow", "source.jsonl"])
def test_a_touched_source_is_compared_and_the_message_says_so(tmp_path, name):
    source, out = write_source(tmp_path / name, DOCUMENTS), tmp_path / "out"
    pack(source, out)
    code, text, error = invoke(*pack_command(source, out))
    assert (code, error) == (0, "")
    assert "nothing to do (its shards have the recorded sizes, and no source file was written since)" in text
    os.utime(source)
    code, text, error = invoke(*pack_command(source, out))
    assert (code, error.count("\n")) == (0, 1)
    assert "comparing every token" in error
    assert "nothing to do (its shards have the recorded sizes, and hold every token of the source)" in text


def test_a_source_without_file_times_is_compared_by_its_tokens(tmp_path):
    out = tmp_path / "out"
    manifest = pack(datasets.Dataset.from_dict({"input_ids": DOCUMENTS}), out)
    assert pack(datasets.Dataset.from_dict({"input_ids": DOCUMENTS}), out) == manifest
    with pytest.raises(packer.PackerError, match="a source that has changed since"):
        pack(datasets.Dataset.from_dict({"input_ids": CHANGED}), out)


@pytest.mark.parametrize("damage", ["missing", "other bytes", "source"])
def test_a_damaged_tokenized_dataset_is_not_complete(tmp_path, tokenizer, damage):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": f"The quick fox {number}"}) + "\n" for number in range(9)))
    command = ("tokenize", source, "-o", out, "--tokenizer", tokenizer)
    assert invoke(*command)[0] == 0
    expected = hashes(out)
    assert "nothing to do (its shards have the recorded sizes, and no source file" in invoke(*command)[1]
    shard = out / "data-00000-of-00001.arrow"
    if damage == "missing":
        shard.unlink()
    elif damage == "other bytes":
        shard.write_bytes(bytes(shard.stat().st_size))
    else:
        source.write_text(source.read_text().replace("quick", "kciuq"))
    code, _, error = invoke(*command)
    assert (code, error.count("\n")) == (1, 1)
    assert str(source if damage == "source" else shard) in error
    assert invoke(*command, "--overwrite")[0] == 0
    assert (hashes(out) == expected) == (damage != "source")
