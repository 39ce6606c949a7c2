"""Pack text in one command: rows hold the tokens of each document alone, from every kind of source."""

import json
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.options import ReadOptions
from packer.output.job import Job
from packer.pipeline.tokenizing import tokenize
from packer.shards.reader import read_manifest
from packer.sources.inputs import DecodedInput
from packer.text.tokens import TextTokens
from tests.helpers import naive_chats
from tests.helpers.chat_templates import EXACT, auto_tokenizer, save_tokenizer, trained
from tests.helpers.commands import succeeded
from tests.helpers.kills import Killed
from tests.helpers.pack import segments_in
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")
from tests.helpers.from_text import (  # noqa: F401
    CHATML,
    MAX_LEN,
    chats,
    documents_of,
    pack,
    pairs,
    shards,
    small,
    texts,
    tokenizer,
    write_formats,
)

KINDS = {"texts": texts, "chats": chats, "pairs": pairs}


def alone(tokenizer, record, template):
    """Return the tokens of a document by itself, and the positions that are trained."""
    if "messages" in record:
        render = naive_chats.renderer(tokenizer, template)
        wanted = naive_chats.assistant_characters(render, record["messages"])
        return naive_chats.tokens_of_characters(tokenizer, render(record["messages"], prompt=False), wanted)
    prompt = record.get("prompt", "")
    text = record["text"] if "text" in record else prompt + record["completion"]
    adds = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    front = adds[0].index(adds[1][0])
    ids = tokenizer(text)["input_ids"]
    if tokenizer.eos_token_id is not None:
        ids = [*ids, tokenizer.eos_token_id]
    if "text" in record:
        return ids, list(range(len(ids)))
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    first = next((at for at, (_, end) in enumerate(offsets) if end > len(prompt)), len(offsets))
    return ids, list(range(front + first, len(ids)))


def assert_rows_hold(packed: Path, records, tokenizer, template=None):
    found = documents_of(packed)
    begun = {(document, start) for document, start, _, _ in segments_in(packer.load(packed))}
    for number, record in enumerate(records):
        ids, places = alone(tokenizer, record, template)
        # the first token of a segment is never trained: its prediction would come from the document before
        expected = [-100] * len(ids)
        for place in places:
            expected[place] = ids[place] if (number, place) not in begun else -100
        assert found.pop(number) == (ids, expected), number
    assert not found


# ---- tokens and labels ----


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_the_tokens_of_each_document_alone(tmp_path, tokenizer, kind, small):
    records = KINDS[kind]()
    manifest = pack(write_lines(tmp_path / "rows.jsonl", records), tmp_path / "out", tokenizer)
    assert_rows_hold(tmp_path / "out", records, auto_tokenizer(tokenizer), CHATML)
    assert manifest.totals.documents == len(records)
    assert manifest.options.pad_id == trained().token_to_id("<|endoftext|>")
    assert not list(packer.verify(tmp_path / "out", tmp_path / "rows.jsonl", tokenizer=tokenizer))


def test_a_column_can_be_named_and_the_end_token_left_out(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", [{"content": record["text"], "text": "no"} for record in texts()])
    pack(source, tmp_path / "out", tokenizer, text_column="content", eos=False, max_len=4096)
    found = documents_of(tmp_path / "out")
    opened = auto_tokenizer(tokenizer)
    assert [found[number][0] for number in range(60)] == [opened(record["text"])["input_ids"] for record in texts()]


def test_tools_that_only_a_later_line_has_are_rendered(tmp_path, tokenizer):
    template = "{% if tools %}TOOLS {{ tools | length }}\n{% endif %}" + CHATML
    with_tools = {**chats()[1], "tools": [{"name": "dig"}, {"name": "run"}]}
    write_lines(tmp_path / "rows.jsonl", [chats()[0], with_tools])
    pack(tmp_path / "rows.jsonl", tmp_path / "out", tokenizer, chat_template=template, max_len=512)
    text = auto_tokenizer(tokenizer).decode(documents_of(tmp_path / "out")[1][0])
    assert text.startswith("TOOLS 2\n")


# ---- sources ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(tmp_path, tokenizer, kind, small):
    made = write_formats(tmp_path, KINDS[kind]())
    hashes = {name: shards(pack(source, tmp_path / f"out-{name}", tokenizer)) for name, source in made.items()}
    assert len(set(map(tuple, hashes.values()))) == 1, hashes


def test_an_indices_mapping_selects_and_repeats(tmp_path, tokenizer, small):
    order = [5, 0, 4, 4, 31, 1]
    dataset = datasets.Dataset.from_list(texts())
    lines = write_lines(tmp_path / "rows.jsonl", [texts()[row] for row in order])
    wanted = shards(pack(lines, tmp_path / "out", tokenizer))
    assert shards(pack(dataset.select(order), tmp_path / "from-object", tokenizer)) == wanted
    with pytest.raises(packer.PackerError, match="source that has changed"):  # of as many bytes, in another order
        pack(dataset.select(order[::-1]), tmp_path / "from-object", tokenizer)
    faulty = datasets.Dataset.from_list([*texts()[:3], {"text": None}])
    pack(faulty.select([2, 0]), tmp_path / "without", tokenizer)
    with pytest.raises(packer.SourceError, match=r"document 1 \(dataset row 1\): 'text' is null"):
        pack(faulty.select([0, 3]), tmp_path / "with", tokenizer)


@pytest.mark.parametrize("kind", ["texts", "chats"])
def test_workers_do_not_change_a_byte(tmp_path, tokenizer, kind, small):
    source = write_lines(tmp_path / "rows.jsonl", KINDS[kind]())
    made = [pack(source, tmp_path / f"out-{workers}", tokenizer, workers=workers) for workers in (1, 2, 7)]
    assert len({manifest.to_bytes() for manifest in made}) == 1


# ---- killed and resumed ----


def kill_after(monkeypatch, blocks: int):
    """Make the tokenizer raise `Killed` at this block of records; return a list of the blocks it was called with."""
    calls = []
    decode = DecodedInput._decoded

    def limited(self, block):
        calls.append(block)
        if len(calls) == blocks:
            raise Killed
        return decode(self, block)

    monkeypatch.setattr(DecodedInput, "_decoded", limited)
    return calls


@pytest.mark.parametrize("source", ["file", "dataset in memory"])
def test_only_text_tokenized_in_the_same_way_is_used_again(tmp_path, tokenizer, monkeypatch, small, source):
    dataset = write_lines(tmp_path / "rows.jsonl", pairs()) if source == "file" else datasets.Dataset.from_list(pairs())

    def run(out, **options):
        options = ReadOptions(tokenizer=tokenizer, **options)
        report = tokenize(dataset, options=options, job=Job(output=out, workers=1, sync=False)).record
        return report, [path.read_bytes() for path in sorted(out.glob("*.arrow"))]

    whole, other = run(tmp_path / "whole"), run(tmp_path / "other", eos=False)
    assert whole[0].documents_untrained == 0
    for options, wanted, same in (({}, whole, True), ({"eos": False}, other, False)):
        with monkeypatch.context() as patch:
            kill_after(patch, 10)
            with pytest.raises(Killed):
                run(tmp_path / "out")
        with monkeypatch.context() as patch:
            again = kill_after(patch, -1)
            assert run(tmp_path / "out", **options) == wanted
            if same:
                resumed = len(again)
            else:
                assert len(again) > resumed
        shutil.rmtree(tmp_path / "out")


def test_a_tokenized_dataset_packs_to_the_same_rows(tmp_path, tokenizer, small):
    for kind, records in KINDS.items():
        source = write_lines(tmp_path / f"{kind}.jsonl", records())
        result = tokenize(source, options=ReadOptions(tokenizer=tokenizer), job=Job(sync=False))
        assert result.output == tmp_path / f"{kind}-tokenized"
        direct = pack(source, tmp_path / f"{kind}-direct", tokenizer)
        assert shards(pack(result.output, tmp_path / f"{kind}-packed", None)) == shards(direct)
        assert datasets.load_from_disk(str(result.output)).num_rows == len(records())
        assert not list(tmp_path.glob(".*"))


def test_a_tokenized_dataset_is_found_kept_and_replaced(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", texts())
    run = lambda **more: CliRunner().invoke(  # noqa: E731
        cli, ["tokenize", str(source), "--tokenizer", tokenizer, "--no-sync", *more.get("args", [])]
    )
    first = run()
    assert first.exit_code == 0, first.output
    assert "Tokenized 60 documents into" in first.stdout
    assert "is complete, tokenized in the same way" in run().stdout
    other = run(args=["--no-eos"])
    assert (other.exit_code, "tokenized with eos True, not False" in other.stderr) == (1, True)
    replaced = run(args=["--no-eos", "--overwrite", "--json"])
    assert json.loads(replaced.stdout)["source"]["text"]["eos"] is False
    tokens = sum(len(row["input_ids"]) for row in datasets.load_from_disk(str(tmp_path / "rows-tokenized")))
    assert tokens == json.loads(replaced.stdout)["source"]["tokens"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    refused = run(args=["-o", str(tmp_path / "other")])
    assert "exists and is not a tokenized dataset" in refused.stderr


def test_another_tokenizer_or_template_is_another_pack(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", chats())
    manifest = pack(source, tmp_path / "out", tokenizer)
    assert str(tmp_path.parent) not in manifest.to_bytes().decode()
    assert manifest.source.text.tokenizer
    other = save_tokenizer(tmp_path / "ours", template=EXACT["trims"])
    with pytest.raises(packer.PackerError, match=r"with chat_template .*, not .*: choose another"):
        pack(source, tmp_path / "out", other)
    with pytest.raises(packer.PackerError, match=r"with chat_template None, not \{% for"):
        pack(source, tmp_path / "out", tokenizer, chat_template=CHATML)
    (fault,) = packer.verify(tmp_path / "out", source, tokenizer=other)
    assert fault.startswith("it was packed with another chat_template")


def test_verify_tokenizes_again_and_finds_what_differs(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", chats())
    pack(source, tmp_path / "out", tokenizer, chat_template=EXACT["trims"])
    with pytest.raises(packer.PackerError, match="packed with the tokenizer ours: give its path with tokenizer"):
        list(packer.verify(tmp_path / "out", source))
    assert not list(packer.verify(tmp_path / "out", source, tokenizer=tokenizer))
    changed = json.loads(json.dumps(chats()))
    changed[3]["messages"][1]["content"] = "x" + changed[3]["messages"][1]["content"][1:]
    write_lines(source, changed)
    (fault,) = packer.verify(tmp_path / "out", source, tokenizer=tokenizer)
    assert "document 3 (rows.jsonl line 4)" in fault
    pack(write_lines(tmp_path / "t.jsonl", [{"input_ids": [1, 2]}]), tmp_path / "tokens", None)
    with pytest.raises(packer.PackerError, match="was packed from tokens"):
        list(packer.verify(tmp_path / "tokens", tmp_path / "t.jsonl", tokenizer=tokenizer))


def test_stats_count_what_packing_makes(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", pairs())
    manifest = pack(source, tmp_path / "out", tokenizer)
    for command in (["stats"], ["stats", "--algorithm", "all"]):
        arguments = [str(source), "--tokenizer", tokenizer, "--max-len", str(MAX_LEN), "--json"]
        content = json.loads(succeeded(*command, *arguments))
        assert (content["documents"], content["tokens"]) == (50, manifest.totals.tokens)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl"]


# ---- counted and printed ----


def test_straddling_and_untrained_documents_are_counted_and_printed(tmp_path, tokenizer, small):
    records = [{"prompt": "The qui", "completion": "ck fox"}, {"prompt": "The fox", "completion": ""}, *pairs()]
    source = write_lines(tmp_path / "rows.jsonl", records)
    arguments = ["pack", str(source), "--tokenizer", tokenizer, "--no-eos", "--max-len", "64", "--no-sync"]
    said = succeeded(*arguments)
    totals = read_manifest(tmp_path / "rows-packed-64").totals
    ours = auto_tokenizer(tokenizer)

    def straddles(record):
        offsets = ours(record["prompt"] + record["completion"], return_offsets_mapping=True)["offset_mapping"]
        return any(start < len(record["prompt"]) < end for start, end in offsets)

    assert totals.documents_straddling == sum(map(straddles, records)) > 0
    assert totals.documents_untrained == 1
    assert "nothing to train on" in said
    assert "Tokenized with ours, training on completion of prompt+completion" in said


# ---- errors ----


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("texts", b'{"text": "a\\ud800b"}', r"lone surrogate U\+D800 at character 1"),
        ("texts", b'{"text": "\xff"}', "invalid UTF-8 at byte 10 of the line"),
        ("chats", b'{"messages": [{"role": "king", "content": ""}]}', "the role 'king'"),
        ("pairs", b'{"prompt": "a"}', "'completion' is null"),
    ],
)
@pytest.mark.parametrize("workers", [3, 1])
def test_an_invalid_line_is_named_with_its_file(tmp_path, tokenizer, small, kind, line, words, workers):
    lines = [json.dumps(record).encode() for record in KINDS[kind]()]
    lines[31:31] = [b"", line]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(packer.SourceError, match=rf"^document 31 \(rows.jsonl line 33\): .*{words}"):
        pack(tmp_path / "rows.jsonl", tmp_path / "out", tokenizer, workers=workers)
    assert not (tmp_path / "out").exists()
    with pytest.raises(packer.SourceError, match="line 33"):
        tokenize(tmp_path / "rows.jsonl", options=ReadOptions(tokenizer=tokenizer))
    assert not (tmp_path / "rows-tokenized").exists()


def refused(source, tokenizer, **options):
    with pytest.raises(packer.PackerError) as caught:
        pack(source, Path(source).parent / "out", tokenizer, **options)
    assert not (Path(source).parent / "out").exists()
    return str(caught.value)


def test_impossible_requests_are_refused_before_anything_is_written(tmp_path, tokenizer):
    chat = write_lines(tmp_path / "chats.jsonl", chats())
    text = write_lines(tmp_path / "texts.jsonl", texts())
    bare = save_tokenizer(tmp_path / "bare")
    assert "no file, no folder, and no Hub id like org/name" in refused(text, str(tmp_path / "none"))
    assert "has no chat template; choose a template by chat_template (chatml, " in refused(chat, bare)
    assert "train_on='assistant' does not fit documents of text" in refused(text, tokenizer, train_on="assistant")
    assert "train_on is 'me': choose one of all, completion, assistant" in refused(text, tokenizer, train_on="me")
    assert "give tokenizer to pack text or chats" in refused(text, None)
    assert "text_column is 'body', but there is no tokenizer: set" in refused(text, None, text_column="body")
    assert "eos is False, but there is no tokenizer" in refused(text, None, eos=False)
    assert "input_column is 'ids', but tokens and labels come" in refused(text, tokenizer, input_column="ids")
    both = write_lines(tmp_path / "both.jsonl", [{"input_ids": [1], "text": "a"}])
    assert "already tokenized; pack it without tokenizer" in refused(both, tokenizer)
    empty = write_lines(tmp_path / "empty.jsonl", [])
    assert "empty dataset: 0 documents in 1 file(s)" in refused(empty, tokenizer)
    twice = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), twice)
    assert "2 columns are named 'text'" in refused(twice, tokenizer)


def test_files_of_different_kinds_are_refused(tmp_path, tokenizer):
    (tmp_path / "all").mkdir()
    write_lines(tmp_path / "all" / "a.jsonl", texts())
    write_lines(tmp_path / "all" / "b.jsonl", chats())
    message = refused(tmp_path / "all", tokenizer)
    assert "a.jsonl holds 'text' as strings, b.jsonl 'messages' as lists of messages" in message


def test_tokenizers_that_cannot_be_opened_are_told_apart(tmp_path, monkeypatch):
    text = write_lines(tmp_path / "texts.jsonl", texts())
    (tmp_path / "empty").mkdir()
    assert refused(text, str(tmp_path / "empty")).endswith(
        "empty has no files of a tokenizer, such as tokenizer.json: name a folder that has"
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    assert "broken cannot be opened as a tokenizer (" in refused(text, str(tmp_path / "broken"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "nor was it downloaded before HF_HUB_OFFLINE was set" in refused(text, "no-one-here/no-such-tokenizer")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unanswered)
    message = refused(text, "no-one-here/no-such-tokenizer")
    assert "is not a local path, and the Hugging Face Hub cannot be reached (timed out): download it" in message


def unanswered(*arguments, **settings):
    raise TimeoutError("timed out")


NO_TORCH = """
import os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.metadata, importlib.util
sys.meta_path.insert(0, Refuse())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
"""


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("usual", [None, "0"])
def test_text_is_packed_without_torch_and_without_a_warning(tmp_path, tokenizer, usual):
    source = write_lines(tmp_path / "rows.jsonl", chats())
    own = shutil.copytree(tokenizer, tmp_path / "tokenizer")  # transformers opens it, as packer does not know the key
    config = json.loads((own / "tokenizer_config.json").read_text())
    (own / "tokenizer_config.json").write_text(json.dumps(config | {"unknown": 1}))
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    env = {key: value for key, value in os.environ.items() if key != name} | ({} if usual is None else {name: usual})
    code = f"{NO_TORCH}\nimport packer\npacker.pack(sys.argv[1], sys.argv[2], max_len=64, tokenizer=sys.argv[3])\n"
    code += f"assert os.environ.get({name!r}) == {usual!r}\nassert 'torch' not in sys.modules\n"
    code += "assert 'transformers' in sys.modules\n"
    code += "import transformers\nassert not transformers.is_torch_available()\n"
    code += "transformers.logging.get_logger('transformers').warning('something else')\n"
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out"), str(own)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "PyTorch" not in done.stderr + done.stdout
    assert "something else" in done.stderr
    plain = subprocess.run(
        [sys.executable, "-c", f"{NO_TORCH}\nimport transformers"], capture_output=True, text=True, env=env, check=True
    )
    assert ("PyTorch" in plain.stderr) == (usual is None)  # the warning that packer avoids


RECORDS = {
    "texts": [{"text": one["text"]} for one in texts()],
    "prompts": [{"prompt": f"{at} ", "completion": one["text"]} for at, one in enumerate(texts())],
    "pairs": [{"prompt": f"{at} ", "chosen": one["text"], "rejected": "no"} for at, one in enumerate(texts())],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_texts_of_a_block_are_tokenized_in_calls_of_limited_size(tmp_path, tokenizer, monkeypatch, kind):
    source = write_lines(tmp_path / "records.jsonl", RECORDS[kind])
    options = {"pairs": True} if kind == "pairs" else {}
    whole = shards(pack(source, tmp_path / "whole", tokenizer, **options))
    calls, encode = [], TextTokens.encode
    monkeypatch.setattr(TextTokens, "encode", lambda self, one: calls.append(one.texts) or encode(self, one))
    shrink(monkeypatch, call_characters=300)
    assert shards(pack(source, tmp_path / "parts", tokenizer, **options)) == whole
    longest = max(map(len, chain.from_iterable(calls)))
    assert len(calls) > 10
    assert all(sum(map(len, one)) < 300 + 2 * longest for one in calls)
