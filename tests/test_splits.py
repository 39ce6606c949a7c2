"""Splits are recognized by file names as `datasets` does, and are never mixed."""

import json

import pytest
from datasets.data_files import get_data_patterns, resolve_pattern

from packer.sources.hugging_face import splits_of
from packer.stores.paths import PathList
from tests.helpers.commands import run
from tests.helpers.opening import open_source
from tests.helpers.splits import refused, save, tokens_of


def as_datasets_sorts(folder):
    """Return the files of each split as `load_dataset` resolves them."""
    splits = {}
    for split, patterns in get_data_patterns(str(folder)).items():
        found = set()
        for pattern in patterns:
            try:
                found |= {path.removeprefix(f"{folder}/") for path in resolve_pattern(pattern, str(folder))}
            except FileNotFoundError:  # the other patterns match
                continue
        splits[str(split)] = sorted(found)
    return splits


# ---- which file is in which split ----

LAYOUTS = {
    "shards": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
               "data/test-00000-of-00001-abc.parquet", "data/random-00000-of-00001.parquet"],
    "shards decide": ["data/extra-00000-of-00001.parquet", "data/train.parquet", "test/a.parquet"],
    "files": ["train.jsonl", "test.jsonl"],
    "numbered files": ["train_0.jsonl", "train_1.jsonl", "web-dev.v2.jsonl", "eval 3.jsonl"],
    "folders": ["train/a.jsonl", "test/b/a.jsonl"],
    "folders below": ["data/en-training.v1/a.jsonl", "data/valid/a.jsonl", "data/other/train.jsonl"],
    "no word of its own": ["contest.jsonl", "trained.jsonl", "mytrain/a.jsonl", "devel-1.jsonl"],
    "capitals": ["Train.jsonl", "TEST-1.jsonl"],
    "both words": ["train-test.jsonl", "val.jsonl"],
    "one split": ["train/a.jsonl", "train/b.jsonl"],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_those_that_datasets_finds(tmp_path, layout):
    save(tmp_path, LAYOUTS[layout])
    found = {split: sorted(names) for split, names in splits_of(sorted(LAYOUTS[layout])).items()}
    expected = as_datasets_sorts(tmp_path)
    assert found == ({} if layout in ("no word of its own", "capitals") else expected)
    assert list(found or {"train": 0}) == list(expected)


# ---- which split is read ----


def test_one_of_several_splits_must_be_chosen(tmp_path):
    save(tmp_path, LAYOUTS["shards"])
    message = refused(tmp_path)
    assert message.startswith(
        f"{tmp_path}: its files form 3 splits (train, test, random); choose one, as in --split train"
    )
    assert tokens_of(tmp_path, "train") == [0, 1]
    assert tokens_of(tmp_path, "random") == [3]
    assert "no such split (found: train, test, random)" in refused(tmp_path, "validation")
    assert [file.name for file in open_source(tmp_path, split="test").files] == ["data/test-00000-of-00001-abc.parquet"]


def test_the_only_split_needs_no_choice(tmp_path):
    save(tmp_path, LAYOUTS["one split"])
    assert tokens_of(tmp_path) == tokens_of(tmp_path, "train") == [0, 1]
    assert "no such split (found: train)" in refused(tmp_path, "test")


def test_files_in_no_split_are_neither_read_nor_left_out_silently(tmp_path, caplog):
    save(tmp_path, ["web.jsonl", "books.jsonl", "dev.jsonl"])
    message = refused(tmp_path)
    assert "1 of 3 files are in the split validation, such as dev.jsonl, and 2 in no split" in message
    assert message.endswith(f"with --split validation, or name the files, as in {tmp_path}/*")
    with caplog.at_level("INFO", logger="packer"):
        assert tokens_of(tmp_path, "validation") == [2]
    assert "2 of 3 files" in caplog.text
    assert "left out" in caplog.text


def test_files_and_folders_of_a_split_are_read_as_they_are(tmp_path):
    save(tmp_path, ["train/a.jsonl", "test/a.jsonl", "test/b.jsonl"])
    paths = PathList(tuple(sorted(tmp_path.glob("*/*.jsonl"))))
    assert tokens_of(paths) == [0, 1, 2]
    assert tokens_of(tmp_path / "test") == [1, 2]
    assert tokens_of(tmp_path / "test" / "a.jsonl") == [1]
    assert "without splits; leave --split out" in refused(tmp_path / "test" / "a.jsonl", "train")


# ---- in every command ----


@pytest.mark.parametrize("column", ["input_ids", "text"])
def test_every_command_takes_a_split_and_refuses_several(tmp_path, tokenizer, column):
    source = save(tmp_path / "hub", ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], column)
    text = ["--tokenizer", tokenizer] if column == "text" else []
    commands = [["pack", "--max-len", 8], ["stats"], ["stats", "--max-len", 8, "--algorithm", "all"]]
    for command, *options in [*commands, *([["tokenize"]] if text else [])]:
        done = run(command, source, *options, *text)
        assert done.exit_code == 1
        assert "2 splits (train, test); choose one, as in --split train" in done.stderr
        done = run(command, source, *options, *text, "--split", "test", "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found.get("documents", found.get("totals", found.get("source", {})).get("documents")) == 1
    packed = tmp_path / "hub-test-packed-8"
    assert run("verify", packed, "--source", source, *text).exit_code == 0
