"""Chats: what the assistant wrote is found exactly, or it is an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.sources.documents import DocumentError
from packer.text.conversations import messages_of
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from tests.helpers import naive_chats
from tests.helpers.chat_encoders import encoder_of, tokenizer  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import (
    ALWAYS_PROMPTING,
    BODY,
    END,
    EXACT,
    LOOP,
    MARKED,
    PROMPT,
    REWRITING,
    TOOLS,
    WORDS,
    auto_tokenizer,
    lists,
    save_tokenizer,
    text_options,
    trained_at,
)

pytest.importorskip("transformers")

QUESTION = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "The quick fox"}]
DIALOGUE = [*QUESTION, {"role": "user", "content": "dogs?"}, {"role": "assistant", "content": "42 dogs"}]

contents = st.text(st.sampled_from(WORDS), max_size=12)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system", "tool"]),
    contents,
)
conversations = st.lists(messages, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), adds_bos=True, adds_eos=True)


def encode(encoder, conversation):
    encoded = encoder.encode([{"messages": conversation}])
    return lists(encoded.input_ids)[0], lists(encoded.labels)[0], encoded


def text_of(tokenizer, ids):
    return tokenizer.decode([token for token in ids if token >= 0])


@pytest.mark.parametrize("template", EXACT.values(), ids=EXACT)
@given(conversation=conversations)
def test_what_is_trained_is_what_the_twin_finds_message_by_message(encoder_of, tokenizer, template, conversation):
    render = naive_chats.renderer(tokenizer, template)
    wanted = naive_chats.assistant_characters(render, conversation)
    if wanted is None:
        return
    ids, labels, encoded = encode(encoder_of(template), conversation)
    assert (ids, trained_at(labels)) == naive_chats.tokens_of_characters(
        tokenizer, render(conversation, prompt=False), wanted
    )
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    assert encoded.counts["untrained"] == (not trained_at(labels))


READS = (
    *("{{ messages }}", "{{ messages | tojson }}", "{{ messages == [] }}", "{{ messages ~ '' }}", "{{ messages[5] }}"),
    *("{{ messages[-1].role }}", "{{ messages[2].role }}", "{{ (messages + [1]) | length }}", "{{ messages | last }}"),
    *("{{ messages[1:] | length }}", "{{ messages[1:][1:][0].role }}", "{{ messages[:2] | length }}", "{{ self }}"),
    *("{% for other in messages %}{{ other.role }}{% endfor %}", "{% set messages = messages[1:] %}"),
    "{% if add_generation_prompt %}?{% endif %}",
)
READS_OF_LOOPS = (
    *(
        "{{ loop.last }}",
        "{{ loop.length }}",
        "{{ loop.nextitem is defined }}",
        "{{ loop.revindex }}",
        "{{ loop.first }}",
    ),
    *("{% if loop.index == 2 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}"),
    "{% if message.role == 'user' and loop.last %}?{% endif %}",
)


@pytest.mark.parametrize(
    "template",
    [
        *(read + LOOP + BODY + END + PROMPT for read in READS),
        *(LOOP + read + BODY + END + PROMPT for read in READS + READS_OF_LOOPS),
        "{% for message in messages if message.role != 'system' %}" + BODY + END + PROMPT,
    ],
)
@pytest.mark.parametrize("conversation", [DIALOGUE, [{"role": "system", "content": "s"}, *DIALOGUE]], ids=len)
def test_whatever_a_template_reads_of_messages_the_twin_finds_the_same(encoder_of, tokenizer, template, conversation):
    render = naive_chats.renderer(tokenizer, template)
    wanted = naive_chats.assistant_characters(render, conversation)
    if wanted is None:
        with pytest.raises(DocumentError):
            encode(encoder_of(template), conversation)
        return
    ids, labels, _ = encode(encoder_of(template), conversation)
    text = render(conversation, prompt=False)
    assert (ids, trained_at(labels)) == naive_chats.tokens_of_characters(tokenizer, text, wanted)


@pytest.mark.parametrize("template", MARKED.values(), ids=MARKED)
@given(conversation=conversations)
def test_marks_train_what_transformers_masks(encoder_of, tokenizer, template, conversation):
    given = tokenizer.apply_chat_template(
        conversation, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, labels, _ = encode(encoder_of(template), conversation)
    assert ids == given["input_ids"]
    assert [int(label != -100) for label in labels] == given["assistant_masks"]


# nothing is said by these of where in the text the marks stand, without another rendering
OUT_OF_PLACE = {
    "filtered": "{% filter trim %}" + MARKED["marked"] + "{% endfilter %}",
    "captured": "{% set text %}" + MARKED["marked"] + "{% endset %}{{ text }}",
    "in a macro": "{% macro say(message) %}<{{ message.role }}>{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}{% endgeneration %}{% endif %}{% endmacro %}" + LOOP + "{{ say(message) | trim }}" + END,
    "within marks": LOOP + "{% generation %}{% generation %}{{ message.content }}{% endgeneration %}{% endgeneration %}"
    + END,
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_marks_out_of_place_are_rendered_with_and_without(encoder_of, tokenizer, name):
    template = OUT_OF_PLACE[name]
    given = tokenizer.apply_chat_template(DIALOGUE, chat_template=template, tokenize=False)
    (ids,) = lists(encoder_of(template, "all").encode([{"messages": DIALOGUE}]).input_ids)
    assert ids == tokenizer(given, add_special_tokens=False)["input_ids"]
    if name not in ("captured", "in a macro"):
        with pytest.raises(DocumentError, match="so its place is not known"):
            encode(encoder_of(template), DIALOGUE)
        return
    found, labels, _ = encode(encoder_of(template), DIALOGUE)
    assert found == ids
    ending = "<|im_end|>\n" if name == "captured" else ""
    assert text_of(tokenizer, labels) == f"The quick fox{ending}42 dogs{ending}"


@pytest.mark.parametrize("character", ["\U000f5afb", "\U000f5afc", "\U000f5afd", "\U000f5afe", "\U000f5aff"])
@pytest.mark.parametrize(
    "template",
    [EXACT["chatml"], MARKED["marked"], TOOLS, EXACT["system in the first turn"]],
    ids=["ends", "marks", "cases", "start"],
)
def test_a_chat_may_hold_the_characters_that_tell_places(encoder_of, tokenizer, template, character):
    conversation = [{"role": "user", "content": f"fox{character}"}, *DIALOGUE[1:]]
    text = tokenizer.apply_chat_template(conversation, chat_template=template, tokenize=False)
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert lists(encoder_of(template, "all").encode([{"messages": conversation}]).input_ids)[0] == wanted
    if template == MARKED["marked"] and character > "\U000f5afd":
        with pytest.raises(DocumentError, match=r"a text holds U\+F5AF[EF], a character for private use"):
            encode(encoder_of(template), conversation)
        return
    plain = [{"role": "user", "content": "fox"}, *DIALOGUE[1:]]
    ids, labels, _ = encode(encoder_of(template), conversation)
    assert ids == wanted
    assert [label for label in labels if label >= 0] == [
        label for label in encode(encoder_of(template), plain)[1] if label >= 0
    ]


@pytest.mark.parametrize(
    "named",
    [
        "{# {% generation %} marks nothing here #}",
        "{#- {%- generation -%}{%- endgeneration -%} -#}",
        "{% raw %}{% generation %}{% endraw %}",
        "{{ '{% generation %}' }}",
    ],
)
def test_a_tag_that_is_only_named_marks_nothing(encoder_of, tokenizer, named):
    ids, labels, _ = encode(encoder_of(named + EXACT["chatml"]), DIALOGUE)
    shown = "{% generation %}" if "#" not in named else ""
    given = tokenizer.apply_chat_template(DIALOGUE, chat_template=EXACT["chatml"], tokenize=False)
    assert ids == tokenizer(shown + given, add_special_tokens=False)["input_ids"]
    assert text_of(tokenizer, labels) == "The quick fox<|im_end|>\n42 dogs<|im_end|>\n"


@pytest.mark.parametrize(
    "named", ["{# {% generation %} ... {% endgeneration %} #}", "{% set x = '{% generation %}' %}"]
)
def test_marks_beside_a_comment_or_a_text_that_names_them_are_taken(encoder_of, named):
    assert (
        encode(encoder_of(named + MARKED["marked"]), DIALOGUE)[:2] == encode(encoder_of(MARKED["marked"]), DIALOGUE)[:2]
    )


@pytest.mark.parametrize("template", REWRITING.values(), ids=REWRITING)
def test_a_template_that_rewrites_earlier_turns_is_refused(encoder_of, template):
    with pytest.raises(DocumentError, match=r"message 1 \(assistant\) differently .*choose .*--chat-template "):
        encoder_of(template).encode([{"messages": DIALOGUE}])
    assert encoder_of(template, "all").encode([{"messages": DIALOGUE}]).labels is None


@pytest.mark.parametrize("conversation", [QUESTION, DIALOGUE])
def test_a_template_that_always_ends_in_a_generation_prompt_is_refused(encoder_of, conversation):
    with pytest.raises(DocumentError, match=r"generation prompt|differently"):
        encode(encoder_of(ALWAYS_PROMPTING), conversation)


def test_marks_around_nothing_are_refused(encoder_of):
    around_users = MARKED["marked"].replace("== 'assistant'", "== 'user'")
    encode(encoder_of(around_users), QUESTION)
    around_nothing = LOOP + "{{ message.content }}{% generation %}{% endgeneration %}" + END
    with pytest.raises(DocumentError, match="marks hold nothing"):
        encode(encoder_of(around_nothing), QUESTION)


@pytest.mark.parametrize(
    "template",
    [
        "{% set all %}" + MARKED["marked"] + "{% endset %}{{ all | length }}",
        "{% generation %}" + MARKED["marked"] + "{% endgeneration %}",
        "{% set all %}" + MARKED["marked"] + "{% endset %}{{ all | reverse }}",
    ],
)
def test_marks_whose_place_is_not_known_are_refused(encoder_of, template):
    with pytest.raises(DocumentError, match="generation %} is changed or moved"):
        encode(encoder_of(template), QUESTION)


def test_what_the_template_raises_is_told_with_the_document_and_the_turn(encoder_of):
    strict = EXACT["chatml"] + "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    fine, wrong = {"messages": QUESTION}, {"messages": [{"role": "system", "content": "x"}, *QUESTION]}
    with pytest.raises(DocumentError, match=r"the chat template does not render it: TemplateError no system$"):
        encoder_of(strict).encode([fine, wrong, fine])


def test_a_token_that_reaches_across_the_start_is_trained_and_counted(encoder_of, tokenizer):
    both = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "  and"}]
    ids, labels, encoded = encode(encoder_of(LOOP + "{{ message.content }} " + END), both)
    (spaces,) = [at for at, token in enumerate(ids) if tokenizer.decode([token]) == "  "]  # one is the user's
    assert encoded.counts["straddling"] == 1
    assert trained_at(labels) == list(range(spaces, len(ids)))


def test_sharegpt_and_messages_are_the_same_chat(tokenizer_path):
    options = text_options(tokenizer=tokenizer_path, chat_template=EXACT["chatml"])
    names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}
    chat = [{"role": "system", "content": "s"}, *DIALOGUE, {"role": "tool", "content": "t"}]
    share = [{"from": names[message["role"]], "value": message["content"]} for message in chat]
    one = Encoder(options, recognize({"messages": chat}, "x")).encode([{"messages": chat}])
    other = Encoder(options, recognize({"conversations": share}, "x")).encode([{"conversations": share}])
    assert one == other


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        (None, "'messages' is null where a list of messages is expected"),
        ("hi", "'messages' is a str"),
        (["hi"], "'messages' message 0 is a str where an object with a role is expected"),
        ([{"content": "hi"}], r"message 0 has no 'role' \(found: content\)"),
        ([{"role": "human", "content": "hi"}], "message 0 has the role 'human', which is none of system, "),
        ([{"from": "narrator", "value": "hi"}], "message 0 has the role 'narrator', which is none of human, "),
        ([{"role": "user", "content": 5}], "message 0 has a content of type int where text is expected"),
        ([{"role": "user", "content": "\ud800"}], r"message 0 has a lone surrogate U\+D800 at character 0"),
    ],
)
def test_a_wrong_conversation_is_named(encoder_of, conversation, words):
    with pytest.raises(DocumentError, match=words) as caught:
        encoder_of(EXACT["chatml"]).encode([{"messages": QUESTION}, {"messages": conversation}])
    assert caught.value.row == 1


def test_a_conversation_without_messages_has_no_tokens(encoder_of):
    encoded = encoder_of(EXACT["chatml"]).encode([{"messages": []}, {"messages": QUESTION}])
    assert [len(ids) > 0 for ids in lists(encoded.input_ids)] == [False, True]
    assert encoded.counts["untrained"] == 0


def test_tools_and_template_arguments_reach_the_template(tokenizer_path):
    template = EXACT["chatml"] + "{{ tools | tojson if tools }}{{ mood }}"
    record = {"messages": QUESTION, "tools": json.dumps([{"name": "f"}]), "chat_template_kwargs": {"mood": "calm"}}
    options = text_options(tokenizer=tokenizer_path, chat_template=template, train_on="all")
    encoder = Encoder(options, recognize(record, "x"))
    text = text_of(auto_tokenizer(tokenizer_path), lists(encoder.encode([record]).input_ids)[0])
    assert text.endswith('[{"name": "f"}]calm')


def test_messages_are_printed_as_in_transformers(encoder_of, tokenizer):
    chat = [{"role": role, "content": "The quick brown fox " * 4} for role in ("user", "assistant")]
    for printed in ("{{ messages | pprint }}", "{{ {'all': messages} | pprint }}", "{{ messages }}"):
        template = printed + EXACT["chatml"]
        (ids,) = lists(encoder_of(template, "all").encode([{"messages": chat}]).input_ids)
        assert text_of(tokenizer, ids) == tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)


@pytest.mark.parametrize("named", ["role", "from"])
def test_a_function_call_is_a_call_of_the_assistant_and_an_observation_the_answer_of_the_tool(named):
    content = "content" if named == "role" else "value"
    call = {"name": "add", "arguments": {"a": 2, "b": 2}}
    chat = [
        {named: "function_call", content: json.dumps(call)},
        {named: "function_call", content: json.dumps([call, {"name": "now"}])},
        {named: "observation", content: "4"},
    ]
    tool_call = {"type": "function", "function": call}
    now = {"type": "function", "function": {"name": "now", "arguments": {}}}
    assert messages_of(chat, "messages") == [
        {"role": "assistant", "tool_calls": [tool_call]},
        {"role": "assistant", "tool_calls": [tool_call, now]},
        {"role": "tool", "content": "4"},
    ]
    for text, words in (
        ("{", "not valid JSON"),
        ("3", "names no function"),
        ('{"arguments": {}}', "names no function"),
    ):
        with pytest.raises(DocumentError, match=rf"'messages' message 0 is a function_call, .*{words}"):
            messages_of([{named: "function_call", content: text}], "messages")


@pytest.mark.parametrize(
    "deep",
    [
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{{ " + "[" * 300 + "]" * 300 + " }}",
        "{{ " + "not " * 2000 + "1 }}",
        "{% if true %}" * 150 + "{% endif %}" * 150,
        "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    ],
    ids=["parentheses", "lists", "not", "conditions", "loops"],
)
def test_a_template_that_is_nested_too_deeply_is_refused(encoder_of, deep):
    for template in (deep + EXACT["chatml"], deep + MARKED["marked"]):
        with pytest.raises(DocumentError, match=r"does not render it: TemplateError it is nested too deeply"):
            encode(encoder_of(template), DIALOGUE)
