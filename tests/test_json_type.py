"""Arrow's JSON type, which `datasets` chooses where types or keys differ, is read as the values that it holds."""

import json
from functools import partial

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import refused, succeeded
from tests.helpers.from_text import pack, shards
from tests.helpers.writing import write_ipc, write_lines

if not hasattr(datasets, "Json"):
    pytest.skip("datasets before 4.7 knows no Json", allow_module_level=True)

from datasets import Dataset, Features, Json, List, Value

CALLS = "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
TEMPLATE = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + EXACT["chatml"].replace(
    "<|im_end|>", CALLS + "<|im_end|>", 1
)
STRING = Value("string")
MESSAGES = {
    "the column": Json(),
    "messages": List(Json()),
    "contents": List({"role": STRING, "content": Json()}),
    "all fields": List({"role": Json(), "content": Json()}),
    "texts of parts": List({"role": STRING, "content": List({"type": STRING, "text": Json()})}),
}

# `datasets` stores a text that is itself JSON as its value
texts = st.sampled_from(
    ["The Rhine.", 'She said "no", twice.', "12 men", "null and void", "[sic", "{x}", "é ☃\n\\", ""]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, -2.25]) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
tools = st.lists(st.fixed_dictionaries({"name": texts, "parameters": values}), min_size=1, max_size=2)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=TEMPLATE)


def forms(folder, dataset):
    """The same dataset in every form that has types."""
    table = dataset.data.table
    dataset.save_to_disk(folder / "saved")
    dataset.to_parquet(folder / "rows.parquet")
    pq.write_table(table, folder / "duck.parquet", store_schema=False)  # as DuckDB does
    write_ipc(folder / "stream.arrow", table, rows=2)
    write_ipc(folder / "file.arrow", table, stream=False, compression="lz4")
    return [
        dataset,
        *(folder / name for name in ("saved", "rows.parquet", "duck.parquet", "stream.arrow", "file.arrow")),
    ]


def lines_of(folder, dataset):
    """JSON lines of what `datasets` decodes, without the nulls that it adds."""
    return write_lines(folder / "rows.jsonl", [{k: v for k, v in row.items() if v is not None} for row in dataset])


@st.composite
def chats(draw, depth):
    """Chats whose contents, tools and tool calls differ in type and keys, as far as the features allow."""
    parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=2)
    contents = parts if depth == "texts of parts" else texts | parts

    def message(role):
        made = {"role": role, "content": draw(contents)}
        if role == "assistant" and depth in ("the column", "messages") and draw(st.booleans()):
            made["tool_calls"] = draw(tools)
        return made

    turns = range(draw(st.integers(1, 2)))
    return {
        "messages": [message(role) for _ in turns for role in ("user", "assistant")],
        "tools": draw(st.none() | tools),
        "system": draw(st.none() | texts),
    }


@pytest.mark.nightly(after=3)
@pytest.mark.parametrize("depth", MESSAGES)
def test_chats_are_packed_as_datasets_decodes_them_whatever_is_json(depth, tokenizer, tmp_path_factory):
    features = Features({"messages": MESSAGES[depth], "tools": List(Json()), "system": Json()})

    @settings(max_examples=settings().max_examples // 5)
    @given(st.lists(chats(depth), min_size=1, max_size=4))
    def check(records):
        folder = tmp_path_factory.mktemp("json")
        dataset = Dataset.from_list(records, features=features)
        expected = shards(pack(lines_of(folder, dataset), folder / "expected", tokenizer, max_len=4096))
        for number, source in enumerate(forms(folder, dataset)):
            assert shards(pack(source, folder / f"out-{number}", tokenizer, max_len=4096)) == expected, source

    check()


CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": None}}}
MIXED = {
    "contents": [
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
        {"role": "assistant", "content": "Hello."},
    ],
    "messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "one"}],
}


@pytest.mark.parametrize("mixed", MIXED)
def test_what_load_dataset_makes_of_json_lines_is_packed_as_the_lines_are(mixed, tokenizer, tmp_path):
    plain = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The Rhine."}]
    lines = write_lines(tmp_path / "rows.jsonl", [{"messages": plain}, {"messages": MIXED[mixed]}])
    dataset = datasets.load_dataset("json", data_files=str(lines), split="train", cache_dir=str(tmp_path / "cache"))
    assert "Json" in str(dataset.features)
    expected = shards(pack(lines, tmp_path / "expected", tokenizer))
    for number, source in enumerate(forms(tmp_path, dataset)):
        assert shards(pack(source, tmp_path / f"out-{number}", tokenizer)) == expected, source


def test_prompts_completions_and_pairs_of_json_are_the_text_that_they_hold(tokenizer, tmp_path):
    records = [
        {"prompt": "River? ", "chosen": "The Rhine.", "rejected": "12 men"},
        {"prompt": 'A "b" ', "chosen": "", "rejected": "Oh"},
    ]
    records = [{**record, "completion": record["chosen"]} for record in records]
    dataset = Dataset.from_list(records, features=Features(dict.fromkeys(records[0], Json())))
    lines, sources = lines_of(tmp_path, dataset), forms(tmp_path, dataset)
    for options in ({}, {"pairs": True, "long": "drop"}, {"text_column": "completion"}):
        expected = shards(pack(lines, tmp_path / "expected", tokenizer, overwrite=True, **options))
        for source in sources:
            assert shards(pack(source, tmp_path / "out", tokenizer, overwrite=True, **options)) == expected, source


@pytest.mark.parametrize("tokenized", [True, False])
def test_columns_of_json_are_kept_as_those_of_json_lines(tokenized, tokenizer, tmp_path):
    facts = [{"a": 1, "c": None}, {"b": "x"}, None, {"a": 2, "b": "y"}]
    names = ["it's", None, 'a "b"', "12 men"]
    records = [
        {"facts": fact, "name": name, "places": [{"x": number, "at": name or "here"}], "tags": [fact]}
        | ({"input_ids": [number, 5]} if tokenized else {"text": f"some text {number}"})
        for number, (fact, name) in enumerate(zip(facts, names, strict=True))
    ]
    places, tokens = (
        List({"x": Value("int8"), "at": Json()}),
        {"input_ids": List(Value("int32"))} if tokenized else {"text": STRING},
    )
    features = Features({"facts": Json(), "name": Json(), "places": places, "tags": List(Json()), **tokens})
    dataset = Dataset.from_list(records, features=features)
    keep = ["facts", "name", "places", "tags"]
    options = {"max_len": 64, "keep": keep, **({} if tokenized else {"tokenizer": tokenizer})}

    def kept(source):
        packer.pack(source, tmp_path / "out", overwrite=True, **options)
        rows = datasets.load_from_disk(tmp_path / "out")
        return rows.features, rows[:]

    expected = kept(lines_of(tmp_path, dataset))
    for source in forms(tmp_path, dataset):
        assert kept(source) == expected, source


def test_kept_values_of_json_without_a_common_type_are_refused_by_place(tmp_path):
    records = [{"input_ids": [1], "id": "a"}, {"input_ids": [2], "id": 7}]
    dataset = Dataset.from_list(records, features=Features({"input_ids": List(Value("int32")), "id": Json()}))
    dataset.save_to_disk(tmp_path / "saved")
    refused(
        *("pack", tmp_path / "saved", "--max-len", 8, "--keep", "id", "-o", tmp_path / "out"),
        words=("arrow row 1", "'id' holds 7, where documents before it hold string; use one type"),
    )


def refusal(tmp_path, tokenizer, records, features, *options, words):
    """Pack records whose strings are the JSON that is stored; they must be refused with these words."""
    table = pa.Table.from_pylist(records).cast(Features(features).arrow_schema)
    pq.write_table(table, tmp_path / "rows.parquet")
    options = ("--tokenizer", tokenizer, "--max-len", 64, "-o", tmp_path / "out", *options)
    return refused("pack", tmp_path / "rows.parquet", *options, words=words)


SAY = {"role": "assistant", "content": '"Yes."'}
CONTENTS = {"messages": List({"role": STRING, "content": Json()})}


@pytest.mark.parametrize("stored", ["12", "1.5", "true", "null", "[]", '{"a": 1}'])
def test_a_text_that_datasets_stored_as_the_value_it_spells_is_refused_by_place(stored, tokenizer, tmp_path):
    """A text such as 12 in a column of JSON cannot be told from the number, and null would be left out."""
    records = [{"messages": [SAY]}, {"messages": [{"role": "user", "content": stored}, SAY]}]
    words = f"document 1 (rows.parquet row 1): 'content' in 'messages' is {stored} where text is expected: "
    line = refusal(tmp_path, tokenizer, records, CONTENTS, words=(words,))
    assert "pack the JSON lines it was loaded from" in line
    lines = [{"messages": [SAY]}, {"messages": [{"role": "user", "content": stored}, SAY]}]
    succeeded(
        *("pack", write_lines(tmp_path / "rows.jsonl", lines), "--tokenizer", tokenizer),
        *("--max-len", 64, "-o", tmp_path / "of-lines"),
    )


MESSAGE = {"role": "user", "content": "Why?"}
SILENT = {  # fields of text that are left out if they are null, by the columns beside
    "content": ({"messages": [{"role": "user", "content": "null"}, SAY]}, CONTENTS),
    "value": (
        {"conversations": [{"from": "human", "value": "null"}, {"from": "gpt", "value": '"Yes."'}]},
        {"conversations": List({"from": STRING, "value": Json()})},
    ),
    "reasoning_content": (
        {"messages": [{"role": "assistant", "content": "Yes.", "reasoning_content": "null"}]},
        {"messages": List({"role": STRING, "content": STRING, "reasoning_content": Json()})},
    ),
    "input": (
        {"instruction": "Why?", "input": "null", "output": "So."},
        {"instruction": STRING, "input": Json(), "output": STRING},
    ),
    "context": (
        {"question": "Why?", "context": "null", "answer": "So."},
        {"question": STRING, "context": Json(), "answer": STRING},
    ),
    "system": (
        {"messages": [{"role": "user", "content": "Why?"}], "system": "null"},
        {"messages": List({"role": STRING, "content": STRING}), "system": Json()},
    ),
}


@pytest.mark.parametrize("field", SILENT)
def test_a_null_as_json_is_refused_in_every_field_of_text(field, tokenizer, tmp_path):
    record, features = SILENT[field]
    refusal(tmp_path, tokenizer, [record], features, words=(f"'{field}'", "is null where text is expected"))


def test_values_of_json_that_are_no_text_are_refused_by_name(tokenizer, tmp_path):
    columns = {"question": STRING, "answer": Json()}
    answers = ['"four"', '["five"]']
    records = [{"question": "2+2?", "answer": answer} for answer in answers]
    refusal(tmp_path, tokenizer, records, columns, words=("row 1): 'answer' is a list where a string is expected",))
    records[1]["answer"] = '"fi'
    refusal(tmp_path, tokenizer, records, columns, words=("row 1): 'answer' is not the JSON that its type says: ",))
    refusal(
        *(tmp_path, tokenizer, [{"messages": '[{"role": "user", "content": "Why?"}]'}], {"messages": Json()}),
        *("--text-column", "messages:json"),
        words=("'messages' is a list, not JSON in a string: leave out ':json'",),
    )
    pq.write_table(pa.table({"input_ids": pa.array(["[1, 2]"], pa.json_())}), tmp_path / "ids.parquet")
    refused(
        *("pack", tmp_path / "ids.parquet", "--max-len", 8),
        words=("column 'input_ids' holds extension<arrow.json>; expected list",),
    )


def test_json_of_parquet_that_pyarrow_reads_as_text_is_refused(tokenizer, tmp_path, monkeypatch):
    """As pyarrow before 21 does, which knows the type from the Arrow schema alone."""
    table = pa.table({"text": pa.array(['"a"'], pa.json_())})
    pq.write_table(table, tmp_path / "duck.parquet", store_schema=False)
    monkeypatch.setattr(pq, "ParquetFile", partial(pq.ParquetFile, arrow_extensions_enabled=False))
    refused(
        *("pack", tmp_path / "duck.parquet", "--tokenizer", tokenizer, "--max-len", 8),
        words=("duck.parquet: column 'text' holds JSON, which pyarrow", "reads as text; install pyarrow 21 or newer"),
    )


def test_maps_are_objects_for_a_chat_template(tokenizer, tmp_path):
    """DuckDB makes maps of objects whose keys differ."""
    record = {"messages": [MESSAGE, {"role": "assistant", "content": "Yes."}]}
    items = pa.array(["name", "n"]), pa.array(['"f"', "[1]"], pa.json_())
    tools = pa.ListArray.from_arrays([0, 1], pa.MapArray.from_arrays([0, 2], *items))
    table = pa.table({"messages": [record["messages"]], "tools": tools})
    pq.write_table(table, tmp_path / "rows.parquet")
    packed = pack(tmp_path / "rows.parquet", tmp_path / "out", tokenizer)
    lines = write_lines(tmp_path / "rows.jsonl", [{**record, "tools": [{"name": "f", "n": [1]}]}])
    assert shards(packed) == shards(pack(lines, tmp_path / "expected", tokenizer))
    assert json.dumps({"name": "f", "n": [1]}) in succeeded(
        "show", tmp_path / "out", 0, "--full", "--tokenizer", tokenizer
    )
