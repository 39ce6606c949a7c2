"""Text, prompts and completions: which columns, and exactly the tokens that each document alone has."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import PackerError
from packer.sources.documents import DocumentError
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from tests.helpers.chat_templates import WORDS, auto_tokenizer, lists, save_tokenizer, text_options, trained, trained_at

pytest.importorskip("transformers")

TEXT = recognize({"text": ""}, "x")
PAIR = recognize({"prompt": "", "completion": ""}, "x")

texts = st.text(st.sampled_from(WORDS), max_size=20) | st.sampled_from(
    ["</s>", "<s>", "fox</s>", "<s> fox", "dogs </s></s>"]
)


@pytest.fixture(scope="module", params=["plain", "bos", "bos and eos"])
def path(request, tmp_path_factory):
    adds = {"adds_bos": "bos" in request.param, "adds_eos": "eos" in request.param}
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), **adds)


@pytest.fixture(scope="module")
def opened(path):
    """The tokenizer by itself, and encoders of texts and of pairs."""
    options = text_options(tokenizer=path)
    return auto_tokenizer(path), Encoder(options, TEXT), Encoder(options, PAIR)


# ---- which columns ----


@pytest.mark.parametrize(
    ("fields", "text_column", "kind", "columns"),
    [
        ({"text": "a", "id": 3}, None, "text", ("text",)),
        ({"prompt": "a", "completion": "b"}, None, "prompt+completion", ("prompt", "completion")),
        ({"prompt": "a", "prompt_id": "b", "messages": []}, None, "chat", ("messages",)),
        ({"conversations": [{}]}, None, "chat", ("conversations",)),
        ({"text": None}, None, "text", ("text",)),
        ({"text": "a", "messages": []}, "messages", "chat", ("messages",)),
        ({"text": "a", "content": "b"}, "content", "text", ("content",)),
        ({"question": "a", "answer": "b"}, "question,answer", "prompt+completion", ("question", "answer")),
        ({"instruction": "a", "output": "b"}, None, "prompt+completion", ("instruction", "output")),
        (
            {"instruction": "a", "output": "b", "input": ""},
            "instruction,input,output",
            "prompt+completion",
            ("instruction", "output"),
        ),
        (pa.schema({"text": pa.large_string()}), None, "text", ("text",)),
        (pa.schema({"dialog": pa.list_(pa.struct({"role": pa.string()}))}), "dialog", "chat", ("dialog",)),
    ],
)
def test_columns_say_what_the_documents_are(fields, text_column, kind, columns):
    records = recognize(fields, "x", text_column)
    assert (records.kind, records.columns) == (kind, columns)


def test_tools_are_read_for_chats_only():
    assert {"messages", "tools"} < {*recognize({"messages": []}, "x").needed}
    assert recognize({"text": "", "tools": []}, "x").needed == ("text",)


@pytest.mark.parametrize(
    ("fields", "text_column", "words"),
    [
        ({"body": "a"}, None, r"rows: no column of text or chats .*found: body\); name .* --text-column body"),
        ({"text": "a", "messages": []}, None, "choose --text-column text or --text-column messages"),
        ({"text": "a"}, "body", r"no column 'body' \(found: text\)"),
        ({"text": 5}, None, "'text' is a int; strings or lists of messages"),
        ({"prompt": "a", "completion": []}, None, "'prompt' is a string and 'completion' is a list"),
        ({"text": []}, None, "'text' is a list; if it is the text to take, say --text-column text"),
        (
            {"messages": '[{"role": "user", "content": "a"}]'},
            None,
            "'messages' is a string where a list .*; decode it by --text-column messages:json$",
        ),
        ({"messages": "a"}, None, "'messages' is a string where .*; pack it as text by --text-column messages$"),
        ({"text": ["a"]}, None, "'text' is a list; write a string, or messages with role and content"),
        ({"messages": []}, "messages:json", "'messages' is a list, not JSON in a string: leave out ':json'"),
        ({"a": "", "b": []}, "a,b:json", "'b' is a list, not JSON in a string"),
        ({"a": "", "b": ""}, "a,b:json", "'a' is a string and 'b' is a list"),
        ({"a": ""}, "b:json", r"no column 'b' \(found: a\)"),
        ({"a": "", "b": "", "c": ""}, "a,b,c", "3 columns named where two can be"),
        ({"instruction": "", "output": "", "text": ""}, None, "--text-column text or --text-column instruction,output"),
        ({"instruction": [], "output": []}, None, "'instruction' and 'output' are lists"),
    ],
)
def test_columns_that_do_not_fit_are_told(fields, text_column, words):
    with pytest.raises(PackerError, match=words):
        recognize(fields, "rows", text_column)


# ---- tokens ----


@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_completions_are_trained_where_the_tokens_of_the_prompt_end(opened, pairs):
    tokenizer, _, encoder = opened
    encoded = encoder.encode([{"prompt": prompt, "completion": completion} for prompt, completion in pairs])
    straddling = 0
    for row, (prompt, completion) in enumerate(pairs):
        ids, labels = lists(encoded.input_ids)[row], lists(encoded.labels)[row]
        core = tokenizer(prompt + completion, add_special_tokens=False)["input_ids"]
        front = next(at for at in range(len(ids) + 1) if ids[at : at + len(core)] == core)
        alone = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if core[: len(alone)] == alone:
            assert labels == [-100] * (front + len(alone)) + ids[front + len(alone) :] or not ids
        offsets = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        first = next((at for at, (_, end) in enumerate(offsets) if end > len(prompt)), len(core))
        assert trained_at(labels) == list(range(front + first, len(ids)))
        straddling += first < len(core) and offsets[first][0] < len(prompt)
    assert encoded.counts["straddling"] == straddling


COMPOSED = {
    "an accent": ("quick s", "\u0301 fox"),
    "an accent alone": ("quick s", "\u0301"),
    "two accents": ("quick e\u0301", "\u0323 fox"),
    "a syllable": ("\u1100\u1161", "\u11a8"),
}


@pytest.mark.parametrize(("prompt", "completion"), COMPOSED.values(), ids=COMPOSED)
def test_a_token_that_a_normalizer_makes_of_prompt_and_completion_is_trained_and_counted(tmp_path, prompt, completion):
    from tokenizers import Tokenizer, normalizers
    from transformers import PreTrainedTokenizerFast

    composing = Tokenizer.from_str(trained().to_str())
    composing.normalizer = normalizers.NFC()
    PreTrainedTokenizerFast(tokenizer_object=composing, eos_token="</s>").save_pretrained(tmp_path)
    records = [{"prompt": prompt, "completion": completion}, {"prompt": "quick q", "completion": "\u0301"}]
    encoded = Encoder(text_options(tokenizer=str(tmp_path)), PAIR).encode(records)
    assert encoded.counts["straddling"] == 1, "nothing is composed of q"
    alone = composing.encode(prompt).ids
    ids, labels = lists(encoded.input_ids)[0], lists(encoded.labels)[0]
    first = next(at for at in range(len(alone) + 1) if ids[: at + 1] != alone[: at + 1])
    assert trained_at(labels) == list(range(first, len(ids)))
    assert first < len(ids) - 1, "not the end alone"


@pytest.mark.parametrize("text_column", [None, "instruction,output", "output,instruction,input"])
def test_alpaca_has_its_input_in_the_prompt(path, text_column):
    records = [
        {"instruction": "Name a colour.", "output": "Red."},
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Rhyme", "input": "", "output": "Thyme"},
        {"instruction": "", "input": "alone", "output": "x"},
    ]
    prompts = ["Name a colour.\n\n", "Add.\n\n1 and 2\n\n", "Rhyme\n\n", "alone\n\n"]
    pairs = [{"prompt": p, "completion": record["output"]} for p, record in zip(prompts, records, strict=True)]
    options = text_options(tokenizer=path)
    expected = Encoder(options, recognize(pairs[0], "x")).encode(pairs)
    encoder = Encoder(options, recognize(records[0], "x", text_column))
    for batch in (
        records,
        pa.RecordBatch.from_pylist(records, pa.schema([(name, pa.string()) for name in records[1]])),
    ):
        encoded = encoder.encode(batch)
        assert encoded.input_ids == expected.input_ids
        assert encoded.labels == expected.labels
    with pytest.raises(DocumentError, match="'input' is a int where a string is expected"):
        encoder.encode([{**records[0], "input": 0}])


def test_all_of_a_completion_and_its_prompt_can_be_trained(path):
    encoder = Encoder(text_options(tokenizer=path, train_on="all"), PAIR)
    assert not encoder.has_labels
    assert encoder.encode([{"prompt": "a", "completion": "b"}]).labels is None


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": None}, "'text' is null where a string is expected"),
        ({"other": "x"}, "'text' is null"),
        ({"text": 5}, "'text' is a int where a string"),
        ({"text": "ab\udfffc"}, r"'text' has a lone surrogate U\+DFFF at character 2"),
    ],
)
def test_a_wrong_text_is_named(opened, record, words):
    _, encoder, _ = opened
    with pytest.raises(DocumentError, match=words) as caught:
        encoder.encode([{"text": "fine"}, {"text": ""}, record])
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("records", "train_on", "words"),
    [
        (TEXT, "assistant", "--train-on assistant does not fit documents of text: choose all"),
        (PAIR, "assistant", "documents of prompt.completion: choose completion or all"),
        (
            recognize({"messages": []}, "x"),
            "completion",
            "of messages: choose assistant or last or each-answer or all",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(path, records, train_on, words):
    with pytest.raises(PackerError, match=words):
        Encoder(text_options(tokenizer=path, train_on=train_on), records)


# ---- tokenizers ----


def test_a_tokenizer_without_an_end_must_be_told_so(tmp_path):
    trained().save(str(tmp_path / "tokenizer.json"))
    options = text_options(tokenizer=str(tmp_path / "tokenizer.json"))
    with pytest.raises(PackerError, match=r"names no end-of-sequence token .* choose --no-eos"):
        Encoder(options, TEXT)
    encoded = Encoder(text_options(tokenizer=options.tokenizer, eos=False), TEXT).encode([{"text": "fox"}])
    assert lists(encoded.input_ids) == [trained().encode("fox").ids]


def test_padding_and_truncation_that_a_tokenizer_brings_along_are_off(tmp_path):
    path = save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    file.write_text(json.dumps(content))
    for text in ("a", "fox dogs" * 9):
        (ids,) = lists(Encoder(text_options(tokenizer=path), TEXT).encode([{"text": text}]).input_ids)
        assert ids == [*trained().encode(text).ids, trained().token_to_id("</s>")]


def test_a_template_that_writes_the_date_gives_the_same_tokens_on_every_day(path):
    chat = recognize({"messages": []}, "x")
    dated = text_options(tokenizer=path, train_on="all", chat_template="{{ strftime_now('%Y-%m-%d') }}")
    (ids,) = lists(Encoder(dated, chat).encode([{"messages": [{"role": "user", "content": "fox"}]}]).input_ids)
    assert auto_tokenizer(path).decode(ids) == "2024-07-26"
