"""The first hour of a user: data as it is published packs at the first try, and a mistake is answered in one line."""

import re
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.column_names import input_ids_in
from tests.helpers.chat_templates import EXACT, REWRITING, save_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

HELLO = [{"role": "user", "content": "quick fox?"}, {"role": "assistant", "content": "brown"}]
SHAREGPT = [{"from": "human", "value": "quick fox?"}, {"from": "gpt", "value": "brown"}]

SCHEMAS = {
    "a text": {"text": "the quick fox", "url": "x"},
    "Alpaca": {"instruction": "quick fox?", "input": "dogs", "output": "brown"},
    "Dolly": {"instruction": "quick fox?", "context": "dogs", "response": "brown", "category": "open_qa"},
    "Dolly without context": {"instruction": "quick fox?", "context": "", "response": "brown"},
    "questions": {"question": "quick fox?", "answer": "brown"},
    "questions with context": {"question": "quick fox?", "context": "dogs", "answer": "brown"},
    "prompts with responses": {"prompt": "quick fox?", "response": "brown"},
    "prompts with completions": {"prompt": "quick fox?", "completion": "brown"},
    "OpenAI": {"messages": [{"role": "system", "content": "think"}, *HELLO]},
    "UltraChat": {"prompt": "quick fox?", "prompt_id": "1", "messages": HELLO},
    "ShareGPT": {"id": "1", "conversations": SHAREGPT},
    "Tulu": {"id": "1", "messages": HELLO, "source": "ai2-adapt-dev/flan_v2"},
    "OpenAI fine-tuning": {"messages": [HELLO[0], {**HELLO[1], "weight": 1}], "parallel_tool_calls": False},
    "GSM8K": {"question": "quick fox?", "answer": "brown <<1+1=2>>\n#### 2"},
}
"""A record of each format in which sets of texts, prompts and chats are published."""

LOOKUP = {"name": "look_up", "parameters": {"type": "object", "properties": {"animal": {"type": "string"}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"animal": "fox"}'}}
TOOLS = {
    "messages": [
        HELLO[0],
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "brown"},
        HELLO[1],
    ],
    "tools": [{"type": "function", "function": LOOKUP}],
}
ULTRAFEEDBACK = {
    "prompt": "quick fox?",
    "prompt_id": "1",
    "chosen": HELLO,
    "rejected": [HELLO[0], {"role": "assistant", "content": "lazy dogs"}],
    "score_chosen": 8.5,
    "score_rejected": 3.0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"])


def tokens_of(source, tokenizer, *options):
    """The tokens of the first document, and which are trained."""
    succeeded("pack", source, "--tokenizer", tokenizer, "--max-len", 512, "-o", "out", "--overwrite", *options)
    row = packer.load("out")[0]
    length = row["seq_lengths"][0]
    return row[input_ids_in(row)][:length].tolist(), (row["labels"][:length] != -100).tolist()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_published_schemas_pack_at_the_first_try(schema, tokenizer):
    record = SCHEMAS[schema]
    tokens, trained = tokens_of(write_lines(Path("rows.jsonl"), [record]), tokenizer)
    assert any(trained)
    if "messages" in record or "conversations" in record or "text" in record:
        return
    *before, last = [value for name, value in record.items() if value and name != "category"]
    parted = "completion" not in record
    same = {"prompt": "".join(f"{part}\n\n" for part in before) if parted else before[0], "completion": last}
    assert tokens_of(write_lines(Path("same.jsonl"), [same]), tokenizer) == (tokens, trained)
    chat = [{"role": "user", "content": "\n\n".join(before)}, {"role": "assistant", "content": last}]
    as_chat = tokens_of("rows.jsonl", tokenizer, "--chat-template", "chatml", "--train-on", "assistant")
    write_lines(Path("chat.jsonl"), [{"messages": chat}])
    assert as_chat[0] == tokens_of("chat.jsonl", tokenizer, "--chat-template", "chatml")[0]


def test_plain_text_and_tokens_pack_at_the_first_try(tokenizer):
    Path("notes.txt").write_text("the quick fox\njumps\n")
    assert all(tokens_of("notes.txt", tokenizer)[1][1:])
    tokens = {"input_ids": [5, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0], "labels": [-100, 6, 7, -100, -100]}
    printed = succeeded("pack", write_lines(Path("tokens.jsonl"), [tokens]), "--max-len", 8)
    assert packer.load("tokens-packed-8")[0]["input_ids"][:3].tolist() == [5, 6, 7]
    assert "removed before; not among the tokens" in printed


def test_chats_with_tools_and_pairs_pack_at_the_first_try(shared_data):
    """Preference pairs are recognized, and the line says what to type."""
    tokenizer = shared_data / QWEN3
    chats = write_lines(Path("chats.jsonl"), [TOOLS])
    tokens, trained = tokens_of(chats, tokenizer)
    assert 0 < sum(trained) < len(tokens)
    assert "look_up" in succeeded("show", "out", "--tokenizer", tokenizer, "--full")
    pairs = write_lines(Path("pairs.jsonl"), [ULTRAFEEDBACK])
    line = refused("pack", pairs, "--tokenizer", tokenizer, "--max-len", 64, words=("--pairs",))
    assert "\n" not in line
    succeeded("pack", pairs, "--tokenizer", tokenizer, "--max-len", 512, "--pairs", "-o", "of-pairs")


def test_columns_of_which_several_may_hold_the_text_are_named_as_they_can_be_typed(tokenizer):
    write_lines(Path("rows.jsonl"), [{**SCHEMAS["Alpaca"], "text": "quick fox? dogs brown"}])
    line = refused("pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 64)
    for words in line.split("choose ")[1].split(" or "):
        tokens_of("rows.jsonl", tokenizer, *words.split())


QWEN3 = "tokenizers/qwen3"
TWICE = [*HELLO, {"role": "user", "content": "dogs?"}, {"role": "assistant", "content": "42"}]


def test_a_template_that_rewrites_answers_is_replaced_by_one_that_renders_single_answers_alike(shared_data):
    """Qwen3's own writes an empty thought into the last answer only."""
    tokenizer, source = shared_data / QWEN3, write_lines(Path("chats.jsonl"), [{"messages": TWICE}])
    succeeded("pack", source, "--tokenizer", tokenizer, "--max-len", 64, "-o", "ours")
    assert packer.load("ours").manifest.source.text.stand_in == "qwen3"
    named = packer.pack(source, "named", max_len=64, tokenizer=str(tokenizer), chat_template="qwen3")
    assert packer.load("ours").manifest.shards == named.shards


def test_a_template_that_nothing_replaces_is_refused_with_both_remedies(tmp_path):
    tokenizer = save_tokenizer(tmp_path / "ours", template=REWRITING["think block in the last turn"])
    write_lines(Path("chats.jsonl"), [{"messages": TWICE}])
    words = ("--chat-template", "--train-on each-answer")
    line = refused("pack", "chats.jsonl", "--tokenizer", tokenizer, "--max-len", 64, words=words)
    assert "--on-error" not in line


MISTAKES = {
    "several lengths": (["pack", "rows.jsonl", "--max-len", "1k,2k"], 2, ("packer stats compares several",)),
    "no such export": (["export", "out", "--to", "torchtunes"], 2, ("torchtune", "see packer export --help")),
    "an export without need": (
        ["export", "out", "--to", "axolotl"],
        2,
        ("needs no export", "axolotl.md"),
    ),
    "trees for a trainer that reads none": (
        ["pack", "rows.jsonl", "--max-len", "64", "--for", "axolotl", "--share-prefixes"],
        2,
        ("--for axolotl does not train trees", "only hf and trl do"),
    ),
    "no labels for a trainer": (
        ["pack", "rows.jsonl", "--max-len", "64", "--for", "trl", "--no-labels"],
        2,
        ("--for trl needs labels: leave --no-labels out",),
    ),
    "no tokens for a trainer": (
        ["pack", "rows.jsonl", "--max-len", "64", "--for", "Transformers", "--index-only"],
        2,
        ("--for hf needs rows with tokens", "leave --index-only"),
    ),
    "chats without a tokenizer": (
        ["pack", "chats.jsonl", "--max-len", "64"],
        1,
        ("; give --tokenizer to pack text or chats",),
    ),
    "a page of the web": (["pack", "https://x.org/a.jsonl", "--max-len", "64"], 1, ("download it",)),
    "a column of messages": (
        ["pack", "chats.jsonl", "--text-column", "content", "--tokenizer", "{tokenizer}", "--max-len", "64"],
        1,
        ("no column 'content'", "leave --text-column out to pack 'messages'"),
    ),
    "a template for text": (
        ["pack", "rows.jsonl", "--chat-template", "chatml", "--tokenizer", "{tokenizer}", "--max-len", "64"],
        1,
        ("not chats", "leave it out"),
    ),
    "a model without a network": (["check", "no-one/nothing"], 1, ("cannot be reached", "download")),
    "a dataset without a network": (
        ["pack", "no-one/nothing", "--max-len", "64"],
        1,
        ("is not a local path, and the Hugging Face Hub cannot be reached", "download"),
    ),
    "lengths of rows": (["stats", "out", "--max-len", "32"], 1, ("is packed", "--max-len")),
    "rows of text": (["show", "rows.jsonl"], 1, ("rows.jsonl",)),
    "another source": (
        ["verify", "out", "--source", "chats.jsonl", "--tokenizer", "{tokenizer}"],
        3,
        ("out: it was packed from 'text', and this source has 'messages': give the source that was packed",),
    ),
}
"""Commands that fail, the exit code, and what their line says."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line_with_a_remedy(mistake, tokenizer, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    write_lines(Path("rows.jsonl"), [SCHEMAS["a text"]])
    write_lines(Path("chats.jsonl"), [SCHEMAS["OpenAI"]])
    succeeded("pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 64, "-o", "out")
    arguments, code, words = MISTAKES[mistake]
    refused(*(str(tokenizer) if word == "{tokenizer}" else word for word in arguments), words=words, code=code)


def test_the_first_row_is_shown_and_another_tokenizer_is_named(tokenizer, tmp_path_factory):
    write_lines(Path("rows.jsonl"), [SCHEMAS["a text"]])
    succeeded("pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 64, "-o", "out")
    assert succeeded("show", "out") == succeeded("show", "out", 0)
    other = Path(save_tokenizer(tmp_path_factory.mktemp("other") / "b"))
    assert run("show", "out", "--tokenizer", tokenizer).stderr == ""
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace('"!":', '"!!":'))
    named = run("show", "out", "--tokenizer", other)
    assert "out was tokenized with ours, and " in named.stderr


def _model_by_name():
    return packer.attention.use("Qwen/Qwen3-0.6B")


def _of(kind):
    import datasets
    import pandas as pd

    column = {"input_ids": [[1, 2], [3]]}
    of_rows = {"records": [{"input_ids": [1, 2]}], "dict": column, "DataFrame": pd.DataFrame(column)}
    return of_rows.get(kind) if kind in of_rows else datasets.Dataset.from_dict(column).to_iterable_dataset()


def _saved(tokenizer):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(tokenizer)


IN_PYTHON = {
    "no dataset": (lambda _: packer.load("nowhere"), "no such file or folder"),
    "no packed dataset": (lambda _: packer.load("."), "not a packed dataset"),
    "a model's name": (lambda _: _model_by_name(), "AutoModelForCausalLM.from_pretrained"),
    "several packed datasets": (lambda _: packer.stats(["out", "out"]), "as for packer.load"),
    "a page of another kind": (lambda _: packer.stats("out", report="page.txt"), "ends with .html"),
    "an algorithm": (lambda _: packer.pack("out", max_len=8, algorithm="best"), "choose one of auto, mixed"),
    "lengths": (lambda _: packer.stats("out", max_len=[32, 64]), "is packed, into rows of one length"),
    "a row": (lambda _: packer.show("out", 9), "there are 1, from 0 to 0"),
    "shuffle": (lambda _: next(packer.batches("out", 1, shuffle=True)), "leave shuffle out"),
    "a column": (lambda _: packer.load("out")["labels"], "dataset[0]['labels']"),
    "a key that is no number": (lambda _: packer.load("out")[1.5], "a slice or a list of numbers"),
    "records": (lambda _: packer.pack(_of("records"), "made", max_len=8), "datasets.Dataset.from_list"),
    "a dict": (lambda _: packer.pack(_of("dict"), "made", max_len=8), "datasets.Dataset.from_dict"),
    "a DataFrame": (lambda _: packer.pack(_of("DataFrame"), "made", max_len=8), "datasets.Dataset.from_pandas"),
    "a stream": (lambda _: packer.pack(_of("stream"), "made", max_len=8), "datasets.Dataset.from_generator"),
    "a tokenizer": (
        lambda path: packer.pack("rows.jsonl", "made", max_len=8, tokenizer=_saved(path)),
        "save_pretrained",
    ),
}
"""What a user of a notebook tries, and what the line says instead."""


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_a_mistake_in_python_is_answered_with_what_to_write(mistake, tokenizer):
    write_lines(Path("rows.jsonl"), [SCHEMAS["a text"]])
    packer.pack("rows.jsonl", "out", max_len=64, tokenizer=tokenizer)
    call, words = IN_PYTHON[mistake]
    with pytest.raises(packer.PackerError, match=re.escape(words)) as raised:
        call(tokenizer)
    assert "\n" not in str(raised.value)


def test_rows_are_chosen_by_slices_and_lists_and_batches_take_a_path(tokenizer):
    write_lines(Path("rows.jsonl"), [SCHEMAS["a text"]] * 40)
    packer.pack("rows.jsonl", "out", max_len=32, tokenizer=tokenizer)
    for dataset in (packer.load("out"), packer.load(["out", "out"])):
        for chosen, numbers in ((slice(1, 3), [1, 2]), ([0, -1], [0, len(dataset) - 1]), (np.array([2]), [2])):
            assert [row["doc_ids"].tolist() for row in dataset[chosen]] == [
                dataset[number]["doc_ids"].tolist() for number in numbers
            ]
    with pytest.raises(IndexError):
        packer.load("out")[[100]]
    ours, theirs = (
        [batch["input_ids"].tolist() for batch in packer.batches(dataset, 2, tensors="numpy")]
        for dataset in ("out", packer.load("out"))
    )
    assert ours == theirs


def test_the_public_names_are_those_that_are_listed():
    assert set(dir(packer)) == {*packer.__all__, "__version__"}
