"""Beside tokens made of text: columns that are kept, groups, and the places where turns begin."""

import json
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.options import PackOptions
from packer.pipeline.tokenizing import tokenize
from packer.sources import records as records_module
from packer.sources import spill as spill_module
from tests.chat_templates import EXACT, save_tokenizer
from tests.test_from_text import chats, pack, pairs, shards, texts, write_formats, write_lines

pytest.importorskip("zstandard")
pytest.importorskip("transformers")

CHATML = EXACT["chatml"]
NAMES = ["news", None, "code", "books", ""]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=CHATML)


@pytest.fixture
def small(monkeypatch):
    """Pieces and stretches of a few documents."""
    monkeypatch.setattr(spill_module, "_PIECE", 1500)
    monkeypatch.setattr(records_module, "_BLOCK", 400)


def with_columns(records):
    """The same records with a name, a number and a list each."""
    return [
        {**record, "source": NAMES[number % 5], "weight": number / 7, "tags": [str(number)] * (number % 3 + 1)}
        for number, record in enumerate(records)
    ]


def values_of(out, columns):
    """By document the set of what its segments have in these columns."""
    found = {}
    for row in packer.load(out):
        for number, document in enumerate(row["doc_ids"]):
            if document >= 0:
                found.setdefault(int(document), set()).add(json.dumps([_plain(row[name][number]) for name in columns]))
    return found


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


# ---- columns that are kept ----


@pytest.mark.parametrize("records", [texts, chats, pairs])
def test_every_segment_has_the_values_of_its_record_from_every_format(tmp_path, tokenizer, small, records):
    made = with_columns(records())
    keep = ["source", "weight", "tags"]
    wanted = {number: {json.dumps([record[name] for name in keep])} for number, record in enumerate(made)}
    formats = write_formats(tmp_path, made)
    for name, source in formats.items():
        out = tmp_path / f"out-{name}"
        manifest = pack(source, out, tokenizer, max_len=16, keep=keep)
        assert values_of(out, keep) == wanted, name
    assert manifest.totals["documents_split"] > 5
    assert list(packer.verify(tmp_path / "out-jsonl", formats["jsonl"], tokenizer=tokenizer)) == []
    made[7]["weight"] = -1.0
    write_lines(formats["jsonl"], made)
    (fault,) = packer.verify(tmp_path / "out-jsonl", formats["jsonl"], tokenizer=tokenizer)
    assert fault.startswith("document 7 ")
    assert "weight" in fault


def test_tokenizing_keeps_columns_for_the_same_rows(tmp_path, tokenizer, small):
    made = with_columns(texts())
    source = write_lines(tmp_path / "rows.jsonl", made)
    arguments = ["tokenize", str(source), "--tokenizer", tokenizer, "--no-sync", "--keep", "source", "--keep", "weight"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    kept = datasets.load_from_disk(str(tmp_path / "rows-tokenized"))
    assert kept["source"][:] == [record["source"] for record in made]
    assert kept["weight"][:] == [record["weight"] for record in made]
    direct = pack(source, tmp_path / "direct", tokenizer, keep=["source"])
    pad_id = direct.options["pad_id"]
    once = pack(tmp_path / "rows-tokenized", tmp_path / "packed", None, keep=["source"], pad_id=pad_id)
    assert shards(once) == shards(direct)
    other = CliRunner().invoke(cli, arguments[:-2])
    assert (other.exit_code, "tokenized with keep ['source', 'weight'], not ['source']" in other.stderr) == (1, True)


@pytest.mark.parametrize("mode", ["together", "apart"])
def test_records_of_text_are_grouped_by_a_column(tmp_path, tokenizer, small, mode):
    made = with_columns(texts())
    source = write_lines(tmp_path / "rows.jsonl", made)
    pack(source, tmp_path / "out", tokenizer, group_by="source", group_mode=mode)
    mixed = 0
    for row in packer.load(tmp_path / "out"):
        found = [made[document]["source"] for document in row["doc_ids"] if document >= 0]
        if mode == "together":
            assert len(set(found)) == 1
        else:
            assert max(Counter(name for name in found if name is not None).values(), default=1) == 1
        mixed += len(found) > 1
    assert mixed > 3


def test_a_column_can_be_text_and_be_kept(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", pairs())
    pack(source, tmp_path / "out", tokenizer, keep=["prompt"])
    assert values_of(tmp_path / "out", ["prompt"])[3] == {json.dumps([pairs()[3]["prompt"]])}


def test_what_cannot_be_kept_of_text_is_refused(tmp_path, tokenizer):
    made = with_columns(texts())
    source = write_lines(tmp_path / "rows.jsonl", made)
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(made), table)
    out = tmp_path / "out"

    def refused(given=source, **options):
        with pytest.raises(packer.PackerError) as caught:
            pack(given, out, tokenizer, **options)
        assert not out.exists()
        return str(caught.value)

    assert "rows.jsonl: no column 'topic' (found: text, source, weight, tags)" in refused(keep=["topic"])
    assert "rows.parquet: no column 'topic' (found: text, source, weight, tags)" in refused(table, keep=["topic"])
    assert "keep_tokens 'tags': text has no values per token" in refused(keep_tokens=["tags"])
    assert "keep 'loss_mask': masks become labels" in refused(keep=["loss_mask"])
    assert "pairs are read as tokens, and there is a tokenizer" in refused(pairs=True, long="truncate")
    made[31]["weight"] = "heavy"
    write_lines(source, made)
    message = refused(keep=["weight"])
    assert message.startswith("document 31 (rows.jsonl line 32): 'weight' holds \"heavy\", where the file's first line")
    write_lines(source, [{"text": "a", "weight": None}])
    assert "'weight' is null, which says no type" in refused(keep=["weight"])
    assert tokenize(source, options=PackOptions(max_len=1, tokenizer=tokenizer), sync=False).report["source"]
