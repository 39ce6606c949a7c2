"""A dataset on the Hugging Face Hub is packed and loaded by its id or address; an export is uploaded as it is.

A server on this machine imitates the Hub, in processes that have nothing of it in their cache.
"""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import packer
from tests.helpers.commands import succeeded
from tests.helpers.fake_hub import served
from tests.helpers.packed_rows import make, rows_on_disk
from tests.helpers.writing import write_lines

pytest.importorskip("huggingface_hub")

ROOT = Path(__file__).parent.parent
ROWS = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
LOOK = """
import json, shlex, sys
from click.testing import CliRunner
import packer
from packer.cli import cli
for command in sys.argv[2:]:
    done = CliRunner().invoke(cli, shlex.split(command))
    print(json.dumps(done.stdout or done.stderr))
for name in json.loads(sys.argv[1]):
    try:
        found = [row["input_ids"].tolist() for row in packer.load(name)]
    except packer.PackerError as error:
        found = str(error)
    print(json.dumps(found))
"""


@pytest.fixture
def hub(tmp_path):
    """Folder of a dataset on the Hub: packed rows, packed rows in a folder, and JSON lines in another."""
    folder = tmp_path / "hub"
    for name in ("lines", "more/rows"):
        (folder / name).mkdir(parents=True)
    write_lines(folder / "lines" / "a.jsonl", ROWS)
    packer.pack(folder / "lines" / "a.jsonl", tmp_path / "out", max_len=8)
    for file in (tmp_path / "out").iterdir():
        for place in (folder, folder / "more" / "rows"):
            (place / file.name).write_bytes(file.read_bytes())
    return folder


COMMANDS = [
    "verify org/x",
    "show hf://datasets/org/x 0",
    "stats org/x",
    "export hf://datasets/org/x --to hub",
    "export hf://datasets/org/x/more/rows --to parquet",
    "pack org/x --max-len 8",
    "stats org/none",
]
"""Commands for packed rows on the Hub, and for a dataset that is not there."""


def run(tmp_path, address, *command, **more):
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"} | more
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def test_packed_rows_on_the_hub_are_loaded_by_id_or_address_and_again_without_a_network(tmp_path, hub):
    rows = [row["input_ids"].tolist() for row in packer.load(tmp_path / "out")]
    names = ["org/x", "hf://datasets/org/x", "hf:/datasets/org/x/", "hf://datasets/org/x@refs/pr/1/more/rows"]
    wrong = ["org/none", "hf://datasets/org/x/none", "hf://models/org/x"]
    with served(hub, "org/x") as address:
        printed = run(tmp_path, address, "-c", LOOK, json.dumps(names + wrong), *COMMANDS)
    verified, shown, figures, exported, of_part, refused, nowhere, *found = map(json.loads, printed.splitlines())
    assert verified == "org/x is verified: hashes and structure (1 rows, 5 tokens)\n"
    assert "padding" in shown
    assert "1 row of 8 tokens; the fewest possible" in figures
    assert "Written to x-hub\n" in exported
    assert packer.verify(tmp_path / "x-hub")
    assert "Written to rows-parquet\n" in of_part
    assert refused.startswith("packer: org/x is packed already: pack the source that it was packed from")
    assert nowhere.startswith("packer: org/none: neither a local path nor a dataset on the Hugging Face Hub (")
    assert found[: len(names)] == [rows] * len(names)
    none, inside, other = found[len(names) :]
    assert none.startswith("org/none: neither a local path nor a dataset on the Hugging Face Hub (")
    assert inside == "org/x on the Hugging Face Hub has no none: check the path"
    assert other.startswith("hf://models/org/x: an address on the Hub is like hf://datasets/org/name")
    again = run(tmp_path, "http://127.0.0.1:9", "-c", LOOK, json.dumps(names), HF_HUB_OFFLINE="1")
    assert [json.loads(line) for line in again.splitlines()] == [rows] * len(names)
    unreachable = run(tmp_path, "http://127.0.0.1:9", "-c", LOOK, json.dumps(["org/other"]))
    assert "the Hugging Face Hub cannot be reached" in unreachable


def test_a_part_of_a_dataset_on_the_hub_is_packed_and_the_whole_is_not_downloaded_as_packed_rows(tmp_path, hub):
    (hub / "manifest.json").unlink()
    with served(hub, "org/x") as address:
        commands = ("pack hf://datasets/org/x/lines --max-len 8", "verify org/x")
        printed = run(tmp_path, address, "-c", LOOK, "[]", *commands)
    packed, refused = map(json.loads, printed.splitlines())
    assert "Packed 2 documents into 1 row of 8 tokens" in packed
    assert "Written to lines-packed-8\n" in packed
    assert [row["input_ids"].tolist() for row in packer.load(tmp_path / "lines-packed-8")] == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert "org/x on the Hugging Face Hub is not a packed dataset: it has no manifest.json; if a folder" in refused
    assert not [*tmp_path.glob("home/**/*.arrow")]


# ---- the export for the Hub ----


WEIGHTED = [{**row, "loss_weights": [0.5] * len(row["input_ids"])} for row in ROWS]
PAIRS = [
    {
        "chosen_input_ids": [n, 1, 2],
        "chosen_labels": [-100, 1, 2],
        "rejected_input_ids": [n, 3],
        "rejected_labels": [-100, 3],
    }
    for n in (6, 7)
]
KINDS = {
    "tokens": (ROWS, {"keep": ["topic|"], "add_column": ["position_ids"], "align": 2}),
    "trees": (PAIRS, {"pairs": True}),
    "weights": (WEIGHTED, {}),
    "held out": ([{"input_ids": [n, n + 1]} for n in range(20)], {"holdout": 0.5}),
    "no labels": (ROWS, {"labels": False}),
}


def exported(tmp_path, kind="tokens", **more):
    """Return the folders of a packed dataset and its export for the Hub."""
    rows, options = KINDS[kind]
    source = write_lines(tmp_path / "source.jsonl", [{"topic|": "a", **row} for row in rows])
    packed = tmp_path / "packed"
    packer.pack(source, packed, max_len=8, sync=False, **options)
    packed = packed.with_name("packed-holdout") if kind == "held out" else packed
    packer.export(packed, tmp_path / "out", to="hub", **more)
    return packed, tmp_path / "out"


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_for_the_hub_is_the_packed_dataset_and_a_card_that_datasets_reads(tmp_path, kind):
    datasets = pytest.importorskip("datasets")
    packed, out = exported(tmp_path, kind)
    for file in packed.iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
        assert (out / file.name).samefile(file) == (file.suffix == ".arrow")
    assert packer.verify(out)
    others = {path.name for path in out.iterdir()} - {path.name for path in packed.iterdir()}
    assert others == {"README.md", "_export.json"}
    assert datasets.load_from_disk(str(out)).to_list() == rows_on_disk(packed)
    with pytest.raises(ValueError, match="Please use `load_from_disk` instead"):
        datasets.load_dataset(str(out))
    (out / "state.json").unlink()  # `load_dataset` does not look for it on the Hub
    split = "test" if kind == "held out" else "train"
    rows = datasets.load_dataset(str(out), split=split, streaming=True)
    assert list(rows) == rows_on_disk(packed)
    assert f"\n{packer.stats(packed).totals.rows} row" in (out / "README.md").read_text()
    table = re.findall(r"(?m)^\| `(.+?)` \| (token|segment) \|", (out / "README.md").read_text())
    assert [name.replace("\\|", "|") for name, _ in table] == rows.column_names
    for name, per in table:
        lengths = {len(row[name.replace("\\|", "|")]) for row in rows}
        assert (lengths == {8}) == (per == "token") or kind == "no labels"


def test_a_card_that_was_edited_is_kept(tmp_path):
    packed, out = exported(tmp_path)
    packer.export(packed, out, to="hub", overwrite=True)
    card = out / "README.md"
    made = card.read_text()
    assert not (out / "README.md.old").exists()
    card.write_text("license: mit")
    packer.export(packed, out, to="hub")
    assert card.read_text() == "license: mit"
    packer.export(packed, out, to="hub", overwrite=True)
    assert (card.read_text(), (out / "README.md.old").read_text()) == (made, "license: mit")


def test_a_card_tells_what_happened_to_the_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"input_ids": [n] * 10, "n": n} for n in range(1, 21)]
    packer.pack(write_lines(Path("rows.jsonl"), rows), "my set", max_len=8, long="truncate", holdout=0.5, keep=["n"])
    for packed in ("my set", "my set-holdout"):
        printed = succeeded("export", packed, "--to", "hub")
        assert f"hf upload ORG/NAME '{packed}-hub' . --repo-type" in printed
        card = Path(f"{packed}-hub", "README.md").read_text()
        documents = len(packer.load(packed))
        assert f"| documents | {documents} of 20 in the source |" in card
        assert f"| tokens | {documents * 8}; {documents * 2} of the source were truncated or dropped |" in card
        assert "| `n` | segment | value of the document in the source; 0 or null for padding |" in card


def test_an_export_for_the_hub_is_copied_where_there_are_no_links_and_needs_unchanged_tokens(tmp_path, monkeypatch):
    packed, _ = exported(tmp_path)

    def refused(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    packer.export(packed, tmp_path / "copy", to="hub")
    shard = next(packed.glob("*.arrow"))
    assert not (tmp_path / "copy" / shard.name).samefile(shard)
    assert packer.verify(tmp_path / "copy")
    shard.write_bytes(shard.read_bytes().replace(b"\4\0\0\0\5\0", b"\4\0\0\0\6\0"))
    with pytest.raises(packer.PackerError, match="does not match its hash in the manifest: changed after packing"):
        packer.export(packed, tmp_path / "changed", to="hub")
    index = make(tmp_path / "index", index_only=True, add_column=[])
    with pytest.raises(packer.PackerError, match="is an index without tokens"):
        packer.export(index, to="hub")


RUN_LINES = """
import json, re, shlex, sys
from pathlib import Path
from click.testing import CliRunner
from packer.cli import cli
page = Path(sys.argv[1]).read_text().replace("ORG/NAME", "org/x").rpartition("## Upload")[2].partition("## Load")
for language, block in re.findall(r"```(python|bash)\\n(.*?)```", page[2] or page[0], re.S):
    if language == "python":
        exec(block, found := {})
        batches = found.get("batches", [])
        print(json.dumps(sorted(token for batch in batches for token in batch["input_ids"].flatten().tolist())))
    else:
        print(json.dumps([CliRunner().invoke(cli, shlex.split(line)[1:]).exit_code for line in block.splitlines()]))
"""
"""Runs the lines of a card, or of the page The Hub from "Load" on; prints tokens of batches, and exit codes."""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_of_code_in_the_card_runs(tmp_path, kind):
    pytest.importorskip("torch")
    packed, out = exported(tmp_path, kind)
    with served(out, "org/x") as address:
        printed = run(tmp_path, address, "-c", RUN_LINES, out / "README.md")
    loaded, streamed, commands = map(json.loads, printed.splitlines())
    more = {"format": "tree"} if kind == "trees" else {"loss_weights": "weight"} if kind == "weights" else {}
    batches = packer.batches(packed, 4, tensors="numpy", **more)
    assert loaded == streamed == sorted(token for batch in batches for token in batch["input_ids"].ravel().tolist())
    assert commands == [0, 0]


@pytest.mark.nightly
def test_the_lines_of_the_page_run_that_need_the_hub(tmp_path):
    pytest.importorskip("torch")
    _, out = exported(tmp_path)
    with served(out, "org/web-packed-1024") as address:
        printed = run(tmp_path, address, "-c", RUN_LINES, ROOT / "docs/how-to/hub.md")
    assert [json.loads(line) for line in printed.splitlines()] == [[], [0] * 4, []]
    assert (tmp_path / "web-packed-1024-maxtext").is_dir()
