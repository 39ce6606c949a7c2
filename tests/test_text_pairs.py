"""Preference pairs of text: both answers of a record become a tree, behind the prompt that they share."""

import json
import re
from functools import cache
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.options import PackOptions
from packer.pipeline import collect_figures
from packer.text.text_columns import recognize_pairs
from packer.text.text_encoder import Encoder
from tests.helpers.chat_templates import EXACT, WORDS, auto_tokenizer, lists, save_tokenizer, text_options
from tests.helpers.from_text import shards, write_formats
from tests.helpers.from_text import small as small  # fixtures
from tests.helpers.from_text import tokenizer as tokenizer
from tests.helpers.packed_trees import answers_in
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

CHATML = EXACT["chatml"]


@pytest.fixture(scope="module")
def adding_tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("adding") / "ours", template=CHATML, adds_bos=True)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


@cache
def texts(count=40):
    """A prompt and two answers each: with and without a space between, alike at their beginnings, one in another."""
    random = np.random.default_rng(9)
    words = WORDS.split()
    draw = lambda most: " ".join(random.choice(words, random.integers(1, most)))  # noqa: E731
    made = []
    for number in range(count):
        space, same = " " * (number % 3), draw(4) if number % 4 == 0 else ""
        made.append((draw(9), f"{space}{same}{draw(12)}", f"{space}{same}{draw(12)}"))
    made += [("Who?", " I", " I am"), ("Who?", " I", " I"), ("Who? ", "brown", "brownie"), ("  ", " a", "b")]
    return made


@cache
def records(kind):
    made = []
    for prompt, one, other in texts():
        question = [user(prompt), assistant("Go on."), user(f"{one}?")]
        with_tool = {"tools": [{"name": "dig"}]} if one > other else {}
        made.append(
            {
                "explicit text": {"prompt": prompt, "chosen": one, "rejected": other},
                "implicit text": {"chosen": f"Q: {prompt} A:{one}", "rejected": f"Q: {prompt} A:{other}"},
                "explicit chat": {
                    "prompt": question[-1:] if len(one) % 2 else question,
                    "chosen": [assistant(one)],
                    "rejected": [assistant(other), user("More?"), assistant(one)],
                    **with_tool,
                },
                "implicit chat": {
                    "chosen": [*question, assistant(one)],
                    "rejected": [*question, assistant(other)],
                    **with_tool,
                },
                "chat beside a string": {
                    "prompt": prompt,
                    "chosen": [user(prompt), assistant(one)],
                    "rejected": [user(prompt), assistant(other)],
                },
            }[kind]
        )
    return made


KINDS = ("explicit text", "implicit text", "explicit chat", "implicit chat", "chat beside a string")


def options(tokenizer, **others):
    return PackOptions(**{"max_len": 512, "pairs": True, "long": "drop", "tokenizer": tokenizer, **others})


def pack(source, out, tokenizer, **others):
    others = {"max_len": 512, "algorithm": "bfd", "pairs": True, "long": "drop", "sync": False, **others}
    return packer.pack(source, out, tokenizer=tokenizer, **others)


def read(made, tokenizer, **others):
    """Return the tokens and labels of both answers of every record, before they are joined to trees."""
    records = recognize_pairs({**made[0], **({"tools": []} if isinstance(made[0]["chosen"], list) else {})}, "rows")
    encoded = Encoder(options(tokenizer, **others), records).encode(made)
    columns = (lists(encoded.input_ids), lists(encoded.labels))
    return [[tokens, labels] for tokens, labels in zip(*columns, strict=True)]


# ---- tokens and labels ----


def with_trl(made, tokenizer):
    """Return the tokens and labels of TRL's DPOTrainer, chosen and rejected in turn; RewardTrainer has these tokens."""
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.reward_trainer import RewardTrainer

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_list(made)
    args = SimpleNamespace(dataset_num_proc=None, max_length=None)
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    prepared = DPOTrainer._prepare_dataset(trainer, rows, tokenizer, args, "train")
    rewarded = RewardTrainer._prepare_dataset(trainer, rows, tokenizer, args, "train")
    found = []
    for row, whole in zip(prepared, rewarded, strict=True):
        for role in ("chosen", "rejected"):
            answer = row[f"{role}_ids"]
            tokens = row["prompt_ids"] + answer
            assert tokens == whole[f"{role}_ids"]
            found.append([tokens, [-100] * len(row["prompt_ids"]) + answer])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_labels_are_those_of_trl(tokenizer, adding_tokenizer, kind):
    pytest.importorskip("trl")
    made = records(kind)
    if kind == "chat beside a string":  # TRL leaves that prompt out, too
        made = [{name: record[name] for name in ("chosen", "rejected")} for record in made]
    for path in (tokenizer, adding_tokenizer):
        assert read(records(kind), path) == with_trl(made, auto_tokenizer(path))


@pytest.mark.nightly
def test_pairs_of_a_real_tokenizer_have_the_tokens_and_labels_of_trl(shared_data):
    pytest.importorskip("trl")
    lines = (shared_data / "corpora" / "gsm8k.jsonl").read_text().splitlines()[:20]
    said = [[message["content"] for message in json.loads(line)["messages"]] for line in lines]
    made = [
        {
            side: f"\n\nHuman: {question}\n\nAssistant: {answer[:place]}{said[number - 7][1]}"
            for side, place in (("chosen", 3 * number), ("rejected", 5 * number))
        }
        for number, (question, answer) in enumerate(said)
    ]
    tokenizer = str(shared_data / "tokenizers" / "qwen3")
    assert read(made, tokenizer) == with_trl(made, auto_tokenizer(tokenizer))


@cache
def encoder_of(tokenizer):
    return Encoder(text_options(tokenizer=tokenizer), recognize_pairs(records("explicit text")[0], "rows"))


plain_tokenizer = cache(auto_tokenizer)
parts = st.text(st.sampled_from(WORDS), max_size=12)


@settings(max_examples=60)
@given(pairs=st.lists(st.tuples(parts, parts, parts), min_size=1, max_size=4))
def test_a_prompt_has_the_tokens_that_both_sides_share_with_it(tokenizer, pairs):
    plain = plain_tokenizer(tokenizer)
    made = [{"prompt": prompt, "chosen": one, "rejected": other} for prompt, one, other in pairs]
    made = [{**record, "prompt": record["prompt"] or "a"} for record in made]
    encoded = encoder_of(tokenizer).encode(made)
    for number, record in enumerate(made):
        prompt = plain(record["prompt"])["input_ids"]
        sides = [
            plain(record["prompt"] + record[role])["input_ids"] + [plain.eos_token_id]
            for role in ("chosen", "rejected")
        ]
        shared = min(len(re.match(r"(\d+ )*", same(prompt, side))[0].split()) for side in sides)
        for answer, side in enumerate(sides, 2 * number):
            assert lists(encoded.input_ids)[answer] == side
            assert lists(encoded.labels)[answer] == [-100] * shared + side[shared:]


def same(one, other):
    """The tokens that two lists begin with, as text."""
    count = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return "".join(f"{token} " for token in one[:count])


def test_messages_without_loss_stay_without_loss(tokenizer):
    made = [
        {
            "prompt": [user("a")],
            "chosen": [assistant("b"), user("c"), assistant("d")],
            "rejected": [{**assistant("e"), "weight": 0}],
        },
        {
            "prompt": [user("a")],
            "chosen": [{**assistant("b"), "weight": 0}],
            "rejected": [{**assistant("e"), "train": False}],
        },
    ]
    plain = auto_tokenizer(tokenizer)
    trained = {}
    for train_on in ("completion", "assistant"):
        found = read(made, tokenizer, train_on=train_on)
        trained[train_on] = [plain.decode([token for token in labels if token != -100]) for _, labels in found]
    assert trained["completion"] == [
        "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n",
        "",
        "",
        "",
    ]
    assert trained["assistant"] == ["b<|im_end|>\nd<|im_end|>\n", "", "", ""]


def test_columns_can_be_named(tmp_path, tokenizer):
    made = records("explicit text")
    names = {"prompt": "question", "chosen": "good", "rejected": "bad"}
    renamed = [{names[name]: value for name, value in record.items()} | {"prompt": 5} for record in made]
    source = write_lines(tmp_path / "pairs.jsonl", renamed)
    separated = [{**record, "prompt": f"{record['prompt']}\n\n"} for record in made]
    wanted = shards(pack(write_lines(tmp_path / "usual.jsonl", separated), tmp_path / "usual", tokenizer))
    assert shards(pack(source, tmp_path / "out", tokenizer, text_column="question,good,bad")) == wanted
    beside = write_lines(tmp_path / "beside.jsonl", records("chat beside a string"))
    assert shards(pack(beside, tmp_path / "two", tokenizer, text_column="chosen,rejected")) == shards(
        pack(beside, tmp_path / "three", tokenizer)
    )


# ---- sources ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows_and_is_verified(tmp_path, tokenizer, kind, small):
    made = write_formats(tmp_path, records(kind))
    hashes = {}
    for name, source in made.items():
        hashes[name] = shards(pack(source, tmp_path / f"out-{name}", tokenizer))
        assert list(packer.verify(tmp_path / f"out-{name}", source, tokenizer=tokenizer)) == [], name
    assert len(set(map(tuple, hashes.values()))) == 1, hashes


def test_each_pair_has_the_values_and_the_group_of_its_record(tmp_path, tokenizer, small):
    made = [
        {**record, "topic": f"t{number % 5}", "score": number / 7 if number % 2 else number}
        for number, record in enumerate(records("implicit text"))
    ]
    source = write_lines(tmp_path / "pairs.jsonl", made)
    pack(source, tmp_path / "out", tokenizer, keep=["topic", "score"], group_by="topic", max_len=256)
    for row in packer.load(tmp_path / "out"):
        real = [(d, t, s) for d, t, s in zip(row["doc_ids"], row["topic"], row["score"], strict=True) if d >= 0]
        assert len({topic for _, topic, _ in real}) == 1
        assert all((made[d]["topic"], made[d]["score"]) == (topic, score) for d, topic, score in real)
    assert list(packer.verify(tmp_path / "out", source, tokenizer=tokenizer)) == []
    made[4]["score"] = -1.0
    (fault, *_) = packer.verify(tmp_path / "out", write_lines(source, made), tokenizer=tokenizer)
    assert fault.startswith("document 4 (pairs.jsonl line 5)")
    chosen = options(tokenizer, max_len=256, group_by="topic", keep=("score",))
    predicted = collect_figures.dataset_figures(source, options=chosen)
    assert predicted.rows == packer.load(tmp_path / "out").manifest.rows


# ---- what is refused ----


def refused(source, tokenizer, **others):
    with pytest.raises(packer.PackerError) as caught:
        pack(source, source.parent / "out", tokenizer, **others)
    assert not (source.parent / "out").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


CHAT = [user("a"), assistant("b")]


@pytest.mark.nightly(after=17)  # with three workers
@pytest.mark.parametrize(
    ("kind", "record", "words"),
    [
        ("explicit text", {"prompt": "a", "chosen": "b"}, "'rejected' is null where a string is expected; filter"),
        ("explicit text", {"prompt": "a", "chosen": None, "rejected": "b"}, "'chosen' is null where a string"),
        (
            "explicit text",
            {"chosen": "ab", "rejected": "ac"},
            "'prompt' is null or missing, and the first record has one",
        ),
        ("explicit text", {"prompt": "a", "chosen": "b", "rejected": CHAT}, "'rejected' is a list where a string is"),
        ("explicit text", {"prompt": CHAT, "chosen": "b", "rejected": "c"}, "'prompt' is a list where a string is"),
        ("explicit text", {"prompt": "a", "chosen": "\ud800", "rejected": "c"}, "'chosen' has a lone surrogate U+D800"),
        ("implicit text", {"chosen": "ab", "rejected": ""}, "'rejected' is empty, so there is no answer to train on"),
        (
            "implicit text",
            {"chosen": "ab", "rejected": "cd"},
            "differ from the first character on, and there is no prompt",
        ),
        (
            "implicit text",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "'prompt' holds a prompt, and the first record",
        ),
        ("implicit chat", {"chosen": CHAT, "rejected": []}, "'rejected' is empty, so there is no answer to train on"),
        (
            "implicit chat",
            {"chosen": CHAT, "rejected": "b"},
            "'rejected' is a str where a list of messages is expected",
        ),
        ("implicit chat", {"chosen": CHAT, "rejected": [user("z"), *CHAT]}, "differ from the first message on"),
        (
            "implicit chat",
            {"chosen": [*CHAT, user("c")], "rejected": [*CHAT, user("d")]},
            "message 2 has the role 'user'",
        ),
        (
            "implicit chat",
            {"chosen": CHAT, "rejected": [user("a"), {"role": "king", "content": ""}]},
            "the role 'king'",
        ),
        (
            "explicit chat",
            {"prompt": CHAT[:1], "chosen": CHAT, "rejected": CHAT},
            "leave it out by text_column='chosen,",
        ),
        (
            "explicit chat",
            {"chosen": CHAT, "rejected": CHAT},
            "'prompt' is null or missing, and the first record has one",
        ),
        (
            "chat beside a string",
            {"prompt": "z", "chosen": CHAT, "rejected": CHAT},
            "none of the messages with which both",
        ),
    ],
)
@pytest.mark.parametrize("workers", [3, 1])
def test_an_invalid_record_is_named_with_its_file_and_line(tmp_path, tokenizer, small, kind, record, words, workers):
    lines = [json.dumps(each) for each in records(kind)]
    lines[31:31] = ["", json.dumps(record)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    message = refused(tmp_path / "pairs.jsonl", tokenizer, workers=workers)
    assert message.startswith("document 31 (pairs.jsonl line 33): ")
    assert words in message
    with pytest.raises(packer.SourceError, match=r"^document 31 \(pairs.jsonl line 33\)"):
        collect_figures.dataset_figures(tmp_path / "pairs.jsonl", options=options(tokenizer))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            "pairs.jsonl: has 'chosen' and no 'rejected' (found: prompt, chosen); a pair needs",
        ),
        ({"text": "a"}, "no columns 'chosen' and 'rejected' (found: text); name them by text_column PROMPT,CHOSEN"),
        (
            {"chosen": "b", "rejected": CHAT},
            "'chosen' is a string and 'rejected' is a list; make both strings, or both",
        ),
        ({"chosen": 1, "rejected": 2}, "'chosen' is a int and 'rejected' is a int; make both strings"),
        (
            {"prompt": CHAT, "chosen": "b", "rejected": "c"},
            "'prompt' is a list and 'chosen' is a string; make all of them",
        ),
        (
            {"chosen_input_ids": [1], "rejected_input_ids": [2]},
            "'chosen_input_ids', so it is already tokenized; pack it without",
        ),
    ],
)
def test_files_without_pairs_of_text_are_refused(tmp_path, tokenizer, record, words):
    assert words in refused(write_lines(tmp_path / "pairs.jsonl", [record]), tokenizer)


def test_options_and_columns_that_do_not_go_together_are_refused(tmp_path, tokenizer):
    source = write_lines(tmp_path / "pairs.jsonl", records("explicit text"))
    assert "no column 'prompt2'" in refused(source, tokenizer, text_column="prompt2,chosen,rejected")
    assert "a pair has two columns or three" in refused(source, tokenizer, text_column="chosen")
    assert "choose completion" in refused(source, tokenizer, train_on="assistant")
    assert "pairs is True: with train_on='all'" in refused(source, tokenizer, train_on="all")
    assert "pairs are never split: choose long='drop'" in refused(source, tokenizer, long="split", max_len=4)
    assert "set pairs for preference pairs" in refused(source, tokenizer, pairs=False)
    assert "keep 'tree': the rows have a column of that name" in refused(source, tokenizer, keep=["tree"])
    with pytest.raises(packer.PackerError, match="give tokenizer to pack text, or leave pairs out"):
        packer.pack(source, tmp_path / "out", max_len=8, pairs=True)
    other = tmp_path / "all"
    other.mkdir()
    write_lines(other / "a.jsonl", records("explicit text"))
    write_lines(other / "b.jsonl", records("implicit text"))
    wanted = "a.jsonl holds 'prompt' and 'chosen' and 'rejected' as strings, b.jsonl 'chosen' and 'rejected' as strings"
    assert wanted in refused(other, tokenizer)


def test_records_that_cannot_be_used_are_left_out_with_both_answers(tmp_path, tokenizer, small):
    good = records("explicit chat")
    bad = {
        3: ({"prompt": [user("a")], "chosen": [assistant("b")]}, "missing_value"),
        7: ({"prompt": [user("a")], "chosen": [assistant("b")], "rejected": []}, "missing_value"),
        8: ("{not JSON", "unreadable"),
        21: ({"prompt": [user("a")], "chosen": [user("b")], "rejected": [assistant("c")]}, "invalid_chat"),
        30: ({"chosen": "b", "rejected": [assistant("c")]}, "missing_value"),
    }
    lines = [json.dumps(record) for record in good]
    for number, (record, _) in sorted(bad.items()):
        lines.insert(number, record if isinstance(record, str) else json.dumps(record))
    source = tmp_path / "pairs.jsonl"
    source.write_text("\n".join(lines))
    made = [
        pack(source, tmp_path / f"out-{workers}", tokenizer, on_error="skip", keep=["tools"], workers=workers)
        for workers in (1, 3)
    ]
    assert made[0].to_bytes() == made[1].to_bytes()
    out = tmp_path / "out-1"
    listed = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [(one["document"], one["file"], one["line"], one["reason"]) for one in listed] == [
        (number, "pairs.jsonl", number + 1, reason) for number, (_, reason) in sorted(bad.items())
    ]
    totals = made[0].totals
    assert totals.documents_dropped["rejected"] == len(bad) == totals.documents - totals.documents_packed
    assert list(packer.verify(out, source, tokenizer=tokenizer)) == []
    usable = write_lines(tmp_path / "usable.jsonl", good)
    pack(usable, tmp_path / "usable", tokenizer)

    answers = [[(ids, places) for _, ids, places in answers_in(folder)] for folder in (out, tmp_path / "usable")]
    assert sorted(answers[0]) == sorted(answers[1])
    predicted = collect_figures.dataset_figures(source, options=options(tokenizer, on_error="skip", algorithm="bfd"))
    assert predicted.rows == made[0].rows


def test_blocks_without_any_prompt_are_left_out_where_prompts_are_json(tmp_path, tokenizer, small):
    good = {"prompt": json.dumps([user("a")]), "chosen": [assistant("b")], "rejected": [assistant("c")]}
    without = {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}
    source = write_lines(tmp_path / "pairs.jsonl", [good, *[without] * 9])
    options = {"text_column": "prompt:json,chosen,rejected", "on_error": "skip"}
    totals = pack(source, tmp_path / "out", tokenizer, **options).totals
    assert (totals.documents_packed, totals.documents_dropped["rejected"]) == (1, 9)
