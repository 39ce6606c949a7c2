"""Batches of rows in every format, as trainers read them; and raw examples flattened as transformers does."""

import pickle
import sys
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.column_names import NO_LOSS, PADDING
from packer.loader.batch_formats import FORMATS, MegatronBatch
from tests.helpers import naive
from tests.helpers.formats import drawn_rows, lists, many_rows, row_segments
from tests.helpers.packed_rows import LENGTHS, MAX_LEN, as_lists, labels_of, make, segments_of, tokens_of


def joined(rows) -> list:
    return list(chain.from_iterable(rows))


@given(st.lists(row_segments, min_size=1, max_size=5), st.booleans(), st.data())
def test_collate_equals_the_naive_batch(lengths, has_labels, data):
    rows, arrays = drawn_rows(lengths, has_labels, data)
    assert lists(packer.collate(arrays, tensors="numpy")) == naive.flattened_batch(rows)


def test_numpy_and_torch_batches_are_equal_and_own_their_memory(dataset):
    torch = pytest.importorskip("torch")
    pairs = zip(packer.batches(dataset, rows=2), packer.batches(dataset, rows=2, tensors="numpy"), strict=True)
    for tensors, arrays in pairs:
        assert list(tensors) == list(arrays)
        for name, value in arrays.items():
            if isinstance(value, np.ndarray):
                assert torch.equal(tensors[name], torch.from_numpy(value))
                assert value.flags.writeable
            else:
                assert tensors[name] == value


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("return_tensors", ["pt", "np"])
def test_collate_equals_transformers_flattening_of_the_same_documents(tmp_path, labels, return_tensors):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    dataset = packer.load(make(tmp_path, source_labels=labels, labels=labels))
    collator = transformers.DataCollatorWithFlattening(
        return_tensors=return_tensors, return_flash_attn_kwargs=True, return_seq_idx=True
    )
    for first in range(0, len(dataset), 3):
        rows = [dataset[row] for row in range(first, min(first + 3, len(dataset)))]
        documents = []
        for document, start, length in (segment for row in rows for segment in segments_of(row)):
            piece = slice(start, start + length)
            documents.append({"input_ids": tokens_of(document, LENGTHS[document])[piece]})
            if labels:
                documents[-1]["labels"] = labels_of(document, LENGTHS[document])[piece]
        found = packer.collate(rows, tensors="torch" if return_tensors == "pt" else "numpy")
        assert found.pop("use_cache") is False
        expected = collator(documents)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert type(found[name]) is type(value), name
            if torch.is_tensor(value) or isinstance(value, np.ndarray):
                assert found[name].dtype == value.dtype, name
                assert found[name].tolist() == value.tolist(), name
            else:
                assert found[name] == value, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensors": "np"}, "tensors is 'np': choose torch or numpy"),
        ({"keep": "topic"}, "keep is 'topic': pass a list of columns, as in ['topic']"),
        ({"keep_tokens": "labels"}, "keep_tokens is 'labels': pass a list of columns, as in ['labels']"),
        ({"format": "tree", "keep": "topic"}, "keep is 'topic': pass a list of columns, as in ['topic']"),
    ],
)
def test_arguments_that_would_be_taken_for_others_are_refused(dataset, options, message):
    with pytest.raises(PackerError) as raised:
        packer.collate([dataset[0]], **options)
    assert str(raised.value) == message


def test_tensors_without_torch_are_an_error_that_says_what_to_install(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackerError, match=r'torch is not installed: .*pip install "\.\[torch\]", or use tensors'):
        packer.collate([dataset[0]])
    packer.collate([dataset[0]], tensors="numpy")


# ---- the other formats ----


@given(many_rows, st.booleans(), st.data())
def test_the_other_formats_equal_the_naive_next_tokens(lengths, has_labels, data):
    rows, arrays = drawn_rows(lengths, has_labels, data)
    places = [naive.next_tokens(row) for row in rows]
    positions, numbers, following = ([[place[i] for place in row] for row in places] for i in range(3))
    own = [[NO_LOSS, *row[:-1]] for row in following]  # the same labels at their own places
    tokens = [row["input_ids"] for row in rows]
    boundaries = [0, *np.cumsum([length for row in rows for length in row["seq_lengths"]]).tolist()]

    found = {name: lists(packer.collate(arrays, format=name, tensors="numpy")) for name in FORMATS}
    assert found["hf_rows"] == {
        "input_ids": tokens, "labels": own, "position_ids": positions, "use_cache": False
    }  # fmt: skip
    assert found["trl"] == [
        {"input_ids": row["input_ids"], "labels": labels, "seq_lengths": row["seq_lengths"]}
        for row, labels in zip(rows, own, strict=True)
    ]
    assert found["torchtitan"] == [{"input": tokens, "positions": positions}, following]
    assert found["megatron"] == {
        "tokens": [joined(tokens)],
        "labels": [joined(following)],
        "loss_mask": [[float(label != NO_LOSS) for row in following for label in row]],
        "position_ids": [joined(positions)],
        "cu_seqlens": [boundaries],
        "max_seqlen": [max(length for row in rows for length in row["seq_lengths"])],
    }
    trained = [[label != NO_LOSS for label in row] for row in following]
    real = [
        [position if number else 0 for position, number in zip(*both, strict=True)]
        for both in zip(positions, numbers, strict=True)
    ]
    assert found["segment_ids"] == {
        "inputs": tokens,
        "inputs_position": real,
        "inputs_segmentation": numbers,
        "targets": [[max(label, 0) for label in row] for row in following],
        "targets_position": real,
        "targets_segmentation": [
            [number * counts for number, counts in zip(*both, strict=True)]
            for both in zip(numbers, trained, strict=True)
        ],
    }


def test_a_format_s_record_makes_the_same_batches_as_collate(dataset):
    torch = pytest.importorskip("torch")
    make = MegatronBatch(mtp=1, padding_mask=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=pickle.loads(pickle.dumps(make)))
    options = {"format": "megatron", "mtp": 1, "padding_mask": True}
    assert lists(next(iter(loader))) == lists(packer.collate(dataset.__getitems__([0, 1]), **options))


def test_the_other_formats_have_the_documented_types(dataset):
    torch = pytest.importorskip("torch")
    rows = dataset.__getitems__([0, 1, 2])
    kinds = {name: packer.collate(rows, format=name) for name in FORMATS}
    inputs, labels = kinds["torchtitan"]
    assert {value.dtype for value in (*inputs.values(), labels)} == {torch.int64}
    hf_rows = {name: value for name, value in kinds["hf_rows"].items() if name != "use_cache"}
    assert {(value.dtype, tuple(value.shape)) for value in hf_rows.values()} == {(torch.int64, (3, MAX_LEN))}
    assert {name: value.dtype for name, value in kinds["megatron"].items()} == {
        "tokens": torch.int64,
        "labels": torch.int64,
        "loss_mask": torch.float32,
        "position_ids": torch.int64,
        "cu_seqlens": torch.int32,
        "max_seqlen": torch.int32,
    }
    assert {value.dtype for value in kinds["segment_ids"].values()} == {torch.int32}
    assert {value.dtype.name for value in packer.collate(rows, format="segment_ids", tensors="numpy").values()} == {
        "int32"
    }


@pytest.mark.parametrize("align", [1, 4])
def test_padding_masks_are_true_for_every_token_that_is_no_document_s(tmp_path, align):
    rows = list(packer.load(make(tmp_path, align=align)))
    expected = [
        [
            document == PADDING or place >= tokens
            for document, extent, tokens in zip(
                row["doc_ids"], row["seq_lengths"], row.get("seq_tokens", row["seq_lengths"]), strict=True
            )
            for place in range(extent)
        ]
        for row in rows
    ]
    assert {True, False} == set(joined(expected))
    inputs, _ = packer.collate(rows, format="torchtitan", padding_mask=True, tensors="numpy")
    batch = packer.collate(rows, format="megatron", padding_mask=True, tensors="numpy")
    assert inputs["padding_mask"].tolist() == expected
    assert batch["padding_mask"].tolist() == [joined(expected)]
    assert inputs["padding_mask"].dtype == batch["padding_mask"].dtype == bool
    assert list(packer.collate(rows, format="torchtitan", tensors="numpy")[0]) == ["input", "positions"]


@pytest.mark.parametrize("labels", [True, False])
def test_trl_makes_of_its_examples_what_hf_is_with_padding_as_segments(tmp_path, labels):
    pytest.importorskip("trl")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    dataset = packer.load(make(tmp_path, labels=labels))
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    for numbers in ([0, 1, 2], [len(dataset) - 1]):
        rows = dataset.__getitems__(numbers)
        found = lists(dict(collator(packer.collate(rows, format="trl"))))
        whole = [{**as_lists(row), "doc_ids": [0] * len(row["doc_ids"])} for row in rows]  # padding counts
        expected = naive.flattened_batch(whole)
        del expected["use_cache"]
        if not labels:  # written labels are -100 at padding, made ones must be, too
            padding = [doc == PADDING for row in rows for doc in np.repeat(row["doc_ids"], row["seq_lengths"])]
            labelled = zip(expected["labels"][0], padding, strict=True)
            expected["labels"] = [[NO_LOSS if pad else label for label, pad in labelled]]
        assert found == expected


@pytest.mark.parametrize("format", FORMATS)
def test_labels_that_were_not_written_are_those_that_would_have_been(tmp_path, format):
    written = packer.load(make(tmp_path / "with", source_labels=False))
    made = packer.load(make(tmp_path / "without", source_labels=False, labels=False))
    assert "labels" in written.column_names
    assert "labels" not in made.column_names
    numbers = list(range(len(made)))
    batches = [packer.collate(one.__getitems__(numbers), format=format, tensors="numpy") for one in (written, made)]
    assert lists(batches[0]) == lists(batches[1])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("labels", [True, False])
def test_a_batch_of_no_rows_is_padding_without_loss(tmp_path, format, labels):
    dataset = packer.load(make(tmp_path, labels=labels, pad_id=7))
    (row,) = dataset.__getitems__([])
    assert list(row) == dataset.column_names
    assert {name: values.dtype for name, values in row.items()} == {
        name: values.dtype for name, values in dataset[0].items()
    }
    assert row["position_ids"].tolist() == list(range(MAX_LEN))
    batch = packer.collate([row], format=format, tensors="numpy")
    if format == "torchtitan":
        batch = {**batch[0], "labels": batch[1]}
    found = batch[0] if isinstance(batch, list) else batch
    tokens = next(found[name] for name in ("input_ids", "input", "tokens", "inputs") if name in found)
    assert lists(tokens.reshape(-1)) == [7] * MAX_LEN
    if format == "segment_ids":
        assert not found["targets_segmentation"].any()
    elif format == "encoder":  # which has labels only of masks
        assert found["attention_mask"].all()
        assert not len(found["segments"]["doc_ids"])
    else:
        assert (found["labels"] == NO_LOSS).all()


# ---- labels of extra heads ----


@given(many_rows, st.booleans(), st.integers(1, 9), st.integers(0, 2), st.data())
def test_extra_heads_have_the_naive_targets_further_ahead(lengths, has_labels, heads, spare, data):
    rows, arrays = drawn_rows(lengths, has_labels, data)
    whole = [
        [[label for _, _, label in naive.next_tokens(row, 1 + depth)] for depth in range(1, heads + 1)] for row in rows
    ]
    flat = [[joined(row[depth] for row in whole) for depth in range(heads)]]
    real = [number > 0 for row in rows for _, number, _ in naive.next_tokens(row)]
    kept = [[[label for label, keep in zip(depth, real, strict=True) if keep] for depth in flat[0]]]
    padding = (8 * len(rows) + 99 + spare - sum(real)) * [NO_LOSS]
    shape = packer.StaticShape(tokens=8 * len(rows) + 99 + spare, segments=99, max_len=8, pad_id=3)

    def found(**options):
        return lists(packer.collate(arrays, mtp=heads, tensors="numpy", **options)["mtp_labels"])

    assert found() == kept
    assert found(static=shape) == [[depth + padding for depth in kept[0]]]
    assert found(format="hf_rows") == whole
    assert found(format="megatron") == flat


def test_extra_heads_learn_from_packed_documents_what_they_learn_from_each_alone(dataset):
    """Their inputs are rolled over boundaries, as trainers do; only places without a target read them."""
    torch = pytest.importorskip("torch")
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    torch.manual_seed(0)
    embedding, joining = torch.nn.Embedding(20_000, 8), [torch.nn.Linear(16, 8) for _ in range(2)]

    def attend(hidden, segments):
        mask = (segments[0, :, None] == segments[0]).tril()
        return scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=mask)

    def losses(input_ids, segments, targets):
        hidden, total = attend(embedding(input_ids), segments), 0
        for depth, join in enumerate(joining, 1):
            ahead = embedding(input_ids.roll(-depth, 1))
            hidden = attend(join(torch.cat([hidden, ahead], 2)), segments)
            logits = hidden[0] @ embedding.weight.T
            total += cross_entropy(logits, targets[depth - 1], reduction="sum")
        return total

    packed = packer.collate(dataset.__getitems__(range(4)), mtp=2)
    found = losses(packed["input_ids"], packed["seq_idx"], [*packed["mtp_labels"][0]])
    alone = 0
    ends = packed["cu_seq_lens_q"].tolist()
    assert len(ends) > 6
    for start, end in pairwise(ends):
        labels = torch.cat([packed["labels"][0, start:end], torch.full((3,), NO_LOSS)])
        targets = [labels[2 : end - start + 2], labels[3:]]
        alone += losses(packed["input_ids"][:, start:end], torch.zeros(1, end - start), targets)
    assert found.item() == pytest.approx(alone.item(), rel=1e-5)


# ---- static shapes ----


@given(many_rows, st.booleans(), st.integers(0, 3), st.data())
def test_static_batches_equal_the_naive_ones_and_have_one_shape(lengths, has_labels, spare, data):
    rows, arrays = drawn_rows(lengths, has_labels, data)
    segments = sum(len(row["seq_lengths"]) for row in rows) + 1 + spare
    shape = {"tokens": 8 * len(rows) + data.draw(st.integers(1 + spare, 8)), "segments": segments}
    shape |= {"max_len": 8, "pad_id": 3}
    found = packer.collate(arrays, static=packer.StaticShape(**shape), tensors="numpy")
    assert lists(found) == naive.static_batch(rows, **shape)
    megatron = packer.collate(arrays, format="megatron", static=packer.StaticShape(**shape), tensors="numpy")
    assert megatron["cu_seqlens"].shape == (1, shape["segments"] + 1)
    assert (np.diff(megatron["cu_seqlens"][0]) > 0).all()
    assert megatron["tokens"].shape == megatron["labels"].shape == (1, shape["tokens"])
    assert megatron["max_seqlen"].tolist() == [8]


@pytest.mark.parametrize("rows", [1, 3, 5, 1000])
@pytest.mark.parametrize("max_segments", [None, 1])
def test_static_shape_holds_every_batch_of_a_dataset(tmp_path, rows, max_segments):
    dataset = packer.load(make(tmp_path, max_segments=max_segments))
    static = packer.static_shape(dataset, rows=rows)
    assert static.tokens % 16 == 0
    assert rows * MAX_LEN <= static.tokens < rows * MAX_LEN + static.segments + 16
    for name, boundaries in (("hf", "cu_seq_lens_q"), ("megatron", "cu_seqlens")):
        shapes = set()
        for epoch in range(3):
            for batch in packer.batches(
                dataset, rows=rows, epoch=epoch, static=static, format=name, tensors="numpy", loss_weights="document"
            ):
                shapes.add(tuple(np.shape(value) for value in batch.values()))
                assert batch["position_ids"].max() < MAX_LEN
                assert (np.diff(batch[boundaries].reshape(-1)) > 0).all(), "no segment is empty"
        assert len(shapes) == 1
        packer.collate(dataset.__getitems__([]), static=static, format=name, tensors="numpy")


def test_torch_compile_compiles_static_batches_once(dataset):
    torch = pytest.importorskip("torch")
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    @torch.compile(backend=backend, dynamic=False)
    def step(input_ids, cu_seq_lens_q, max_length_q, **others):
        return input_ids.sum() + cu_seq_lens_q.diff().clamp(max=max_length_q).sum()

    def compilations(static):
        torch._dynamo.reset()
        compiled.clear()
        for batch in packer.batches(dataset, rows=3, static=static):
            step(**batch)
        return len(compiled)

    assert compilations(packer.static_shape(dataset, rows=3)) == 1
    assert compilations(None) > 1


def test_what_does_not_fit_the_static_shape_is_refused(dataset):
    rows = dataset.__getitems__(range(4))
    small = packer.static_shape(dataset, rows=1)
    message = r"a batch has \d+ tokens in \d+ segments, which cannot be padded to the static shape of {} in {}: call"
    with pytest.raises(PackerError, match=message.format(small.tokens, small.segments)):
        packer.collate(rows, static=small)
    for tokens, segments in ((4 * MAX_LEN, 2), (4 * MAX_LEN, 40), (400, 20)):
        other = packer.StaticShape(tokens=tokens, segments=segments, max_len=MAX_LEN, pad_id=0)
        with pytest.raises(PackerError, match=message.format(tokens, segments)):
            packer.collate(rows, static=other)
    with pytest.raises(PackerError, match="rows is 0: it must be at least 1"):
        packer.static_shape(dataset, rows=0)


MLM = packer.MaskedLM(mask_id=1, vocab_size=100_000, special_ids=[0])


def test_options_of_other_formats_may_be_none(dataset):
    (batch,) = packer.batches(dataset, rows=len(dataset), format="hf_rows", tensors="numpy", mlm=None, keep=None)
    assert batch.keys() == {"input_ids", "labels", "position_ids", "use_cache"}


def test_static_padding_has_no_loss_where_labels_are_asked_for_by_name(dataset):
    static = packer.static_shape(dataset, rows=3)
    batch = packer.collate([dataset[0]], static=static, keep_tokens=["labels"], tensors="numpy")
    assert (batch["labels"][0, MAX_LEN:] == NO_LOSS).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "jsonl"}, "format is 'jsonl': choose one of hf, hf_rows, encoder, trl"),
        ({"format": "trl", "keep": ()}, "format trl does not support keep: leave it out, or choose hf or encoder"),
        ({"format": "megatron", "mlm": MLM}, "format megatron does not support mlm: leave it out, or choose hf or"),
        ({"keeps": ()}, "format hf does not support keeps: leave it out, or choose one that"),
        ({"keeps": None}, "format hf does not support keeps: leave it out, or choose one that"),
        ({"mlm": MLM, "keep_tokens": ["labels"]}, "keep_tokens has labels, which mlm replaces: leave one of the two"),
        ({"keep": ["label"]}, "the rows have no column label, only input_ids, labels, position_ids, seq_lengths"),
        (
            {"format": "encoder", "keep_tokens": ["token_type_ids"]},
            "the rows have no column token_type_ids, only",
        ),
        ({"format": "encoder", "loss_weights": "document"}, "loss_weights need labels: pass mlm, or keep_tokens"),
        ({"loss_weights": "sequence"}, "loss_weights is 'sequence': choose token or document or weight"),
        (
            {"mlm": MLM, "mtp": 1},
            "mtp predicts tokens further ahead, which mlm shows to the model: leave one of them",
        ),
        ({"mtp": -1}, "mtp is -1: pass the number of extra heads, or 0 for none"),
        ({"mtp": 1.5}, "mtp is 1.5: pass the number of extra heads, or 0 for none"),
    ],
)
def test_what_a_format_does_not_have_is_refused_in_one_line(dataset, options, message):
    with pytest.raises(PackerError) as raised:
        packer.collate([dataset[0]], **options)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("options", [{"format": "encoder"}, {"mlm": True}])
def test_encoders_refuse_padding_inside_segments(tmp_path, options):
    aligned = packer.load(make(tmp_path, align=4))
    if "mlm" in options:
        options = {"mlm": MLM}
    with pytest.raises(PackerError, match="the rows are aligned, and an encoder would attend to the padding inside"):
        packer.collate([aligned[0]], **options)


# ---- flatten: raw examples ----

tokens_and_labels = st.lists(
    st.integers(1, 6).flatmap(
        lambda length: st.tuples(*[st.lists(st.integers(-100, 2**31 - 1), min_size=length, max_size=length)] * 2)
    ),
    min_size=1,
    max_size=5,
)


@given(tokens_and_labels, st.booleans(), st.sampled_from(["lists", "arrays", "tensors"]))
def test_flatten_equals_transformers_key_for_key_and_value_for_value(pairs, has_labels, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    make_values = {"lists": list, "arrays": np.array, "tensors": torch.tensor}[kind]
    examples = [{"input_ids": make_values(tokens), "labels": make_values(labels)} for tokens, labels in pairs]
    if not has_labels:
        examples = [{"input_ids": example["input_ids"], "attention_mask": [1]} for example in examples]
    for return_tensors, tensors in (("pt", "torch"), ("np", "numpy")):
        collator = transformers.DataCollatorWithFlattening(
            return_tensors=return_tensors, return_flash_attn_kwargs=True, return_seq_idx=True
        )
        found, expected = packer.flatten(examples, tensors=tensors), collator(examples)
        assert found.pop("use_cache") is False
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert type(found[name]) is type(value), name
            assert getattr(found[name], "dtype", None) == getattr(value, "dtype", None), name
            assert lists(found[name]) == lists(value), name


def test_flatten_does_not_touch_the_examples():
    examples = [{"input_ids": np.arange(3), "labels": np.arange(3)}]
    batch = packer.flatten(examples, tensors="numpy")
    batch["input_ids"][:] = 9
    assert examples[0]["input_ids"].tolist() == examples[0]["labels"].tolist() == [0, 1, 2]
    assert batch["labels"].tolist() == [[NO_LOSS, 1, 2]]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "there are 0 examples: a batch needs at least 1"),
        ([{"input_ids": [1]}, {"input_ids": []}], "example 1 of the batch has 0 tokens: leave empty examples out"),
        (
            [{"input_ids": [1, 2], "labels": [1]}],
            "example 0 of the batch has 1 labels for 2 tokens: pass one per token",
        ),
    ],
)
def test_examples_that_cannot_be_flattened_are_refused(examples, message):
    with pytest.raises(PackerError) as raised:
        packer.flatten(examples)
    assert str(raised.value) == message
