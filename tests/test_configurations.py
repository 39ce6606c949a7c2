"""A folder's README.md says which files form which configuration and split, as `datasets` reads it."""

import json
import os
import subprocess
import sys

import datasets
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import packer
from tests.helpers.commands import run, succeeded
from tests.helpers.fake_hub import served
from tests.helpers.opening import open_source
from tests.helpers.remote_sources import upload
from tests.helpers.splits import refused, save

FILES = [
    "heldout.jsonl",
    "sft.jsonl",
    "data/train-00000-of-00001.jsonl",
    "data/test-00000-of-00001.jsonl",
    "main/train.jsonl",
    "main/test.jsonl",
    "main/more/train-2.jsonl",
    "socratic/train.jsonl",
    "__cache/train.jsonl",
]


def describe(folder, *configs):
    """Write a README.md with these configurations, and other files that are no data."""
    folder.mkdir(exist_ok=True, parents=True)
    front = yaml.safe_dump({"license": "mit", "configs": list(configs)}, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{front}---\n# A data set\n\n---\n")
    (folder / "config.json").write_text("{}")
    return folder


def config(name, data_files=None, **more):
    return {"config_name": name, **({} if data_files is None else {"data_files": data_files}), **more}


def splits(**patterns):
    return [{"split": split, "path": path} for split, path in patterns.items()]


def as_datasets_sorts(folder, name=None):
    """Return the files of each split as `load_dataset` resolves them, or None if it fails."""
    try:
        builder = datasets.load_dataset_builder(str(folder), name)
    except (ValueError, TypeError, FileNotFoundError):
        return None
    found = builder.config.data_files.items()
    return {str(split): [os.path.relpath(path, folder) for path in paths] for split, paths in found}


def names_of(source, split=None):
    return [file.name for file in open_source(source, split=split).files]


# ---- the files of a split ----

FORMS = {
    "a path": "sft.jsonl",
    "paths": ["sft.jsonl", "heldout.jsonl"],
    "patterns": ["main/*.jsonl", "s*.jsonl"],
    "splits": splits(train="sft.jsonl", test="heldout.jsonl"),
    "splits of paths": splits(train=["main/train.jsonl", "socratic/*"], held=["heldout.jsonl"]),
    "any depth": splits(train="**/train*.jsonl"),
    "a folder and below": splits(train="main/**"),
    "below a folder": splits(train="main/**/*-2.jsonl"),
    "one character": splits(train="s?t.jsonl", test="[gh]*.jsonl"),
    "not these characters": splits(train="[!s]*.jsonl"),
    "everything at the top": splits(train="*"),
    "a folder of a tool, by name": splits(train="__cache/*"),
    "from here": splits(train="./main/./train.jsonl"),
    "names": None,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_configurations_are_those_that_datasets_finds(tmp_path, form):
    folder = describe(save(tmp_path / "hub", FILES), config("main", FORMS[form]))
    expected = as_datasets_sorts(folder)
    assert expected
    for split, files in expected.items():
        assert names_of(folder, split) == names_of(f"{folder}:main", split) == files
    if len(expected) == 1:
        assert names_of(folder) == files
    assert f"(found: {', '.join(expected)})" in refused(folder, "no-such-split")


def test_a_folder_of_its_own_says_what_is_in_it(tmp_path):
    folder = save(tmp_path / "hub", [*FILES, "main/main/train.jsonl"])
    describe(folder, config("main", data_dir="main"), config("socratic", "main/train.jsonl", data_dir="main"))
    assert as_datasets_sorts(folder, "main") == {
        "train": names_of(f"{folder}:main", "train"), "test": names_of(f"{folder}:main", "test")
    }  # fmt: skip
    assert names_of(f"{folder}:socratic") == ["main/main/train.jsonl"]


def test_documents_are_read_in_the_order_of_datasets(tmp_path):
    folder = describe(save(tmp_path / "hub", FILES), config("main", ["socratic/*", "main/*.jsonl", "heldout.jsonl"]))
    packed = packer.pack(str(folder), tmp_path / "out", max_len=4, algorithm="sequential").path
    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert packer.load(packed)[0]["input_ids"].tolist() == [row["input_ids"][0] for row in loaded]


PARTS = st.sampled_from(["main", "socratic", "more", "*", "**", "m*", "[ms]*", "data", "__*", "__cache"])
ENDS = st.sampled_from(
    ["train.jsonl", "*.jsonl", "*", "**", "t*", "*-2.jsonl", "te?t.jsonl", "[!t]*", "**.jsonl", "none.jsonl", "*.md"]
)
PATTERNS = st.builds(
    lambda here, parts, end: "/".join([*here, *parts, end]),
    st.sampled_from([[], ["."]]),
    st.lists(PARTS, max_size=2),
    ENDS,
)


@given(patterns=st.lists(PATTERNS, min_size=1, max_size=2))
def test_patterns_match_what_datasets_matches_or_are_refused(tmp_path_factory, patterns):
    folder = tmp_path_factory.mktemp("any") / "hub"
    describe(save(folder, FILES), config("main", patterns))
    alone = [as_datasets_sorts(describe(folder, config("main", [pattern]))) for pattern in patterns]
    describe(folder, config("main", patterns))
    expected = as_datasets_sorts(folder)
    if all(alone) and len(set(expected["train"])) == len(expected["train"]):
        assert names_of(folder) == expected["train"]
    else:
        assert "README.md gives" in refused(folder)


def test_a_folder_is_all_that_is_in_it_and_splits_may_be_keys(tmp_path):
    folder = describe(
        save(tmp_path / "hub", FILES), config("main", {"train": ["main", "sft.jsonl"], "test": "heldout.jsonl"})
    )
    assert names_of(folder, "train") == ["main/more/train-2.jsonl", "main/test.jsonl", "main/train.jsonl", "sft.jsonl"]
    assert names_of(folder, "test") == ["heldout.jsonl"]


def test_text_beside_data_is_left_out_and_said(tmp_path, caplog):
    folder = save(tmp_path / "hub", ["train.jsonl", "test.jsonl"])
    (folder / "train.txt").write_text("notes")
    describe(folder, config("main", splits(train="train*")))
    with caplog.at_level("INFO", logger="packer"):
        assert names_of(folder) == ["train.jsonl"]
    assert "1 of 3 files are read, as README.md says" in caplog.text


# ---- which configuration ----

MAIN, SOCRATIC = config("main", "main/train.jsonl"), config("socratic", "socratic/train.jsonl")


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        ([MAIN], "main/train.jsonl"),
        ([MAIN, SOCRATIC | {"default": True}], "socratic/train.jsonl"),
        ([MAIN, SOCRATIC | {"config_name": "default"}], "socratic/train.jsonl"),
        ([MAIN, SOCRATIC | {"default": False}], None),
        ([MAIN | {"default": True}, SOCRATIC | {"default": True}], None),
    ],
)
def test_the_default_is_read_if_none_is_named(tmp_path, configs, found):
    folder = describe(save(tmp_path / "hub", FILES), *configs)
    if found:
        assert names_of(folder) == as_datasets_sorts(folder)["train"] == [found]
    else:
        assert as_datasets_sorts(folder) is None
        defaults = sum(each.get("default", False) for each in configs)
        assert refused(folder) == (
            f"{folder}: its README.md names 2 configurations (main, socratic), {defaults or 'none'} of them as the "
            f"default; name one, as in {folder}:main"
        )
    assert names_of(f"{folder}:main") == ["main/train.jsonl"]
    assert "there is no such configuration (found: main" in refused(f"{folder}:other")


def test_an_existing_path_wins_and_files_that_are_named_ignore_the_readme(tmp_path):
    folder = describe(save(tmp_path / "hub", FILES), MAIN, SOCRATIC)
    save(tmp_path / "hub:main", ["other.jsonl"])
    assert names_of(f"{tmp_path}/hub:main") == ["other.jsonl"]
    assert names_of(folder / "main" / "test.jsonl") == ["test.jsonl"]
    assert names_of(folder / "socratic") == ["train.jsonl"]
    assert len(names_of(sorted(folder.glob("*/*.jsonl")))) == 6


def test_folders_without_configurations_say_so(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1]]}).save_to_disk(tmp_path / "saved")
    save(tmp_path / "plain", FILES)
    (tmp_path / "plain" / "README.md").write_text("---\nlicense: mit\n---\nThere are no configs.\n")
    for name in ("saved", "plain"):
        assert refused(f"{tmp_path / name}:main").endswith("no such configuration (found: none); leave :main out")
    assert "form 2 splits (train, test)" in refused(tmp_path / "plain")
    assert "no such file or folder" in refused(f"{tmp_path}/nothing/at/all:main")


def test_several_folders_may_have_configurations_and_share_a_split(tmp_path):
    one = describe(save(tmp_path / "one", FILES), MAIN, config("held", splits(train="sft.jsonl", test="heldout.jsonl")))
    two = describe(
        save(tmp_path / "two", ["a.jsonl", "b.jsonl"]), config("default", splits(train="b.jsonl", test="a.jsonl"))
    )
    assert names_of([f"{one}:held", two], "test") == ["one/heldout.jsonl", "two/a.jsonl"]
    message = refused(tmp_path)
    assert "contains 2 folder(s) with configs in README.md" in message
    assert message.endswith("give one of them as the source")


def test_configurations_are_read_in_object_storage(tmp_path, bucket):
    remote = upload(describe(save(tmp_path / "hub", FILES), MAIN, SOCRATIC), bucket / "hub")
    assert "names 2 configurations (main, socratic)" in refused(str(remote))
    assert names_of(f"{remote}:socratic") == names_of(f"{remote}:socratic", "train") == ["socratic/train.jsonl"]
    assert "no such configuration (found: main, socratic)" in refused(f"{remote}:other")
    assert "no such object" in refused(f"{remote}-2:main")
    save(tmp_path / "plain", ["a.jsonl"])
    named = upload(tmp_path / "plain", bucket / "hub:main")
    assert names_of(str(named)) == ["a.jsonl"]


MALFORMED = {
    "a list of lists": [["main", "main/*"]],
    "no name": [{"data_files": "sft.jsonl"}],
    "a name that is no text": [config(1, "sft.jsonl")],
    "no path": [config("main", [{"split": "train"}])],
    "a split twice": [config("main", [*splits(train="sft.jsonl"), *splits(train="heldout.jsonl")])],
    "paths and splits": [config("main", ["heldout.jsonl", *splits(train="sft.jsonl")])],
    "a number": [config("main", splits(train=3))],
    "text": "main",
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_configurations_that_cannot_be_read_are_refused(tmp_path, fault):
    folder = save(tmp_path / "hub", FILES)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': MALFORMED[fault]})}---\n")
    assert as_datasets_sorts(folder) is None
    assert "README.md: its configs, which say what files form which split, cannot be read (" in refused(folder)
    (folder / "README.md").write_text("---\nconfigs: [\n---\n")
    assert "; correct them, or name the files" in refused(folder)


# ---- in commands ----


def test_every_command_takes_a_configuration_and_tells_it_from_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    describe(save(tmp_path / "hub", FILES), MAIN, SOCRATIC)
    assert "Written to hub-main-train-packed-8" in succeeded("pack", "hub:main", "--split", "train", "--max-len", 8)
    assert succeeded("stats", "hub:main").startswith("1 document, 1 token")
    succeeded("verify", "hub-main-train-packed-8", "--source", "hub:main")
    assert run("verify", "hub-main-train-packed-8", "--source", "hub:socratic").exit_code == 3
    options = ("--split", "train", "--max-len", 8, "-o")
    for command, words in (
        (
            ("pack", "hub:socratic", *options, "hub-main-train-packed-8"),
            "source files (main/train.jsonl, not socratic/",
        ),
        (("pack", "hub:main", *options, "hub/out"), "is inside the source hub:main"),
        (("verify", "hub-main-train-packed-8", "--source", "hub"), "name one, as in hub:main"),
    ):
        done = run(*command)
        assert done.exit_code == 1
        assert words in done.stderr.splitlines()[-1]


HUB = """
import json, sys, packer
found = []
for source, split in json.loads(sys.argv[1]):
    try:
        manifest = packer.pack(source, f"out-{len(found)}", max_len=8, split=split)
        rows = packer.load(manifest.path)
        found.append([[file.name for file in manifest.source.files], rows[0]["input_ids"].tolist()])
    except packer.PackerError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def test_a_configuration_of_the_hub_is_named_after_its_id(tmp_path):
    """A server imitates the Hub; the second process has what the first one downloaded, and no network."""
    describe(
        save(tmp_path / "hub", FILES),
        config("main", splits(train="main/train.jsonl", test="main/test.jsonl")),
        SOCRATIC,
    )
    wanted = [
        ("openai/gsm8k", "train"),
        ("openai/gsm8k:main", "train"),
        ("openai/gsm8k:main", None),
        ("openai/gsm8k:main", "dev"),
        ("openai/gsm8k:other", None),
    ]
    with served(tmp_path / "hub", "openai/gsm8k") as address:
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}

        def packed(sources, **more):
            command = [sys.executable, "-c", HUB, json.dumps(sources)]
            done = subprocess.run(
                command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
            )
            return json.loads(done.stdout)

        several, main, splits_of_main, no_split, no_config = packed(wanted)
    assert several == "openai/gsm8k: has several configurations (main, socratic); name one, as in openai/gsm8k:main"
    number = FILES.index("main/train.jsonl")
    assert main == [["openai/gsm8k:main"], [number, *[0] * 7]]
    assert splits_of_main == "openai/gsm8k:main: has 2 splits (train, test); choose one, as in split='train'"
    assert no_split == "split dev: openai/gsm8k:main has no such split (found: train, test); choose one of these"
    assert no_config.startswith("openai/gsm8k: there is no such configuration (main, socratic); name one")
    (again,) = packed([("openai/gsm8k:main", "train")], HF_HUB_OFFLINE="1")
    assert again == main
