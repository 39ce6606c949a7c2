"""Every answer of a chat as a document of its own, as the model sees it; and the records that they come from."""

import json
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.chat_templates import EXACT, REWRITING, save_tokenizer
from tests.helpers.commands import succeeded
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")
from tests.helpers.each_answer import RECORDS, THOUGHTS, documents_in, packed

NO_LOSS = -100


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), template=THOUGHTS)


ANSWERS = [1, 3, 0, 1, 4, 1, 2]
"""Trained answers of each record."""


def rendered(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def expected_answers(folder, messages, template=None):
    """[(tokens, labels)] of every trained answer: the model's input, and what it has to write after that."""
    tokenizer, found = rendered(folder), []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        options = {"tokenize": False, "chat_template": template}
        before = tokenizer.apply_chat_template(messages[:turn], add_generation_prompt=True, **options)
        whole = tokenizer.apply_chat_template(messages[: turn + 1], **options)
        assert whole.startswith(before)
        encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoded["input_ids"]
        labels = [
            token if end > len(before) else NO_LOSS
            for token, (_, end) in zip(ids, encoded["offset_mapping"], strict=True)
        ]
        found.append((ids, labels))
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_each_answer_is_a_document_as_the_model_sees_it(tokenizer, tmp_path, kind):
    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    if kind != "jsonl":
        source = pa.Table.from_pylist(RECORDS)
    if kind == "parquet":
        pq.write_table(source, tmp_path / "chats.parquet")
        source = tmp_path / "chats.parquet"
    if kind == "memory":
        source = pytest.importorskip("datasets").Dataset(source)
    manifest = packed(source, tmp_path / "out", tokenizer, keep=["topic"])
    found, document = documents_in(tmp_path / "out"), 0
    for number, (record, answers) in enumerate(zip(RECORDS, ANSWERS, strict=True)):
        expected = expected_answers(tokenizer, record["messages"])
        assert len(expected) == answers
        for answer, (ids, labels) in enumerate(expected):
            assert found[document] == (
                ids,
                labels,
                {"topic": record["topic"], "record_ids": number, "answer": answer},
            )
            document += 1
        document += not answers  # a record without answers is one empty document
    assert manifest.totals.documents == document
    assert manifest.totals.documents_dropped["empty"] == 1
    assert list(packer.verify(tmp_path / "out", source, tokenizer=str(tokenizer))) == []


def test_a_template_that_rewrites_history_is_taken_whole_by_its_answers(tokenizer, tmp_path):
    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    with pytest.raises(packer.PackerError, match="differently if more messages follow"):
        packed(source, tmp_path / "whole", tokenizer, train_on="assistant")
    packed(source, tmp_path / "out", tokenizer)


@pytest.mark.parametrize("name", [*EXACT, *REWRITING])
def test_answers_are_those_of_the_twin_for_every_manner_of_template(tokenizer, tmp_path, name):
    template = {**EXACT, **REWRITING}[name]
    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    if name == "system in the last user's turn":  # and no generation prompt
        unknown = template.replace("</s>", "<|im_end|>")
        with pytest.raises(packer.PackerError, match="so the turn's end is not known"):
            packed(source, tmp_path / "out", tokenizer, chat_template=unknown)
    packed(source, tmp_path / "out", tokenizer, chat_template=template)
    expected = [pair for record in RECORDS for pair in expected_answers(tokenizer, record["messages"], template)]
    found = documents_in(tmp_path / "out")
    assert [found[document][:2] for document in sorted(found)] == expected


def test_an_invalid_chat_is_named_by_its_line_and_left_out_whole(tokenizer, tmp_path):
    records = [*RECORDS[:2], {"messages": [{"role": "robot", "content": "?"}]}, *RECORDS[2:]]
    source = write_lines(tmp_path / "chats.jsonl", records)
    with pytest.raises(packer.PackerError, match=r"^chats\.jsonl line 3: 'messages' message 0 has the role 'robot'"):
        packed(source, tmp_path / "out", tokenizer)
    manifest = packed(source, tmp_path / "out", tokenizer, on_error="skip")
    assert manifest.totals.documents_rejected == {"invalid_chat": 1}
    (rejected,) = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").open()]
    assert (rejected["document"], rejected["line"]) == (sum(ANSWERS[:2]), 3)
    records_of = {document: kept["record_ids"] for document, (*_, kept) in documents_in(tmp_path / "out").items()}
    assert records_of[sum(ANSWERS[:2]) + 2] == 4  # after the rejected record, and one without answers
    assert list(packer.verify(tmp_path / "out", source, tokenizer=str(tokenizer))) == []


def test_records_are_numbered_through_the_pieces_of_all_files(tokenizer, tmp_path, monkeypatch):
    shrink(monkeypatch, piece=1000)
    one = write_lines(tmp_path / "one.jsonl", RECORDS)
    two = write_lines(tmp_path / "two.jsonl", RECORDS[::-1])
    packed([one, two], tmp_path / "joined", tokenizer)
    check_records(tmp_path / "joined", [*RECORDS, *RECORDS[::-1]])


def trained_answers(record):
    return sum(message["role"] == "assistant" and message.get("weight") != 0 for message in record["messages"])


def check_records(out, records):
    by_record = defaultdict(list)
    for _, (*_, kept) in sorted(documents_in(out).items()):
        by_record[kept["record_ids"]].append(kept["answer"])
    assert by_record == {
        at: list(range(trained_answers(record))) for at, record in enumerate(records) if trained_answers(record)
    }


def test_a_tokenized_dataset_numbers_the_answers_of_each_record(tokenizer, tmp_path):
    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    options = ["--tokenizer", tokenizer, "--train-on", "each-answer"]
    succeeded("tokenize", source, "--output", tmp_path / "tokens", *options)
    table = pytest.importorskip("datasets").load_from_disk(str(tmp_path / "tokens"))
    assert table["answer"][:] == [answer for count in ANSWERS for answer in range(max(count, 1))]
    packer.pack(tmp_path / "tokens", tmp_path / "out", max_len=256)
    packed(source, tmp_path / "direct", tokenizer)
    found, direct = documents_in(tmp_path / "out"), documents_in(tmp_path / "direct")
    assert {document: values[:2] for document, values in found.items()} == {
        document: values[:2] for document, values in direct.items()
    }


def test_texts_have_no_answers(tokenizer, tmp_path):
    source = write_lines(tmp_path / "texts.jsonl", [{"text": "The quick brown fox"}])
    with pytest.raises(packer.PackerError, match="each-answer' does not fit documents of text: choose all"):
        packed(source, tmp_path / "out", tokenizer)


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("every", "share"), [(8, 0.74), (1, 0.79)])
def test_published_templates_render_the_answers_of_real_chats_exactly(shared_data, every, share):
    """Of 90 templates, those that ask for another answer than they write refuse it, and no other answer is refused."""
    from packer.sources.documents import DocumentError
    from packer.text import chat_template as module
    from packer.text.conversations import chat_of
    from packer.text.tokenizer import of_transformers
    from tests.helpers.chat_templates import auto_tokenizer
    from tests.helpers.text_real_templates import TEMPLATES, chats

    tokenizer = of_transformers(auto_tokenizer(str(shared_data / "tokenizers" / "qwen3")))
    exact, total, refused = 0, 0, []
    for source in list(TEMPLATES.values())[::every]:
        template = module.ChatTemplate(tokenizer, source)
        for record in chats(shared_data):
            for one in chat_of(record, ("messages",), "each-answer").documents("each-answer"):
                total += 1
                try:
                    (located,) = template.locate(one, "completion")
                except DocumentError as error:
                    refused.append(error.message)
                    continue
                prompt = template.templates.render(one, len(one.messages) - 1, prompt=True)
                assert located.text.startswith(prompt)
                assert located.trained == [(len(prompt), len(located.text))]
                exact += 1
    assert exact / total > share
    # a system prompt; a thought that the answer lacks
    known = ("does not render", "the generation prompt ends with", "always or never")
    assert all(any(words in message for words in known) for message in refused)


def test_numbers_of_documents_do_not_depend_on_workers(tokenizer, tmp_path, monkeypatch):
    shrink(monkeypatch, piece=500)
    source = write_lines(tmp_path / "chats.jsonl", RECORDS * 5)
    hashes = set()
    for workers in (1, 3):
        manifest = packed(source, tmp_path / f"out-{workers}", tokenizer, workers=workers, share_prefixes=True)
        hashes.add(tuple(entry.xxh3_128 for entry in manifest.shards))
    assert len(hashes) == 1


def test_the_share_of_beginnings_is_counted(tokenizer, tmp_path):
    from packer.options import PackOptions
    from packer.pipeline.collect_figures import dataset_figures

    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    options = PackOptions(max_len=256, tokenizer=str(tokenizer), train_on="each-answer")
    figures = dataset_figures(source, options=options)
    separate = packed(source, tmp_path / "separate", tokenizer).totals
    shared = packed(source, tmp_path / "shared", tokenizer, share_prefixes=True).totals
    assert figures.saved_tokens == shared.tokens_shared == separate.tokens - shared.tokens
    assert figures.repeated_tokens > figures.saved_tokens > 0
    assert separate.tokens_trained == shared.tokens_trained


def test_stats_predict_the_rows_of_grouped_answers(tokenizer, tmp_path):
    records = [{**record, "source": "ab"[number % 2]} for number, record in enumerate(RECORDS)]
    source = write_lines(tmp_path / "chats.jsonl", records)
    options = {"max_len": 64, "tokenizer": str(tokenizer), "train_on": "each-answer", "group_by": "source"}
    assert packer.stats(source, **options).rows == packer.pack(source, tmp_path / "out", sync=False, **options).rows
