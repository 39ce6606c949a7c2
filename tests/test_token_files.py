"""Corpora of bare tokens give the documents that they hold: Megatron's .bin with .idx."""

import json
import pickle
import re
import struct
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.sources.read_documents import read_documents
from tests.helpers.opening import open_source
from tests.helpers.sources import read_whole
from tests.helpers.token_files import in_one, write_indexed

SEQUENCES = [[[5, 6, 7], [8]], [], [[1]], [[9], [], [2, 3]], [list(range(50))], [[4, 4]], []]
DOCUMENTS = [[token for sequence in document for token in sequence] for document in SEQUENCES]


def read(path, **options) -> list[list[int]]:
    """Return the documents of a source, which must be mapped."""
    source = open_source(path, **options)
    assert source.mapped
    return read_whole(source)[0]


def run(*command: object) -> str:
    done = CliRunner().invoke(cli, list(map(str, command)))
    assert done.exit_code == 0, done.stderr
    return done.stdout


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
    assert read(path) == [[token for sequence in document for token in sequence] for document in documents]
    sequences = [sequence for document in documents for sequence in document]
    if sequences:
        assert read(path, document="sequence") == sequences


def test_an_index_is_packed_in_place_loaded_and_verified_by_each_of_its_names(tmp_path, monkeypatch, another_process):
    monkeypatch.chdir(tmp_path)
    write_indexed(tmp_path / "corpus_text_document", SEQUENCES, "uint16")
    names = ["corpus_text_document.idx", "corpus_text_document.bin", "corpus_text_document"]
    for number, name in enumerate(names):
        run("pack", name, "--max-len", 16, "-o", f"copy{number}")
        run("pack", name, "--max-len", 16, "--index-only", "-o", f"index{number}")
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
            assert "every token of the source" in run("verify", packed, "--source", name)
    assert another_process(_rows, packer.load("index1", source=tmp_path / names[0])) == copied
    assert f"{len(DOCUMENTS)} documents" in run("stats", names[2], "--max-len", 16)
    sequences = sum(map(len, SEQUENCES))
    assert f"{sequences} documents" in run("stats", names[0], "--max-len", 16, "--document", "sequence")


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
    "documents run back": (changed(78, "q", 3), "document 2 begins with sequence 2, before the one that the last"),
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
        ("pack b.idx --tokenizer t", "b.idx holds token ids and no other columns: leave out options that read text"),
        ("pack --lengths b.idx:n", "b.idx holds token ids and no other columns: leave out options that read text"),
        ("pack b.idx --pairs", "b.idx holds token ids and no other columns: leave out options that read text"),
        ("pack b.idx --keep url", "b.idx: no column 'url' (found: input_ids); all files need it"),
        ("pack b.idx --input-column ids", "b.idx: no column 'ids' (found: input_ids)"),
        ("pack b.idx --labels-column l", "no labels column 'l'; name one that exists"),
        ("pack c.jsonl --document sequence", "--document sequence: c.jsonl has no .idx of Megatron"),
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
    done = CliRunner().invoke(cli, [*command, "--max-len", "16", "-o", "out"])
    assert done.exit_code == 1, done.output
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
