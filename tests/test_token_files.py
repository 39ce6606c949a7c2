"""Corpora of bare tokens give the documents that they hold: .bin with .idx, .ds with .ds.index, arrays cut at EOS."""

import gzip
import json
import pickle
import re
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.sources.source import read_documents
from packer.sources.spill import spill_source
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.opening import open_source
from tests.helpers.small import shrink
from tests.helpers.sources import read_whole
from tests.helpers.token_files import in_one, write_array, write_datatrove, write_indexed, write_lines_beside

SEQUENCES = [[[5, 6, 7], [8]], [], [[1]], [[9], [], [2, 3]], [list(range(50))], [[4, 4]], []]
DOCUMENTS = [[token for sequence in document for token in sequence] for document in SEQUENCES]


def read(path, **options) -> list[list[int]]:
    """Return the documents of a source, which must be mapped."""
    source = open_source(path, **options)
    assert source.mapped
    return read_whole(source)[0]


# ---- Megatron's .bin and .idx ----


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_documents_of_an_index_are_mapped_in_every_type_of_integers(tmp_path, dtype):
    largest = min(np.iinfo(dtype).max, 2**31 - 1)
    documents = [*DOCUMENTS, [largest, 0]]
    assert read(write_indexed(tmp_path / "a", in_one(documents), dtype)) == documents
    assert read(write_indexed(tmp_path / "b", [*SEQUENCES, [[largest], [0]]], dtype)) == documents


@given(st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=3), min_size=1, max_size=9))
@settings(max_examples=30)
def test_a_document_is_what_the_index_calls_one_and_a_sequence_on_request(tmp_path_factory, documents):
    path = write_indexed(tmp_path_factory.mktemp("indexed") / "corpus", documents)
    sequences = [sequence for document in documents for sequence in document]
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, mapped_lists=3, checked_sequences=2, checked_ends=2)
        assert read(path) == [[token for sequence in document for token in sequence] for document in documents]
        if sequences:
            assert read(path, document="sequence") == sequences


def test_an_index_is_packed_in_place_loaded_and_verified_by_each_of_its_names(tmp_path, monkeypatch, another_process):
    monkeypatch.chdir(tmp_path)
    write_indexed(tmp_path / "corpus_text_document", SEQUENCES, "uint16")
    names = ["corpus_text_document.idx", "corpus_text_document.bin", "corpus_text_document"]
    for number, name in enumerate(names):
        succeeded("pack", name, "--max-len", 16, "-o", f"copy{number}")
        succeeded("pack", name, "--max-len", 16, "--index-only", "-o", f"index{number}")
    contents = [json.loads((tmp_path / f"copy{number}" / "manifest.json").read_text()) for number in range(3)]
    assert contents[0] == contents[1] == contents[2]
    (file,) = contents[0]["source"]["files"]
    size = sum((tmp_path / name).stat().st_size for name in names[:2])
    assert (file["name"], file["bytes"], file["rows"]) == ("corpus_text_document.idx", size, len(DOCUMENTS))
    copied = [row["input_ids"].tolist() for row in packer.load("copy0")]
    for name in names:
        indexed = packer.load("index1", source=name)
        assert [row["input_ids"].tolist() for row in indexed] == copied
        for packed in ("copy2", "index2"):
            assert "every token of the source" in succeeded("verify", packed, "--source", name)
    assert another_process(_rows, packer.load("index1", source=tmp_path / names[0])) == copied
    assert f"{len(DOCUMENTS)} documents" in succeeded("stats", names[2], "--max-len", 16)
    sequences = sum(map(len, SEQUENCES))
    assert f"{sequences} documents" in succeeded("stats", names[0], "--max-len", 16, "--document", "sequence")


def _rows(dataset):
    return [row["input_ids"].tolist() for row in dataset]


def test_indices_are_found_in_folders_and_both_files_of_one_may_be_named(tmp_path):
    (tmp_path / "data" / "en").mkdir(parents=True)
    write_indexed(tmp_path / "data" / "a", SEQUENCES, "uint16")
    write_indexed(tmp_path / "data" / "en" / "b", in_one(DOCUMENTS[:2]), "int64")
    (tmp_path / "data" / "notes.txt").write_text("left out")
    (tmp_path / "data" / "index.csv").write_text("a,b\n1,2\n")
    assert read(tmp_path / "data") == DOCUMENTS + DOCUMENTS[:2]
    both = [str(path) for path in sorted((tmp_path / "data").glob("a.*"))]
    manifest = packer.pack(both, tmp_path / "out", max_len=16, sync=False)
    assert [file.name for file in manifest.source.files] == ["a.idx"]
    (tmp_path / "data" / "rows.jsonl").write_text('{"input_ids": [1, 2]}\n')
    (tmp_path / "data" / "rows.jsonl.idx").write_bytes(b"an index of the lines")
    found = open_source(tmp_path / "data")
    assert [file.name for file in found.files] == ["rows.jsonl"]


def test_tokens_that_change_after_packing_are_found(tmp_path):
    path = write_indexed(tmp_path / "a", SEQUENCES)
    tokens = np.fromfile(path.with_suffix(".bin"), np.int32)
    packer.pack(path, tmp_path / "packed", max_len=16, sync=False)
    packer.pack(path, tmp_path / "index", max_len=16, index_only=True, sync=False)
    tokens[0] += 1
    tokens.tofile(path.with_suffix(".bin"))
    assert "document 0 (a.idx row 0)" in next(iter(packer.verify(tmp_path / "packed", path)))
    write_indexed(tmp_path / "a", [*SEQUENCES[:2], [[1], []], *SEQUENCES[3:]])
    with pytest.raises(PackerError, match=r"packed from a.idx of [\d,]+ bytes, and the source has a.idx of"):
        packer.load(tmp_path / "index", source=path)
    write_indexed(tmp_path / "a", [*SEQUENCES[1:], SEQUENCES[0]])
    with pytest.raises(PackerError, match="another source than the one given"):
        packer.load(tmp_path / "index", source=path)


def test_a_loader_notices_that_either_file_was_written(tmp_path):
    for ending in (".bin", ".idx"):
        path = write_indexed(tmp_path / "a", SEQUENCES)
        packer.pack(path, tmp_path / f"index{ending}", max_len=16, index_only=True, sync=False)
        dataset = packer.load(tmp_path / f"index{ending}", source=path)
        dataset[0]
        with path.with_suffix(ending).open("ab") as file:
            file.write(b"more")
        with pytest.raises(PackerError, match=rf"a{ending}: .*changed from [\d,]+ to [\d,]+ bytes"):
            pickle.loads(pickle.dumps(dataset))


def test_negative_tokens_are_named(tmp_path):
    path = write_indexed(tmp_path / "a", in_one([[1], [2, -3]]), "int16")
    with pytest.raises(PackerError, match=r"document 1 \(a.idx row 1\): 'input_ids' holds -3 at position 1"):
        packer.pack(path, tmp_path / "out", max_len=16)


GOOD = in_one([[1, 2, 3], [4], [5, 6]])
"""24 bytes of tokens in int32; in the 102 bytes of the index, lengths from 34, pointers from 46, documents from 70."""


def changed(place: int, code: str, value: object):
    def change(index: bytearray, tokens: bytearray) -> None:
        struct.pack_into(f"<{code}", index, place, value)

    return change


def cut(of_index: int, of_tokens: int):
    def change(index: bytearray, tokens: bytearray) -> None:
        del index[len(index) - of_index :]
        del tokens[len(tokens) - of_tokens :]

    return change


DAMAGE = {
    "no header": (cut(90, 0), "a.idx: 12 bytes, and the header of an .idx takes 34"),
    "magic": (changed(0, "9s", b"TNTIDX\0\0"), r"begins with b'TNTIDX.*an .idx of Megatron begins with b'MMIDIDX"),
    "version": (changed(9, "Q", 2), "a.idx: has version 2; an .idx of Megatron begins with"),
    "float": (changed(17, "B", 7), "type 7 of its tokens is float32, and token ids are integers"),
    "unknown type": (changed(17, "B", 9), "type 9 of its tokens is unknown, and token ids are integers"),
    "other type": (changed(17, "B", 8), "sequence 1 begins at byte 12, where byte 6 follows the one before it"),
    "cut index": (cut(8, 0), "94 bytes, and by its header 3 sequences and 3 documents take 102; it was cut short"),
    "more sequences": (changed(18, "Q", 2**63), "102 bytes, and by its header 9,223,372,036,854,775,808 sequences"),
    "no documents": (changed(26, "Q", 0), "102 bytes, and by its header 3 sequences and -1 documents take 70"),
    "modes": (lambda index, tokens: index.extend(bytes(3)), "has a mode for each sequence, as multimodal data"),
    "negative length": (changed(38, "i", -1), "a.idx: sequence 1 has -1 tokens"),
    "long sequence": (changed(42, "i", 3), "a.bin has 24 bytes, and the sequences in a.idx take 28"),
    "pointer": (changed(54, "q", 2**62), "sequence 1 begins at byte 4,611,686,018,427,387,904, where byte 12 follows"),
    "odd pointer": (changed(54, "q", 13), "sequence 1 begins at byte 13, where byte 12 follows the one before it"),
    "cut tokens": (cut(0, 4), "a.bin has 20 bytes, and the sequences in a.idx take 24; one of the two was cut short"),
    "odd tokens": (cut(0, 1), "a.bin has 23 bytes, and the sequences in a.idx take 24"),
    "no tokens": (cut(0, 24), "a.bin has 0 bytes, and the sequences in a.idx take 24"),
    "more tokens": (lambda index, tokens: tokens.extend(bytes(4)), "a.bin has 28 bytes, and the sequences in a.idx"),
    "documents run back": (changed(78, "q", 3), "document 2 begins with sequence 2, before that of the last one"),
    "negative document": (changed(70, "q", -1), "document 0 begins with sequence -1"),
    "first sequence left out": (changed(70, "q", 1), "its documents are the sequences 1 to 2, and there are 3"),
    "last sequence left out": (changed(94, "q", 2), "its documents are the sequences 0 to 1, and there are 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_refused_in_one_line(tmp_path, name):
    change, message = DAMAGE[name]
    path = write_indexed(tmp_path / "a", GOOD)
    index, tokens = bytearray(path.read_bytes()), bytearray(path.with_suffix(".bin").read_bytes())
    change(index, tokens)
    path.write_bytes(index)
    path.with_suffix(".bin").write_bytes(tokens)
    for options in ({}, {"document": "sequence"}) if len(tokens) >= 70 else ({},):
        with pytest.raises(PackerError) as error:
            packer.pack(path, tmp_path / "out", max_len=16, **options)
        assert re.search(message, str(error.value)), error.value
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pack a.idx", "a.idx: there is no a.bin, which holds its tokens; put it beside it"),
        ("pack b.idx --tokenizer t", "b.idx holds token ids alone: pack it without --tokenizer, --lengths"),
        ("pack --lengths b.idx:n", "b.idx holds token ids alone: pack it without --tokenizer, --lengths"),
        ("pack b.idx --pairs", "b.idx holds token ids alone: pack it without --tokenizer, --lengths"),
        ("pack b.idx --keep url", "b.idx: no column 'url' (found: input_ids); all files need it"),
        ("pack b.idx --input-column ids", "b.idx: no column 'ids' (found: input_ids)"),
        ("pack b.idx --labels-column l", "no labels column 'l'; name one that exists"),
        (
            "pack c.jsonl --document sequence",
            "--document sequence is for .idx, and c.jsonl has no such file: leave it out",
        ),
        ("pack empty.idx", "empty dataset: 0 documents in 1 file(s)"),
    ],
)
def test_what_an_index_does_not_have_is_refused(tmp_path, monkeypatch, words, message, tokenizer):
    monkeypatch.chdir(tmp_path)
    write_indexed(tmp_path / "a", GOOD).with_suffix(".bin").unlink()
    write_indexed(tmp_path / "b", GOOD)
    write_indexed(tmp_path / "empty", [])
    (tmp_path / "c.jsonl").write_text('{"input_ids": [1, 2]}\n')
    command = [str(tokenizer) if word == "t" else word for word in words.split()]
    refused(*command, "--max-len", 16, "-o", "out", words=(message,))


def test_records_that_cannot_be_used_are_left_out_of_an_index(tmp_path):
    path = write_indexed(tmp_path / "a", in_one([[1], [2, -3], [4, 5]]), "int16")
    manifest = packer.pack(path, tmp_path / "out", max_len=16, on_error="skip", sync=False)
    assert manifest.totals.tokens == 3
    identity = read_documents(open_source(path)).identity
    assert identity.lengths_xxh3_128 != manifest.source.lengths_xxh3_128


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_files_of_megatron_core_hold_what_its_own_reader_finds(tmp_path, dtype):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(3)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=dtype)
    for _ in range(300):
        lengths = draw.integers(0, 90, draw.integers(1, 4)).tolist()
        builder.add_document(torch.from_numpy(draw.integers(0, 60_000, sum(lengths))), lengths)
    builder.finalize(str(tmp_path / "a.idx"))
    found = megatron.IndexedDataset(str(tmp_path / "a"))
    sequences = [found[number].tolist() for number in range(len(found))]
    assert read(tmp_path / "a.idx", document="sequence") == sequences
    ends = pairwise(found.document_indices.tolist())
    documents = [[token for sequence in sequences[first:last] for token in sequence] for first, last in ends]
    assert read(tmp_path / "a.idx") == documents


# ---- bare arrays ----

ENDED = [[5, 6, 9], [9], [1, 2, 9], [9], [*range(10, 60), 9]]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_documents_of_a_bare_array_end_in_eos(tmp_path, dtype):
    for name in ("a.bin", "a.npy"):
        path = write_array(tmp_path / name, ENDED, dtype)
        assert read(path, dtype=dtype, eos_id=9) == ENDED
        assert read(write_array(path, [*ENDED, [3, 4]], dtype), dtype=dtype, eos_id=9) == [*ENDED, [3, 4]]
        assert read(write_array(path, [[9]], dtype), dtype=dtype, eos_id=9) == [[9]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40).filter(lambda tokens: 3 in tokens), st.integers(1, 9))
@settings(max_examples=25)
def test_a_bare_array_is_cut_after_every_eos(tmp_path_factory, tokens, together):
    path = write_array(tmp_path_factory.mktemp("array") / "a.bin", [tokens])
    documents = [[]]
    for token in tokens:
        if documents[-1][-1:] == [3]:
            documents.append([])
        documents[-1].append(token)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, searched_tokens=together, mapped_lists=2)
        assert read(path, dtype="uint16", eos_id=3) == documents


def test_arrays_with_a_header_say_their_type(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2, 9, 3, 9], np.uint32))
    assert read(tmp_path / "a.npy", eos_id=9) == [[1, 2, 9], [3, 9]]
    header = struct.pack("<256i", 20240520, 1, 5, *[0] * 253)
    write_array(tmp_path / "fineweb_train_000001.bin", [[1, 2, 9], [3, 9]], "uint16", header)
    assert read(tmp_path / "fineweb_train_000001.bin", eos_id=9) == [[1, 2, 9], [3, 9]]


def test_lines_beside_an_array_say_where_documents_end_unless_eos_is_named(tmp_path, caplog):
    caplog.set_level("INFO", logger="packer")
    documents = [[1, 9, 2], [3], [], [4, 5, 9]]
    path = write_array(tmp_path / "part.npy", documents, "uint32")
    write_lines_beside(path, documents)
    assert read(path, dtype="uint32") == documents
    assert read(path, dtype="uint32", eos_id=9) == [[1, 9], [2, 3, 4, 5, 9]]
    assert "part.npy: 2 documents end in EOS (9)" in caplog.text
    read(write_array(tmp_path / "b.bin", [*documents, [7, 7]]), dtype="uint16", eos_id=9)
    assert "b.bin: 2 tokens after the last EOS are a document, too" in caplog.text


def test_masks_of_olmo_become_labels(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number, masks in enumerate([[[1, 0, 1], [1, 1]], [[1, 1, 1], [1, 1]]]):
        path = write_array(data / f"token_ids_part_{number}.npy", [[1, 2, 9], [3, 9]], "uint32")
        write_array(data / f"labels_mask_part_{number}.npy", masks, "bool")
        documents, labels = read_whole(spill_source(open_source(path, dtype="uint32", eos_id=9), tmp_path / "spill"))
        assert documents == [[1, 2, 9], [3, 9]]
        assert labels == (None if number else [[1, -100, 9], [3, 9]])
    manifest = packer.pack(data, tmp_path / "out", max_len=8, dtype="uint32", eos_id=9, sync=False)
    assert [file.name for file in manifest.source.files] == ["token_ids_part_0.npy", "token_ids_part_1.npy"]
    assert sum(shard.trained for shard in manifest.shards) == 5
    assert not list(packer.verify(tmp_path / "out", data))


def test_a_folder_of_arrays_is_packed_in_place_by_splits(tmp_path):
    (tmp_path / "data").mkdir()
    for name, documents in (("train", ENDED), ("val", ENDED[:2])):
        write_array(tmp_path / "data" / f"{name}.bin", documents)
    options = {"max_len": 64, "split": "train", "dtype": "uint16", "eos_id": 9, "sync": False}
    copied = packer.pack(tmp_path / "data", tmp_path / "copy", **options)
    packer.pack(tmp_path / "data", tmp_path / "index", index_only=True, **options)
    assert [file.name for file in copied.source.files] == ["train.bin"]
    assert copied.totals.documents == len(ENDED)
    indexed = pickle.loads(pickle.dumps(packer.load(tmp_path / "index", source=tmp_path / "data")))
    assert _rows(indexed) == _rows(packer.load(tmp_path / "copy"))
    for packed in ("copy", "index"):
        assert not list(packer.verify(tmp_path / packed, tmp_path / "data"))


ARRAYS = {
    "pack a.bin": "a.bin is a bare array, in which no document begins or ends: give --dtype and --eos-id for tokens",
    "pack a.bin --dtype uint16": "a.bin is a bare array, in which no document begins or ends: give --eos-id for tokens",
    "pack a.bin --eos-id 9": "a.bin is a bare array, in which no document begins or ends: give --dtype and --eos-id",
    "pack a.bin --dtype uint16 --eos-id 70000": "a.bin: --eos-id 70000 is none of its 59 tokens",
    "pack a.bin --dtype int64 --eos-id 9": "a.bin: 118 bytes, which are no int64 of 8 bytes: correct --dtype",
    "pack a.bin --dtype float32 --eos-id 9": "'float32' is not one of",
    "pack n.npy --dtype uint16 --eos-id 9": "--dtype uint16: by its header, n.npy holds uint32: leave --dtype out",
    "pack f.npy --eos-id 9": "f.npy: float64 of shape [2]; expected token ids in one dimension",
    "pack two.npy --eos-id 9": "two.npy: int64 of shape [1, 2]; expected token ids in one dimension",
    "pack cut.bin --eos-id 9": "cut.bin: 8 bytes, which are no uint16 of 2 bytes",
    "pack gap.npy --dtype uint16": "gap.npy (gap.csv.gz): document 1 has the tokens 4 to 4, where token 3 follows the",
    "pack short.npy --dtype uint16": "short.npy (short.csv.gz): its documents have 3 tokens, and the array has 59",
    "pack words.npy --dtype uint16": "words.npy: cannot be read, truncated or corrupt: In CSV column #0",
    "pack token_ids_1.npy --dtype uint16 --eos-id 9": "labels_mask_1.npy: 3 values, and token_ids_1.npy has 59 tokens",
    "pack empty.bin --dtype uint16 --eos-id 9": "empty dataset: 0 documents in 1 file(s)",
    "pack c.jsonl --dtype uint16": "--dtype uint16 is for .bin or .npy, and c.jsonl has no such file: leave it out",
    "pack c.jsonl --eos-id 9": "--eos-id 9 is for .bin or .npy, and c.jsonl has no such file: leave it out",
    "pack a.bin --pairs": "a.bin holds token ids alone: pack it without --tokenizer, --lengths, --pairs and",
}


@pytest.mark.parametrize("words", ARRAYS)
def test_an_array_that_cannot_be_cut_into_documents_is_refused(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for name in ("a.bin", "gap.npy", "short.npy", "words.npy", "token_ids_1.npy"):
        write_array(tmp_path / name, ENDED)
    (tmp_path / "gap.csv.gz").write_bytes(gzip.compress(b"0,3\n4,5\n5,59\n"))
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress(b"0,3\n"))
    (tmp_path / "words.csv.gz").write_bytes(gzip.compress(b"start,end\n0,59\n"))
    (tmp_path / "labels_mask_1.npy").write_bytes(b"\1\1\0")
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "cut.bin").write_bytes(struct.pack("<ii", 20240520, 1))
    (tmp_path / "c.jsonl").write_text('{"input_ids": [1, 2]}\n')
    np.save(tmp_path / "n.npy", np.array([1, 9], np.uint32))
    np.save(tmp_path / "f.npy", np.array([1.0, 9.0]))
    np.save(tmp_path / "two.npy", np.array([[1, 9]]))
    done = run(*words.split(), "--max-len", 16, "-o", "out")
    assert done.exit_code in (1, 2), done.output
    assert ARRAYS[words] in done.stderr
    assert not (tmp_path / "out").exists()


# ---- datatrove's .ds ----


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=9), st.sampled_from(["uint16", "uint32"])
)
@settings(max_examples=25)
def test_documents_of_datatrove_end_where_its_index_says(tmp_path_factory, documents, dtype):
    path = write_datatrove(tmp_path_factory.mktemp("datatrove") / "a.ds", documents, dtype)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, mapped_lists=3, checked_ends=2)
        assert read(path) == documents


def test_files_of_datatrove_are_packed_in_place_and_masked_by_their_losses(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(2):
        write_datatrove(tmp_path / "data" / f"0000{number}_shuffled.ds", DOCUMENTS, "uint32")
    packer.pack(tmp_path / "data", tmp_path / "copy", max_len=16, sync=False)
    packer.pack(tmp_path / "data", tmp_path / "index", max_len=16, index_only=True, sync=False)
    indexed = pickle.loads(pickle.dumps(packer.load(tmp_path / "index", source=tmp_path / "data")))
    assert _rows(indexed) == _rows(packer.load(tmp_path / "copy"))
    for packed in ("copy", "index"):
        assert not list(packer.verify(tmp_path / packed, tmp_path / "data"))
    path = write_datatrove(tmp_path / "a.ds", [[1, 2, 3], [4, 5]])
    write_array(tmp_path / "a.ds.loss", [[0, 0, 1], [1, 1]], "bool")
    documents, labels = read_whole(spill_source(open_source(path), tmp_path / "spill"))
    assert (documents, labels) == ([[1, 2, 3], [4, 5]], [[-100, -100, 3], [4, 5]])


DATATROVE = {
    "no.ds": (lambda ds, ends, loss: ends.unlink(), "no.ds: there is no no.ds.index, which says where documents end"),
    "cut.ds": (lambda ds, ends, loss: ends.write_bytes(bytes(9)), "cut.ds.index: 9 bytes, and an end takes 8"),
    "back.ds": (
        lambda ds, ends, loss: ends.write_bytes(struct.pack("<QQ", 5, 3)),
        "back.ds.index: document 1 ends at token 3, before its beginning",
    ),
    "large.ds": (
        lambda ds, ends, loss: ends.write_bytes(struct.pack("<Q", 2**64 - 1)),
        "large.ds.index: document 0 ends at token -1, before its beginning",
    ),
    "short.ds": (
        lambda ds, ends, loss: ds.write_bytes(bytes(9)),
        "short.ds has 9 bytes, and by short.ds.index 5 tokens",
    ),
    "empty.ds": (lambda ds, ends, loss: ends.write_bytes(b""), "empty.ds has 10 bytes, and by empty.ds.index 0 tokens"),
    "loss.ds": (lambda ds, ends, loss: loss.write_bytes(bytes(4)), "loss.ds.loss: 4 values, and loss.ds has 5 tokens"),
    "mask.ds": (lambda ds, ends, loss: loss.write_bytes(bytes([1, 1, 1, 7, 1])), "'loss_mask' holds 7 at position 0"),
}


@pytest.mark.parametrize("name", DATATROVE)
def test_damaged_files_of_datatrove_are_refused_in_one_line(tmp_path, name):
    change, message = DATATROVE[name]
    path = write_datatrove(tmp_path / name, [[1, 2, 3], [4, 5]])
    change(path, *(path.with_name(f"{name}.{other}") for other in ("index", "loss")))
    with pytest.raises(PackerError) as error:
        packer.pack(path, tmp_path / "out", max_len=16)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
