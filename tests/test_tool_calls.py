"""Calls of tools: whatever form their arguments have, a template writes them as what they are, or a warning says so."""

import json
import logging

import pytest

import packer
from packer.errors import PackerError
from packer.sources.meanings import CALLS
from tests.helpers.chat_templates import END, EXACT, LOOP, MISTRAL, PROMPT, auto_tokenizer, save_tokenizer
from tests.helpers.pack import segments_in
from tests.helpers.packed_trees import answers_in
from tests.helpers.writing import write_as, write_lines

pytest.importorskip("transformers")

QUESTION, RESULT = {"role": "user", "content": "fox?"}, {"role": "tool", "content": "42", "tool_call_id": "abcdefghi"}


def template(arguments, *, content="{{ message.content }}"):
    """ChatML with calls, given what writes the arguments of each."""
    call = "{% for call in message.tool_calls or [] %}[{{ call.function.name }} " + arguments + "]{% endfor %}"
    return LOOP + "<|im_start|>{{ message.role }}\n" + content + call + "<|im_end|>\n" + END + PROMPT


ARGUMENTS = "call.function.arguments"
WALKING = f"{{% for name, value in {ARGUMENTS} | items %}}<{{{{ name }}}}>{{{{ value }}}}{{% endfor %}}"
TEMPLATES = {
    "writes JSON": (template(f"{{{{ {ARGUMENTS} | tojson }}}}"), '{"city": "Zoë"}', "{}"),
    "writes JSON without spaces": (
        template(f"{{{{ {ARGUMENTS} | tojson(separators=(',', ':')) }}}}"),
        '{"city":"Zoë"}',
        "{}",
    ),
    "walks through them": (template(WALKING), "<city>Zoë", ""),
    "if they are objects": (template(f"{{% if {ARGUMENTS} is mapping %}}{WALKING}{{% endif %}}"), "<city>Zoë", ""),
    "takes text": (template(f"{{{{ '' + {ARGUMENTS} }}}}"), '{"city": "Zoë"}', "{}"),
    "writes them as they are": (template(f"{{{{ {ARGUMENTS} }}}}"), '{"city": "Zoë"}', "{}"),
    "takes both": (
        template(f"{{{{ {ARGUMENTS} if {ARGUMENTS} is string else {ARGUMENTS} | tojson }}}}"),
        '{"city": "Zoë"}',
        "{}",
    ),
    "needs a content": (
        template(f"{{{{ {ARGUMENTS} | tojson }}}}", content="{{ message.content + '' }}"),
        '{"city": "Zoë"}',
        "{}",
    ),
}


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), template=EXACT["chatml"])


@pytest.fixture
def texts_of(tmp_path, tokenizer_path, caplog):
    """Trained text of each document of a source, and the warnings."""
    decode = auto_tokenizer(tokenizer_path).decode

    def packed(source, template):
        with caplog.at_level(logging.WARNING, logger="packer"):
            caplog.clear()
            packer.pack(
                source,
                tmp_path / "out",
                max_len=256,
                tokenizer=tokenizer_path,
                chat_template=template,
                sync=False,
                overwrite=True,
            )
        texts = [
            decode([label for label in labels if label >= 0])
            for _, _, _, labels in sorted(segments_in(packer.load(tmp_path / "out")))
        ]
        return texts, [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    return packed


def calling(arguments, *, listed=list, **more):
    """A chat with one call; its arguments may be left out (...)."""
    function = {"name": "look", **({} if arguments is ... else {"arguments": arguments})}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    answer = {"role": "assistant", CALLS: listed([call]), **more}
    return {"messages": [QUESTION, answer, RESULT, {"role": "assistant", "content": "dogs"}]}


FORMS = {"object": {"city": "Zoë"}, "JSON": '{"city": "Zoë"}'}
EMPTY = {"object": {}, "JSON": "{}", "null": None, "missing": ..., "no text": ""}


@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_are_written_once_whatever_their_form(tmp_path, texts_of, name):
    source, arguments, empty = TEMPLATES[name]
    for form in FORMS.values():
        for content in ({"content": ""}, {"content": None}, {}):
            write_lines(tmp_path / "rows.jsonl", [calling(form, **content)])
            texts, warnings = texts_of(tmp_path / "rows.jsonl", source)
            assert texts == [f"[look {arguments}]<|im_end|>\ndogs<|im_end|>\n"]
            assert not warnings
    write_lines(tmp_path / "rows.jsonl", [calling(form, content="") for form in EMPTY.values()])
    texts, warnings = texts_of(tmp_path / "rows.jsonl", source)
    assert texts == [f"[look {empty}]<|im_end|>\ndogs<|im_end|>\n"] * len(EMPTY)


@pytest.mark.parametrize("written", ["rows.jsonl", "rows.parquet", "rows.arrow", "dataset", "table"])
def test_calls_may_be_json_in_every_format(tmp_path, texts_of, written):
    source, arguments, _ = TEMPLATES["writes JSON"]
    each = (json.dumps, lambda calls: json.dumps(calls[0]), lambda calls: [json.dumps(call) for call in calls], list)
    for listed in each:
        rows = write_as(tmp_path / written, [calling(FORMS["JSON"], listed=listed, content="")] * 2)
        assert texts_of(rows, source) == ([f"[look {arguments}]<|im_end|>\ndogs<|im_end|>\n"] * 2, [])


def test_no_calls_may_be_written_in_any_way(tmp_path, texts_of):
    for none in ("", "[]", "null", None, []):
        answer = {"role": "assistant", "content": "dogs", CALLS: none}
        write_lines(tmp_path / "rows.jsonl", [{"messages": [QUESTION, answer]}])
        assert texts_of(tmp_path / "rows.jsonl", TEMPLATES["writes JSON"][0]) == (["dogs<|im_end|>\n"], [])


WRONG = {
    "message 1 (assistant) is not valid JSON": calling("{city: Zoë}", content=""),
    "'arguments' of a call in message 1 (assistant) is no object: ['Zoë']": calling('["Zoë"]', content=""),
    "'tool_calls' of 'messages' message 1 is not valid JSON": calling({}, listed=lambda calls: "look(", content=""),
    "'tool_calls' of 'messages' message 1 names no functions: write an object for each call": calling(
        {}, listed=lambda calls: [1], content=""
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_calls_that_are_wrong_are_named(tmp_path, texts_of, words):
    write_lines(tmp_path / "rows.jsonl", [WRONG[words]])
    with pytest.raises(PackerError) as raised:
        texts_of(tmp_path / "rows.jsonl", TEMPLATES["writes JSON"][0])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("source", [EXACT["chatml"], template("{{ call.function.arguments | string | tojson }}")])
def test_a_template_that_writes_no_calls_is_warned_of_once(tmp_path, texts_of, source):
    plain = {"messages": [QUESTION, {"role": "assistant", "content": "dogs"}]}
    write_lines(tmp_path / "rows.jsonl", [calling({"city": "Zoë"}, content=""), plain, calling("", content="")])
    _, (warning,) = texts_of(tmp_path / "rows.jsonl", source)
    assert warning.startswith("2 chats have calls of tools that the chat template does not write, or not as they are: ")
    write_lines(tmp_path / "plain.jsonl", [plain])
    assert not texts_of(tmp_path / "plain.jsonl", source)[1]


def test_a_template_of_mistral_writes_json_once(tmp_path, texts_of):
    found = []
    for form in FORMS.values():
        write_lines(tmp_path / "rows.jsonl", [calling(form)])
        found.append(texts_of(tmp_path / "rows.jsonl", MISTRAL))
    assert found[0] == found[1]
    assert '"arguments": {"city": "Zo' in found[0][0][0]


def test_the_built_in_template_writes_arguments_in_json_as_they_are(tmp_path, texts_of):
    write_lines(tmp_path / "rows.jsonl", [calling('{"city":1}'), calling({"city": 1}), calling("")])
    texts, _ = texts_of(tmp_path / "rows.jsonl", "qwen3")
    for text, arguments in zip(texts, ('{"city":1}', '{"city": 1}', "{}"), strict=True):
        assert f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call><|im_end|>\n' in text


# ---- preference pairs ----


def test_pairs_take_null_contents_and_the_template_that_chats_take(shared_data, tmp_path):
    tokenizer, answers = str(shared_data / "tokenizers" / "qwen3"), ("The fox", "42 dogs")

    def packed(records, **options):
        source = write_lines(tmp_path / "rows.jsonl", records)
        out = tmp_path / "out"
        packer.pack(source, out, max_len=512, tokenizer=tokenizer, sync=False, overwrite=True, **options)
        return out

    earlier = [*calling({"city": "Zoë"}, content=None)["messages"], QUESTION]
    chats = [[*earlier, {"role": "assistant", "content": answer}] for answer in answers]
    wanted = sorted(
        tokens for _, _, tokens, _ in segments_in(packer.load(packed([{"messages": chat} for chat in chats])))
    )
    sides = dict(zip(("chosen", "rejected"), chats, strict=True))
    prompt = {"prompt": earlier, **{side: chat[-1:] for side, chat in sides.items()}}
    for pair in (sides, prompt):
        assert sorted(tokens for _, tokens, _ in answers_in(packed([pair], pairs=True))) == wanted

    empty = {"role": "assistant", "content": None}
    packed([{side: [QUESTION, empty, QUESTION, *chat[-1:]] for side, chat in sides.items()}], pairs=True)
    with pytest.raises(PackerError, match="'chosen' message 1 is an answer without content"):
        packed([{**sides, "chosen": [QUESTION, empty]}], pairs=True)
