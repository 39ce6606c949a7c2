"""Several paths are one source, in the order in which they are given."""

import json
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.opening import open_source
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.sources import read_decoded
from tests.helpers.writing import write_lines

DOCUMENTS = made_documents(200)
OPTIONS = ["--max-len", "64", "--no-sync"]


def write_documents(path, documents):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_lines(path, [{"input_ids": document} for document in documents])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four files of 50 documents each in the folder `data`; the order of their names is that of the documents."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a.jsonl", "b.jsonl", "sub/c.jsonl", "sub/d.jsonl")):
        write_documents(tmp_path / "data" / name, DOCUMENTS[50 * number : 50 * number + 50])
    return Path("data")


def source_of(packed):
    return json.loads(Path(packed, "manifest.json").read_bytes())["source"]


def names_of(packed):
    return [file["name"] for file in source_of(packed)["files"]]


# ---- one source, in this order ----


def test_paths_in_the_order_of_a_folder_are_that_folder(folder):
    succeeded("pack", folder, *OPTIONS, "-o", "folder")
    succeeded("pack", folder / "a.jsonl", folder / "b.jsonl", folder / "sub", *OPTIONS, "-o", "paths")
    assert hashes(Path("paths")) == hashes(Path("folder"))
    assert Path("paths/manifest.json").read_bytes() == Path("folder/manifest.json").read_bytes()
    assert succeeded("verify", "paths", "--source", folder).startswith("paths is verified: hashes, structure and every")
    succeeded(
        "verify", "folder", "--source", folder / "a.jsonl", "--source", folder / "b.jsonl", "--source", folder / "sub"
    )


def test_documents_follow_the_order_of_the_paths(folder):
    given = [folder / "sub", folder / "b.jsonl", folder / "a.jsonl"]
    succeeded(
        "pack", given[0], "--max-len", "64", given[1], "--no-sync", given[2], "-o", "out", "--algorithm", "sequential"
    )
    assert names_of("out") == ["sub/c.jsonl", "sub/d.jsonl", "b.jsonl", "a.jsonl"]
    whole = write_documents(Path("whole.jsonl"), [*DOCUMENTS[100:], *DOCUMENTS[50:100], *DOCUMENTS[:50]])
    succeeded("pack", whole, *OPTIONS, "-o", "whole", "--algorithm", "sequential")
    shards = {name: digest for name, digest in hashes(Path("out")).items() if name.endswith(".arrow")}
    assert shards == {name: digest for name, digest in hashes(Path("whole")).items() if name.endswith(".arrow")}


def test_names_are_relative_to_what_holds_all_paths_so_that_a_move_changes_nothing(folder, tmp_path):
    succeeded("pack", "data/sub/d.jsonl", "data/a.jsonl", *OPTIONS, "-o", "out")
    shutil.copytree(folder, tmp_path / "far" / "away" / "data")
    far = tmp_path / "far" / "away" / "data"
    succeeded("pack", far / "sub" / "d.jsonl", "far/away/../away/data/a.jsonl", *OPTIONS, "-o", "moved")
    assert names_of("out") == ["sub/d.jsonl", "a.jsonl"]
    assert hashes(Path("out")) == hashes(Path("moved"))
    assert str(tmp_path) not in Path("moved/manifest.json").read_text()
    succeeded("verify", "out", "--source", far / "sub" / "d.jsonl", "--source", far / "a.jsonl")


def test_paths_may_have_different_formats(folder, tmp_path):
    table = pa.table({"input_ids": pa.array(DOCUMENTS[50:100], pa.list_(pa.int32()))})
    pq.write_table(table, "b.parquet")
    datasets.Dataset.from_dict({"input_ids": DOCUMENTS[100:150]}).save_to_disk("saved", num_shards=2)
    save_arrow(tmp_path / "d.arrow", DOCUMENTS[150:])
    given = ["data/a.jsonl", "b.parquet", "saved", "d.arrow"]
    mixed = packer.pack(given, "mixed", max_len=64, sync=False)
    whole = packer.pack(write_documents(Path("whole.jsonl"), DOCUMENTS), "whole", max_len=64, sync=False)
    assert [shard.xxh3_128 for shard in mixed.shards] == [shard.xxh3_128 for shard in whole.shards]
    assert list(packer.verify("mixed", given)) == []


def test_python_takes_a_list_of_paths(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    given = [Path("~/data/a.jsonl"), "~/data/b.jsonl"]
    manifest = packer.pack(given, "out", max_len=64, sync=False)
    assert manifest.source.documents == 100
    assert list(packer.verify("out", given)) == []
    alone = packer.pack([folder / "a.jsonl"], max_len=64, sync=False)
    assert Path("data/a-packed-64").is_dir()
    assert alone == packer.pack(folder / "a.jsonl", "a", max_len=64, sync=False)
    with pytest.raises(packer.PackerError, match=r"to mix datasets, pack each of them, and load them together, as in"):
        packer.pack([("data/a.jsonl", 0.7), ("data/b.jsonl", 0.3)], "mixed", max_len=64)
    assert not Path("mixed").exists()


def test_what_is_packed_is_not_packed_again(folder):
    packer.pack(folder / "a.jsonl", "packed", max_len=64, sync=False)
    shard = next(Path("packed").glob("*.arrow"))
    for source in ("packed", ["packed", folder / "b.jsonl"], "./packed/"):
        with pytest.raises(
            packer.PackerError, match=r"packed already: pack the source .* or what `packer tokenize` wrote$"
        ):
            packer.pack(source, "again", max_len=32)
    with pytest.raises(packer.PackerError, match="holds packed rows, not documents: pack the source"):
        packer.pack(shard, "again", max_len=32)
    assert not Path("again").exists()


def test_every_command_takes_several_paths(folder):
    given = [folder / "a.jsonl", folder / "sub"]
    succeeded("pack", *given, *OPTIONS, "-o", "out")
    packs = packer.load("out").manifest.rows
    assert json.loads(succeeded("stats", *given, "--max-len", "64", "--json"))["rows"] == packs
    compared = json.loads(succeeded("stats", *given, "--max-len", "64", "--algorithm", "all", "--json"))
    assert f'"rows": {packs}' in json.dumps(compared)
    assert "nothing to do" in succeeded("pack", *given, *OPTIONS, "-o", "out")
    succeeded("pack", *given, "--max-len", "64", "-o", "of-ranks", "--ranks", "0/1")
    assert hashes(Path("of-ranks")) == hashes(Path("out"))
    assert "from other source files" in refused("pack", *given[::-1], *OPTIONS, "-o", "out")
    assert (
        "a.jsonl and 1 other path"
        in succeeded("stats", *given, "--max-len", "64", "--report", "r.html") + Path("r.html").read_text()
    )


def test_texts_at_several_paths_are_one_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    for number, name in enumerate("ab"):
        write_lines(Path(f"{name}.jsonl"), [{"text": f"{number} fox {at}"} for at in range(30)])
    Path("c.csv").write_text("text\nbrown dogs\n")
    given = ["b.jsonl", "c.csv", "a.jsonl"]
    succeeded("tokenize", *given, "--tokenizer", tokenizer, "-o", "tokens", "--no-sync")
    direct = packer.pack(given, "direct", tokenizer=tokenizer, max_len=64, sync=False)
    once = packer.pack("tokens", "once", max_len=64, sync=False)
    assert direct.shards == once.shards
    assert direct.source.documents == 61
    assert list(packer.verify("direct", given, tokenizer=tokenizer)) == []
    write_documents(Path("more.jsonl"), [[1, 2]])
    assert packer.pack(["more.jsonl", "tokens"], "more", max_len=64, sync=False).options.pad_id == direct.options.pad_id


# ---- splits ----


def test_a_split_is_chosen_in_every_folder_and_files_are_read_whatever_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(
        ("one/train.jsonl", "one/test.jsonl", "two/train.jsonl", "two/test.jsonl", "test.jsonl")
    ):
        write_documents(Path(name), [[number]])

    def tokens(*paths, split=None):
        return [tokens[0] for tokens in read_decoded(open_source([*paths], split=split))[0]]

    assert tokens("two", "one", split="train") == [2, 0]
    assert tokens("test.jsonl", "one", split="train") == [4, 0]
    assert tokens("one/test.jsonl", "two/train.jsonl") == [1, 2]


# ---- what is refused ----


def test_verify_finds_missing_and_reordered_paths(folder):
    given = [folder / "b.jsonl", folder / "a.jsonl", folder / "sub"]
    succeeded("pack", *given, *OPTIONS, "-o", "out")
    in_order = [argument for path in given for argument in ("--source", path)]
    succeeded("verify", "out", *in_order)
    reordered = [in_order[at] for at in (0, 3, 2, 1, 4, 5)]
    message = refused("verify", "out", *reordered)
    assert message == (
        "packer: out was packed from these files in another order (b.jsonl, a.jsonl, sub/c.jsonl, sub/d.jsonl): "
        "give the paths in that order"
    )
    assert "which are not in the source" in run("verify", "out", *in_order[:4]).stderr
    write_documents(folder / "a.jsonl", [[9], *DOCUMENTS[1:50]])
    assert "document 50 (a.jsonl line 1)" in run("verify", "out", *in_order).stderr
