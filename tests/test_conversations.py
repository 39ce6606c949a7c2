"""Conversations: system prompts beside them, and messages that are context only."""

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.options import ReadOptions
from packer.output.job import Job
from packer.pipeline.tokenizing import tokenize
from packer.sources.documents import DocumentError
from tests.helpers.chat_encoders import encoder_of, tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import (
    BODY,
    END,
    EXACT,
    LOOP,
    MARKED,
    PROMPT,
    REWRITING,
    lists,
)
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CHATML = EXACT["chatml"]
CHAT = [
    {"role": "user", "content": "fox?"},
    {"role": "assistant", "content": "The quick fox"},
    {"role": "user", "content": "dogs?"},
    {"role": "assistant", "content": "42 dogs"},
]
ANSWERS = {1: "The quick fox<|im_end|>\n", 3: "42 dogs<|im_end|>\n"}
LOOKS_AHEAD = LOOP + BODY + "{% if loop.last %}{% endif %}" + END + PROMPT
"""Each beginning is rendered by itself."""


@pytest.fixture(scope="module")
def encode(encoder_of):
    def encoded(record, template=CHATML, train_on=None, *, exchanges=False):
        return encoder_of(template, train_on, columns=record, exchanges=exchanges).encode([record])

    return encoded


def trained(tokenizer, encoded):
    """The text of each run of tokens that are trained."""
    runs, (labels,) = [[]], lists(encoded.labels)
    for label in labels:
        if label >= 0:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def saying(chat, **said):
    """A chat in which message N says what m{N} is."""
    return [{**message, **said.get(f"m{number}", {})} for number, message in enumerate(chat)]


# ---- messages that are context only ----

EACH_WAY = {
    "one rendering": CHATML,
    "one for each beginning": LOOKS_AHEAD,
    "marks": MARKED["marked"],
    "marks, trimming white space": MARKED["marked, trimming white space"],
    "marks, looking ahead": MARKED["marked"].replace("{% endfor %}", "{% if loop.last %}{% endif %}{% endfor %}"),
}


@pytest.mark.parametrize("template", EACH_WAY.values(), ids=EACH_WAY)
@given(masks=st.lists(st.booleans(), min_size=5, max_size=5), roles=st.lists(st.booleans(), min_size=5, max_size=5))
def test_what_is_trained_is_what_is_trained_without_masks_less_the_masked(encode, template, masks, roles):
    named = zip(("fox", "dogs", "café", "42", "naïve"), roles, strict=True)
    chat = [{"role": "user", "content": "Q"}]
    chat += [{"role": "assistant" if answers else "user", "content": word} for word, answers in named]
    masked = [chat[0], *({**message, "train": not mask} for message, mask in zip(chat[1:], masks, strict=True))]
    masked = [message if message["role"] == "assistant" else {**message, "train": False} for message in masked]
    (wanted,), (found,) = (lists(encode({"messages": one}, template).labels) for one in (chat, masked))
    alone = []
    for turn, message in enumerate(masked):
        if message["role"] == "assistant" and message["train"]:
            only = [{**m, "train": at == turn} if m["role"] == "assistant" else m for at, m in enumerate(chat)]
            (labels,) = lists(encode({"messages": only}, template).labels)
            alone.append({at for at, label in enumerate(labels) if label >= 0})
    assert {at for at, label in enumerate(found) if label >= 0} == set().union(*alone)
    assert all(label in (-100, other) for label, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("template", EACH_WAY.values(), ids=EACH_WAY)
def test_a_chat_of_context_only_is_counted_as_untrained(encode, template):
    encoded = encode({"messages": saying(CHAT, m1={"weight": 0}, m3={"train": False})}, template)
    assert encoded.counts["untrained"] == 1


@pytest.mark.parametrize("template", EACH_WAY.values(), ids=EACH_WAY)
def test_what_says_that_it_is_trained_is_trained_as_ever(encode, template):
    said = {"m0": {"weight": 0.0}, "m1": {"weight": 1.0}, "m2": {"train": False}, "m3": {"train": True, "weight": 1}}
    assert encode({"messages": saying(CHAT, **said)}, template) == encode({"messages": CHAT}, template)


@pytest.mark.parametrize("name", ["think block in the last turn", "end of text behind the last turn"])
def test_a_template_that_rewrites_earlier_turns_serves_where_the_last_alone_is_trained(encode, tokenizer, name):
    with pytest.raises(DocumentError, match="differently if more messages follow"):
        encode({"messages": CHAT}, REWRITING[name])
    (run,) = trained(tokenizer, encode({"messages": saying(CHAT, m1={"weight": 0})}, REWRITING[name]))
    assert "42 dogs<|im_end|>\n" in run
    assert "fox" not in run


def test_marks_that_move_with_what_follows_and_a_masked_answer_are_refused(encode):
    chat = saying(CHAT, m1={"weight": 0}, m0={"weight": 0})
    with pytest.raises(DocumentError, match=r"message 1 \(assistant\) differently if more messages follow"):
        encode({"messages": chat}, MARKED["marked, rewriting earlier turns"])
    fine = encode({"messages": saying(CHAT, m0={"weight": 0})}, MARKED["marked, rewriting earlier turns"])
    assert fine.labels == encode({"messages": CHAT}, MARKED["marked, rewriting earlier turns"]).labels


LAST_ALONE = MARKED["marked"].replace("message.role == 'assistant'", "message.role == 'assistant' and loop.last")


@pytest.mark.parametrize("said", [{"weight": 1}, {"train": True}], ids=str)
def test_what_says_that_it_is_trained_and_is_outside_the_marks_is_refused(encode, said):
    with pytest.raises(
        DocumentError, match=r"message 1 \(assistant\) says that it is trained, and the chat template's"
    ):
        encode({"messages": saying(CHAT, m1=said)}, LAST_ALONE)
    plain = encode({"messages": CHAT}, LAST_ALONE)
    assert encode({"messages": saying(CHAT, m3=said)}, LAST_ALONE).labels == plain.labels


@pytest.mark.parametrize("mark", ["\U000f5afe", "\U000f5aff"])
def test_a_text_with_a_mark_of_packers_is_named(encode, tokenizer, mark):
    chat = [CHAT[0], {"role": "assistant", "content": f"quick{mark}fox"}]
    with pytest.raises(DocumentError, match=rf"a text holds U\+{ord(mark):X}, a character for private use"):
        encode({"messages": chat}, MARKED["marked"])
    assert mark in trained(tokenizer, encode({"messages": chat}))[0]


def test_marks_around_a_users_message_that_is_context_only_are_left_out(encode, tokenizer):
    around_users = MARKED["marked"].replace("== 'assistant'", "== 'user'")
    encoded = encode({"messages": saying(CHAT, m0={"weight": 0})}, around_users)
    assert trained(tokenizer, encoded) == ["dogs?<|im_end|>\n"]


@pytest.mark.parametrize("template", [CHATML, LOOKS_AHEAD, MARKED["marked"]], ids=["ends", "beginnings", "marks"])
@pytest.mark.parametrize("train_on", ["completion", "assistant"])
def test_messages_of_a_completion_may_be_context_only(encode, tokenizer, template, train_on):
    said = saying(
        [*CHAT, {"role": "assistant", "content": "naïve"}], m0={"weight": 0}, m1={"weight": 0}, m3={"weight": 0}
    )
    for first, wanted in ((1, True), (3, False), (4, False)):
        record = {"prompt": said[:first], "completion": said[first:]}
        header = "<|im_start|>user\ndogs?<|im_end|>\n"
        runs = "".join(trained(tokenizer, encode(record, template, train_on)))
        before = header if wanted and train_on == "completion" else ""
        assistant = "<|im_start|>assistant\n" if train_on == "completion" and first < 4 else ""
        assert runs == f"{before}{assistant}naïve<|im_end|>\n"


def test_a_masked_end_of_a_completion_need_not_be_told(encode, tokenizer):
    template = LOOP + BODY + "{% if loop.last and message.role == 'assistant' %}!{% endif %}" + END
    record = {"prompt": CHAT[:1], "completion": CHAT[1:]}
    with pytest.raises(DocumentError, match="renders the last turn differently"):
        encode(record, template, "completion")
    record["completion"] = saying(CHAT[1:], m2={"train": False})
    wanted = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in CHAT[1:3])
    assert trained(tokenizer, encode(record, template, "completion")) == [wanted]


def test_exchanges_begin_where_they_begin_without_masks(encode):
    for template in (CHATML, LOOKS_AHEAD):
        plain, masked = (
            encode({"messages": chat}, template, exchanges=True) for chat in (CHAT, saying(CHAT, m1={"weight": 0}))
        )
        assert plain.extra == masked.extra


@pytest.mark.parametrize(
    ("said", "train_on", "words"),
    [
        (
            {"m1": {"weight": -0.5}},
            None,
            "'messages' message 1 has weight '-0.5', where a finite number from 0 on is expected",
        ),
        ({"m3": {"weight": "0"}}, None, "message 3 has weight '0', where a finite number"),
        ({"m0": {"weight": [0]}}, None, r"message 0 has weight '\[0\]', where a finite number"),
        ({"m1": {"weight": 0.5}}, "all", "message 1 has weight 0.5, and --train-on all trains every message:"),
        ({"m1": {"train": "false"}}, None, "message 1 has train 'false', where 0 or 1, or false or true"),
        ({"m1": {"train": True, "weight": 0}}, None, "message 1 has weight 0 and train true; leave one of them out"),
        (
            {"m2": {"train": True}},
            None,
            "message 2 has train true, and --train-on assistant does not train .* role user",
        ),
        ({"m0": {"weight": 1}}, None, "message 0 has weight 1, and --train-on assistant does not train .* role user"),
        ({"m1": {"weight": 0}}, "all", "message 1 has weight 0, and --train-on all trains every message: leave"),
        ({"m0": {"train": False}}, "all", "message 0 has train false, and --train-on all trains every message: leave"),
    ],
)
def test_a_wrong_weight_is_named(encode, said, train_on, words):
    with pytest.raises(DocumentError, match=words) as raised:
        encode({"messages": saying(CHAT, **said)}, CHATML, train_on)
    assert "\n" not in str(raised.value)


EMPTY = {"role": "assistant", "content": None}


@pytest.mark.parametrize("said", [{}, {"name": "me"}, {"tool_calls": None}, {"tool_calls": []}, {"weight": 1}])
def test_an_answer_without_content_is_not_trained_as_an_empty_one(encode, said):
    for train_on in (None, "all"):
        with pytest.raises(DocumentError, match="'messages' message 3 is an answer without content: null"):
            encode({"messages": [*CHAT[:3], {**EMPTY, **said}]}, CHATML, train_on)


def test_answers_without_content_are_context_or_say_something_else(encode):
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    for said in ({"content": ""}, {"tool_calls": [call]}, {"reasoning_content": "hm"}, {"weight": 0}):
        encode({"messages": [*CHAT[:3], {**EMPTY, **said}]}, CHATML)
    encode({"prompt": [CHAT[0], EMPTY, CHAT[2]], "completion": CHAT[3:]}, CHATML)
    encode({"messages": [{"role": "user", "content": None}, CHAT[1]]}, CHATML)


def test_a_prompt_is_not_trained_because_it_says_so(encode):
    record = {"prompt": saying(CHAT[:3], m1={"weight": 1}), "completion": CHAT[3:]}
    for train_on in ("completion", "assistant"):
        with pytest.raises(
            DocumentError, match=f"'prompt' message 1 has weight 1, and --train-on {train_on} does not train"
        ):
            encode(record, CHATML, train_on)
    assert encode(record, CHATML, "all").labels is None


# ---- a system prompt beside the conversation ----

SHARE = [{"from": "human", "value": "fox?"}, {"from": "gpt", "value": "The quick fox", "weight": 1.0}]


def test_a_system_prompt_beside_a_conversation_is_its_first_message(encode):
    system = {"role": "system", "content": "Be brief."}
    for template in (CHATML, LOOKS_AHEAD, MARKED["marked"]):
        wanted = encode({"messages": [system, *CHAT[:2]]}, template)
        for record in (
            {"conversations": SHARE, "system": "Be brief."},
            {"messages": CHAT[:2], "system": "Be brief."},
            {"messages": CHAT[:2], "system": None, "system_prompt": "Be brief."},
            {"conversations": [{"from": "system", "value": "Be brief."}, *SHARE], "system": "Be brief."},
            {"conversations": [{"from": "system", "value": "Be brief."}, *SHARE], "system": ""},
        ):
            assert encode(record, template) == wanted


def test_a_masked_answer_behind_a_system_prompt_is_the_right_one(encode, tokenizer):
    for template in (CHATML, LOOKS_AHEAD):
        encoded = encode({"messages": saying(CHAT, m1={"weight": 0}), "system": "Be brief."}, template)
        assert trained(tokenizer, encoded) == [ANSWERS[3]]
    record = {"prompt": CHAT[:1], "completion": CHAT[1:2], "system": "Be brief."}
    assert trained(tokenizer, encode(record)) == [ANSWERS[1]]


@pytest.mark.parametrize("system", ["", None])
def test_no_system_prompt_is_none(encode, system):
    assert encode({"messages": CHAT, "system": system}) == encode({"messages": CHAT})
    assert lists(encode({"messages": [], "system": "Be brief."}).input_ids) == [[]]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"conversations": SHARE, "system": 5}, "'system' is a int where a string is expected"),
        ({"conversations": SHARE, "system": ["x"]}, "'system' is a list where a string is expected"),
        ({"conversations": SHARE, "system": "a", "system_prompt": "b"}, "'system' and 'system_prompt' hold two system"),
        ({"conversations": SHARE, "system": "\ud800"}, r"'system' has a lone surrogate U\+D800 at character 0"),
        (
            {"conversations": [{"from": "system", "value": "a"}, *SHARE], "system": "b"},
            "begins with a system message, and 'system' holds another; keep one of them",
        ),
    ],
)
def test_a_wrong_system_prompt_is_named(encode, record, words):
    with pytest.raises(DocumentError, match=words):
        encode(record)


# ---- chats that begin with the assistant ----

NEEDS_ONE = "{% if messages[0].role == 'system' %}{% endif %}" + CHATML
BEGINNING = [{"role": "assistant", "content": "Zoë"}, *CHAT]
OTHERWISE = "{% if not messages %}<s>{% endif %}" + CHATML
NEEDS_A_QUESTION = (
    "{% if 'user' not in messages | map(attribute='role') %}{{ raise_exception('no question') }}{% endif %}" + CHATML
)


@pytest.mark.parametrize("template", [NEEDS_ONE, OTHERWISE, NEEDS_A_QUESTION])
def test_a_chat_that_begins_with_the_assistant_is_refused_with_a_remedy(encode, tokenizer, template):
    words = (
        r"the chat begins with message 0 \(assistant\), and without a message before it .*"
        r"begin the chat with another message, give this one weight 0, or choose (a different )?--chat-template"
    )
    for chat in (BEGINNING, BEGINNING[:2]):
        with pytest.raises(DocumentError, match=words):
            encode({"messages": chat}, template)
    with pytest.raises(DocumentError, match=words):
        encode({"prompt": [], "completion": BEGINNING}, template)
    masked = encode({"messages": saying(BEGINNING, m0={"weight": 0})}, template)
    assert trained(tokenizer, masked) == [*ANSWERS.values()]
    behind = encode({"messages": [{"role": "user", "content": "Q"}, *BEGINNING]}, template)
    assert trained(tokenizer, behind) == ["Zoë<|im_end|>\n", *ANSWERS.values()]


def test_a_template_that_needs_no_message_before_trains_the_first(encode, tokenizer):
    assert trained(tokenizer, encode({"messages": BEGINNING})) == ["Zoë<|im_end|>\n", *ANSWERS.values()]


# ---- in files ----


def test_weights_and_system_prompts_reach_the_rows_from_every_format(tmp_path, tokenizer_path, tokenizer):
    share = [
        {"from": "human", "value": "fox?", "weight": 0.0},
        {"from": "gpt", "value": "The quick fox", "weight": 0.0},
        {"from": "human", "value": "dogs?", "weight": None},
        {"from": "gpt", "value": "42 dogs", "weight": 1.0},
    ]
    records = [{"conversations": share, "system": "Be brief."}, {"conversations": share[2:], "system": None}]
    write_lines(tmp_path / "rows.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    datasets.Dataset.from_list(records).save_to_disk(str(tmp_path / "saved"))
    outputs = []
    for name in ("rows.jsonl", "rows.parquet", "saved"):
        options = ReadOptions(tokenizer=tokenizer_path)
        job = Job(output=tmp_path / f"{name}-kept", sync=False)
        kept = tokenize(tmp_path / name, options=options, job=job).output
        rows = datasets.load_from_disk(str(kept))
        outputs.append([(row["input_ids"], row["labels"]) for row in rows])
        for row in rows:
            assert tokenizer.decode([label for label in row["labels"] if label >= 0]) == ANSWERS[3]
        assert tokenizer.decode(rows[0]["input_ids"]).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
        packed = packer.pack(tmp_path / name, tmp_path / f"{name}-packed", max_len=256, tokenizer=tokenizer_path)
        assert list(packer.verify(tmp_path / f"{name}-packed", tmp_path / name, tokenizer=tokenizer_path)) == []
        (row,) = packer.load(tmp_path / f"{name}-packed")
        assert tokenizer.decode([label for label in row["labels"] if label >= 0]) == ANSWERS[3] * 2
        assert packed.rows == 1
    assert outputs[0] == outputs[1] == outputs[2]
