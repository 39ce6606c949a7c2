"""The last answer of a chat alone, and answers without thoughts or tool calls: exactly the characters that remain.

What has to be trained is found by hand, in the text that transformers renders by the same template.
"""

import re

import pytest

import packer
from packer.errors import PackerError
from tests.helpers.chat_encoders import tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import EXACT, GLM, MARKED, REWRITING, auto_tokenizer, save_glm
from tests.helpers.commands import refused, succeeded
from tests.helpers.each_answer import THOUGHTS
from tests.helpers.pack import segments_in
from tests.helpers.text_corpora import read
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "fox", "arguments": {"dogs": "42 <b>"}}}
QUESTION = {"role": "user", "content": "fox?"}
ANSWER = {"role": "assistant", "content": "The quick fox", "reasoning_content": "brown\ndogs"}
CALLING = {"role": "assistant", "content": "Let <me>", "tool_calls": [CALL, CALL]}
RESULT = {"role": "tool", "content": "42", "tool_call_id": "abcdefghi", "name": "fox"}
PLAIN = {"role": "assistant", "content": "The fox"}

CHATS = {
    "one answer": [QUESTION, ANSWER],
    "several": [QUESTION, ANSWER, QUESTION, {**ANSWER, "content": "dogs"}],
    "a question at the end": [QUESTION, ANSWER, QUESTION, PLAIN, QUESTION],
    "a question without weight at the end": [QUESTION, ANSWER, QUESTION, PLAIN, {**QUESTION, "weight": 0}],
    "no answer": [QUESTION],
    "a last answer without weight": [QUESTION, ANSWER, QUESTION, {**PLAIN, "weight": 0}],
    "earlier answers without content": [QUESTION, {"role": "assistant", "content": None}, QUESTION, ANSWER],
}
MORE = {
    "an answer in two messages": [QUESTION, ANSWER, PLAIN],
    "a result": [QUESTION, ANSWER, QUESTION, CALLING, RESULT, ANSWER],
    "a result at the end": [QUESTION, CALLING, RESULT],
}
TEMPLATES = {
    "chatml": EXACT["chatml"],
    "thoughts of the last answer": THOUGHTS,
    "empty thoughts in the last answer": REWRITING["think block in the last turn"],
    "tags": MARKED["marked"],
    "qwen3": "qwen3",
}


def packed(tmp_path, messages, tokenizer, **options):
    """[(tokens, labels)] of the documents of a chat, or of several."""
    chats = messages if isinstance(messages[0], list) else [messages]
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    packer.pack(source, tmp_path / "out", max_len=2048, tokenizer=str(tokenizer), sync=False, overwrite=True, **options)
    return [(tokens, labels) for _, _, tokens, labels in sorted(segments_in(packer.load(tmp_path / "out")))]


def source_of(template):
    from packer.text.built_in_templates import built_in

    return built_in(template).source if template == "qwen3" else template


def whole(message):
    """A message with everything that templates read, as packer reads it."""
    thought = message.get("reasoning_content", "")
    return {**message, "content": message.get("content") or "", "reasoning_content": thought, "thinking": thought}


def last_answer(tokenizer, messages, template):
    """(text, trained span) of the chat up to its last answer."""
    messages = [whole(message) if message["role"] == "assistant" else message for message in messages]
    render = {"tokenize": False, "chat_template": source_of(template)}
    turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        return tokenizer.apply_chat_template(messages, **render), (0, 0)
    before = tokenizer.apply_chat_template(messages[: turns[-1]], add_generation_prompt=True, **render)
    text = tokenizer.apply_chat_template(messages[: turns[-1] + 1], **render)
    assert text.startswith(before)
    return text, (0, 0) if messages[turns[-1]].get("weight") == 0 else (len(before), len(text))


def tokens_of(tokenizer, text, span, left_out=()):
    """Tokens and labels of a text. A token with a trained character is trained."""
    trained = [span[0] <= at < span[1] and not any(a <= at < b for a, b in left_out) for at in range(len(text))]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, places = encoded["input_ids"], encoded["offset_mapping"]
    return ids, [token if any(trained[a:b]) else -100 for token, (a, b) in zip(ids, places, strict=True)]


# ---- the last answer ----


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_the_last_answer_alone_is_trained_as_the_model_sees_it(tmp_path, tokenizer_path, tokenizer, template):
    chats = [*CHATS.values(), *(MORE.values() if template == "qwen3" else ())]
    expected = [tokens_of(tokenizer, *last_answer(tokenizer, chat, template)) for chat in chats]
    assert packed(tmp_path, chats, tokenizer_path, chat_template=template, train_on="last") == expected


def test_last_trains_the_last_answer_of_real_chats_by_the_tokenizers_own_template(tmp_path, shared_data):
    path = shared_data / "tokenizers" / "qwen3"
    qwen = auto_tokenizer(path)
    chats = [record["messages"][: 3 + at % 7] for at, record in enumerate(read(shared_data, "sgd_multiturn")[:60])]
    expected = [tokens_of(qwen, *last_answer(qwen, chat, None)) for chat in chats]
    assert packed(tmp_path, chats, path, train_on="last") == expected


def test_the_marker_of_the_next_role_ends_the_last_answer_too(tmp_path):
    path = save_glm(tmp_path)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    ((tokens, labels),) = packed(tmp_path, [*chat, chat[0]], path, train_on="last")
    text = auto_tokenizer(path).decode([token for token in labels if token >= 0])
    assert text == "b<|user|>"
    assert GLM.startswith("[gMASK]")
    assert tokens[-1] == labels[-1]


def test_the_last_answer_of_a_completion_is_trained_and_an_answer_of_the_prompt_is_not(tmp_path, tokenizer_path):
    records = [
        {"prompt": [QUESTION], "completion": [PLAIN, QUESTION, {**PLAIN, "content": "dogs"}]},
        {"prompt": [QUESTION, PLAIN], "completion": [QUESTION]},
    ]
    source = write_lines(tmp_path / "rows.jsonl", records)
    options = {"max_len": 256, "tokenizer": tokenizer_path, "chat_template": "chatml"}
    packer.pack(source, tmp_path / "out", train_on="last", **options)
    decode = auto_tokenizer(tokenizer_path).decode
    found = [
        decode([at for at in labels if at >= 0]) for *_, labels in sorted(segments_in(packer.load(tmp_path / "out")))
    ]
    assert found == ["dogs<|im_end|>\n", ""]


LAST_REFUSED = {
    "pairs": ({"chosen": [QUESTION, PLAIN], "rejected": [QUESTION, ANSWER]}, ["--pairs"], "choose completion or assis"),
    "texts": ({"text": "fox"}, [], "choose all"),
    "completions": ({"prompt": "fox", "completion": "dogs"}, [], "choose completion or all"),
    "weight": ({"messages": [QUESTION, {**PLAIN, "weight": 1}, QUESTION, PLAIN]}, [],
               "message 1 has weight 1, and --train-on last does not train a message before the last answer"),
    "shared": ({"messages": [QUESTION, PLAIN]}, ["--share-prefixes"], "--share-prefixes needs records of several"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAST_REFUSED)
def test_last_is_refused_by_name_where_it_says_nothing(tmp_path, tokenizer_path, name):
    record, more, words = LAST_REFUSED[name]
    source = write_lines(tmp_path / "rows.jsonl", [record])
    options = ["--tokenizer", tokenizer_path, "--max-len", 64, "--train-on", "last", *more]
    refused("pack", source, *options, words=(words,))


# ---- thoughts and tool calls ----

THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
TOOL_CALLS = re.compile(r"(?:(?<!\n)\n)?<tool_call>.*</tool_call>", re.DOTALL)
IN_CONTENT = {**PLAIN, "content": "<think>\nbrown <b>\n</think>\n\nThe fox"}
CASES = {
    "reasoning": ([QUESTION, ANSWER], ["reasoning"]),
    "a thought in the content": ([QUESTION, IN_CONTENT], ["reasoning"]),
    "an empty thought of the template": ([QUESTION, PLAIN], ["reasoning"]),
    "a thought of white space": ([QUESTION, {**PLAIN, "reasoning_content": " \n"}], ["reasoning"]),
    "several answers": ([QUESTION, ANSWER, QUESTION, IN_CONTENT, QUESTION, PLAIN], ["reasoning"]),
    "calls": ([QUESTION, CALLING, RESULT, PLAIN], ["tool_calls"]),
    "calls without content": ([QUESTION, {**CALLING, "content": ""}, RESULT, PLAIN], ["tool_calls"]),
    "both": ([QUESTION, {**ANSWER, **CALLING}, RESULT, ANSWER], ["tool_calls", "reasoning"]),
    "thoughts, but not calls": ([QUESTION, {**ANSWER, **CALLING}, RESULT, ANSWER], ["reasoning"]),
    "a part without weight": (
        [QUESTION, {**ANSWER, "content": [{"text": "The ", "weight": 0}, {"text": "fox"}]}], ["reasoning"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("train_on", ["assistant", "last", "each-answer"])
def test_thoughts_and_calls_are_left_out_and_all_other_characters_stay(
    tmp_path, tokenizer_path, tokenizer, name, train_on
):
    messages, parts = CASES[name]
    options = {"chat_template": "qwen3", "train_on": train_on}
    found = packed(tmp_path, messages, tokenizer_path, **options, untrained_parts=parts)
    without = packed(tmp_path, messages, tokenizer_path, **options)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in without]
    expected = []
    for tokens, labels in without:
        text = tokenizer.decode(tokens)
        spans = [one.span() for one in THOUGHT.finditer(text)] if "reasoning" in parts else []
        spans += [
            (begin + one.start(), begin + one.end())
            for begin, answer in answers_in(text)
            for one in TOOL_CALLS.finditer(answer)
            if "tool_calls" in parts
        ]
        kept = tokens_of(tokenizer, text, (0, len(text)), spans)[1]
        expected.append([label if token >= 0 else -100 for label, token in zip(labels, kept, strict=True)])
    assert [labels for _, labels in found] == expected
    assert found != without or (train_on, parts) == ("last", ["tool_calls"])


def answers_in(text):
    return [(one.start(), one[0]) for one in re.finditer(r"<\|im_start\|>assistant.*?<\|im_end\|>", text, re.DOTALL)]


THINKING = EXACT["chatml"].replace(
    "{{ message.content }}", "{% if message.thinking %}[thought:{{ message.thinking }}]{% endif %}{{ message.content }}"
)
SPACED = EXACT["chatml"].replace("{{ message.content }}", "{{ message.thinking }}</think> {{ message.content }}")
BY_HAND = {
    "any content": (EXACT["chatml"], {"content": "<think>brown</think> The fox"}, "The fox<|im_end|>\n"),
    "the prompt has the first tag": (EXACT["chatml"], {"content": "brown</think>\nThe fox"}, "The fox<|im_end|>\n"),
    "a thought that does not end": (EXACT["chatml"], {"content": "The <think>brown fox"}, "The <|im_end|>\n"),
    "two thoughts": (
        EXACT["chatml"], {"content": "<think>a</think>\nThe [THINK]b[/THINK]\nfox"}, "The fox<|im_end|>\n",
    ),
    "parts": (EXACT["chatml"], {"content": [{"text": "<think>a"}, {"text": "b</think>\nfox"}]}, "fox<|im_end|>\n"),
    "other tags": (THINKING, {"content": "fox", "thinking": "brown"}, "[thought:]fox<|im_end|>\n"),
    "a closing tag": (SPACED, {"content": "fox", "reasoning": "brown"}, " fox<|im_end|>\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_what_remains_of_answers_with_thoughts_by_hand(tmp_path, tokenizer_path, tokenizer, name):
    template, answer, expected = BY_HAND[name]
    options = {"chat_template": template, "untrained_parts": "reasoning"}
    ((_, labels),) = packed(tmp_path, [QUESTION, {"role": "assistant", **answer}], tokenizer_path, **options)
    assert tokenizer.decode([label for label in labels if label >= 0]) == expected


LENGTH = EXACT["chatml"].replace("{{ message.content }}", "{{ message.content }}{{ message.content | length }}")
BEFORE = EXACT["chatml"].replace(
    "{{ message.content }}",
    "{% if message.tool_calls %}<call>{{ message.tool_calls | tojson }}</call>{% endif %}{{ message.content }}",
)
PARTS_REFUSED = {
    "a moved thought": (LENGTH, {"messages": [QUESTION, IN_CONTENT]}, "reasoning",
                        "the thought of message 1 (assistant) is not trained like the rest, and the chat"),
    "calls before the content": (BEFORE, {"messages": [QUESTION, CALLING]}, "tool_calls",
                                 "the tool call of message 1 (assistant) is not trained like the rest"),
    "texts": ("", {"text": "<think>a</think>b"}, "reasoning", "text are texts, not chats: leave it out"),
    "completions": ("", {"prompt": "a", "completion": "b"}, "reasoning", "prompt+completion are texts, not chats"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS_REFUSED)
def test_parts_that_cannot_be_located_are_refused_with_a_remedy(tmp_path, tokenizer_path, name):
    template, record, parts, words = PARTS_REFUSED[name]
    source = write_lines(tmp_path / "rows.jsonl", [record])
    (tmp_path / "template").write_text(template)
    chosen = ["--chat-template", tmp_path / "template"] if template else []
    options = ["--tokenizer", tokenizer_path, "--max-len", 64, "--untrained-parts", parts, *chosen]
    refused("pack", source, *options, words=(words,))


def test_parts_that_do_not_exist_and_parts_beside_all_are_refused(tmp_path, tokenizer_path):
    with pytest.raises(PackerError, match="untrained_parts is reasoning, and train_on='all' trains every token"):
        packed(tmp_path, [QUESTION, ANSWER], tokenizer_path, train_on="all", untrained_parts=["reasoning"])
    with pytest.raises(PackerError, match="untrained_parts is 'thoughts': choose one of reasoning, tool_calls"):
        packed(tmp_path, [QUESTION, ANSWER], tokenizer_path, untrained_parts=["thoughts"])


def test_calls_before_contents_are_left_out_if_the_content_is_empty(tmp_path, tokenizer_path, tokenizer):
    options = {"chat_template": BEFORE, "untrained_parts": "tool_calls"}
    ((_, labels),) = packed(tmp_path, [QUESTION, {**CALLING, "content": ""}], tokenizer_path, **options)
    assert tokenizer.decode([label for label in labels if label >= 0]) == "<|im_end|>\n"


def test_thoughts_are_left_out_of_answers_with_weights(tmp_path, tokenizer_path, tokenizer):
    parts = [{"text": "The", "weight": 2}, {"text": " fox"}]
    answer = {**ANSWER, "content": parts, "reasoning_content": [{"text": "brown "}, {"text": "dogs", "weight": 3}]}
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": [QUESTION, answer]}])
    options = {"max_len": 64, "tokenizer": tokenizer_path, "chat_template": "qwen3"}
    packer.pack(source, tmp_path / "out", untrained_parts="reasoning", **options)
    (row,) = packer.load(tmp_path / "out")
    labels, weights = row["labels"], row["loss_weights"]
    assert tokenizer.decode(labels[labels >= 0].tolist()) == "The fox<|im_end|>\n"
    first = tokenizer("The", add_special_tokens=False)["input_ids"]
    assert weights[weights > 0].tolist()[: len(first) + 1] == [2.0] * len(first) + [1.0]


def test_pairs_and_show_and_the_summary_name_what_is_left_out(tmp_path, tokenizer_path):
    pair = {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [IN_CONTENT]}
    options = ["--tokenizer", tokenizer_path, "--max-len", 128, "--untrained-parts", "reasoning"]
    template = ["--chat-template", "qwen3"]
    write_lines(tmp_path / "pairs.jsonl", [pair])
    succeeded("pack", tmp_path / "pairs.jsonl", *options, *template, "--pairs", "-o", tmp_path / "pairs")
    (row,) = packer.load(tmp_path / "pairs")
    trained = auto_tokenizer(tokenizer_path).decode([label for label in row["labels"].tolist() if label >= 0])
    assert trained == "The quick fox<|im_end|>\nThe fox<|im_end|>\n"

    source = write_lines(tmp_path / "chats.jsonl", [{"messages": [QUESTION, PLAIN, QUESTION, ANSWER]}])
    said = succeeded("pack", source, *options, *template, "--train-on", "last", "-o", tmp_path / "out")
    assert "training on last of messages without reasoning" in said
    shown = succeeded("show", tmp_path / "out", 0, "--full", "--tokenizer", tokenizer_path)
    assert "brown\ndogs\n</think>\n\n[[The quick fox<|im_end|>\n]]" in shown
    assert shown.count("[[") == 1
