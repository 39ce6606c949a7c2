"""Chats of one shape are rendered once with placeholders: their tokens and labels are those of chats rendered alone.

A message with a further field, which no template here reads, makes packer render its chat alone.
"""

import json
import random

import jinja2
import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError
from tests.helpers.chat_templates import CLOSING, EXACT, LOOP, MARKED, PROMPT, REWRITING, save_tokenizer, trained
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

BODIES = {
    "searches, strips, adds": "{% macro told(text) %}{{ text.lstrip() }}{{ '!' if '</think>' in text }}{% endmacro %}"
    "{% set all %}{{ told(message.content) + '.' }}{% endset %}{{ all | trim }}{% if '\\n' in message.content %}n"
    "{% endif %}{% if message.content is string and message.content.startswith('4') %}4{% endif %}{{ loop.index }}"
    "{{ messages[0].content | trim }}.",
    "searches with spaces": "{% set text = ' ' + message.content %}{% if text.startswith(' ') %}!{% endif %}{{ text }}",
    "counts": "{{ message.content | length }}{{ message.content }}",
    "strips letters": "{{ message.content.strip('!ae') }}",
    "compares": "{% if 'is.' != message.content + '.' %}!{% endif %}{{ message.content }}",
    "counts letters": "{% for letter in message.content %}.{% endfor %}{{ message.content | int }}",
    "writes JSON": "{{ message.content | tojson }}{{ [message.content] }}",
    "cuts": "{{ message.content[:3] }}{{ message.content.split('is')[-1] }}",
    "changes": "{{ message.content | upper }}{{ message.content.replace('is', '!') }}",
    "looks up": "{{ {'is': 1}[message.content] }}{{ message.content in 'this' }}{{ message.content }}",
    "joins": "{{ message.content ~ '.' }}{{ messages | map(attribute='content') | join }}",
    "asks for kinds": "{{ message.content is iterable }}{{ message.content is sequence }}{{ message.content }}",
    "writes private characters": "\U00100000{{ message.content }}\U00100001{{ '\U00100000' + message.content }}",
}
"""What templates may do with contents; the first is what placeholders can do."""

INSPECTING = {
    name: LOOP + "<|im_start|>{{ message.role }}\n" + body + "<|im_end|>\n{% endfor %}" + PROMPT
    for name, body in BODIES.items()
}
PARTIAL = (
    LOOP + "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}"
    "{% else %}</{{ message.content }}>{% endif %}{% endfor %}"
)
"""A content may complete a stop token, which follows the answer before it."""
TEMPLATES = {"partial": PARTIAL, **INSPECTING, **EXACT, **MARKED, **REWRITING, "closes turns later": CLOSING}

PARTS = [
    *("is", "an answer", "Zoë", " ", "\n", "\x1c", "\u00a0", "4", "", "?", "!", "中文", "😀", "e\u0301"),
    *("</think>", "<think>\n", "<|im_end|>", "<|im_start|>assistant\n", "</s>", "<|", "|>", "s", "end", "### "),
    *("{{ messages }}", "{% raw %}", "{#", "\U00100000", "\U00100001", "\U000f5aff", "\U000f5afd", "\U000f5afb"),
]
"""Parts of contents: texts of templates, of their marks and placeholders, and white space."""


def conversations() -> list[list[dict]]:
    """Chats of few shapes whose contents look like what templates write."""
    draw = random.Random(0)
    shapes = [("user", "assistant") * 2, ("user", "assistant"), ("system", "user", "assistant", "user"), ("assistant",)]

    def content() -> str:
        return "".join(draw.choices(PARTS, k=draw.randint(0, 4))) if draw.random() < 0.4 else draw.choice(PARTS[:3])

    questions = [[("user", part), ("assistant", "is")] * 2 for part in PARTS]
    mixed = [[(role, content()) for role in draw.choice(shapes)] for _ in range(30)]
    return [[{"role": role, "content": text} for role, text in messages] for messages in [*questions, *mixed]]


def tokenized(folder, tokenizer: str, chats: list[list[dict]], **options):
    """Return the documents of chats, and why others are refused; ([], []) if all are."""
    source = write_lines(folder.with_suffix(".jsonl"), [{"messages": messages} for messages in chats])
    try:
        packer.tokenize(source, folder, tokenizer=tokenizer, on_error="skip", **options)
    except PackerError:
        return [], []
    (file,) = folder.glob("*.arrow")
    refused = [json.loads(line)["reason"] for line in (folder / "rejected.jsonl").read_text().splitlines()]
    return pa.ipc.open_stream(file).read_all().to_pylist(), refused


@pytest.mark.nightly(after=3)
@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_of_a_shape_have_the_tokens_and_labels_of_chats_rendered_alone(request, tmp_path, name):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=TEMPLATES[name])
    chats = conversations()
    alone = [[{**message, "further": 1} for message in messages] for messages in chats]
    ways = ("assistant", "all", "each-answer") if request.config.getoption("--nightly") else ("assistant",)
    for way in ways:
        expected = tokenized(tmp_path / f"alone-{way}", tokenizer, alone, train_on=way)
        assert tokenized(tmp_path / way, tokenizer, chats, train_on=way) == expected


TOGETHER = LOOP + "{% if loop.index0 == 2 %}</s>{% endif %}{{ message.content.strip() }}{% endfor %}"
ITEMS = LOOP + "{% for name, value in message.items() %}{{ name }}={{ value }};{% endfor %}{% endfor %}"


def asked(question: str, answer: str) -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize(
    ("template", "chat", "text"),
    [
        pytest.param(TOGETHER, asked("</ ", "s>"), "</s>", id="contents that are a stop token together"),
        pytest.param(ITEMS, [{"content": "is", "role": "user"}], "content=is;role=user;", id="fields in another order"),
    ],
)
def test_a_chat_differs_from_others_of_its_shape(tmp_path, template, chat, text):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=template)
    other = [{"role": message["role"], "content": "an answer"} for message in chat]
    documents, _ = tokenized(tmp_path / "tokens", tokenizer, [other, chat], train_on="all")
    assert documents[1]["input_ids"] == trained().encode(text).ids


@pytest.mark.nightly
def test_a_chat_may_have_more_messages_than_there_are_placeholders(tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=EXACT["chatml"])
    (document,), _ = tokenized(tmp_path / "tokens", tokenizer, [asked("?", ".") * 33_000], train_on="all")
    assert len(document["input_ids"]) > 66_000


@pytest.mark.parametrize("train_on", ["assistant", "each-answer"])
def test_chats_of_a_shape_are_rendered_once(tmp_path, monkeypatch, train_on):
    rendered = []
    render = jinja2.Template.render
    monkeypatch.setattr(
        jinja2.Template, "render", lambda *given, **named: rendered.append(1) or render(*given, **named)
    )
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=MARKED["marked"])
    chats = [asked(f"{at}?", f"{at}.") for at in range(300)]
    documents, _ = tokenized(tmp_path / "tokens", tokenizer, chats, train_on=train_on)
    assert len(documents) == 300
    assert len(rendered) < 100
