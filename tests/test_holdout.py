"""Documents that are held out: no copy of them is trained, and a second packed dataset has them."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import packer
from tests.helpers import naive
from tests.helpers.chat_templates import EXACT
from tests.helpers.commands import refused, succeeded
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.pack import hashes, save_arrow
from tests.helpers.packings import Packing, packings
from tests.helpers.ranks import run_ranks
from tests.helpers.writing import write_lines


def repeating(count=300, seed=0) -> list[list[int]]:
    """Documents of which about a third are copies of others, and some are empty."""
    random = np.random.default_rng(seed)
    documents = [random.integers(1, 500, random.integers(0, 40)).tolist() for _ in range(count * 2 // 3)]
    documents += [documents[place] for place in random.integers(0, len(documents), count - len(documents))]
    return [documents[place] for place in random.permutation(count)]


def placed(out: Path) -> Counter:
    """Count the rows that hold a segment of each document."""
    found = Counter()
    for row in packer.load(out):
        found.update({document for document in row["doc_ids"].tolist() if document >= 0})
    return found


def both(out):
    """The paths of the two datasets, on the disk or in object storage."""
    return out, out.parent / f"{out.name}-holdout"


def contents(packing: Packing) -> list[list[int]]:
    """The tokens that decide about each document."""
    return packing.columns["input_ids"]


@st.composite
def with_copies(draw) -> Packing:
    """Draw a packing in which documents are repeated, and some are held out."""
    packing = draw(packings())
    repeated = draw(st.integers(0, 8))
    columns = {name: values + values[:repeated] for name, values in packing.columns.items()}
    holdout = draw(st.sampled_from([0.05, 0.1, 0.3, 0.6]))
    return replace(packing, columns=columns, options={**packing.options, "holdout": holdout})


@settings(max_examples=15)
@given(packing=with_copies())
def test_documents_of_a_hash_are_held_out_with_their_copies_and_the_others_trained(packing, tmp_path_factory):
    """Their hashes are compared with those of a plain twin, over packings of every kind."""
    folder = tmp_path_factory.mktemp("holdout")
    out, holdout = both(folder / "out")
    path = packing.write(folder)
    is_held = naive.held_out(contents(packing), packing.options["holdout"], packing.options["seed"])
    manifest = packing.pack(path, out)
    event("packed" if manifest else "nothing to pack")
    if manifest is None:
        return
    for side, is_other in ((out, True), (holdout, False)):
        assert packing.verify(path, side) == []
        found = placed(side)
        assert found
        assert {is_held[document] for document in found} == {not is_other}
    assert manifest.totals.documents_dropped["held_out"] == sum(is_held)


@pytest.mark.parametrize("holdout", ["10%", "0.1", 0.1])
def test_about_a_share_of_the_documents_is_held_out(tmp_path, holdout):
    documents = repeating(3000)
    source = save_arrow(tmp_path / "rows.arrow", documents)
    manifest = packer.pack(source, tmp_path / "out", max_len=64, holdout=holdout, sync=False)
    held = {tuple(documents[document]) for document in placed(tmp_path / "out-holdout")}
    assert 150 <= len(held) <= 250
    assert manifest.options.holdout == 0.1


def test_the_rest_is_packed_as_if_the_held_out_documents_were_empty(tmp_path):
    documents = repeating()
    source = save_arrow(tmp_path / "rows.arrow", documents)
    manifest = packer.pack(source, tmp_path / "out", max_len=64, holdout=0.15, sync=False)
    held = naive.held_out(documents, 0.15, 0)
    emptied = [[] if is_held else each for each, is_held in zip(documents, held, strict=True)]
    expected = packer.pack(save_arrow(tmp_path / "emptied.arrow", emptied), tmp_path / "expected", max_len=64)
    assert [shard.xxh3_128 for shard in manifest.shards] == [shard.xxh3_128 for shard in expected.shards]
    lost = sum(len(each) for each, is_held in zip(documents, held, strict=True) if is_held)
    assert manifest.totals.tokens_dropped == {"too_long": 0, "held_out": lost}


def records(count=200, seed=0) -> list[dict]:
    """Records of several documents, of which some are copies, with a beginning that their documents share."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count * 2 // 3):
        shared = random.integers(1, 500, random.integers(3, 20)).tolist()
        ends = [random.integers(1, 500, random.integers(1, 20)).tolist() for _ in range(random.integers(1, 5))]
        labels = [[-100] * len(shared) + end for end in ends]
        made.append({"input_ids": [shared + end for end in ends], "labels": labels})
    made += [made[place] for place in random.integers(0, len(made), count - len(made))]
    return [made[place] for place in random.permutation(count)]


def records_in(out: Path) -> set[int]:
    """The numbers of the records with a document in the rows."""
    return {record for row in packer.load(out) for record in row["record_ids"][row["doc_ids"] >= 0].tolist()}


@pytest.mark.parametrize("max_len", [256, 40])  # most records are a tree, or divided among several
def test_all_documents_of_a_record_are_held_out_with_its_copies_or_none(tmp_path, max_len):
    made = records()
    source = write_lines(tmp_path / "rows.jsonl", made)
    packer.pack(source, tmp_path / "out", max_len=max_len, share_prefixes=True, holdout=0.2, sync=False)
    found = []
    for side in both(tmp_path / "out"):
        assert list(packer.verify(side, source)) == []
        found.append(records_in(side))
    trained, held = ({json.dumps(made[record]) for record in side} for side in found)
    assert not trained & held
    assert found[0] | found[1] == set(range(200))
    assert 10 < len(held) < 50


def test_the_answers_of_a_chat_are_held_out_together(tmp_path, tokenizer):
    roles = ("user", "assistant") * 3
    chats = [
        {"messages": [{"role": role, "content": f"{role} {number} {turn}"} for turn, role in enumerate(roles)]}
        for number in range(60)
    ]
    source = write_lines(tmp_path / "chats.jsonl", chats)
    options = {"tokenizer": tokenizer, "train_on": "each-answer", "chat_template": EXACT["chatml"]}
    packer.pack(source, tmp_path / "out", max_len=256, holdout=0.3, sync=False, **options)
    trained, held = map(records_in, both(tmp_path / "out"))
    assert not trained & held
    assert trained | held == set(range(60))
    assert held


def test_ranks_write_both(tmp_path, out):
    source = write_lines(tmp_path / "rows.jsonl", [{"input_ids": each} for each in repeating(600)])
    options = {"max_len": 64, "holdout": 0.1, "shard_size": "12KB"}
    expected = packer.pack(source, tmp_path / "expected", **options)
    assert run_ranks(source, out, 2, options=options) == [expected] * 2
    for side, like in zip(both(out), both(tmp_path / "expected"), strict=True):
        assert hashes(side) == hashes(like)
    assert list(packer.verify(out)) == []


def test_a_holdout_that_is_missing_is_packed_again(tmp_path):
    import shutil

    source = write_lines(tmp_path / "rows.jsonl", [{"input_ids": each} for each in repeating()])
    command = ("pack", source, "--max-len", 64, "--holdout", "5%", "-o", tmp_path / "out")
    assert f"held out are in {tmp_path / 'out-holdout'}" in succeeded(*command)
    expected = hashes(tmp_path / "out-holdout")
    assert "nothing to do" in succeeded(*command)
    shutil.rmtree(tmp_path / "out-holdout")
    assert f"held out are in {tmp_path / 'out-holdout'}" in succeeded(*command)
    assert hashes(tmp_path / "out-holdout") == expected
    refused(*command[:-3], "6%", *command[-2:], words=("with holdout 0.05, not 0.06", "--overwrite"))
    assert json.loads(succeeded(*command, "--json"))["holdout"] == str(tmp_path / "out-holdout")


def test_a_holdout_of_another_pack_is_not_replaced(tmp_path):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    packer.pack(source, tmp_path / "out-holdout", max_len=64, sync=False)
    words = (f"{tmp_path / 'out-holdout'} is complete, packed with holdout None, not 0.1", "--overwrite")
    refused("pack", source, "--max-len", 64, "--holdout", "10%", "-o", tmp_path / "out", words=words)
    assert not (tmp_path / "out").exists()
    assert packer.pack(source, tmp_path / "out", max_len=64, holdout=0.1, sync=False, overwrite=True)
    assert len(placed(tmp_path / "out-holdout")) >= 5


def test_the_holdout_is_next_to_the_current_folder_and_to_no_bucket(tmp_path, monkeypatch, bucket):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    packer.pack(source, ".", max_len=64, holdout=0.1, sync=False)
    assert (tmp_path / "out-holdout" / "manifest.json").exists()
    words = (f"{bucket} has no folder next to it for documents held out",)
    refused("pack", source, "--max-len", 64, "--holdout", "10%", "-o", bucket, words=words)


def test_an_index_holds_the_same_documents_out(tmp_path):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    packer.pack(source, tmp_path / "whole", max_len=64, holdout=0.15, sync=False)
    packer.pack(source, tmp_path / "index", max_len=64, holdout=0.15, sync=False, index_only=True)
    for index, whole in zip(both(tmp_path / "index"), both(tmp_path / "whole"), strict=True):
        rows, others = packer.load(index, source=source), packer.load(whole)
        assert [row["input_ids"].tolist() for row in rows] == [row["input_ids"].tolist() for row in others]
        assert list(packer.verify(index, source)) == []


def test_verify_names_the_other_and_finds_one_that_may_share_documents(tmp_path):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    out, holdout = both(tmp_path / "out")
    for seed, folder in ((0, out), (1, tmp_path / "other")):
        packer.pack(source, folder, max_len=64, holdout=0.15, seed=seed, sync=False)
    assert f"held out are in {holdout}\n" in succeeded("verify", out)
    assert f"held out of {out}\n" in succeeded("verify", holdout, "--source", source)
    assert json.loads(succeeded("verify", holdout, "--json"))["holdout_of"] == str(out)
    holdout.rename(tmp_path / "moved")
    assert f"{holdout}, which is not there" in succeeded("verify", out)
    (tmp_path / "other-holdout").rename(holdout)
    refused("verify", out, words=(f"{holdout} may share documents with it", "with seed 1"), code=3)


@pytest.mark.parametrize("seed", [0, 1])
def test_verify_finds_a_held_out_document_that_is_trained(tmp_path, seed):
    """The rows of a pack that holds out nothing, under the manifest of one that does."""
    from tests.helpers.packed_rows import edit_manifest

    source = save_arrow(tmp_path / "rows.arrow", repeating())
    manifest = packer.pack(source, tmp_path / "held", max_len=64, holdout=0.15, seed=seed, sync=False)
    packer.pack(source, tmp_path / "out", max_len=64, seed=seed, sync=False)
    edit_manifest(tmp_path / "out", lambda content: content.update(options=manifest.options.to_dict()))
    (fault, *_) = packer.verify(tmp_path / "out", source)
    assert "is in the source, but missing from the rows, repeated" in fault or "not in the source" in fault


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--holdout", "2.5"], "--holdout is 2.5: give a share below 1, such as 0.5%", 2),
        (["--holdout", "100%"], "--holdout is 1.0: give a share below 1, such as 0.5%", 2),
        (["--holdout", "0.00001%"], "292 are not held out, and none of the others can be packed: hold out more", 1),
        (["--holdout", "99.99999%"], "292 are held out, and none of the others can be packed: hold out fewer", 1),
    ],
)
def test_what_cannot_be_held_out_is_refused_in_one_line(tmp_path, options, words, code):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    refused("pack", source, "--max-len", 64, *options, words=(words,), code=code)
    assert not (tmp_path / "rows-packed-64").exists()


@pytest.mark.parametrize("holdout", [0, -5, "some", float("nan")])
def test_a_holdout_that_is_no_number_above_0_is_refused(tmp_path, holdout):
    source = save_arrow(tmp_path / "rows.arrow", repeating())
    with pytest.raises(packer.PackerError, match=rf"{holdout!r}: it must be a number above 0"):
        packer.pack(source, tmp_path / "out", max_len=64, holdout=holdout)


def test_lengths_alone_are_not_held_out(tmp_path):
    np.save(tmp_path / "lengths.npy", np.arange(1, 50))
    words = ("--holdout is 0.1, and lengths have no content to choose by",)
    refused("pack", "--lengths", tmp_path / "lengths.npy", "--max-len", 64, "--holdout", "10%", words=words, code=2)


def test_a_token_out_of_range_is_named(tmp_path):
    source = save_arrow(tmp_path / "rows.arrow", [[1, 2], [3, -4], [5]])
    words = ("document 1 (rows.arrow row 1)", "'input_ids' holds -4 at position 1", "--on-error skip")
    refused("pack", source, "--max-len", 64, "--holdout", "40%", words=words)
    said = succeeded("pack", source, "--max-len", 64, "--holdout", "40%", "--on-error", "skip")
    assert "rejected" in said
