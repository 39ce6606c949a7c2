"""Weights of the loss: read from every source of weights, stored once, and used in the loss, or refused by name.

The weight of each token is written down by hand. Tokens of documents are unique, so that a token names its document.
"""

import json
import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.column_names import NO_LOSS
from packer.trainers.guard import open_rows
from tests.helpers.chat_encoders import tokenizer, tokenizer_path  # noqa: F401 (fixtures)
from tests.helpers.chat_templates import EXACT, MARKED
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.pack import hashes
from tests.helpers.packed_rows import rewrite_shards
from tests.helpers.writing import write_as, write_ipc, write_lines

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers.models import gradients, tiny_llama  # noqa: E402  needs torch

LOSS = "loss_weights"
FILES = {"jsonl": "a.jsonl", "parquet": "a.parquet", "arrow": "a.arrow", "memory": "table"}
TOKENS = [[11, 12, 13, 14], [21, 22, 23], [31, 32], [41, 42, 43, 44, 45]]


def weights_in(packed, **options):
    """{token: weight} of a packed dataset, by way of its batches; 0 for tokens without loss."""
    options = {"rows": 2, "tensors": "numpy", "loss_weights": "weight"} | options
    batches = list(packer.batches(packed, **options))
    return {
        token: weight
        for batch in batches
        for token, weight in zip(
            batch["input_ids"].reshape(-1).tolist(), batch["loss_weights"].reshape(-1), strict=True
        )
        if token
    }


def shards(packed):
    """Hashes of the shards of a packed dataset."""
    return {name: digest for name, digest in hashes(packed).items() if name.startswith("data-")}


def by_hand(weights, tokens=TOKENS):
    """{token: weight} of documents in which the first token is never trained."""
    pairs = (zip(one, [0, *of_one[1:]], strict=True) for one, of_one in zip(tokens, weights, strict=True))
    return {token: weight for pair in pairs for token, weight in pair}


# ---- every source of weights ----

PER_DOCUMENT = [0.5, 2, 0, 1]
PER_TOKEN = [[1, 0.5, 0, 2], [1, 1, 0.25], [1, 1], [0, 0, 0, 3, 1]]
OF_DOCUMENTS = ["sample_weight", "loss_weight", "loss_multiplier", "loss_weights", "weight"]
OF_TOKENS = ["loss_mask", "weight", "weights", "loss_weights", "loss_scale", "importance"]


@pytest.mark.parametrize("kind", FILES)
def test_weights_of_documents_and_of_tokens_are_read_from_every_format(tmp_path, kind):
    expected = by_hand([[weight] * len(one) for weight, one in zip(PER_DOCUMENT, TOKENS, strict=True)])
    some = slice(0, None if kind == "jsonl" else 1)
    for number, name in enumerate([*OF_DOCUMENTS[some], "importance"]):
        records = [{"input_ids": one, name: weight} for one, weight in zip(TOKENS, PER_DOCUMENT, strict=True)]
        options = {"weight": name} if name in ("importance", "weight") else {}
        source = write_as(tmp_path / f"{number}-{FILES[kind]}", records)
        made = packer.pack(source, tmp_path / f"out-{number}", max_len=8, sync=False, **options)
        assert made.options.weights_per == "document"
        assert weights_in(made.path) == expected, name
    for number, name in enumerate(OF_TOKENS[some]):
        records = [{"input_ids": one, name: weights} for one, weights in zip(TOKENS, PER_TOKEN, strict=True)]
        options = {"weight": name} if name == "importance" else {}
        source = write_as(tmp_path / f"tokens-{number}-{FILES[kind]}", records)
        made = packer.pack(source, tmp_path / f"out-tokens-{number}", max_len=8, sync=False, **options)
        assert made.options.weights_per == "token"
        assert weights_in(made.path) == by_hand(PER_TOKEN), name
    if kind != "memory":
        assert packer.verify(made.path, source=source)


def test_weights_of_several_columns_and_labels_are_multiplied(tmp_path):
    record = {"input_ids": [1, 2, 3, 4], "labels": [1, -100, 3, 4], "loss_mask": [1, 1, 0.5, 2], "loss_weight": 3}
    packer.pack(write_lines(tmp_path / "a.jsonl", [record]), tmp_path / "out", max_len=8, sync=False)
    assert weights_in(tmp_path / "out") == {1: 0, 2: 0, 3: 1.5, 4: 6}


def test_weights_of_0_and_1_and_none_are_labels_alone(tmp_path):
    ones = [{"input_ids": [1, 2, 3], "loss_mask": [1, 0, 1]}, {"input_ids": [4, 5], "loss_mask": [1, 1]}]
    weights = [{"input_ids": each["input_ids"], "importance": [*map(float, each["loss_mask"])]} for each in ones]
    packer.pack(write_lines(tmp_path / "a.jsonl", ones), tmp_path / "masked", max_len=8, sync=False)
    source = write_lines(tmp_path / "b.jsonl", weights)
    made = packer.pack(source, tmp_path / "weighted", max_len=8, weight="importance", sync=False)
    assert shards(tmp_path / "masked") == shards(tmp_path / "weighted")
    assert (made.options.weights_per, packer.load(made.path).has_weights) == (None, False)
    assert weights_in(made.path) == {1: 0, 2: 0, 3: 1, 4: 0, 5: 1}, "the weight of tokens without weights is 1"


documents = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0, 0.25, 1, 1.5, 7])), min_size=1, max_size=9)


@settings(max_examples=5)
@given(documents, st.sampled_from([{}, {"algorithm": "wrapped"}, {"align": 4}, {"long": "truncate"}]))
def test_a_value_per_segment_is_the_value_of_its_tokens(tmp_path_factory, documents, options):
    folder, number = tmp_path_factory.mktemp("stored"), 1
    records = []
    for length, weight in documents:
        records.append({"input_ids": [*range(number, number + length)], "importance": weight})
        number += length
    per_token = [{**each, "importance": [each["importance"]] * len(each["input_ids"])} for each in records]
    mixed = {"input_ids": [number, number + 1, number + 2, number + 3], "importance": [1, 2, 3, 4]}
    found = {}
    for name, made in (("document", records), ("list", per_token), ("token", [*per_token, mixed])):
        source = write_lines(folder / f"{name}.jsonl", made)
        packed = packer.pack(
            source, folder / name, max_len=8, weight="importance", untrained="keep-all", sync=False, **options
        )
        found[name] = weights_in(packed.path)
        assert (LOSS in packer.load(packed.path)[0]) == packer.load(packed.path).has_weights
    assert found["document"] == found["list"]
    assert {token: weight for token, weight in found["token"].items() if token < number} == found["document"]
    assert [*found["token"].values()].count(0) < len(found["token"])


def test_rows_of_another_tool_are_cut_with_their_weights(tmp_path):
    unshifted = {"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [3, 2], "loss_mask": [1, 0.5, 2, 1, 3]}
    packer.pack(write_lines(tmp_path / "a.jsonl", [unshifted]), tmp_path / "unshifted", max_len=8, sync=False)
    assert weights_in(tmp_path / "unshifted") == {1: 0, 2: 0.5, 3: 2, 4: 0, 5: 3}
    shifted = {"input_ids": [1, 2, 3, 4, 5], "seq_start_id": [0, 3], "loss_mask": [0.5, 2, 0, 3, 0]}
    packer.pack(write_lines(tmp_path / "b.jsonl", [shifted]), tmp_path / "shifted", max_len=8, sync=False)
    assert weights_in(tmp_path / "shifted") == {1: 0, 2: 0.5, 3: 2, 4: 0, 5: 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_files_and_records_without_weights_have_the_weight_1(tmp_path, workers):
    (tmp_path / "source").mkdir()
    for number, weight in enumerate([1, 0, 0.5, None]):
        record = {"input_ids": TOKENS[number], "loss_weight": weight}
        write_lines(tmp_path / "source" / f"{number}.jsonl", [record])
    packer.pack(tmp_path / "source", tmp_path / "out", max_len=8, workers=workers, sync=False)
    assert weights_in(tmp_path / "out") == by_hand([[1] * 4, [0] * 3, [0.5] * 2, [1] * 5])
    bad = [{"input_ids": [1, 2], "loss_weight": weight} for weight in (1, -1, 0.5)]
    source = write_lines(tmp_path / "bad.jsonl", bad)
    packer.pack(source, tmp_path / "skipped", max_len=8, on_error="skip", sync=False)
    segments = packer.load(tmp_path / "skipped")[0]
    assert dict(zip(segments["doc_ids"].tolist(), segments[LOSS].tolist(), strict=True)) == {0: 1, 2: 0.5, -1: 0}


# ---- chats and text ----


def expected(tokenizer, pieces):
    """[(token, weight)] of a text in pieces, each with its weight; a token has the largest of its characters."""
    text, weights = "".join(text for text, _ in pieces), [weight for text, weight in pieces for _ in text]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    found = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [(token, max(weights[begin:end])) for token, (begin, end) in found]


def chat(*answers, **fields):
    """A chat whose answers are (text, weight) or lists of such parts, and its pieces in ChatML."""
    messages, pieces = [], []
    for answer in answers:
        messages.append({"role": "user", "content": "fox?"})
        pieces.append(("<|im_start|>user\nfox?<|im_end|>\n<|im_start|>assistant\n", 0))
        parts = answer if isinstance(answer, list) else [answer]
        pieces += [*parts, ("<|im_end|>\n", 1 if isinstance(answer, list) else answer[1])]
        said = {"content": [{"type": "text", "text": text, "weight": weight} for text, weight in parts]}
        if not isinstance(answer, list):
            said = {"content": answer[0], "weight": answer[1]}
        messages.append({"role": "assistant", **said})
    return {"messages": messages, **fields}, pieces


CHATS = {
    "messages": chat(("The dog", 0.5), ("lazy", 1), ("quick", 0), ("brown", 2.5)),
    "parts": chat([("The", 0.25), (" dog", 0), (" jumps", 1), (" over", 3)]),
    "one weight": chat(("The dog", 0.5), ("lazy", 0.5)),
    "record": (
        chat(("The dog", 1))[0] | {"sample_weight": 0.5},
        [(text, w / 2) for text, w in chat(("The dog", 1))[1]],
    ),
}


def chats_in(packed):
    """[(token, weight)] of the documents of a packed dataset."""
    (batch,) = packer.batches(packed, rows=99, loss_weights="weight", tensors="numpy")
    pairs = [*zip(batch["input_ids"][0].tolist(), batch[LOSS][0].tolist(), strict=True)]
    bounds = batch["cu_seq_lens_q"].tolist()
    return [pairs[begin:end] for begin, end in pairwise(bounds)]


@pytest.mark.parametrize("template", [EXACT["chatml"], MARKED["marked"]], ids=["text", "tags"])
@pytest.mark.parametrize("name", CHATS)
def test_weights_of_messages_parts_and_records_of_chats(tmp_path, tokenizer_path, tokenizer, name, template):
    record, pieces = CHATS[name]
    if name == "parts" and template != EXACT["chatml"]:
        pytest.skip("the template writes content that is text")
    source = write_lines(tmp_path / "a.jsonl", [record])
    options = {"max_len": 256, "tokenizer": tokenizer_path, "chat_template": template, "sync": False}
    made = packer.pack(source, tmp_path / "out", **options)
    assert made.options.weights_per == ("token" if name in ("messages", "parts") else "document")
    assert chats_in(made.path) == [expected(tokenizer, pieces)]
    assert packer.verify(made.path, source=source, tokenizer=tokenizer_path)
    del options["max_len"]
    packer.tokenize(source, tmp_path / "tokens", **options)
    packer.pack(tmp_path / "tokens", tmp_path / "of-tokens", max_len=256, sync=False)
    assert shards(tmp_path / "of-tokens") == shards(made.path), "what `packer tokenize` writes has the same weights"


def test_the_weight_of_a_part_replaces_that_of_its_message(tmp_path, tokenizer_path, tokenizer):
    record, pieces = chat([("The", 1), (" dog", 0.25)])
    record["messages"][1]["weight"] = 2
    record["messages"][1]["content"].append({"type": "text", "text": " jumps"})
    pieces[-1:] = [(" jumps", 2), ("<|im_end|>\n", 2)]
    source = write_lines(tmp_path / "a.jsonl", [record])
    packer.pack(source, tmp_path / "out", max_len=256, tokenizer=tokenizer_path, sync=False)
    assert chats_in(tmp_path / "out") == [expected(tokenizer, pieces)]


def test_each_answer_has_its_weight_alone_and_in_trees(tmp_path, tokenizer_path, tokenizer):
    record, pieces = chat(("The dog", 0.5), ("lazy", 1), ("brown", 2))
    source = write_lines(tmp_path / "a.jsonl", [record])
    options = {"max_len": 256, "tokenizer": tokenizer_path, "train_on": "each-answer", "sync": False}
    made = packer.pack(source, tmp_path / "alone", **options)
    assert made.options.weights_per == "document"
    alone = [weight for one in chats_in(made.path) for _, weight in one]
    packer.pack(source, tmp_path / "trees", share_prefixes=True, **options)
    (batch,) = packer.batches(tmp_path / "trees", rows=1, format="tree", loss_weights="weight", tensors="numpy")
    together = [*zip(batch["input_ids"][0].tolist(), batch[LOSS][0].tolist(), strict=True)]
    assert together == expected(tokenizer, pieces)
    assert sum(alone) == sum(weight for _, weight in together) > 0
    shown = succeeded("show", tmp_path / "trees")
    assert [number for number in range(3) if f"answer {number} " in shown] == [0, 1, 2]


def test_texts_are_weighted_by_a_named_or_known_column(tmp_path, tokenizer_path):
    records = [{"text": "the quick fox", "importance": 0.5}, {"text": "the lazy dog", "importance": 0}]
    source = write_lines(tmp_path / "a.jsonl", records)
    options = {"max_len": 64, "tokenizer": tokenizer_path, "sync": False}
    packer.pack(source, tmp_path / "out", weight="importance", **options)
    assert sorted({weight for one in chats_in(tmp_path / "out") for _, weight in one[1:]}) == [0, 0.5]
    known = [{"text": each["text"], "loss_multiplier": each["importance"]} for each in records]
    packer.pack(write_lines(tmp_path / "b.jsonl", known), tmp_path / "known", **options)
    assert shards(tmp_path / "known") == shards(tmp_path / "out")
    for name in ("loss_scale", "loss_weights"):
        named = [{"text": each["text"], name: each["importance"]} for each in records]
        packer.pack(write_lines(tmp_path / "b.jsonl", named), tmp_path / name, **options)
        assert shards(tmp_path / name) == shards(tmp_path / "out")
    lists = write_lines(tmp_path / "b.jsonl", [{"text": "the fox", "loss_weights": [1, 2]}])
    with pytest.raises(
        PackerError, match=r"'loss_weights' holds \[1, 2\] as weight, as list.*a finite number from 0 on"
    ):
        packer.pack(lists, tmp_path / "lists", **options)
    large = [
        {"text": "the fox", "loss_weight": 1, "loss_scale": 1},
        {"text": "a", "loss_weight": 1e30, "loss_scale": 1e30},
    ]
    with pytest.raises(PackerError, match=r"line 2\): its weights multiply to a number that float32 cannot hold"):
        packer.pack(write_lines(tmp_path / "b.jsonl", large), tmp_path / "large", **options)
    late = write_lines(tmp_path / "c.jsonl", [{"text": "the fox"}, known[0]])
    with pytest.raises(PackerError, match="has 'loss_multiplier', and the first record has none; give it to all"):
        packer.pack(late, tmp_path / "late", **options)


# ---- the loss ----


def test_loss_and_gradients_are_those_of_documents_alone_weighted_by_hand(tmp_path):
    random = np.random.default_rng(0)
    tokens = [random.integers(1, 60, length).tolist() for length in (5, 17, 2, 9, 12, 7, 20)]
    per_document = [0.5, 2, 1, 0, 3.25, 1, 0.125]
    per_token = [np.round(random.random(len(one)) * 4).tolist() for one in tokens]
    for name, weights in (("document", per_document), ("token", per_token)):
        records = [{"input_ids": one, LOSS: weight} for one, weight in zip(tokens, weights, strict=True)]
        packer.pack(write_lines(tmp_path / f"{name}.jsonl", records), tmp_path / name, max_len=32, sync=False)
        model = tiny_llama(dtype=torch.float64)
        total, count = 0, 0
        for one, weight in zip(tokens, weights, strict=True):
            logits = model(input_ids=torch.tensor([one]), use_cache=False).logits[0, :-1]
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(one[1:]), reduction="none")
            factors = torch.tensor(weight, dtype=torch.float64).expand(len(one))[1:]
            total, count = total + (factors * losses).sum(), count + factors.sum().item()
        model.zero_grad()
        (total / count).backward()
        alone = (total / count).item(), gradients(model)

        def train(kind, model=model, name=name):
            batches = list(packer.batches(tmp_path / name, rows=1, loss_weights=kind))
            items = packer.num_items_in_batch(batches)
            model.zero_grad()
            loss = 0
            for batch in batches:
                labels, weights = batch.pop("labels"), batch.pop(LOSS, None)
                part = packer.causal_lm_loss(model(**batch).logits, labels, num_items=items, weights=weights)
                part.backward()
                loss += part.item()
            return items, loss, gradients(model)

        items, loss, found = train("weight")
        assert items == pytest.approx(count)
        assert loss == pytest.approx(alone[0], abs=1e-10)
        assert max((found[each] - alone[1][each]).abs().max() for each in found) < 1e-10
        assert abs(train("token")[1] - alone[0]) > 1e-3, "without the weights, it is another loss"


def test_a_mixture_with_a_dataset_without_weights_counts_it_as_1(tmp_path):
    for name, records in {
        "plain": [{"input_ids": TOKENS[0]}],
        "weighted": [{"input_ids": TOKENS[1], LOSS: 0.5}],
        "tokens": [{"input_ids": TOKENS[3], LOSS: PER_TOKEN[3]}],
    }.items():
        packer.pack(write_lines(tmp_path / f"{name}.jsonl", records), tmp_path / name, max_len=8, sync=False)
    dataset = packer.load([tmp_path / name for name in ("plain", "weighted", "tokens")])
    assert dataset.has_weights
    together = {token: weight for one in (1, 2, 3) for token, weight in weights_in(dataset, rows=one).items()}
    assert together == by_hand([[1] * 4, [0.5] * 3, PER_TOKEN[3]], [TOKENS[0], TOKENS[1], TOKENS[3]])


@pytest.mark.parametrize("format", ["hf", "hf_rows", "megatron", "tree", "encoder"])
def test_every_format_with_loss_weights_aligns_them_with_its_labels(weighted, format):
    options = {"keep_tokens": ["labels"]} if format == "encoder" else {}
    batch = packer.collate([*packer.load(weighted)], format=format, loss_weights="weight", tensors="numpy", **options)
    trained = batch["labels"] != NO_LOSS
    found = dict(zip(batch["labels"][trained].tolist(), batch[LOSS][trained].tolist(), strict=True))
    assert found == {token: weight for token, weight in by_hand(PER_TOKEN).items() if weight}
    assert not batch[LOSS][~trained].any()
    plain = packer.collate([*packer.load(weighted)], format=format, loss_weights="token", tensors="numpy", **options)
    assert plain.keys() == batch.keys() - {LOSS}


@pytest.fixture
def weighted(tmp_path):
    records = [{"input_ids": one, LOSS: weights} for one, weights in zip(TOKENS, PER_TOKEN, strict=True)]
    return packer.pack(write_lines(tmp_path / "w.jsonl", records), tmp_path / "w", max_len=8, sync=False).path


# ---- used or refused by name ----


def test_what_cannot_use_weights_refuses_them(weighted):
    rows = [*packer.load(weighted)]
    for format in ("hf", "hf_rows", "megatron", "tree", "trl", "torchtitan", "torchtune", "segment_ids"):
        with pytest.raises(PackerError, match=r"rows have weights of the loss: pass loss_weights=\"weight\""):
            packer.collate(rows, format=format)
    with pytest.raises(PackerError, match="mtp_labels have no stored weights"):
        packer.collate(rows, loss_weights="weight", mtp=1)
    for target in ("megatron", "maxtext", "torchtune", "llama-factory", "megatron-indexed"):
        refused("export", weighted, "--to", target, words=("has weights of the loss", "choose --to parquet"))
    succeeded("export", weighted, "--to", "parquet")
    with pytest.raises(PackerError, match="rows have weights of the loss, which this trainer ignores"):
        open_rows(weighted)
    with pytest.raises(PackerError, match="example 0 of the batch has loss_weights, which would be ignored"):
        packer.flatten([{"input_ids": [1, 2], LOSS: [1, 1]}])


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), 1e39, "high", [1, -1], [1, float("nan")]])
def test_values_that_are_no_weights_are_refused_in_one_line(tmp_path, value):
    kind = pa.array([value])
    for name in ("importance", "loss_weights"):
        write_ipc(tmp_path / f"{name}.arrow", pa.table({"input_ids": [[1, 2]], name: kind}))
        options = ["--weight", name] if name == "importance" else []
        said = refused("pack", tmp_path / f"{name}.arrow", "--max-len", 8, *options)
        assert f"'{name}'" in said
        assert "a weight of the loss is a finite number from 0 on" in said


def test_lists_of_strings_in_json_are_no_weights(tmp_path):
    lines = [{"input_ids": [1, 2], "loss_scale": scale} for scale in ([1, 0.5], ["1", "2"])]
    said = refused("pack", write_lines(tmp_path / "a.jsonl", lines[1:]), "--max-len", 8)
    assert """'loss_scale' holds "1" at position 0: a weight of the loss is a finite number from 0 on""" in said
    packer.pack(write_lines(tmp_path / "b.jsonl", lines), tmp_path / "out", max_len=8, on_error="skip", sync=False)
    assert weights_in(tmp_path / "out") == {1: 0, 2: 0.5}


def test_weights_that_would_be_stored_as_0_are_refused(tmp_path):
    for name, weight in (("a", 1e-60), ("b", 1e300)):
        source = write_lines(tmp_path / f"{name}.jsonl", [{"input_ids": [1, 2, 3], "loss_multiplier": weight}])
        with pytest.raises(PackerError, match=f"holds {re.escape(str(weight))} as weight.* that float32 holds"):
            packer.pack(source, tmp_path / "out", max_len=8)


def test_weights_whose_product_is_too_large_are_refused(tmp_path):
    record = {"input_ids": [1, 2], "loss_weight": 1e30, "loss_scale": [1.0, 1e30]}
    source = write_lines(tmp_path / "a.jsonl", [{"input_ids": [3], "loss_weight": 1, "loss_scale": [1]}, record])
    said = refused("pack", source, "--max-len", 8)
    assert "line 2): its weights multiply to a number that float32 cannot hold" in said


def test_a_column_of_weights_has_no_other_meaning(tmp_path):
    record = {"input_ids": [1, 2], "attention_mask": [1, 1], "length": 2, "w": 0.5, "nested": [[1], [2]], "label": 1}
    source = write_lines(tmp_path / "a.jsonl", [record])
    for options, words in (
        (("--weight", "attention_mask"), "--weight 'attention_mask': a column of this name has another meaning"),
        (("--weight", "length"), "another meaning: rename"),
        (("--weight", "labels"), "--weight 'labels': another option reads this column"),
        (("--weight", "w", "--keep", "w"), "--weight 'w': another option reads this column; leave one of the two out"),
        (("--weight", "missing"), "no column 'missing' (found: input_ids"),
        (("--weight", "nested"), "'nested' holds lists of lists; expected a number per document or per token"),
        (("--weight", "w", "--pairs"), "--weight is 'w', and only the labels of records with several documents"),
        (("--keep-tokens", "loss_weights"), "the rows have a column of that name"),
    ):
        done = run("pack", source, "--max-len", 8, *options)
        assert (words in done.output, done.exit_code > 0) == (True, True), done.output
    lengths = write_lines(tmp_path / "b.jsonl", [{"n": 2, "w": 0.5}])
    said = refused("pack", "--lengths", f"{lengths}:n", "--max-len", 8, "--weight", "w", code=2)
    assert "--weight is 'w', and lengths have no tokens whose loss it weights" in said


@pytest.mark.parametrize("options", [{"group_by": "loss_multiplier"}, {"limit": ["loss_multiplier:4"]}], ids=str)
def test_weights_do_not_only_limit_or_group(tmp_path, tokenizer_path, options):
    tokens = write_lines(tmp_path / "a.jsonl", [{"input_ids": [1, 2], "loss_multiplier": 2}] * 3)
    texts = write_lines(tmp_path / "b.jsonl", [{"text": "one two", "loss_multiplier": 2}] * 3)
    for source, more in ((tokens, {}), (texts, {"tokenizer": tokenizer_path})):
        with pytest.raises(packer.PackerError, match="weights of the loss, which would be ignored; add keep loss_mul"):
            packer.pack(source, tmp_path / "out", max_len=8, **options, **more)
        packer.pack(source, tmp_path / "out", max_len=8, keep=["loss_multiplier"], overwrite=True, **options, **more)
        assert not packer.load(tmp_path / "out").has_weights


def test_weights_that_pairs_and_indexes_cannot_store_are_refused(tmp_path, tokenizer_path):
    pair = {"prompt": "fox", "chosen": " yes", "rejected": " no"}
    source = write_lines(tmp_path / "a.jsonl", [{**pair, "sample_weight": 2}])
    options = "--tokenizer", tokenizer_path, "--pairs", "--max-len", 64
    assert "'sample_weight' is the weight of a record, and --pairs stores none" in refused("pack", source, *options)
    chosen = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "yes", "weight": 0.5}]
    rejected = [chosen[0], {"role": "assistant", "content": "no"}]
    source = write_lines(tmp_path / "b.jsonl", [{"chosen": chosen, "rejected": rejected}])
    assert "a message has a weight, and --pairs stores none" in refused("pack", source, *options)
    source = write_as(tmp_path / "c.arrow", [{"input_ids": [1, 2], "loss_weight": 0.5}])
    assert "has the mask 'loss_weight'" in refused("pack", source, "--max-len", 8, "--index-only")


def test_verify_compares_weights_with_the_source_and_checks_them(tmp_path, weighted):
    source = tmp_path / "w.jsonl"
    records = [json.loads(line) for line in source.read_text().splitlines()]
    records[0][LOSS][1] = 0.75
    write_lines(source, records)
    assert "loss_weights" in refused("verify", weighted, "--source", source, code=3)
    write_lines(source, [{**record, LOSS: 2} for record in records])
    assert "weights_per is document in the source, token in the rows" in refused(
        "verify", weighted, "--source", source, code=3
    )

    def negative(table):
        at = table.schema.get_field_index(LOSS)
        values = -table[LOSS].combine_chunks().flatten().to_numpy() - 1
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 8)
        return table.set_column(at, table.schema.field(at), lists)

    rewrite_shards(weighted, negative)
    assert "loss_weights" in refused("verify", weighted, code=3)
