"""Unused fields are named once, with the summary; what is used, kept or read by a template is not."""

import json
import re

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.sources.meanings import FIELDS, names
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import refused, run
from tests.helpers.each_answer import documents_in
from tests.helpers.from_text import small as small  # fixtures
from tests.helpers.from_text import write_formats
from tests.helpers.small import shrink
from tests.helpers.writing import write_as, write_lines

pytest.importorskip("transformers")

READING = EXACT["chatml"].replace("{{ message.content }}", "{{ message.mood or '' }}{{ message.content }}")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"])


def unread(*arguments):
    """What a command that succeeds says of fields that nothing reads; it says it once, or not at all."""
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if "Unused fields" in line]
    assert len(lines) <= 1
    return lines[0].removeprefix("Unused fields: ") if lines else None


def chat(*messages):
    return {"messages": [{"role": ("user", "assistant")[at % 2], **one} for at, one in enumerate(messages)]}


def test_columns_that_nothing_reads_are_named_from_every_format(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = {"id": "a", "text": "the quick fox", "source": "web", "topic": "dogs"}
    for name, source in write_formats(tmp_path, [record] * 30).items():
        if isinstance(source, datasets.Dataset):
            continue
        pack = ["pack", source, "--tokenizer", tokenizer, "--max-len", 16, "--no-sync", "-o", f"out-{name}"]
        assert unread(*pack, "--keep", "topic") == "id, source", name
        assert unread(*pack, "--keep", "topic") is None  # there was nothing to do
    assert unread("tokenize", "rows.jsonl", "--tokenizer", tokenizer, "--keep", "id") == "source, topic"
    in_groups = ["--group-by", "topic", "-o", "groups"]
    assert unread("pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 64, *in_groups) == "id, source"
    held = ["--holdout", "50%", "-o", "held"]
    lines = [{**record, "text": f"the fox {number}"} for number in range(40)]
    write_lines(tmp_path / "many.jsonl", lines)
    assert unread("pack", "many.jsonl", "--tokenizer", tokenizer, "--max-len", 64, *held) == "id, source, topic"


@pytest.mark.parametrize("how", [["--workers", 1], ["--workers", 2], ["--ranks", "0/1"], ["in processes"]])
def test_fields_of_later_lines_and_pieces_are_named(tmp_path, tokenizer, small, monkeypatch, how):
    if how == ["in processes"]:
        shrink(monkeypatch, everywhere=True, text_per_process=1, piece=1500)
        how = ["--workers", 2]
    records = [{"text": "the quick fox", "id": 1} for _ in range(200)]
    records[150]["late"] = 1
    source = write_lines(tmp_path / "rows.jsonl", records)
    arguments = ["--tokenizer", tokenizer, "--max-len", 16, *how, "-o"]
    assert unread("pack", source, *arguments, tmp_path / "out") == "id, late"
    records[190] = {"text": 5, "later": 2}
    write_lines(source, records)
    assert unread("pack", source, *arguments, tmp_path / "others", "--on-error", "skip") == "id, late, later"


def test_columns_beside_tokens_are_named_and_known_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shrink(monkeypatch, json_block=400)
    records = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "id": "a", "quality": 1.5} for _ in range(90)]
    made = {**write_formats(tmp_path, records), "later": tmp_path / "later.jsonl"}
    write_lines(made["later"], records[:50] + [{**record, "late": 1} for record in records[50:]])
    for name, source in made.items():
        if isinstance(source, datasets.Dataset):
            continue
        found = unread("pack", source, "--max-len", 16, "--no-sync", "-o", f"out-{name}", "--keep", "quality")
        assert found == ("id, late" if name == "later" else "id"), name
    write_lines(tmp_path / "lengths.jsonl", [{"tokens": 5, "id": "a"}])
    assert unread("pack", "--lengths", "lengths.jsonl:tokens", "--max-len", 16, "-o", "lengths") is None


VALUES = {"number": 7, "text": "seven", "lists": [[7], [8], [9]]}
CASES = [
    *(("jsonl", "number"), ("arrow", "lists"), ("parquet", "text"), ("jsonl", "text"), ("jsonl", "lists")),
    *((kind, what) for kind in ("arrow", "parquet") for what in VALUES),
]


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_no_column_of_the_table_is_dropped_in_silence(tmp_path, kind, what):
    harmless = names("tokens", "nothing", "exchanges")
    for field in FIELDS["tokens"][1:]:
        source = write_as(tmp_path / f"{field.name}.{kind}", [{"input_ids": [1, 2, 3], field.name: VALUES[what]}] * 2)
        done = run("pack", source, "--max-len", 8, "--no-sync", "-o", tmp_path / f"out-{field.name}")
        if field.means == "weight" and not field.only_lists and what == "number":  # used
            assert packer.load(tmp_path / f"out-{field.name}").has_weights
            continue
        is_said = f"'{field.name}'" if done.exit_code else f"Unused fields: {field.name}\n"
        assert is_said in done.output or (done.exit_code == 0 and field.name in harmless), done.output


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_labels_of_the_next_token_need_what_says_where_documents_begin(tmp_path, kind):
    rows = {
        "inputs": [5, 6, 7],
        "inputs_segmentation": [1, 1, 2],
        "targets": [6, 7, 8],
        "targets_segmentation": [1, 0, 2],
    }
    for name, record in {
        "targets": {"input_ids": [5, 6, 7], "targets": [6, 7, 8]},
        "targets_segmentation": {"input_ids": [5, 6, 7], "seq_lengths": [2, 1], "targets_segmentation": [1, 0, 2]},
    }.items():
        said = refused("pack", write_as(tmp_path / f"{name}.{kind}", [record]), "--max-len", 8, "-o", tmp_path / "out")
        assert f"'{name}' says what is trained of the next token" in said
    source = write_as(tmp_path / f"named.{kind}", [{"input_ids": [5, 6, 7], "targets": [5, -100, 7]}])
    made = packer.pack(source, tmp_path / "named", max_len=8, labels_column="targets")
    assert made.totals.tokens_trained == 1  # the first is never trained
    assert (
        packer.pack(write_as(tmp_path / f"rows.{kind}", [rows]), tmp_path / "of-rows", max_len=8).totals.documents == 2
    )


def test_what_packer_tokenize_wrote_has_nothing_that_nothing_reads(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_lines(tmp_path / "rows.jsonl", [chat({"content": "fox?"}, {"content": "dogs"}) for _ in range(3)])
    for train_on in ("assistant", "each-answer"):
        name = ["--tokenizer", tokenizer, "--train-on", train_on, "-o", f"of-{train_on}"]
        assert unread("tokenize", source, *name) is None
        assert unread("pack", f"of-{train_on}", "--max-len", 32) is None


def test_a_message_is_read_by_either_pair_of_names_and_the_rest_is_named(tmp_path, tokenizer):
    def packed(name, *messages):
        source = write_lines(tmp_path / f"{name}.jsonl", [{"messages": messages}] * 2)
        out = tmp_path / name
        said = unread("pack", source, "--tokenizer", tokenizer, "--max-len", 32, "-o", out)
        return said, documents_in(out)

    asked, answer = {"role": "user", "content": "fox?"}, {"role": "assistant", "content": "dogs"}
    said, usual = packed("usual", asked, answer)
    assert said is None
    others = {"from": "gpt", "value": "the", "input": "quick", "output": "fox"}
    assert packed("both", {**asked, **others}, answer) == ("messages: from, input, output, value", usual)
    assert packed("value", {"role": "user", "value": "fox?"}, {"role": "assistant", "value": "dogs"}) == (None, usual)
    assert packed("from", {"from": "human", "content": "fox?"}, {"from": "gpt", "value": "dogs"}) == (None, usual)


def test_datasets_in_memory_are_told_in_the_log(tmp_path, tokenizer, caplog):
    caplog.set_level("INFO", "packer")
    for column, source in (("text", "the fox"), ("input_ids", [1, 2]), ("attention_mask", [1, 1])):
        record = {column: source, "id": "a"} if column != "attention_mask" else {"input_ids": [1, 2], column: [1, 0]}
        table = datasets.Dataset.from_list([{**record, "id": "a"}])
        options = {"tokenizer": tokenizer} if column == "text" else {}
        packer.pack(table, tmp_path / column, max_len=8, **options)
    said = [record.getMessage() for record in caplog.records if "Unused fields" in record.getMessage()]
    assert said == ["Unused fields: id"] * 3


def test_notes_are_in_the_result_of_a_script(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", [{"question": "fox?", "answer": "dogs", "id": 1}])
    for command in (["pack", "--max-len", 16], ["tokenize"]):
        done = run(*command, source, "--tokenizer", tokenizer, "-o", tmp_path / command[0], "--json")
        notes = json.loads(done.stdout)["notes"]
        assert notes[0].startswith("An empty line follows the prompt ('question'); to pack chats")
        assert notes[1:] == ["Unused fields: id"]
        assert done.stderr == ""


def test_long_lists_are_cut_with_a_count(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", [{"text": "fox", **{f"field{number:02}": 1 for number in range(25)}}])
    found = unread("pack", source, "--tokenizer", tokenizer, "--max-len", 16, "-o", tmp_path / "out")
    assert found == ", ".join(f"field{number:02}" for number in range(10)) + ", and 15 more"
    many = [{"text": "fox", f"value {number}": 1} for number in range(5000)]
    found = unread(
        "pack", write_lines(source, many), "--tokenizer", tokenizer, "--max-len", 16, "-o", tmp_path / "many"
    )
    assert re.fullmatch("value 0, .* more", found)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_of_messages_and_parts_are_named_unless_the_template_reads_them(tmp_path, tokenizer, kind):
    part = {"type": "text", "text": "fox", "cached": True}
    made = [
        chat({"content": "fox?", "feedback": "a", "mood": "glad"}, {"content": "dogs", "name": "b"}),
        chat({"content": "fox?", "unset": None}, {"content": "dogs", "reasoning": "42"}),
        chat({"content": "fox?"}, {"content": [part], "tool_call_id": "1"}),
    ]
    source = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        made[2]["messages"][1]["content"] = "dogs"  # a column holds strings or lists
        datasets.Dataset.from_list(made).to_parquet(source)
    else:
        write_lines(source, made)
    arguments = ["pack", source, "--tokenizer", tokenizer, "--max-len", 64, "--train-on", "all"]
    parts = "; parts: cached" if kind == "jsonl" else ""
    found = unread(*arguments, "-o", tmp_path / "out")
    assert found == f"messages: feedback, mood, name, reasoning{parts}"
    for template, wanted in (
        (READING, "feedback, name, reasoning"),
        (READING + "{# reasoning_content, feedback #}", "name"),
    ):
        (tmp_path / "template.jinja").write_text(template)
        named = ["--chat-template", tmp_path / "template.jinja"]
        found = unread(*arguments, *named, "-o", tmp_path / "out", "--overwrite")
        assert found == f"messages: {wanted}{parts}"
    (tmp_path / "template.jinja").write_text("{{ messages | tojson }}")
    assert unread(*arguments, "--chat-template", tmp_path / "template.jinja", "-o", tmp_path / "whole") is None


def test_every_field_that_is_known_to_mean_nothing_or_is_refused_says_why():
    for fields in FIELDS.values():
        for field in fields:
            assert bool(field.note) or field.means not in ("nothing", "refused"), field


@pytest.mark.parametrize("name", names("record", "refused"))
def test_a_record_with_a_field_that_cannot_be_kept_is_refused_by_its_name(tmp_path, tokenizer, name):
    (field,) = (field for field in FIELDS["record"] if field.name == name)
    record = {"text": "fox", **dict.fromkeys(field.beside, "fox"), name: "fox"}
    for source in (
        write_lines(tmp_path / "rows.jsonl", [record]),
        datasets.Dataset.from_list([record]).to_parquet(tmp_path / "rows.parquet") and tmp_path / "rows.parquet",
    ):
        line = refused("pack", source, "--tokenizer", tokenizer, "--max-len", 16, words=(f"'{name}' {field.note}",))
        assert "\n" not in line


def test_messages_of_a_tree_in_records_of_their_own_are_packed_as_texts_only_if_that_is_said(tmp_path, tokenizer):
    record = {"message_id": "2", "parent_id": "1", "text": "the fox", "role": "assistant"}
    source = write_lines(tmp_path / "rows.jsonl", [record])
    arguments = ["pack", source, "--tokenizer", tokenizer, "--max-len", 16, "-o", tmp_path / "out"]
    refused(*arguments, words=("'parent_id' shows that each record is one message", "or pass --text-column text"))
    assert unread(*arguments, "--text-column", "text") == "message_id, parent_id, role"
    del record["role"]
    assert unread("pack", write_lines(source, [record]), *arguments[2:], "--overwrite") == "message_id, parent_id"


def tokens_of(out):
    row = packer.load(out)[0]
    return row["input_ids"].tolist(), row["labels"].tolist()


@pytest.mark.parametrize("columns", ["problem,answer", "a,b", "question,answer", "prompt,answer"])
def test_an_empty_line_separates_a_prompt_from_its_completion_but_for_trl(tmp_path, tokenizer, columns):
    prompt, completion = columns.split(",")
    lines = [{prompt: "quick fox?", completion: "brown"}]
    pack = ["--tokenizer", tokenizer, "--max-len", 16]
    source = write_lines(tmp_path / "rows.jsonl", lines)
    done = run("pack", source, *pack, "--text-column", columns, "-o", tmp_path / "out")
    assert f"An empty line follows the prompt ('{prompt}'); to pack chats instead of texts, choose" in done.stdout
    assert "--chat-template chatml" in done.stdout
    joined = write_lines(tmp_path / "trl.jsonl", [{"prompt": "quick fox?\n\n", "completion": "brown"}])
    for named in ([], ["--text-column", "prompt,completion"]):
        done = run("pack", joined, *pack, "-o", tmp_path / f"trl{len(named)}", *named)
        assert "An empty line" not in done.stdout
        assert tokens_of(tmp_path / f"trl{len(named)}") == tokens_of(tmp_path / "out")
    done = run("pack", source, *pack, "--text-column", columns, "--chat-template", "chatml", "-o", tmp_path / "chats")
    assert "An empty line" not in done.stdout
    plain = save_tokenizer(tmp_path / "plain", template=None)
    done = run("pack", source, "--tokenizer", plain, *pack[2:], "--text-column", columns, "-o", tmp_path / "texts")
    assert f"An empty line follows the prompt ('{prompt}')\n" in done.stdout


def test_the_first_records_of_a_file_with_a_schema_decide_what_is_advised(tmp_path, tokenizer):
    table = pa.table({"id": ["a" * 40] * 3, "path": ["a/b/c.py"] * 3, "content": [None, "the quick fox", "dogs"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    line = refused("pack", tmp_path / "rows.parquet", "--tokenizer", tokenizer, "--max-len", 16)
    assert line.endswith("; name the text, as in --text-column content")
