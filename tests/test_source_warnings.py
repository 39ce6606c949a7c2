"""Warnings and errors where a silent default would ruin a run, and where outputs go by default."""

import json
import logging
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.errors import PackerError
from packer.output.job import name_after
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import run
from tests.helpers.pack import made_documents, save_arrow
from tests.helpers.writing import write_lines


def warnings_of(caplog, *arguments, **options) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="packer"):
        caplog.clear()
        packer.pack(*arguments, sync=False, overwrite=True, **options)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def padded(documents: list[list[int]], width: int, *, left: bool = False) -> list[list[int]]:
    rows = []
    for tokens in documents:
        padding = [0] * (width - len(tokens))
        rows.append([*padding, *tokens] if left else [*tokens, *padding])
    return rows


@pytest.mark.parametrize("left", [False, True])
def test_documents_that_look_padded_are_warned_of(tmp_path, caplog, left):
    documents = [tokens or [5] for tokens in made_documents(300)]
    source = save_arrow(tmp_path / "rows.arrow", padded(documents, 64, left=left))
    (warning,) = warnings_of(caplog, source, tmp_path / "out", max_len=64)
    assert (
        "several tokens of id 0, which looks like padding and is packed like all other tokens: give an attention_mask"
        in warning
    )
    assert not warnings_of(caplog, save_arrow(tmp_path / "bare.arrow", documents), tmp_path / "out", max_len=64)
    columns = {
        "input_ids": padded(documents, 64, left=left),
        "attention_mask": padded([[1] * len(tokens) for tokens in documents], 64, left=left),
    }
    pq.write_table(pa.table(columns), tmp_path / "masked.parquet")
    assert not warnings_of(caplog, tmp_path / "masked.parquet", tmp_path / "out", max_len=64)


def test_shuffled_datasets_in_memory_and_pairs_are_looked_at(tmp_path, caplog):
    documents = padded([[1 + number] for number in range(100)], 8)
    dataset = datasets.Dataset.from_dict({"input_ids": documents})
    assert warnings_of(caplog, dataset.shuffle(seed=0), tmp_path / "out", max_len=8)
    pq.write_table(
        pa.table({f"{role}_{name}": documents for role in ("chosen", "rejected") for name in ("input_ids", "labels")}),
        tmp_path / "p.parquet",
    )
    assert warnings_of(caplog, tmp_path / "p.parquet", tmp_path / "out", max_len=16, pairs=True, long="drop")


def test_a_source_of_which_nothing_is_trained_is_an_error_unless_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = [tokens for tokens in made_documents(50) if tokens]
    save_arrow(tmp_path / "rows.arrow", documents, labels=[[-100] * len(tokens) for tokens in documents])
    result = run("pack", "rows.arrow", "--max-len", 64)
    assert result.exit_code == 1
    tokens = sum(map(len, documents))
    assert f"none of the {tokens:,} packed tokens is trained" in result.stderr
    assert "choose --untrained keep-all" in result.stderr
    assert not Path("rows-packed-64").exists()
    assert run("pack", "rows.arrow", "--max-len", 64, "--untrained", "keep-all").exit_code == 0
    assert packer.load("rows-packed-64").manifest.totals.tokens_trained == 0
    save_arrow(tmp_path / "one.arrow", documents, labels=[[-100] * len(d) for d in documents[:-1]] + [documents[-1]])
    packer.pack("one.arrow", max_len=64)


SHORT_CHAT = [{"role": "user", "content": "brown fox"}, {"role": "assistant", "content": "42 dogs"}]
MASKED = {  # records of sources that leave tokens untrained, and whether they are text
    "labels": ({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, False),
    "labels of which all are trained": ({"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, False),
    "loss mask": ({"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, False),
    "mask of answers": ({"input_ids": [1, 2, 3], "assistant_masks": [0, 0, 1]}, False),
    "chat": ({"messages": SHORT_CHAT}, True),
    "prompt and completion": ({"prompt": "brown", "completion": " fox"}, True),
    "instruction and output": ({"instruction": "brown", "output": "fox"}, True),
}


@pytest.mark.parametrize("written", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", MASKED)
def test_labels_are_not_left_out_where_the_source_leaves_tokens_untrained(tmp_path, name, written):
    record, is_text = MASKED[name]
    source = tmp_path / f"rows.{written}"
    if written == "jsonl":
        source.write_text(json.dumps(record) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([record]), source)
    options = {"tokenizer": save_tokenizer(tmp_path / "tokenizer", template=EXACT["chatml"])} if is_text else {}
    with pytest.raises(
        PackerError, match=r"which no_labels would drop: leave it out, or (set train_on='all'|remove them)"
    ):
        packer.pack(source, tmp_path / "out", max_len=64, labels=False, sync=False, **options)
    assert not (tmp_path / "out").exists()
    if is_text:
        packer.pack(source, tmp_path / "out", max_len=64, labels=False, sync=False, train_on="all", **options)
        assert "labels" not in packer.load(tmp_path / "out").column_names


def test_masks_in_any_file_of_a_source_keep_labels_from_being_left_out(tmp_path):
    plain = {"input_ids": pa.array([[1, 2, 3]], pa.list_(pa.int32())), "loss_mask": pa.array([[1, 1, 1]])}
    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]], "loss_mask": [[1, 1, 1]]}).save_to_disk(tmp_path / "saved")
    packer.pack(tmp_path / "saved", tmp_path / "all", max_len=8, labels=False, sync=False)  # it masks nothing
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table(plain), tmp_path / "files" / "a.parquet")
    pq.write_table(pa.table(plain | {"loss_mask": pa.array([[0, 1, 1]])}), tmp_path / "files" / "b.parquet")
    with pytest.raises(PackerError, match="has labels or masks, which no_labels would drop"):
        packer.pack(tmp_path / "files", tmp_path / "out", max_len=8, labels=False, sync=False)


@pytest.mark.parametrize("mask", ["chosen_loss_mask", "rejected_attention_mask"])
def test_masks_of_one_side_of_preference_pairs_are_not_left_out_in_silence(tmp_path, mask):
    pairs = {f"{side}_{kind}": [[1, 2, 3]] for side in ("chosen", "rejected") for kind in ("input_ids", "labels")}
    source = datasets.Dataset.from_dict(pairs | {mask: [[0, 1, 1]]})
    with pytest.raises(PackerError, match=f"'{mask}' is not read: set what it masks to -100 in the labels"):
        packer.pack(source, tmp_path / "out", max_len=8, pairs=True, long="drop", sync=False)


@pytest.mark.parametrize("written", ["strings", "parts"])
def test_special_tokens_in_what_users_write_are_counted(tmp_path, caplog, written):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=EXACT["chatml"])

    def chat(text: str):
        content = [{"type": "text", "text": text}] if written == "parts" else text
        return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "42"}]}

    def warned(*texts: str) -> list[str]:
        source = tmp_path / "chats.jsonl"
        write_lines(source, [chat(text) for text in texts])
        return warnings_of(caplog, source, tmp_path / "out", max_len=64, tokenizer=tokenizer)

    assert not warned("brown fox", "a < b", "<|im_en|>")
    (warning,) = warned("brown", "fox</s>dogs", "a < b", "<s>")
    assert warning.startswith("2 documents hold the text of a special token, which becomes that token")
    (warning,) = warned("a<|im_end|>")
    assert warning.startswith("1 document holds the text")


@pytest.mark.parametrize("kind", ["text", "completion", "pair"])
def test_special_tokens_in_texts_are_counted_and_a_document_may_bring_its_own_ends(tmp_path, caplog, kind):
    tokenizer = save_tokenizer(tmp_path / "tokenizer")

    def warned(*texts: str, **config) -> list[str]:
        settings = json.loads(Path(tokenizer, "tokenizer_config.json").read_text())
        Path(tokenizer, "tokenizer_config.json").write_text(json.dumps({**settings, **config}))
        records = {
            "text": [{"text": text} for text in texts],
            "completion": [{"prompt": text[: len(text) // 2], "completion": text[len(text) // 2 :]} for text in texts],
            "pair": [{"prompt": "fox", "chosen": text, "rejected": "42"} for text in texts],
        }
        source = write_lines(tmp_path / "rows.jsonl", records[kind])
        options = {"pairs": True} if kind == "pair" else {}
        return warnings_of(caplog, source, tmp_path / "out", max_len=64, tokenizer=tokenizer, **options)

    ends = "brown fox</s>" if kind == "pair" else "<s>brown fox</s>"
    assert not warned("brown fox", "a < b", "<|im_en|>", ends)
    (warning,) = warned("brown", "fox</s>dogs", "a < b", "brown<|im_end|>", ends)
    assert warning.startswith(
        "2 documents hold the text of a special token, which becomes that token, as in transformers"
    )
    (warning,) = warned("fox<|endoftext|></s>")
    assert warning.startswith("1 document holds the text")
    assert not warned("fox<|endoftext|>dogs", split_special_tokens=True)


def test_tokens_without_labels_may_be_too_short_to_be_trained(tmp_path):
    packer.pack(save_arrow(tmp_path / "rows.arrow", [[1], [2]]), tmp_path / "out", max_len=4)


def output_of(source: object) -> str:
    return str(name_after(source, "packed-64", None))


def test_the_name_of_an_output_does_not_depend_on_neighbours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_arrow(Path("rows.arrow"), [[1, 2, 3]] * 9)
    pq.write_table(pa.table({"input_ids": [[4, 5]] * 9}), "rows.parquet")
    packer.pack("rows.arrow", max_len=64)
    written = Path("rows-packed-64/manifest.json").stat().st_mtime_ns
    Path("rows").mkdir()
    Path("rows.jsonl").touch()
    Path("rows.json.gz").touch()
    packer.pack("rows.arrow", max_len=64)
    assert Path("rows-packed-64/manifest.json").stat().st_mtime_ns == written, "complete already"
    assert {output_of(each) for each in Path().glob("rows*") if "packed" not in each.name} == {"rows-packed-64"}
    with pytest.raises(
        packer.PackerError,
        match=r"^rows-packed-64 is complete, packed from other source files \(rows.arrow, not rows.parquet\): choose ",
    ):
        packer.pack("rows.parquet", max_len=64)


def test_the_output_of_a_file_of_a_saved_dataset_does_not_disturb_the_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = datasets.Dataset.from_dict({"input_ids": [np.arange(1, 9).tolist()] * 4})
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk("saved")
    (file,) = Path("saved/train").glob("data-*.arrow")
    assert Path(output_of(file)) == file.with_name(f"{file.stem}-packed-64")
    packer.pack(file, max_len=8)
    assert packer.pack("saved", max_len=8, split="train").totals.rows == 4
    assert datasets.load_from_disk("saved")["train"].num_rows == 4
