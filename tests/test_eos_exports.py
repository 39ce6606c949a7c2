"""Exports for trainers that find documents by EOS: Megatron-LM, and Megatron-Bridge's padding."""

import json
import logging
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer import PackerError
from tests.helpers import naive
from tests.helpers.commands import run

EOS, LENGTH = 2, 12
DOCUMENTS = [
    [10 + number] * (length - 1) + [EOS] for number, length in enumerate([5, 12, 1, 7, 3, 3, 9, 2, 4, 6, 8, 2])
]


def pack(folder: Path, documents=DOCUMENTS, labels=None, **options) -> Path:
    folder.mkdir(exist_ok=True)
    columns = {"input_ids": documents} if labels is None else {"input_ids": documents, "labels": labels}
    pq.write_table(pa.table(columns), folder / "source.parquet")
    options = {"max_len": LENGTH, "sync": False, "overwrite": True, "shard_size": 300, **options}
    packer.pack(folder / "source.parquet", folder / "packed", **options)
    return folder / "packed"


def export(packed: Path, to: str, **options) -> Path:
    packer.export(packed, packed.parent / to, to=to, sync=False, overwrite=True, **options)
    return packed.parent / to


def documents_of(row) -> list[list[int]]:
    """Return the documents of a row, without padding."""
    counts = row.get("seq_tokens", row["seq_lengths"]).tolist()
    starts = (np.cumsum(row["seq_lengths"]) - row["seq_lengths"]).tolist()
    spans = zip(starts, counts, row["doc_ids"], strict=True)
    return [row["input_ids"][start : start + count].tolist() for start, count, document in spans if document != -1]


def read_indexed(prefix: Path) -> list[list[int]]:
    """Read the sequences of .bin and .idx by their description, and check that every row is a document."""
    index = prefix.with_suffix(".idx").read_bytes()
    magic, version, code, sequences, documents = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version, documents) == (b"MMIDIDX\0\0", 1, sequences + 1)
    lengths = np.frombuffer(index, np.int32, sequences, 34).tolist()
    pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences).tolist()
    assert np.frombuffer(index, np.int64, -1, 34 + 12 * sequences).tolist() == list(range(sequences + 1))
    kind = {8: np.uint16, 4: np.int32}[code]
    tokens = prefix.with_suffix(".bin").read_bytes()
    assert len(tokens) == sum(lengths) * kind().itemsize
    spans = zip(lengths, pointers, strict=True)
    return [np.frombuffer(tokens, kind, length, pointer).tolist() for length, pointer in spans]


def indexed_rows(folder: Path) -> list[list[int]]:
    return [row for path in sorted(folder.glob("*.bin")) for row in read_indexed(path.with_suffix(""))]


def by_eos(tokens: list[int]) -> list[list[int]]:
    """Cut a row after every EOS; what follows the last one is a document, too."""
    documents: list[list[int]] = [[]]
    for token in tokens:
        documents[-1].append(token)
        if token == EOS:
            documents.append([])
    return [document for document in documents if document]


@given(st.lists(st.integers(1, LENGTH), min_size=1, max_size=12), st.sampled_from([1, 4]), st.integers(0, 5))
@settings(max_examples=25)
def test_rows_cut_at_eos_are_the_documents(tmp_path_factory, lengths, align, pad_id):
    documents = [[10 + number] * (length - 1) + [EOS] for number, length in enumerate(lengths)]
    packed = pack(tmp_path_factory.mktemp("eos"), documents, align=align, pad_id=pad_id)
    rows = list(packer.load(packed))
    expected = [documents_of(row) for row in rows]
    found = indexed_rows(export(packed, "megatron-indexed"))
    # a document that is EOS alone looks like padding
    assert [[each for each in by_eos(row) if len(each) > 1] for row in found] == [
        [each for each in row if len(each) > 1] for row in expected
    ]
    assert [len(row) for row in found] == [LENGTH] * len(rows)


def test_small_ids_take_two_bytes_and_others_four(tmp_path):
    code = [path.read_bytes()[17] for path in export(pack(tmp_path), "megatron-indexed").glob("*.idx")]
    assert set(code) == {8}
    packed = pack(tmp_path, [[65_499, EOS], [65_500, EOS], [9, EOS], [150_000, EOS]], max_len=2, shard_size=24)
    folder = export(packed, "megatron-indexed")
    for path in folder.glob("*.idx"):
        rows = read_indexed(path.with_suffix(""))
        assert path.read_bytes()[17] == (4 if max(map(max, rows)) >= 65_500 else 8)
    assert sorted(indexed_rows(folder)) == [[9, EOS], [65_499, EOS], [65_500, EOS], [150_000, EOS]]


INSIDE = [[3, EOS, 4, EOS], [5, EOS], [6, EOS]]
OTHER = [[3, 4, EOS], [5, 6, 9], [5, 6, 7, EOS]]
WRONG = [[3, 4, EOS], [5, EOS], [5, 6, 7, EOS]]


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        (
            INSIDE,
            {},
            r"document 0 has EOS \(2\) inside: megatron-indexed finds documents by EOS, so each must end in EOS and",
        ),
        (OTHER, {"eos_id": EOS}, r"document 1 ends in the token 9, not in EOS \(2\)"),
        (WRONG, {"eos_id": 7}, r"document \d ends in the token 2, not in EOS \(7\).*give another eos_id, pack with"),
    ],
)
def test_documents_that_eos_does_not_delimit_are_refused(tmp_path, documents, options, message):
    packed = pack(tmp_path, documents, algorithm="sequential")
    with pytest.raises(PackerError, match=message):
        export(packed, "megatron-indexed", **options)
    assert not (tmp_path / "megatron-indexed").exists()


def test_what_bin_and_idx_cannot_hold_is_refused(tmp_path):
    split = pack(tmp_path, [[7] * 29 + [EOS], [8, 9, EOS]])
    with pytest.raises(PackerError, match=r"document 0 ends in the token 7, not in EOS \(2\)"):
        export(split, "megatron-indexed", eos_id=EOS)
    labels = [[-100, 4, EOS], [-100, -100, EOS]]
    untrained = pack(tmp_path, [[3, 4, EOS], [5, 6, EOS]], labels)
    with pytest.raises(PackerError, match="document 1 has the label -100 at token 1: megatron-indexed has no labels"):
        export(untrained, "megatron-indexed")
    other = pack(tmp_path, [[3, 4, EOS], [5, 6, EOS]], [[3, 4, EOS], [5, 9, EOS]])
    with pytest.raises(PackerError, match="document 1 has the label 9 at the token 6: Megatron-LM takes labels"):
        export(other, "megatron-indexed")


def test_the_record_lists_all_files_and_the_same_command_checks_them(tmp_path):
    packed = pack(tmp_path)
    arguments = packed, "--to", "megatron-indexed", "--no-sync", "-o", tmp_path / "out"
    assert f"EOS is {EOS}" in run("export", *arguments, "--workers", 3).stdout
    record = json.loads((tmp_path / "out" / "_export.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "_export.json", *(file["file"] for file in record["files"])
    }  # fmt: skip
    assert record["eos_id"] == EOS
    assert "nothing to do" in run("export", *arguments).stdout
    assert "exported with EOS 2, not 16" in run("export", *arguments, "--eos-id", 16).stderr
    alone = export(packed, "megatron-indexed", workers=1)
    assert {path.name: path.read_bytes() for path in alone.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()
    }
    with pytest.raises(PackerError, match="eos_id is -1: choose a token id from 0 to 2,147,483,647"):
        export(packed, "megatron-indexed", eos_id=-1)
    refused = run("export", packed, "--to", "torchtune", "--eos-id", EOS)
    assert "--eos-id is 2, and an export for torchtune has no EOS padding: leave it out" in refused.stderr


# ---- Megatron-Bridge: padding is EOS, and the metadata of all rows ----


@pytest.mark.parametrize("align", [1, 4])
def test_megatron_bridge_tells_padding_from_tokens_by_eos(tmp_path, align):
    packed = pack(tmp_path, align=align, pad_id=77)
    rows = pq.read_table(export(packed, "megatron")).to_pylist()
    inputs = []
    for row, loaded in zip(rows, packer.load(packed), strict=True):
        sequences = list(naive.megatron_sequences(row))
        inputs.append([len(tokens) for tokens, _, _ in sequences])
        if align > 1:
            assert inputs[-1] == loaded["seq_lengths"][loaded["doc_ids"] != -1].tolist()
        for (tokens, labels, mask), document in zip(sequences, documents_of(loaded), strict=True):
            real = max([at + 1 for at, token in enumerate(tokens) if token != EOS], default=0)  # as its collator
            assert tokens[:real] == document[:-1]
            assert mask == [1] * real + [0] * (len(mask) - real)
            assert labels[:real] == document[1:]
    (metadata,) = json.loads((tmp_path / "megatron" / "_packing_metadata").read_text())
    assert metadata == {
        "max_samples_per_bin": max(map(len, inputs)),
        "dataset_max_seqlen": max(map(max, inputs)),
        "min_packed_seqlen": min(map(sum, inputs)),
    }


def test_megatron_bridge_pads_chats_with_the_eos_that_is_given(tmp_path):
    packed = pack(tmp_path, [[3, EOS, 4, 99], [5, 99], [6, 6, 6, 6, 99]], align=4, pad_id=0)
    with pytest.raises(PackerError, match=r"document \d ends in the token 99, not in EOS|has EOS"):
        export(pack(tmp_path, INSIDE, align=4), "megatron")
    packed = pack(tmp_path, [[3, EOS, 4, 99], [5, 99], [6, 6, 6, 6, 99]], align=4, pad_id=0)
    rows = pq.read_table(export(packed, "megatron", eos_id=EOS)).to_pylist()
    sequences = sorted(tokens for row in rows for tokens, _, _ in naive.megatron_sequences(row))
    assert sequences == [[3, EOS, 4, 99], [5, 99, EOS, EOS], [6, 6, 6, 6, 99, EOS, EOS, EOS]]


# ---- the trainers' own readers ----


def test_megatron_core_reads_every_row_as_a_sample(tmp_path):
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    torch = pytest.importorskip("torch")
    packed = pack(tmp_path, shard_size="1 GB")
    (path,) = export(packed, "megatron-indexed").glob("*.bin")

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = EOS, -1, 100, {"class": "none"}

    rows = {tuple(row["input_ids"].tolist()): row for row in packer.load(packed)}
    rows = {tuple(EOS if token == 0 else token for token in tokens): row for tokens, row in rows.items()}

    def read(**options):
        config = gpt.GPTDatasetConfig(
            random_seed=1, sequence_length=LENGTH, blend=([str(path.with_suffix(""))], None), split="1,0,0",
            reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True, tokenizer=Tokenizer(),
            path_to_cache=str(tmp_path / "cache"), mid_level_dataset_surplus=0.0, **options,
        )  # fmt: skip
        logging.disable(logging.WARNING)
        try:
            return builder.BlendedMegatronDatasetBuilder(
                gpt.GPTDataset, [2 * len(rows), None, None], lambda: True, config
            ).build()[0]
        finally:
            logging.disable(logging.NOTSET)

    if hasattr(gpt.GPTDatasetConfig, "inter_document_masking"):
        assert set(read(inter_document_masking=True)[0]["cu_seqlens"].tolist()) == {0, LENGTH}, "a row is one document"
    data = read()
    samples = [data[number] for number in range(len(data))]
    assert len(samples) >= 2 * len(rows) - 1
    assert {tuple(sample["tokens"].tolist()) for sample in samples} == set(rows)
    for sample in samples:
        row = rows[tuple(sample["tokens"].tolist())]
        lengths = row["seq_lengths"].tolist()
        labels = torch.tensor([*row["labels"].tolist()[1:], -100])
        assert torch.equal(sample["loss_mask"].bool(), labels != -100)
        assert torch.equal(sample["labels"][labels != -100], labels[labels != -100])
        real = int(row["seq_lengths"][row["doc_ids"] != -1].sum())
        positions = [place for length in lengths for place in range(length)]
        assert sample["position_ids"][:real].tolist() == positions[:real]
        documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        allowed = (documents[:, None] == documents) & torch.ones(LENGTH, LENGTH, dtype=bool).tril()
        assert torch.equal(~sample["attention_mask"][0, :real, :real], allowed[:real, :real])
