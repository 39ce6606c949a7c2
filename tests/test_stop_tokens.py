"""The token that ends an answer is trained, also if it is the marker of the next role; otherwise a warning says so."""

import logging

import pytest

import packer
from tests.helpers.chat_templates import EXACT, GLM, auto_tokenizer, save_glm, save_tokenizer
from tests.helpers.pack import segments_in
from tests.helpers.packed_trees import answers_in
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "fox", "arguments": {}}}]}
CALLED = '<call>{"name": "fox", "arguments": {}}'


def message(role, content):
    return {"role": role, "content": content}


DIALOGUE = [
    message("user", "fox?"),
    message("assistant", "quick"),
    message("user", "dogs?"),
    CALL,
    message("tool", "42"),
    message("assistant", "42 dogs"),
]


def packed(tmp_path, caplog, tokenizer, records, **options):
    """Pack records, and return the text of each with trained characters in brackets, and all warnings."""
    with caplog.at_level(logging.WARNING, logger="packer"):
        caplog.clear()
        packer.pack(
            write_lines(tmp_path / "chats.jsonl", records),
            tmp_path / "out",
            max_len=256,
            tokenizer=tokenizer,
            sync=False,
            overwrite=True,
            **options,
        )
    decode = auto_tokenizer(tokenizer).decode
    texts = []
    for _, _, tokens, labels in sorted(segments_in(packer.load(tmp_path / "out"))):
        pairs = zip(tokens, labels, strict=True)
        text = "".join(f"[{decode(token)}]" if label >= 0 else decode(token) for token, label in pairs)
        texts.append(text.replace("][", ""))
    return texts, [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_markers_of_the_next_role_that_end_a_turn_are_trained_and_appended_to_the_last_answer(tmp_path, caplog):
    tokenizer = save_glm(tmp_path / "glm")
    chats = [{"messages": DIALOGUE}, {"messages": DIALOGUE[:4]}, {"messages": DIALOGUE[:5]}]
    texts, warnings = packed(tmp_path, caplog, tokenizer, chats)
    start = f"[gMASK]<|user|>\nfox?<|assistant|>\n[quick<|user|>]\ndogs?<|assistant|>\n[{CALLED}<|observation|>]"
    assert texts == [start + "\n42<|assistant|>\n[42 dogs<|user|>]", start, start + "\n42"]
    assert not warnings


def test_only_answers_that_are_trained_get_their_end(tmp_path, caplog):
    tokenizer = save_glm(tmp_path / "glm")
    masked = [DIALOGUE[0], {**DIALOGUE[1], "weight": 0}, DIALOGUE[2], {**CALL, "weight": 0}]
    records = [{"messages": [*masked, *DIALOGUE[4:]]}, {"messages": [*DIALOGUE[:2], *masked[2:]]}]
    texts, warnings = packed(tmp_path, caplog, tokenizer, records)
    assert texts == [
        f"[gMASK]<|user|>\nfox?<|assistant|>\nquick<|user|>\ndogs?<|assistant|>\n{CALLED}<|observation|>\n42<|assistant|>\n"
        "[42 dogs<|user|>]",
        f"[gMASK]<|user|>\nfox?<|assistant|>\n[quick<|user|>]\ndogs?<|assistant|>\n{CALLED}",
    ]
    assert not warnings


@pytest.mark.parametrize("train_on", ["completion", "all"])
def test_completions_and_whole_chats_end_with_the_stop_token_too(tmp_path, caplog, train_on):
    tokenizer = save_glm(tmp_path / "glm")
    records = [{"prompt": DIALOGUE[:1], "completion": DIALOGUE[1:2]}]
    texts, warnings = packed(tmp_path, caplog, tokenizer, records, train_on=train_on)
    assert texts[0].endswith("quick<|user|>]")
    assert not warnings


def test_both_answers_of_a_pair_end_with_the_stop_token(tmp_path, caplog):
    pair = {"prompt": DIALOGUE[:1], "chosen": DIALOGUE[1:2], "rejected": [message("assistant", "slow")]}
    tokenizer, source = save_glm(tmp_path / "glm"), write_lines(tmp_path / "pairs.jsonl", [pair])
    with caplog.at_level(logging.WARNING, logger="packer"):
        packer.pack(source, tmp_path / "out", max_len=256, tokenizer=tokenizer, pairs=True, sync=False)
    decode, answers = auto_tokenizer(tokenizer).decode, answers_in(tmp_path / "out")
    assert {decode([label for _, label in trained]) for _, _, trained in answers} == {"quick<|user|>", "slow<|user|>"}
    assert not caplog.records


def test_tags_that_leave_out_the_stop_token_do_not_keep_it_untrained(tmp_path, caplog):
    tagged = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
        "{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}</s>\n"
        "{% endfor %}"
    )
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=tagged)
    texts, warnings = packed(tmp_path, caplog, tokenizer, [{"messages": [*DIALOGUE[:3], DIALOGUE[5]]}])
    assert texts[0].count("</s>]\n") == 2
    assert not warnings


ANSWER = "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}"
WITHOUT_ENDS = {
    "text alone": EXACT["no special tokens"],
    "markers that nothing names as ends": GLM,
    "tags": GLM.replace("{{ message.content }}", ANSWER + "{{ message.content }}{% endif %}"),
}


@pytest.mark.parametrize("template", WITHOUT_ENDS.values(), ids=WITHOUT_ENDS)
def test_answers_without_a_trained_stop_token_are_counted(tmp_path, caplog, template):
    tokenizer = save_glm(tmp_path / "glm", template=template, ends=())
    plain = [*DIALOGUE[:3], DIALOGUE[5]]
    records = [{"messages": plain}, {"messages": plain[:3]}]
    texts, warnings = packed(tmp_path, caplog, tokenizer, records)
    assert len(texts) == 2
    (warning,) = warnings
    assert warning.startswith("3 answers end without a trained stop token")
    caplog.clear()
    packer.tokenize(tmp_path / "chats.jsonl", tmp_path / "tokens", tokenizer=tokenizer)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == warnings


def test_the_end_of_sequence_token_with_which_the_next_turn_begins_is_an_end(tmp_path, caplog):
    template = (
        "{% for message in messages %}{% if message.role == 'user' and not loop.first %}</s>{% endif %}"
        "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=template)
    texts, warnings = packed(tmp_path, caplog, tokenizer, [{"messages": [*DIALOGUE[:3], DIALOGUE[5]]}])
    assert texts == ["user: fox?\nassistant:[ quick\n</s>]user: dogs?\nassistant:[ 42 dogs\n</s>]"]
    assert not warnings


def test_one_of_the_ends_is_enough_and_other_chats_differ_in_identity(tmp_path, caplog):
    bare, named = save_glm(tmp_path / "bare", ends=()), save_glm(tmp_path / "named", ends=("<|user|>",))
    records = [{"messages": DIALOGUE[:2]}]
    identities = []
    for tokenizer in (bare, named):
        packed(tmp_path, caplog, tokenizer, records)
        identities.append(packer.load(tmp_path / "out").manifest.source.text)
    assert identities[0] != identities[1]
    assert identities[0].tokenizer == identities[1].tokenizer


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "<|user|>"}', '{"eos_token_id": [true]}'])
def test_a_generation_config_that_cannot_be_read_is_named(tmp_path, content):
    tokenizer = save_glm(tmp_path / "glm")
    (tmp_path / "glm" / "generation_config.json").write_text(content)
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": DIALOGUE[:2]}])
    with pytest.raises(packer.PackerError, match=r"config\.json does not say which tokens end a turn: .*; fix"):
        packer.pack(source, tmp_path / "out", max_len=64, tokenizer=tokenizer)


def test_tagged_parts_of_one_answer_have_one_end(tmp_path, caplog):
    parts = "{% generation %}<think>{% endgeneration %} {% generation %}{{ message.content }}{% endgeneration %}"
    template = GLM.replace(
        "{{ message.content }}", ANSWER.partition("{% generation")[0] + parts + "{% else %}?{% endif %}"
    )
    chat = {"messages": [*DIALOGUE[:3], DIALOGUE[5]]}
    _, warnings = packed(tmp_path, caplog, save_glm(tmp_path / "bare", template=template, ends=()), [chat])
    assert warnings[0].startswith("2 answers end without")
    _, warnings = packed(tmp_path, caplog, save_glm(tmp_path / "named", template=template), [chat])
    assert not warnings
