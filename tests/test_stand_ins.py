"""A built-in template stands in for a tokenizer's own where both agree on the arguments, tools and thoughts of a chat.

The oracle is transformers: what `apply_chat_template` writes after the generation prompt is what a model has to answer.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.sources.documents import DocumentError
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from tests.helpers.chat_templates import WORDS, lists, text_options
from tests.helpers.commands import run
from tests.helpers.writing import write_lines

transformers = pytest.importorskip("transformers")

TOOL = {"type": "function", "function": {"name": "find", "description": "Zoë's", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "find", "arguments": {"which": "fox"}}}
QUESTION = {"role": "user", "content": "Which river?"}
ANSWERS = {
    "plain": {"content": "The Rhine."},
    "spaces": {"content": "\n The Rhine. \n"},
    "thoughtful": {"content": "The Rhine.", "reasoning_content": "Cologne ..."},
    "thoughts in the content": {"content": "<think>\nCologne ...\n</think>\n\nThe Rhine."},
    "empty thoughts": {"content": "<think>\n\n</think>\n\nThe Rhine."},
    "a call": {"content": "", "tool_calls": [CALL]},
    "a thoughtful call": {"content": "Wait.", "reasoning_content": "Cologne ...", "tool_calls": [CALL, CALL]},
}
ARGUMENTS = ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"enable_thinking": None}, {"other": 1})
CALLS_AS_JSON = '{{- \'<tool_call>\\n{"name": "\' }}'
THOUGHTS = "{%- if message.reasoning_content is defined and "
VARIANTS = {
    "qwen3": lambda own: own,
    "without thoughts in fields": lambda own: own.replace(THOUGHTS, "{%- if false and "),
    "thinks unless asked": lambda own: own.replace("enable_thinking is false", "enable_thinking"),
    "thinks if null": lambda own: own.replace("enable_thinking is false", "not enable_thinking"),
    "thinking": lambda own: own.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"),
    "calls as functions": lambda own: own.replace(CALLS_AS_JSON, "{{- '<tool_call>\\n<function=' }}"),
    "trims": lambda own: own.replace(
        "{%- set content = message.content %}", "{%- set content = message.content | trim %}"
    ),
}
"""Qwen3's own template, and changes of it that other models have; a built-in one stands in for a part of the chats."""


@pytest.fixture(scope="module")
def own(shared_data) -> str:
    return json.loads((shared_data / "tokenizers/qwen3/tokenizer_config.json").read_text())["chat_template"]


@pytest.fixture(scope="module")
def saved(own, tmp_path_factory):
    """Folders of small tokenizers, which differ in their templates."""
    from packer.text.tokenizer import train_byte_level

    rust = train_byte_level([WORDS] * 3, 400)
    rust.add_special_tokens(["<|im_start|>", "<|im_end|>"])

    def save(variant: str) -> str:
        template = VARIANTS[variant](own)
        assert (template == own) == (variant == "qwen3")
        folder = tmp_path_factory.mktemp("of") / "tokenizer"
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|im_end|>")
        fast.chat_template = template
        fast.save_pretrained(folder)
        return str(folder)

    return {variant: save(variant) for variant in VARIANTS}


def encoder(tokenizer: str, **options) -> Encoder:
    columns = recognize({"messages": [], "tools": [], "chat_template_kwargs": {}}, "chats")
    return Encoder(text_options(tokenizer=tokenizer, **options), columns)


def record(messages, kwargs, tools=None):
    return {"messages": messages, "chat_template_kwargs": kwargs, "tools": tools}


def answers_of(made: Encoder, one) -> list[tuple[list[int], list[int]]] | None:
    """Tokens and labels of each document of a record; None if it is refused."""
    try:
        found = made.encode([one])
    except DocumentError:
        return None
    return list(zip(lists(found.input_ids), lists(found.labels), strict=True))


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("variant", VARIANTS)
def test_chats_with_one_answer_are_trained_as_the_tokenizers_own_template_asks_for_them(saved, variant):
    auto = transformers.AutoTokenizer.from_pretrained(saved[variant])
    whole_chats, each = encoder(saved[variant]), encoder(saved[variant], train_on="each-answer")
    for kwargs in ARGUMENTS:
        for tools in (None, [TOOL], [{"name": "bare"}]):
            for answer in ANSWERS.values():
                for before in ([QUESTION], [{"role": "system", "content": "Be brief. "}, QUESTION]):
                    messages = [*before, {"role": "assistant", **answer}]
                    given = {"tools": tools, **{name: value for name, value in kwargs.items() if value is not None}}
                    prompt = auto.apply_chat_template(before, tokenize=False, add_generation_prompt=True, **given)
                    text = auto.apply_chat_template(messages, tokenize=False, **given)
                    expected = None
                    if text.startswith(prompt):
                        coded = auto(text, add_special_tokens=False, return_offsets_mapping=True)
                        ids, ends = coded["input_ids"], [end for _, end in coded["offset_mapping"]]
                        labels = [token if end > len(prompt) else -100 for token, end in zip(ids, ends, strict=True)]
                        expected = [(ids, labels)]
                    one = record(messages, kwargs, tools)
                    assert answers_of(each, one) == answers_of(whole_chats, one) == expected, (kwargs, tools, answer)


def test_the_stand_in_writes_several_answers_as_the_arguments_of_the_chat_ask_for_them(saved):
    auto = transformers.AutoTokenizer.from_pretrained(saved["qwen3"])
    messages = [
        QUESTION,
        {"role": "assistant", "content": "The Rhine."},
        QUESTION,
        {"role": "assistant", "content": "42"},
    ]
    empty = "<think>\n\n</think>\n\n"
    for kwargs, thoughts in (({}, empty), ({"enable_thinking": True}, empty), ({"enable_thinking": False}, "")):
        ((ids, labels),) = answers_of(encoder(saved["qwen3"]), record(messages, kwargs))
        trained = auto.decode([label for label in labels if label >= 0])
        assert trained == f"{thoughts}The Rhine.<|im_end|>\n{thoughts}42<|im_end|>\n"
        assert auto.decode(ids).count(empty) == 2


@pytest.mark.parametrize(
    ("variant", "more", "stands_in"),
    [
        ("qwen3", {}, True),
        ("qwen3", {"tools": [TOOL]}, True),
        ("thinking", {}, False),
        ("calls as functions", {}, True),
        ("calls as functions", {"tools": [TOOL]}, False),
        ("trims", {}, False),
    ],
)
def test_a_template_stands_in_for_chats_of_several_answers_only_where_it_writes_one_alike(
    saved, tmp_path, variant, more, stands_in
):
    messages = [QUESTION, {"role": "assistant", "content": "The Rhine."}] * 2
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": messages, **more}])
    result = run("pack", source, "--tokenizer", saved[variant], "--max-len", 1024, "-o", tmp_path / "out")
    assert (result.exit_code == 0) == stands_in
    if not stands_in:
        assert "cannot be located exactly" in result.stderr
        assert "choose a different --chat-template (chatml, qwen3, or a file)" in result.stderr


def test_the_advice_names_a_template_only_if_it_writes_the_calls_of_the_chat_alike(saved, own, tmp_path):
    (tmp_path / "functions.jinja").write_text(VARIANTS["calls as functions"](own))
    messages = [QUESTION, {"role": "assistant", "content": "The Rhine."}] * 2
    for more, is_alike in (({}, True), ({"tools": [TOOL]}, False)):
        source = write_lines(tmp_path / "chats.jsonl", [{"messages": messages, **more}])
        template = ("--chat-template", tmp_path / "functions.jinja")
        result = run("pack", source, "--tokenizer", saved["qwen3"], "--max-len", 1024, *template)
        assert ("choose --chat-template qwen3, which renders chats with one answer alike" in result.stderr) == is_alike
        assert "--train-on each-answer" in result.stderr


def test_one_line_says_how_many_chats_another_template_wrote_if_that_changes_any(saved, tmp_path):
    answer = {"role": "assistant", "content": "The Rhine."}
    for times, words in (
        (1, None),
        (2, "packer's template qwen3 rendered 3 chats of several answers, "),
    ):
        source = write_lines(tmp_path / f"{times}.jsonl", [{"messages": [QUESTION, answer] * times}] * 3)
        command = (source, "--tokenizer", saved["qwen3"], "-o")
        for each in (
            ("pack", *command, tmp_path / f"p{times}", "--max-len", 64),
            ("tokenize", *command, tmp_path / f"t{times}"),
        ):
            result = run(*each)
            assert result.exit_code == 0
            assert "qwen3" not in result.stdout.replace(f"Tokenized with {Path(saved['qwen3']).name}", "")
            assert sum("--train-on each-answer" in line for line in result.stderr.splitlines()) == bool(words)
            assert words is None or words in result.stderr
    assert list(packer.verify(tmp_path / "p2", tmp_path / "2.jsonl", tokenizer=saved["qwen3"])) == []


def test_tokens_depend_on_the_own_template_beside_the_one_that_stands_in(saved, tmp_path):
    """Both have qwen3 stand in for plain chats, and write calls differently."""
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": [QUESTION, {"role": "assistant", "content": "42"}]}])
    packer.pack(source, tmp_path / "out", max_len=64, tokenizer=saved["qwen3"])
    with pytest.raises(packer.PackerError, match=r"with chat_template .*, not .*: choose another"):
        packer.pack(source, tmp_path / "out", max_len=64, tokenizer=saved["calls as functions"])


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_arguments_that_the_template_does_not_read_are_named_once(saved, tmp_path, kind, caplog):
    answer = {"role": "assistant", "content": "The Rhine."}
    given = ({"enable_thinking": False, "mood": "calm"}, {"enable_thinking": True, "place": "Basel", "mood": "calm"})
    records = [{"messages": [QUESTION, answer], "chat_template_kwargs": kwargs, "tools": [TOOL]} for kwargs in given]
    source = write_lines(tmp_path / "chats.jsonl", records)
    if kind != "jsonl":
        source = pa.Table.from_pylist(records)  # with a null for `place` in the first record
    if kind == "parquet":
        pq.write_table(source, tmp_path / "chats.parquet")
        source = tmp_path / "chats.parquet"
    if kind == "memory":
        source = pytest.importorskip("datasets").Dataset(source)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ mode }}"
    for name, unread in (
        (None, "mood (of 2), place (of 1)"),
        (template, "enable_thinking (of 2), mood (of 2), place (of 1), tools (of 2)"),
    ):
        caplog.clear()
        options = {"max_len": 512, "tokenizer": saved["qwen3"], "chat_template": name, "train_on": "all"}
        packer.pack(source, tmp_path / "out", overwrite=True, progress=False, **options)
        (line,) = [record.message for record in caplog.records if "does not read" in record.message]
        assert f"so they change nothing: {unread}; choose a --chat-template that reads them" in line
