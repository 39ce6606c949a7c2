"""Contents that are lists of parts: text is packed as transformers renders it, and nothing else vanishes."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import commands
from tests.helpers.chat_encoders import encoder_of, tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import (
    BODY,
    END,
    LOOP,
    PROMPT,
    lists,
)
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CONTENT = "message.content"
PARTS = "{% for part in message.content %}{{ part.text }}{% endfor %}"
TRIMMED = PARTS.replace("part.text", "part.text | trim")
EITHER = "{% if message.content is string %}{{ message.content }}{% else %}" + TRIMMED + "{% endif %}"


def chatml(content):
    return LOOP + BODY.replace("{{ message.content }}", content) + END + PROMPT


TAKE_PARTS = {
    "parts alone": chatml(PARTS),
    "both": chatml(EITHER),
    "the first": chatml("{{ message.content[0].text }}"),
}
TAKE_TEXT = {
    "as it is": chatml("{{ message.content }}"),
    "concatenated": chatml("{{ message.content + '' }}"),
    "its methods": chatml("{{ message.content.strip() if message.content.startswith('') }}"),
    "strings alone": chatml("{% if message.content is string %}{{ message.content }}{% endif %}"),
    "for assistants": chatml(
        "{% if message.role == 'assistant' or message.content is string %}{{ message.content }}{% else %}"
        + PARTS
        + "{% endif %}"
    ),
}


def listed(*texts):
    return [{"type": "text", "text": text} for text in texts]


CHAT = [
    {"role": "user", "content": listed("quick ", "fox?")},
    {"role": "assistant", "content": listed("The", " brown fox ")},
    {"role": "user", "content": "dogs?"},
    {"role": "assistant", "content": listed("42 dogs")},
]
JOINED = [
    {**message, "content": "".join(part["text"] for part in message["content"])}
    if isinstance(message["content"], list)
    else message
    for message in CHAT
]


@pytest.fixture(scope="module")
def packed_text(encoder_of, tokenizer):
    """Text and trained text of a chat, by a template."""

    def encoded(template, messages):
        batch = encoder_of(template).encode([{"messages": messages}])
        ids, labels = lists(batch.input_ids)[0], lists(batch.labels)[0]
        return tokenizer.decode(ids), tokenizer.decode([token for token in labels if token >= 0])

    return encoded


@pytest.mark.parametrize("template", TAKE_TEXT.values(), ids=TAKE_TEXT)
def test_parts_are_joined_for_a_template_that_takes_text(packed_text, template):
    assert packed_text(template, CHAT) == packed_text(template, JOINED)


@pytest.mark.parametrize("template", TAKE_PARTS.values(), ids=TAKE_PARTS)
def test_a_template_that_writes_parts_renders_them_as_in_transformers(packed_text, tokenizer, template):
    chat = [CHAT[number] for number in (0, 1, 0, 3)]
    text, trained = packed_text(template, chat)
    assert text == tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
    assert "42 dogs<|im_end|>" in trained


def test_contents_may_be_texts_and_lists_of_parts_in_one_chat(packed_text, tokenizer):
    template = TAKE_PARTS["both"]
    text, _ = packed_text(template, CHAT)
    assert text == tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=False)


OTHER = {
    "image": {"type": "image"},
    "image_url": {"type": "image_url", "image_url": {"url": "data:"}},
    "input_audio": {"type": "input_audio", "text": "fox"},
    "str": "fox",
}


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("template", ["chatml", "qwen3", None])
def test_other_parts_than_text_are_refused(tmp_path, tokenizer_path, kind, template):
    message = {"role": "user", "content": [*listed("fox?"), OTHER[kind]]}
    lines = [{"messages": JOINED}, {"messages": [message, CHAT[1]]}]
    write_lines(tmp_path / "chats.jsonl", lines)
    chosen = ["--chat-template", template] if template else []
    result = run("pack", tmp_path / "chats.jsonl", tokenizer_path, *chosen)
    assert result.exit_code == 1
    assert (
        f"chats.jsonl line 2): part 1 of 'messages' message 0 has the type '{kind}', and only text can" in result.output
    )
    assert "docs/how-to/images.md" in result.output.splitlines()[-1]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_placeholders_of_images_are_refused(tmp_path, tokenizer_path, ending):
    asked = [{"role": "user", "content": "<image>\nfox?"}, JOINED[1]]
    plain = {"messages": JOINED, "images": []}
    for name, records, is_refused in (
        ("images", [plain, {"messages": asked, "images": ["fox.png"]}], True),
        ("llava", [{"messages": asked, "image": "fox.png"}], True),
        ("text", [{"text": "see <video>", "videos": ["fox.mp4"]}], True),
        ("no_placeholders", [plain, {"messages": JOINED, "images": ["fox.png"]}], False),
        ("no_images", [{"messages": asked}], False),
    ):
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
        else:
            write_lines(path, records)
        result = run("pack", path, tokenizer_path)
        assert (result.exit_code == 1) == is_refused, (name, result.output)
        assert ("and only text can be packed; pack images, " in result.output.splitlines()[-1]) == is_refused, name


def test_an_image_that_only_a_later_line_has_is_refused(tmp_path, tokenizer_path):
    records = [{"text": "the <image> tag of HTML"}, {"text": "<image> fox", "image": "fox.png"}]
    write_lines(tmp_path / "text.jsonl", records)
    result = run("pack", tmp_path / "text.jsonl", tokenizer_path)
    assert "document 1 (text.jsonl line 2): <image> stands for a value of 'image'" in result.output


def run(command, path, tokenizer, *options):
    arguments = [command, path, "--tokenizer", tokenizer, "--max-len", 64, "-o", path.parent / "out", "--overwrite"]
    return commands.run(*arguments, *options)
