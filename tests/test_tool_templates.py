"""Chats with tools: an answer that ends in a stop token is trained whatever the template makes of what follows."""

import pytest

from packer.sources.documents import DocumentError
from tests.helpers import naive_chats
from tests.helpers.chat_encoders import encoder_of, tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import CLOSING, MISTRAL, lists

pytest.importorskip("transformers")

TOOLS = [{"type": "function", "function": {"name": "fox", "parameters": {"type": "object", "properties": {}}}}]
CALLS = [{"id": "abcdefghi", "type": "function", "function": {"name": "fox", "arguments": {"dogs": 42}}}]
QUESTION = {"role": "user", "content": "fox?"}
CALL = {"role": "assistant", "tool_calls": CALLS}
RESULT = {"role": "tool", "content": "42", "tool_call_id": "abcdefghi"}
ANSWER = {"role": "assistant", "content": "42 dogs"}
CHATS = {
    "a call": [QUESTION, CALL],
    "two calls": [QUESTION, {**CALL, "tool_calls": CALLS * 2}],
    "a result": [QUESTION, CALL, RESULT, ANSWER],
    "an answer": [QUESTION, ANSWER],
    "a call after an answer": [QUESTION, ANSWER, {**QUESTION, "content": "dogs?"}, CALL],
}


@pytest.fixture(scope="module")
def answers_of(encoder_of, tokenizer):
    """The text and the trained text of every document of a chat."""
    decode = tokenizer.decode

    def encoded(template, train_on, **record):
        batch = encoder_of(template, train_on, columns=record).encode([record])
        return [
            (decode(ids), decode([token for token in labels if token >= 0]))
            for ids, labels in zip(lists(batch.input_ids), lists(batch.labels), strict=True)
        ]

    return encoded


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CHATS)
def test_each_answer_of_chats_with_calls_is_what_the_model_has_to_write(answers_of, tokenizer, name, tools):
    chat = CHATS[name]
    render = naive_chats.renderer(tokenizer, MISTRAL, tools)
    expected = []
    for turn, message in enumerate(chat):
        if message["role"] == "assistant":
            before, whole = render(chat[:turn], prompt=True), render(chat[: turn + 1], prompt=False)
            expected.append((whole, whole.removeprefix(before)))
    assert answers_of(MISTRAL, "each-answer", messages=chat, tools=tools) == expected
    assert all(trained.endswith("</s>") for _, trained in expected)


@pytest.mark.parametrize("name", [name for name in CHATS if name != "a call after an answer"])
def test_the_answers_of_a_question_with_tools_are_trained(answers_of, name):
    for tools in (None, TOOLS):
        ((text, trained),) = answers_of(MISTRAL, "assistant", messages=CHATS[name], tools=tools)
        assert trained == text.partition("[/INST]")[2].replace('[TOOL_RESULTS] {"content": 42, "call_id": "abcdefghi"}'
                                                               "[/TOOL_RESULTS]", "")  # fmt: skip


def test_tools_that_move_with_the_last_question_are_refused_in_chats_of_several(answers_of):
    with pytest.raises(DocumentError, match="differently if more messages follow"):
        answers_of(MISTRAL, "assistant", messages=CHATS["a call after an answer"], tools=TOOLS)


def test_a_turn_may_be_closed_by_the_next_one_and_after_the_loop(answers_of):
    chat = [QUESTION, {**ANSWER, "content": "quick"}, QUESTION, ANSWER]
    ((_, trained),) = answers_of(CLOSING, "assistant", messages=chat)
    assert trained == "quick</s>\n42 dogs</s>\n"
    pair = {"prompt": chat[:1], "completion": chat[1:2]}
    assert answers_of(CLOSING, "completion", **pair)[0][1] == "quick</s>\n"
    unknown = CLOSING.replace("</s>", "<|im_end|>")
    with pytest.raises(DocumentError, match=r"what may be a part of one, .* name it in generation_config.json"):
        answers_of(unknown, "assistant", messages=chat)
