"""Messages, parts and spans say whether they are trained: used exactly, or refused by name.

What has to be trained is written down by hand: characters of a chat in ChatML, and the tokens that hold one of them.
"""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.sources.meanings import DESIRABLE, MARKS, SPANS
from tests.helpers.chat_encoders import encoder_of, tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import (
    BODY,
    END,
    EXACT,
    LOOP,
    MARKED,
    PROMPT,
    lists,
)
from tests.helpers.commands import refused
from tests.helpers.pack import segments_in
from tests.helpers.writing import write_as, write_lines

pytest.importorskip("transformers")

NAMES = {
    **dict.fromkeys(("weight", "train", "loss", "loss_scale", "loss_mask", "step_loss_mask", "trainable"), True),
    "masked": False,
}
"""Names of marks, and the value that means trained."""
VALUES = {"bool": (True, False), "int": (1, 0), "float": (1.0, 0.0)}
FORMATS = ("rows.jsonl", "rows.parquet", "rows.arrow", "dataset", "table")
QUESTION = {"role": "user", "content": "fox?"}
PARTS = LOOP + BODY.replace("{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")
PARTS = "{% set ns = namespace() %}" + PARTS + END + PROMPT
TEMPLATES = {
    "text": EXACT["chatml"],
    "text, rendered beginning by beginning": LOOP + BODY + "{% if loop.last %}{% endif %}" + END + PROMPT,
    "trimmed": EXACT["trims"],
    "tags": MARKED["marked"],
    "parts": PARTS,
}


@pytest.fixture(scope="module")
def labels_of(encoder_of):
    def encoded(template, train_on=None, **record):
        batch = encoder_of(template, train_on, columns=record).encode([record])
        return [*zip(lists(batch.input_ids), lists(batch.labels), strict=True)]

    return encoded


def expected(tokenizer, pieces):
    """Tokens and labels of a text in pieces, each with whether it is trained; a token with a trained character is."""
    text, trained = "".join(text for text, _ in pieces), [is_trained for text, is_trained in pieces for _ in text]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, places = encoded["input_ids"], encoded["offset_mapping"]
    return ids, [token if any(trained[a:b]) else -100 for token, (a, b) in zip(ids, places, strict=True)]


def chatml(*messages):
    """Pieces of a chat, given the role and the pieces of each message; the end of an answer belongs to it."""
    for role, *pieces in messages:
        yield f"<|im_start|>{role}\n", False
        yield from pieces
        yield "<|im_end|>\n", role == "assistant"


# ---- every name, value, place and format ----


def test_names_of_the_table_are_those_that_are_tested():
    assert set(MARKS["message"]) == set(MARKS["part"]) == set(NAMES)
    assert (SPANS, DESIRABLE) == ("train_detail", ("label", "kto_tag"))


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("kind", VALUES)
def test_every_mark_is_used_in_messages_and_parts_of_every_format(tmp_path, tokenizer_path, tokenizer, written, kind):
    records, wanted = [], []
    for name, trained in NAMES.items():
        for value in VALUES[kind]:
            is_trained = bool(value) == trained
            of_message = [QUESTION, {"role": "assistant", "content": "dogs", name: value}, QUESTION]
            records.append({"messages": [*of_message, {"role": "assistant", "content": "42"}], "parts": None})
            end = ("user", ("fox?", False)), ("assistant", ("42", True))
            pieces = [*chatml(("user", ("fox?", False)))]
            pieces += [
                (text, is_trained and text != "<|im_start|>assistant\n")
                for text, _ in chatml(("assistant", ("dogs", 1)))
            ]
            wanted.append(expected(tokenizer, [*pieces, *chatml(*end)]))
    source = write_as(tmp_path / written, [{"messages": record["messages"]} for record in records])
    assert packed(source, tmp_path / "messages", tokenizer_path) == wanted

    records, wanted = [], []
    for name, trained in NAMES.items():
        for value in VALUES[kind]:
            parts = [{"type": "text", "text": "The", name: value}, {"type": "text", "text": " quick fox"}]
            question = {"role": "user", "content": [{"type": "text", "text": "fox?"}]}
            records.append({"messages": [question, {"role": "assistant", "content": parts}]})
            answer = ("assistant", ("The", bool(value) == trained), (" quick fox", True))
            wanted.append(expected(tokenizer, [*chatml(("user", ("fox?", False)), answer)]))
    assert packed(write_as(tmp_path / written, records), tmp_path / "parts", tokenizer_path) == wanted


def packed(source, out, tokenizer, **options):
    """Tokens and labels of every document of a pack."""
    packer.pack(source, out, max_len=128, tokenizer=tokenizer, sync=False, overwrite=True, **options)
    return [(tokens, labels) for _, _, tokens, labels in sorted(segments_in(packer.load(out)))]


@pytest.mark.parametrize("written", FORMATS)
def test_spans_of_characters_are_used_in_every_format(tmp_path, tokenizer_path, tokenizer, written):
    spans = [{"begin_offset": 0, "end_offset": 2, "train": False}, {"begin_offset": 3, "end_offset": 8, "train": True}]
    messages = [
        {**QUESTION, "train_detail": None},
        {"role": "assistant", "content": "The quick fox", "train_detail": spans},
    ]
    answer = ("assistant", ("The", False), (" quick", True), (" fox", False))
    wanted = expected(tokenizer, [*chatml(("user", ("fox?", False)), answer)])
    source = write_as(tmp_path / written, [{"messages": messages}] * 3)
    assert packed(source, tmp_path / "out", tokenizer_path) == [wanted] * 3


# ---- parts and spans, by hand ----

WORDS = st.text("Thequicks foxdgZ42,;\n<|>{}é中", min_size=1, max_size=12)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@given(answers=st.lists(st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=5), min_size=1, max_size=3))
def test_parts_without_training_are_left_out_to_the_character(labels_of, tokenizer, template, answers):
    answers = [[("x", True), *pieces, ("x", True)] for pieces in answers]  # so that no template strips white space
    messages, rendered = [], []
    for pieces in answers:
        parts = [{"type": "text", "text": text, **({} if trained else {"weight": 0})} for text, trained in pieces]
        listed = [{"type": "text", "text": "fox?"}]
        messages += [{"role": "user", "content": listed}, {"role": "assistant", "content": parts}]
        rendered += [("user", ("fox?", False)), ("assistant", *pieces)]
    assert labels_of(template, messages=messages) == [expected(tokenizer, [*chatml(*rendered)])]


@pytest.mark.parametrize("template", [TEMPLATES["text"], TEMPLATES["tags"]], ids=["text", "tags"])
@given(
    content=st.text("Thequick foxdgs42,;\n<|>é", min_size=1, max_size=30),
    cuts=st.sets(st.integers(0, 29)),
    data=st.data(),
)
def test_characters_outside_spans_and_in_untrained_ones_are_left_out(
    labels_of, tokenizer, template, content, cuts, data
):
    bounds = [*sorted(cut for cut in cuts if cut < len(content)), len(content)]
    trained, spans = [False] * len(content), []
    for begin, end in pairwise(bounds):
        kind = data.draw(st.sampled_from([True, False, None]))
        if kind is not None:
            spans.append({"begin_offset": begin, "end_offset": end - 1, "train": kind})
            trained[begin:end] = [kind] * (end - begin)
    if not spans:
        return
    answer = {"role": "assistant", "content": content, "train_detail": spans}
    pieces = [("user", ("fox?", False)), ("assistant", *zip(content, trained, strict=True))]
    assert labels_of(template, messages=[QUESTION, answer]) == [expected(tokenizer, [*chatml(*pieces)])]


def test_axolotls_own_example_trains_what_its_page_says(labels_of, tokenizer):
    answer = "I'm doing very well, thank you!"
    spans = [
        {"begin_offset": a, "end_offset": b, "train": t} for a, b, t in ((0, 8, False), (9, 18, True), (19, 30, False))
    ]
    chat = [{"from": "human", "value": "fox?"}, {"from": "gpt", "value": answer, "train_detail": spans}]
    wanted = ("assistant", ("I'm doing", False), (" very well", True), (", thank you!", False))
    found = labels_of(TEMPLATES["text"], conversations=chat)
    assert found == [expected(tokenizer, [*chatml(("user", ("fox?", False)), wanted)])]


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_in_parts_is_joined_and_trained_as_its_parts_say(labels_of, tokenizer, name):
    thoughts = [{"type": "text", "text": "The fox", "train": False}, {"type": "text", "text": " and dogs"}]
    for parts, trained in ((thoughts, False), ([{"text": part["text"]} for part in thoughts], True)):
        found = labels_of("qwen3", messages=[QUESTION, {"role": "assistant", "content": "42", name: parts}])
        answer = ("<think>\n", True), ("The fox", trained), (" and dogs\n</think>\n\n42", True)
        assert found == [expected(tokenizer, [*chatml(("user", ("fox?", False)), ("assistant", *answer))])]


@pytest.mark.parametrize("train_on", ["completion", "assistant", "all"])
def test_parts_of_a_completion_are_left_out_and_those_of_its_prompt_are_context(labels_of, tokenizer, train_on):
    parts = [{"text": "The", "loss": False}, {"text": " fox"}]
    record = {"prompt": [{"role": "user", "content": parts}], "completion": [{"role": "assistant", "content": parts}]}
    if train_on == "all":
        with pytest.raises(Exception, match=r"part 0 of 'prompt' message 0 has loss false, and --train-on all trains"):
            labels_of(TEMPLATES["text"], train_on, **record)
        return
    rendered = chatml(("user", ("The fox", False)), ("assistant", ("The", False), (" fox", True)))
    assert labels_of(TEMPLATES["text"], train_on, **record) == [expected(tokenizer, [*rendered])]


def test_parts_are_left_out_of_each_answer_and_of_pairs(tmp_path, labels_of, tokenizer_path, tokenizer):
    parts = [{"text": "The", "weight": 0}, {"text": " fox", "weight": 1}]
    answer = {"role": "assistant", "content": parts}
    first = [*chatml(("user", ("fox?", False)), ("assistant", ("The", False), (" fox", True)))]
    found = labels_of(TEMPLATES["text"], "each-answer", messages=[QUESTION, answer, QUESTION, answer])
    context = [(text, False) for text, _ in first]
    assert found == [expected(tokenizer, first), expected(tokenizer, [*context, *first])]
    pair = {"prompt": [QUESTION], "chosen": [answer], "rejected": [{"role": "assistant", "content": [{"text": "42"}]}]}
    packer.pack(
        write_lines(tmp_path / "pairs.jsonl", [pair]),
        tmp_path / "out",
        max_len=64,
        pairs=True,
        tokenizer=tokenizer_path,
    )
    (row,) = packer.load(tmp_path / "out")
    trained = tokenizer.decode([label for label in row["labels"].tolist() if label >= 0])
    assert trained == " fox<|im_end|>\n42<|im_end|>\n"


STRIPS = EXACT["trims"]
TWICE = TEMPLATES["text"].replace("{{ message.content }}", "{{ message.content }}{{ message.content | upper }}")
LENGTH = TEMPLATES["text"].replace("{{ message.content }}", "{{ message.content }}{{ message.content | length }}")


@pytest.mark.parametrize(("template", "text"), [(STRIPS, "  The"), (LENGTH, "The")])
def test_parts_whose_place_is_not_known_are_refused(labels_of, template, text):
    answer = {"role": "assistant", "content": [{"text": text, "weight": 0}, {"text": " fox"}]}
    words = (
        r"a part of message 1 \(assistant\) is not trained like the rest, and the chat template .* moves it, .* weight"
    )
    with pytest.raises(Exception, match=words):
        labels_of(template, messages=[QUESTION, answer])
    labels_of(template, messages=[QUESTION, {**answer, "weight": 0}, QUESTION, {"role": "assistant", "content": "42"}])


def test_a_content_that_is_written_twice_is_left_out_twice(labels_of, tokenizer):
    answer = {"role": "assistant", "content": [{"text": "The", "weight": 0}, {"text": " fox"}]}
    pieces = ("The", False), (" fox", True), ("THE", False), (" FOX", True)
    rendered = [*chatml(("user", ("fox?FOX?", False)), ("assistant", *pieces))]
    assert labels_of(TWICE, messages=[QUESTION, answer]) == [expected(tokenizer, rendered)]


WEIGHTS = ("weight", "loss_scale")
PART = {"type": "text", "text": "The"}
SPAN = {"begin_offset": 0, "end_offset": 2, "train": True}
WRONG = [
    *(({name: value}, f"'messages' message 1 has {name} '{value}', where 0 or 1, or false or true, is expected")
      for name in NAMES if name not in WEIGHTS for value in (0.5, 2, -1, "true", "0")),
    *(({name: value}, f"'messages' message 1 has {name} '{value}', where a finite number from 0 on is expected")
      for name in WEIGHTS for value in (-1, -0.5, float("nan"), float("inf"), 1e39, "true", "0")),
    ({"loss": [1]}, "'messages' message 1 has loss '[1]', where"),
    ({"loss": 0, "trainable": True}, "'messages' message 1 has loss 0 and trainable true; leave one of them out"),
    ({"masked": True, "weight": 1}, "has weight 1 and masked true; leave one of them out"),
    ({"weight": 0.5, "loss_scale": 1}, "message 1 has weight 0.5 and loss_scale 1; leave one of them out"),
    ({"content": [{**PART, "weight": -1}]}, "part 0 of 'messages' message 1 has weight '-1', where a finite number"),
    ({"content": [{**PART, "weight": 0, "masked": 0}]}, "part 0 of 'messages' message 1 has weight 0 and masked 0;"),
    ({"content": [PART, {**PART, "loss": 1}], "weight": 0},
     "message 1 has weight 0, and part 1 of 'messages' message 1 has loss 1; leave one of them out"),
    ({"train_detail": [SPAN], "train": False},
     "message 1 has train false, and part 0 of 'messages' message 1 has train true; leave one of them out"),
    ({"train_detail": []}, "'messages' message 1 has train_detail '[]', where spans of a content that is a string"),
    ({"train_detail": [SPAN], "content": [PART]}, "where spans of a content that is a string are expected"),
    ({"train_detail": [{**SPAN, "end_offset": 3}]}, "begin_offset and end_offset, its last character, from 0 to 2"),
    ({"train_detail": [{**SPAN, "begin_offset": -1}]}, "its last character, from 0 to 2"),
    ({"train_detail": [SPAN, SPAN]}, "span 1 of train_detail in 'messages' message 1 is {'begin_offset': 0"),
    ({"train_detail": ["0-2"]}, "span 0 of train_detail in 'messages' message 1 is 0-2, where a mark"),
    ({"train_detail": [{**SPAN, "train": None}]}, "'train': None}, where a mark such as train is expected"),
    ({"train_detail": [{**SPAN, "train": 0.5}]}, "message 1 has train '0.5', where 0 or 1"),
    ({"reasoning_content": [{"type": "image"}]}, "part 0 of the reasoning of 'messages' message 1 has the type"),
    ({"reasoning_content": 5}, "the text of part 0 of the reasoning of 'messages' message 1 is a int where a string"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words"), WRONG, ids=[str(said)[:60] for said, _ in WRONG])
def test_marks_that_are_wrong_are_named(labels_of, said, words):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        labels_of(TEMPLATES["text"], messages=[QUESTION, {"role": "assistant", "content": "The", **said}])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_parts_of_questions_that_say_that_they_are_trained_are_refused(labels_of):
    for said in ({"content": [{**PART, "loss": True}]}, {"train_detail": [SPAN], "content": "The"}):
        with pytest.raises(
            Exception, match=r"has (loss|train) true, and --train-on assistant does not train a message"
        ):
            labels_of(TEMPLATES["text"], messages=[{**QUESTION, **said}, {"role": "assistant", "content": "42"}])


# ---- KTO ----


@pytest.mark.parametrize("written", [*FORMATS, "rows.csv"])
@pytest.mark.parametrize("name", ["label", "kto_tag"])
@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_a_rejected_completion_is_refused_by_name(tmp_path, tokenizer_path, written, name, kind):
    def source(*labels):
        texts = {"prompt": "fox?", "completion": " dogs"}
        chat = {"messages": [QUESTION, {"role": "assistant", "content": "dogs"}]}
        records = [{**(texts if kind == "completion" else chat), name: label} for label in labels]
        if written == "rows.csv":
            lines = [f"{','.join(records[0])}\n", *(f"{','.join(map(str, record.values()))}\n" for record in records)]
            (tmp_path / written).write_text("".join(lines))
            return tmp_path / written
        return write_as(tmp_path / written, records)

    if written == "rows.csv" and kind == "chat":
        pytest.skip("CSV holds no lists")
    with pytest.raises(
        PackerError, match=f"document 1 .*: '{name}' is false, which marks a rejected answer, .* filter"
    ):
        packed(source(True, False, True), tmp_path / "out", tokenizer_path)
    assert len(packed(source(True, True), tmp_path / "out", tokenizer_path)) == 2
    assert len(packed(source(1, 0, 2), tmp_path / "out", tokenizer_path)) == 3  # a class, not a verdict


def test_a_verdict_that_only_a_later_line_has_counts_and_one_that_is_the_text_does_not(tmp_path, tokenizer_path):
    record = {"prompt": "fox?", "completion": " dogs"}
    write_lines(tmp_path / "rows.jsonl", [record, {**record, "label": False}])
    line = refused(
        "pack", tmp_path / "rows.jsonl", "--tokenizer", tokenizer_path, "--max-len", 64, words=("line 2", "'label'")
    )
    assert "--on-error skip" in line
    write_lines(
        tmp_path / "claims.jsonl", [{"claim": "Dogs fly.", "label": "false"}, {"claim": "Fox.", "label": "true"}]
    )
    texts = packed(tmp_path / "claims.jsonl", tmp_path / "out", tokenizer_path, text_column="claim,label")
    assert len(texts) == 2
    write_lines(tmp_path / "texts.jsonl", [{"text": "fox", "label": False}])
    assert len(packed(tmp_path / "texts.jsonl", tmp_path / "out", tokenizer_path)) == 1
    packer.pack(
        tmp_path / "rows.jsonl", tmp_path / "out", max_len=64, tokenizer=tokenizer_path, on_error="skip", overwrite=True
    )
    assert json.loads((tmp_path / "out" / "rejected.jsonl").read_text())["document"] == 1
