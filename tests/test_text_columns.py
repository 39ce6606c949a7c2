"""Beside tokens made of text: columns that are kept, groups, and the places where exchanges begin."""

import csv
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.options import ReadOptions
from packer.output.job import Job
from packer.pipeline.tokenizing import tokenize
from packer.text.tokenizer import END_OF_TEXT, PROBES
from tests.helpers import naive_chats
from tests.helpers.chat_templates import END, EXACT, LOOP, REWRITING, auto_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.exchanges import naive_starts as starts_of_pieces
from tests.helpers.from_text import chats, pack, pairs, shards, texts, write_formats
from tests.helpers.from_text import small as small  # fixtures
from tests.helpers.from_text import tokenizer as tokenizer
from tests.helpers.pack import segments_in

pytest.importorskip("transformers")

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.helpers.writing import write_lines

CHATML = EXACT["chatml"]
NAMES = ["news", None, "code", "books", ""]


def with_columns(records):
    """The same records with a name, a number and a list each."""
    return [
        {**record, "source": NAMES[number % 5], "score": number / 7, "tags": [str(number)] * (number % 3 + 1)}
        for number, record in enumerate(records)
    ]


def values_of(out, columns):
    """By document the set of what its segments have in these columns."""
    found = {}
    for row in packer.load(out):
        for number, document in enumerate(row["doc_ids"]):
            if document >= 0:
                found.setdefault(int(document), set()).add(json.dumps([_plain(row[name][number]) for name in columns]))
    return found


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


# ---- columns that are kept ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("records", [chats, texts, pairs])
def test_every_segment_has_the_values_of_its_record_from_every_format(tmp_path, tokenizer, small, records):
    made = with_columns(records())
    keep = ["source", "score", "tags"]
    wanted = {number: {json.dumps([record[name] for name in keep])} for number, record in enumerate(made)}
    formats = write_formats(tmp_path, made)
    for name, source in formats.items():
        out = tmp_path / f"out-{name}"
        manifest = pack(source, out, tokenizer, max_len=16, keep=keep)
        assert values_of(out, keep) == wanted, name
    assert manifest.totals.documents_split > 5
    assert list(packer.verify(tmp_path / "out-jsonl", formats["jsonl"], tokenizer=tokenizer)) == []
    made[7]["score"] = -1.0
    write_lines(formats["jsonl"], made)
    (fault,) = packer.verify(tmp_path / "out-jsonl", formats["jsonl"], tokenizer=tokenizer)
    assert fault.startswith("document 7 ")
    assert "score" in fault


def test_tokenizing_keeps_columns_for_the_same_rows(tmp_path, tokenizer, small):
    made = with_columns(texts())
    source = write_lines(tmp_path / "rows.jsonl", made)
    arguments = ["tokenize", str(source), "--tokenizer", tokenizer, "--no-sync", "--keep", "source", "--keep", "score"]
    succeeded(*arguments)
    kept = datasets.load_from_disk(str(tmp_path / "rows-tokenized"))
    assert kept["source"][:] == [record["source"] for record in made]
    assert kept["score"][:] == [record["score"] for record in made]
    direct = pack(source, tmp_path / "direct", tokenizer, keep=["source"])
    once = pack(tmp_path / "rows-tokenized", tmp_path / "packed", None, keep=["source"])
    assert shards(once) == shards(direct)
    assert "tokenized with keep ['source', 'score'], not ['source']" in refused(*arguments[:-2])


def test_a_column_can_be_text_and_be_kept(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", pairs())
    pack(source, tmp_path / "out", tokenizer, keep=["prompt"])
    assert values_of(tmp_path / "out", ["prompt"])[3] == {json.dumps([pairs()[3]["prompt"]])}


def test_what_cannot_be_kept_of_text_is_refused(tmp_path, tokenizer):
    made = with_columns(texts())
    source = write_lines(tmp_path / "rows.jsonl", made)
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(made), table)
    out = tmp_path / "out"

    def refused(given=source, **options):
        with pytest.raises(packer.PackerError) as caught:
            pack(given, out, tokenizer, **options)
        assert not out.exists()
        return str(caught.value)

    assert "rows.jsonl: no column 'topic' (found: text, source, score, tags)" in refused(keep=["topic"])
    assert "rows.parquet: no column 'topic' (found: text, source, score, tags)" in refused(table, keep=["topic"])
    assert "keep_tokens is 'tags', and text has no values per token" in refused(keep_tokens=["tags"])
    assert "keep 'loss_mask': masks become labels" in refused(keep=["loss_mask"])
    made[31]["score"] = "heavy"
    write_lines(source, made)
    message = refused(keep=["score"])
    assert message.startswith(
        "document 31 (rows.jsonl line 32): 'score' holds \"heavy\", where documents before it hold"
    )
    options = ReadOptions(tokenizer=tokenizer)
    assert tokenize(source, options=options, job=Job(sync=False)).record.source.documents


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_the_input_of_alpaca_is_packed_where_some_records_or_files_have_one(tmp_path, tokenizer, ending):
    records = [{"instruction": "say", "output": "one"}, {"instruction": "add", "input": "two", "output": "three"}]
    (tmp_path / "files").mkdir()
    if ending == "jsonl":
        write_lines(tmp_path / "files" / "rows.jsonl", records)
    else:
        for number, record in enumerate(records):
            pq.write_table(pa.Table.from_pylist([record]), tmp_path / "files" / f"{number}.parquet")
    joined = [{"prompt": "say\n\n", "completion": "one"}, {"prompt": "add\n\ntwo\n\n", "completion": "three"}]
    expected = pack(write_lines(tmp_path / "pairs.jsonl", joined), tmp_path / "pairs", tokenizer)
    assert shards(pack(tmp_path / "files", tmp_path / "out", tokenizer)) == shards(expected)
    named = pack(tmp_path / "files", tmp_path / "named", tokenizer, text_column="instruction,output")
    assert shards(named) == shards(expected)


# ---- where exchanges begin ----


def naive_starts(tokenizer, messages, template, alike=None):
    """The tokens with which the exchanges of a chat begin, by rendering what comes before, by a template `alike`."""

    def render(part, template):
        (text,) = tokenizer.apply_chat_template([part], chat_template=template, tokenize=False)
        return text

    whole = render(messages, template)
    starts = [0, *(len(render(messages[:first], alike or template)) for first in naive_chats.exchanges(messages))]
    return naive_chats.tokens_of_starts(tokenizer, whole, starts)


TEMPLATES = {
    "chatml": CHATML,
    "default system": EXACT["default system"],
    "no special tokens": EXACT["no special tokens"],
    "straddling": LOOP + "{{ message.content }} " + END,
    "rewriting": REWRITING["think block in the last turn"],
    "refusing": "{% if messages | length < 3 %}{{ raise_exception('more!') }}{% endif %}" + CHATML,
}


@pytest.mark.parametrize("train_on", ["all", None])
@pytest.mark.parametrize("name", TEMPLATES)
def test_exchanges_begin_where_the_messages_before_them_end(tmp_path, tokenizer, small, name, train_on):
    template, alike = TEMPLATES[name], None
    if train_on is None and name in ("rewriting", "straddling"):
        return
    made = [*chats(), {"messages": []}]
    if name == "refusing":  # as templates do that want a question after the system prompt
        train_on, made = "all", [record for record in made if len(record["messages"]) > 2]
    if name in ("refusing", "rewriting"):  # so that beginnings alone do not tell
        alike = CHATML
    source = write_lines(tmp_path / "rows.jsonl", made)
    options = ReadOptions(tokenizer=tokenizer, chat_template=template, train_on=train_on)
    result = tokenize(source, options=options, job=Job(sync=False))
    ours = auto_tokenizer(tokenizer)
    rows = datasets.load_from_disk(str(result.output))
    boundaries = 0
    for row, record in zip(rows, made, strict=True):
        messages = record["messages"]
        assert row["exchange_starts"] == (naive_starts(ours, messages, template, alike) if messages else [])
        boundaries += len(row["exchange_starts"]) > 1
    assert boundaries > 5


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("parquet", {}),
        ("jsonl", {"algorithm": "sequential", "train_on": "all"}),
        *((kind, {"train_on": "all"}) for kind in ("parquet", "jsonl")),
    ],
    ids=str,
)
def test_chats_are_split_before_exchanges(tmp_path, tokenizer, small, kind, options):
    source = write_formats(tmp_path, with_columns(chats()))[kind]
    out = tmp_path / "out"
    manifest = pack(source, out, tokenizer, keep=["source"], **options)
    assert manifest.totals.documents_split > 5
    ours = auto_tokenizer(tokenizer)
    pieces = {}
    for document, start, tokens, _ in segments_in(packer.load(out)):
        pieces.setdefault(document, {})[start] = tokens
    for document, record in enumerate(chats()):
        (text,) = ours.apply_chat_template([record["messages"]], chat_template=CHATML, tokenize=False)
        found, tokens = pieces[document], ours(text)["input_ids"]
        assert sum((found[start] for start in sorted(found)), []) == tokens  # noqa: RUF017
        bounds = [*naive_starts(ours, record["messages"], CHATML), len(tokens)]
        assert sorted(found) == starts_of_pieces(np.diff(bounds).tolist(), manifest.max_len)
    assert list(packer.verify(out, source, tokenizer=tokenizer)) == []
    asked = {"max_len": manifest.max_len, "tokenizer": tokenizer, **options}
    assert packer.stats(source, **asked).rows == manifest.rows
    train_on = options.pop("train_on", None)
    text = ReadOptions(tokenizer=tokenizer, keep=("source",), train_on=train_on)
    kept = tokenize(source, options=text, job=Job(output=tmp_path / "kept", sync=False)).output
    once = pack(kept, tmp_path / "once", None, keep=["source"], **options)
    assert shards(once) == shards(manifest)


def test_texts_have_no_exchanges(tmp_path, tokenizer):
    source = write_lines(tmp_path / "texts.jsonl", texts())
    with pytest.raises(packer.PackerError, match=r"split_at is exchanges, and .*texts.jsonl holds texts, not chats"):
        pack(source, tmp_path / "out", tokenizer, split_at="exchanges")
    with pytest.raises(packer.PackerError, match="keep 'exchange_starts': tokenizing writes a column of that name"):
        pack(source, tmp_path / "out", tokenizer, keep=["exchange_starts"])


def test_tokens_of_chats_and_of_prompts_are_packed_together(tmp_path, tokenizer):
    for name, records in {"chats": chats(), "prompts": pairs()}.items():
        source = write_lines(tmp_path / f"{name}.jsonl", records)
        tokenize(source, options=ReadOptions(tokenizer=tokenizer), job=Job(output=tmp_path / name, sync=False))
    for order in (("chats", "prompts"), ("prompts", "chats")):
        manifest = packer.pack(
            [tmp_path / name for name in order], tmp_path / f"{order[0]}-first", max_len=64, sync=False
        )
        assert manifest.totals.documents == len(chats()) + len(pairs())


# ---- what the tokenizer or the template raises ----


@pytest.fixture(scope="module")
def picky(tmp_path_factory):
    """A tokenizer that knows the characters of plain English and refuses any other."""
    known = sorted({*"".join(PROBES), *"abcdefghijklmnopqrstuvwxyz\n<|>_"})
    rust = Tokenizer(models.Unigram([(END_OF_TEXT, 0.0), *((character, -1.0) for character in known)]))
    fast = PreTrainedTokenizerFast(tokenizer_object=rust, eos_token=END_OF_TEXT, chat_template=CHATML)
    fast.save_pretrained(folder := str(tmp_path_factory.mktemp("tokenizer") / "picky"))
    return folder


def said_in_one_line(*arguments):
    done = run(*arguments, "--no-sync")
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("packer: ")]
    assert "Traceback" not in done.stderr
    return line.removeprefix("packer: ")


@pytest.mark.parametrize(
    "command", [["pack", "--max-len", "64"], ["tokenize"], ["pack", "--max-len", "9", "--split-at", "exchanges"]]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_the_tokenizer_raises_is_told_with_the_line(tmp_path, picky, small, command, workers):
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    made = [{"messages": turns}] * 50
    made[31] = {"messages": [*turns, {"role": "user", "content": "\u00df"}]}
    source = write_lines(tmp_path / "rows.jsonl", made)
    given = [*command, source, "--tokenizer", picky, "--workers", workers, "-o", tmp_path / "out"]
    assert said_in_one_line(*given) == (
        "document 31 (rows.jsonl line 32): the tokenizer does not take it: "
        "Exception Encountered an unknown token but `unk_id` is missing; or leave such records out with --on-error skip"
    )
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_tokenizer_that_takes_nothing_is_refused(tmp_path):
    rust = Tokenizer(models.Unigram([(END_OF_TEXT, 0.0)]))
    PreTrainedTokenizerFast(tokenizer_object=rust, eos_token=END_OF_TEXT).save_pretrained(tmp_path / "none")
    source = write_lines(tmp_path / "rows.jsonl", texts())
    message = said_in_one_line("pack", source, "--max-len", 64, "--tokenizer", tmp_path / "none")
    assert "does not tokenize a plain sentence: Exception Encountered an unknown token" in message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("{{ 1 // (messages[0].content | length - 3) }}", "does not render it: ZeroDivisionError "),
        ("{% if add_generation_prompt and messages[0].content == 'odd' %}{{ messages[9].role }}{% endif %}",
         "does not render up to message 1 (assistant): UndefinedError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{% if messages[0].content == 'odd' %}{{ again() }}{% endif %}",
         "does not render it: RecursionError maximum recursion depth"),
        ("{% if messages[0].content == 'odd' %}{{ raise_exception('not\nthis') }}{% endif %}",
         "does not render it: TemplateError not"),
    ],
)  # fmt: skip
def test_what_a_template_raises_is_told_with_the_line(tmp_path, tokenizer, small, fault, words):
    made = [
        {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "b"}]} for _ in range(50)
    ]
    made[31]["messages"][0]["content"] = "odd"
    source = write_lines(tmp_path / "rows.jsonl", made)
    (tmp_path / "template").write_text(fault + CHATML)
    given = ["pack", source, "--max-len", 64, "--tokenizer", tokenizer, "--chat-template", tmp_path / "template"]
    message = said_in_one_line(*given)
    assert message.startswith("document 31 (rows.jsonl line 32): the chat template ")
    assert words in message


# ---- messages as JSON in strings ----


def as_json(records, *columns):
    return [
        {name: json.dumps(value) if name in columns else value for name, value in record.items()} for record in records
    ]


@pytest.mark.parametrize("column", ["messages", "body"])
def test_strings_of_json_are_decoded_on_request_and_never_packed_as_text(tmp_path, tokenizer, small, column):
    made = [{column: record["messages"], "tools": None} for record in chats()]
    wanted = pack(write_lines(tmp_path / "chats.jsonl", chats()), tmp_path / "out", tokenizer)
    strings = as_json(made, column)
    for name, source in write_formats(tmp_path, strings).items():
        decoded = pack(source, tmp_path / f"out-{name}", tokenizer, text_column=f"{column}:json")
        assert shards(decoded) == shards(wanted), name
        with pytest.raises(packer.PackerError, match=f"text_column='{column}:json'$"):
            pack(source, tmp_path / "text", tokenizer, text_column=None if column == "messages" else column)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [column], extrasaction="ignore")
        table.writeheader()
        table.writerows(strings)
    with pytest.raises(
        packer.PackerError, match=f"'{column}' holds messages as JSON in strings, which would be packed"
    ):
        pack(tmp_path / "rows.csv", tmp_path / "text", tokenizer, text_column=column)
    assert not (tmp_path / "text").exists()


def test_prompts_completions_and_pairs_may_be_json(tmp_path, tokenizer):
    question, *answers = [[{"role": role, "content": role[0]}] for role in ("user", "assistant", "assistant")]
    answers[1] = [{"role": "assistant", "content": "b"}]
    made = [{"prompt": question, "chosen": answers[0], "rejected": answers[1]}]
    plain, text = tmp_path / "plain.jsonl", tmp_path / "json.jsonl"
    write_lines(plain, made)
    write_lines(text, as_json(made, *made[0]))
    wanted = shards(pack(plain, tmp_path / "plain", tokenizer, pairs=True))
    names = "prompt:json,chosen:json,rejected:json"
    assert shards(pack(text, tmp_path / "decoded", tokenizer, pairs=True, text_column=names)) == wanted
    with pytest.raises(packer.PackerError, match=f"decode them by text_column='{names}'"):
        pack(text, tmp_path / "text", tokenizer, pairs=True)
    wanted = shards(pack(plain, tmp_path / "sft", tokenizer, text_column="prompt,chosen"))
    decoded = pack(text, tmp_path / "sft-decoded", tokenizer, text_column="prompt:json,chosen:json")
    assert shards(decoded) == wanted


def test_json_that_is_wrong_is_named_with_its_line_and_text_that_mentions_it_is_packed(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", [*as_json(chats(), "messages")[:2], {"messages": "[{"}])
    with pytest.raises(packer.SourceError, match=r"document 2 \(rows.jsonl line 3\): 'messages' is not valid JSON: "):
        pack(source, tmp_path / "out", tokenizer, text_column="messages:json")
    skipping = pack(source, tmp_path / "out", tokenizer, text_column="messages:json", on_error="skip", overwrite=True)
    assert skipping.totals.documents_rejected == {"invalid_chat": 1}
    texts = [*as_json(chats(), "messages")[:2], {"messages": "The format is a list of messages."}, {"messages": "[1]"}]
    pack(write_lines(tmp_path / "docs.jsonl", texts), tmp_path / "text", tokenizer, text_column="messages")
