"""Prompts with completions as strings: with --chat-template they are chats, and nothing of them is left out."""

import pytest

import packer
from packer.column_names import input_ids_in
from tests.helpers.chat_templates import EXACT, auto_tokenizer, save_tokenizer
from tests.helpers.commands import succeeded
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CHATML = EXACT["chatml"]
ALPACA = [
    {"instruction": "quick fox?", "input": "", "output": "brown"},
    {"instruction": "dogs?", "input": "how many", "output": "42", "system": "think", "history": [["fox?", "quick"]]},
]
RECORDS = {
    "Alpaca": (ALPACA, None, "instruction+output"),
    "prompt and completion": (
        [{"prompt": one["instruction"], "completion": one["output"]} for one in ALPACA],
        None,
        "prompt+completion",
    ),
    "question and answer": (
        [{"question": one["instruction"], "answer": one["output"], **one} for one in ALPACA],
        "question,answer",
        "question+answer",
    ),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours")


def pack(source, out, tokenizer, **options):
    return packer.pack(source, out, max_len=64, tokenizer=tokenizer, sync=False, **options)


def shards(manifest):
    return [shard.xxh3_128 for shard in manifest.shards]


def as_messages(record, columns):
    prompt, completion = (record[column] for column in columns.split("+"))
    if "instruction" in columns and record.get("input"):
        prompt += "\n\n" + record["input"]
    system = [{"role": "system", "content": record["system"]}] if "system" in record else []
    earlier = [
        {"role": role, "content": content}
        for turn in record.get("history", [])
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    asked = {"role": "user", "content": prompt}
    return {"prompt": [*system, *earlier, asked], "completion": [{"role": "assistant", "content": completion}]}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_chat_template_renders_prompts_and_completions_as_chats(tmp_path, tokenizer, kind):
    records, text_column, columns = RECORDS[kind]
    messages = [as_messages(record, columns) for record in records]
    options = {"chat_template": CHATML, "text_column": text_column}
    manifest = pack(write_lines(tmp_path / "rows.jsonl", records), tmp_path / "out", tokenizer, **options)
    expected = pack(
        write_lines(tmp_path / "chats.jsonl", messages), tmp_path / "chats", tokenizer, chat_template=CHATML
    )
    assert shards(manifest) == shards(expected)
    opened, rows = auto_tokenizer(tokenizer), packer.load(tmp_path / "out")
    trained = [token for row in rows for token in row["labels"].tolist() if token >= 0]
    assert sorted(opened.decode(trained).split()) == ["42<|im_end|>", "brown<|im_end|>"]


def test_the_summary_says_that_prompts_were_rendered_as_chats(tmp_path, tokenizer):
    write_lines(tmp_path / "rows.jsonl", ALPACA)
    (tmp_path / "chatml.jinja").write_text(CHATML)
    command = ["pack", tmp_path / "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 64, "-o", tmp_path / "out"]
    said = succeeded(*command, "--chat-template", tmp_path / "chatml.jinja")
    assert "training on completion of instruction+output, rendered as chats (tokenizer " in said


@pytest.mark.parametrize("column", ["system", "history"])
@pytest.mark.parametrize("kind", ["Alpaca", "prompt and completion", "pairs"])
def test_a_system_prompt_and_earlier_turns_are_never_lost(tmp_path, tokenizer, kind, column):
    if kind == "pairs":
        records = [{"prompt": "fox?", "chosen": " quick", "rejected": " brown"}]
    else:
        records = [record for record in RECORDS[kind][0] if "system" not in record]
    full = {"system": "think", "history": [["dogs?", "42"]]}
    source = write_lines(tmp_path / "rows.jsonl", [{**records[0], column: full[column]}])
    pairs = {"pairs": True} if kind == "pairs" else {}
    with pytest.raises(
        packer.PackerError, match=f"line 1\\): '{column}' belongs to the prompt, .* by chat_template, or"
    ):
        pack(source, tmp_path / "out", tokenizer, **pairs)
    pack(source, tmp_path / "out", tokenizer, chat_template=CHATML, overwrite=True, **pairs)
    opened, rows = auto_tokenizer(tokenizer), packer.load(tmp_path / "out")
    expected = "system\nthink<|im_end|>" if column == "system" else "user\ndogs?<|im_end|>\n<|im_start|>assistant\n42<"
    assert expected in opened.decode(rows[0][input_ids_in(rows[0])])
    assert "think" not in opened.decode([token for token in rows[0]["labels"] if token >= 0])
    for nothing in (None, [] if column == "history" else ""):
        source = write_lines(tmp_path / "rows.jsonl", [{**records[0], column: nothing}])
        assert pack(source, tmp_path / "out", tokenizer, overwrite=True, **pairs).totals.documents_packed


@pytest.mark.parametrize("history", ["dogs?", [["dogs?"]], [["dogs?", None]], ["dogs?", "42"], [["dogs?", 42]]])
def test_a_history_that_is_none_is_refused(tmp_path, tokenizer, history):
    source = write_lines(tmp_path / "rows.jsonl", [{**ALPACA[0], "history": history}])
    with pytest.raises(packer.PackerError, match=r"line 1\): ('history'|a text in 'history') is "):
        pack(source, tmp_path / "out", tokenizer, chat_template=CHATML)


def test_preference_pairs_of_strings_are_rendered_as_chats(tmp_path, tokenizer):
    texts = [{"prompt": "fox?", "chosen": "quick", "rejected": "brown"}]
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    chats = [{name: [{"role": roles[name], "content": text}] for name, text in record.items()} for record in texts]
    options = {"chat_template": CHATML, "pairs": True}
    manifest = pack(write_lines(tmp_path / "rows.jsonl", texts), tmp_path / "out", tokenizer, **options)
    expected = pack(write_lines(tmp_path / "chats.jsonl", chats), tmp_path / "chats", tokenizer, **options)
    assert shards(manifest) == shards(expected)


@pytest.mark.parametrize(("record", "pairs"), [({"text": "fox"}, False), ({"chosen": "ab", "rejected": "ac"}, True)])
def test_a_chat_template_for_whole_texts_is_refused(tmp_path, tokenizer, record, pairs):
    source = write_lines(tmp_path / "rows.jsonl", [record])
    with pytest.raises(packer.PackerError, match=r"chat_template is set, and .*rows.jsonl holds whole texts in "):
        pack(source, tmp_path / "out", tokenizer, chat_template=CHATML, pairs=pairs)
