"""A generation prompt is never trained, however a template appends it, and is found with the chat's own arguments."""

from itertools import product

import pytest

from packer.sources.documents import DocumentError
from tests.helpers.chat_encoders import encoder_of, tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import (
    BODY,
    CLOSING,
    END,
    LOOP,
    PROMPT,
    REWRITING,
    lists,
)

pytest.importorskip("transformers")

QUESTION = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "The quick fox"}]
DIALOGUE = [*QUESTION, {"role": "user", "content": "dogs?"}, {"role": "assistant", "content": "42 dogs"}]
CHATS = {
    "one turn": QUESTION,
    "two turns": DIALOGUE,
    "a question at the end": DIALOGUE[:3],
    "a system prompt": [{"role": "system", "content": "Help!"}, *DIALOGUE],
    "two answers": [*QUESTION, {"role": "assistant", "content": "naïve"}],
}
TOOLS = [{"type": "function", "function": {"name": "fox"}}]


def trained_text(encoder, tokenizer, **record):
    (labels,) = lists(encoder.encode([record]).labels)
    return tokenizer.decode([token for token in labels if token >= 0])


# ---- a part of the prompt is always appended, another on request ----

THINKING = "{% if message.role == 'assistant' %}<think></think>{% endif %}"
THOUGHT = "<|im_start|>{{ message.role }}\n" + THINKING + "{{ message.content }}<|im_end|>\n"
PLAIN = "### {{ message.role }}: {{ message.content }}\n\n"
ASKED = "{% if add_generation_prompt %}"
ENDIF = "{% endif %}"
ALWAYS = {
    "the header, with a thought on request": LOOP + THOUGHT + END + "<|im_start|>assistant\n" + ASKED
    + "<think></think>" + ENDIF,
    "the first token alone": LOOP + BODY + END + "<|im_start|>" + ASKED + "assistant\n" + ENDIF,
    "all of it": LOOP + BODY + END + "<|im_start|>assistant\n",
    "its last part": LOOP + BODY + END + ASKED + "<|im_start|>" + ENDIF + "assistant\n",
    "both ends of it": LOOP + THOUGHT.replace("<think>", "<think>\n") + END + "<|im_start|>assistant\n" + ASKED
    + "<think>\n" + ENDIF + "</think>",
    "another thought without a request": LOOP + THOUGHT + END + "<|im_start|>assistant\n" + ASKED
    + "<think></think>{% else %}<think>" + ENDIF,
    "words": LOOP + PLAIN + END + "### assistant:" + ASKED + " " + ENDIF,
    "signs": LOOP + PLAIN + END + "###" + ASKED + " assistant: " + ENDIF,
    "in the loop": LOOP + THOUGHT + "{% if loop.last %}<|im_start|>assistant\n" + ASKED + "<think></think>" + ENDIF
    + ENDIF + END,
    "in the loop, for one role": LOOP + THOUGHT + "{% if message.role in ['assistant', 'user'] %}{% if loop.last %}"
    "<|im_start|>assistant\n" + ENDIF + ENDIF + END + ASKED + "<think></think>" + ENDIF,
    "behind another end": LOOP + BODY + END + "{{ eos_token }}<|im_start|>assistant\n" + ASKED + "<think>" + ENDIF,
    "with a last turn that is rewritten": LOOP + "<|im_start|>{{ message.role }}\n{% if loop.last %}<think></think>"
    + ENDIF + "{{ message.content }}<|im_end|>\n" + END + "<|im_start|>assistant\n" + ASKED + "<think></think>" + ENDIF,
    "by another loop": LOOP + BODY + END + "{% for x in [1] %}<|im_start|>assistant\n{% endfor %}" + ASKED + "<think>"
    + ENDIF,
    "of a list": "{% set ns = namespace(n=messages | length) %}" + LOOP + BODY + END
    + "{% if ns.n %}<|im_start|>assistant\n" + ENDIF + ASKED + "<think></think>" + ENDIF,
    "only with thoughts": LOOP + THOUGHT + END + "{% if thinking %}<|im_start|>assistant\n" + ASKED + "<think></think>"
    + ENDIF + "{% else %}" + PROMPT + ENDIF,
}  # fmt: skip


@pytest.mark.parametrize(("template", "chat"), [*product(ALWAYS, CHATS)])
def test_a_prompt_of_which_a_part_is_always_appended_is_refused(encoder_of, tokenizer, template, chat):
    arguments = {"chat_template_kwargs": {"thinking": True}} if template == "only with thoughts" else {}
    with pytest.raises(DocumentError, match=r"the chat template .*--train-on each-answer or all") as raised:
        trained_text(encoder_of(ALWAYS[template]), tokenizer, messages=CHATS[chat], **arguments)
    assert "\n" not in str(raised.value)
    assert encoder_of(ALWAYS[template], "all").encode([{"messages": CHATS[chat]}]).labels is None


@pytest.mark.parametrize("template", ALWAYS)
def test_a_completion_does_not_end_in_a_prompt_either(encoder_of, tokenizer, template):
    arguments = {"chat_template_kwargs": {"thinking": True}} if template == "only with thoughts" else {}
    made = encoder_of(ALWAYS[template], columns=("prompt", "completion", "chat_template_kwargs"))
    with pytest.raises(DocumentError, match=r"the chat template .*--train-on each-answer or all"):
        trained_text(made, tokenizer, prompt=QUESTION[:1], completion=QUESTION[1:], **arguments)


def test_the_prompt_may_depend_on_what_a_chat_asks_for(encoder_of, tokenizer):
    made = encoder_of(ALWAYS["only with thoughts"])
    assert trained_text(made, tokenizer, messages=DIALOGUE).endswith("42 dogs<|im_end|>\n")


# ---- what stands behind the last turn for another reason ----

INSTEAD = {
    "end of text": (REWRITING["end of text behind the last turn"], "The quick fox<|im_end|>\n<|endoftext|>"),
    "another end of the last turn": (
        LOOP + "<|im_start|>{{ message.role }}\n{{ message.content }}{% if loop.last and message.role == 'assistant' %}"
        "</s>{% else %}<|im_end|>{% endif %}" + END + PROMPT,
        "The quick fox</s>",
    ),
    "a thought in the last turn": (
        REWRITING["think block in the last turn"],
        "<think>\n\n</think>\n\nThe quick fox<|im_end|>\n",
    ),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_ends_the_last_turn_alone_is_trained(encoder_of, tokenizer, name):
    template, wanted = INSTEAD[name]
    assert trained_text(encoder_of(template), tokenizer, messages=QUESTION) == wanted


# ---- exchanges ----


@pytest.mark.parametrize("template", ["all of it", "the header, with a thought on request", "the first token alone"])
def test_exchanges_begin_where_they_do_without_a_prompt_that_is_always_appended(encoder_of, tokenizer, template):
    (ids,), (starts,) = (
        lists(column)
        for encoded in [encoder_of(ALWAYS[template], "all", exchanges=True).encode([{"messages": DIALOGUE}])]
        for column in (encoded.input_ids, encoded.extra["exchange_starts"])
    )
    assert len(starts) == sum(message["role"] == "user" for message in DIALOGUE) > 1
    assert all(tokenizer.decode(ids[start:]).startswith("<|im_start|>user\n") for start in starts)


def test_an_exchange_begins_behind_the_end_of_the_answer_before_it(encoder_of, tokenizer):
    encoded = encoder_of(CLOSING, exchanges=True).encode([{"messages": DIALOGUE}])
    (ids,), (starts,) = lists(encoded.input_ids), lists(encoded.extra["exchange_starts"])
    assert len(starts) == sum(message["role"] == "user" for message in DIALOGUE) > 1
    assert all(tokenizer.decode(ids[start:]).startswith("<|im_start|>user\n") for start in starts)


# ---- the chat's own arguments ----

# as Qwen3 has it: an empty thought in the last answer, and in the prompt where thoughts are switched off
THOUGHTS = (
    LOOP + "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
    "{% endif %}{{ message.content }}<|im_end|>\n" + END + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# the same where a chat has tools, or documents
WITH_TOOLS = THOUGHTS.replace("enable_thinking is defined and not enable_thinking", "tools")
WITH_DOCUMENTS = THOUGHTS.replace("enable_thinking is defined and not enable_thinking", "documents")
OWN = {
    "kwargs": (THOUGHTS, {"chat_template_kwargs": {"enable_thinking": False}}),
    "tools": (WITH_TOOLS, {"tools": TOOLS}),
    "documents": (WITH_DOCUMENTS, {"chat_template_kwargs": {"documents": [{"title": "a", "text": "b"}]}}),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("first", ["with", "without"])
def test_the_prompt_is_that_of_the_chats_own_arguments(encoder_of, tokenizer, name, first):
    template, arguments = OWN[name]
    made = encoder_of(template)
    wanted = {
        "with": (arguments, "The quick fox<|im_end|>\n"),
        "without": ({}, "<think>\n\n</think>\n\nThe quick fox<|im_end|>\n"),
    }
    for which in (first, "with", "without"):
        given, text = wanted[which]
        assert trained_text(made, tokenizer, messages=QUESTION, **given) == text
    with pytest.raises(DocumentError, match="differently if more messages follow"):
        trained_text(made, tokenizer, messages=DIALOGUE, **arguments)


def test_a_probe_has_the_form_of_the_chats_contents(encoder_of, tokenizer):
    template = THOUGHTS.replace("{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")
    listed = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in QUESTION]
    assert trained_text(encoder_of(template), tokenizer, messages=listed).endswith("The quick fox<|im_end|>\n")
