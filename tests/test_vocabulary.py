"""The largest id stands in the manifest, and ids that a model does not have are refused before it is trained."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings

import packer
from packer.errors import SourceError
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import refused, succeeded
from tests.helpers.effort import FUZZ
from tests.helpers.packed_rows import edit_manifest, rows_on_disk
from tests.helpers.packings import packings
from tests.helpers.writing import write_lines

RECORDS = [{"input_ids": [*range(1, 2 + n)], "labels": [-100, *range(2, 2 + n)]} for n in range(40)]


def naive_largest(out: Path) -> int:
    """Return the largest number in the columns of tokens and labels."""
    names = ("input_ids", "tree_input_ids", "labels")
    return max(value for row in rows_on_disk(out) for name in names for value in row.get(name, ()))


def largest(out: Path) -> int | None:
    """Return the largest id in a manifest, which its shards must agree with."""
    content = json.loads((out / "manifest.json").read_text())
    assert content["totals"].get("largest_id", -1) == max(content["shards"]["largest_id"])
    return content["totals"].get("largest_id")


@pytest.mark.nightly
@settings(deadline=None, max_examples=20 * FUZZ)
@given(packings())
def test_the_ids_that_a_model_needs_are_enough_and_one_less_is_refused(packing):
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = packing.write(folder)
        packed = packing.pack(source, folder / "out")
        assume(packed is not None)
        most = max(max(map(max, filter(None, packing.columns[name]))) for name in ("input_ids", "labels"))
        again = packer.pack(source, folder / "again", vocab_size=most + 1, sync=False, **packing.options)
        assert again.shards == packed.shards
        needed = largest(folder / "out")
        assert needed == naive_largest(folder / "out") <= most
        if needed:
            with pytest.raises(SourceError, match=rf"holds \d+ at position \d+: the model has ids 0 to {needed - 1} "):
                packer.pack(source, folder / "less", vocab_size=needed, sync=False, **packing.options)


KINDS = {
    "two shards": (RECORDS, {"shard_size": 2_000}),
    "no labels": ([{"input_ids": record["input_ids"]} for record in RECORDS], {"labels": False}),
    "other labels": ([{"input_ids": [1, 2, 3], "labels": [-100, 900, 3]}], {}),
    "padding": ([{"input_ids": [1, 2, 3]}], {"pad_id": 1_000}),
    "held out": ([{"input_ids": [n, n + 1]} for n in range(200)], {"holdout": 0.3}),
    "groups": ([record | {"topic": "ab"[n % 2]} for n, record in enumerate(RECORDS)], {"group_by": "topic"}),
    "pairs": (
        [
            {f"{side}_{name}": [first, second] for side, second in (("chosen", 7), ("rejected", 70))
             for name, first in (("input_ids", 5), ("labels", -100))}
        ],
        {"pairs": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_id_is_that_of_all_rows(tmp_path, kind):
    records, options = KINDS[kind]
    source, out, options = write_lines(tmp_path / "rows.jsonl", records), tmp_path / "out", {"max_len": 64, **options}
    packed = packer.pack(source, out, sync=False, **options)
    needed = largest(out)
    assert needed == naive_largest(out) > 3
    if "holdout" in options:
        assert largest(tmp_path / "out-holdout") == naive_largest(tmp_path / "out-holdout") > 3
    again = packer.pack(source, tmp_path / "again", sync=False, vocab_size=1_001, **options)
    assert again.shards == packed.shards
    with pytest.raises(packer.PackerError, match=f"the model has ids 0 to {needed - 1} "):
        packer.pack(source, tmp_path / "less", sync=False, vocab_size=needed, **options)


def test_stats_tells_how_many_ids_a_model_needs_where_it_is_known(tmp_path):
    source = tmp_path / "rows.arrow"
    packer.pack(write_lines(tmp_path / "rows.jsonl", RECORDS), tmp_path / "out", max_len=64, sync=False)
    assert "largest id     40  the model needs at least 41 ids" in succeeded("stats", tmp_path / "out")
    assert packer.stats(tmp_path / "out").to_dict()["largest_id"] == 40
    import datasets

    datasets.Dataset.from_list(RECORDS).save_to_disk(source)
    packer.pack(source, tmp_path / "index", max_len=64, index_only=True, sync=False)
    assert largest(tmp_path / "index") is None
    assert "largest id  unknown  an index has no tokens" in succeeded("stats", tmp_path / "index")
    assert packer.stats(tmp_path / "index").to_dict()["largest_id"] is None
    assert list(packer.verify(tmp_path / "index", source)) == []


@pytest.mark.parametrize("with_source", [False, True])
def test_verify_counts_the_largest_id_again(tmp_path, with_source):
    source = write_lines(tmp_path / "rows.jsonl", RECORDS)
    packer.pack(source, tmp_path / "out", max_len=64, sync=False)

    def change(content):
        content["shards"]["largest_id"][0] = content["totals"]["largest_id"] = 41

    edit_manifest(tmp_path / "out", change)
    (fault,) = packer.verify(tmp_path / "out", source if with_source else None)
    assert fault.endswith("arrow has 40 as its largest id, the manifest says 41")
    edit_manifest(tmp_path / "out", lambda content: content["totals"].update(largest_id=40))
    assert "largest_id is 40 in the manifest, 41 computed from the shards" in packer.verify(tmp_path / "out")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Folder of a tokenizer to which a token was added, below the folder of a model that has no such id, 338."""
    folder = Path(save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"]))
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = content["added_tokens"][-1]["id"] + 1
    content["added_tokens"].append(content["added_tokens"][-1] | {"id": ids, "content": "<tool_call>"})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder.parent / "config.json").write_text(json.dumps({"vocab_size": ids}))
    return folder


def test_a_token_that_was_added_to_a_tokenizer_is_named_by_its_text(tmp_path, tokenizer):
    source = write_lines(tmp_path / "texts.jsonl", [{"text": "The fox"}, {"text": "42 <tool_call> dogs"}])
    words = ["pack", source, "--max-len", "64", "--tokenizer", tokenizer, "--output", tmp_path / "out"]
    line = refused(*words, "--vocab-size", tokenizer.parent)
    assert "document 1 (texts.jsonl line 2): 'input_ids' holds 338 ('<tool_call>') at position " in line
    assert ": the model has ids 0 to 337 (--vocab-size); take its tokenizer, or enlarge its embedding; or leave" in line
    succeeded(*words, "--vocab-size", 339)
    assert largest(tmp_path / "out") == 338


@pytest.mark.parametrize("kind", ["texts", "tokens", "arrow"])
def test_documents_beyond_a_model_are_left_out_if_asked(tmp_path, tokenizer, kind):
    options = {"vocab_size": 20}
    if kind == "texts":
        source = write_lines(tmp_path / "texts.jsonl", [{"text": "The fox"}, {"text": "42 <tool_call> dogs"}] * 20)
        options = {"tokenizer": tokenizer, "vocab_size": tokenizer.parent / "config.json"}
    else:
        source = write_lines(tmp_path / "rows.jsonl", RECORDS)
    if kind == "arrow":
        import datasets

        datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "rows")
        source = tmp_path / "rows"
    out = tmp_path / "out"
    manifest = packer.pack(source, out, max_len=64, on_error="skip", sync=False, **options)
    assert manifest.totals.documents_rejected == {"invalid_tokens": 20 if kind == "texts" else 21}
    assert largest(out) < manifest.options.vocab_size
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    numbers = range(1, 40, 2) if kind == "texts" else range(19, 40)
    assert [record["document"] for record in rejected] == [*numbers]
    assert list(packer.verify(out, source, tokenizer=str(tokenizer) if kind == "texts" else None)) == []


CONFIGS = {
    "a language model": {"vocab_size": 41},
    "its part of a model of images": {"vocab_size": 7, "text_config": {"vocab_size": 41}},
    "no part": {"vocab_size": 41, "text_config": None},
}


@pytest.mark.parametrize("config", CONFIGS)
def test_the_number_of_ids_is_read_from_a_config(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[config]))
    source = write_lines(tmp_path / "rows.jsonl", RECORDS)
    for number, size in enumerate((tmp_path, tmp_path / "config.json", "41", 41)):
        manifest = packer.pack(source, tmp_path / str(number), max_len=64, vocab_size=size, sync=False)
        assert manifest.options.vocab_size == 41


WRONG = {
    "no file": ("nowhere", "nowhere is no config.json (No such file or directory): give a number, or a config with"),
    "no config": ("rows.jsonl", "rows.jsonl is no config.json (it has no vocab_size): give a number, or a config with"),
    "a list": ("list.json", "list.json is no config.json (it has no vocab_size)"),
    "text": ("text.json", "'many' is not a whole number from 1 to 2147483647"),
    "none": ("0", "0 is not a whole number from 1 to 2147483647"),
    "padding": ("41 --pad-id 41", "--pad-id is 41, and the model has ids 0 to 40 (--vocab-size): choose one of these"),
    "an index": ("41 --index-only", "--vocab-size is 41, and --index-only does not read tokens: leave one out"),
    "lengths": (
        "41 --lengths rows.jsonl:tokens",
        "--vocab-size is 41, and lengths have no tokens to check: leave one out",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_limit_ids_is_refused_before_any_work(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "rows.jsonl", RECORDS)
    for file, content in (("list.json", [1]), ("text.json", {"vocab_size": "many"})):
        Path(file).write_text(json.dumps(content))
    words, message = WRONG[name]
    source = [] if name == "lengths" else ["rows.jsonl"]
    refused("pack", *source, "--max-len", "64", "--vocab-size", *words.split(), words=(message,), code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "list.json", "text.json"}


def test_the_padding_of_a_tokenizer_must_be_an_id_of_the_model(tmp_path, tokenizer):
    source, folder = write_lines(tmp_path / "texts.jsonl", [{"text": "The fox"}]), tmp_path / "tokenizer"
    shutil.copytree(tokenizer, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<tool_call>"}))
    words = ["pack", source, "--max-len", "64", "--tokenizer", folder, "--vocab-size", 338]
    assert "--pad-id is 338, and the model has ids 0 to 337 (--vocab-size): choose one" in refused(*words, code=2)
