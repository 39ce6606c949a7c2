"""A wrong value in any field of a manifest gives a one-line error in every command, and never a traceback."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import packer
from packer.shards.files import MANIFEST
from packer.shards.manifest import checksum
from tests.helpers.commands import run
from tests.helpers.effort import FUZZ
from tests.helpers.json_paths import replaced, values_in
from tests.helpers.writing import write_ipc

WRONG = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 0.5, -0.5, float("nan"), float("inf")),
    *("", "x", "../x", "\ud800", "a\nb", [], {}, [[]], [None], [1], ["x"], {"x": 1}, {"": {}}),
]
DEEP = json.loads("[" * 900 + "]" * 900)


KINDS = {
    "plain": {"max_len": 8, "shard_size": 300},
    "grouped": {"max_len": 8, "keep": ["k"], "keep_tokens": ["t"], "group_by": "k", "align": 4, "max_segments": 5},
    "few segments": {"max_len": 8, "max_segments": 3},
}


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory) -> tuple[Path, list[str], list[str]]:
    """Return a packed dataset, the command that packs it again, and the source arguments for `verify`."""
    folder, options = tmp_path_factory.mktemp("made"), KINDS[request.param]
    lengths = [3, 5, 2, 8, 11, 1, 4, 4, 6, 2]
    tokens = [list(range(1, length + 1)) for length in lengths]
    table = {"input_ids": tokens, "t": tokens, "k": [f"k{number % 3}" for number in range(len(lengths))]}
    source = folder / "a.arrow"
    write_ipc(source, pa.table(table))
    packer.pack(source, folder / "packed", sync=False, **options)
    names = {"keep_tokens": "--keep-tokens", "max_len": "--max-len", "max_segments": "--max-segments"}
    again = ["pack", "-o", str(folder / "packed")]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            option = names.get(name, f"--{name.replace('_', '-')}")
            again += [option, *(() if one is True else (str(one),))]
    return folder / "packed", [*again, str(source)], ["--source", str(source)]


def faults(folder: Path, commands: list[list[str]]) -> Iterator[str]:
    """Run commands; yield every outcome that is neither a success nor a one-line error."""
    for command in commands:
        done = run(*command)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            yield f"{command[0]}: {done.exception!r}"
        elif done.exit_code not in ((0, 1, 3) if command[0] == "verify" else (0, 1)):
            yield f"{command[0]}: exit code {done.exit_code}: {done.output}"
        elif done.exit_code == 1 and command[0] != "verify" and len(done.stderr.splitlines()) != 1:
            yield f"{command[0]}: {done.stderr}"
        elif max(map(len, done.stderr.splitlines()), default=0) > 1000:
            yield f"{command[0]}: a long line: {done.stderr[:200]}"
    try:
        for row in packer.load(folder):
            assert row
    except packer.PackerError:
        pass
    except Exception as error:
        yield f"load: {error!r}"


def try_values(made, tmp_path: Path, values: list[Any], *, every: int = 1) -> list[str]:
    packed, again, of_source = made
    folder = tmp_path / "packed"
    again = [str(folder) if argument == str(packed) else argument for argument in again]
    commands = [
        ["verify", str(folder)],
        ["verify", str(folder), *of_source],
        ["show", str(folder), "0"],
        ["stats", str(folder)],
        ["export", str(folder), "--to", "parquet", "-o", str(tmp_path / "out"), "--overwrite", "--no-sync"],
        again,
    ]
    shutil.copytree(packed, folder)
    content = json.loads((packed / MANIFEST).read_bytes())
    del content["checksum"]
    assert {run(*command).exit_code for command in commands} == {0}
    wrong = []
    cases = [(path, value) for path, _ in values_in(content) for value in values if path or value is not ...]
    for path, value in cases[::every]:
        changed = replaced(content, path, value)
        if isinstance(changed, dict) and value is not DEEP:
            changed["checksum"] = checksum(changed)
        (folder / MANIFEST).write_text(json.dumps(changed, indent=None if value is DEEP else 1) + "\n")
        wrong += [f"{path} = {str(value)[:20]}: {fault}" for fault in faults(folder, commands)]
        assert len(wrong) < 20, "\n".join(wrong)
    return wrong


@pytest.mark.nightly(after=1)
def test_wrong_or_missing_fields_give_a_one_line_error(made, tmp_path):
    assert try_values(made, tmp_path, [*WRONG, ...], every=23) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_more_wrong_fields_give_a_one_line_error(made, tmp_path):
    assert try_values(made, tmp_path, [*WRONG, ...], every=max(1, 15 // FUZZ)) == []


@pytest.mark.nightly(after=1)
def test_a_deeply_nested_field_gives_a_one_line_error(made, tmp_path):
    assert try_values(made, tmp_path, [DEEP], every=7) == []
    packed, _, _ = made
    for where in (
        (),
        ("options",),
        ("options", "later"),
        ("totals", "later"),
        ("source", "later"),
        ("shards", "later"),
        ("later",),
    ):
        content = json.loads((packed / MANIFEST).read_bytes())
        (tmp_path / "packed" / MANIFEST).write_text(json.dumps(replaced(content, where, DEEP)))
        assert list(faults(tmp_path / "packed", [["verify", str(tmp_path / "packed")]])) == []


def test_the_message_names_field_value_and_expected_kind(made, tmp_path):
    packed, _, _ = made
    shutil.copytree(packed, tmp_path / "packed")
    content = json.loads((packed / MANIFEST).read_bytes())
    for path, value, words in (
        (("shards", "rows"), ["many"], "shards.rows is not a list of whole numbers"),
        (("options", "max_len"), 2**24 + 1, "options.max_len is 16777217, not a whole number from 1 to 16777216"),
        (
            ("totals", "rows"),
            "many",
            'totals.rows is "many", not a whole number from 1 to 9223372036854775807',
        ),
        (
            ("totals", "documents_dropped", "empty"),
            None,
            "totals.documents_dropped.empty is null, not a whole number",
        ),
        (("source", "files", 0), 5, "source.files[0] is 5, not an object"),
        (("files",), [1], "files is [1], not an object"),
        (
            ("totals", "efficiency"),
            float("nan"),
            "totals.efficiency is NaN, not a number from 0",
        ),
        (("options", "seed"), [[]], "options.seed is [[]], not a whole number from 0"),
        (("totals", "rows"), ..., "no 'rows'"),
    ):
        (tmp_path / "packed" / MANIFEST).write_text(json.dumps(replaced(content, path, value)))
        with pytest.raises(packer.PackerError) as error:
            packer.load(tmp_path / "packed")
        assert f"{MANIFEST} is damaged ({words}" in str(error.value)
        assert str(error.value).endswith("restore it, or pack again to another folder")


def test_fields_of_a_later_version_are_ignored(made, tmp_path):
    packed, _, _ = made
    shutil.copytree(packed, tmp_path / "packed")
    content = json.loads((packed / MANIFEST).read_bytes())
    content |= {"later": [{"x": None}]}
    for part in (content["options"], content["source"], content["totals"], content["shards"]):
        part["later"] = {"x": [[1], -1, "?"]}
    (tmp_path / "packed" / MANIFEST).write_text(json.dumps(content))
    assert len(packer.load(tmp_path / "packed")) == content["totals"]["rows"]
