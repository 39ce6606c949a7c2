"""The Python functions take what other functions returned, and refuse other objects in a line."""

import json

import datasets
import numpy as np
import pytest

import packer
from tests.helpers.commands import refused

RECORDS = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What `packer.pack` and `packer.load` return for the same folder, and the source."""
    monkeypatch.chdir(tmp_path)
    source = datasets.Dataset.from_list(RECORDS * 20)
    manifest = packer.pack(source, "out", max_len=np.int64(8), seed=np.uint8(3))
    return {"manifest": manifest, "dataset": packer.load("out")}, source


@pytest.mark.parametrize("kind", ["manifest", "dataset"])
def test_functions_take_what_the_last_one_returned(made, kind):
    objects, source = made
    packed = objects[kind]
    assert packer.load(packed)[0].keys() == packer.load("out")[0].keys()
    assert len(packer.load([packed, packed])) == 2 * len(packer.load("out"))
    assert repr(packer.show(packed, np.int64(0))) == repr(packer.show("out", 0))
    assert packer.verify(packed, source)
    assert packer.stats(packed).rows == packer.stats("out").rows
    assert packer.export(packed, "exported", to="torchtune").path.name == "exported"


def test_what_was_tokenized_is_packed_from_what_tokenize_returned(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.save("tokenizer.json")
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "ab"}) + "\n")
    report = packer.tokenize("texts.jsonl", "tokens", tokenizer="tokenizer.json", eos=False)
    manifest = packer.pack(report, "out", max_len=8)
    assert packer.verify(manifest, report)


REFUSED = {
    "a list of texts": ["Once upon\na time", "there was"],
    "a list of chats": [[{"role": "user", "content": "Hello."}]],
    "a list of lists of tokens": [[1, 2], [3]],
    "a list of records": RECORDS,
    "a source of type dict": {"input_ids": [[1]]},
    "a source of type generator": (record for record in RECORDS),
    "a source of type int": 5,
    "a source of type NoneType": None,
    "'word word word word word word word word '...: no such file or folder; if it is a text, give": "word " * 300,
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("function", ["pack", "stats"])
def test_other_objects_are_refused_in_a_line_that_says_what_to_give(words, function):
    with pytest.raises(packer.PackerError) as error:
        getattr(packer, function)(REFUSED[words], max_len=8)
    assert str(error.value).startswith(words)
    assert "give " in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("function", ["load", "show", "verify"])
@pytest.mark.parametrize("wrong", [None, 5])
def test_a_packed_dataset_is_named_by_its_folder(function, wrong):
    with pytest.raises(packer.PackerError, match="a packed dataset is named by its folder, not by a"):
        getattr(packer, function)(wrong)


def test_an_engine_that_does_not_exist_is_refused(made):
    with pytest.raises(packer.PackerError, match="'slurm' is not an engine: write threads, ray or ray:ADDRESS"):
        packer.verify("out", engine="slurm")


def test_an_error_names_options_as_its_reader_writes_them(tmp_path):
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "set")
    packer.pack(tmp_path / "set", tmp_path / "index", max_len=8, index_only=True)
    with pytest.raises(packer.PackerError, match=r"name the dataset that was packed by source$"):
        packer.show(tmp_path / "index")
    assert refused("show", tmp_path / "index").endswith("name the dataset that was packed by --source")


WRONG_VALUES = {
    "batch_size is 0: it must be at least 1": lambda: packer.stats("in", batch_size=0),
    "batch_size is 'x': it must be a whole number": lambda: packer.stats("in", batch_size="x"),
    "5 is not a path": lambda: packer.stats("in", report=5),
    "[] is not a list of row lengths": lambda: packer.stats("in", max_len=[]),
    "'5' is not an engine: write threads": lambda: packer.pack("in", "new", max_len=8, engine=5),
    "5 is not a list of names: write them with commas": lambda: packer.pack("in", "new", max_len=8, add_column=5),
    "progress is 5: give True, False or a function": lambda: packer.pack("in", "new", max_len=8, progress=5),
    "the list of paths is empty: give at least one": lambda: packer.pack([], "new", max_len=8),
    "rows is 'x': it must be a whole number": lambda: next(packer.batches("out", "x")),
    "row is 'x': it must be a whole number": lambda: packer.show("out", "x"),
    "window is 'x': it must be a whole number": lambda: packer.BatchSampler(
        packer.load("out"), global_batch=1, lanes=1, window="x"
    ),
}


@pytest.mark.parametrize("message", WRONG_VALUES)
def test_a_wrong_value_is_refused_in_one_line_before_anything_is_written(made, tmp_path, message):
    made[1].save_to_disk("in")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(packer.PackerError) as error:
        WRONG_VALUES[message]()
    assert str(error.value).startswith(message)
    assert sorted(tmp_path.iterdir()) == before
