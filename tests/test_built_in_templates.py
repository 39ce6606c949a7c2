"""Built-in chat templates: the tokens of the models' own on simple chats, and exact spans for any number of turns."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from jinja2 import nodes
from transformers import PreTrainedTokenizerFast

from packer.errors import PackerError
from packer.options.option import BUILT_IN_TEMPLATES
from packer.sources.documents import DocumentError
from packer.text.built_in_templates import built_in
from packer.text.conversations import Chat
from packer.text.rendering import StandIns, Templates
from packer.text.template_environment import names_read, parsed
from packer.text.text_columns import Records
from packer.text.text_encoder import Encoder
from packer.text.tokenizer import of_transformers, train_byte_level
from tests.helpers.chat_templates import WORDS, lists, text_options

SYSTEM = {"role": "system", "content": "Be brief. "}
QUESTION = {"role": "user", "content": " What is\n 2 + 2? "}
ANSWER = {"role": "assistant", "content": "4, of course."}
AGAIN = {"role": "user", "content": "And 3 + 3?"}
CHATS = [[QUESTION, ANSWER], [SYSTEM, QUESTION, ANSWER], [QUESTION, ANSWER, AGAIN, {**ANSWER, "content": "6 "}]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tokenizer that has the special tokens of all templates, and no template."""
    special = sorted({token for name in BUILT_IN_TEMPLATES for token in built_in(name).special_tokens})
    tokenizer = train_byte_level([WORDS] * 3, 1000)
    tokenizer.add_special_tokens([*special, "<bos>"])
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>").save_pretrained(folder)
    return folder


def rendered(folder: Path, template: str, messages, *, prompt: bool = False, tools=None, kwargs=None) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return Templates(of_transformers(tokenizer), template).render(
        Chat(messages, tools=tools, kwargs=kwargs or {}), prompt=prompt
    )


def template_of_trl(name: str) -> str:
    if find_spec("trl") is None:
        pytest.skip("TRL, which has copies of the models' templates, is not installed")
    path = Path(find_spec("trl").origin).parent / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"this TRL has no template {name}")
    return path.read_text()


@pytest.mark.parametrize("name", ["gemma3", "glm4moe", "llama3", "qwen3"])
@pytest.mark.parametrize("prompt", [False, True])
def test_chats_are_rendered_as_by_the_model_s_own_template(folder, name, prompt):
    own = template_of_trl(name)
    for messages in CHATS[: 2 if name == "qwen3" else 3]:
        chat = messages[:-1] if prompt else messages
        assert rendered(folder, name, chat, prompt=prompt) == rendered(folder, own, chat, prompt=prompt)


TURN = "<|im_start|>user\n What is\n 2 + 2? <|im_end|>\n<|im_start|>assistant\n"
GLM = "[gMASK]<sop><|user|>\n What is\n 2 + 2? "
NO_THOUGHT = "<think>\n\n</think>\n\n"
READ = [
    ("qwen3", "enable_thinking", False, TURN + NO_THOUGHT, "4, of course.<|im_end|>\n"),
    ("qwen3", "enable_thinking", True, TURN, NO_THOUGHT + "4, of course.<|im_end|>\n"),
    ("qwen3", "enable_thinking", 0, TURN, NO_THOUGHT + "4, of course.<|im_end|>\n"),  # only false is false there
    ("glm4moe", "enable_thinking", False, GLM + "/nothink<|assistant|>\n<think></think>", "\n4, of course.<|user|>"),
    ("glm4moe", "enable_thinking", True, GLM + "<|assistant|>", "\n<think></think>\n4, of course.<|user|>"),
    ("glm4moe", "enable_thinking", 0, GLM + "/nothink<|assistant|>\n<think></think>", "\n4, of course.<|user|>"),
]
"""A template, an argument, and with that the model's input and what it has to answer."""


@pytest.mark.parametrize(("name", "argument", "value", "prompt", "answer"), READ)
def test_arguments_mean_what_they_do_in_the_models_own_templates(folder, name, argument, value, prompt, answer):
    records = Records(kind="chat", columns=("messages",), conversational=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for train_on in (None, "each-answer"):
        encoder = Encoder(text_options(tokenizer=str(folder), chat_template=name, train_on=train_on), records)
        encoded = encoder.encode([{"messages": [QUESTION, ANSWER], "chat_template_kwargs": {argument: value}}])
        assert encoded.counts["straddling"] == 0
        (ids,), (labels,) = lists(encoded.input_ids), lists(encoded.labels)
        assert tokenizer.decode(ids) == prompt + answer
        assert tokenizer.decode([label for label in labels if label >= 0]) == answer
    own = template_of_trl(name)
    for chat, asks in (([QUESTION], True), ([SYSTEM, QUESTION], True), ([SYSTEM, QUESTION, ANSWER], False)):
        ours, theirs = (rendered(folder, each, chat, prompt=asks, kwargs={argument: value}) for each in (name, own))
        assert ours == theirs


def test_every_argument_that_a_template_reads_is_in_the_list():
    usual, read = {"messages", "tools", "add_generation_prompt", "bos_token"}, set()
    for name in BUILT_IN_TEMPLATES:
        names = parsed(built_in(name).source).find_all(nodes.Name)
        stored = {each.name for each in names if each.ctx == "store"}
        read |= {(name, argument) for argument in names_read(built_in(name).source) - usual - stored}
    assert read == {(name, argument) for name, argument, *_ in READ}


def test_thoughts_that_enable_thinking_excludes_are_refused(folder):
    thoughtful = {**ANSWER, "reasoning_content": "Add."}
    for name, words in (
        ("qwen3", "enable_thinking is false, and an answer has thoughts"),
        ("glm4moe", "renders message 1 \\(assistant\\) without it"),
    ):
        record = {"messages": [QUESTION, thoughtful], "chat_template_kwargs": {"enable_thinking": False}}
        records = Records(kind="chat", columns=("messages",), conversational=True)
        with pytest.raises(DocumentError, match=words):
            Encoder(text_options(tokenizer=str(folder), chat_template=name), records).encode([record])


def test_qwen3_writes_thoughts_before_every_answer_as_its_template_for_training(folder):
    thoughtful = {"role": "assistant", "content": "<think>\nAdd.\n</think>\n\n4"}
    reasoned = {"role": "assistant", "content": "4", "reasoning_content": "Add."}
    call = {
        **ANSWER,
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}, {"name": "é", "arguments": "{}"}],
    }
    results = [{"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}]
    called = [[*start, QUESTION, call, *results, {**call, "content": ""}, results[0]] for start in ([], [SYSTEM])]
    for messages in (*CHATS, [QUESTION, thoughtful, AGAIN, ANSWER], [QUESTION, reasoned], *called):
        for tools in (None, [{"type": "function", "function": {"name": "add", "description": "Zoë"}}]):
            ours, theirs = (
                rendered(folder, template, messages, tools=tools)
                for template in ("qwen3", template_of_trl("qwen3_training"))
            )
            assert ours == theirs


def test_chats_with_tools_are_trained_by_the_template_of_qwen3_and_refused_by_others(shared_data, folder):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
    record = {"messages": [QUESTION, call, {"role": "tool", "content": "4"}, ANSWER, AGAIN, ANSWER], "tools": []}
    records = Records(kind="chat", columns=("messages",), conversational=True)
    tokenizer = str(shared_data / "tokenizers" / "qwen3")
    encoded = Encoder(text_options(tokenizer=tokenizer, chat_template="qwen3"), records).encode([record])
    (labels,) = lists(encoded.labels)
    trained = PreTrainedTokenizerFast.from_pretrained(tokenizer).decode([token for token in labels if token >= 0])
    thought = "<think>\n\n</think>\n\n"
    arguments = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>\n'
    assert trained == f"{thought}{arguments}{thought}4, of course.<|im_end|>\n{thought}4, of course.<|im_end|>\n"
    for name in set(BUILT_IN_TEMPLATES) - {"qwen3"}:
        with pytest.raises(DocumentError, match=f"the built-in template {name} has no tools"):
            Encoder(text_options(tokenizer=str(folder), chat_template=name), records).encode([record])


@pytest.mark.parametrize("name", BUILT_IN_TEMPLATES)
def test_every_answer_of_a_long_chat_is_trained_and_nothing_else(folder, tmp_path, name):
    messages = [SYSTEM]
    for turn in range(5):
        messages += [
            {"role": "user", "content": f"question {turn}"},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    records = Records(kind="chat", columns=("messages",), conversational=True)
    encoded = Encoder(text_options(tokenizer=str(folder), chat_template=name), records).encode([{"messages": messages}])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids, labels = (lists(column)[0] for column in (encoded.input_ids, encoded.labels))
    last = "<|user|>" if name == "glm4moe" else ""  # which ends the last answer, too
    assert tokenizer.decode(ids) == rendered(folder, name, messages) + last
    trained = tokenizer.decode([token if label >= 0 else 0 for token, label in zip(ids, labels, strict=True)])
    for turn in range(5):
        assert f"answer {turn}" in trained
        assert f"question {turn}" not in trained
    end = built_in(name).ends[0]
    assert trained.count(end) == 5, "an answer includes the token that ends it"


@pytest.mark.parametrize("name", BUILT_IN_TEMPLATES)
def test_parts_of_text_are_joined(folder, name):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2 + 2?"}]
    whole = [{"role": "user", "content": "What is 2 + 2?"}, ANSWER]
    assert rendered(folder, name, [{"role": "user", "content": parts}, ANSWER]) == rendered(folder, name, whole)


def test_a_tokenizer_without_the_tokens_of_a_template_is_refused(tmp_path):
    train_byte_level([WORDS] * 3, 1000).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        PackerError, match=r"--chat-template llama3 writes <\|start_header_id\|>, which is not a token of"
    ):
        Encoder(
            text_options(tokenizer=str(tmp_path / "tokenizer.json"), chat_template="llama3"),
            Records(kind="chat", columns=("messages",), conversational=True),
        )


@pytest.mark.parametrize("name", [name for name in BUILT_IN_TEMPLATES if name != "chatml"])
def test_the_error_names_the_template_that_renders_short_chats_alike(folder, name):
    own = built_in(name).source.replace("loop.first", "messages[0] == message")
    tokenizer = replace(of_transformers(PreTrainedTokenizerFast.from_pretrained(folder)), chat_template=own)
    advice = StandIns(Templates(tokenizer)).choice(Chat([QUESTION, ANSWER]))
    assert advice.startswith(f"choose --chat-template {name}, which renders ")


def test_the_error_about_a_missing_template_names_those_whose_tokens_the_tokenizer_has(tmp_path):
    tokenizer = train_byte_level([WORDS] * 3, 1000)
    for tokens, words in (
        ([], "give one by --chat-template FILE"),
        (["<|im_start|>", "<|im_end|>"], "(chatml, qwen3, or a file)"),
    ):
        tokenizer.add_special_tokens(tokens)
        opened = of_transformers(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
        with pytest.raises(PackerError) as caught:
            Templates(opened)
        assert str(caught.value).endswith(words)
